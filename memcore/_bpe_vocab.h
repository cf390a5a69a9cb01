/* Internal: a vocabulary in memory, and token lookup in it. */
#ifndef MEMCORE_BPE_VOCAB_H
#define MEMCORE_BPE_VOCAB_H

#include "_bpe.h"

#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "keys and hashes take the bytes of a text as little-endian words"
#endif

#define NONE UINT32_MAX
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
/* For functions that only prefetch: gcc considers their calls dead code and drops them. */
#define FETCHES static inline __attribute__((always_inline)) void

/* --- the tables -------------------------------------------------------------------------------- */

enum { OTHER, UP, LO, BOTH, MARK, NUM, WS, NL };  /* classes of code points, as in classes.bin */
#define FURTHER 31
#define BIT(c) (1u << (c))
#define LETTER (BIT(UP) | BIT(LO) | BIT(BOTH))
#define SPACE (BIT(WS) | BIT(NL))

#define POINTS 0x110000u
#define BLOCK_BITS 7
#define INDEX_BYTES (2 * (POINTS >> BLOCK_BITS))
#define HEADER_BYTES 32
#define ID_BITS 18
#define ID_MASK ((1u << ID_BITS) - 1)
#define PAD 16           /* zero bytes after the tokens: word-sized reads may overrun */
#define SIZE_BITS 8      /* in a token's place: the low bits are its size, the others its start */
#define LENGTHS_BITS 18  /* slots of the tables of lengths, as a power of two */
#define LENGTHS_FAR 31   /* this bit stands for tokens of this many bytes or more */
#define LONGEST_BITS 12

#define SHORT_BYTES 15   /* bytes of a token that with their length make up a 16-byte key */

struct bpe_vocab {
    void *arena;            /* the single allocation of all tables; the file is not copied */
    int pattern;
    uint32_t n;
    const uint8_t *splits;  /* in the file, by id: size of the last merge's left part, 0 if none */
    const uint8_t *bytes;   /* in the file: all tokens concatenated, and PAD more */
    uint32_t *places;       /* by id: the start of its bytes, and their number in SIZE_BITS */
    uint32_t *slots;        /* by hash, open addressing: tag above ID_BITS, id; NONE: empty */
    uint32_t n_slots;
    uint64_t *parts;        /* memo: both parts of the last merge (`sized`, left low); 0: unset */
    uint8_t *near;          /* by hash of three bytes: lengths of the tokens that begin with them */
    uint32_t *far;          /* by hash of six bytes: the lengths from six on */
    uint32_t *shorter;      /* memo: the next shorter token it begins with (`sized`); 0: unset */
    uint32_t *pair_id;      /* tokens of two bytes, by those bytes */
    uint32_t *point_id;     /* tokens that are one character of three bytes, by code point */
    uint8_t *classes;       /* blocks of classes of code points, numbered by `index` */
    uint32_t byte_id[256];
    uint8_t longest[1 << LONGEST_BITS];  /* by hash of six bytes: the longest of LENGTHS_FAR or more */
    uint64_t begun[1024];   /* a bit for each pair of bytes with which a longer token begins */
    uint16_t index[POINTS >> BLOCK_BITS];
    uint8_t ascii[256];     /* classes of one-byte characters; FURTHER: the first byte of several */
};

/* --- hashing ----------------------------------------------------------------------------------- */

static inline uint64_t load64(const uint8_t *p) {
    uint64_t x;
    memcpy(&x, p, 8);
    return x;
}

static inline uint64_t mix(uint64_t a, uint64_t b) {
    unsigned __int128 m = (unsigned __int128)a * b;
    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

/* Up to 16 bytes as two words; bytes from `end` on are not read. */
typedef struct {
    uint64_t lo, hi;
} words;

static inline words load_words(const uint8_t *p, const uint8_t *end) {
    words w;
    if (LIKELY(end - p >= 16)) {
        w.lo = load64(p);
        w.hi = load64(p + 8);
    } else {
        uint8_t buffer[16] = {0};
        memcpy(buffer, p, (size_t)(end - p));
        w.lo = load64(buffer);
        w.hi = load64(buffer + 8);
    }
    return w;
}

/* The first n bytes, at most SHORT_BYTES, with n in the highest byte: equal keys mean equal
 * strings. Branch-free: lengths are practically random. */
static inline words key_of(words w, size_t n) {
    static const uint8_t ones[32] = {
        255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
    const uint8_t *mask = ones + 16 - n;
    return (words){w.lo & load64(mask), (w.hi & load64(mask + 8)) | (uint64_t)n << 56};
}

static inline uint64_t hash_key(words key) {
    return mix(key.lo ^ UINT64_C(0x9E3779B97F4A7C15), key.hi ^ UINT64_C(0xD6E8FEB86659FD93));
}

static inline uint64_t hash_long(const uint8_t *p, size_t n) {
    uint64_t h = hash_key((words){load64(p), load64(p + 8)}) ^ n;
    for (size_t at = 16; at + 8 < n; at += 8) h = mix(h ^ load64(p + at), UINT64_C(0xA0761D6478BD642F));
    return mix(h ^ load64(p + n - 8), UINT64_C(0xE7037ED1A0B428DB));
}

static inline uint32_t tag_of(uint64_t hash) { return (uint32_t)(hash >> 50) << ID_BITS; }

#define FAR_FROM 6

/* Slots in the tables of lengths for a token that begins with these bytes. */
static inline uint32_t near_slot(uint64_t lo) {
    return ((uint32_t)(lo & 0xFFFFFF) * UINT32_C(0x9E3779B1)) >> (32 - LENGTHS_BITS);
}

static inline uint32_t far_slot(uint64_t lo) {
    return (uint32_t)(((lo << 16) * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - LENGTHS_BITS));
}

static inline uint32_t longest_slot(uint64_t lo) { return far_slot(lo) >> (LENGTHS_BITS - LONGEST_BITS); }

static inline size_t start_of(const bpe_vocab *v, uint32_t id) { return v->places[id] >> SIZE_BITS; }

static inline size_t bytes_of(const bpe_vocab *v, uint32_t id) {
    return v->places[id] & ((1u << SIZE_BITS) - 1);
}

/* The home slot of a token with this hash; if that was taken, the token is in a later slot. */
static inline uint32_t first_slot(const bpe_vocab *v, uint64_t hash) {
    return (uint32_t)((hash & UINT32_MAX) * v->n_slots >> 32);
}

static inline uint32_t next_slot(const bpe_vocab *v, uint32_t at) { return at + 1 < v->n_slots ? at + 1 : 0; }

static inline uint32_t find_key(const bpe_vocab *v, words key, uint64_t hash) {
    uint32_t tag = tag_of(hash);
    size_t n = key.hi >> 56;
    for (uint32_t at = first_slot(v, hash);; at = next_slot(v, at)) {
        uint32_t slot = v->slots[at], id = slot & ID_MASK;
        if (slot == NONE) return NONE;
        if ((slot & ~ID_MASK) != tag || bytes_of(v, id) != n) continue;
        const uint8_t *p = v->bytes + start_of(v, id);
        words its = key_of((words){load64(p), load64(p + 8)}, n);
        if (LIKELY(its.lo == key.lo && its.hi == key.hi)) return id;
    }
}

/* The id of the token formed by the first n bytes of `w`, or NONE. */
static inline uint32_t find_short(const bpe_vocab *v, words w, size_t n) {
    words key = key_of(w, n);
    return find_key(v, key, hash_key(key));
}

static inline uint32_t find_long(const bpe_vocab *v, const uint8_t *p, size_t n) {
    uint64_t h = hash_long(p, n);
    uint32_t tag = tag_of(h);
    for (uint32_t at = first_slot(v, h);; at = next_slot(v, at)) {
        uint32_t slot = v->slots[at], id = slot & ID_MASK;
        if (slot == NONE) return NONE;
        if ((slot & ~ID_MASK) == tag && bytes_of(v, id) == n && !memcmp(v->bytes + start_of(v, id), p, n))
            return id;
    }
}

static inline int has_bit(const uint64_t *bits, const uint8_t *p) {
    return bits[p[0] << 2 | p[1] >> 6] >> (p[1] & 63) & 1;
}

/* True if three bytes are one character; point_of returns which. */
static inline int is_point(const uint8_t *p) {
    return (p[0] & 0xF0) == 0xE0 && (p[1] & 0xC0) == 0x80 && (p[2] & 0xC0) == 0x80;
}

static inline uint32_t point_of(const uint8_t *p) {
    return (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
}

/* The id of the token formed by the n bytes at p, or NONE; nothing from `end` on is read. */
static inline uint32_t find(const bpe_vocab *v, const uint8_t *p, size_t n, const uint8_t *end) {
    if (n == 1) return v->byte_id[*p];
    if (n == 2) return v->pair_id[p[0] << 8 | p[1]];
    if (n > BPE_TOKEN_BYTES_MAX) return NONE;
    if (n == 3 && is_point(p)) return v->point_id[point_of(p)];
    words w = load_words(p, end);
    uint8_t lengths = v->near[near_slot(w.lo)];
    if (!(lengths >> (n < FAR_FROM ? n : FAR_FROM) & 1)) return NONE;
    if (n >= FAR_FROM && !(v->far[far_slot(w.lo)] >> (n < LENGTHS_FAR ? n : LENGTHS_FAR) & 1))
        return NONE;
    return n <= SHORT_BYTES ? find_short(v, w, n) : find_long(v, p, n);
}

#endif
