# Rows of items, decoded in bulk: as codec.values.open_value, rows.item.decode_item and
# decode_message do one at a time.

cdef enum:
    ITEM_HEADER = 16    # kind u8, flags u8, 0 u16, envelope length u32, created u64
    ITEM_SALTED = 2     # an item flag: the envelope begins with a salt
    ITEM_SALT = 8
    ROW_BLOB = 2        # a flag of the seal: the item JSON is in a blob

cdef uint64_t ROW_CLOCK = 4294967296 * 1000000  # the first microsecond that a row cannot store


cdef bint _is_proven(bytes key, bytes value, bytes head) except -1:
    """Return True if a value begins with ``head``, has an item's header and a valid checksum."""
    cdef const uint8_t *v = <const uint8_t *>PyBytes_AS_STRING(value)
    cdef const uint8_t *h = <const uint8_t *>PyBytes_AS_STRING(head)
    if PyBytes_GET_SIZE(value) < SEAL + ITEM_HEADER or v[0] != h[0] or v[1] != h[1]:
        return False
    return _is_sealed(key, value)


cdef object _item_json(bytes value):
    """The item JSON of a verified value; None if its envelope length exceeds the value."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(value) - SEAL
    cdef const uint8_t *v = <const uint8_t *>PyBytes_AS_STRING(value) + SEAL
    cdef uint64_t at = v[4] | v[5] << 8 | v[6] << 16 | <uint64_t>v[7] << 24
    at += ITEM_HEADER
    if at > <uint64_t>size:
        return None
    return PyBytes_FromStringAndSize(<const char *>v + at, size - <Py_ssize_t>at)


cdef bint _too_deep(bytes encoded, object message) except -1:
    """Return True if JSON is nested deeper than is ever written: then its row is damaged."""
    cdef const char *text = PyBytes_AS_STRING(encoded)
    cdef Py_ssize_t i, opened = 0
    cdef int64_t nodes = 0
    if PyBytes_GET_SIZE(encoded) <= 2 * JSON_DEPTH_MAX:
        return False
    for i in range(PyBytes_GET_SIZE(encoded)):
        opened += (text[i] | 32) == 123  # [ or {
    return opened > JSON_DEPTH_MAX and _scan_json(message, 0, &nodes) == JSON_DEPTH


cdef dict _told(const uint8_t *envelope, Py_ssize_t size, object loads):
    """The plain envelope of an item, meta and request id; None for any other."""
    cdef object encoded, found
    if envelope[0]:
        return None
    encoded = PyBytes_FromStringAndSize(<const char *>envelope + 1, size - 1)
    try:
        found = loads(encoded)
    except ValueError:
        return None
    if type(found) is not dict or len(<dict>found) != 2 or _too_deep(encoded, found):
        return None
    return <dict>found if "meta" in <dict>found and "request_id" in <dict>found else None


cdef object _item_of(uint64_t seq, bytes key, bytes value, object tokens, bytes head,
                     object loads, type item, tuple kinds):
    """The item of a row of the common form, with meta and request id at most; None for others."""
    cdef const uint8_t *v
    cdef uint64_t envelope, salt, created = 0
    cdef int i
    cdef object encoded, message, meta = None, request_id = None
    cdef dict told
    cdef tuple fields
    if not _is_proven(key, value, head):
        return None
    v = <const uint8_t *>PyBytes_AS_STRING(value) + SEAL
    envelope = v[4] | v[5] << 8 | v[6] << 16 | <uint64_t>v[7] << 24
    salt = ITEM_SALT if v[1] & ITEM_SALTED else 0
    if envelope < salt or v[0] >= len(kinds):
        return None
    for i in range(8):
        created |= <uint64_t>v[8 + i] << (8 * i)
    encoded = _item_json(value)
    if encoded is None:
        return None
    if envelope > salt:  # as _item_json found, it ends within the value
        told = _told(v + ITEM_HEADER + salt, <Py_ssize_t>(envelope - salt), loads)
        if told is None:
            return None
        meta, request_id = told["meta"], told["request_id"]
    try:
        message = loads(encoded)
    except ValueError:
        return None
    if type(message) is not dict or created >= ROW_CLOCK or _too_deep(encoded, message):
        return None
    fields = (seq, kinds[v[0]], message, tokens, created / 1e6, meta, request_id, None)
    return memcore_named(item, fields)


def leading_rows(list rows, bytes prefix not None, uint64_t first, Py_ssize_t start=0):
    """Count the rows from ``start`` on with ``prefix``, consecutive seqs from ``first``, no blob.

    This does not verify their contents.
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
               object loads, type item not None, tuple kinds not None,
               object slow):
    """The items of rows with the seqs from ``first`` on, built like ``item(seq, kind, ...)``.

    ``tokens`` are the items' counts, ``head`` is the common beginning of values, ``loads`` decodes
    JSON. A row of any other form goes to ``slow(seq, key, value, tokens)``.
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
        made = _item_of(first + <uint64_t>at, key, value, counted, head, loads, item, kinds)
        if made is None:
            made = slow(first + <uint64_t>at, key, value, counted)
        found.append(made)
        at += 1
    return found


def open_messages(list rows, bytes prefix not None, uint64_t first, bytes head not None,
                  object loads):
    """The messages of rows whose keys are ``prefix`` and the seqs from ``first`` on.

    ``head`` is the beginning of their values, ``loads`` decodes JSON. None if a row is missing, of
    another form or damaged: the caller then checks each one.
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
        if not _is_proven(key, value, head):
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
    """A copy of a JSON value that shares only immutable parts."""
    cdef object key = None, entry = None
    cdef Py_ssize_t at = 0
    cdef dict whole
    cdef list row
    cdef Py_ssize_t i
    if type(value) is dict:
        whole = (<dict>value).copy()
        while memcore_next(whole, &at, key, entry):
            if type(entry) is dict or type(entry) is list:
                whole[key] = _fresh(entry)  # an existing key: the iteration stays valid
        return whole
    if type(value) is list:
        row = (<list>value).copy()
        for i in range(len(row)):
            if type(row[i]) is dict or type(row[i]) is list:
                row[i] = _fresh(row[i])
        return row
    return value


cdef object _at_path(object item, list path):
    """The value of an item at a path of keys and positions; None if it is not there."""
    cdef object key
    try:
        for key in path:
            item = item[key]
    except (LookupError, TypeError):
        return None
    return item


cdef object _whole(object rest, object item):
    """See ``whole``; of an array or object, whose depth is that of stored JSON."""
    cdef object key = None, entry = None, found
    cdef Py_ssize_t at = 0, i
    cdef dict made
    cdef list row
    if type(rest) is list:
        row = (<list>rest).copy()
        for i in range(len(row)):
            if type(row[i]) is dict or type(row[i]) is list:
                row[i] = _whole(row[i], item)
        return row
    found = (<dict>rest).get("$") if len(<dict>rest) == 1 else None
    if found is not None:
        if type(found) is list:
            return _at_path(item, <list>found)
        if type(found) is not dict:
            try:
                return float(found)
            except (TypeError, ValueError):
                return None
        rest = found  # an object that looks like a reference
    made = {}
    while memcore_next(<dict>rest, &at, key, entry):
        made[key] = _whole(entry, item) if type(entry) is dict or type(entry) is list else entry
    return made


def whole(rest, item):
    """The value of which ``memcore.adapters.lines.rest_of`` left this rest beside an item."""
    return _whole(rest, item) if type(rest) is dict or type(rest) is list else rest


def fresh_json(list values not None, object absent):
    """Private copies of JSON values, without those that are ``absent``."""
    cdef object value
    cdef list found = []
    for value in values:
        if value is not absent:
            found.append(_fresh(value))
    return found


def known_from(dict known not None, int64_t first, int64_t last):
    """The values of consecutive keys, ``first`` to ``last``, up to the first that is missing."""
    cdef list found = []
    cdef object value
    while first <= last:
        value = memcore_get(known, first, _MISSING)
        if value is _MISSING:
            break
        found.append(value)
        first += 1
    return found


# --- listings of sessions: rows of many sessions, read with one cursor ----------------------------

cdef enum:
    LISTED_SESSION = 0x05       # first byte of a session's rows
    LISTED_HEAD = 0x01          # row kinds
    LISTED_ITEM = 0x03
    LISTED_STATE = 0x0B
    STATE_ROWS = 18             # prefix of a session's state: kind, scope, session, row
    SESSION_KEY = 26
    COUNTER_BITS = 62
    PASSED_BYTES = 1024         # cost of skipping a version of a field, in bytes copied
    PASSED_MAX = 32 * 1024


cdef inline uint64_t _take_big64(const uint8_t *p) noexcept nogil:
    cdef uint64_t x = 0
    cdef int i
    for i in range(8):
        x = x << 8 | p[i]
    return x


cdef inline void _put_big64(uint8_t *p, uint64_t x) noexcept nogil:
    cdef int i
    for i in range(8):
        p[i] = <uint8_t>(x >> (56 - 8 * i) & 0xFF)


cdef bytes _session_key(uint64_t scope, uint64_t session, int row, uint64_t number):
    cdef bytes key = PyBytes_FromStringAndSize(NULL, SESSION_KEY)
    cdef uint8_t *p = <uint8_t *>PyBytes_AS_STRING(key)
    p[0] = LISTED_SESSION
    _put_big64(p + 1, scope)
    _put_big64(p + 9, session)
    p[17] = <uint8_t>row
    _put_big64(p + 18, number)
    return key


cdef inline bint _starts(const uint8_t *text, Py_ssize_t size, bytes what) noexcept:
    cdef Py_ssize_t length = PyBytes_GET_SIZE(what)
    return size >= length and not memcmp(text, PyBytes_AS_STRING(what), <size_t>length)


cdef inline Py_ssize_t _offset(const uint8_t *text, Py_ssize_t size, bytes what) noexcept:
    """The offset of the first ``what``; -1 if there is none."""
    cdef Py_ssize_t at
    for at in range(size - PyBytes_GET_SIZE(what) + 1):
        if text[at] == <uint8_t>PyBytes_AS_STRING(what)[0] and _starts(text + at, size - at, what):
            return at
    return -1


@cython.final
@cython.auto_pickle(False)
cdef class SessionRows:
    """Reads with one cursor the rows of many sessions that a listing shows.

    It handles only sound rows of the usual form; None means that the caller has to check.

    Args:
        cursor: a cursor of LMDB's transaction; the caller closes it.
        get: returns the decrypted value under a key.
        opened: decrypts the value of a row; None: nothing is encrypted.
        policies: the names of pair policies, as bytes.
        event: the beginning of the JSON of an event that contains its time.
        rest: the beginning of the JSON of an event that never does.
        meta: the beginning of the meta of an item that contains its time.
        stamp: the key of the time, the last one of its object.
    """

    cdef object seek, following, get, opened, policies
    cdef bytes event, rest, meta, stamp
    cdef bytes first_meta, last_meta, no_request, told

    def __init__(self, cursor, get, opened, policies, bytes event not None,
                 bytes rest not None, bytes meta not None, bytes stamp not None):
        self.seek = cursor.set_range
        self.following = cursor.iternext
        self.get, self.opened = get, opened
        self.policies = policies
        self.event, self.rest, self.meta, self.stamp = event, rest, meta, stamp
        self.first_meta, self.last_meta = b'{"meta":', b',"meta":'
        self.no_request, self.told = b',"request_id":null}', b'{"request_id":'

    def names(self, bytes start not None, bytes prefix not None, Py_ssize_t most):
        """Names and numbers of the name rows from ``start`` on, and whether they are complete.

        They are not if there are more than ``most``, or a row is not of the usual form.
        """
        cdef const uint8_t *v
        cdef Py_ssize_t size
        cdef bytes key, value
        cdef object name
        cdef list found = []
        if not self.seek(start):
            return found, True
        for key, value in self.following():
            if key is None or value is None:
                return found, False
            if not _starts(<const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), prefix):
                break
            v = <const uint8_t *>PyBytes_AS_STRING(value)
            size = PyBytes_GET_SIZE(value) - SEAL - 9  # without the number before and the 00 after
            if len(found) >= most or size < 1 or v[0] != VALUE_FORMAT or v[1]:
                return found, False
            if v[SEAL + 8 + size] or memchr(v + SEAL + 8, 0, <size_t>size) is not NULL:
                return found, False
            if not _is_sealed(key, value):
                return found, False
            try:
                name = PyUnicode_DecodeUTF8(<const char *>v + SEAL + 8, size, NULL)
            except UnicodeDecodeError:
                return found, False
            found.append((name, _take_big64(v + SEAL)))
        return found, True

    cdef bytes _opened(self, bytes key, bytes value, int flags):
        """The decrypted and verified value if it has no other flags than these; else None."""
        if self.opened is not None:
            value = self.opened(key, value)
        if value is None or PyBytes_GET_SIZE(value) < SEAL:
            return None
        if PyBytes_AS_STRING(value)[0] != VALUE_FORMAT or PyBytes_AS_STRING(value)[1] & ~flags:
            return None
        return value if _is_sealed(key, value) else None

    cdef int _add(self, list parts, Py_ssize_t length, bytes key, bytes value, object names,
                  int *flags) except -1:
        """Append a member of a JSON object to the parts; 0 if the row is not of the usual form."""
        cdef bytes packed
        cdef object name, own
        cdef const char *v
        value = self._opened(key, value, 1)
        if value is None:
            return 0
        if PyBytes_GET_SIZE(value) == SEAL:  # it was deleted
            return 1
        packed = key[length:PyBytes_GET_SIZE(key) - 8]
        name, own = names[packed]
        v = PyBytes_AS_STRING(value)
        flags[0] |= v[1] | <int>own
        if parts:
            parts.append(b",")
        parts.append(name)
        parts.append(PyBytes_FromStringAndSize(v + SEAL, PyBytes_GET_SIZE(value) - SEAL))
        return 1

    def fields(self, bytes prefix not None, object names not None):
        """Header, JSON members and codec flags of the state with this prefix; None if in doubt.

        ``names`` maps a packed name to its JSON with the colon, and codec flags.
        """
        cdef Py_ssize_t length = PyBytes_GET_SIZE(prefix)
        cdef Py_ssize_t size, passed = 0
        cdef int flags = 0
        cdef bytes key, value, header = None, last = None, newest = None
        cdef list parts = []
        if not self.seek(prefix):
            return None, b"", 0
        for key, value in self.following():
            if key is None or value is None:
                return None
            size = PyBytes_GET_SIZE(key) - 8
            if not _starts(<const uint8_t *>PyBytes_AS_STRING(key), size + 8, prefix):
                break
            if size <= length:
                if (size < length or header is not None
                        or _take_big64(<const uint8_t *>PyBytes_AS_STRING(key) + size)):
                    return None
                header = value
                continue
            if last is not None:
                if (PyBytes_GET_SIZE(last) == size + 8 and not memcmp(
                        PyBytes_AS_STRING(last), PyBytes_AS_STRING(key), <size_t>size)):
                    passed += PASSED_BYTES + PyBytes_GET_SIZE(newest)
                    if passed > PASSED_MAX:  # one seek per field costs less
                        return None
                elif not self._add(parts, length, last, newest, names, &flags):
                    return None
            last, newest = key, value
        if last is not None and not self._add(parts, length, last, newest, names, &flags):
            return None
        if header is not None and self.opened is not None:
            header = self.opened(prefix + bytes(8), header)
        return header, b"".join(parts), flags

    def summary(self, uint64_t scope, uint64_t session, object names not None, object known):
        """Head, state header, JSON members, codec flags, time of the last item, and revision.

        Returns ``known`` if its head and header are the current ones; None if in doubt.
        """
        cdef bytes head = self.get(_session_key(scope, session, LISTED_HEAD, 0))
        cdef uint64_t revision = 0, owner = 0, last = 0
        cdef tuple told
        cdef object when
        cdef bytes key, value
        if head is None:
            return None
        key = _session_key(scope, session, LISTED_STATE, 0)
        if isinstance(known, tuple) and len(<tuple>known) > 1 and (<tuple>known)[0] == head:
            if (<tuple>known)[1] == self.get(key):
                return known
        if not self._is_head(scope, session, head, &revision, &owner, &last):
            return None
        told = self.fields(key[:STATE_ROWS], names)
        if told is None:
            return None
        key = _session_key(scope, owner, LISTED_ITEM, last)
        value = self.get(key)
        when = None if value is None else self._time(key, value)
        if when is None:
            return None
        return head, told[0], told[1], told[2], when, revision

    cdef bint _is_head(self, uint64_t scope, uint64_t session, bytes value, uint64_t *revision,
                       uint64_t *owner, uint64_t *last) except -1:
        """Return True if a head is sound; sets its revision and the location of its last item."""
        cdef const uint8_t *p
        cdef uint64_t fields[21]
        cdef uint64_t items, lo, before = 0
        cdef Py_ssize_t size = PyBytes_GET_SIZE(value) - SEAL, policy, counter, segments
        cdef int i
        p = <const uint8_t *>PyBytes_AS_STRING(value)
        if size < HEAD_FIXED or p[0] != VALUE_FORMAT or p[1]:
            return False
        p += SEAL
        for i in range(21):
            fields[i] = _take64(&p)
        policy, counter = fields[20] >> 40 & 0xFF, fields[20] >> 48 & 0xFF
        segments = fields[20] >> 56
        if not segments or size != HEAD_FIXED + policy + counter + SEGMENT_BYTES * segments:
            return False
        for i in range(15):  # the numbers, except the prefix hash; the times and recounts follow
            if i != 4 and fields[i] >> COUNTER_BITS:
                return False
        if fields[10] >= fields[2] or fields[9] and fields[9] >= session:
            return False
        for size in range(policy + counter):
            if p[size] & 0x80:
                return False
        if PyBytes_FromStringAndSize(<const char *>p, policy) not in self.policies:
            return False
        p += policy + counter
        items = fields[11]
        while segments > 0:
            segments -= 1
            owner[0], lo, last[0] = _take64(&p), _take64(&p), _take64(&p)
            if not before < lo <= last[0] < fields[2]:
                return False
            items += last[0] - lo + 1
            before = last[0]
        if items != fields[3] or fields[19] > fields[2] or fields[18] >> COUNTER_BITS:
            return False
        revision[0] = fields[0]
        return _is_sealed(_session_key(scope, session, LISTED_HEAD, 0), value)

    cdef object _time(self, bytes key, bytes value):
        """The time of an item's row; None if in doubt."""
        cdef const uint8_t *v = <const uint8_t *>PyBytes_AS_STRING(value)
        cdef const uint8_t *text
        cdef Py_ssize_t size = PyBytes_GET_SIZE(value) - SEAL, at
        cdef uint64_t envelope
        if size < ITEM_HEADER or v[0] != VALUE_FORMAT or v[1]:
            return None
        if not _is_sealed(key, value):
            return None
        v += SEAL
        envelope = v[4] | v[5] << 8 | v[6] << 16 | <uint64_t>v[7] << 24
        if envelope > <uint64_t>(size - ITEM_HEADER):
            return None
        at = ITEM_HEADER + <Py_ssize_t>envelope
        text = v + at
        if v[0] == EVENT:
            if _starts(text, size - at, self.event):
                return self._stamped(text, size - at - 1)
            if _starts(text, size - at, self.rest):
                return None
        size = <Py_ssize_t>envelope
        text = v + ITEM_HEADER
        if v[1] & ITEM_SALTED:
            text += ITEM_SALT
            size -= ITEM_SALT
        if size < 2 or text[0]:
            return None
        text += 1
        size -= 1
        if _starts(text, size, self.told):
            at = _offset(text, size, self.last_meta)
            if at < 0:
                return None
            text += at + PyBytes_GET_SIZE(self.last_meta)
            size -= at + PyBytes_GET_SIZE(self.last_meta) + 1
        elif _starts(text, size, self.first_meta):
            at = PyBytes_GET_SIZE(self.no_request)
            if size < at or not _starts(text + size - at, at, self.no_request):
                return None
            text += PyBytes_GET_SIZE(self.first_meta)
            size -= PyBytes_GET_SIZE(self.first_meta) + at
        else:
            return None
        return self._stamped(text, size - 1) if _starts(text, size, self.meta) else None

    cdef object _stamped(self, const uint8_t *text, Py_ssize_t size):
        """The number under the last key of an object if that key is ``stamp``; else None."""
        cdef Py_ssize_t length = PyBytes_GET_SIZE(self.stamp)
        cdef Py_ssize_t at = size - 1
        cdef object found
        if at < 0 or text[at] != c"}":
            return None
        while at > 0 and (c"0" <= text[at - 1] <= c"9" or text[at - 1] in b".eE+-"):
            at -= 1
        if at <= length or not _starts(text + at - length, length, self.stamp):
            return None
        if text[at - length - 1] != c"," and text[at - length - 1] != c"{":  # end of a longer key
            return None
        try:
            found = float(PyBytes_FromStringAndSize(<const char *>text + at, size - 1 - at))
        except ValueError:
            return None
        return found if isfinite(found) else None
