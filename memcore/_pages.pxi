# Pages of LMDB's trees as stored in a file, validated without trusting a byte.

cdef enum:
    PAGE = 4096             # bytes, as in memcore.limits
    HALVES = 2049           # even offsets in a page, where a node may begin or end
    PAGE_HEADER = 16        # number u64, pad u16, flags u16, lower u16, upper u16
    NODE_HEADER = 8         # in a leaf: size u32, flags u16, key bytes u16; then key and value
    PAGE_KEY_MAX = 511
    IS_BRANCH = 1           # flags of a page
    IS_LEAF = 2
    IS_BIG = 1              # flag of a node: the value is on overflow pages

cdef enum:
    # Rules that a page may break, as in memcore.store.pages.
    RULE_SIZE = 1
    RULE_NUMBER = 2
    RULE_FLAGS = 3
    RULE_BOUNDS = 4
    RULE_NODES = 5
    RULE_KIND = 6
    RULE_TILING = 7
    RULE_KEYS = 8


cdef inline uint64_t _u64(const uint8_t *p) noexcept nogil:
    cdef uint64_t value = 0
    cdef int i
    for i in range(8):
        value |= <uint64_t>p[i] << 8 * i
    return value


cdef int _page_rule(const uint8_t *page, Py_ssize_t size, uint64_t number,
                    bint branch) noexcept nogil:
    """The first rule about its header or its nodes' offsets that a page breaks, or 0.

    The nodes tile the page from ``upper`` to its end: the offsets at which nodes begin, except the
    first, plus the end of the page are exactly those at which nodes end, each of them once.
    """
    cdef uint8_t begins[HALVES]
    cdef uint8_t ends[HALVES]
    cdef uint32_t lower, upper, at, node, kind, lowest = PAGE
    cdef uint64_t end
    if size < PAGE:
        return RULE_SIZE
    if _u64(page) != number:
        return RULE_NUMBER
    if _u16(page + 10) != (IS_BRANCH if branch else IS_LEAF):
        return RULE_FLAGS
    lower, upper = _u16(page + 12), _u16(page + 14)
    if not PAGE_HEADER < lower <= upper <= PAGE or lower & 1:
        return RULE_BOUNDS
    for at in range(PAGE_HEADER, lower, 2):
        node = _u16(page + at)
        lowest = node if node < lowest else lowest
        if node > PAGE - NODE_HEADER or node < upper or node & 1:
            return RULE_NODES
    if lowest != upper:
        return RULE_NODES
    memset(begins, 0, sizeof(begins))
    memset(ends, 0, sizeof(ends))
    for at in range(PAGE_HEADER, lower, 2):
        node = _u16(page + at)
        end = node + NODE_HEADER + _u16(page + node + 6)
        if not branch:
            kind = _u16(page + node + 4)
            if kind == IS_BIG:
                end += 8
            elif kind == 0:
                end += _u16(page + node) | <uint64_t>_u16(page + node + 2) << 16
            else:
                return RULE_KIND
        end += end & 1
        if end > PAGE or begins[node // 2] or ends[end // 2]:
            return RULE_TILING
        begins[node // 2] = 1
        ends[end // 2] = 1
    begins[upper // 2] = 0
    begins[PAGE // 2] = 1
    return RULE_TILING if memcmp(begins, ends, sizeof(begins)) else 0


cdef bint _key_before(const uint8_t *one, Py_ssize_t one_size,
                      const uint8_t *other, Py_ssize_t other_size) noexcept nogil:
    """Return True if one key sorts before another, bytewise."""
    cdef int order = memcmp(one, other, <size_t>(
        one_size if one_size < other_size else other_size))
    return order < 0 or (order == 0 and one_size < other_size)


cdef bint _keys_ascend(const uint8_t *page, bint branch, bint numbered,
                       const uint8_t *low, Py_ssize_t low_size,
                       const uint8_t *high, Py_ssize_t high_size) noexcept nogil:
    """Return True if a page's keys are legal, ascend and lie between their bounds (NULL: none).

    The first key of a branch is ignored: it covers all lower keys. The lowest key of a leaf may
    equal ``low``. ``numbered``: keys are 8-byte numbers, and so are the bounds.
    """
    cdef uint32_t lower = _u16(page + 12), node, at, size
    cdef const uint8_t *before = low
    cdef const uint8_t *key
    cdef Py_ssize_t before_size = low_size
    cdef bint first = True, equal
    for at in range(PAGE_HEADER + 2 * branch, lower, 2):
        node = _u16(page + at)
        size = _u16(page + node + 6)
        key = page + node + NODE_HEADER
        if size != 8 if numbered else not 0 < size <= PAGE_KEY_MAX:
            return False
        if before != NULL:
            equal = before_size == <Py_ssize_t>size and memcmp(before, key, size) == 0
            if equal and not (first and not branch):
                return False
            if not equal and not (
                    _u64(before) < _u64(key) if numbered
                    else _key_before(before, before_size, key, size)):
                return False
        before, before_size, first = key, size, False
    if high == NULL or first:
        return True
    return _u64(before) < _u64(high) if numbered else _key_before(
        before, before_size, high, high_size)


cdef list _leaf_rows(const uint8_t *p, type row):
    """The rows of a valid leaf."""
    cdef uint32_t lower = _u16(p + 12), at, node, size
    cdef uint64_t value_size, run
    cdef list found = []
    cdef bytes key, value
    for at in range(PAGE_HEADER, lower, 2):
        node = _u16(p + at)
        size = _u16(p + node + 6)
        value_size = _u16(p + node) | <uint64_t>_u16(p + node + 2) << 16
        key = PyBytes_FromStringAndSize(<const char *>p + node + NODE_HEADER, size)
        if _u16(p + node + 4):
            value, run = b"", _u64(p + node + NODE_HEADER + size)
        else:
            value, run = PyBytes_FromStringAndSize(
                <const char *>p + node + NODE_HEADER + size, <Py_ssize_t>value_size), 0
        found.append(memcore_named(row, (key, value, value_size, run)))
    return found


def page_rule(bytes page not None, uint64_t number, bint branch, *, bint numbered=False,
              bytes low=None, bytes high=None):
    """The number of the rule that a page of a tree breaks, or 0.

    Args:
        page: its bytes.
        number: the page number that its header must hold.
        branch: it is above the leaves.
        numbered: its keys are 8-byte little-endian numbers, as in the list of free pages.
        low, high: bounds of the keys, exclusive, except that the lowest key of a leaf may equal
            ``low``; None: unbounded. 8 bytes each if ``numbered``.
    """
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(page)
    cdef const uint8_t *lowest = NULL
    cdef const uint8_t *highest = NULL
    cdef int rule
    if numbered and (low is not None and len(low) != 8 or high is not None and len(high) != 8):
        raise ValueError("bounds of numbered keys have eight bytes")
    if low is not None:
        lowest = <const uint8_t *>PyBytes_AS_STRING(low)
    if high is not None:
        highest = <const uint8_t *>PyBytes_AS_STRING(high)
    rule = _page_rule(p, PyBytes_GET_SIZE(page), number, branch)
    if not rule and not _keys_ascend(
            p, branch, numbered, lowest, 0 if low is None else PyBytes_GET_SIZE(low), highest,
            0 if high is None else PyBytes_GET_SIZE(high)):
        rule = RULE_KEYS
    return rule


# --- a walk over the trees of a file --------------------------------------------------------------

cdef enum:
    # What a walk may find in addition to the rules of a page.
    RULE_OUTSIDE = 9        # a reference to a page that the file does not have
    RULE_TWICE = 10         # a page is referenced a second time
    RULE_RUN_OUTSIDE = 11   # a value extends past the file
    RULE_RUN_ENDS = 12      # the file ends before a value begins
    RULE_RUN_MARKED = 13    # a value's overflow run has a wrong header
    RULE_LIST_BYTES = 14    # a list of free pages is not a whole number of entries
    RULE_LIST_COUNT = 15    # it claims more entries than it has
    RULE_LIST_ORDER = 16
    RULE_LIST_OUTSIDE = 17
    RULE_TOO_LARGE = 18     # out of memory for the bitmap of its pages
    NO_MEMORY = -1
    NOT_READ = -2           # errno has the cause

cdef enum:
    METAS = 2               # meta pages, before the first page of a tree
    IS_RUN = 4              # flags of the first page of a large value
    MISSING_PAGES_MAX = 1 << 24     # as in memcore.store.datafile: LMDB need not have written them
    PAGE_COST = 40          # cost of reading a page, in nodes verified
    PAGES_AT_ONCE = 512     # pages judged between two signal checks
    BYTES_AT_ONCE = 1 << 20


cdef struct Place:
    # A pending page and the bounds of its keys: their offsets in ``_keys`` and their sizes in bytes
    # (-1: unbounded).
    uint64_t page
    size_t low
    size_t high
    size_t kept             # bytes of ``_keys`` in use before this place needed more
    int low_size
    int high_size
    int level               # levels below it
    bint lowest             # it is on the path to the lowest keys


cdef inline uint64_t _child_of(const uint8_t *node) noexcept nogil:
    """The page that a branch node points to."""
    return (_u16(node) | <uint64_t>_u16(node + 2) << 16 | <uint64_t>_u16(node + 4) << 32)


cdef Py_ssize_t _read_at(int fd, uint8_t *to, size_t size, uint64_t at) noexcept nogil:
    """Read up to ``size`` bytes, as many as the file has; -1: errno has the cause."""
    cdef Py_ssize_t got = pread(fd, to, size, <off_t>at)
    while got < 0 and errno.errno == errno.EINTR:
        got = pread(fd, to, size, <off_t>at)
    return got


@cython.auto_pickle(False)
cdef class TreeWalk:
    """A walk over the trees of a file: validates pages and records which are referenced.

    A partial walk begins with the path to the lowest keys, then goes on with the pages nearest to
    the root; a full walk is depth-first, so that few pages are pending at a time. Used by one
    thread.

    Args:
        fd: the file, open for reading.
        last_page: the last page according to the meta page.
        damage: ``damage(tree, rule, page, number, size)`` makes the exception to raise.
        row: the tuple type of a row: key, value, bytes of the value, and the page where the value
            begins if it is on overflow pages.

    ``rows`` counts the rows of the tree walked last, ``own`` the referenced pages of trees and of
    values, without those named in lists of free pages.
    """
    cdef int _fd
    cdef uint64_t _known            # pages that it has, or could have: one bit each
    cdef uint8_t *_bits             # bitmap of the referenced pages
    cdef object _damage
    cdef type _row
    cdef Place *_places
    cdef size_t _at                 # the first pending place, and the end of them
    cdef size_t _count
    cdef size_t _room
    cdef uint8_t *_keys
    cdef size_t _kept
    cdef size_t _keys_room
    cdef int _level                 # of the page read last
    cdef bint _numbered
    cdef bint _busy
    cdef bint _descends             # the leaf with the lowest keys is yet to be validated
    cdef uint64_t _looked
    cdef uint64_t _nodes_max
    cdef uint64_t _fault            # the page where a rule was broken, and the bytes requested
    cdef uint64_t _fault_size
    cdef int _errno
    cdef uint8_t _page[PAGE]        # the page read last
    cdef readonly uint64_t rows
    cdef readonly uint64_t own

    def __cinit__(self, int fd, uint64_t last_page, object damage, type row):
        cdef struct_stat status
        cdef uint64_t known
        if fstat(fd, &status):
            PyErr_SetFromErrno(OSError)
        self._fd, self._damage, self._row = fd, damage, row
        known = <uint64_t>status.st_size // PAGE + MISSING_PAGES_MAX
        self._known = min(known, last_page) + 1
        self._bits = <uint8_t *>calloc(self._known // 8 + 1, 1)
        if self._bits == NULL:
            self._fault_size = <uint64_t>status.st_size
            self._refuse(None, RULE_TOO_LARGE)

    def __dealloc__(self):
        free(self._bits)
        free(self._places)
        free(self._keys)

    cdef int _take(self, uint64_t first, uint64_t pages) noexcept nogil:
        """Record references to pages, each the first one; 0, or the rule that this breaks."""
        cdef uint64_t page
        self._fault = first
        if first < METAS or first >= self._known or pages > self._known - first:
            return RULE_OUTSIDE
        for page in range(first, first + pages):
            if self._bits[page >> 3] >> (page & 7) & 1:
                return RULE_TWICE
            self._bits[page >> 3] |= <uint8_t>(1 << (page & 7))
        return 0

    cdef int _run_rule(self, uint64_t first, uint64_t size) noexcept nogil:
        """The rule that an overflow run for a value of ``size`` bytes breaks, or 0.

        It may be longer: LMDB overwrites in place a longer value that the same transaction wrote.
        """
        cdef uint64_t pages = (PAGE_HEADER - 1 + size) // PAGE + 1, held
        cdef uint8_t header[PAGE_HEADER]
        cdef Py_ssize_t got
        cdef int rule
        self._fault, self._fault_size = first, size
        if first < METAS or first >= self._known or pages > self._known - first:
            return RULE_RUN_OUTSIDE
        got = _read_at(self._fd, header, PAGE_HEADER, first * PAGE)
        if got < 0:
            self._errno = errno.errno
            return NOT_READ
        self._looked += PAGE_COST
        if got < PAGE_HEADER:
            return RULE_RUN_ENDS
        held = _u16(header + 12) | <uint64_t>_u16(header + 14) << 16
        if (_u64(header) != first or _u16(header + 10) != IS_RUN or held < pages
                or held > self._known - first):
            memcpy(self._page, header, PAGE_HEADER)
            return RULE_RUN_MARKED
        rule = self._take(first, held)
        if rule:
            return rule
        self.own += held
        return 0

    cdef int _keep(self, const uint8_t *key, int size, size_t *at) noexcept nogil:
        """Store a copy of a bound and set its offset. ``key`` must not point into ``_keys``."""
        cdef size_t wanted
        cdef uint8_t *grown
        at[0] = self._kept
        if size <= 0:
            return 0
        if self._kept + <size_t>size > self._keys_room:
            wanted = 2 * self._keys_room + 16 * 1024
            grown = <uint8_t *>realloc(self._keys, wanted)
            if grown == NULL:
                return NO_MEMORY
            self._keys, self._keys_room = grown, wanted
        memcpy(self._keys + self._kept, key, <size_t>size)
        self._kept += <size_t>size
        return 0

    cdef int _wait(self, Place place) noexcept nogil:
        """Add a page to the pending ones."""
        cdef size_t wanted
        cdef Place *grown
        if self._count == self._room:
            wanted = 2 * self._room + 256
            grown = <Place *>realloc(self._places, wanted * sizeof(Place))
            if grown == NULL:
                return NO_MEMORY
            self._places, self._room = grown, wanted
        self._places[self._count] = place
        self._count += 1
        return 0

    cdef bint _waits(self) noexcept nogil:
        """Return True if a page is pending and the node limit is not reached.

        The path to the lowest keys is validated first and always: every opening reads the rows
        there, the file's format among them.
        """
        return self._at < self._count and (
            not self._nodes_max or self._looked < self._nodes_max or self._descends)

    cdef int _next_rule(self) noexcept nogil:
        """Validate the next pending page and add its children; 0, or the rule that it breaks.

        Precondition: ``_waits()``.
        """
        cdef Place place, child
        cdef const uint8_t *p = self._page
        cdef uint8_t low[PAGE_KEY_MAX]
        cdef uint8_t high[PAGE_KEY_MAX]
        cdef uint32_t lower, at, node
        cdef Py_ssize_t got
        cdef int rule
        cdef size_t last_bound
        if self._nodes_max:
            place = self._places[self._at]
            self._at += 1
        else:
            self._count -= 1
            place = self._places[self._count]
        # Copied: storing the children's bounds may overwrite these, or move them.
        if place.low_size > 0:
            memcpy(low, self._keys + place.low, <size_t>place.low_size)
        if place.high_size > 0:
            memcpy(high, self._keys + place.high, <size_t>place.high_size)
        if not self._nodes_max:
            self._kept = place.kept  # the places before it need no more than that
        self._level = place.level
        rule = self._take(place.page, 1)
        if rule:
            return rule
        self.own += 1
        got = _read_at(self._fd, self._page, PAGE, place.page * PAGE)
        if got < 0:
            self._errno = errno.errno
            return NOT_READ
        rule = _page_rule(p, got, place.page, place.level > 0)
        if rule:
            return rule
        if not _keys_ascend(p, place.level > 0, self._numbered,
                            NULL if place.low_size < 0 else low, place.low_size,
                            NULL if place.high_size < 0 else high, place.high_size):
            return RULE_KEYS
        lower = _u16(p + 12)
        self._looked += (lower - PAGE_HEADER) // 2 + PAGE_COST
        if place.level <= 0:
            self.rows += (lower - PAGE_HEADER) // 2
            self._descends = self._descends and not place.lowest
            return 0
        # Each child begins where the one before it ends; the outer bounds are the page's own.
        child.level, child.kept = place.level - 1, self._kept
        child.low_size = place.low_size
        if self._keep(low, place.low_size, &child.low):
            return NO_MEMORY
        if self._keep(high, place.high_size, &last_bound):
            return NO_MEMORY
        for at in range(PAGE_HEADER, lower, 2):
            child.page = _child_of(p + _u16(p + at))
            if at > PAGE_HEADER:
                child.kept = self._kept
            if at + 2 < lower:
                node = _u16(p + at + 2)
                child.high_size = _u16(p + node + 6)
                if self._keep(p + node + NODE_HEADER, child.high_size, &child.high):
                    return NO_MEMORY
            else:
                child.high, child.high_size = last_bound, place.high_size
            child.lowest = place.lowest and at == PAGE_HEADER
            if self._wait(child):
                return NO_MEMORY
            if child.lowest and self._nodes_max:  # next, before those that were pending
                self._places[self._count - 1] = self._places[self._at]
                self._places[self._at] = child
            child.low, child.low_size = child.high, child.high_size
        return 0

    cdef int _runs_rule(self) noexcept nogil:
        """The rule that an overflow run of the leaf read last breaks, or 0."""
        cdef const uint8_t *leaf = self._page
        cdef uint32_t at, node, size, lower = _u16(leaf + 12)
        cdef int rule
        for at in range(PAGE_HEADER, lower, 2):
            node = _u16(leaf + at)
            if _u16(leaf + node + 4):
                size = _u16(leaf + node + 6)
                rule = self._run_rule(_u64(leaf + node + NODE_HEADER + size),
                                      _u16(leaf + node) | <uint64_t>_u16(leaf + node + 2) << 16)
                if rule:
                    return rule
        return 0

    cdef int _begin(self, object tree, uint64_t nodes_max) except -1:
        """Start at the root of a tree: ``(name, root, depth, txnid)``."""
        cdef uint64_t root = tree[1], txnid = tree[3]
        cdef int depth = tree[2]
        cdef uint8_t bound[8]
        cdef Place place
        cdef int i
        if self._busy:
            raise RuntimeError("a walk is used by one thread")
        self._at = self._count = self._kept = 0
        self._looked, self._nodes_max, self.rows = 0, nodes_max, 0
        self._numbered = txnid > 0
        place.page, place.low, place.high, place.kept, place.level = root, 0, 0, 0, depth - 1
        place.low_size = place.high_size = -1
        place.lowest = self._descends = True
        if self._numbered:  # the keys are transaction ids from 1 to ``txnid``
            place.low_size = place.high_size = 8
            for i in range(8):
                bound[i] = i == 0
            if self._keep(bound, 8, &place.low):
                raise MemoryError
            for i in range(8):
                bound[i] = <uint8_t>(txnid + 1 >> 8 * i & 255)
            if self._keep(bound, 8, &place.high):
                raise MemoryError
        if self._wait(place):
            raise MemoryError
        return 0

    cdef int _refuse(self, object tree, int rule) except -1:
        """Raise for a broken rule."""
        cdef bytes page
        if rule == NO_MEMORY:
            raise MemoryError
        if rule == NOT_READ:
            errno.errno = self._errno
            PyErr_SetFromErrno(OSError)
        page = PyBytes_FromStringAndSize(<const char *>self._page, PAGE)
        raise self._damage(tree, rule, page, self._fault, self._fault_size)

    def judge(self, object tree, uint64_t nodes_max=0):
        """Validate a tree's pages and overflow runs, up to ``nodes_max`` nodes (0: all)."""
        cdef int rule = 0, turn = 1
        self._begin(tree, nodes_max)
        self._busy = True
        try:
            while turn and not rule:
                with nogil:
                    turn = 0
                    while not rule and turn < PAGES_AT_ONCE and self._waits():
                        turn += 1
                        rule = self._next_rule()
                        if not rule and self._level <= 0:
                            rule = self._runs_rule()
                PyErr_CheckSignals()
        finally:
            self._busy = False
        if rule:
            self._refuse(tree, rule)

    def leaves(self, object tree, uint64_t nodes_max=0):
        """Yield the rows of each leaf, up to ``nodes_max`` nodes (0: all), without their runs.

        A full walk yields the leaf with the highest keys first.
        """
        cdef int rule = 0
        cdef list rows
        self._begin(tree, nodes_max)
        while self._waits():
            if self._busy:
                raise RuntimeError("a walk is used by one thread")
            self._busy = True
            with nogil:
                self._level = 1
                while not rule and self._level > 0 and self._waits():
                    rule = self._next_rule()
            self._busy = False
            if rule:
                self._refuse(tree, rule)
            if self._level <= 0:
                rows = _leaf_rows(self._page, self._row)
                yield rows

    def run(self, uint64_t first, uint64_t size):
        """The file offset of a value of ``size`` bytes on the overflow run at page ``first``."""
        cdef int rule
        with nogil:
            rule = self._run_rule(first, size)
        if rule:
            self._refuse(None, rule)
        return first * PAGE + PAGE_HEADER

    def take_list(self, bytes data not None):
        """Record the pages of a free list, which are in descending order; returns their number."""
        cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(data)
        cdef uint64_t size = <uint64_t>PyBytes_GET_SIZE(data), count, page, before = UINT64_MAX, i
        cdef int rule = 0
        if size < 8 or size % 8:
            self._fault_size = size
            self._refuse(None, RULE_LIST_BYTES)
        count = _u64(p)
        if count > size // 8 - 1:
            self._fault, self._fault_size = count, size
            self._refuse(None, RULE_LIST_COUNT)
        for i in range(1, count + 1):
            page = _u64(p + 8 * i)
            if page > before:
                rule = RULE_LIST_ORDER
            elif page < METAS or page >= self._known:
                rule = RULE_LIST_OUTSIDE
            else:
                rule = self._take(page, 1)
            if rule:
                self._refuse(None, rule)
            before = page
        return count

    def referred(self):
        """The referenced pages, as a set."""
        cdef uint64_t byte, page
        cdef set found = set()
        for byte in range(self._known // 8 + 1):
            if not byte % BYTES_AT_ONCE:
                PyErr_CheckSignals()
            if self._bits[byte]:
                for page in range(8 * byte, 8 * byte + 8):
                    if self._bits[byte] >> (page & 7) & 1:
                        found.add(page)
        return found
