# --- literal names in a text (Aho-Corasick) -------------------------------------------------------

from cpython.unicode cimport PyUnicode_READ_CHAR


cdef extern from "Python.h":
    Py_UCS4 Py_UNICODE_TOLOWER(Py_UCS4) nogil
    bint Py_UNICODE_ISALNUM(Py_UCS4) nogil

cdef enum:
    SPELLED_BELOW = 0x2E80      # from here on, scripts put no spaces between words


cdef inline bint _spells(uint32_t c) noexcept nogil:
    """Return True for a character of a spaced script: no name may begin or end between two."""
    return c < SPELLED_BELOW and Py_UNICODE_ISALNUM(c)


@cython.final
@cython.auto_pickle(False)
@cython.no_gc
cdef class Literals:
    """Finds all of several names in one pass over a text.

    Args:
        names: at least one, none empty.
        ignore_case: compare letters case-insensitively.
    """

    cdef bint ignore_case
    cdef int32_t *fail          # the node of the longest proper suffix
    cdef int32_t *length        # length of the name that ends at a node, 0 if none does
    cdef int32_t *shorter       # the next node along `fail` where a name ends, 0 if none
    cdef uint64_t *edges        # hash table, open addressing: node << 21 | code point, plus 1
    cdef int32_t *target
    cdef uint64_t mask
    cdef int32_t nodes
    cdef uint8_t begins[8192]   # bitmap of the code points below 65,536 that begin a name

    def __cinit__(self, list names not None, *, bint ignore_case=True):
        cdef Py_ssize_t total = 1
        cdef uint64_t room = 16
        cdef str name
        for name in names:
            total += len(name)
        if total > 1 << 24:
            raise ValueError("the names have more than 16 million characters")
        while room < 2 * <uint64_t>total:
            room *= 2
        self.ignore_case = ignore_case
        self.mask = room - 1
        self.nodes = 1
        self.fail = <int32_t *>calloc(<size_t>total, sizeof(int32_t))
        self.length = <int32_t *>calloc(<size_t>total, sizeof(int32_t))
        self.shorter = <int32_t *>calloc(<size_t>total, sizeof(int32_t))
        self.edges = <uint64_t *>calloc(<size_t>room, sizeof(uint64_t))
        self.target = <int32_t *>calloc(<size_t>room, sizeof(int32_t))
        if not (self.fail and self.length and self.shorter and self.edges and self.target):
            raise MemoryError
        for name in names:
            if not name:
                raise ValueError("a name is empty")
            self._add(name)
        self._link(names)

    def __dealloc__(self):
        free(self.fail)
        free(self.length)
        free(self.shorter)
        free(self.edges)
        free(self.target)

    cdef inline uint32_t _folded(self, uint32_t c) noexcept nogil:
        return Py_UNICODE_TOLOWER(c) if self.ignore_case else c

    cdef int32_t _go(self, int32_t node, uint32_t c) noexcept nogil:
        """The target node of an edge, -1 if there is none."""
        cdef uint64_t edge = (<uint64_t>node << 21 | c) + 1
        cdef uint64_t at = edge * <uint64_t>0x9E3779B97F4A7C15 >> 20 & self.mask
        while self.edges[at]:
            if self.edges[at] == edge:
                return self.target[at]
            at = at + 1 & self.mask
        return -1

    cdef void _add(self, str name):
        cdef Py_ssize_t i
        cdef int32_t node = 0, below
        cdef uint32_t c
        cdef uint64_t edge, at
        for i in range(len(name)):
            c = self._folded(PyUnicode_READ_CHAR(name, i))
            if i == 0 and c < 65536:
                self.begins[c >> 3] |= <uint8_t>(1 << (c & 7))
            below = self._go(node, c)
            if below < 0:
                edge = (<uint64_t>node << 21 | c) + 1
                at = edge * <uint64_t>0x9E3779B97F4A7C15 >> 20 & self.mask
                while self.edges[at]:
                    at = at + 1 & self.mask
                below = self.nodes
                self.edges[at] = edge
                self.target[at] = below
                self.nodes += 1
            node = below
        self.length[node] = <int32_t>len(name)

    cdef void _link(self, list names):
        """Compute the failure links of all nodes, breadth-first."""
        cdef list level = [], deeper
        cdef int32_t node, below, suffix, found
        cdef Py_ssize_t depth = 0
        cdef uint32_t c
        cdef str name
        cdef set seen
        for name in names:
            level.append((0, name))
        while level:
            deeper = []
            seen = set()
            for node, name in level:
                c = self._folded(PyUnicode_READ_CHAR(name, depth))
                below = self._go(node, c)
                if len(name) > depth + 1:
                    deeper.append((below, name))
                if node == 0 or below in seen:
                    continue
                seen.add(below)
                suffix = self.fail[node]
                found = self._go(suffix, c)
                while found < 0 and suffix:
                    suffix = self.fail[suffix]
                    found = self._go(suffix, c)
                self.fail[below] = found if found > 0 else 0
                suffix = self.fail[below]
                self.shorter[below] = suffix if self.length[suffix] else self.shorter[suffix]
            level = deeper
            depth += 1

    def find(self, str text not None):
        """``(start, stop)`` of the names in a text, in order; overlapping ones are merged."""
        cdef const void *data = PyUnicode_DATA(text)
        cdef int kind = PyUnicode_KIND(text)
        cdef Py_ssize_t n = PyUnicode_GET_LENGTH(text), i, start, first, stop
        cdef int32_t node = 0, below, end
        cdef uint32_t c, next_
        cdef list found = []
        for i in range(n):
            c = self._folded(_read(data, kind, i))
            if node == 0 and c < 65536 and not self.begins[c >> 3] >> (c & 7) & 1:
                continue
            below = self._go(node, c)
            while below < 0 and node:
                node = self.fail[node]
                below = self._go(node, c)
            node = below if below > 0 else 0
            end = node if self.length[node] else self.shorter[node]
            while end:
                start = i + 1 - self.length[end]
                next_ = _read(data, kind, i + 1) if i + 1 < n else 0
                if not (_spells(next_) and _spells(_read(data, kind, i))) and not (
                    start and _spells(_read(data, kind, start - 1))
                    and _spells(_read(data, kind, start))
                ):
                    while found:
                        first, stop = found[len(found) - 1]
                        if stop <= start:
                            break
                        start = min(start, first)
                        found.pop()
                    found.append((start, i + 1))
                    break
                end = self.shorter[end]
        return found


cdef inline uint32_t _read(const void *data, int kind, Py_ssize_t i) noexcept nogil:
    if kind == 1:
        return (<const uint8_t *>data)[i]
    if kind == 2:
        return (<const uint16_t *>data)[i]
    return (<const uint32_t *>data)[i]
