# A session inside a write transaction: the parts that every append reads and updates.

cdef enum:
    TAIL_RECORDS = 32       # records in a small index page, as in memcore.limits
    BLOCK_RECORDS = 1024    # records in a merged one, as there
    BREATH_ITEMS = 256      # items between two releases of the GIL
    HEAD_SEGMENTS = 16      # segments stored in the head itself, as in memcore.limits
    LEASED = 4              # a flag of a head, as in memcore.rows.head


cdef int _breathe() except -1:
    """Let other threads run and signals be handled: a loop in C would block both.

    An exception that a signal raises here ends the transaction, as anywhere in a closure.
    """
    with nogil:
        pass
    return PyErr_CheckSignals()


cdef inline tuple _ledger_parts(object found):
    """``(offset, ledger, tokens before, open before)`` of a named tuple."""
    if not isinstance(found, tuple) or len(<tuple>found) != 4:
        raise TypeError("a ledger comes with what lies before it")
    return <tuple>found


@cython.auto_pickle(False)
cdef class CacheFields:
    """The cached session as appends see it: head, ledger and tail page of the last commit.

    The fields guarded by ``lock`` are read and changed only while holding it.
    """

    cdef public object lock             # threading.RLock
    cdef public object place            # (scope, session)
    cdef public uint64_t scope, session
    cdef public bytes head_key, tombstone
    cdef public bytes item_rows         # key prefix of its items
    cdef public int tag                 # the counter's tag in index records
    cdef public object counter
    # Guarded by the lock.
    cdef public HeadFields head         # None: nothing is cached
    cdef public bytes head_bytes        # the row it was read from
    cdef public tuple tail              # (first seq, key, body) of the tail page; None: read it
    cdef public object ledger           # (offset, ledger, tokens before, open before), or None
    cdef public list older              # segments before those in the head
    cdef public object positions        # the history as positions; None: computed on demand
    # The head that transaction ``stored_at`` of the environment ``stored_in`` committed.
    cdef HeadFields stored_head
    cdef int64_t stored_at
    cdef object stored_in

    cdef bint _is_next(self, object txn) except -1:
        """Return True if nothing was written between the commit that ``head`` is of and ``txn``.

        The numbers of transactions are consecutive, whichever process commits, and ``txn`` itself
        must not have touched the session.
        """
        cdef RecordingTxn own
        if not isinstance(txn, RecordingTxn):
            return False
        own = <RecordingTxn>txn
        return (self.stored_head is self.head and own.number == self.stored_at + 1
                and own.home is not None and own.home is self.stored_in and not own.deleted
                and self.head_key not in own.puts and self.tombstone not in own.puts)

    @cython.nonecheck(True)
    cdef bint is_current(self, object txn) except -1:
        """Return True if the cache, including its ledger, matches what a transaction sees."""
        cdef tuple parts
        cdef Ledger ledger
        cdef Py_ssize_t offset
        if self.head is None or self.ledger is None:
            return False
        if not self._is_next(txn) and (txn.get(self.head_key) != self.head_bytes
                                       or txn.get(self.tombstone) is not None):
            return False
        parts = _ledger_parts(self.ledger)
        offset, ledger = parts[0], parts[1]
        if offset and ledger.n_unbound:
            return False
        return <uint64_t>(offset + ledger.base_n + ledger.n) == self.head.count

    def older_of(self, txn, HeadFields head not None):
        """The segments before those in the head; their blocks are read only if they changed."""
        return self._older_of(txn, head)

    cdef list _older_of(self, object txn, HeadFields head):
        cdef HeadFields known = self.head
        if (known is not None and known.epoch == head.epoch
                and known.link_session == head.link_session
                and known.link_block == head.link_block):
            return self.older
        return head.older_segments(txn, self.scope)


cdef inline int _follow_up(object txn, AppendingTxn draft) except -1:
    """Make a draft update its cache when the transaction is committed."""
    if isinstance(txn, RecordingTxn):
        (<RecordingTxn>txn).callbacks.append(((<RecordingTxn>txn).owner, draft))
    else:
        txn.on_commit(draft.take_over)
    return 0


@cython.auto_pickle(False)
cdef class AppendingTxn:
    """The appending half of a session inside one write transaction.

    A subclass opens what is not cached and provides the rare paths: ``_open(new_head, base)``,
    ``_rebase_on_whole()``, ``_refuse_orphan(item, at)``, ``_special_body(item)``,
    ``_put_held(seq, item)``, ``_append_records(first, records)``, ``_spill()``; and
    ``receipt_type``, the named tuple of a receipt. Its items have ``recount(counter)``.
    """

    cdef public object txn
    cdef public CacheFields log
    cdef public object seed
    cdef public HeadFields head         # a copy that this transaction changes
    cdef public object base             # the ledger below the overlay, as in ``CacheFields``
    cdef public Ledger overlay          # the transaction's own items
    cdef public list waiting            # (seq, item) of items not written yet
    cdef public tuple tail              # as in ``CacheFields``
    cdef public list older
    cdef public bytes packed            # the head's row once it is written
    cdef public bint is_rebased         # the cache cannot adopt it: closed after the change
    cdef public bint is_vacated         # the session's lease is no longer held

    def __init__(self, txn, CacheFields log not None, seed, HeadFields new_head=None,
                 base=None):
        self._begin(txn, log, seed, new_head, base)

    @cython.nonecheck(True)
    cdef int _begin(self, object txn, CacheFields log, object seed, HeadFields new_head,
                    object base) except -1:
        cdef object lock
        self.txn = txn
        self.log = log
        self.seed = seed
        self.waiting = []
        if new_head is None and base is None:
            lock = log.lock  # a forked child has another one
            lock.acquire()
            try:
                if log.is_current(txn):
                    self.head = log.head.changed()
                    self.base = log.ledger
                    self.tail = log.tail
            finally:
                lock.release()
        if self.head is None:
            self._open(new_head, base)
        self.overlay = Ledger(base=_ledger_parts(self.base)[1])
        return 0

    # --- contents ---------------------------------------------------------------------------------

    def receipt(self, count):
        """The receipt of a change that appended ``count`` items.

        Its fields are ``(last seq, revision, tokens, open calls, count)``.
        """
        return self._receipt(count)

    @cython.nonecheck(True)
    cdef object _receipt(self, object count):
        cdef list segments = self.head.segments
        cdef Py_ssize_t at = len(segments) - 1
        cdef object owner, lo, last = 0
        cdef tuple parts = _ledger_parts(self.base)
        if at >= 0:
            owner, lo, last = segments[at]
        return memcore_named(<type?>self.receipt_type, (
            last, self.head.revision, parts[2] + self.overlay.sums[self.overlay.n],
            parts[3] + self.overlay.n_open, count))

    # --- changes ----------------------------------------------------------------------------------

    def append(self, items, *, orphans):
        """Bind and queue items; returns the seq of the first.

        Raises:
            OrphanResultError: a result answers no call and ``orphans`` is ``"raise"``.
        """
        return self._append(items, orphans)

    @cython.nonecheck(True)
    cdef object _append(self, object items, object orphans):
        cdef HeadFields head = self.head
        cdef Ledger overlay = self.overlay
        cdef Py_ssize_t mark = overlay.base_n + overlay.n
        cdef int32_t unbound = overlay.n_unbound
        cdef tuple each = tuple(items)  # a private copy: no other thread can change it meanwhile
        cdef PreparedFields item, orphan = None
        cdef Py_ssize_t at = 0, place = 0
        cdef uint64_t seq
        for item in each:
            if item.counter != head.counter:
                item.recount(self.log.counter)  # may raise, so before anything is bound
        try:
            for item in each:
                if overlay._push_facts(item.facts, item.tokens) and orphan is None:
                    orphan, place = item, at
                at += 1
                if not at % BREATH_ITEMS:
                    _breathe()
        except BaseException:  # another change of the same batch may share the draft
            overlay.truncate(mark)
            raise
        if _ledger_parts(self.base)[0] and overlay.n_unbound != unbound:
            # A result without a call in the tail of the history may find it earlier: search it all.
            overlay.truncate(mark)
            self._rebase_on_whole()
            return self._append(each, orphans)
        if orphan is not None and orphans == "raise":
            overlay.truncate(mark)
            self._refuse_orphan(orphan, place)
        seq = head.next_seq
        head._extend(self.log.session, <uint64_t>at)
        for item in each:
            self.waiting.append((seq, item))
            seq += 1
        return seq - <uint64_t>at

    # --- writing ----------------------------------------------------------------------------------

    def flush(self):
        """Write the waiting items and their index records."""
        self._flush()

    @cython.nonecheck(True)
    cdef int _flush(self) except -1:
        cdef tuple waiting = tuple(self.waiting)
        cdef Py_ssize_t count = len(waiting)
        cdef uint64_t first, last
        cdef list records = []
        cdef object each, seq, item, start, key, before
        cdef bytes body
        if not count:
            return 0
        seq, item = waiting[0]
        first = seq
        last = first + <uint64_t>count - 1
        for each in waiting:
            seq, item = each
            records.append(self._put_item(seq, item))
            if not len(records) % BREATH_ITEMS:
                _breathe()
        # Most appends put their records into the tail page. One that begins a page or completes a
        # block takes the slow path.
        if (self.tail is not None and (first - 1) % TAIL_RECORDS
                and (first - 1) // TAIL_RECORDS == (last - 1) // TAIL_RECORDS
                and last % BLOCK_RECORDS):
            start, key, before = self.tail
            body = b"".join([before, *records])
            _put_row(self.txn, key, _seal(key, body, 0))
            self.tail = (start, key, body)
        else:
            self.tail = self._append_records(first, records)
        self.waiting = []
        return 0

    @cython.nonecheck(True)
    cdef bytes _put_item(self, uint64_t seq, PreparedFields item):
        """Write an item's row; returns its index record.

        Raises:
            ValueError: its tokens or its creation time in seconds do not fit the record.
        """
        cdef CacheFields log = self.log
        cdef HeadFields head = self.head
        cdef uint64_t chain = head.chain
        cdef bytes body = item.body
        cdef bytes record
        if item.payload is not None or self.txn.vault is not None:
            body = self._special_body(item)
        if not (0 <= item.tokens <= <int64_t>TOKENS_MAX
                and 0 <= item.created_s <= <int64_t>TOKENS_MAX):
            raise ValueError("an item's tokens and the second of its creation have 32 bits")
        if body is None or item.facts is None or log.item_rows is None:
            raise TypeError("an item's row has a key, a body and facts")
        record = _put_item(
            self.txn, log.item_rows, seq, body, item.flags, &chain,
            <uint32_t>item.tokens, <uint32_t>item.created_s, log.tag, item.facts)
        head.chain = chain
        if item.held is not None:
            self._put_held(seq, item)
        return record

    def finish(self, *, uint64_t now_ms, bint revised=True):
        """Write everything; increments the revision if the log changed, not only its view."""
        self._finish(now_ms, revised)

    @cython.nonecheck(True)
    cdef int _finish(self, uint64_t now_ms, bint revised) except -1:
        cdef HeadFields head = self.head
        cdef CacheFields log = self.log
        cdef tuple parts = _ledger_parts(self.base)
        self._flush()
        if self.is_vacated:
            head.flags &= <uint8_t>~LEASED
        head.revision += revised
        head.updated_ms = now_ms
        head.tokens = parts[2] + self.overlay.sums[self.overlay.n]
        head.open_calls = parts[3] + self.overlay.n_open
        if len(head.segments) > HEAD_SEGMENTS:
            self._spill()
        if self.packed is None:  # not earlier: a change that fails drops its callbacks
            _follow_up(self.txn, self)
        if log.head_key is None:
            raise TypeError("a head has a key")
        self.packed = _seal(log.head_key, head.pack(), 0)
        _put_row(self.txn, log.head_key, self.packed)
        self.older = log._older_of(self.txn, head)
        return 0

    def drop(self):
        """Keep the cache from adopting this transaction."""
        self.packed = None

    def take_over(self):
        """Update the cache to what was committed; idempotent by revision."""
        self._take_over()

    @cython.nonecheck(True)
    cdef int _take_over(self) except -1:
        cdef CacheFields log = self.log
        cdef Ledger ledger
        cdef object lock, home = None
        cdef int64_t number = 0
        if self.packed is None:
            return 0
        if isinstance(self.txn, RecordingTxn):
            number, home = (<RecordingTxn>self.txn).number, (<RecordingTxn>self.txn).home
        lock = log.lock
        lock.acquire()
        try:
            # A reader may have seen the commit first and updated the cache itself.
            if log.head is None or log.head.revision < self.head.revision:
                ledger = _ledger_parts(self.base)[1]
                ledger.fold(self.overlay)
                log.ledger = self.base
                log.tail = self.tail
                log.older = self.older
                log.positions = None
                log.head = log.stored_head = self.head
                log.head_bytes = self.packed
                log.stored_at, log.stored_in = number, home
        finally:
            lock.release()
        return 0


@cython.auto_pickle(False)
cdef class DraftFields:
    """Finds the drafts of sessions in a transaction.

    A subclass provides ``draft_type``, constructed from a transaction, a cached session and the
    seed; ``session_gone``, which the construction may raise; and ``closed``, which marks a place in
    the transaction whose draft was closed.
    """

    cdef public object seed

    def of(self, txn not None, CacheFields log not None):
        """The draft of a session in a transaction, None if the session is gone.

        Other handles have their own caches of the session but share one draft.
        """
        return self._of(txn, log)

    @cython.nonecheck(True)
    cdef object _of(self, object txn, CacheFields log):
        cdef dict local = txn.local
        cdef object place = log.place, draft = local.get(place)
        cdef type cls
        if draft is not None:
            return draft
        if local and (self.closed, place) in local:
            # The shared cache must not see this transaction's earlier changes: it may be aborted.
            log = log.twin()
        cls = self.draft_type
        draft = cls.__new__(cls)
        try:
            (<AppendingTxn?>draft)._begin(txn, log, self.seed, None, None)
        except self.session_gone:
            return None
        local[place] = draft
        return draft


@cython.auto_pickle(False)
cdef class RefFields:
    """A handle's reference to its session, as each change uses it.

    A subclass provides ``draft(txn, create, guarded)``, which looks up or creates a session that is
    not known yet, and checks the requested options and the lease. It is called if any of that is
    necessary, and every time if ``always_drafts``.
    """

    cdef public object engine
    cdef public object options          # requested for the session
    cdef public bint asks               # a head could contradict those
    cdef public bint always_drafts      # ``draft`` of the subclass checks more
    cdef public CacheFields log         # None: the session has not been located
    cdef public object due              # work to do before the first use, or None
    cdef public object lease            # the handle's token, or None
    cdef public object uses             # access statistics of the session, or None

    @cython.nonecheck(True)
    cdef object _draft(self, object txn, bint create, bint guarded):
        """The session's draft in a write transaction; None if none exists and none is created."""
        cdef DraftFields drafts
        cdef object draft
        if (self.log is not None and not self.asks and self.lease is None
                and not self.always_drafts):
            drafts = self.engine.drafts
            draft = drafts._of(txn, self.log)
            if draft is not None and not (
                    guarded and (<AppendingTxn?>draft).head.flags & LEASED):
                return draft
        return self.draft(txn, create=create, guarded=guarded)

    def begin_append(self, list items not None, type change not None):
        """Make the change that appends plain items to a known session.

        Args:
            items: the caller's own list.
            change: the subclass of ``AppendFields`` to make.

        Returns:
            The change; or, as the start of the slow path, ``(items encoded up to the first that is
            not plain, time in microseconds)``; or None if more has to be checked first.
        """
        cdef object engine = self.engine
        cdef CacheFields log = self.log
        cdef PlainEncoder encoder
        cdef AppendFields made
        cdef list encoded
        cdef object now_us
        if (log is None or log.head is None or self.asks or self.due is not None or not items
                or engine.size_guard is not None or engine.store.read_only):
            return None
        encoder = engine.encoder
        if engine.write_filter is not None and not encoder.screens:
            return None
        now_us = engine.now_us()
        encoded = encoder.encode(items, log.counter, now_us)
        if len(encoded) != len(items):
            return encoded, now_us
        made = change.__new__(change)
        made.ref = self
        made.items = encoded
        made.creates = True
        return made


@cython.auto_pickle(False)
cdef class ChangeFields:
    """Carries out a change of one session in a write transaction.

    A subclass provides what ``memcore.session.change.Change`` documents, and ``unchanged``, the
    type of a result after which nothing (more) is written.
    """

    cdef public RefFields ref

    @cython.nonecheck(True)
    def __call__(self, txn):
        """Carry the change out in a write transaction."""
        cdef RefFields ref = self.ref
        cdef object draft, mark = None, result, found
        draft = ref._draft(txn, self.creates, self.guarded)
        if draft is None:
            return self.missing()
        if not self.atomic:
            mark = draft.mark()
        try:
            result = self._run(<AppendingTxn?>draft)
        except BaseException:
            if mark is not None:
                draft.restore(mark)
            raise
        if type(result) is self.unchanged:
            return result[0]
        try:
            (<AppendingTxn>draft)._finish(<uint64_t>ref.engine.now_us() // 1000, self.revised)
            if ref.uses is not None:
                ref.uses.write(txn, draft.log.place)
            found = self._done(<AppendingTxn>draft, result)
            if (<AppendingTxn>draft).is_rebased:
                ref.engine.drafts.close(txn, draft)
        except BaseException:
            txn.spoil()  # other calls of the batch share this transaction's draft of the session
            raise
        return found

    cdef object _run(self, AppendingTxn draft):
        return self.run(draft)

    cdef object _done(self, AppendingTxn draft, object result):
        return self.done(draft, result)


@cython.auto_pickle(False)
cdef class AppendFields(ChangeFields):
    """Appends encoded items. ``run`` and ``done`` of a subclass handle the rare options."""

    cdef public object items            # prepared
    cdef public object expected_revision
    cdef public object request          # idempotency key: carried out once; None: not idempotent
    cdef public bint creates

    @cython.nonecheck(True)
    cdef object _run(self, AppendingTxn draft):
        if self.request is not None or self.expected_revision is not None:
            return self.run(draft)
        draft._append(self.items, self.ref.options.orphans)
        return None

    cdef object _done(self, AppendingTxn draft, object result):
        if self.request is not None:
            return self.done(draft, result)
        return draft._receipt(len(self.items))
