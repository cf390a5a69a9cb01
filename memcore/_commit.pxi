# Group commit: calls, the batch of one transaction, its leader, and the queue of waiting calls.
#
# Code here is atomic with respect to other threads and to interrupts as long as it runs no Python
# code: both can intervene only while the interpreter runs. Objects tracked by the garbage collector
# are allocated before the lines that must stay together, because a collection runs finalizers. (A
# build without the GIL would need critical sections around those lines.)

cdef class AppendingTxn


cdef enum:
    NEW = 0             # states of a call; memcore.store.commit repeats the last one
    QUEUED = 1
    TAKEN = 2
    LEAD = 3
    DONE = 4

cdef enum:
    THEN_COMMIT = 0     # next step after a batch has run
    THEN_AGAIN = 1
    THEN_GROW = 2
    THEN_GROW_AHEAD = 3
    CLEAR_BATCHES = 256

cdef enum:
    # Bounds for the space a batch takes, which must leave the reserve intact.
    ROOM_COMMIT = 32768     # bytes in addition to its rows: LMDB's free list, growth of the tree
    ROOM_NODE = 12          # node header, its slot in the page, padding to an even size
    ROOM_NODE_MAX = 2030    # a larger row has its value on overflow pages
    ROOM_RUN = 2            # leaves at both ends of a run of rows, shared with other rows
    ROOM_HALF_FULL = 2      # leaves that split are at worst half full
    ROOM_CROWDED = 14       # LMDB splits at the middle key: before large rows at worst 1/14 full
    ROOM_BRANCH = 8         # least leaves of a branch, with long keys and half full
    ROOM_FEW = 4            # up to this many rows are not looked up in the tree: each is a run

cdef enum:
    # Sizes of the reserve, as in memcore.limits.
    ROOM_BYTES = 1048576
    ROOM_BYTES_MIN = 262144
    ROOM_STEP_BYTES = 524288
    ROOM_STEP_BYTES_MIN = 262144
    RUN_PAGES = 129         # pages of the reserved run, a value that no deletion touches
    DEPTH_MAX = 32          # levels of a tree, as in memcore.store.datafile

cdef uint64_t FIGURE_MAX = <uint64_t>1 << 48    # more pages than any file has

cdef enum:
    META_FLAG = 8           # page flag of a meta page

cdef uint64_t META_MAGIC = 0xBEEFC0DE   # LMDB's; its format version, 1, follows

cdef double LOOK_SECONDS = 0.5      # how often a waiter checks its state even if not woken


@cython.final
@cython.auto_pickle(False)
cdef class WriteRequest:
    """One closure and its outcome.

    States: NEW -> QUEUED -> TAKEN -> DONE, or -> LEAD (its thread must run a batch) -> DONE. An
    interrupted batch returns its undecided calls to QUEUED.
    """

    cdef public object fn, result, error, future
    cdef public object waiter           # the lock its thread blocks on
    cdef public int state
    cdef public bint makes_room, done, struck, job
    cdef WriteRequest after             # the next call in the queue
    cdef WriteRequest wakes             # the call that its thread wakes once awake itself

    def __init__(self, fn, *, bint makes_room=False):
        self.fn = fn
        self.makes_room = makes_room

    cdef int _wake(self) except -1:
        if self.waiter is not None:
            try:
                self.waiter.release()
            except RuntimeError:
                pass  # already awake: it was given the lead before, or checked its state itself
        return 0


@cython.final
@cython.auto_pickle(False)
cdef class WriteBatch:
    """The calls of one transaction; ``back`` holds those deferred to the next one.

    ``decided``: every call has its result or error; a single call may be ``done`` earlier.
    ``hurried``: it runs on an event loop's thread, which never blocks and runs no others' calls.
    ``refusal``: the error for calls that free no space, which must not run now.
    """

    cdef public WriteRequest own
    cdef public object refusal
    cdef public list calls, back
    cdef public bint hurried, decided

    def __init__(self, WriteRequest own, *, bint hurried=False):
        self.own = own
        self.hurried = hurried
        self.calls = [] if own is None else [own]
        self.back = []

    def take_back(self, Py_ssize_t index):
        """Defer the calls from ``index`` on to the next batch."""
        if not 0 <= index <= len(self.calls):
            raise ValueError("there is no such call in the batch")
        self.calls, self.back = self.calls[:index], self.calls[index:] + self.back


cdef inline WriteRequest _request(object fn, bint makes_room):
    cdef WriteRequest call = WriteRequest.__new__(WriteRequest)
    call.fn = fn
    call.makes_room = makes_room
    return call


cdef inline WriteBatch _batch_of(WriteRequest own):
    cdef WriteBatch batch = WriteBatch.__new__(WriteBatch)
    batch.own = own
    batch.calls = [own]
    batch.back = []
    return batch


@cython.auto_pickle(False)
cdef class RequestQueue:
    """Queue of the calls waiting for a commit, and the lead: one thread at a time runs a batch.

    The first caller leads: it runs all waiting calls in one transaction on its own thread, then
    hands the lead to the next waiter. There is no timer: the next batch forms while this one is
    being flushed. An uncontended caller touches no lock.

    The callers of a decided batch wake each other in a chain: a leader that woke them all would
    make all of them contend for the GIL at the same time.

    ``run`` executes a batch, ``reading`` holds the ids of reading threads, ``most`` is the maximum
    number of calls in a batch. A subclass provides ``new_lock()``; ``writer_needed``, the error of
    a hurried batch that would have to wait, and ``_hand_over(batch)``, which handles it;
    ``_refuse(where)``, which raises; ``_wake_futures(calls)``; and ``_wake_writer()``, for calls
    without a thread of their own.
    """

    cdef public object _run
    cdef object reading
    cdef Py_ssize_t most
    cdef WriteRequest first, last       # waiting calls, linked by ``after``
    cdef public WriteBatch _batch       # the running batch
    cdef public bint _busy              # a thread leads, or has been assigned the lead
    cdef public bint _writer_leads      # that thread is the writer thread
    cdef unsigned long owner            # id of the leading thread

    def __init__(self, run, reading, Py_ssize_t most):
        self._run = run
        self.reading = reading
        self.most = most

    def reset(self):
        """Drop all calls: in a forked child no other thread is left."""
        cdef WriteRequest call = self.first, after
        self.first = self.last = None
        self._batch = None
        self._busy = self._writer_leads = False
        self.owner = 0
        while call is not None:  # one by one: freeing the whole chain would recurse deeply
            after, call.after = call.after, None
            call = after

    @property
    def waiting(self):
        """The waiting calls, in queue order."""
        cdef list found = []
        cdef WriteRequest call = self.first
        while call is not None:
            found.append(call)
            call = call.after
        return found

    @property
    def led_here(self):
        """True if this thread is running a batch."""
        return self._busy and self.owner == PyThread_get_thread_ident()

    cdef int _append(self, WriteRequest call) except -1:
        if self.last is None:
            self.first = call
        else:
            self.last.after = call
        self.last = call
        return 0

    cdef int _push_front(self, WriteRequest call) except -1:
        call.after = self.first
        self.first = call
        if self.last is None:
            self.last = call
        return 0

    cdef WriteRequest _pop(self):
        cdef WriteRequest call = self.first
        self.first = call.after
        call.after = None
        if self.first is None:
            self.last = None
        return call

    cdef int _unlink(self, WriteRequest call) except -1:
        """Take a call out of the queue, if it is there."""
        cdef WriteRequest before = None, each = self.first
        while each is not None and each is not call:
            before, each = each, each.after
        if each is None:
            return 0
        if before is None:
            self.first = call.after
        else:
            before.after = call.after
        if self.last is call:
            self.last = before
        call.after = None
        return 0

    cdef bint _lead_or_queue(self, WriteRequest call, unsigned long me, object waiter) except -1:
        """Take the lead or queue the call; False if queueing needs a ``waiter``."""
        if not self._busy:
            call.state = LEAD
            self.owner = me
            self._busy = True
            return True
        if waiter is None:
            return False
        call.waiter = waiter
        call.state = QUEUED
        self._append(call)
        return True

    cdef int _enter(self, WriteRequest call, unsigned long me) except -1:
        cdef object waiter = None
        while not self._lead_or_queue(call, me, waiter):
            if self.owner == me:
                self._refuse("inside a transaction")
            waiter = self.new_lock()
            waiter.acquire()
        return 0

    def call(self, fn, *, bint job=False, bint makes_room=False):
        """Run ``fn`` in a batch and return its result; with ``makes_room`` even on a full device.

        A ``job`` runs alone, without a transaction: it holds the lead, and thus the environment.

        Raises:
            InternalError: this thread is reading or leading.
            Whatever ``fn`` or the commit raises.
        """
        cdef unsigned long me = PyThread_get_thread_ident()
        cdef WriteRequest call, next_one
        cdef object error
        if self.reading and me in self.reading:
            self._refuse("inside a read")
        call = _request(fn, makes_room)
        call.job = job
        self._enter(call, me)
        try:
            if call.state != LEAD:
                self._await(call)
            if call.state == LEAD:
                self._lead(_batch_of(call), me)
        except BaseException:
            self._leave(call)
            raise
        finally:
            next_one, call.wakes = call.wakes, None
            if next_one is not None:
                next_one._wake()
        error = call.error
        if error is None:
            return call.result
        call.error = None  # its traceback references frames, and these may reference the call
        raise error

    cdef int _await(self, WriteRequest call) except -1:
        """Block until the call is done or has the lead."""
        while call.state < LEAD:
            call.waiter.acquire(True, LOOK_SECONDS)
        return 0

    cdef int _leave(self, WriteRequest call) except -1:
        """On an interrupt, leave the queue, wait for the outcome or pass on the lead."""
        cdef WriteBatch batch = WriteBatch(call)
        while call.state == TAKEN:
            try:
                self._await(call)
            except Exception:
                raise
            except BaseException:
                pass  # one interrupt is enough to raise
        if call.state == QUEUED:
            self._unlink(call)
            call.state = DONE
        elif call.state == LEAD:
            self._unlink(call)
            self._settle(batch)
        return 0

    def lead(self, WriteBatch batch not None):
        """Take the lead for the batch of one call and run it; False if the lead is taken."""
        cdef unsigned long me = PyThread_get_thread_ident()
        if self._busy:
            return False
        self._lead_or_queue(batch.own, me, None)
        self._lead(batch, me)
        return True

    cdef int _lead(self, WriteBatch batch, unsigned long me) except -1:
        cdef WriteRequest own = batch.own
        cdef object error
        self._batch = batch
        self.owner = me
        if own.waiter is not None:
            self._unlink(own)
        try:
            if own.job:
                own.result = own.fn(None)
            else:
                self._run(batch)
        except self.writer_needed:
            self._hand_over(batch)
        except Exception as error:
            own.error = error  # raised in the caller
        finally:
            self._settle(batch)
        return 0

    def take_more(self, WriteBatch batch not None):
        """Move waiting calls into the running batch; True if there were any."""
        return self._take_more(batch)

    cdef bint _take_more(self, WriteBatch batch) except -1:
        cdef WriteRequest call
        cdef Py_ssize_t before = len(batch.calls)
        if batch.hurried or batch.back:
            return False
        while self.first is not None and len(batch.calls) < self.most and not self.first.job:
            call = self._pop()
            call.state = TAKEN
            batch.calls.append(call)
        return len(batch.calls) > before

    def settle(self, WriteBatch batch not None):
        """Complete or requeue each call of the batch, then pass on the lead."""
        self._settle(batch)

    cdef int _settle(self, WriteBatch batch) except -1:
        cdef WriteRequest own = batch.own, call, woken = None, heir = None
        cdef list futures, back
        cdef Py_ssize_t at
        if own is not None and self.first is None and len(batch.calls) == 1 and not batch.back:
            own.state = DONE  # no one to wake, no one to lead next
            self.owner = 0
            self._busy = False
            self._batch = None
            return 0
        futures, back = [], []
        # From here until callers are woken nothing runs Python code.
        for at in range(len(batch.calls) - 1, -1, -1):
            call = batch.calls[at]
            if call is own:
                continue
            if not (batch.decided or call.done):
                back.append(call)
                continue
            call.state = DONE
            if call.future is not None:
                futures.append(call)
            else:
                call.wakes, woken = woken, call
        for at in range(len(batch.back) - 1, -1, -1):
            call = batch.back[at]
            call.state = QUEUED
            self._push_front(call)
        for call in back:
            call.state = QUEUED
            self._push_front(call)
        if own is not None:
            own.state = DONE
        self.owner = 0
        self._busy = self.first is not None
        self._batch = None  # its closures reference the handle, which must not outlive its users
        if self._busy and self.first.future is None:
            heir = self.first
            heir.state = LEAD
            heir._wake()
        elif self._busy:
            self._writer_leads = True
        if woken is not None:
            woken._wake()
        if self._writer_leads or futures:
            futures.reverse()
            self._wake_others(futures)
        return 0

    cdef int _wake_others(self, list futures) except -1:
        """Wake the writer thread if it leads, and the futures' loops, despite interrupts."""
        cdef object interrupt = None, error
        while True:
            try:
                if self._writer_leads:
                    self._wake_writer()
                if futures:
                    self._wake_futures(futures)
                break
            except Exception:
                raise
            except BaseException as error:  # waking again is harmless
                interrupt = error
        if interrupt is not None:
            raise interrupt
        return 0

    def claim(self, double patience_seconds):
        """Take the lead without a batch, until ``release``; None if that takes too long."""
        cdef unsigned long me = PyThread_get_thread_ident()
        cdef WriteRequest call = WriteRequest(None)
        call.job = True
        if self._busy and self.owner == me:
            return None
        self._enter(call, me)
        try:
            if call.state != LEAD:
                call.waiter.acquire(True, patience_seconds)
        except BaseException:
            self._leave(call)
            raise
        self._unlink(call)
        if call.state != LEAD:
            call.state = DONE
            return None
        self.owner = me
        return call

    def release(self, WriteRequest claimed not None):
        """Give back the lead of ``claim``."""
        self._settle(WriteBatch(claimed))

    def enqueue(self, WriteRequest call not None):
        """Queue a call that has a future; True if the writer thread must be woken to lead."""
        call.state = QUEUED
        self._append(call)
        if self._busy:
            return False
        self._busy = self._writer_leads = True
        return True

    def take_writer_lead(self):
        """Take the lead on the writer thread; False if it was not assigned the lead."""
        if not self._writer_leads:
            return False
        self._writer_leads = False
        self.owner = PyThread_get_thread_ident()
        return True


def file_size(int fd):
    """The size of an open file in bytes; unlike ``os.fstat`` it builds no result object.

    Raises:
        OSError: the system call failed.
    """
    cdef struct_stat status
    if fstat(fd, &status) < 0:
        PyErr_SetFromErrno(OSError)
    return <int64_t>status.st_size


# --- the space reserve for deletions --------------------------------------------------------------

def row_sizes(dict puts not None):
    """``(runs, inline, crowded, large)`` of rows, by key and size, as if each were its own run.

    ``memcore.store.commit.Rows`` defines these fields.
    """
    cdef int64_t runs = 0, inline = 0, large = 0
    _sizes_of(puts, &runs, &inline, &large)
    return runs, inline, inline if runs > ROOM_FEW else 0, large


cdef int _sizes_of(dict puts, int64_t *runs, int64_t *inline, int64_t *large) except -1:
    cdef Py_ssize_t at = 0
    cdef object key = None, size = None
    cdef int64_t taken, bytes_
    while memcore_next(puts, &at, key, size):
        taken = ROOM_NODE + PyBytes_GET_SIZE(<bytes?>key)
        bytes_ = size
        runs[0] += 1
        if taken + bytes_ <= ROOM_NODE_MAX:
            inline[0] += taken + bytes_
        else:
            inline[0] += taken + 8
            large[0] += (bytes_ + PAGE_HEADER + PAGE - 1) // PAGE
    return 0


def pages_for(rows not None, int64_t depth, int64_t pages):
    """The maximum number of pages that putting rows takes.

    Args:
        rows: as returned by ``row_sizes``.
        depth: of the tree before.
        pages: all pages of the tree before; bounds how many are copied.
    """
    cdef int64_t runs, inline, crowded, large
    runs, inline, crowded, large = rows
    return _pages_for(runs, inline, crowded, large, depth, pages)


cdef int64_t _pages_for(int64_t runs, int64_t inline, int64_t crowded, int64_t large,
                        int64_t depth, int64_t pages) noexcept:
    cdef int64_t copied = min(runs * (ROOM_RUN + max(depth - 1, 0)), pages + runs + depth)
    cdef int64_t filled = ROOM_HALF_FULL * (inline - crowded) + ROOM_CROWDED * crowded
    cdef int64_t leaves = (filled + PAGE - 1) // (PAGE - PAGE_HEADER)
    return copied + leaves + leaves // ROOM_BRANCH + large


cdef struct Figures:
    # Of the newest meta page, in pages. LMDB never reads its own page counts: in a damaged file
    # they may have any value, and are clamped to FIGURE_MAX.
    int64_t depth           # of the main tree
    int64_t pages           # of the main tree
    int64_t free_pages      # of the tree of the free list
    int64_t last_page


cdef inline int64_t _figure(uint64_t one, uint64_t other, uint64_t third) noexcept nogil:
    """The sum of three page counts, at most FIGURE_MAX."""
    if one > FIGURE_MAX or other > FIGURE_MAX or third > FIGURE_MAX:
        return FIGURE_MAX
    return <int64_t>min(one + other + third, <uint64_t>FIGURE_MAX)


cdef bint _figures_of(const uint8_t *head, Figures *found) noexcept nogil:
    """Read the newer of a file's two meta pages; False if either breaks a rule.

    ``memcore.store.datafile.parse_meta`` reports which one.
    """
    cdef const uint8_t *p
    cdef const uint8_t *newest = NULL
    cdef uint64_t txnid, last = 0
    cdef int page
    for page in range(2):
        p = head + page * PAGE
        if _u64(p) != <uint64_t>page or _u16(p + 10) != META_FLAG:
            return False
        p += PAGE_HEADER
        txnid = _u64(p + 128)
        if (_u64(p) != (META_MAGIC | <uint64_t>1 << 32) or <uint32_t>_u64(p + 24) != PAGE
                or (txnid and txnid & 1 != <uint64_t>page)):
            return False
        if newest == NULL or txnid > last:
            newest, last = p, txnid
    p = newest
    found.depth = min(<int64_t>_u16(p + 78), <int64_t>DEPTH_MAX)
    found.pages = _figure(_u64(p + 80), _u64(p + 88), _u64(p + 96))
    found.free_pages = _figure(_u64(p + 32), _u64(p + 40), _u64(p + 48))
    found.last_page = _figure(_u64(p + 120), 0, 0)
    return True


@cython.auto_pickle(False)
cdef class ReserveFields:
    """Space available beyond the reserve, as each commit checks it. Used under the write lock.

    A subclass provides ``_rows_in(raw, puts)``, the ``Rows`` of a batch by its places in the tree;
    ``_extend(size, more)``, which grows the file and returns by how much; ``_fill(start, end)``,
    which allocates the holes in a part of it and returns how many bytes are left;
    ``_is_pinned()``, whether one of ``pins`` keeps a reader; and
    ``_newest_figures()``, the figures if the look finds a rule of the meta pages broken.
    """

    cdef public int fd
    cdef public int64_t _left           # bytes that batches may take before the next measurement
    cdef public int64_t _next           # the transaction for which that holds
    cdef public int64_t measured        # measurements so far
    cdef int64_t _filled                # up to here, in bytes, the file has no holes
    cdef public int64_t admitted        # bytes that batches may have taken so far
    cdef public int64_t strangers       # transactions so far that took nobody knows how much
    cdef public object steady           # has ``pinned_room``, of its reader; None: there is none
    cdef public dict pins               # those that keep other readers, by number
    cdef Figures found                  # at the last look

    @property
    def figures(self):
        """``(depth, pages, free list's pages, last page)`` at the last look."""
        return self.found.depth, self.found.pages, self.found.free_pages, self.found.last_page

    def look(self):
        """Read the figures of the newest meta page.

        Raises:
            StorageError: the meta pages cannot be read.
        """
        self._look()

    cdef int _look(self) except -1:
        cdef uint8_t head[2 * PAGE]
        cdef uint64_t depth, pages, free_pages, last_page
        if (_read_at(self.fd, head, sizeof(head), 0) != <Py_ssize_t>sizeof(head)
                or not _figures_of(head, &self.found)):
            depth, pages, free_pages, last_page = self._newest_figures()
            self.found.depth = min(depth, <uint64_t>DEPTH_MAX)
            self.found.pages = _figure(pages, 0, 0)
            self.found.free_pages = _figure(free_pages, 0, 0)
            self.found.last_page = _figure(last_page, 0, 0)
        return 0

    def measure(self, int64_t cost):
        """Measure the space left, and grow the file so that a batch of this cost fits too."""
        self._measure(cost)

    cdef int _measure(self, int64_t cost) except -1:
        cdef int64_t size = file_size(self.fd), room, step, wanted, behind, have, grown, unused
        cdef int64_t missing = 0
        if size > self._filled:
            missing = self._fill(self._filled, size)
            if not missing:
                self._filled = size
        room = min(<int64_t>ROOM_BYTES,
                   ROOM_BYTES_MIN + 2 * PAGE * max(self.found.pages - RUN_PAGES, 0))
        step = ROOM_STEP_BYTES if room == ROOM_BYTES else ROOM_STEP_BYTES_MIN
        wanted = room + max(cost, step)
        behind = max(size - PAGE * (self.found.last_page + 1), 0) - missing
        unused = PAGE * max(self.found.last_page - 1 - self.found.pages - self.found.free_pages, 0)
        have = behind
        if have < wanted:
            have += self._usable(unused)
        if have < wanted:
            grown = self._extend(size, wanted - have)
            have += grown
            if have < wanted:
                # The device is full. What is pinned counts, too: a commit that fails lets it go.
                have = behind + grown + unused
            if not missing:
                self._filled = size + grown
        self._left = have - room
        self.measured += 1
        return 0

    cdef int64_t _usable(self, int64_t unused) except -1:
        """Bytes of the free list that LMDB may reuse, at least; ``unused``: all of it.

        A reader that pins a snapshot keeps the pages that were freed since.
        """
        cdef object held
        if self.steady is None:
            return 0 if self.pins and self._is_pinned() else unused
        held = self.steady.pinned_room
        if held[2] != self.strangers:
            return 0
        return max(<int64_t>0, min(unused, <int64_t>held[0] - (self.admitted - <int64_t>held[1])))

    def reserve(self, raw, int64_t txnid, dict puts not None):
        """Return True if a batch that put these rows, by key and size, leaves the reserve intact.

        The file is grown first, so that the reserve still exists after the batch has taken its
        share, whatever else fills the device meanwhile. The space left is known only if the
        previous commit went through here too: other processes write, and deletions use pages
        before they free any.
        """
        cdef int64_t runs = 0, inline = 0, crowded, large = 0, cost
        cdef bint is_known = txnid == self._next
        if not is_known:
            self._look()  # the tree may have changed as well
            self.strangers += 1
        _sizes_of(puts, &runs, &inline, &large)
        crowded = inline if runs > ROOM_FEW else 0
        cost = self._cost(runs, inline, crowded, large)
        if runs > ROOM_FEW and (cost > self._left or not is_known):
            runs, inline, crowded, large = self._rows_in(raw, puts)
            cost = self._cost(runs, inline, crowded, large)
        if cost > self._left or not is_known:
            if is_known:
                self._look()
            self._measure(cost)
            if cost > self._left:
                return False
        self._left -= cost
        self.admitted += cost
        self._next = txnid + 1
        return True

    cdef int64_t _cost(self, int64_t runs, int64_t inline, int64_t crowded, int64_t large) noexcept:
        """Bytes that a batch takes at most."""
        return ROOM_COMMIT + PAGE * _pages_for(
            runs, inline, crowded, large, self.found.depth, self.found.pages)


# --- the environment and its steady point, as a batch sees them -----------------------------------

@cython.auto_pickle(False)
cdef class SteadyFields:
    """The pinned steady point of a relaxed file, as each batch checks it.

    A subclass provides ``sync()``, ``remind()`` and ``hasten()``; and ``writer_needed``, the error
    of a hurried batch that would have to wait.
    """

    cdef public object _raw             # the reader that pins the snapshot; None: nothing is pinned
    cdef public object _thread          # makes the steady points
    cdef public bint is_busy            # a batch is running: the thread keeps the pin
    cdef public bint _timing            # a point is due once the interval has elapsed
    cdef public int64_t _made, _covered     # commits of this process; those covered by a point
    cdef public int64_t commits_hurry       # this many uncovered commits hurry the thread,
    cdef public int64_t commits_max         # this many make the leader create a point itself

    cdef int _ready(self, bint hurried) except -1:
        """Make a steady point if one is due before a batch begins its transaction. Needs the lead.

        Raises:
            MapMovedError: another process grew the map; follow it and retry.
            WriterNeeded: ``hurried``, and a point is due.
        """
        self.is_busy = True     # from here on the thread keeps the pin
        if self._raw is None or self._made - self._covered >= self.commits_max:
            if hurried:
                raise self.writer_needed
            self.sync()
        return 0

    cdef int _commit(self) except -1:
        """Count a commit, and start or hurry the thread that makes it durable. Needs the lead."""
        self._made += 1
        if not self._timing or self._thread is None:
            self.remind()
        elif self._made - self._covered == self.commits_hurry:
            self.hasten()
        return 0


@cython.auto_pickle(False)
cdef class EnvironmentFields:
    """The environment as a batch uses it.

    A subclass provides ``follow_map()``; ``map_moved``, the errors that call for it;
    ``_refuse_nameless()``, which raises; and
    ``writer_needed``, the error of a hurried batch that would have to wait.
    """

    cdef public object raw              # LMDB's environment; None: a forked child, or closed
    cdef public object begin            # begin(write=), which starts a transaction in it
    cdef public RequestQueue queue
    cdef public object redo, vault, audit, notifier
    cdef public ReserveFields reserve
    cdef public SteadyFields steady_sync
    cdef public bint waits              # a thread asks for the write lock, which others may hold
    cdef public bint has_name           # ``named`` had a name when it was opened
    cdef public int named               # descriptor of the file

    cdef int _need_name(self) except -1:
        """Refuse to commit to a file that was deleted or replaced: nobody would ever read it."""
        cdef struct_stat status
        if fstat(self.named, &status) == 0 and not status.st_nlink:
            self._refuse_nameless()
        return 0

    def begin_write(self, *, bint hurried=False):
        """Begin LMDB's write transaction; blocks while another process holds the write lock.

        Raises:
            WriterNeeded: ``hurried``, and it would have to wait for something first.
        """
        return self._begin_write(hurried)

    cdef object _begin_write(self, bint hurried):
        cdef object error
        while True:
            try:
                if self.raw is None:
                    self.begin().abort()  # a forked child opens here; a closed store raises
                if self.steady_sync is not None:
                    self.steady_sync._ready(hurried)
                self.waits = True
                try:
                    return self.begin(write=True)
                finally:
                    self.waits = False
            except self.map_moved as error:
                if hurried:
                    raise self.writer_needed from error
                self.follow_map()  # drops the pinned snapshot


@cython.auto_pickle(False)
cdef class BatchRunner:
    """Runs the calls of a batch in one transaction, commits it and decides their outcomes.

    A subclass provides ``map_full``, the error of a full map, and ``writer_needed``, that of a
    hurried batch; ``transaction``, the class of a write transaction; and the rare paths:
    ``need_sound()``, ``sync()``, ``_grow(follows, hurried)``, ``_can_free(error, hurried)``,
    ``_fail(batch, error)``, ``_has_room(txn, batch, measured)``, ``_is_refused(call, refusal)``,
    ``_typed(error)``, ``_stored_alone(error)``, ``_refuse_forked()`` and
    ``_need_stored(txn, raw, txnid, error)``.

    From LMDB's commit until the batch is decided, everything runs in a loop that an interrupt can
    only delay: what is stored must never be mistaken for something that has to run again.
    """

    cdef public EnvironmentFields env
    cdef public object txn              # the running batch's
    cdef public object poison           # str: why no more writes are allowed
    cdef public bint unsynced
    cdef public int64_t batches, closures

    def __init__(self, EnvironmentFields env not None):
        self.env = env
        self.poison = ""

    @cython.nonecheck(True)
    def run(self, WriteBatch batch not None):
        """Decide every call of the batch; raises interrupts, and WriterNeeded if it is hurried."""
        cdef bint again = True
        cdef int follows = THEN_AGAIN
        cdef object error
        try:
            while follows != THEN_COMMIT:
                try:
                    follows = self._attempt(batch)
                except Exception as error:
                    if not again or not self._can_free(error, hurried=batch.hurried):
                        raise
                    again = False
                    continue
                if follows >= THEN_GROW:
                    self._grow(follows, hurried=batch.hurried)
            if self.env.audit is not None and not batch.hurried:
                self.env.audit.anchor_if_due()
        except self.writer_needed:
            raise
        except Exception as error:
            self._fail(batch, error)

    @cython.nonecheck(True)
    cdef int _attempt(self, WriteBatch batch) except -1:
        """Run the batch once and commit it; returns the next step, a ``THEN_`` code.

        Raises:
            WriterNeeded: the batch is hurried and would have to wait for something.
        """
        cdef EnvironmentFields env = self.env
        cdef object raw = None
        cdef RecordingTxn txn = None
        cdef bint wrote = False
        cdef int follows
        if self.poison:
            self.need_sound()
        if env.audit is not None:
            batch.refusal = env.audit.need_anchored(hurried=batch.hurried)
        if self.batches % CLEAR_BATCHES == CLEAR_BATCHES - 1 and env.raw is not None:
            env.raw.reader_check()  # pages pinned by killed readers must not grow the file forever
        try:
            raw = env._begin_write(batch.hurried)
            txn = self.transaction(raw, env.redo is not None, env.vault, env.audit)
            txn.home = env.raw
            self.txn = txn
            follows = self._run_calls(txn, batch, env.redo, &wrote)
            if follows == THEN_COMMIT:
                if wrote:
                    if env.has_name:
                        env._need_name()
                    if env.reserve is not None and not self._fits(txn, batch):
                        return THEN_AGAIN
                    if env.redo is not None and env.is_tight(txn.size):
                        return THEN_GROW_AHEAD
                    self._commit(txn, batch)
                else:  # an interrupt makes it run again: nothing can be stored twice
                    self._run_callbacks(list(txn.callbacks))
                    batch.decided = True
            return follows
        except self.map_full:
            return THEN_GROW
        finally:
            self.txn = None
            if env.steady_sync is not None:
                env.steady_sync.is_busy = False
            # Abort from C: an interrupt at the first line of a Python method of ours would leave
            # the write lock held for as long as someone keeps the exception. Aborting a committed
            # transaction is a no-op; one lost to a fork belongs to the parent.
            if raw is not None and (txn is None or txn.raw is not None):
                raw.abort()
            if txn is not None:
                txn.drop()

    @cython.nonecheck(True)
    cdef int _run_calls(self, RecordingTxn txn, WriteBatch batch, object redo,
                        bint *wrote) except -1:
        """Run every call once, including those queued meanwhile; returns as ``_attempt`` does.

        ``wrote`` is set to whether there is anything to commit. A closure that wrote and then
        raised has spoilt the transaction: the others run again.
        """
        cdef RequestQueue queue = self.env.queue
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
                        batch.take_back(index + 1)  # committed alone, with a second flush
                    wrote[0] = True
                index += 1
            if queue.first is None or not queue._take_more(batch):
                if wrote[0] and txn.vault is not None:
                    txn.vault.note(txn)
                return THEN_COMMIT

    cdef int _run_one(self, RecordingTxn txn, WriteRequest call, WriteBatch batch) except -1:
        cdef object error
        try:
            call.result = call.fn(txn)
            if txn.audit is not None:
                txn.audit.settle()
            call.error = txn.failed  # set if the closure swallowed an error of LMDB's
        except Exception as error:
            call.error = error
        except BaseException as error:
            # An interrupt of this thread, unless this closure was also running the last time.
            if call is batch.own or (batch.own is not None and not call.struck):
                call.struck = True
                raise
            call.error = error
            txn.dirty = True
        return 0

    @cython.nonecheck(True)
    cdef bint _fits(self, RecordingTxn txn, WriteBatch batch) except -1:
        """Return True if the batch leaves the reserve for deletions intact, as ``_has_room``."""
        cdef WriteRequest call
        cdef bint measured = False
        if len(batch.calls) == 1 and txn.raw is not None:
            call = batch.calls[0]
            if not call.makes_room:
                if self.env.reserve.reserve(txn.raw, txn.number, txn.puts):
                    return True
                measured = True
        return self._has_room(txn, batch, measured=measured)

    @cython.nonecheck(True)
    def _commit(self, RecordingTxn txn not None, WriteBatch batch not None):
        """Record, commit, flush what the record does not cover, and decide the batch.

        Raises if nothing was stored (the batch stays undecided) or the outcome is unknown, or
        re-raises an interrupt (the batch is decided by then).
        """
        cdef EnvironmentFields env = self.env
        cdef object raw = txn.raw, redo = env.redo, txnid = txn.number
        cdef object error, interrupt = None
        cdef list callbacks = list(txn.callbacks)
        cdef bint recorded = redo is not None and txn.size <= redo.capacity
        cdef bint flushed = redo is None or recorded
        if raw is None:
            self._refuse_forked()
        try:
            if recorded:
                redo.write(txnid, txn.ops)
            raw.commit()
        except BaseException as error:
            self._need_stored(txn, raw, txnid, error)
            if not isinstance(error, Exception):
                interrupt = error
        while not batch.decided:
            try:
                if self.poison:
                    self.need_sound()  # another thread's flush may have failed meanwhile
                self.unsynced = redo is not None
                if env.steady_sync is not None:
                    env.steady_sync._commit()   # may count twice after an interrupt: harmless
                if not flushed:
                    self.sync()
                    flushed = True
                self._run_callbacks(callbacks)
                if txn.topics:
                    env.notifier.publish(txn.topics)
                self.batches += 1
                self.closures += len(batch.calls)
                batch.decided = True
            except Exception:
                raise
            except BaseException as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def run_callbacks(self, list callbacks not None):
        """Run and remove ``(owner, callback)`` pairs in order; an interrupted one runs again."""
        self._run_callbacks(callbacks)

    cdef int _run_callbacks(self, list callbacks) except -1:
        """Run each in order; a failure goes to its own caller, an interrupted one runs again."""
        cdef WriteRequest owner
        cdef object callback, error
        while callbacks:
            owner, callback = callbacks[0]
            try:
                if isinstance(callback, AppendingTxn):
                    (<AppendingTxn>callback)._take_over()
                else:
                    callback()
            except Exception as error:
                owner.error = self._stored_alone(error)
            del callbacks[0]
        return 0
