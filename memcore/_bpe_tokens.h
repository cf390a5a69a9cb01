/* Internal: the tokens of one piece, without merging.
 *
 * Splitting takes the longest token that may follow the previous one, and backtracks if none can: a
 * sequence of tokens is the result of merging by rank if and only if every pair of neighbours is
 * (H. van Antwerpen and A. Neubeck, "So many tokens, so little time: introducing a faster, more
 * flexible byte-pair tokenizer", GitHub 2024). A position found to be a dead end is never visited
 * again, so the work is linear in the piece's length.
 */
#ifndef MEMCORE_BPE_TOKENS_H
#define MEMCORE_BPE_TOKENS_H

#include "_bpe_vocab.h"

#include <stdlib.h>

#define CACHE_BITS 14
#define KEY_MASK ((UINT64_C(1) << 60) - 1)

/* The bytes of a piece, its length in bits 56 to 59 of hi and its token count in the 4 above. */
typedef struct {
    uint64_t lo, hi;
} cached;

/* Where a piece begins, and the tokens before it. */
typedef struct {
    size_t at;
    int64_t tokens;
} mark;

#define APART_BITS 15
#define FETCHED_BYTES 96
#define SHORT_PAIR_BYTES 32

struct bpe_work {
    cached cache[1 << CACHE_BITS];
    uint64_t apart[1 << APART_BITS];  /* pairs of tokens; the lowest bit: they stay apart */
    uint8_t *scratch;
    size_t scratch_bytes;
    uint32_t *ids;      /* tokens of a long piece */
    uint64_t *dead;     /* a bit for each of its positions that is a dead end */
    size_t long_bytes;
    mark *marks;        /* every MARK_PIECES-th piece of a text being cut */
    size_t marks_room;
};

/* A token of a piece: its id, and above ID_BITS its size, which saves a cache miss. Never 0. */
typedef uint32_t sized;

static inline sized sized_of(uint32_t id, size_t n) { return id | (uint32_t)n << ID_BITS; }
static inline uint32_t id_of(sized it) { return it & ID_MASK; }
static inline size_t size_of(sized it) { return it >> ID_BITS; }

/* The longest token at p of FAR_FROM to `most` bytes, or 0. */
static inline sized longest_far(const bpe_vocab *v, const uint8_t *p, words w, size_t most) {
    uint32_t slot = far_slot(w.lo), lengths = v->far[slot];
    if (!lengths) return 0;
    size_t n = v->longest[longest_slot(w.lo)];
    for (n = n < most ? n : most; n >= LENGTHS_FAR; n--) {
        uint32_t id = find_long(v, p, n);
        if (id != NONE) return sized_of(id, n);
    }
    lengths &= (UINT32_C(2) << (most < LENGTHS_FAR ? most : LENGTHS_FAR - 1)) - 1;
    while (lengths) {
        n = 31 - (size_t)__builtin_clz(lengths);
        lengths ^= UINT32_C(1) << n;
        uint32_t id = n <= SHORT_BYTES ? find_short(v, w, n) : find_long(v, p, n);
        if (id != NONE) return sized_of(id, n);
    }
    return 0;
}

/* The longest token at p of at most `most` bytes. */
static sized longest(const bpe_vocab *v, const uint8_t *p, size_t most, const uint8_t *end) {
    if (most < 2) return sized_of(v->byte_id[*p], 1);
    uint32_t id;
    if (most >= 3 && has_bit(v->begun, p)) {
        words w = load_words(p, end);
        uint32_t lengths = v->near[near_slot(w.lo)];
        if (most >= FAR_FROM && lengths >> FAR_FROM) {
            sized found = longest_far(v, p, w, most);
            if (found) return found;
        }
        for (size_t n = most < FAR_FROM ? most : FAR_FROM - 1; n >= 3; n--) {
            if (!(lengths >> n & 1)) continue;
            id = n == 3 && is_point(p) ? v->point_id[point_of(p)] : find_short(v, w, n);
            if (id != NONE) return sized_of(id, n);
        }
    }
    id = v->pair_id[p[0] << 8 | p[1]];
    return id != NONE ? sized_of(id, 2) : sized_of(v->byte_id[*p], 1);
}

/* True if there may be a token that begins in first .. p - 1 and ends in p + 1 .. stop. */
static int may_cross(const bpe_vocab *v, const uint8_t *first, const uint8_t *p,
                     const uint8_t *stop, const uint8_t *end) {
    for (const uint8_t *from = p - 1; from >= first; from--) {
        ptrdiff_t least = p - from + 1, most = stop - from;
        if (least == 2 && v->pair_id[from[0] << 8 | from[1]] != NONE) return 1;
        if (most < 3 || !has_bit(v->begun, from)) continue;
        words w = load_words(from, end);
        uint32_t lengths = v->near[near_slot(w.lo)], allowed = most < 31 ? (2u << most) - 1 : ~0u;
        if (least < FAR_FROM && (lengths & allowed & ((1u << FAR_FROM) - 1)) >> least) return 1;
        if (most < FAR_FROM || !(lengths >> FAR_FROM)) continue;
        lengths = v->far[far_slot(w.lo)] & allowed;
        if (lengths >> (least < LENGTHS_FAR ? least : LENGTHS_FAR)) return 1;
    }
    return 0;
}

/* Both parts of a token of two bytes or more, the left one in the low half; 0: none, as the
 * vocabulary contradicts itself. */
static inline uint64_t parts_of(bpe_vocab *v, sized it) {
    uint64_t both = __atomic_load_n(&v->parts[id_of(it)], __ATOMIC_RELAXED);
    if (LIKELY(both)) return both;
    size_t left = v->splits[id_of(it)], right = size_of(it) - left;
    const uint8_t *p = v->bytes + start_of(v, id_of(it)), *end = p + size_of(it) + PAD;
    uint32_t a = find(v, p, left, end), b = find(v, p + left, right, end);
    if (a == NONE || b == NONE || a >= id_of(it) || b >= id_of(it)) return 0;
    both = (uint64_t)sized_of(b, right) << 32 | sized_of(a, left);
    __atomic_store_n(&v->parts[id_of(it)], both, __ATOMIC_RELAXED);
    return both;
}

/* 1 if merging leaves `left`, which ends at p, and `right`, which begins there, apart, 0 if not, or
 * BPE_EVOCAB: undo their merges, latest first, and check that no merge across p precedes them. */
static int find_apart(bpe_vocab *v, const uint8_t *p, sized left, sized right, const uint8_t *end) {
    uint32_t limit = NONE;
    for (;;) {
        size_t a = size_of(left), b = size_of(right);
        uint32_t joined = find(v, p - a, a + b, end);
        if (joined < limit && v->splits[joined] == a) return 0;
        if (a == 1 && b == 1) return 1;
        int undo_left = b == 1 || (a > 1 && id_of(left) > id_of(right));
        uint64_t both = parts_of(v, undo_left ? left : right);
        if (UNLIKELY(!both)) return BPE_EVOCAB;
        /* Of merges of equal rank the leftmost comes first. */
        limit = undo_left ? id_of(left) : id_of(right) + 1;
        if (undo_left) left = (sized)(both >> 32);
        else right = (sized)both;
    }
}

/* 1 if `right`, at p, may follow `left`, 0 if not, or BPE_EVOCAB. `is_longest`: no longer token
 * begins where `left` does. Recent answers are cached; where tokens are short and nothing crosses
 * p, computing the answer again is cheaper. */
static inline int may_follow(bpe_vocab *v, bpe_work *w, const uint8_t *p, sized left, sized right,
                             int is_longest, const uint8_t *end) {
    const uint8_t *first = p - size_of(left) + is_longest;
    int is_short = size_of(left) + size_of(right) <= SHORT_PAIR_BYTES;
    if (is_short && !may_cross(v, first, p, p + size_of(right), end)) return 1;
    uint64_t pair = (uint64_t)left << 32 | (uint64_t)right << 1;
    uint64_t *slot = &w->apart[(pair * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - APART_BITS)];
    if ((*slot & ~UINT64_C(1)) == pair) return (int)(*slot & 1);
    int found = 1;
    if (is_short || may_cross(v, first, p, p + size_of(right), end))
        found = find_apart(v, p, left, right, end);
    if (LIKELY(found >= 0)) *slot = pair | (uint64_t)found;
    return found;
}

/* The longest proper prefix of this token (of two bytes or more) that is itself a token. */
static inline sized shorter_of(bpe_vocab *v, sized it) {
    sized found = __atomic_load_n(&v->shorter[id_of(it)], __ATOMIC_RELAXED);
    if (LIKELY(found)) return found;
    const uint8_t *p = v->bytes + start_of(v, id_of(it));
    found = longest(v, p, size_of(it) - 1, p + size_of(it) + PAD);
    __atomic_store_n(&v->shorter[id_of(it)], found, __ATOMIC_RELAXED);
    return found;
}

/* Split n bytes that are not a token; `out` has room for n, `dead` for one bit each, all zero. */
static int64_t split_into(bpe_vocab *v, bpe_work *w, const uint8_t *piece, size_t n,
                          const uint8_t *end, sized *out, uint64_t *dead) {
    size_t at = 0, k = 0;
    int is_longest = 1, is_hint = 0;     /* the current token, among those that begin here */
    int after_longest = 0;               /* the previous token, among those that begin there */
    sized it = longest(v, piece, n, end);
    for (;;) {
        size_t size = size_of(it), to = at + size;
        const uint8_t *p = piece + at;
        int fits = !(dead[to / 64] >> (to % 64) & 1);
        if (fits && k) fits = may_follow(v, w, p, out[k - 1], it, after_longest, end);
        if (UNLIKELY(fits < 0)) return fits;
        if (fits) {
            out[k++] = it;
            at = to;
            if (at == n) return (int64_t)k;
            after_longest = is_longest;
            /* Long runs repeat one token, which need not be the longest. */
            is_hint = !is_longest && size <= n - at && !memcmp(piece + at, p, size);
            is_longest = !is_hint;
            if (!is_hint) it = longest(v, piece + at, n - at, end);
        } else if (is_hint) {
            it = longest(v, p, n - at, end);
            is_hint = 0;
            is_longest = 1;
        } else if (size > 1) {
            it = shorter_of(v, it);
            is_longest = 0;
        } else {  /* no token may begin here: the one that ended here is wrong */
            if (UNLIKELY(!k)) return BPE_EVOCAB;
            dead[at / 64] |= UINT64_C(1) << (at % 64);
            it = out[--k];
            at -= size_of(it);
            is_hint = 1;  /* it may have been a hint: try all other tokens at its position */
            is_longest = 0;
            after_longest = 0;
        }
    }
}

/* Prefetch what the first lookups in a piece will read. */
FETCHES fetch_ahead(const bpe_vocab *v, const uint8_t *p, size_t n, const uint8_t *end) {
    size_t stop = n < FETCHED_BYTES ? n : FETCHED_BYTES;
    for (size_t i = 0; i + 2 < stop; i++) {
        if ((p[i] & 0xC0) == 0x80) continue;
        words w = load_words(p + i, end);
        __builtin_prefetch(&v->near[near_slot(w.lo)]);
        __builtin_prefetch(&v->far[far_slot(w.lo)]);
        if (is_point(p + i)) __builtin_prefetch(&v->point_id[point_of(p + i)]);
    }
}

#define SMALL_BYTES 256

static int grow_long(bpe_work *w, size_t n) {
    if (n <= w->long_bytes) return 1;
    free(w->ids);
    free(w->dead);
    w->long_bytes = 0;
    w->dead = NULL;
    w->ids = malloc(n * sizeof *w->ids);
    w->dead = malloc((n / 64 + 1) * sizeof *w->dead);
    if (!w->ids || !w->dead) return 0;
    w->long_bytes = n;
    return 1;
}

/* The number of tokens of a piece that is not a token; their ids in `out` unless that is NULL. */
static int64_t split_piece(bpe_vocab *v, bpe_work *w, const uint8_t *p, size_t n, const uint8_t *end,
                           uint32_t *out) {
    sized small[SMALL_BYTES];
    uint64_t dead[SMALL_BYTES / 64 + 1], *places = dead;
    sized *found = out ? out : small;
    if (n > SHORT_BYTES) fetch_ahead(v, p, n, end);
    if (UNLIKELY(n > SMALL_BYTES)) {
        if (!grow_long(w, n)) return BPE_ENOMEM;
        places = w->dead;
        if (!out) found = w->ids;
    }
    memset(places, 0, (n / 64 + 1) * sizeof *places);
    int64_t k = split_into(v, w, p, n, end, found, places);
    for (int64_t i = 0; out && i < k; i++) out[i] = id_of(out[i]);
    return k;
}

/* The number of tokens of any piece; their ids in `out` unless that is NULL. */
static int64_t tokens_of(bpe_vocab *v, bpe_work *w, const uint8_t *p, size_t n, const uint8_t *end,
                         uint32_t *out) {
    uint32_t id = find(v, p, n, end);
    if (id == NONE) return split_piece(v, w, p, n, end, out);
    if (out) *out = id;
    return 1;
}

#endif
