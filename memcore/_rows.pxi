# Rows of items, opened many at a time: what codec.values.open_value, rows.item.decode_item and
# decode_message do singly.

cdef enum:
    SEAL = 10           # format, flags, checksum
    ITEM_HEADER = 16    # kind u8, flags u8, 0 u16, envelope length u32, created u64
    ITEM_SALTED = 2     # of these flags: the envelope begins with a salt
    ITEM_SALT = 8
    ROW_BLOB = 2        # of the seal's flags: the item JSON lies in a blob
    ROW_KEY_MAX = 511

cdef uint64_t ROW_CLOCK = 4294967296 * 1000000  # the first microsecond that no row can hold


cdef bint _is_proven(bytes key, bytes value, bytes head, object digest) except -1:
    """Whether a value begins as ``head`` says, holds an item's header and is sealed under key."""
    cdef Py_ssize_t keyed = PyBytes_GET_SIZE(key)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(value) - SEAL
    cdef const uint8_t *v = <const uint8_t *>PyBytes_AS_STRING(value)
    cdef const uint8_t *h = <const uint8_t *>PyBytes_AS_STRING(head)
    cdef uint8_t *p
    cdef bytes whole, found
    if size < ITEM_HEADER or keyed > ROW_KEY_MAX or v[0] != h[0] or v[1] != h[1]:
        return False
    whole = PyBytes_FromStringAndSize(NULL, 4 + keyed + size)
    p = <uint8_t *>PyBytes_AS_STRING(whole)
    p[0], p[1] = keyed & 0xFF, keyed >> 8
    p[2], p[3] = v[0], v[1]
    memcpy(p + 4, PyBytes_AS_STRING(key), keyed)
    memcpy(p + 4 + keyed, v + SEAL, size)
    found = digest(whole)
    return PyBytes_GET_SIZE(found) == 8 and not memcmp(PyBytes_AS_STRING(found), v + 2, 8)


cdef object _item_json(bytes value):
    """The item JSON of a proven value; None if its envelope is said to be longer than it is."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(value) - SEAL
    cdef const uint8_t *v = <const uint8_t *>PyBytes_AS_STRING(value) + SEAL
    cdef uint64_t at = v[4] | v[5] << 8 | v[6] << 16 | <uint64_t>v[7] << 24
    at += ITEM_HEADER
    if at > <uint64_t>size:
        return None
    return PyBytes_FromStringAndSize(<const char *>v + at, size - <Py_ssize_t>at)


cdef bint _too_deep(bytes encoded, object message) except -1:
    """Whether JSON is nested deeper than any that is written: then its row is damaged."""
    cdef const char *text = PyBytes_AS_STRING(encoded)
    cdef Py_ssize_t i, opened = 0
    cdef int64_t nodes = 0
    if PyBytes_GET_SIZE(encoded) <= 2 * JSON_DEPTH_MAX:
        return False
    for i in range(PyBytes_GET_SIZE(encoded)):
        opened += (text[i] | 32) == 123  # [ or {
    return opened > JSON_DEPTH_MAX and _scan_json(message, 0, &nodes) == JSON_DEPTH


cdef object _item_of(uint64_t seq, bytes key, bytes value, object tokens, bytes head,
                     object digest, object loads, type item, tuple kinds):
    """The item of a row that is as most are, without an envelope; None for any other."""
    cdef const uint8_t *v
    cdef uint64_t envelope, created = 0
    cdef int i
    cdef object encoded, message
    cdef tuple fields
    if not _is_proven(key, value, head, digest):
        return None
    v = <const uint8_t *>PyBytes_AS_STRING(value) + SEAL
    envelope = v[4] | v[5] << 8 | v[6] << 16 | <uint64_t>v[7] << 24
    if envelope != (ITEM_SALT if v[1] & ITEM_SALTED else 0) or v[0] >= len(kinds):
        return None
    for i in range(8):
        created |= <uint64_t>v[8 + i] << (8 * i)
    encoded = _item_json(value)
    if encoded is None:
        return None
    try:
        message = loads(encoded)
    except ValueError:
        return None
    if type(message) is not dict or created >= ROW_CLOCK or _too_deep(encoded, message):
        return None
    fields = (seq, kinds[v[0]], message, tokens, created / 1e6, None, None, None)
    return tuple.__new__(item, fields)


def leading_rows(list rows, bytes prefix not None, uint64_t first, Py_ssize_t start=0):
    """How many rows from ``start`` on have ``prefix`` and the seqs from ``first`` on, and no blob.

    Nothing of them is proven by that.
    """
    cdef Py_ssize_t length = PyBytes_GET_SIZE(prefix)
    cdef const uint8_t *k
    cdef uint64_t seq
    cdef Py_ssize_t count = 0
    cdef int i
    cdef bytes key, value
    for key, value in rows[start:] if start else rows:
        if key is None or value is None or PyBytes_GET_SIZE(key) != length + 8:
            break
        k = <const uint8_t *>PyBytes_AS_STRING(key)
        if memcmp(k, PyBytes_AS_STRING(prefix), length):
            break
        seq = 0
        for i in range(8):
            seq = seq << 8 | k[length + i]
        if seq != first + <uint64_t>count:
            break
        if PyBytes_GET_SIZE(value) > 1 and PyBytes_AS_STRING(value)[1] & ROW_BLOB:
            break
        count += 1
    return count


def open_items(list rows, uint64_t first, list tokens not None, bytes head not None,
               object digest, object loads, type item not None, tuple kinds not None,
               object slow):
    """The items of rows of the seqs from ``first`` on, made as ``item(seq, kind, ...)`` is.

    ``tokens`` are theirs, ``head`` is how most values begin, ``digest`` proves them, ``loads``
    decodes JSON. A row that is not as most are goes to ``slow(seq, key, value, tokens)``.
    """
    cdef Py_ssize_t at = 0
    cdef bytes key, value
    cdef object made, counted
    cdef list found = []
    if PyBytes_GET_SIZE(head) != 2 or len(tokens) != len(rows) or not issubclass(item, tuple):
        raise ValueError("open_items: rows, tokens and head do not belong together")
    for key, value in rows:
        if key is None or value is None or at >= len(tokens):
            raise ValueError("open_items: a row is a key and a value, and has a count")
        counted = tokens[at]
        made = _item_of(first + <uint64_t>at, key, value, counted, head, digest, loads, item, kinds)
        if made is None:
            made = slow(first + <uint64_t>at, key, value, counted)
        found.append(made)
        at += 1
    return found


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
        if not _is_proven(key, value, head, digest):
            return None
        if PyBytes_AS_STRING(value)[SEAL] == EVENT:
            found.append(None)
            continue
        encoded = _item_json(value)
        if encoded is None:
            return None
        try:
            message = loads(encoded)
        except ValueError:
            return None
        if type(message) is not dict or _too_deep(encoded, message):
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
