# Encoding and writing rows: the per-item work of an append, its index record and its head.

cdef object _dumps, _time
import time as _time
from orjson import dumps as _dumps

cdef enum:
    PUT_KEY_MAX = 511
    OP_BYTES = 6        # key length u16, value length u32
    INLINE_MAX = 2000   # bytes of key and value that always fit a leaf, without overflow pages


cdef class RecordingTxn


cdef inline int _put_row(object txn, bytes key, bytes value) except -1:
    """Put a row; without a Python method call if the transaction is the store's own."""
    if isinstance(txn, RecordingTxn):
        (<RecordingTxn>txn)._put(key, value)
    else:
        txn.put(key, value)
    return 0


cdef bytes _put_item(object txn, bytes rows, uint64_t seq, bytes body, int flags, uint64_t *chain,
                     uint32_t tokens, uint32_t created, int tag, bytes facts):
    """Put the row of an item, advance the prefix hash, and return the index record.

    A record is ``tokens u32 | created u32 | chain u64 | counter u16 | facts``.
    """
    cdef Py_ssize_t length = PyBytes_GET_SIZE(rows)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(facts)
    cdef bytes key = PyBytes_FromStringAndSize(NULL, length + 8)
    cdef bytes value, record
    cdef uint8_t *p = <uint8_t *>PyBytes_AS_STRING(key)
    cdef const uint8_t *sealed
    cdef uint64_t moved
    cdef int i
    memcpy(p, PyBytes_AS_STRING(rows), <size_t>length)
    for i in range(8):
        p[length + i] = <uint8_t>(seq >> (56 - 8 * i) & 0xFF)
    value = _seal(key, body, flags)
    sealed = <const uint8_t *>PyBytes_AS_STRING(value)
    if flags & REWRITTEN:
        if PyBytes_GET_SIZE(value) < SEAL + 8:
            raise ValueError("a rewritten row begins with the checksum of the one before")
        moved = _chained(chain[0], sealed + SEAL)
    else:
        moved = _chained(chain[0], sealed + 2)
    _put_row(txn, key, value)
    record = PyBytes_FromStringAndSize(NULL, RECORD_HEADER + size)
    p = <uint8_t *>PyBytes_AS_STRING(record)
    p = _put64(_put64(p, tokens | <uint64_t>created << 32), moved)
    p[0], p[1] = <uint8_t>(tag & 0xFF), <uint8_t>(tag >> 8 & 0xFF)
    memcpy(p + 2, PyBytes_AS_STRING(facts), <size_t>size)
    chain[0] = moved
    return record


# --- a transaction's record of what it writes -----------------------------------------------------

@cython.auto_pickle(False)
cdef class RecordingTxn:
    """The writing half of a write transaction, with a record of the rows that it put.

    A subclass provides ``_refuse_key(key)``, which raises, and ``ended``, which raises whatever its
    arguments: it replaces the methods of a transaction that has ended.
    """

    cdef public object raw          # LMDB's transaction, None after the end
    cdef public object get          # get(key) of the decrypted rows
    cdef public object vault, audit
    cdef public object raw_put, raw_delete
    cdef public dict ops            # the last operation of each key, if recording
    cdef public dict puts           # the size of each value that was put
    cdef public dict local          # state shared by the closures of the batch
    cdef public list callbacks      # (owner, callback) to run after the commit
    cdef public set topics          # of ``notify``; None if there are none
    cdef public object owner        # the running call
    cdef public object failed       # the error with which LMDB refused an operation
    cdef public int64_t size        # bytes of the record, or of the values put if not recording
    cdef public bint recording, dirty
    cdef public bint deleted        # rows were deleted, or changed in another way than by ``put``
    cdef public int64_t number      # LMDB's number of the transaction
    cdef object home                # the environment that it writes to

    def __init__(self, raw, bint recording, vault=None, recorder=None):
        self.raw = raw
        self.number = raw.id()
        self.vault = vault
        self.get = raw.get if vault is None else vault.reader(raw.get)
        self.raw_put = raw.put
        self.raw_delete = raw.delete
        self.recording = recording
        self.ops = {}
        self.puts = {}
        self.local = {}
        self.callbacks = []
        self.audit = None if recorder is None else recorder.begin(self, self.number)

    def drop(self):
        """Detach LMDB's transaction and return it; later use raises a typed error.

        What closures left here references this transaction in turn: with these cycles broken,
        everything is freed immediately, not by the next garbage collection.
        """
        cdef object raw = self.raw
        self.raw = None
        self.get = self.raw_put = self.raw_delete = self.ended
        self.audit = None
        self.local.clear()
        self.callbacks.clear()
        return raw

    cdef int _need_key(self, bytes key) except -1:
        cdef Py_ssize_t size = PyBytes_GET_SIZE(key)
        if not 0 < size <= PUT_KEY_MAX or not PyBytes_AS_STRING(key)[0]:
            self._refuse_key(key)
        return 0

    cdef int _need_bytes(self, object key, object value) except -1:
        if type(key) is not bytes or type(value) is not bytes:
            self.failed = TypeError("a row is a key and a value, both bytes")
            raise self.failed
        return 0

    def put(self, key, value):
        """Write one row."""
        self._need_bytes(key, value)
        self._put(key, value)

    cdef int _put(self, bytes key, bytes value) except -1:
        cdef object error, before
        self._need_key(key)
        if self.vault is not None:
            value = self.vault.seal(key, value)
        before = self.puts.get(key)
        try:
            if (before is not None and <Py_ssize_t>before > PyBytes_GET_SIZE(value)
                    and <Py_ssize_t>before > INLINE_MAX - PyBytes_GET_SIZE(key)):
                # LMDB would overwrite the longer value in place and keep all its pages.
                self.raw_delete(key)
            self.raw_put(key, value)
        except Exception as error:
            self.failed = error
            raise
        self.dirty = True
        self.puts[key] = PyBytes_GET_SIZE(value)
        if self.recording:
            self._record(key, value)
        else:
            self.size += PyBytes_GET_SIZE(value)
        if self.audit is not None:
            self.audit.note(key, value)
        return 0

    def put_own(self, bytes key not None, bytes value not None):
        """Write one of the store's own rows, whose keys no closure may touch."""
        self.raw_put(key, value)
        self.dirty = True
        self._record(key, value)

    def delete(self, key):
        """Remove one row; True if it existed."""
        cdef bint found
        cdef object error
        self._need_bytes(key, b"")
        self._need_key(key)
        try:
            found = self.raw_delete(key)
        except Exception as error:
            self.failed = error
            raise
        if found:
            self.dirty = self.deleted = True
            if self.recording:
                self._record(key, None)
            if self.audit is not None:
                self.audit.note(key, None)
        return found

    cdef int _record(self, bytes key, bytes value) except -1:
        """Record an operation as the last one of its key; a value of None deletes."""
        cdef object before = self.ops.get(key, False)
        if before is False:
            self.size += OP_BYTES + PyBytes_GET_SIZE(key)
        elif before is not None:
            self.size -= PyBytes_GET_SIZE(before)
        self.ops[key] = value
        if value is not None:
            self.size += PyBytes_GET_SIZE(value)
        return 0

    def record(self, bytes key not None, bytes value):
        """Record an operation that bypassed ``put`` and ``delete``."""
        self.deleted = True
        self._record(key, value)

    def spoil(self):
        """Mark the running closure as having written: if it fails, the others run again."""
        self.dirty = True

    def on_commit(self, callback):
        """Run ``callback`` after the commit, on this thread, before any caller wakes."""
        self.callbacks.append((self.owner, callback))

    def notify(self, bytes topic not None):
        """Wake the waiters of a topic after the commit."""
        if self.topics is None:
            self.topics = set()
        self.topics.add(topic)


# --- the redo record of a transaction -------------------------------------------------------------

cdef enum:
    REDO_HEADER = 28    # checksum u64, transaction u64, base u64, bytes of the operations u32
    META_IMAGE = 136    # what LMDB writes of a meta page


cdef int64_t _ops_bytes(list each) except -1:
    """The bytes that operations take: ``klen u16, vlen u32 (ffffffff: delete), key, value``."""
    cdef int64_t size = 0
    cdef object key, value
    for key, value in each:
        if type(key) is not bytes or not (value is None or type(value) is bytes):
            raise TypeError("an operation is a key and a value in bytes")
        if PyBytes_GET_SIZE(key) > 0xFFFF:
            raise ValueError("a key is too long")
        size += OP_BYTES + PyBytes_GET_SIZE(key)
        if value is not None:
            if PyBytes_GET_SIZE(value) >= 0xFFFFFFFF:
                raise ValueError("a value is too long")
            size += PyBytes_GET_SIZE(value)
    if size > 0xFFFFFFFF:
        raise ValueError("a redo record is too long")
    return size


cdef int _encode_ops(list each, uint8_t *p) except -1:
    cdef object key, value
    cdef Py_ssize_t keyed
    cdef uint64_t length
    for key, value in each:
        keyed = PyBytes_GET_SIZE(key)
        length = 0xFFFFFFFF if value is None else <uint64_t>PyBytes_GET_SIZE(value)
        p[0], p[1] = keyed & 0xFF, keyed >> 8 & 0xFF
        p[2], p[3] = length & 0xFF, length >> 8 & 0xFF
        p[4], p[5] = length >> 16 & 0xFF, length >> 24 & 0xFF
        memcpy(p + OP_BYTES, PyBytes_AS_STRING(key), <size_t>keyed)
        p += OP_BYTES + keyed
        if value is not None:
            memcpy(p, PyBytes_AS_STRING(value), <size_t>length)
            p += length
    return 0


def redo_record(dict ops not None, uint64_t txnid, uint64_t base, uint64_t seed):
    """A transaction's redo record: ``checksum u64, txnid u64, base u64, size u32, operations``.

    ``base`` is the hash of the meta page before it, ``seed`` that of the checksum, which covers all
    that follows it. All numbers are little-endian.
    """
    cdef list each = list(ops.items())  # a private copy: no other thread can change it meanwhile
    cdef int64_t size = _ops_bytes(each)
    cdef bytes record = PyBytes_FromStringAndSize(NULL, REDO_HEADER + size)
    cdef uint8_t *p = <uint8_t *>PyBytes_AS_STRING(record)
    _put64(_put64(p + 8, txnid), base)
    p[24], p[25], p[26], p[27] = size & 0xFF, size >> 8 & 0xFF, size >> 16 & 0xFF, size >> 24 & 0xFF
    _encode_ops(each, p + REDO_HEADER)
    _put64(p, xxh3_hash(p + 8, <size_t>(REDO_HEADER - 8 + size), seed))
    return record


def write_redo(int fd, dict ops not None, uint64_t txnid, uint64_t seed, int64_t slot,
               int64_t meta):
    """Write the redo record of a transaction at the offset ``slot``; return its header.

    ``meta`` is the offset of the meta image that it follows. The caller's commit flushes it.

    Raises:
        OSError: the device refused.
    """
    cdef uint8_t image[META_IMAGE]
    cdef Py_ssize_t got = _read_at(fd, image, sizeof(image), <uint64_t>meta)
    cdef bytes record
    if got < 0:
        PyErr_SetFromErrno(OSError)
    record = redo_record(ops, txnid, xxh3_hash(image, <size_t>got, 0), seed)
    _write_at(fd, record, slot)
    return record[:REDO_HEADER]


cdef int _write_at(int fd, bytes data, int64_t at) except -1:
    """Write all bytes at an offset of a file; signals are handled where they interrupt it."""
    cdef const char *p = PyBytes_AS_STRING(data)
    cdef size_t left = <size_t>PyBytes_GET_SIZE(data)
    cdef Py_ssize_t done
    while left:
        with nogil:
            done = pwrite(fd, p, left, <off_t>at)
        if done < 0:
            if errno.errno != errno.EINTR:
                PyErr_SetFromErrno(OSError)
            PyErr_CheckSignals()
            continue
        p, left, at = p + done, left - <size_t>done, at + done
    return 0


# --- the clock ------------------------------------------------------------------------------------

cdef int64_t CLOCK_US = <int64_t>1000000 << 32      # as in memcore.codec.values


def clock_us():
    """The system time in microseconds since 1970.

    It is read by way of the module ``time``, whose functions a caller's tests may replace.

    Raises:
        StorageError: the clock is before 1970 or after 2106, which no row can hold.
    """
    cdef object misset_clock, now_ns = _time.time_ns()
    cdef int overflow = 0
    cdef long long ns = PyLong_AsLongLongAndOverflow(now_ns, &overflow)
    if overflow or ns < 0 or ns // 1000 >= CLOCK_US:
        from memcore.codec.values import misset_clock  # which imports this module
        raise misset_clock(now_ns)
    return ns // 1000


# --- prepared items -------------------------------------------------------------------------------

cdef tuple _encode_plain(dict item, bytes seed, object options, bint screens, int classes):
    """``(facts, JSON)`` of an item that orjson can write without loss; None for any other.

    With ``screens``, None also for one that may hold sensitive data of the classes.
    """
    cdef int64_t nodes = 0
    cdef object facts, encoded
    if _scan_json(item, 0, &nodes):
        return None
    facts = pack_facts(item, seed)
    if facts is None:
        return None
    try:
        encoded = _dumps(item, None, options)
    except TypeError:
        return None
    # Since the item was encoded, no Python code ran, not even a finalizer: nothing was allocated
    # that the garbage collector tracks. So what is scanned is what is stored.
    if screens and _may_hold(item, classes, 0, 0):
        return None
    return facts, encoded


def encode_plain(dict item not None, bytes seed not None, object options):
    """``(facts, JSON)`` of an item that orjson can write without loss; None for any other.

    For those, later checks report what is wrong, if anything is.
    """
    return _encode_plain(item, seed, options, False, 0)


@cython.auto_pickle(False)
cdef class PreparedFields:
    """An item ready to be written; nothing about it can fail any more except its pairing."""

    cdef public object message      # dict
    cdef public bytes facts
    cdef public int64_t tokens
    cdef public bytes body          # the row's body, without the item JSON if ``payload`` has it
    cdef public int flags
    cdef public int64_t created_s
    cdef public object counter      # id of the counter that counted ``tokens``
    cdef public object payload      # the encoded item if it is too large for its row
    cdef public object staged       # the reference of the staged blob, once there is one
    cdef public object held         # goes to quarantine in its place: flags u8, JSON
    cdef public bytes content       # stands for the JSON in an idempotent request, or None
    cdef public int64_t was         # the seq of the stored item being rewritten, or 0

    def __init__(self, message, bytes facts not None, int64_t tokens, bytes body not None,
                 int flags, int64_t created_s, counter, bytes payload=None, *,
                 int64_t was=0):
        self.message = message
        self.facts = facts
        self.tokens = tokens
        self.body = body
        self.flags = flags
        self.created_s = created_s
        self.counter = counter
        self.payload = payload
        self.was = was


@cython.final
@cython.auto_pickle(False)
cdef class PlainEncoder:
    """Prepares plain items for writing.

    A plain item is a dict that orjson can write without loss in at most ``most`` bytes. ``cls`` is
    the class of a prepared item, ``seed`` keys the hashes of call ids, ``options`` are orjson's,
    and ``checked(counter.id, found)`` validates a counter's result: it returns the count or raises.
    """

    cdef type cls
    cdef bytes seed
    cdef object options, checked
    cdef Py_ssize_t most
    cdef readonly bint screens      # items are scanned for sensitive data
    cdef int classes
    cdef bytes clean                # envelope of an item in which nothing was found

    def __init__(self, type cls not None, bytes seed not None, options, checked, Py_ssize_t most):
        self.cls = cls
        self.seed = seed
        self.options = options
        self.checked = checked
        self.most = most

    def screen(self, int classes, bytes clean not None):
        """From now on, items that may hold data of the classes are not plain.

        All others get the envelope ``clean``.
        """
        self.classes = classes
        self.clean = clean
        self.screens = True

    @cython.nonecheck(True)
    def encode(self, list items not None, counter not None, uint64_t now_us,
               bytes envelope not None=b""):
        """Prepare the items up to the first that is not plain, each with this envelope."""
        cdef bytes beside = self.clean if self.screens else envelope
        cdef Py_ssize_t margin = PyBytes_GET_SIZE(beside)
        cdef list made = []
        cdef tuple found
        cdef type cls = self.cls
        cdef bytes facts, encoded, body
        cdef object item, tokens
        cdef object name = counter.id
        cdef object count = counter.count_message
        cdef Py_ssize_t at = 0
        cdef uint8_t *p
        cdef uint64_t head
        cdef PreparedFields one
        while at < len(items):  # re-read each time: a counter may run Python code, as may threads
            item = items[at]
            at += 1
            if type(item) is not dict:
                break
            found = _encode_plain(item, self.seed, self.options, self.screens, self.classes)
            if found is None:
                break
            facts, encoded = found
            if PyBytes_GET_SIZE(encoded) > self.most:
                break
            if not _is_readable(<dict>item, <uint8_t>PyBytes_AS_STRING(facts)[0]):
                break
            tokens = count(item, encoded)
            if type(tokens) is not int or tokens < 0 or tokens > <int64_t>TOKENS_MAX:
                tokens = self.checked(name, tokens)
            body = PyBytes_FromStringAndSize(
                NULL, ITEM_HEADER + margin + PyBytes_GET_SIZE(encoded))
            p = <uint8_t *>PyBytes_AS_STRING(body)
            head = <uint8_t>PyBytes_AS_STRING(facts)[0]
            if margin:
                head |= <uint64_t>1 << 8 | <uint64_t>margin << 32
            p = _put64(_put64(p, head), now_us)
            memcpy(p, PyBytes_AS_STRING(beside), <size_t>margin)
            memcpy(p + margin, PyBytes_AS_STRING(encoded), <size_t>PyBytes_GET_SIZE(encoded))
            one = cls.__new__(cls)
            one.message = item
            one.facts = facts
            one.tokens = tokens
            one.body = body
            one.flags = 0
            one.created_s = <int64_t>(now_us // 1000000)
            one.counter = name
            made.append(one)
            if not at % BREATH_ITEMS:
                _breathe()
        return made
