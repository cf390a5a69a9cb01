/* A vocabulary: from the files of memcore/vocab to tables, with every claim of theirs checked that the
 * rest of the counter relies on. docs/architecture.md draws the files. */
#include "_bpe_vocab.h"

#include <stdlib.h>
#include <sys/mman.h>

static uint32_t read32(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static const char *read_classes(bpe_vocab *v, const uint8_t *file, size_t n) {
    if (n < HEADER_BYTES + INDEX_BYTES || memcmp(file, "mc-class", 8) || read32(file + 8) != 1)
        return "no table of classes of version 1";
    uint32_t blocks = read32(file + 12);
    if (blocks > POINTS >> BLOCK_BITS || n != HEADER_BYTES + INDEX_BYTES + ((size_t)blocks << BLOCK_BITS))
        return "the table of classes has another length than it says";
    const uint8_t *at = file + HEADER_BYTES;
    for (size_t i = 0; i < POINTS >> BLOCK_BITS; i++, at += 2) {
        v->index[i] = (uint16_t)(at[0] | at[1] << 8);
        if (v->index[i] >= blocks) return "the table of classes names a block that it does not have";
    }
    memcpy(v->classes, at, (size_t)blocks << BLOCK_BITS);
    size_t newlines = 0;
    for (size_t i = 0; i < (size_t)blocks << BLOCK_BITS; i++) {
        if (v->classes[i] > NL) return "the table of classes holds an unknown class";
        newlines += v->classes[i] == NL;
    }
    for (unsigned c = 0; c < 128; c++) {
        unsigned want = c >= 'a' && c <= 'z' ? LO : c >= 'A' && c <= 'Z' ? UP : OTHER;
        if (c >= '0' && c <= '9') want = NUM;
        if (c == ' ' || (c >= '\t' && c <= '\r')) want = c == '\n' || c == '\r' ? NL : WS;
        if (v->classes[((size_t)v->index[0] << BLOCK_BITS) | c] != want || newlines != 2)
            return "the table of classes has ASCII wrong";
    }
    for (unsigned c = 0; c < 256; c++)
        v->ascii[c] = c < 128 ? v->classes[((size_t)v->index[0] << BLOCK_BITS) | c] : FURTHER;
    return NULL;
}

/* Whether lengths, splits and single bytes are what the rest relies on. */
static const char *read_tokens(bpe_vocab *v, const uint8_t *sizes, size_t blob) {
    const uint8_t *splits = sizes + v->n;
    size_t sum = 0;
    memset(v->byte_id, 0xFF, sizeof v->byte_id);
    for (uint32_t id = 0; id < v->n; id++) {
        size_t size = sizes[id];
        if (!size || size > BPE_TOKEN_BYTES_MAX || sum + size > blob) return "a token has no length";
        if (size == 1 ? splits[id] != 0 : !splits[id] || splits[id] >= size)
            return "a token cannot be made by merging";
        v->tokens[id] = (token){(uint32_t)sum, sizes[id], splits[id], 0};
        if (size == 1) v->byte_id[v->bytes[sum]] = id;
        sum += size;
    }
    if (sum != blob) return "the lengths do not add up";
    for (unsigned c = 0; c < 256; c++)
        if (v->byte_id[c] == NONE) return "a byte is no token";
    return NULL;
}

static int add_short(bpe_vocab *v, words key, uint32_t id) {
    line *at = line_of(v, hash_key(key));
    for (;; at = next_line(v, at)) {
        for (uint32_t i = 0; i < at->used; i++)
            if (UNLIKELY(at->hi[i] == key.hi && at->lo[i] == key.lo)) return 0;
        if (at->used < LINE_KEYS) break;
    }
    at->lo[at->used] = key.lo;
    at->hi[at->used] = key.hi;
    at->id[at->used++] = id;
    return 1;
}

static int add_long(bpe_vocab *v, const uint8_t *p, size_t n, uint32_t id) {
    if (find_long(v, p, n) != NONE) return 0;
    uint64_t h = hash_long(p, n);
    uint32_t at = (uint32_t)h & v->slot_mask;
    while (v->slots[at] != NONE) at = (at + 1) & v->slot_mask;
    v->slots[at] = tag_of(h) | id;
    return 1;
}

#define FETCHED_TOKENS 20

/* Have the places on their way that a token will be written to: they are scattered. */
FETCHES fetch_for(const bpe_vocab *v, uint32_t id) {
    const uint8_t *p = v->bytes + v->tokens[id].start;
    size_t n = v->tokens[id].size;
    words w = {load64(p), load64(p + 8)};
    if (n <= SHORT_BYTES) __builtin_prefetch(line_of(v, hash_key(key_of(w, n))));
    __builtin_prefetch(&v->near[near_slot(w.lo)]);
    __builtin_prefetch(&v->far[far_slot(w.lo)]);
}

static const char *index_tokens(bpe_vocab *v) {
    memset(v->pair_id, 0xFF, sizeof *v->pair_id << 16);
    memset(v->point_id, 0xFF, sizeof *v->point_id << 16);
    for (uint32_t id = 0; id < v->n; id++) {
        const uint8_t *p = v->bytes + v->tokens[id].start;
        size_t n = v->tokens[id].size;
        words w = {load64(p), load64(p + 8)};
        if (id + FETCHED_TOKENS < v->n) fetch_for(v, id + FETCHED_TOKENS);
        if (!(n <= SHORT_BYTES ? add_short(v, key_of(w, n), id) : add_long(v, p, n, id)))
            return "a token is there twice";
        if (n == 2) v->pair_id[p[0] << 8 | p[1]] = id;
        if (n == 3 && is_point(p)) v->point_id[point_of(p)] = id;
        if (n < 3) continue;
        v->begun[p[0] << 2 | p[1] >> 6] |= UINT64_C(1) << (p[1] & 63);
        v->near[near_slot(w.lo)] |= (uint8_t)(1u << (n < FAR_FROM ? n : FAR_FROM));
        if (n < FAR_FROM) continue;
        v->far[far_slot(w.lo)] |= UINT32_C(1) << (n < LENGTHS_FAR ? n : LENGTHS_FAR);
        uint8_t *longest = &v->longest[longest_slot(w.lo)];
        if (n >= LENGTHS_FAR && n > *longest) *longest = (uint8_t)n;
    }
    return NULL;
}

void bpe_vocab_free(bpe_vocab *v) {
    if (!v) return;
    if (v->arena) munmap(v->arena, v->arena_bytes);
    free(v);
}

#define ALIGNMENT 64
#define HUGE_BYTES ((size_t)1 << 21)

/* The next n bytes of the arena; while there is none, only their number is counted. */
static void *carve(bpe_vocab *v, size_t *used, size_t n) {
    void *found = v->arena ? (uint8_t *)v->arena + *used : NULL;
    *used += (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return found;
}

static size_t lay_out(bpe_vocab *v, size_t blob, size_t n_classes) {
    size_t used = 0;
    v->lines = carve(v, &used, v->n_lines * sizeof *v->lines);
    v->tokens = carve(v, &used, v->n * sizeof *v->tokens);
    v->bytes = carve(v, &used, blob + PAD);
    v->far = carve(v, &used, sizeof *v->far << LENGTHS_BITS);
    v->near = carve(v, &used, sizeof *v->near << LENGTHS_BITS);
    v->pair_id = carve(v, &used, sizeof *v->pair_id << 16);
    v->point_id = carve(v, &used, sizeof *v->point_id << 16);
    v->slots = carve(v, &used, (v->slot_mask + (size_t)1) * sizeof *v->slots);
    v->shorter = carve(v, &used, v->n * sizeof *v->shorter);
    v->classes = carve(v, &used, n_classes);
    return used;
}

/* All tables in one zeroed range, of huge pages where the system has them: lookups are scattered, and
 * with small pages most of them would miss the processor's address cache as well. */
static int allocate(bpe_vocab *v, const uint8_t *sizes, size_t blob, size_t n_classes) {
    uint32_t n_long = 0;
    for (uint32_t id = 0; id < v->n; id++) n_long += sizes[id] > SHORT_BYTES;
    v->n_lines = (v->n - n_long) / 2 + 1;
    for (v->slot_mask = 1023; v->slot_mask < 2 * n_long; v->slot_mask = 2 * v->slot_mask + 1) {}
    size_t bytes = (lay_out(v, blob, n_classes) + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
    void *found = mmap(NULL, bytes + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) return 0;
    size_t before = (HUGE_BYTES - (uintptr_t)found % HUGE_BYTES) % HUGE_BYTES;
    v->arena = (uint8_t *)found + before;
    v->arena_bytes = bytes;
    if (before) munmap(found, before);
    munmap((uint8_t *)v->arena + bytes, HUGE_BYTES - before);
#ifdef MADV_HUGEPAGE
    madvise(v->arena, bytes, MADV_HUGEPAGE); /* a wish: without it all is slower, not wrong */
#endif
    lay_out(v, blob, n_classes);
    memset(v->slots, 0xFF, (v->slot_mask + (size_t)1) * sizeof *v->slots);
    memcpy((uint8_t *)v->arena + (v->bytes - (const uint8_t *)v->arena), sizes + 2 * (size_t)v->n, blob);
    return 1;
}

bpe_vocab *bpe_vocab_new(const uint8_t *file, size_t n, const uint8_t *classes, size_t n_classes,
                         const char **why) {
    *why = NULL;
    if (n < HEADER_BYTES || memcmp(file, "mc-vocab", 8) || read32(file + 8) != 1) {
        *why = "no vocabulary of version 1";
        return NULL;
    }
    uint32_t pattern = read32(file + 12), tokens = read32(file + 16), blob = read32(file + 20);
    if (pattern != BPE_CL100K && pattern != BPE_O200K)
        *why = "the vocabulary has an unknown pattern";
    else if (tokens < 256 || tokens >= ID_MASK || n != HEADER_BYTES + 2 * (size_t)tokens + blob)
        *why = "the vocabulary has another length than it says";
    if (*why) return NULL;
    bpe_vocab *v = calloc(1, sizeof *v);
    if (!v) return NULL;
    v->n = tokens;
    v->pattern = (int)pattern;
    const uint8_t *sizes = file + HEADER_BYTES;
    if (!allocate(v, sizes, blob, n_classes)) {
        bpe_vocab_free(v);
        return NULL;
    }
    *why = read_classes(v, classes, n_classes);
    if (!*why) *why = read_tokens(v, sizes, blob);
    if (!*why) *why = index_tokens(v);
    if (*why) {
        bpe_vocab_free(v);
        return NULL;
    }
    return v;
}

int bpe_pattern(const bpe_vocab *v) { return v->pattern; }

uint32_t bpe_size(const bpe_vocab *v) { return v->n; }

const uint8_t *bpe_token(const bpe_vocab *v, uint32_t id, size_t *n) {
    *n = v->tokens[id].size;
    return v->bytes + v->tokens[id].start;
}
