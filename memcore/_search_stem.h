/* Porter2, the English stemmer of Snowball 3.1 (https://snowballstem.org/algorithms/english/stemmer.html),
   written after the published description; the suffixes and exceptions are those of its english.sbl
   (BSD-3-Clause, Copyright (c) 2001, Dr Martin Porter, and (c) 2002, Richard Boulton).
   Plain C over a word of lower-case ASCII letters and digits, in place: no step makes a word longer.
   tests/unit/test_fast_search.py compares it with the package snowballstemmer. */

#ifndef MEMCORE_SEARCH_STEM_H
#define MEMCORE_SEARCH_STEM_H

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    uint8_t *text;
    int size;
    int first_region;   /* where R1 begins: after the first non-vowel that follows a vowel */
    int second_region;  /* where R2 begins: the same, within R1 */
} memcore_stem;

typedef struct {
    const char *suffix;     /* NULL: the end of a list */
    const char *instead;    /* NULL: the caller decides */
    int length;             /* of the suffix: a list is read for every word, strlen is not free */
} memcore_suffix;

#define SUFFIX(suffix, instead) {suffix, instead, (int)sizeof(suffix) - 1}
#define NO_SUFFIX {NULL, NULL, 0}

static inline int memcore_vowel(uint8_t c) {
    return c == 'a' || c == 'e' || c == 'i' || c == 'o' || c == 'u' || c == 'y';
}

/* Whether a word ends with a literal. */
#define memcore_ends(text, size, suffix) \
    ((int)sizeof(suffix) - 1 <= (size) \
     && memcmp((text) + (size) - ((int)sizeof(suffix) - 1), suffix, sizeof(suffix) - 1) == 0)

static inline int memcore_double(const uint8_t *text, int size) {
    return size >= 2 && text[size - 1] == text[size - 2] && text[size - 1] != 0
           && strchr("bdfgmnprt", text[size - 1]) != NULL;
}

/* A short syllable ends at `size`: the vowel in it was short in speech. */
static int memcore_short(const uint8_t *text, int size) {
    uint8_t c;
    if (size >= 3) {
        c = text[size - 1];
        if (!memcore_vowel(c) && c != 'Y' && c != 'w' && c != 'x'
            && memcore_vowel(text[size - 2]) && !memcore_vowel(text[size - 3])) return 1;
    }
    if (size == 2 && !memcore_vowel(text[1]) && memcore_vowel(text[0])) return 1;
    return memcore_ends(text, size, "past");
}

static int memcore_has_vowel(const uint8_t *text, int size) {
    int at;
    for (at = 0; at < size; at++)
        if (memcore_vowel(text[at])) return 1;
    return 0;
}

/* The longest suffix of a list that the word ends with, or NULL. */
static const memcore_suffix *memcore_longest(const memcore_stem *word, const memcore_suffix *list) {
    const memcore_suffix *found = NULL;
    const uint8_t *stop = word->text + word->size;
    int best = 0;
    for (; list->suffix != NULL; list++) {
        if (list->length > best && list->length <= word->size
            && (uint8_t)list->suffix[list->length - 1] == stop[-1]
            && memcmp(stop - list->length, list->suffix, (size_t)list->length) == 0) {
            found = list;
            best = list->length;
        }
    }
    return found;
}

static void memcore_put(memcore_stem *word, int at, const char *instead) {
    int length = (int)strlen(instead);
    memcpy(word->text + at, instead, (size_t)length);
    word->size = at + length;
}

/* Where a region begins that follows the first non-vowel after a vowel, from `at` on. */
static int memcore_region(const uint8_t *text, int size, int at) {
    while (at < size && !memcore_vowel(text[at])) at++;
    while (at < size && memcore_vowel(text[at])) at++;
    return at < size ? at + 1 : size;
}

static void memcore_mark_regions(memcore_stem *word) {
    static const memcore_suffix whole[] = {
        SUFFIX("arsen", NULL), SUFFIX("commun", NULL), SUFFIX("emerg", NULL), SUFFIX("gener", NULL),
        SUFFIX("inter", NULL), SUFFIX("later", NULL), SUFFIX("organ", NULL), SUFFIX("past", NULL),
        SUFFIX("univers", NULL), NO_SUFFIX,
    };
    const memcore_suffix *each;
    word->first_region = -1;
    for (each = whole; each->suffix != NULL; each++) {
        if (each->length <= word->size
            && memcmp(word->text, each->suffix, (size_t)each->length) == 0)
            word->first_region = each->length;
    }
    if (word->first_region < 0)
        word->first_region = memcore_region(word->text, word->size, 0);
    word->second_region = memcore_region(word->text, word->size, word->first_region);
}

/* Step 1a: plurals. */
static void memcore_plural(memcore_stem *word) {
    int n = word->size;
    if (memcore_ends(word->text, n, "sses")) {
        word->size = n - 2;
    } else if (memcore_ends(word->text, n, "ies") || memcore_ends(word->text, n, "ied")) {
        memcore_put(word, n - 3, n - 3 >= 2 ? "i" : "ie");
    } else if (memcore_ends(word->text, n, "s") && !memcore_ends(word->text, n, "ss")
               && !memcore_ends(word->text, n, "us")) {
        if (n >= 3 && memcore_has_vowel(word->text, n - 2)) word->size = n - 1;
    }
}

/* The end of step 1b, once "ed" or "ing" is gone. */
static void memcore_mend(memcore_stem *word) {
    uint8_t *text = word->text;
    int n = word->size;
    if (memcore_ends(text, n, "at") || memcore_ends(text, n, "bl") || memcore_ends(text, n, "iz")) {
        text[word->size++] = 'e';
    } else if (memcore_double(text, n)) {
        if (!(n == 3 && (text[0] == 'a' || text[0] == 'e' || text[0] == 'o'))) word->size = n - 1;
    } else if (n == word->first_region && memcore_short(text, n)) {
        text[word->size++] = 'e';
    }
}

/* Step 1b: past tenses and participles. */
static void memcore_participle(memcore_stem *word) {
    static const char *const kept[] = {"even", "cann", "inn", "earr", "herr", "out", NULL};
    uint8_t *text = word->text;
    int n = word->size, at, stem;
    if (memcore_ends(text, n, "eedly") || memcore_ends(text, n, "eed")) {
        stem = memcore_ends(text, n, "eedly") ? n - 5 : n - 3;
        if (stem < word->first_region) return;
        if ((stem == 4 && (!memcmp(text, "succ", 4) || !memcmp(text, "proc", 4)))
            || (stem == 3 && !memcmp(text, "exc", 3))) return;
        memcore_put(word, stem, "ee");
        return;
    }
    if (memcore_ends(text, n, "ingly")) stem = n - 5;
    else if (memcore_ends(text, n, "edly")) stem = n - 4;
    else if (memcore_ends(text, n, "ing")) stem = n - 3;
    else if (memcore_ends(text, n, "ed")) stem = n - 2;
    else return;
    if (memcore_ends(text, n, "ing")) {
        if (stem == 2 && text[1] == 'y' && !memcore_vowel(text[0])) {
            memcore_put(word, 1, "ie");
            return;
        }
        for (at = 0; kept[at] != NULL; at++)
            if (stem == (int)strlen(kept[at]) && !memcmp(text, kept[at], (size_t)stem)) return;
    }
    if (!memcore_has_vowel(text, stem)) return;
    word->size = stem;
    memcore_mend(word);
}

/* Steps 2 to 4: suffixes of derived words. */
static void memcore_derived(memcore_stem *word) {
    static const memcore_suffix second[] = {
        SUFFIX("anci", "ance"), SUFFIX("enci", "ence"), SUFFIX("ogi", NULL), SUFFIX("li", NULL),
        SUFFIX("bli", "ble"), SUFFIX("abli", "able"), SUFFIX("alli", "al"), SUFFIX("fulli", "ful"),
        SUFFIX("lessli", "less"), SUFFIX("ousli", "ous"), SUFFIX("entli", "ent"),
        SUFFIX("aliti", "al"), SUFFIX("biliti", "ble"), SUFFIX("iviti", "ive"),
        SUFFIX("tional", "tion"), SUFFIX("ational", "ate"), SUFFIX("alism", "al"),
        SUFFIX("ation", "ate"), SUFFIX("ization", "ize"), SUFFIX("izer", "ize"),
        SUFFIX("ator", "ate"), SUFFIX("iveness", "ive"), SUFFIX("fulness", "ful"),
        SUFFIX("ousness", "ous"), SUFFIX("ogist", "og"), NO_SUFFIX,
    };
    static const memcore_suffix third[] = {
        SUFFIX("icate", "ic"), SUFFIX("ative", NULL), SUFFIX("alize", "al"), SUFFIX("iciti", "ic"),
        SUFFIX("ical", "ic"), SUFFIX("tional", "tion"), SUFFIX("ational", "ate"), SUFFIX("ful", ""),
        SUFFIX("ness", ""), NO_SUFFIX,
    };
    static const memcore_suffix fourth[] = {
        SUFFIX("ic", ""), SUFFIX("ance", ""), SUFFIX("ence", ""), SUFFIX("able", ""),
        SUFFIX("ible", ""), SUFFIX("ate", ""), SUFFIX("ive", ""), SUFFIX("ize", ""),
        SUFFIX("iti", ""), SUFFIX("al", ""), SUFFIX("ism", ""), SUFFIX("ion", NULL),
        SUFFIX("er", ""), SUFFIX("ous", ""), SUFFIX("ant", ""), SUFFIX("ent", ""),
        SUFFIX("ment", ""), SUFFIX("ement", ""), NO_SUFFIX,
    };
    const memcore_suffix *found = memcore_longest(word, second);
    int at;
    if (found != NULL) {
        at = word->size - found->length;
        if (at >= word->first_region) {
            if (found->instead != NULL) memcore_put(word, at, found->instead);
            else if (found->suffix[0] == 'o') {
                if (at > 0 && word->text[at - 1] == 'l') memcore_put(word, at, "og");
            } else if (at > 0 && word->text[at - 1] != 0
                       && strchr("cdeghkmnrt", word->text[at - 1]) != NULL) word->size = at;
        }
    }
    found = memcore_longest(word, third);
    if (found != NULL) {
        at = word->size - found->length;
        if (at >= word->first_region) {
            if (found->instead != NULL) memcore_put(word, at, found->instead);
            else if (at >= word->second_region) word->size = at;
        }
    }
    found = memcore_longest(word, fourth);
    if (found != NULL) {
        at = word->size - found->length;
        if (at >= word->second_region) {
            if (found->instead != NULL) word->size = at;
            else if (at > 0 && (word->text[at - 1] == 's' || word->text[at - 1] == 't'))
                word->size = at;
        }
    }
}

/* Step 5: a final e or l. */
static void memcore_final(memcore_stem *word) {
    int at = word->size - 1;
    if (at < 0) return;
    if (word->text[at] == 'e') {
        if (at >= word->second_region
            || (at >= word->first_region && !memcore_short(word->text, at))) word->size = at;
    } else if (word->text[at] == 'l') {
        if (at >= word->second_region && at > 0 && word->text[at - 1] == 'l') word->size = at;
    }
}

/* Stem a word of lower-case ASCII letters and digits in place; returns its new size. */
static int memcore_stem_word(uint8_t *text, int size) {
    static const memcore_suffix whole[] = {
        SUFFIX("andes", "andes"), SUFFIX("atlas", "atlas"), SUFFIX("bias", "bias"),
        SUFFIX("cosmos", "cosmos"), SUFFIX("early", "earli"), SUFFIX("gently", "gentl"),
        SUFFIX("howe", "howe"), SUFFIX("idly", "idl"), SUFFIX("news", "news"),
        SUFFIX("only", "onli"), SUFFIX("singly", "singl"), SUFFIX("skies", "sky"),
        SUFFIX("skis", "ski"), SUFFIX("sky", "sky"), SUFFIX("ugly", "ugli"), NO_SUFFIX,
    };
    const memcore_suffix *each;
    memcore_stem word = {text, size, 0, 0};
    int at, marked = 0;
    if (size < 3) return size;
    for (each = whole; each->suffix != NULL; each++) {
        if (each->length == size && memcmp(text, each->suffix, (size_t)size) == 0) {
            memcore_put(&word, 0, each->instead);
            return word.size;
        }
    }
    for (at = 0; at < size; at++) {  /* a y that is a consonant */
        if (text[at] == 'y' && (at == 0 || memcore_vowel(text[at - 1]))) {
            text[at] = 'Y';
            marked = 1;
        }
    }
    memcore_mark_regions(&word);
    memcore_plural(&word);
    memcore_participle(&word);
    at = word.size - 1;  /* step 1c */
    if (at >= 2 && (text[at] == 'y' || text[at] == 'Y') && !memcore_vowel(text[at - 1]))
        text[at] = 'i';
    memcore_derived(&word);
    memcore_final(&word);
    for (at = 0; marked && at < word.size; at++)
        if (text[at] == 'Y') text[at] = 'y';
    return word.size;
}

/* --- Stop words: those of the retrieval kit that the ranking was measured with, sorted ---------- */

static const char *const memcore_stops[] = {
    "a", "about", "all", "am", "an", "and", "any", "are", "as", "at", "be", "been", "being",
    "both", "but", "by", "can", "could", "d", "did", "do", "does", "doing", "each", "few", "for",
    "from", "had", "has", "have", "having", "he", "her", "him", "his", "how", "i", "if", "in",
    "is", "it", "its", "just", "ll", "m", "me", "more", "most", "my", "no", "nor", "not", "now",
    "of", "on", "only", "or", "other", "our", "own", "re", "s", "same", "she", "should", "so",
    "some", "such", "t", "than", "that", "the", "their", "them", "then", "these", "they", "this",
    "those", "to", "too", "ve", "very", "was", "we", "were", "what", "when", "where", "which",
    "who", "whom", "why", "will", "with", "would", "you", "your",
};

/* Whether a word of lower-case ASCII letters is too common to say anything. */
static int memcore_is_stop(const uint8_t *text, int size) {
    int low = 0, high = (int)(sizeof memcore_stops / sizeof *memcore_stops), at, order;
    if (size > 6) return 0;
    while (low < high) {
        at = (low + high) / 2;
        order = strncmp((const char *)text, memcore_stops[at], (size_t)size);
        if (order == 0 && memcore_stops[at][size] != 0) order = -1;
        if (order == 0) return 1;
        if (order < 0) high = at;
        else low = at + 1;
    }
    return 0;
}

/* --- Vectors ------------------------------------------------------------------------------------ */

/* Dot products of `count` rows of `size` numbers with a query, which was widened to 16 bits once. They
   are exact for up to 65,536 numbers: each product is at most 16,384. Compilers turn the loop into
   vector instructions, of which every x86-64 has only those that are 16 bytes wide. */
static void memcore_dots_plain(const int8_t *rows, int count, const int16_t *query, int size,
                               int32_t *dots) {
    int row, at;
    for (row = 0; row < count; row++, rows += size) {
        int32_t sum = 0;
        for (at = 0; at < size; at++) sum += (int32_t)rows[at] * query[at];
        dots[row] = sum;
    }
}

#if defined(__x86_64__) && defined(__GNUC__)
/* The same where the processor has AVX2: 64 numbers a step. */
#define MEMCORE_ADD(sum, from) \
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16( \
        _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(rows + (from)))), \
        _mm256_loadu_si256((const __m256i *)(query + (from)))))

__attribute__((target("avx2")))
static void memcore_dots_avx2(const int8_t *rows, int count, const int16_t *query, int size,
                              int32_t *dots) {
    ptrdiff_t at;
    int row;
    for (row = 0; row < count; row++, rows += size) {
        __m256i one = _mm256_setzero_si256(), two = one, three = one, four = one;
        __m128i half;
        int32_t sum;
        for (at = 0; at + 64 <= size; at += 64) {
            MEMCORE_ADD(one, at);
            MEMCORE_ADD(two, at + 16);
            MEMCORE_ADD(three, at + 32);
            MEMCORE_ADD(four, at + 48);
        }
        one = _mm256_add_epi32(_mm256_add_epi32(one, two), _mm256_add_epi32(three, four));
        half = _mm_add_epi32(_mm256_castsi256_si128(one), _mm256_extracti128_si256(one, 1));
        half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
        half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1));
        sum = _mm_cvtsi128_si32(half);
        for (; at < size; at++) sum += (int32_t)rows[at] * query[at];
        dots[row] = sum;
    }
}
#undef MEMCORE_ADD

#define MEMCORE_NARROW 4096  /* numbers of a query that are kept in 8 bits */

/* The same with the dot products of AVX-512 VNNI, four numbers a lane, for up to 4,096 numbers. They
   take one side unsigned: 128 is added to each number of a row, by its highest bit, and 128 times
   the query's sum is taken from the dot product. */
__attribute__((target("avx512f,avx512bw,avx512vnni")))
static void memcore_dots_vnni(const int8_t *rows, int count, const int16_t *query, int size,
                              int32_t *dots) {
    const __m512i highest = _mm512_set1_epi8((char)0x80);
    int8_t narrow[MEMCORE_NARROW];
    int32_t total = 0;
    int row, at, wide = size & ~63;
    for (at = 0; at < wide; at++) {
        narrow[at] = (int8_t)query[at];
        total += query[at];
    }
    for (row = 0; row < count; row++, rows += size) {
        __m512i sum = _mm512_setzero_si512();
        int32_t dot;
        for (at = 0; at < wide; at += 64) {
            sum = _mm512_dpbusd_epi32(
                sum, _mm512_xor_si512(_mm512_loadu_si512(rows + at), highest),
                _mm512_loadu_si512(narrow + at));
        }
        dot = _mm512_reduce_add_epi32(sum) - 128 * total;
        for (at = wide; at < size; at++) dot += (int32_t)rows[at] * query[at];
        dots[row] = dot;
    }
}

static void memcore_dots(const int8_t *rows, int count, const int16_t *query, int size,
                         int32_t *dots) {
    if (size <= MEMCORE_NARROW && __builtin_cpu_supports("avx512vnni")
            && __builtin_cpu_supports("avx512bw"))
        memcore_dots_vnni(rows, count, query, size, dots);
    else if (__builtin_cpu_supports("avx2")) memcore_dots_avx2(rows, count, query, size, dots);
    else memcore_dots_plain(rows, count, query, size, dots);
}
#else
static void memcore_dots(const int8_t *rows, int count, const int16_t *query, int size,
                         int32_t *dots) {
    memcore_dots_plain(rows, count, query, size, dots);
}
#endif

#undef SUFFIX
#undef NO_SUFFIX

#endif
