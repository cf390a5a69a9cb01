# Escapes and invisible characters: decoding a text.

from libc.string cimport memchr

cdef extern from *:
    """
    typedef struct { const char *name; int size; unsigned point; } memcore_entity;
    #define ENTITY(name, point) {name, sizeof(name) - 1, point}
    static const memcore_entity MEMCORE_ENTITIES[] = {
        ENTITY("apos;", 39), ENTITY("colon;", ':'), ENTITY("commat;", '@'),
        ENTITY("dash;", '-'), ENTITY("equals;", '='), ENTITY("gt;", '>'), ENTITY("hyphen;", '-'),
        ENTITY("lowbar;", '_'), ENTITY("lt;", '<'), ENTITY("nbsp;", ' '), ENTITY("num;", '#'),
        ENTITY("percnt;", '%'), ENTITY("period;", '.'), ENTITY("plus;", '+'),
        ENTITY("quot;", '"'), ENTITY("shy;", 0xAD), ENTITY("sol;", '/'), ENTITY("zwj;", 0x200D),
        ENTITY("zwnj;", 0x200C),
    };
    enum { MEMCORE_ENTITIES_COUNT = sizeof(MEMCORE_ENTITIES) / sizeof(MEMCORE_ENTITIES[0]) };
    """
    ctypedef struct memcore_entity:
        const char *name
        int size
        unsigned int point
    const memcore_entity MEMCORE_ENTITIES[]
    int MEMCORE_ENTITIES_COUNT


cdef Py_ssize_t _hexadecimal(
    const Scan *s, Py_ssize_t i, int least, int most, uint32_t *point
) noexcept nogil:
    """The end of hexadecimal digits (at most 8); -1 if too few or no code point."""
    cdef Py_ssize_t at = i
    cdef uint32_t value = 0
    while at - i < most and _has(s, at, P_HEX):
        value = 16 * value + ((s.t[at] & 15) + (0 if _has(s, at, P_DIGIT) else 9))
        at += 1
    if at - i < least or value > 0x10FFFF:
        return -1
    point[0] = value
    return at


cdef Py_ssize_t _percent(const Scan *s, Py_ssize_t i, uint32_t *point) noexcept nogil:
    """Decode, like ``_escape``, %40, %2540, %u0040, and UTF-8 in several such bytes."""
    cdef Py_ssize_t at = i + 1, stop, following
    cdef uint32_t unit = 0
    cdef int k, more
    if _byte(s, at) == c'u':
        return _hexadecimal(s, at + 1, 4, 4, point)
    while _byte(s, at) == c'2' and _byte(s, at + 1) == c'5' and at - i < 8 and (
        _has(s, at + 2, P_HEX) and _has(s, at + 3, P_HEX)
    ):
        at += 2
    stop = _hexadecimal(s, at, 2, 2, point)
    if stop < 0 or point[0] < 0xC2 or point[0] > 0xF4:
        return stop
    more = 1 if point[0] < 0xE0 else 2 if point[0] < 0xF0 else 3
    point[0] &= 0x3F >> more
    for k in range(more):
        following = _hexadecimal(s, stop + 1, 2, 2, &unit)
        if _byte(s, stop) != c'%' or following < 0 or unit & 0xC0 != 0x80:
            return -1
        point[0] = point[0] << 6 | unit & 0x3F
        stop = following
    return stop


cdef Py_ssize_t _behind_zeros(const Scan *s, Py_ssize_t i) noexcept nogil:
    """Skip a number's leading zeros, however many; its last digit may be one."""
    while _byte(s, i) == c'0' and _has(s, i + 1, P_HEX):
        i += 1
    return i


cdef Py_ssize_t _entity(const Scan *s, Py_ssize_t i, uint32_t *point) noexcept nogil:
    """Decode, like ``_escape``, &#64;, &#x40;, &commat; and &amp;commat;."""
    cdef Py_ssize_t at = i + 1, stop
    cdef uint32_t value = 0
    cdef int k
    while _says(s, at, b"amp;", 4) and at - i < 12:
        at += 4
    if _byte(s, at) == c'#':
        if _byte(s, at + 1) | 32 == c'x':
            at += 1
            stop = _hexadecimal(s, _behind_zeros(s, at + 1), 1, 6, point)
        else:
            at = _behind_zeros(s, at + 1) - 1
            stop = at + 1
            while _has(s, stop, P_DIGIT) and stop - at < 8:
                value = 10 * value + (s.t[stop] - c'0')
                stop += 1
            point[0] = value
            if stop == at + 1 or value > 0x10FFFF:
                stop = -1
        return stop + 1 if stop > 0 and _byte(s, stop) == c';' else stop
    for k in range(MEMCORE_ENTITIES_COUNT):
        if _says(s, at, MEMCORE_ENTITIES[k].name, MEMCORE_ENTITIES[k].size):
            point[0] = MEMCORE_ENTITIES[k].point
            return at + MEMCORE_ENTITIES[k].size
    point[0] = c'&'
    return at if at > i + 1 else -1


cdef Py_ssize_t _escape(const Scan *s, Py_ssize_t i, uint32_t *point) noexcept nogil:
    """Decode the escape at an offset; returns its end and sets its code point; -1 if none.

    Escapes of JSON, Python and JavaScript, of URLs, of HTML, and a sign after a backslash, as in
    Markdown. Line breaks and tabs are left to the code that looks for words.
    """
    cdef Py_ssize_t at = i
    cdef uint8_t c = s.t[i]
    cdef int size
    if c == c'%':
        return _percent(s, i, point)
    if c == c'&':
        return _entity(s, i, point)
    while _byte(s, at) == c'\\' and at - i < BACKSLASHES_MAX:
        at += 1
    c = _byte(s, at)
    if c == c'u' or c == c'U' or c == c'x':
        if c == c'u' and _byte(s, at + 1) == c'{':
            at = _hexadecimal(s, at + 2, 1, 6, point)
            return at + 1 if at > 0 and _byte(s, at) == c'}' else -1
        size = 4 if c == c'u' else 8 if c == c'U' else 2
        return _hexadecimal(s, at + 1, size, size, point)
    if c == c'@' or c == c'.' or c == c'_' or c == c'-' or c == c'+' or c == c'/':
        point[0] = c
        return at + 1
    return -1


cdef bint _is_disguised(const Scan *s) noexcept nogil:
    """Return True if decoding would change anything."""
    cdef const uint8_t *end = s.t + s.n
    cdef const uint8_t *at
    cdef uint32_t point = 0
    cdef uint8_t c
    if <const void *>s.t != s.raw and memchr(s.t, INVISIBLE, <size_t>s.n) != NULL:
        return True
    for c in b"\\%&":
        at = <const uint8_t *>memchr(s.t, c, <size_t>s.n)
        while at != NULL:
            if _escape(s, at - s.t, &point) > 0:
                return True
            at = <const uint8_t *>memchr(at + 1, c, <size_t>(end - at - 1))
    return False


cdef Py_ssize_t _decode(const Scan *s, uint32_t *points, Py_ssize_t *origin) noexcept nogil:
    """Write the decoded characters and the offset of each; returns their number."""
    cdef Py_ssize_t i = 0, n = 0, stop
    cdef uint8_t c
    while i < s.n:
        c = s.t[i]
        stop = -1
        origin[n] = i
        if c == c'\\' or c == c'%' or c == c'&':
            stop = _escape(s, i, &points[n])
        if stop < 0:
            points[n] = _read(s.raw, s.kind, i)
            stop = i + 1
        if _plain(points[n]) != INVISIBLE:
            n += 1
        i = stop
    origin[n] = s.n
    return n
