/* Internal: splits a text into pieces, each one match of the encoding's pattern.
 *
 * The patterns are those of tiktoken_ext/openai_public.py, hand-coded; see the classes in
 * _bpe_vocab.h. */
#ifndef MEMCORE_BPE_PIECES_H
#define MEMCORE_BPE_PIECES_H

#include "_bpe_vocab.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define BLOCK_BYTES 63   /* the last of 64 bits stays clear: a run of set bits always ends */
#define BLOCK_LEAST 32   /* fewer bytes are not worth a look at all of them */

/* A text, and the letters of the 64 bytes at `block` (NULL: nowhere yet): a bit each. */
typedef struct {
    const bpe_vocab *v;
    const uint8_t *end, *block;
    uint64_t upper, lower;
    uint64_t stops;         /* bytes that may follow a word: ASCII, and no apostrophe (o200k) */
    unsigned prefixes;      /* classes of ASCII characters that may begin a word before its letters */
    int folds;              /* a word takes its letters in any case */
} text;

/* Class of the character at p < end, and its number of bytes. */
static inline unsigned class_at(const text *t, const uint8_t *p, unsigned *n) {
    unsigned c = t->v->ascii[*p];
    if (LIKELY(c != FURTHER)) {
        *n = 1;
        return c;
    }
    uint32_t point;
    ptrdiff_t room = t->end - p;
    if (*p < 0xE0 && room >= 2) {
        *n = 2;
        point = (*p & 0x1Fu) << 6 | (p[1] & 0x3Fu);
    } else if (*p < 0xF0 && room >= 3) {
        *n = 3;
        point = (*p & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
    } else if (*p >= 0xF0 && room >= 4) {
        *n = 4;
        point = (*p & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
        if (point >= POINTS) return OTHER;
    } else {  /* never in valid UTF-8 */
        *n = 1;
        return OTHER;
    }
    return t->v->classes[((size_t)t->v->index[point >> BLOCK_BITS] << BLOCK_BITS) |
                         (point & ((1u << BLOCK_BITS) - 1))];
}

/* The end of the run of characters of these classes at p. */
static inline const uint8_t *run_of(const text *t, const uint8_t *p, unsigned classes) {
    const uint8_t *ascii = t->v->ascii;
    unsigned n;
    for (;;) {
        while (p < t->end && BIT(ascii[*p]) & classes) p++;
        if (p == t->end || *p < 0x80 || !(BIT(class_at(t, p, &n)) & classes)) return p;
        p += n;
    }
}

/* The end of a contraction ('s 't 're 've 'm 'll 'd, in any case) at p, or p. */
static const uint8_t *contraction(const text *t, const uint8_t *p) {
    if (t->end - p < 2 || *p != '\'') return p;
    unsigned a = p[1] | 0x20u, b = t->end - p > 2 ? p[2] | 0x20u : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return p + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return p + 3;
    if (t->end - p > 2 && p[1] == 0xC5 && p[2] == 0xBF) return p + 3;  /* U+017F folds to s */
    return p;
}

/* o200k: the end of a word that begins at p (without its prefix), or NULL.
 *
 *   [UP BOTH MARK]* [LO BOTH MARK]+  |  [UP BOTH MARK]+ [LO BOTH MARK]*
 *
 * The classes BOTH and MARK are in both sets: `both` is where the first form ends if no lower case
 * follows. `must_lower`: only the first form matches. */
static const uint8_t *word_o200k(const text *t, const uint8_t *p, int must_lower) {
    const uint8_t *start = p, *both = NULL;
    unsigned n;
    while (p < t->end) {
        unsigned c = class_at(t, p, &n);
        if (c == LO) return run_of(t, p + n, BIT(LO) | BIT(BOTH) | BIT(MARK));
        if (!(BIT(c) & (BIT(UP) | BIT(BOTH) | BIT(MARK)))) break;
        p += n;
        if (c != UP) both = p;
    }
    if (both) return both;
    return p > start && !must_lower ? p : NULL;
}

#if defined(__SSE2__)
/* A bit for each of the 16 bytes that is in low .. high (ASCII). */
static inline unsigned in_range(__m128i bytes, char low, char high) {
    __m128i above = _mm_cmpgt_epi8(bytes, _mm_set1_epi8((char)(low - 1)));
    __m128i below = _mm_cmplt_epi8(bytes, _mm_set1_epi8((char)(high + 1)));
    return (unsigned)_mm_movemask_epi8(_mm_and_si128(above, below));
}
#endif

/* The end of whitespace at p that begins no other piece; `to_end`: a run up to the end is one piece
 * even if it contains newlines (cl100k). */
static const uint8_t *whitespace(const text *t, const uint8_t *p, int to_end) {
    const uint8_t *last = p, *newline = NULL, *start = p;
#if defined(__SSE2__)
    if (LIKELY(t->end - p > 16)) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)p);
        unsigned blank = in_range(bytes, '\t', '\r') | in_range(bytes, ' ', ' ');
        unsigned width = (unsigned)__builtin_ctz(~blank);
        if (LIKELY(width - 1 < 15 && p[width] < 0x80)) {
            unsigned lines = in_range(bytes, '\n', '\n') | in_range(bytes, '\r', '\r');
            lines &= (1u << width) - 1;
            if (lines) return p + 32 - __builtin_clz(lines);
            return p + (width > 1 ? width - 1 : 1);
        }
    }
#endif
    unsigned n;
    while (p < t->end) {
        unsigned c = class_at(t, p, &n);
        if (!(BIT(c) & SPACE)) break;
        last = p;
        p += n;
        if (c == NL) newline = p;
    }
    if (p == t->end && (to_end || !newline)) return p;
    if (newline) return newline;
    return last > start ? last : p;
}

static const uint8_t *number(const text *t, const uint8_t *p) {
    unsigned n;
    if (LIKELY(t->end - p > 3 && p[3] < 0x80)) {
        const uint8_t *classes = t->v->ascii;
        if (classes[p[0]] == NUM && p[1] < 0x80 && p[2] < 0x80)
            return p + (classes[p[1]] != NUM ? 1 : classes[p[2]] != NUM ? 2 : 3);
    }
    for (int i = 0; i < 3 && p < t->end && class_at(t, p, &n) == NUM; i++) p += n;
    return p;
}

/* The end of punctuation at p, after an optional space, or NULL if there is none. */
static const uint8_t *punctuation(const text *t, const uint8_t *p, int slash) {
    const uint8_t *at = *p == ' ' ? p + 1 : p;
    const uint8_t *to = run_of(t, at, BIT(OTHER) | BIT(MARK));
    if (to == at) return NULL;
    while (to < t->end && (*to == '\r' || *to == '\n' || (slash && *to == '/'))) to++;
    return to;
}

static const uint8_t *next_o200k(const text *t, const uint8_t *p) {
    unsigned n, c = class_at(t, p, &n);
    const uint8_t *to;
    if (BIT(c) & LETTER) return contraction(t, word_o200k(t, p, 0));
    if (c == NUM) return number(t, p);
    if (c != NL) {
        to = p + n < t->end ? word_o200k(t, p + n, c == MARK) : NULL;
        if (to) return contraction(t, to);
        if (c == MARK) return contraction(t, p + n);  /* itself the lower-case part */
        if ((c == OTHER || *p == ' ') && (to = punctuation(t, p, 1))) return to;
    }
    return whitespace(t, p, 0);
}

static const uint8_t *next_cl100k(const text *t, const uint8_t *p) {
    unsigned n, c = class_at(t, p, &n);
    const uint8_t *to;
    if (*p == '\'' && (to = contraction(t, p)) > p) return to;
    if (BIT(c) & LETTER) return run_of(t, p, LETTER);
    if (c == NUM) return number(t, p);
    if (c != NL) {
        if ((to = run_of(t, p + n, LETTER)) > p + n) return to;
        if ((c == OTHER || c == MARK || *p == ' ') && (to = punctuation(t, p, 0))) return to;
    }
    return whitespace(t, p, 1);
}

/* Find the letters of the 64 bytes at p. */
static inline void look_at(text *t, const uint8_t *p) {
#if defined(__SSE2__)
    uint8_t padded[64];
    const uint8_t *bytes = p;
    if (UNLIKELY(t->end - p < 64)) {
        memset(padded, 0, sizeof padded);
        memcpy(padded, p, (size_t)(t->end - p));
        bytes = padded;
    }
    uint64_t upper = 0, lower = 0, none = 0;
    __m128i apostrophe = _mm_set1_epi8(t->folds ? (char)0x80 : '\'');
    for (int i = 0; i < 4; i++) {
        __m128i part = _mm_loadu_si128((const __m128i *)(const void *)(bytes + 16 * i));
        upper |= (uint64_t)in_range(part, 'A', 'Z') << 16 * i;
        lower |= (uint64_t)in_range(part, 'a', 'z') << 16 * i;
        __m128i stopless = _mm_or_si128(part, _mm_cmpeq_epi8(part, apostrophe));
        none |= (uint64_t)(unsigned)_mm_movemask_epi8(stopless) << 16 * i;
    }
    if (t->folds) {
        lower |= upper;
        upper = 0;
    }
    t->block = p;
    t->upper = upper & INT64_MAX;
    t->lower = lower & INT64_MAX;
    t->stops = ~none;
#else
    (void)t, (void)p;
#endif
}

static inline text text_of(const bpe_vocab *v, const uint8_t *s, size_t n) {
    return (text){v, s + n, NULL, 0, 0, 0, BIT(OTHER) | BIT(WS), v->pattern != BPE_O200K};
}

/* The end of a word of ASCII letters at p, with what may precede them; NULL if there is none, or if
 * what follows needs a closer look. */
static inline const uint8_t *plain_word(text *t, const uint8_t *p) {
    size_t start = (size_t)((uintptr_t)p - (uintptr_t)t->block);
    for (;;) {
        if (LIKELY(start < BLOCK_BYTES)) {
            uint64_t upper = t->upper >> start, lower = t->lower >> start;
            unsigned n = 0;
            if (!((upper | lower) & 1)) {
                if (!(BIT(t->v->ascii[*p]) & t->prefixes) || (t->folds && *p == '\'')) return NULL;
                n = 1;
            }
            unsigned first = n;
            n += (unsigned)__builtin_ctzll(~(upper >> n));
            n += (unsigned)__builtin_ctzll(~(lower >> n));
            if (LIKELY(start + n < BLOCK_BYTES))
                return LIKELY(n > first && t->stops >> (start + n) & 1) ? p + n : NULL;
            if (!start) return NULL;  /* longer than a block */
        }
        if (t->end - p < BLOCK_LEAST) return NULL;
        look_at(t, p);
        start = 0;
    }
}

/* The end of the piece that begins at p < end. */
static inline const uint8_t *next_piece(text *t, const uint8_t *p) {
#if defined(__SSE2__)
    const uint8_t *to = plain_word(t, p);
    if (LIKELY(to)) return to;
#endif
    return t->v->pattern == BPE_O200K ? next_o200k(t, p) : next_cl100k(t, p);
}

#endif
