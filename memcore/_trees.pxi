# --- trees of Python objects: copying and comparing -----------------------------------------------
#
# A checkpoint saver keeps a private copy of what it was given and compares the next value with it:
# if equal, nothing has to be serialised again; changes made in place meanwhile are detected. The
# objects' own Python code never runs.


cdef extern from "Python.h":
    int PyGC_Disable()
    int PyGC_Enable()
    object PyObject_GenericGetAttr(object, object)
    int PyObject_GenericSetAttr(object, object, object) except -1
    object PyObject_GenericGetDict(object, void *)
    int PyObject_GenericSetDict(object, object, void *) except -1
    int PyUnicode_Compare(object, object) except? -1
    int PySet_Contains(object, object) except -1
    ctypedef struct PyTypeObject:
        object (*tp_alloc)(PyTypeObject *, Py_ssize_t)
    ctypedef struct PyMemberDescrObject:
        PyMemberDef *d_member
    PyTypeObject PyMemberDescr_Type
    PyTypeObject *Py_TYPE(object)


cdef extern from "structmember.h":
    ctypedef struct PyMemberDef:
        int type
        Py_ssize_t offset
    int T_OBJECT_EX


cdef enum:
    # Sorts of types, as returned by the function passed to Trees.
    TREE_OPAQUE = 0     # unknown: never copied, never the same
    TREE_LEAF = 1       # immutable: shared by copies, the same if identical
    TREE_OBJECT = 2     # fully described by its __dict__ and the named slots
    TREE_TUPLE = 3      # a subclass of tuple without further state

cdef enum:
    TREE_DEPTH_MAX = 200    # anything deeper is opaque


cdef inline bint _is_atom(object value) noexcept:
    """Return True for the immutable types that compare without running foreign code."""
    cdef type kind = type(value)
    return (
        value is None or kind is str or kind is int or kind is bool or kind is float
        or kind is bytes
    )


cdef inline bint _same_atom(object a, object b) except -1:
    """Return True if two distinct atoms of the same type are equal."""
    cdef type kind = type(a)
    cdef double x, y
    if kind is str:
        return PyUnicode_GET_LENGTH(a) == PyUnicode_GET_LENGTH(b) and PyUnicode_Compare(a, b) == 0
    if kind is float:
        x, y = a, b
        # 0.0 and -0.0 are written differently; NaNs are the same only if identical.
        return x == y and (x != 0 or (1 / x == 1 / y))
    return a == b


cdef Py_ssize_t _offset_of(kind, name) except -2:
    """The offset of a slot in an instance, -1 if it has to be read through its descriptor."""
    cdef object found, cls
    for cls in kind.__mro__:
        if name in cls.__dict__:
            found = cls.__dict__[name]
            if Py_TYPE(found) == &PyMemberDescr_Type and (
                (<PyMemberDescrObject *><PyObject *>found).d_member.type == T_OBJECT_EX
            ):
                return (<PyMemberDescrObject *><PyObject *>found).d_member.offset
            return -1
    return -1


cdef inline PyObject **_slot(object value, Py_ssize_t offset) noexcept:
    """The slot of an object that no one else references yet."""
    return <PyObject **>(<char *><PyObject *>value + offset)


@cython.final
@cython.auto_pickle(False)
cdef class _Shape:
    """The result of ``classify`` for a type, with the compared slots before the others."""

    cdef int sort
    cdef bint has_dict
    cdef tuple names
    cdef Py_ssize_t counting
    cdef Py_ssize_t *offsets

    def __cinit__(self, kind, int sort, bint has_dict, tuple slots, tuple counting):
        cdef Py_ssize_t at
        cdef object name
        cdef list others = []
        for name in slots:
            if name not in counting:
                others.append(name)
        self.sort = sort
        self.has_dict = has_dict
        self.counting = len(counting)
        self.names = counting + tuple(others)
        self.offsets = <Py_ssize_t *>calloc(len(self.names) + 1, sizeof(Py_ssize_t))
        if self.offsets == NULL:
            raise MemoryError
        for at in range(len(self.names)):
            self.offsets[at] = _offset_of(kind, self.names[at])

    def __dealloc__(self):
        free(self.offsets)

    cdef object read(self, object value, Py_ssize_t at, object unset):
        """The slot's content, or ``unset`` if it is empty."""
        if self.offsets[at] >= 0:
            return memcore_slot(value, self.offsets[at], unset)
        try:
            return PyObject_GenericGetAttr(value, self.names[at])
        except AttributeError:
            return unset

    cdef int write(self, object value, Py_ssize_t at, object content) except -1:
        """Set a slot of a new object."""
        if self.offsets[at] >= 0 and _slot(value, self.offsets[at])[0] == NULL:
            Py_INCREF(content)
            _slot(value, self.offsets[at])[0] = <PyObject *>content
            return 0
        return PyObject_GenericSetAttr(value, self.names[at], content)


@cython.final
@cython.auto_pickle(False)
cdef class Trees:
    """Copies and compares trees of Python objects.

    ``classify(type)`` returns ``(kind, has __dict__, slots, compared slots)`` for any type except
    None, bool, int, float, str, bytes, dict, list, tuple, set and frozenset, and is called once per
    type: kind 0 is opaque, 1 a leaf (immutable), 2 an object fully described by its ``__dict__``
    and these slots, of which only the compared ones are compared, 3 a tuple. ``opaque`` stands for
    the tree of a value that contains anything opaque.
    """

    cdef object _classify
    cdef dict _kinds
    cdef readonly object opaque

    def __init__(self, classify):
        self._classify = classify
        self._kinds = {}
        self.opaque = object()

    def copy(self, value):
        """A copy that shares only immutable parts; ``opaque`` if that is impossible."""
        # Thousands of objects are created and none becomes garbage: collections meanwhile would
        # take several times as long as the copy. No other code runs until they are enabled again.
        cdef int collects = PyGC_Disable()
        try:
            return self._copy(value, 0)
        finally:
            if collects:
                PyGC_Enable()

    def same(self, a, b):
        """Return True if both have the same types, structure and values, in the same order."""
        return self._same(a, b, 0)

    def head(self, list trees, list others, list values):
        """The number of leading values that are the same as the tree, or the other tree, there."""
        cdef Py_ssize_t at = 0
        cdef object value
        for value in values:
            if at >= len(trees):
                return at
            if not self._same(
                memcore_item(trees, at, _MISSING), value, 0
            ) and not self._same(memcore_item(others, at, _MISSING), value, 0):
                return at
            at += 1
        return at

    def carried(self, dict before not None, list trees not None, list others not None,
                list nodes not None, list entries not None, dict value not None):
        """The unchanged parts of a dict: ``(keys, nodes, entries, trees, fresh)``.

        None if not all its keys are str. ``before`` maps each key to its index in the four lists.
        ``fresh`` has the indexes that are None in the new lists: the keys there are new, or their
        values have changed.
        """
        cdef Py_ssize_t here = 0, at = 0, where
        cdef object name = None, held = None, found
        cdef list keys = [], new_nodes = [], new_entries = [], new_trees = [], fresh = []
        while memcore_next(value, &here, name, held):
            if type(name) is not str:
                return None
            keys.append(name)
            found = memcore_get(before, name, None)
            where = -1 if found is None else <Py_ssize_t>found
            if where >= 0 and not self._same(
                memcore_item(trees, where, _MISSING), held, 0
            ) and not self._same(memcore_item(others, where, _MISSING), held, 0):
                where = -1
            if 0 <= where < min(len(nodes), len(entries), len(trees)):
                new_nodes.append(nodes[where])
                new_entries.append(entries[where])
                new_trees.append(trees[where])
            else:
                new_nodes.append(None)
                new_entries.append(None)
                new_trees.append(None)
                fresh.append(at)
            at += 1
        return keys, new_nodes, new_entries, new_trees, fresh

    cdef _Shape _kind(self, type kind):
        cdef object found = memcore_get(self._kinds, kind, None)
        cdef _Shape answer
        if found is not None:
            return <_Shape>found
        answer = _Shape(kind, *self._classify(kind))
        if len(self._kinds) >= 4096:  # types created at run time would accumulate
            self._kinds.clear()
        self._kinds[kind] = answer
        return answer

    cdef object _copy(self, object value, int depth):
        cdef Py_ssize_t where = 0
        cdef object made, copy, key = None, held = None
        cdef type kind = type(value)
        if _is_atom(value):
            return value
        if depth > TREE_DEPTH_MAX:
            return self.opaque
        if kind is dict:
            # The copy is iterated, as another thread may change the original meanwhile.
            made = (<dict>value).copy()
            while memcore_next(made, &where, key, held):
                if not _is_atom(key):
                    return self.opaque
                if _is_atom(held):
                    continue
                copy = self._copy(held, depth + 1)
                if copy is self.opaque:
                    return copy
                (<dict>made)[key] = copy
            return made
        if kind is list:
            made = (<list>value).copy()
            for where in range(len(<list>made)):
                held = (<list>made)[where]
                if _is_atom(held):
                    continue
                copy = self._copy(held, depth + 1)
                if copy is self.opaque:
                    return copy
                (<list>made)[where] = copy
            return made
        if kind is tuple:
            return self._entries(value, depth)
        if kind is set or kind is frozenset:
            made = set(value) if kind is set else value
            for held in made:
                if not _is_atom(held):
                    return self.opaque
            return made
        return self._copy_object(value, kind, depth)

    cdef object _entries(self, object value, int depth):
        cdef list made = []
        cdef object copy, held
        for held in <tuple>value:
            copy = self._copy(held, depth + 1)
            if copy is self.opaque:
                return copy
            made.append(copy)
        return tuple(made)

    cdef object _copy_object(self, object value, type kind, int depth):
        cdef _Shape what = self._kind(kind)
        cdef int sort = what.sort
        cdef Py_ssize_t at
        cdef object made, fields, copy
        if sort == TREE_LEAF:
            return value
        if sort == TREE_TUPLE:
            fields = self._entries(value, depth)
            return fields if fields is self.opaque else memcore_named(kind, fields)
        if sort != TREE_OBJECT:
            return self.opaque
        # Like object.__new__, but without the values that the dict replaces.
        made = (<PyTypeObject *>kind).tp_alloc(<PyTypeObject *>kind, 0)
        if what.has_dict:
            fields = self._copy(PyObject_GenericGetDict(value, NULL), depth + 1)
            if fields is self.opaque:
                return fields
            PyObject_GenericSetDict(made, fields, NULL)
        for at in range(len(what.names)):
            fields = what.read(value, at, self.opaque)
            if fields is self.opaque:  # never set
                continue
            copy = self._copy(fields, depth + 1)
            if copy is self.opaque:
                return copy
            what.write(made, at, copy)
        return made

    cdef bint _same(self, object a, object b, int depth) except -1:
        cdef Py_ssize_t at = 0, here = 0, there = 0
        cdef object key = None, mine = None, other_key = None, other = None
        cdef type kind = type(a)
        if a is b:
            return True
        if kind is not type(b):
            return False
        if _is_atom(a):
            return _same_atom(a, b)
        if depth > TREE_DEPTH_MAX:
            return False
        if kind is dict:
            if len(<dict>a) != len(<dict>b):
                return False
            while memcore_next(a, &here, key, mine):
                if not memcore_next(b, &there, other_key, other):
                    return False
                if key is not other_key and not self._same_key(key, other_key):
                    return False
                if mine is not other and not self._same(mine, other, depth + 1):
                    return False
            return True
        if kind is list:
            if len(<list>a) != len(<list>b):
                return False
            for mine in <list>a:
                other = memcore_item(b, at, _MISSING)
                if other is _MISSING:  # another thread changed it meanwhile
                    return False
                if mine is not other and not self._same(mine, other, depth + 1):
                    return False
                at += 1
            return True
        if kind is tuple:
            return self._same_entries(a, b, depth)
        if kind is set or kind is frozenset:
            return self._same_members(a, b)
        return self._same_object(a, b, kind, depth)

    cdef bint _same_key(self, object a, object b) except -1:
        return type(a) is type(b) and _is_atom(a) and _same_atom(a, b)

    cdef bint _same_entries(self, object a, object b, int depth) except -1:
        cdef Py_ssize_t at
        if len(<tuple>a) != len(<tuple>b):
            return False
        for at in range(len(<tuple>a)):
            if not self._same((<tuple>a)[at], (<tuple>b)[at], depth + 1):
                return False
        return True

    cdef bint _same_members(self, object a, object b) except -1:
        cdef object member
        if len(a) != len(b):
            return False
        for member in (frozenset(b) if type(b) is set else b):  # threads may change a set meanwhile
            # 1, 1.0 and True are equal as members of a set but three values in a file.
            if type(member) is not str and type(member) is not bytes:
                return False
            if not PySet_Contains(a, member):
                return False
        return True

    cdef bint _same_object(self, object a, object b, type kind, int depth) except -1:
        cdef _Shape what = self._kind(kind)
        cdef int sort = what.sort
        cdef Py_ssize_t at
        cdef object mine, other
        if sort == TREE_TUPLE:
            return self._same_entries(a, b, depth)
        if sort != TREE_OBJECT:  # a leaf is the same only if identical, an opaque one never
            return False
        if what.has_dict and not self._same(
            PyObject_GenericGetDict(a, NULL), PyObject_GenericGetDict(b, NULL), depth + 1
        ):
            return False
        for at in range(what.counting):
            mine = what.read(a, at, self.opaque)
            other = what.read(b, at, self.opaque)
            if mine is not other and not self._same(mine, other, depth + 1):
                return False
        return True


def sized(content):
    """The bytes, prefixed with their length as a varint (LEB128)."""
    cdef uint8_t head[10]
    cdef bytes body = content if type(content) is bytes else bytes(content)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(body), left = size, at = 0
    cdef bytes made
    while left > 127:
        head[at] = <uint8_t>(left & 127) | 128
        left >>= 7
        at += 1
    head[at] = <uint8_t>left
    made = PyBytes_FromStringAndSize(NULL, at + 1 + size)
    memcpy(PyBytes_AS_STRING(made), head, at + 1)
    memcpy(PyBytes_AS_STRING(made) + at + 1, PyBytes_AS_STRING(body), size)
    return made


def chunk_row(bytes key not None, uint32_t epoch, str kind not None, bytes content not None):
    """The row of a chunk: the seal of ``epoch u32, big-endian | sized type | content``."""
    cdef bytes named = sized(kind.encode())
    cdef Py_ssize_t width = PyBytes_GET_SIZE(named), size = PyBytes_GET_SIZE(content)
    cdef bytes body = PyBytes_FromStringAndSize(NULL, 4 + width + size)
    cdef uint8_t *p = <uint8_t *>PyBytes_AS_STRING(body)
    cdef int i
    for i in range(4):
        p[i] = <uint8_t>(epoch >> (24 - 8 * i) & 0xFF)
    memcpy(p + 4, PyBytes_AS_STRING(named), <size_t>width)
    memcpy(p + 4 + width, PyBytes_AS_STRING(content), <size_t>size)
    return _seal(key, body, 0)


def sized_parts(parts):
    """The bytes of a sequence, each after its length as u64, little-endian."""
    cdef Py_ssize_t size = 0, length
    cdef bytes part, made
    cdef uint8_t *p
    cdef list held = list(parts)
    for part in held:
        if part is None:
            raise TypeError("expected bytes, got None")
        size += 8 + PyBytes_GET_SIZE(part)
    made = PyBytes_FromStringAndSize(NULL, size)
    p = <uint8_t *>PyBytes_AS_STRING(made)
    for part in held:
        length = PyBytes_GET_SIZE(part)
        p = _put64(p, <uint64_t>length)
        memcpy(p, PyBytes_AS_STRING(part), <size_t>length)
        p += length
    return made


def page_stops(list entries not None, Py_ssize_t least, Py_ssize_t most_bytes, int mask):
    """The ends of the pages of these entries (bytes), except the last one.

    A page of at least ``least`` entries ends after one whose last byte has no bit of the mask, and
    where one more would make it larger than ``most_bytes``.
    """
    cdef list stops = []
    cdef Py_ssize_t at, start = 0, size, filled = 0
    cdef bytes entry
    for at in range(len(entries)):
        entry = entries[at]
        if at - start >= least and filled + PyBytes_GET_SIZE(entry) > most_bytes:
            stops.append(at)
            start = at
            filled = 0
        filled += PyBytes_GET_SIZE(entry)
        size = at + 1 - start
        if size < least or PyBytes_GET_SIZE(entry) == 0:
            continue
        if not (<uint8_t>PyBytes_AS_STRING(entry)[PyBytes_GET_SIZE(entry) - 1] & mask):
            stops.append(at + 1)
            start = at + 1
            filled = 0
    return stops
