/* A vocabulary: builds tables from the files of memcore/vocab and verifies everything in them that
 * the rest of the counter relies on. docs/architecture.md describes the files. */
#include "_bpe_vocab.h"

#include <stdlib.h>

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

/* Check the lengths, splits and single bytes on which the rest relies. */
static const char *read_tokens(bpe_vocab *v, const uint8_t *sizes, size_t blob) {
    size_t sum = 0;
    memset(v->byte_id, 0xFF, sizeof v->byte_id);
    for (uint32_t id = 0; id < v->n; id++) {
        size_t size = sizes[id];
        if (!size || size > BPE_TOKEN_BYTES_MAX || sum + size > blob) return "a token has no length";
        if (size == 1 ? v->splits[id] != 0 : !v->splits[id] || v->splits[id] >= size)
            return "a token cannot be made by merging";
        v->places[id] = (uint32_t)(sum << SIZE_BITS | size);
        if (size == 1) v->byte_id[v->bytes[sum]] = id;
        sum += size;
    }
    if (sum != blob) return "the lengths do not add up";
    for (unsigned c = 0; c < 256; c++)
        if (v->byte_id[c] == NONE) return "a byte is no token";
    return NULL;
}

static void add(bpe_vocab *v, uint64_t hash, uint32_t id) {
    uint32_t at = first_slot(v, hash);
    while (v->slots[at] != NONE) at = next_slot(v, at);
    v->slots[at] = tag_of(hash) | id;
}

#define FETCHED_TOKENS 20

/* Prefetch the locations to which a token will be written: they are scattered. */
FETCHES fetch_for(const bpe_vocab *v, uint32_t id) {
    const uint8_t *p = v->bytes + start_of(v, id);
    size_t n = bytes_of(v, id);
    words w = {load64(p), load64(p + 8)};
    if (n <= SHORT_BYTES) __builtin_prefetch(&v->slots[first_slot(v, hash_key(key_of(w, n)))]);
    __builtin_prefetch(&v->near[near_slot(w.lo)]);
    __builtin_prefetch(&v->far[far_slot(w.lo)]);
}

static const char *index_tokens(bpe_vocab *v) {
    memset(v->pair_id, 0xFF, sizeof *v->pair_id << 16);
    memset(v->point_id, 0xFF, sizeof *v->point_id << 16);
    for (uint32_t id = 0; id < v->n; id++) {
        const uint8_t *p = v->bytes + start_of(v, id);
        size_t n = bytes_of(v, id);
        words w = {load64(p), load64(p + 8)};
        if (id + FETCHED_TOKENS < v->n) fetch_for(v, id + FETCHED_TOKENS);
        if ((n <= SHORT_BYTES ? find_short(v, w, n) : find_long(v, p, n)) != NONE)
            return "a token is there twice";
        add(v, n <= SHORT_BYTES ? hash_key(key_of(w, n)) : hash_long(p, n), id);
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
    free(v->arena);
    free(v);
}

#define ALIGNMENT 64

/* The next n bytes of the arena; while there is no arena, only adds up the sizes. */
static void *carve(bpe_vocab *v, size_t *used, size_t n) {
    void *found = v->arena ? (uint8_t *)v->arena + *used : NULL;
    *used += (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return found;
}

static size_t lay_out(bpe_vocab *v, size_t n_classes) {
    size_t used = 0;
    v->slots = carve(v, &used, v->n_slots * sizeof *v->slots);
    v->places = carve(v, &used, v->n * sizeof *v->places);
    v->far = carve(v, &used, sizeof *v->far << LENGTHS_BITS);
    v->near = carve(v, &used, sizeof *v->near << LENGTHS_BITS);
    v->pair_id = carve(v, &used, sizeof *v->pair_id << 16);
    v->point_id = carve(v, &used, sizeof *v->point_id << 16);
    v->classes = carve(v, &used, n_classes);
    v->shorter = carve(v, &used, v->n * sizeof *v->shorter);
    v->parts = carve(v, &used, v->n * sizeof *v->parts);
    return used;
}

/* All tables in one zeroed allocation, whose pages the system commits when they are written: the
 * memos at its end stay small where few texts are counted. */
static int allocate(bpe_vocab *v, size_t n_classes) {
    v->n_slots = 2 * v->n;
    v->arena = calloc(1, lay_out(v, n_classes));
    if (!v->arena) return 0;
    lay_out(v, n_classes);
    memset(v->slots, 0xFF, v->n_slots * sizeof *v->slots);
    return 1;
}

bpe_vocab *bpe_vocab_new(const uint8_t *file, size_t n, const uint8_t *classes, size_t n_classes,
                         const char **why) {
    *why = NULL;
    if (n < HEADER_BYTES || memcmp(file, "mc-vocab", 8) || read32(file + 8) != 2) {
        *why = "no vocabulary of version 2";
        return NULL;
    }
    uint32_t pattern = read32(file + 12), tokens = read32(file + 16), blob = read32(file + 20);
    if (pattern != BPE_CL100K && pattern != BPE_O200K)
        *why = "the vocabulary has an unknown pattern";
    else if (tokens < 256 || tokens >= ID_MASK || blob >> (32 - SIZE_BITS) || n != HEADER_BYTES + 2 * (size_t)tokens + blob + PAD)
        *why = "the vocabulary has another length than it says";
    if (*why) return NULL;
    bpe_vocab *v = calloc(1, sizeof *v);
    if (!v) return NULL;
    v->n = tokens;
    v->pattern = (int)pattern;
    const uint8_t *sizes = file + HEADER_BYTES;
    v->splits = sizes + tokens;
    v->bytes = v->splits + tokens;
    if (!allocate(v, n_classes)) {
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
    *n = bytes_of(v, id);
    return v->bytes + start_of(v, id);
}
