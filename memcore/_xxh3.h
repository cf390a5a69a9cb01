/* Internal: XXH3 with 64 bits, of contiguous bytes.
 *
 * Y. Collet, "xxHash fast digest algorithm", doc/xxhash_spec.md of xxHash 0.8.2, section XXH3. The
 * package xxhash computes the same: tests/unit/test_fast_xxh3.py compares them at every length.
 */
#ifndef MEMCORE_XXH3_H
#define MEMCORE_XXH3_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "words are read as they lie in memory: little-endian"
#endif

#define XXH3_SECRET_BYTES 192
#define XXH3_STRIPE_BYTES 64
#define XXH3_BLOCK_BYTES 1024 /* 16 stripes, each with the secret from 8 bytes further on */
#define XXH3_P32_1 UINT64_C(0x9E3779B1)
#define XXH3_P32_2 UINT64_C(0x85EBCA77)
#define XXH3_P32_3 UINT64_C(0xC2B2AE3D)
#define XXH3_P64_1 UINT64_C(0x9E3779B185EBCA87)
#define XXH3_P64_2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define XXH3_P64_3 UINT64_C(0x165667B19E3779F9)
#define XXH3_P64_4 UINT64_C(0x85EBCA77C2B2AE63)
#define XXH3_P64_5 UINT64_C(0x27D4EB2F165667C5)
#define XXH3_MX_1 UINT64_C(0x165667919E3779F9)
#define XXH3_MX_2 UINT64_C(0x9FB21C651E98DF25)

static const uint8_t xxh3_secret[XXH3_SECRET_BYTES] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static inline uint64_t xxh3_word(const uint8_t *p) {
    uint64_t x;
    memcpy(&x, p, 8);
    return x;
}

static inline uint64_t xxh3_half(const uint8_t *p) {
    uint32_t x;
    memcpy(&x, p, 4);
    return x;
}

static inline uint64_t xxh3_fold(uint64_t a, uint64_t b) {
    unsigned __int128 m = (unsigned __int128)a * b;
    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

static inline uint64_t xxh3_avalanche(uint64_t x) {
    x = (x ^ x >> 37) * XXH3_MX_1;
    return x ^ x >> 32;
}

static inline uint64_t xxh3_avalanche_64(uint64_t x) {
    x = (x ^ x >> 33) * XXH3_P64_2;
    x = (x ^ x >> 29) * XXH3_P64_3;
    return x ^ x >> 32;
}

static inline uint64_t xxh3_mix(const uint8_t *p, size_t at, uint64_t seed) {
    return xxh3_fold(xxh3_word(p) ^ (xxh3_word(xxh3_secret + at) + seed),
                     xxh3_word(p + 8) ^ (xxh3_word(xxh3_secret + at + 8) - seed));
}

/* Up to 16 bytes. */
static inline uint64_t xxh3_small(const uint8_t *p, size_t n, uint64_t seed) {
    const uint8_t *s = xxh3_secret;
    if (n > 8) {
        uint64_t low = ((xxh3_word(s + 24) ^ xxh3_word(s + 32)) + seed) ^ xxh3_word(p);
        uint64_t high = ((xxh3_word(s + 40) ^ xxh3_word(s + 48)) - seed) ^ xxh3_word(p + n - 8);
        return xxh3_avalanche(n + __builtin_bswap64(low) + high + xxh3_fold(low, high));
    }
    if (n >= 4) {
        uint64_t x = xxh3_half(p + n - 4) | xxh3_half(p) << 32;
        seed ^= (uint64_t)__builtin_bswap32((uint32_t)seed) << 32;
        x ^= (xxh3_word(s + 8) ^ xxh3_word(s + 16)) - seed;
        x ^= (x << 49 | x >> 15) ^ (x << 24 | x >> 40);
        x *= XXH3_MX_2;
        x = (x ^ ((x >> 35) + n)) * XXH3_MX_2;
        return x ^ x >> 28;
    }
    if (n) {
        uint32_t x = p[n - 1] | (uint32_t)n << 8 | (uint32_t)p[0] << 16 | (uint32_t)p[n >> 1] << 24;
        return xxh3_avalanche_64(((xxh3_half(s) ^ xxh3_half(s + 4)) + seed) ^ x);
    }
    return xxh3_avalanche_64(seed ^ xxh3_word(s + 56) ^ xxh3_word(s + 64));
}

/* 17 to 240 bytes. */
static inline uint64_t xxh3_medium(const uint8_t *p, size_t n, uint64_t seed) {
    uint64_t acc = n * XXH3_P64_1;
    if (n <= 128) {
        for (size_t i = (n - 1) / 32 + 1; i-- > 0;)
            acc += xxh3_mix(p + 16 * i, 32 * i, seed)
                   + xxh3_mix(p + n - 16 * i - 16, 32 * i + 16, seed);
        return xxh3_avalanche(acc);
    }
    for (size_t i = 0; i < 8; i++) acc += xxh3_mix(p + 16 * i, 16 * i, seed);
    acc = xxh3_avalanche(acc);
    for (size_t i = 8; i < n / 16; i++) acc += xxh3_mix(p + 16 * i, 16 * (i - 8) + 3, seed);
    return xxh3_avalanche(acc + xxh3_mix(p + n - 16, 119, seed));
}

#ifdef __SSE2__
static inline void xxh3_stripe(uint64_t acc[8], const uint8_t *p, const uint8_t *secret) {
    for (size_t i = 0; i < 8; i += 2) {
        __m128i sum = _mm_loadu_si128((const __m128i *)(const void *)(acc + i));
        __m128i data = _mm_loadu_si128((const __m128i *)(const void *)(p + 8 * i));
        __m128i key = _mm_loadu_si128((const __m128i *)(const void *)(secret + 8 * i));
        __m128i mixed = _mm_xor_si128(data, key);
        __m128i product = _mm_mul_epu32(mixed, _mm_shuffle_epi32(mixed, _MM_SHUFFLE(0, 3, 0, 1)));
        __m128i swapped = _mm_shuffle_epi32(data, _MM_SHUFFLE(1, 0, 3, 2));
        sum = _mm_add_epi64(_mm_add_epi64(sum, swapped), product);
        _mm_storeu_si128((__m128i *)(void *)(acc + i), sum);
    }
}
#else
static inline void xxh3_stripe(uint64_t acc[8], const uint8_t *p, const uint8_t *secret) {
    for (size_t i = 0; i < 8; i++) {
        uint64_t data = xxh3_word(p + 8 * i), mixed = data ^ xxh3_word(secret + 8 * i);
        acc[i ^ 1] += data;
        acc[i] += (mixed & UINT32_MAX) * (mixed >> 32);
    }
}
#endif

/* More than 240 bytes, with a secret. */
static inline uint64_t xxh3_large(const uint8_t *p, size_t n, const uint8_t *s) {
    uint64_t acc[8] = {XXH3_P32_3, XXH3_P64_1, XXH3_P64_2, XXH3_P64_3,
                       XXH3_P64_4, XXH3_P32_2, XXH3_P64_5, XXH3_P32_1};
    const uint8_t *last = p + n - XXH3_STRIPE_BYTES;
    size_t left = n;
    for (; left > XXH3_BLOCK_BYTES; left -= XXH3_BLOCK_BYTES, p += XXH3_BLOCK_BYTES) {
        for (size_t i = 0; i < XXH3_BLOCK_BYTES / XXH3_STRIPE_BYTES; i++)
            xxh3_stripe(acc, p + XXH3_STRIPE_BYTES * i, s + 8 * i);
        for (size_t i = 0; i < 8; i++)
            acc[i] = (acc[i] ^ acc[i] >> 47 ^ xxh3_word(s + XXH3_SECRET_BYTES - 64 + 8 * i)) * XXH3_P32_1;
    }
    for (size_t i = 0; i < (left - 1) / XXH3_STRIPE_BYTES; i++)
        xxh3_stripe(acc, p + XXH3_STRIPE_BYTES * i, s + 8 * i);
    xxh3_stripe(acc, last, s + XXH3_SECRET_BYTES - 71);
    uint64_t found = n * XXH3_P64_1;
    for (size_t i = 0; i < 8; i += 2)
        found += xxh3_fold(acc[i] ^ xxh3_word(s + 11 + 8 * i), acc[i + 1] ^ xxh3_word(s + 19 + 8 * i));
    return xxh3_avalanche(found);
}

/* The hash of n bytes. Not inline: compilers warn of branches that an array is too small for. */
static __attribute__((noinline)) uint64_t xxh3_hash(const uint8_t *p, size_t n, uint64_t seed) {
    uint8_t secret[XXH3_SECRET_BYTES];
    if (n <= 16) return xxh3_small(p, n, seed);
    if (n <= 240) return xxh3_medium(p, n, seed);
    if (!seed) return xxh3_large(p, n, xxh3_secret);
    for (size_t at = 0; at < XXH3_SECRET_BYTES; at += 16) {
        uint64_t low = xxh3_word(xxh3_secret + at) + seed;
        uint64_t high = xxh3_word(xxh3_secret + at + 8) - seed;
        memcpy(secret + at, &low, 8);
        memcpy(secret + at + 8, &high, 8);
    }
    return xxh3_large(p, n, secret);
}

#endif
