# --- what is sensitive in a text ------------------------------------------------------------------
#
# One pass over a copy in which every code point is a byte: ASCII as it is, full-width forms as what
# they stand for, all else 0x80. So offsets in the copy are offsets in the text. A table says at which
# bytes something may begin; what is looked at there is bounded, or is never looked at again, so that
# no text takes more than linear time. `work` counts steps, for the tests of that.

cdef enum:
    # Classes: memcore/privacy/classes.py has the names.
    C_EMAIL = 0
    C_CN_MOBILE = 1

cdef enum:
    # What may begin at a byte.
    T_DIGIT = 1
    T_AT = 2
    # Properties of a byte.
    P_DIGIT = 1
    P_LOWER = 2
    P_UPPER = 4
    P_LETTER = 6
    P_ALNUM = 7
    P_LOCAL = 8         # of the part of an address before the @

cdef uint8_t _TRIGGER[256]
cdef uint8_t _PROPERTY[256]


cdef void _fill_tables() noexcept:
    cdef int c
    for c in range(256):
        _TRIGGER[c] = 0
        _PROPERTY[c] = 0
    for c in range(c'0', c'9' + 1):
        _PROPERTY[c] = P_DIGIT | P_LOCAL
        _TRIGGER[c] = T_DIGIT
    for c in range(c'a', c'z' + 1):
        _PROPERTY[c] = P_LOWER | P_LOCAL
        _PROPERTY[c - 32] = P_UPPER | P_LOCAL
    for c in b"._%+-":
        _PROPERTY[c] |= P_LOCAL
    _TRIGGER[c'@'] = T_AT


_fill_tables()

ctypedef struct Found:
    Py_ssize_t start
    Py_ssize_t stop
    int number

ctypedef struct Scan:
    const uint8_t *t
    Py_ssize_t n
    int classes
    int context
    Found *found
    Py_ssize_t count
    Py_ssize_t room
    Py_ssize_t floor        # the end of the last span that an address may not swallow
    int64_t work
    bint failed


cdef inline bint _has(Scan *s, Py_ssize_t i, int properties) noexcept nogil:
    return 0 <= i < s.n and _PROPERTY[s.t[i]] & properties != 0


cdef inline bint _on(Scan *s, int number) noexcept nogil:
    return (s.classes >> number) & 1


cdef void _emit(Scan *s, Py_ssize_t start, Py_ssize_t stop, int number) noexcept nogil:
    cdef Found *grown
    if s.count == s.room:
        grown = <Found *>realloc(s.found, <size_t>(2 * s.room + 8) * sizeof(Found))
        if grown == NULL:
            s.failed = True
            return
        s.found = grown
        s.room = 2 * s.room + 8
    s.found[s.count].start = start
    s.found[s.count].stop = stop
    s.found[s.count].number = number
    s.count += 1


cdef Py_ssize_t _email(Scan *s, Py_ssize_t at) noexcept nogil:
    """Where to go on after an @: behind the address, if it is one."""
    cdef Py_ssize_t start = at, stop = at + 1, label, dot = -1, end = -1
    while start > s.floor and _has(s, start - 1, P_LOCAL):
        start -= 1
    s.work += at - start
    if start > s.floor and s.t[start - 1] == c'\\' and s.t[start] in b"nrtbf":
        start += 1      # the letter of an escape
    while start < at and s.t[start] in b".-%+":
        start += 1
    if start == at or s.t[at - 1] == c'.':
        return at + 1
    label = stop
    while True:
        while _has(s, stop, P_ALNUM) or (stop > label and stop < s.n and s.t[stop] == c'-'):
            stop += 1
        if stop == label:
            break
        if dot >= 0:
            end = label
            while _has(s, end, P_LETTER):
                end += 1
        if stop == s.n or s.t[stop] != c'.':
            break
        dot = stop
        stop += 1
        label = stop
    s.work += stop - at
    if dot < 0 or end < 0:
        return at + 1
    label = dot + 1
    if stop == label:       # a full stop behind the address
        end = dot
        label = dot
        while label > at + 1 and s.t[label - 1] != c'.':
            label -= 1
        if label == at + 1:
            return at + 1
    if end - label < 2:
        return at + 1
    while s.count and s.found[s.count - 1].start >= start:
        s.count -= 1
    if s.count and s.found[s.count - 1].stop > start:
        start = s.found[s.count - 1].stop
    _emit(s, start, end, C_EMAIL)
    s.floor = end
    return end


cdef Py_ssize_t _digits(Scan *s, Py_ssize_t i) noexcept nogil:
    """Where to go on after a run of digits."""
    cdef Py_ssize_t j = i
    while _has(s, j, P_DIGIT):
        j += 1
    if _on(s, C_CN_MOBILE) and j - i == 11 and s.t[i] == c'1' and s.t[i + 1] >= c'3':
        _emit(s, i, j, C_CN_MOBILE)
    return j


cdef void _scan_text(Scan *s) noexcept nogil:
    cdef Py_ssize_t i = 0
    cdef uint8_t trigger
    while i < s.n:
        trigger = _TRIGGER[s.t[i]]
        if trigger == 0:
            i += 1
        elif trigger == T_DIGIT:
            i = _digits(s, i)
        elif trigger == T_AT:
            i = _email(s, i) if _on(s, C_EMAIL) else i + 1
    s.work += s.n


cdef inline uint8_t _plain(uint32_t c) noexcept nogil:
    """The byte of a code point: ASCII, what a full-width form stands for, or 0x80."""
    if c < 128:
        return <uint8_t>c
    if 0xFF01 <= c <= 0xFF5E:
        return <uint8_t>(c - 0xFEE0)
    if c == 0x3000 or c == 0xA0:
        return c' '
    return 0x80


cdef void _flatten(const void *data, int kind, Py_ssize_t n, uint8_t *out) noexcept nogil:
    cdef Py_ssize_t i
    if kind == 1:
        for i in range(n):
            out[i] = _plain((<const uint8_t *>data)[i])
    elif kind == 2:
        for i in range(n):
            out[i] = _plain((<const uint16_t *>data)[i])
    else:
        for i in range(n):
            out[i] = _plain((<const uint32_t *>data)[i])


def find_sensitive(str text not None, int classes, int context=0):
    """What of the classes (bits) is in a text: ``(start, stop, class number)`` in order, disjoint.

    ``context``: classes for which the key that the text stands under gives the context.
    """
    cdef Scan s
    cdef uint8_t *copy = NULL
    cdef Py_ssize_t i
    cdef list found
    s.n = PyUnicode_GET_LENGTH(text)
    s.classes, s.context = classes, context
    s.found, s.count, s.room, s.floor, s.work, s.failed = NULL, 0, 0, 0, 0, False
    if PyUnicode_IS_ASCII(text):
        s.t = <const uint8_t *>PyUnicode_DATA(text)
    else:
        copy = <uint8_t *>PyMem_Malloc(<size_t>s.n)
        if copy == NULL:
            raise MemoryError
        _flatten(PyUnicode_DATA(text), PyUnicode_KIND(text), s.n, copy)
        s.t = copy
    try:
        _scan_text(&s)
        if s.failed:
            raise MemoryError
        found = []
        for i in range(s.count):
            found.append((s.found[i].start, s.found[i].stop, s.found[i].number))
        return found
    finally:
        PyMem_Free(copy)
        free(s.found)
