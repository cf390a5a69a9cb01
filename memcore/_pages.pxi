# Pages of LMDB's trees as they lie in a file, judged without trusting a byte.

cdef enum:
    PAGE = 4096             # bytes, as in memcore.limits
    HALVES = 2049           # places in a page where a node may begin or end
    PAGE_HEADER = 16        # number u64, pad u16, flags u16, lower u16, upper u16
    NODE_HEADER = 8         # of a leaf: size u32, flags u16, key bytes u16; then key and value
    PAGE_KEY_MAX = 511
    IS_BRANCH = 1           # flags of a page
    IS_LEAF = 2
    IS_BIG = 1              # flag of a node: the value has pages of its own

cdef enum:
    # The rules that a page may break, as in memcore.store.pages.
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
    """The first rule of its header and its nodes' places that a page breaks, or 0.

    The nodes tile the page from ``upper`` to its end: the places at which nodes begin, but for the
    first, and the end of the page are those at which nodes end, each of them once.
    """
    cdef uint8_t begins[HALVES]
    cdef uint8_t ends[HALVES]
    cdef uint32_t lower, upper, at, node, kind, lowest = PAGE
    cdef int slot
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
    for slot in range(HALVES):
        if begins[slot] != ends[slot]:
            return RULE_TILING
    return 0


cdef bint _key_before(const uint8_t *one, Py_ssize_t one_size,
                      const uint8_t *other, Py_ssize_t other_size) noexcept nogil:
    """Whether a key of bytes comes before another."""
    cdef int order = memcmp(one, other, <size_t>(
        one_size if one_size < other_size else other_size))
    return order < 0 or (order == 0 and one_size < other_size)


cdef bint _keys_ascend(const uint8_t *page, bint branch, bint numbered, bytes low,
                       bytes high) noexcept:
    """Whether the keys of a page are legal, ascend, and lie between their bounds.

    The first key of a branch stands for all that are lower. The lowest key of a leaf may be ``low``
    itself. ``numbered``: keys are numbers of eight bytes, and the bounds bear them so.
    """
    cdef uint32_t lower = _u16(page + 12), node, at, size
    cdef const uint8_t *before = NULL
    cdef const uint8_t *key
    cdef Py_ssize_t before_size = 0
    cdef const uint8_t *last
    cdef Py_ssize_t last_size
    cdef bint first = True, equal
    if low is not None:
        before, before_size = <const uint8_t *>PyBytes_AS_STRING(low), PyBytes_GET_SIZE(low)
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
    if high is None or first:
        return True
    last, last_size = <const uint8_t *>PyBytes_AS_STRING(high), PyBytes_GET_SIZE(high)
    return _u64(before) < _u64(last) if numbered else _key_before(
        before, before_size, last, last_size)


def judge_page(bytes page not None, uint64_t number, bint branch, bint numbered, bytes low,
               bytes high, type row not None, bint runs_only):
    """The nodes of a page of a tree, or the number of the rule that it breaks.

    Args:
        page: its bytes.
        number: the one that it must bear.
        branch: it lies above the leaves.
        numbered: its keys are numbers of eight bytes, little-endian, as in the list of free pages.
        low, high: the keys lie between these, of which the lowest of a leaf may be ``low``; None:
            there is no such bound. Of eight bytes if ``numbered``.
        row: the tuple that a row of a leaf becomes: key, value, bytes of the value, and the page
            where it begins if it has pages of its own.
        runs_only: only rows whose values have pages of their own.

    Returns:
        ``(number of nodes, children, keys)`` of a branch, its first key left out;
        ``(number of nodes, rows)`` of a leaf.
    """
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(page)
    cdef int rule
    cdef uint32_t lower, at, node, size, kind
    cdef uint64_t value_size, run
    cdef list pages = [], found = []
    cdef bytes key
    if numbered and (low is not None and len(low) != 8 or high is not None and len(high) != 8):
        raise ValueError("bounds of numbered keys have eight bytes")
    rule = _page_rule(p, PyBytes_GET_SIZE(page), number, branch)
    if rule:
        return rule
    if not _keys_ascend(p, branch, numbered, low, high):
        return RULE_KEYS
    lower = _u16(p + 12)
    for at in range(PAGE_HEADER, lower, 2):
        node = _u16(p + at)
        size = _u16(p + node + 6)
        if branch:
            pages.append(_u16(p + node) | <uint64_t>_u16(p + node + 2) << 16
                         | <uint64_t>_u16(p + node + 4) << 32)
            if at > PAGE_HEADER:
                found.append(page[node + NODE_HEADER:node + NODE_HEADER + size])
            continue
        kind = _u16(p + node + 4)
        if runs_only and not kind:
            continue
        key = page[node + NODE_HEADER:node + NODE_HEADER + size]
        value_size = _u16(p + node) | <uint64_t>_u16(p + node + 2) << 16
        node += NODE_HEADER + size
        if kind:
            run = _u64(p + node)
            found.append(tuple.__new__(row, (key, b"", value_size, run)))
        else:
            found.append(tuple.__new__(
                row, (key, page[node:node + <Py_ssize_t>value_size], value_size, 0)))
    if branch:
        return (lower - PAGE_HEADER) // 2, pages, found
    return (lower - PAGE_HEADER) // 2, found
