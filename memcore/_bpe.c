/* Exact token counts of byte-pair encodings (o200k_base, cl100k_base).
 *
 *   text -> pieces (_bpe_pieces.h) -> tokens of each piece (_bpe_tokens.h)
 *
 * A piece is looked up in a small cache of short pieces, then as a whole in the vocabulary, and is
 * split only if it is not a token.
 */
#include "_bpe_pieces.h"
#include "_bpe_tokens.h"

/* --- the workspace ------------------------------------------------------------------------------ */

bpe_work *bpe_work_new(void) { return calloc(1, sizeof(bpe_work)); }

void bpe_work_free(bpe_work *w) {
    if (!w) return;
    free(w->scratch);
    free(w->ids);
    free(w->dead);
    free(w->marks);
    free(w);
}

#define KEPT_BYTES (1u << 20)

void bpe_work_trim(bpe_work *w) {
    if (w->scratch_bytes > KEPT_BYTES) {
        free(w->scratch);
        w->scratch = NULL;
        w->scratch_bytes = 0;
    }
    if (w->long_bytes * sizeof *w->ids > KEPT_BYTES) {
        free(w->ids);
        free(w->dead);
        w->ids = NULL;
        w->dead = NULL;
        w->long_bytes = 0;
    }
    if (w->marks_room * sizeof *w->marks > KEPT_BYTES) {
        free(w->marks);
        w->marks = NULL;
        w->marks_room = 0;
    }
}

uint8_t *bpe_scratch(bpe_work *w, size_t n) {
    if (n > w->scratch_bytes) {
        size_t room = n < 4096 ? 4096 : n + n / 2;
        free(w->scratch);
        w->scratch_bytes = 0;
        w->scratch = malloc(room);
        if (w->scratch) w->scratch_bytes = room;
    }
    return w->scratch;
}

/* --- texts ------------------------------------------------------------------------------------- */

/* A piece of 2 to SHORT_BYTES bytes and its hash. */
typedef struct {
    words key;
    uint64_t hash;
    const uint8_t *at;
} piece;

static inline piece piece_at(const uint8_t *p, size_t n, const uint8_t *end) {
    words key = key_of(load_words(p, end), n);
    return (piece){key, hash_key(key), p};
}

static inline cached *slot_of(bpe_work *w, uint64_t hash) { return &w->cache[hash >> (64 - CACHE_BITS)]; }

/* Its token count if it is cached, else 0. */
static inline int64_t recall(bpe_work *w, const piece *it) {
    const cached *slot = slot_of(w, it->hash);
    int found = slot->lo == it->key.lo && (slot->hi & KEY_MASK) == it->key.hi;
    return LIKELY(found) ? (int64_t)(slot->hi >> 60) : 0;
}

/* 1 if it is a token itself, which is cached, else 0. */
static inline int64_t look_up(bpe_vocab *v, bpe_work *w, const piece *it) {
    if (find_key(v, it->key, it->hash) == NONE) return 0;
    *slot_of(w, it->hash) = (cached){it->key.lo, it->key.hi | UINT64_C(1) << 60};
    return 1;
}

static inline int64_t split_short(bpe_vocab *v, bpe_work *w, const piece *it, const uint8_t *end) {
    int64_t found = split_piece(v, w, it->at, it->key.hi >> 56, end, NULL);
    if (LIKELY(found > 0))
        *slot_of(w, it->hash) = (cached){it->key.lo, it->key.hi | (uint64_t)found << 60};
    return found;
}

static int64_t count_piece(bpe_vocab *v, bpe_work *w, const uint8_t *p, size_t n, const uint8_t *end) {
    if (n == 1) return 1;
    if (n > SHORT_BYTES) return tokens_of(v, w, p, n, end, NULL);
    piece it = piece_at(p, n, end);
    int64_t found = recall(w, &it);
    if (!found) found = look_up(v, w, &it);
    return found ? found : split_short(v, w, &it, end);
}

#define AHEAD 32

/* The tokens of pieces that are not cached, whose memory is being fetched. */
static int64_t count_new(bpe_vocab *v, bpe_work *w, piece *it, int count, const uint8_t *end) {
    int64_t total = 0;
    for (int i = 0; i < count; i++)
        __builtin_prefetch(&v->places[v->slots[first_slot(v, it[i].hash)] & ID_MASK]);
    int left = 0;
    for (int i = 0; i < count; i++) {
        int64_t found = look_up(v, w, &it[i]);
        total += found;
        if (LIKELY(found)) continue;
        fetch_ahead(v, it[i].at, it[i].key.hi >> 56, end);
        it[left++] = it[i];
    }
    for (int i = 0; i < left; i++) {
        int64_t found = split_short(v, w, &it[i], end);
        if (UNLIKELY(found < 0)) return found;
        total += found;
    }
    return total;
}

/* Pieces that are not cached are looked up AHEAD at a time, so that their cache misses, most of the
 * cost on new texts, overlap. */
int64_t bpe_count_to(bpe_vocab *v, bpe_work *w, const uint8_t *s, size_t n, int64_t most) {
    text t = text_of(v, s, n);
    piece ahead[AHEAD];
    int count = 0;
    int64_t total = 0;
    while (s < t.end && total <= most) {
        const uint8_t *to = next_piece(&t, s);
        size_t size = (size_t)(to - s);
        int64_t found = 1;
        if (LIKELY(size > 1 && size <= SHORT_BYTES)) {
            piece it = piece_at(s, size, t.end);
            found = recall(w, &it);
            if (UNLIKELY(!found)) {
                __builtin_prefetch(&v->slots[first_slot(v, it.hash)]);
                ahead[count++] = it;
                if (count == AHEAD) {
                    found = count_new(v, w, ahead, count, t.end);
                    count = 0;
                }
            }
        } else if (size > 1) {
            found = tokens_of(v, w, s, size, t.end, NULL);
        }
        if (UNLIKELY(found < 0)) return found;
        total += found;
        s = to;
    }
    int64_t found = count_new(v, w, ahead, count, t.end);
    return UNLIKELY(found < 0) ? found : total + found;
}

int64_t bpe_count(bpe_vocab *v, bpe_work *w, const uint8_t *s, size_t n) {
    return bpe_count_to(v, w, s, n, INT64_MAX);
}

int64_t bpe_encode(bpe_vocab *v, bpe_work *w, const uint8_t *s, size_t n, uint32_t *ids) {
    text t = text_of(v, s, n);
    int64_t total = 0;
    while (s < t.end) {
        const uint8_t *to = next_piece(&t, s);
        int64_t found = tokens_of(v, w, s, (size_t)(to - s), t.end, ids + total);
        if (found < 0) return found;
        total += found;
        s = to;
    }
    return total;
}

/* --- cuts -------------------------------------------------------------------------------------- */

#define MARK_PIECES 64

static int keep_mark(bpe_work *w, size_t number, mark found) {
    if (number >= w->marks_room) {
        size_t room = 2 * w->marks_room + 64;
        mark *more = realloc(w->marks, room * sizeof *more);
        if (!more) return 0;
        w->marks = more;
        w->marks_room = room;
    }
    w->marks[number] = found;
    return 1;
}

static inline int is_boundary(const uint8_t *p, const uint8_t *end) {
    return p == end || (*p & 0xC0) != 0x80;
}

/* Inside the piece of n bytes at s + from.at: the last boundary with at most `most` tokens before
 * it (`before`), or the first one with at least that many. */
static int cut_inside(bpe_vocab *v, bpe_work *w, const uint8_t *s, mark from, size_t n,
                      const uint8_t *end, int64_t most, int before, mark *found) {
    if (!grow_long(w, n)) return BPE_ENOMEM;
    const uint8_t *piece = s + from.at;
    int64_t k = tokens_of(v, w, piece, n, end, w->ids);
    if (k < 0) return (int)k;
    mark at = from, best = from;
    for (int64_t i = 0; i <= k; i++) {
        if (is_boundary(s + at.at, end)) {
            if (before && at.tokens > most) break;
            best = at;
            if (!before && at.tokens >= most) break;
        }
        if (i < k) {
            at.at += bytes_of(v, w->ids[i]);
            at.tokens++;
        }
    }
    *found = best;
    return 0;
}

int bpe_cuts(bpe_vocab *v, bpe_work *w, const uint8_t *s, size_t n, int64_t head, int64_t tail,
             bpe_cut *first, bpe_cut *last) {
    text t = text_of(v, s, n);
    mark now = {0, 0}, split = {n, -1};
    size_t split_bytes = 0, pieces = 0;
    while (now.at < n) {
        if (pieces % MARK_PIECES == 0 && !keep_mark(w, pieces / MARK_PIECES, now)) return BPE_ENOMEM;
        pieces++;
        size_t size = (size_t)(next_piece(&t, s + now.at) - (s + now.at));
        int64_t found = count_piece(v, w, s + now.at, size, t.end);
        if (found < 0) return (int)found;
        if (split.tokens < 0 && now.tokens + found > head) {
            split = now;
            split_bytes = size;
        }
        now.at += size;
        now.tokens += found;
    }
    mark cut = now;
    int status = 0;
    unsigned width;
    /* If a tail follows, digits on both sides of the gap would regroup: see below. */
    if (split.tokens >= 0 && tail > 0 && class_at(&t, s + split.at, &width) == NUM)
        cut = split;
    else if (split.tokens >= 0)
        status = cut_inside(v, w, s, split, split_bytes, t.end, head, 1, &cut);
    *first = (bpe_cut){(int64_t)cut.at, cut.tokens, now.tokens};
    if (status) return status;

    int64_t need = now.tokens - tail;  /* tokens to remove */
    cut = (mark){0, 0};
    if (need > 0) {
        size_t low = 0, high = (pieces - 1) / MARK_PIECES;
        while (low < high) {
            size_t middle = (low + high + 1) / 2;
            if (w->marks[middle].tokens <= need) low = middle;
            else high = middle - 1;
        }
        cut = w->marks[low];
        while (cut.tokens < need) {
            size_t size = (size_t)(next_piece(&t, s + cut.at) - (s + cut.at));
            int64_t found = count_piece(v, w, s + cut.at, size, t.end);
            if (found < 0) return (int)found;
            /* After a cut inside a number all digits would regroup: that piece is removed whole. */
            if (cut.tokens + found >= need && class_at(&t, s + cut.at, &width) != NUM) {
                status = cut_inside(v, w, s, cut, size, t.end, need, 0, &cut);
                break;
            }
            cut.at += size;
            cut.tokens += found;
        }
    }
    *last = (bpe_cut){(int64_t)cut.at, cut.tokens, now.tokens};
    return status;
}

/* --- digits ------------------------------------------------------------------------------------ */

int bpe_measure_text(bpe_vocab *v, bpe_work *w, const uint8_t *s, size_t n, bpe_measure *found) {
    text t = text_of(v, s, n);
    *found = (bpe_measure){0, 0, 0};
    while (s < t.end) {
        const uint8_t *to = next_piece(&t, s);
        int64_t tokens = count_piece(v, w, s, (size_t)(to - s), t.end);
        if (tokens < 0) return (int)tokens;
        found->tokens += tokens;
        unsigned size;
        if (class_at(&t, s, &size) == NUM) {
            found->numbers++;
            for (const uint8_t *p = s; p < to; p += size) {
                class_at(&t, p, &size);
                found->digits++;
            }
        }
        s = to;
    }
    return 0;
}
