/* Python's strings as UTF-8. */
#include "_bpe.h"

static inline uint32_t unit_at(const void *units, int kind, size_t i) {
    if (kind == 1) return ((const uint8_t *)units)[i];
    return kind == 2 ? ((const uint16_t *)units)[i] : ((const uint32_t *)units)[i];
}

/* The code point at i, and its number of units: a surrogate pair is one code point, any other
 * surrogate is U+FFFD, as in tiktoken. */
static inline uint32_t point_at(const void *units, int kind, size_t n, size_t i, unsigned *taken) {
    uint32_t point = unit_at(units, kind, i);
    *taken = 1;
    if (point - 0xD800u >= 0x800u) return point;
    if (point < 0xDC00u && i + 1 < n) {
        uint32_t low = unit_at(units, kind, i + 1);
        if (low - 0xDC00u < 0x400u) {
            *taken = 2;
            return 0x10000u + ((point - 0xD800u) << 10) + (low - 0xDC00u);
        }
    }
    return 0xFFFDu;
}

size_t bpe_utf8(const void *units, int kind, size_t n, uint8_t *out) {
    uint8_t *p = out;
    unsigned taken;
    for (size_t i = 0; i < n; i += taken) {
        uint32_t c = point_at(units, kind, n, i, &taken);
        if (c < 0x80) {
            *p++ = (uint8_t)c;
        } else if (c < 0x800) {
            *p++ = (uint8_t)(0xC0 | c >> 6);
            *p++ = (uint8_t)(0x80 | (c & 0x3F));
        } else if (c < 0x10000) {
            *p++ = (uint8_t)(0xE0 | c >> 12);
            *p++ = (uint8_t)(0x80 | (c >> 6 & 0x3F));
            *p++ = (uint8_t)(0x80 | (c & 0x3F));
        } else {
            *p++ = (uint8_t)(0xF0 | c >> 18);
            *p++ = (uint8_t)(0x80 | (c >> 12 & 0x3F));
            *p++ = (uint8_t)(0x80 | (c >> 6 & 0x3F));
            *p++ = (uint8_t)(0x80 | (c & 0x3F));
        }
    }
    return (size_t)(p - out);
}

size_t bpe_units(const void *units, int kind, size_t n, size_t bytes) {
    size_t i = 0, at = 0;
    unsigned taken;
    for (; i < n && at < bytes; i += taken) {
        uint32_t c = point_at(units, kind, n, i, &taken);
        at += 1 + (c >= 0x80) + (c >= 0x800) + (c >= 0x10000);
    }
    return i;
}
