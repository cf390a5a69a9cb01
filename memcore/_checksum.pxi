# Checksums of rows: XXH3 with 64 bits over a key's length, a value's head, the key and the body.

cdef extern from "_xxh3.h":
    uint64_t xxh3_hash(const uint8_t *, size_t, uint64_t seed) nogil

cdef enum:
    SEAL = 10           # format, flags, checksum
    VALUE_FORMAT = 1
    REWRITTEN = 0x10    # a flag of the seal: the body begins with the previous row's checksum
    ROW_KEY_MAX = 511
    CHECKED_BYTES = 2048    # content up to this size is put together on the stack


def xxh3_64(data, uint64_t seed=0):
    """The 64-bit XXH3 hash of bytes, or of another object with a contiguous buffer."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return xxh3_hash(<const uint8_t *>view.buf, <size_t>view.len, seed)
    finally:
        PyBuffer_Release(&view)


cdef int _checksum(bytes key, const uint8_t *head, const uint8_t *body, Py_ssize_t size,
                   uint8_t *found) except -1:
    """Write the eight bytes of a row's checksum, big-endian; the key has at most ROW_KEY_MAX."""
    cdef uint8_t stack[4 + ROW_KEY_MAX + CHECKED_BYTES]
    cdef Py_ssize_t keyed = PyBytes_GET_SIZE(key)
    cdef uint8_t *whole = stack
    if size > CHECKED_BYTES:
        whole = <uint8_t *>malloc(<size_t>(4 + keyed + size))
        if whole is NULL:
            raise MemoryError
    whole[0], whole[1] = keyed & 0xFF, keyed >> 8 & 0xFF
    whole[2], whole[3] = head[0], head[1]
    memcpy(whole + 4, PyBytes_AS_STRING(key), <size_t>keyed)
    memcpy(whole + 4 + keyed, body, <size_t>size)
    _store_big64(found, xxh3_hash(whole, <size_t>(4 + keyed + size), 0))
    if whole is not stack:
        free(whole)
    return 0


cdef inline void _store_big64(uint8_t *p, uint64_t x) noexcept nogil:
    cdef int i
    for i in range(8):
        p[i] = <uint8_t>(x >> (56 - 8 * i) & 0xFF)


cdef bytes _seal(bytes key, bytes body, int flags, int value_format=VALUE_FORMAT):
    """The stored form of a body under a key: format, flags, checksum, body."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(body)
    cdef bytes value
    cdef uint8_t *p
    if (PyBytes_GET_SIZE(key) > ROW_KEY_MAX or not 0 <= flags <= 0xFF
            or not 0 <= value_format <= 0xFF):
        raise ValueError("a key has at most 511 bytes, flags and format are one byte each")
    value = PyBytes_FromStringAndSize(NULL, SEAL + size)
    p = <uint8_t *>PyBytes_AS_STRING(value)
    p[0], p[1] = <uint8_t>value_format, <uint8_t>flags
    memcpy(p + SEAL, PyBytes_AS_STRING(body), <size_t>size)
    _checksum(key, p, p + SEAL, size, p + 2)
    return value


def seal_value(bytes key not None, bytes body not None, int flags=0, *,
               int value_format=VALUE_FORMAT):
    """The stored form of ``body`` under ``key``."""
    return _seal(key, body, flags, value_format)


cdef bint _is_sealed(bytes key, bytes value) except -1:
    """Return True if a value's checksum matches its key and content."""
    cdef const uint8_t *v = <const uint8_t *>PyBytes_AS_STRING(value)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(value) - SEAL
    cdef uint8_t found[8]
    if size < 0 or PyBytes_GET_SIZE(key) > ROW_KEY_MAX:
        return False
    _checksum(key, v, v + SEAL, size, found)
    return not memcmp(found, v + 2, 8)


def is_sealed(bytes key not None, bytes value not None):
    """Return True if the checksum of a value, of any format, matches its key and content."""
    return _is_sealed(key, value)


cdef uint64_t _chained(uint64_t chain, const uint8_t *checksum) noexcept:
    """The prefix hash after one more item: H(previous chain, checksum of the item's row)."""
    cdef uint8_t whole[16]
    memcpy(_put64(whole, chain), checksum, 8)
    return xxh3_hash(whole, 16, 0)
