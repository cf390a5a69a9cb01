# MessagePack (github.com/msgpack/msgpack/blob/master/spec.md), as far as a checkpoint needs it.

cdef inline const uint8_t *_read_big(const uint8_t *p, int size, uint64_t *found) noexcept nogil:
    """Read an unsigned big-endian number and return the place behind it."""
    cdef int i
    found[0] = 0
    for i in range(size):
        found[0] = found[0] << 8 | p[i]
    return p + size


cdef object _packed_text(const uint8_t **at, const uint8_t *end):
    """Read a text and move behind it; None if there is none."""
    cdef const uint8_t *p = at[0]
    cdef uint64_t size
    cdef int width = 0
    if p >= end:
        return None
    if p[0] & 0xE0 == 0xA0:
        size = p[0] & 0x1F
        p += 1
    elif 0xD9 <= p[0] <= 0xDB:
        width = 1 << (p[0] - 0xD9)
        if end - p <= width:
            return None
        p = _read_big(p + 1, width, &size)
    else:
        return None
    if size > <uint64_t>(end - p):
        return None
    at[0] = p + size
    return PyUnicode_DecodeUTF8(<const char *>p, <Py_ssize_t>size, NULL)


cdef tuple _packed_type(const uint8_t *p, const uint8_t *end):
    """The two texts with which an array begins; None if it does not."""
    cdef object module, name
    if p >= end:
        return None
    if p[0] & 0xF0 == 0x90 and p[0] & 0x0F >= 2:
        p += 1
    elif p[0] == 0xDC and end - p > 3:
        p += 3
    else:
        return None
    module = _packed_text(&p, end)
    name = None if module is None else _packed_text(&p, end)
    return None if name is None else (module, name)


def types_in_packed(bytes content not None, uint32_t nameless):
    """The types, as a set of ``(module, name)``, that one MessagePack value of LangGraph's names.

    An extension holds one value, which begins with module and name, unless the bit of the
    extension's code is set in ``nameless``.

    Raises:
        ValueError: the bytes are not one such value.
    """
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(content)
    cdef const uint8_t *end = p + PyBytes_GET_SIZE(content)
    cdef uint64_t left = 1, size    # values still to come: nothing here recurses
    cdef set found = set()
    cdef object named
    cdef int width, times
    cdef uint8_t mark, code
    while left:
        if p >= end:
            raise ValueError("no msgpack: it is cut short")
        mark = p[0]
        p += 1
        left -= 1
        width = times = 0
        size = 0
        if mark < 0x80 or mark >= 0xE0 or mark == 0xC0 or mark == 0xC2 or mark == 0xC3:
            continue
        elif mark < 0xA0:               # small maps, arrays
            left += (mark & 0x0F) * <uint64_t>(1 if mark >= 0x90 else 2)
            continue
        elif mark < 0xC0:               # small texts
            size = mark & 0x1F
        elif 0xC4 <= mark <= 0xC6:      # bytes
            width = 1 << (mark - 0xC4)
        elif 0xC7 <= mark <= 0xC9:      # extensions
            width = 1 << (mark - 0xC7)
        elif 0xCA <= mark <= 0xCB:      # floats
            size = 4 << (mark - 0xCA)
        elif 0xCC <= mark <= 0xD3:      # integers
            size = 1 << (mark & 3)
        elif 0xD4 <= mark <= 0xD8:      # small extensions
            size = 1 << (mark - 0xD4)
        elif 0xD9 <= mark <= 0xDB:      # texts
            width = 1 << (mark - 0xD9)
        elif mark >= 0xDC:              # arrays, maps
            width = 2 << (mark & 1)
            times = 1 if mark <= 0xDD else 2
        else:
            raise ValueError("no msgpack: 0xC1 begins no value")
        if width:
            if end - p < width:
                raise ValueError("no msgpack: it is cut short")
            p = _read_big(p, width, &size)
        if times:
            left += times * size
        elif 0xC7 <= mark <= 0xC9 or 0xD4 <= mark <= 0xD8:
            if end - p < 1 or size > <uint64_t>(end - p - 1):
                raise ValueError("no msgpack: it is cut short")
            code = p[0]
            p += 1
            left += 1                   # the value in the extension comes next
            if code >= 32 or not nameless >> code & 1:
                named = _packed_type(p, p + size)
                if named is None:
                    raise ValueError("an extension names no type")
                found.add(named)
        elif size > <uint64_t>(end - p):
            raise ValueError("no msgpack: it is cut short")
        else:
            p += size
    if p != end:
        raise ValueError("no msgpack: more than one value")
    return found
