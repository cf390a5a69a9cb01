# Rows of items, opened many at a time: what codec.values.open_value and rows.item.decode_message do
# singly.

cdef enum:
    SEAL = 10           # format, flags, checksum
    ITEM_HEADER = 16    # kind u8, envelope flag u8, 0 u16, envelope length u32, created u64
    ROW_KEY_MAX = 511


cdef object _opened(bytes key, bytes value, bytes head, object digest):
    """The item JSON of a sealed value; None if not proven or too short, False for an event."""
    cdef Py_ssize_t keyed = PyBytes_GET_SIZE(key)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(value) - SEAL
    cdef const uint8_t *v = <const uint8_t *>PyBytes_AS_STRING(value)
    cdef const uint8_t *h = <const uint8_t *>PyBytes_AS_STRING(head)
    cdef uint8_t *p
    cdef uint64_t at
    cdef bytes whole, found
    if size < ITEM_HEADER or keyed > ROW_KEY_MAX or v[0] != h[0] or v[1] != h[1]:
        return None
    whole = PyBytes_FromStringAndSize(NULL, 4 + keyed + size)
    p = <uint8_t *>PyBytes_AS_STRING(whole)
    p[0], p[1] = keyed & 0xFF, keyed >> 8
    p[2], p[3] = v[0], v[1]
    memcpy(p + 4, PyBytes_AS_STRING(key), keyed)
    memcpy(p + 4 + keyed, v + SEAL, size)
    found = digest(whole)
    if PyBytes_GET_SIZE(found) != 8 or memcmp(PyBytes_AS_STRING(found), v + 2, 8):
        return None
    v += SEAL
    if v[0] == EVENT:
        return False
    at = v[4] | v[5] << 8 | v[6] << 16 | <uint64_t>v[7] << 24
    at += ITEM_HEADER
    if at > <uint64_t>size:
        return None
    return PyBytes_FromStringAndSize(<const char *>v + at, size - <Py_ssize_t>at)


def open_messages(list rows, bytes prefix not None, uint64_t first, bytes head not None,
                  object digest, object loads):
    """The messages of rows whose keys are ``prefix`` and the seqs from ``first`` on.

    ``head`` is how their values begin, ``digest`` proves them, ``loads`` decodes JSON. None if a
    row is missing, of another form or damaged: then each needs a look of its own.
    """
    cdef Py_ssize_t length = PyBytes_GET_SIZE(prefix)
    cdef const uint8_t *k
    cdef uint64_t seq
    cdef int i
    cdef bytes key, value
    cdef object encoded, message
    cdef list found = []
    if PyBytes_GET_SIZE(head) != 2:
        return None
    for key, value in rows:
        if key is None or value is None or PyBytes_GET_SIZE(key) != length + 8:
            return None
        k = <const uint8_t *>PyBytes_AS_STRING(key)
        if memcmp(k, PyBytes_AS_STRING(prefix), length):
            return None
        seq = 0
        for i in range(8):
            seq = seq << 8 | k[length + i]
        if seq != first:
            return None
        first += 1
        encoded = _opened(key, value, head, digest)
        if encoded is None:
            return None
        if encoded is False:
            found.append(None)
            continue
        try:
            message = loads(encoded)
        except ValueError:
            return None
        if type(message) is not dict:
            return None
        found.append(message)
    return found


cdef object _fresh(object value):
    """A copy of a JSON value that shares what never changes."""
    cdef object key = None, entry = None
    cdef Py_ssize_t at = 0
    cdef dict whole
    cdef list row
    cdef Py_ssize_t i
    if type(value) is dict:
        whole = (<dict>value).copy()
        while memcore_next(whole, &at, key, entry):
            if type(entry) is dict or type(entry) is list:
                whole[key] = _fresh(entry)  # no new key: the walk goes on
        return whole
    if type(value) is list:
        row = (<list>value).copy()
        for i in range(len(row)):
            if type(row[i]) is dict or type(row[i]) is list:
                row[i] = _fresh(row[i])
        return row
    return value


def fresh_json(list values not None, object absent):
    """Copies of JSON values that nobody else can reach, without those that are ``absent``."""
    cdef object value
    cdef list found = []
    for value in values:
        if value is not absent:
            found.append(_fresh(value))
    return found
