/* Exact token counts of byte-pair encodings, in plain C: no Python, no global state.
 *
 * A vocabulary is built once and then only read (except for a memo of splits, which is written with
 * atomic stores), so any number of threads may count with it, each with its own bpe_work. A
 * bpe_work caches what it counted: it belongs to one vocabulary.
 * Texts are valid UTF-8. Negative function results are the BPE_E codes.
 */
#ifndef MEMCORE_BPE_H
#define MEMCORE_BPE_H

#include <stddef.h>
#include <stdint.h>

#define BPE_ENOMEM (-1)  /* out of memory for a long piece, or for the marks of a cut */
#define BPE_EVOCAB (-2)  /* the vocabulary contradicts itself */
#define BPE_TOKEN_BYTES_MAX 128
#define BPE_CL100K 1
#define BPE_O200K 2

typedef struct bpe_vocab bpe_vocab;
typedef struct bpe_work bpe_work;

/* Tokens of a text, its decimal and other digits, and the pieces that these form. */
typedef struct {
    int64_t tokens, digits, numbers;
} bpe_measure;

/* A place to cut a text: the `bytes` before the cut are `tokens` tokens, of `total` in the text. */
typedef struct {
    int64_t bytes, tokens, total;
} bpe_cut;

/* NULL: malformed (*why has the reason), or out of memory (*why is NULL). The vocabulary's file is
 * used until bpe_vocab_free and must not change; that of the classes is copied. */
bpe_vocab *bpe_vocab_new(const uint8_t *file, size_t n, const uint8_t *classes, size_t n_classes,
                         const char **why);
void bpe_vocab_free(bpe_vocab *v);
int bpe_pattern(const bpe_vocab *v);
uint32_t bpe_size(const bpe_vocab *v);
const uint8_t *bpe_token(const bpe_vocab *v, uint32_t id, size_t *n);

bpe_work *bpe_work_new(void);
void bpe_work_free(bpe_work *w);
/* Free memory to which an unusually large text has made it grow. */
void bpe_work_trim(bpe_work *w);
/* At least n bytes, valid until the next call; NULL: out of memory. */
uint8_t *bpe_scratch(bpe_work *w, size_t n);

int64_t bpe_count(bpe_vocab *v, bpe_work *w, const uint8_t *text, size_t n);
/* Like bpe_count, but stops soon after exceeding `most` tokens: the result then is a lower
 * bound. */
int64_t bpe_count_to(bpe_vocab *v, bpe_work *w, const uint8_t *text, size_t n, int64_t most);
int bpe_measure_text(bpe_vocab *v, bpe_work *w, const uint8_t *text, size_t n, bpe_measure *found);
/* Ids of a text; `ids` has room for n of them. */
int64_t bpe_encode(bpe_vocab *v, bpe_work *w, const uint8_t *text, size_t n, uint32_t *ids);
/* Two cuts, between tokens and between characters: the last one with at most `head` tokens before
 * it, and the first one with at most `tail` tokens after it. */
int bpe_cuts(bpe_vocab *v, bpe_work *w, const uint8_t *text, size_t n, int64_t head, int64_t tail,
             bpe_cut *first, bpe_cut *last);

/* Encode a string of n units of 1, 2 or 4 bytes (`kind`) as UTF-8; `out` has room for 4 bytes per
 * unit (kind 1: 2, kind 2: 3). Returns the number of bytes. */
size_t bpe_utf8(const void *units, int kind, size_t n, uint8_t *out);
/* The number of units of such a string that make up its first `bytes` bytes of UTF-8. */
size_t bpe_units(const void *units, int kind, size_t n, size_t bytes);

#endif
