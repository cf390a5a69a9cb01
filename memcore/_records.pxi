# The methods of frozen records. They are the same for all records and read the layout of the class,
# so that defining a record compiles nothing: see ``memcore.records``.

cdef extern from "Python.h":
    int Py_ReprEnter(object) except -1
    void Py_ReprLeave(object)
    int Py_EnterRecursiveCall(const char *) except *
    void Py_LeaveRecursiveCall()


@cython.final
@cython.auto_pickle(False)
cdef class RecordLayout:
    """The fields of a record: the ``arguments`` that are given to it first, each part as declared.

    A field without a default has ``missing`` in ``defaults``; ``factories`` has None unless each
    record gets a default of its own. The first ``positional`` fields may be given by position;
    ``shown`` and ``compared`` name those that ``repr`` and ``==`` take. ``has_check``: the class
    has a ``__post_init__``.
    """

    cdef readonly tuple names
    cdef readonly Py_ssize_t arguments
    cdef readonly Py_ssize_t positional
    cdef tuple defaults
    cdef tuple factories
    cdef object missing
    cdef tuple shown
    cdef tuple compared
    cdef bint has_check

    def __cinit__(
        self, tuple names not None, tuple defaults not None, tuple factories not None,
        object missing, Py_ssize_t arguments, Py_ssize_t positional, tuple shown not None,
        tuple compared not None, bint has_check,
    ):
        if not len(names) == len(defaults) == len(factories):
            raise ValueError("expected a default and a factory for each name")
        if not 0 <= positional <= arguments <= len(names):
            raise ValueError("expected no more positions than arguments, and these than names")
        self.names, self.defaults, self.factories = names, defaults, factories
        self.missing, self.arguments, self.positional = missing, arguments, positional
        self.shown, self.compared, self.has_check = shown, compared, has_check


cdef inline RecordLayout record_layout(object of):
    return <RecordLayout?>getattr(type(of), "__record__")


cdef tuple record_values(object of, tuple names):
    cdef list found = []
    cdef object name
    for name in names:
        found.append(getattr(of, name))
    return tuple(found)


def record_init(self, /, *args, **named):
    """Set the fields of a record, then run its ``__post_init__`` if it has one.

    Raises:
        TypeError: an argument is missing, unknown or given twice.
    """
    cdef RecordLayout layout = record_layout(self)
    cdef Py_ssize_t at, given = len(args), taken = 0
    cdef object name, value
    cdef list wrong
    if given > layout.positional:
        raise TypeError(
            f"{type(self).__qualname__}() takes {layout.positional} arguments by position, "
            f"got {given}"
        )
    for at in range(len(layout.names)):
        name = layout.names[at]
        if at < given:
            value = args[at]
        elif at < layout.arguments and name in named:
            value = named[name]
            taken += 1
        elif layout.factories[at] is not None:
            value = layout.factories[at]()
        else:
            value = layout.defaults[at]
            if value is layout.missing and at >= layout.arguments:
                continue  # ``__post_init__`` sets it
            if value is layout.missing:
                raise TypeError(f"{type(self).__qualname__}() needs the argument {name!r}")
        PyObject_GenericSetAttr(self, name, value)
    if taken != len(named):
        wrong = []
        for name in named:
            if name not in layout.names[given:layout.arguments]:
                wrong.append(name)
        raise TypeError(f"{type(self).__qualname__}(): unknown or given twice: {', '.join(wrong)}")
    if layout.has_check:
        self.__post_init__()


def record_repr(self, /):
    """``Name(field=value, ...)``; ``...`` for a record within itself."""
    cdef object name
    cdef list inside = []
    if Py_ReprEnter(self):
        return "..."
    try:
        for name in record_layout(self).shown:
            inside.append(f"{name}={getattr(self, name)!r}")
    finally:
        Py_ReprLeave(self)
    return f"{type(self).__qualname__}({', '.join(inside)})"


def record_eq(self, other, /):
    """Compare two records of one class, field by field."""
    cdef tuple names
    if type(self) is not type(other):
        return NotImplemented
    names = record_layout(self).compared
    return record_values(self, names) == record_values(other, names)


def record_hash(self, /):
    """The hash of the fields that are compared.

    Raises:
        TypeError: a value has none.
        RecursionError: records hold records too deep, or themselves.
    """
    # Neither the call of a method by its slot nor Cython counts calls within calls.
    Py_EnterRecursiveCall(" while hashing a record")
    try:
        return hash(record_values(self, record_layout(self).compared))
    finally:
        Py_LeaveRecursiveCall()


cdef tuple record_fields(object of):
    """All fields; of a dataclass that is derived from a record, its own, too."""
    if "__record__" in type(of).__dict__:
        return record_layout(of).names
    return tuple(type(of).__dataclass_fields__)


def record_getstate(self, /):
    """The values of all fields, for ``pickle`` and ``copy``."""
    return list(record_values(self, record_fields(self)))


def record_setstate(self, list state not None, /):
    """Set all fields of a new record from ``record_getstate``.

    Raises:
        ValueError: there are more values than fields, or fewer.
    """
    cdef tuple names = record_fields(self)
    cdef Py_ssize_t at
    if len(state) != len(names):
        raise ValueError("a value is needed for each field")
    for at in range(len(names)):
        PyObject_GenericSetAttr(self, names[at], state[at])
