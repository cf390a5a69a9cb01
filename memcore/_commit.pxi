# The leader of group commit: one batch of calls in one transaction.

cdef enum:
    THEN_COMMIT = 0     # as in memcore.store.commit
    THEN_AGAIN = 1
    THEN_GROW = 2
    THEN_GROW_AHEAD = 3
    CLEAR_BATCHES = 256


@cython.auto_pickle(False)
cdef class BatchRunner:
    """Runs the calls of a batch in one transaction, for a leader.

    A subclass has ``map_full``, the error of a map without room; ``transaction``, the class of a
    write transaction; ``need_sound()``; ``_commit(txn, batch)``; ``_has_room(txn, batch)``;
    ``_is_refused(call, refusal)``; ``_follow(txn)``, for a batch that wrote nothing; and
    ``_typed(error)``, the error that a caller gets.
    """

    cdef public object env
    cdef public object txn              # that of the batch that runs
    cdef public object poison           # str: why nothing may be written any more
    cdef public bint unsynced
    cdef public int64_t batches, closures

    def __init__(self, env):
        self.env = env
        self.poison = ""

    def attempt(self, WriteBatch batch not None):
        """Run the batch once and commit it, or say what has to be done before it runs again.

        Returns:
            0: it is decided; 1: run what is left again; 2, 3: the same behind a larger map.

        Raises:
            WriterNeeded: it is hurried, and something has to be waited for.
        """
        cdef object env = self.env
        cdef object raw = None
        cdef object steady
        cdef RecordingTxn txn = None
        cdef bint wrote = False
        cdef int follows
        if self.poison:
            self.need_sound()
        if env.audit is not None:
            batch.refusal = env.audit.need_anchored(hurried=batch.hurried)
        if self.batches % CLEAR_BATCHES == CLEAR_BATCHES - 1 and env.raw is not None:
            env.raw.reader_check()  # what killed readers pin must not make the file grow for ever
        try:
            raw = env.begin_write(hurried=batch.hurried)
            txn = self.transaction(raw, env.redo is not None, env.vault, env.audit)
            self.txn = txn
            follows = self._run_calls(txn, batch, env.queue, env.redo, &wrote)
            if follows == THEN_COMMIT:
                if wrote:
                    if env.reserve is not None and not self._has_room(txn, batch):
                        return THEN_AGAIN
                    if env.redo is not None and env.is_tight(txn.size):
                        return THEN_GROW_AHEAD
                    self._commit(txn, batch)
                else:  # an interrupt makes it run again: there is nothing to be stored twice
                    self._follow(txn)
                    batch.decided = True
            return follows
        except self.map_full:
            return THEN_GROW
        finally:
            self.txn = None
            steady = env.steady_sync
            if steady is not None:
                steady.is_busy = False
            # From C: an interrupt at the first line of a method of ours would leave the lock to
            # whoever keeps the error. Nothing happens to a transaction that was committed; one that
            # a fork took from us is the parent's.
            if raw is not None and (txn is None or txn.raw is not None):
                raw.abort()
            if txn is not None:
                txn.drop()

    cdef int _run_calls(self, RecordingTxn txn, WriteBatch batch, object queue, object redo,
                        bint *wrote) except -1:
        """Run every call once, those that queue up meanwhile too; what follows, as ``attempt``.

        ``wrote``: whether there is anything to commit. A closure that wrote and then raised has
        spoilt the transaction: the others run again.
        """
        cdef Py_ssize_t index = 0, callbacks
        cdef WriteRequest call
        while True:
            while index < len(batch.calls):
                call = batch.calls[index]
                if call.done or (batch.refusal is not None
                                 and self._is_refused(call, batch.refusal)):
                    index += 1
                    continue
                txn.owner = call
                txn.dirty = False
                callbacks = len(txn.callbacks)
                self._run_one(txn, call, batch)
                if call.error is not None:
                    if isinstance(txn.failed, self.map_full):
                        wrote[0] = False
                        return THEN_GROW
                    call.error = self._typed(call.error)
                    if txn.dirty or txn.failed is not None:
                        call.done = True
                        wrote[0] = False
                        return THEN_AGAIN
                    del txn.callbacks[callbacks:]
                elif txn.dirty:
                    if redo is not None and txn.size > redo.capacity:
                        if wrote[0]:
                            batch.take_back(index)
                            wrote[0] = False
                            return THEN_AGAIN
                        batch.take_back(index + 1)  # it is committed alone, with a second flush
                    wrote[0] = True
                index += 1
            if not queue.waiting or batch.back or not queue.take_more(batch):
                if wrote[0] and txn.vault is not None:
                    txn.vault.note(txn)
                return THEN_COMMIT

    cdef int _run_one(self, RecordingTxn txn, WriteRequest call, WriteBatch batch) except -1:
        cdef object error
        try:
            call.result = call.fn(txn)
            if txn.audit is not None:
                txn.audit.settle()
            call.error = txn.failed  # set if the closure swallowed LMDB's refusal
        except Exception as error:
            call.error = error
        except BaseException as error:
            # An interrupt of this thread, unless this closure was running the last time as well.
            if call is batch.own or (batch.own is not None and not call.struck):
                call.struck = True
                raise
            call.error = error
            txn.dirty = True
        return 0
