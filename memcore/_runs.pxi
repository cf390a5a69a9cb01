# Runs: many numbers and other atoms of a list packed into one byte string. The formats are those of
# graph/manifest.py; tests/property/test_fast_runs.py has them in plain Python.

cdef extern from *:
    """
    /* The tag and bits of a list's entry: this runs none of its code and keeps no reference to it,
       so other threads may go on changing the list. */
    static inline int memcore_atom(PyObject *list, Py_ssize_t at, int64_t *bits) {
        PyObject *value;
        int overflow = 0;
        *bits = 0;
        if (at >= PyList_GET_SIZE(list)) return 7;
        value = PyList_GET_ITEM(list, at);
        if (value == Py_None) return 0;
        if (value == Py_False) return 1;
        if (value == Py_True) return 2;
        if (PyFloat_CheckExact(value)) {
            double number = PyFloat_AS_DOUBLE(value);
            memcpy(bits, &number, sizeof number);
            return 3;
        }
        if (PyLong_CheckExact(value)) {
            *bits = PyLong_AsLongLongAndOverflow(value, &overflow);
            return overflow ? 6 : 4;
        }
        if (PyUnicode_CheckExact(value)) {
            *bits = PyUnicode_GET_LENGTH(value);
            return 5;
        }
        return 7;
    }
    """
    int memcore_atom(object, Py_ssize_t, int64_t *bits) noexcept

cdef enum:
    ATOM_NONE = 0       # also the tags in mixed runs
    ATOM_FALSE = 1
    ATOM_TRUE = 2
    ATOM_FLOAT = 3
    ATOM_INT = 4
    ATOM_TEXT = 5
    ATOM_HUGE = 6       # an integer of more than 64 bits
    ATOM_OTHER = 7
    RUN_MIN = 16        # this many consecutive atoms become runs
    UNIT_MIN = 512
    UNIT_MAX = 4096
    TEXT_CHARS_MAX = 16

cdef struct Atoms:
    uint8_t *tags
    uint8_t *marks      # of two consecutive ones low enough, the first ends a unit
    int64_t *bits


cdef inline double _as_double(int64_t bits) noexcept nogil:
    cdef double found
    memcpy(&found, &bits, 8)
    return found


cdef inline bint _joins(int tag, int64_t bits, bint numbers) noexcept nogil:
    """Return True if an atom may join a run; one of ``numbers`` has no texts and no integers."""
    if numbers:
        return tag <= ATOM_FLOAT
    return tag <= ATOM_HUGE and (tag != ATOM_TEXT or bits <= TEXT_CHARS_MAX)


cdef int _form_of(const Atoms *atoms, Py_ssize_t start, Py_ssize_t stop, bint numbers,
                  bint finite) noexcept nogil:
    """The format of a segment; 0 if it may not be stored as runs."""
    cdef Py_ssize_t at, floats = 0, ints = 0
    cdef double number
    for at in range(start, stop):
        if atoms.tags[at] == ATOM_HUGE:
            return 0
        if atoms.tags[at] == ATOM_INT:
            ints += 1
        elif atoms.tags[at] == ATOM_FLOAT:
            floats += 1
            number = _as_double(atoms.bits[at])
            if finite and not isfinite(number):
                return 0
            if numbers and isfinite(number) and floor(number) == number:
                return 0  # it could be a card number
    if floats == stop - start:
        return c'd'
    return c'q' if ints == stop - start else c'm'


cdef void _mark_numbers(const Atoms *atoms, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    """Set the mark of each number: the exclusive or of its bytes."""
    cdef Py_ssize_t at
    cdef uint64_t bits
    for at in range(start, stop):
        bits = <uint64_t>atoms.bits[at]
        bits ^= bits >> 32
        bits ^= bits >> 16
        bits ^= bits >> 8
        atoms.marks[at] = <uint8_t>(bits & 0xFF)


cdef int _mark_mixed(list values, const Atoms *atoms, Py_ssize_t start, Py_ssize_t stop) except -1:
    """Set the mark of each atom of a mixed run: a number's hash, a text's length."""
    cdef Py_ssize_t at
    cdef double number
    cdef object value
    for at in range(start, stop):
        number = _as_double(atoms.bits[at])
        if atoms.tags[at] == ATOM_FLOAT and number == number:  # a NaN's hash differs
            value = number
            atoms.marks[at] = <uint8_t>(<uint64_t>hash(value) & 0xFF)
        elif atoms.tags[at] == ATOM_TRUE:
            atoms.marks[at] = 1
        elif atoms.tags[at] == ATOM_INT or atoms.tags[at] == ATOM_TEXT:
            atoms.marks[at] = <uint8_t>(<uint64_t>atoms.bits[at] & 0xFF)
        else:
            atoms.marks[at] = 0
    return 0


cdef Py_ssize_t _unit_end(const uint8_t *marks, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    """The end of the unit that begins at ``start`` (content-defined)."""
    cdef Py_ssize_t latest = min(start + UNIT_MAX, stop), at = start + UNIT_MIN
    while at + 1 < latest:
        if marks[at] <= 7 and marks[at + 1] <= 3:
            return at + 1
        at += 1
    return latest


cdef bytes _pack_numbers(const int64_t *bits, Py_ssize_t count, int form):
    cdef int width = 8, byte
    cdef uint64_t used = 0, number
    cdef Py_ssize_t at
    cdef bytes made
    cdef uint8_t *p
    if form == c'q':
        for at in range(count):
            used |= <uint64_t>bits[at]
        if used <= 0xFF:
            form, width = c'B', 1
        elif used <= 0xFFFF:
            form, width = c'H', 2
        elif used <= UINT32_MAX:
            form, width = c'I', 4
    made = PyBytes_FromStringAndSize(NULL, 1 + count * width)
    p = <uint8_t *>PyBytes_AS_STRING(made)
    p[0] = <uint8_t>form
    p += 1
    if width == 8:
        for at in range(count):
            p = _put64(p, <uint64_t>bits[at])
        return made
    for at in range(count):
        number = <uint64_t>bits[at]
        for byte in range(width):
            p[byte] = <uint8_t>(number >> (8 * byte) & 0xFF)
        p += width
    return made


cdef object _pack_mixed(list values, const Atoms *atoms, Py_ssize_t start, Py_ssize_t stop):
    """The content of a mixed run; None if a text cannot be encoded as UTF-8."""
    cdef Py_ssize_t at, size = 1 + 4 + stop - start
    cdef list texts = []
    cdef object value
    cdef bytes made, body
    cdef uint8_t *p
    for at in range(start, stop):
        if atoms.tags[at] == ATOM_TEXT:
            value = memcore_item(values, at, None)
            if type(value) is not str or PyUnicode_GET_LENGTH(value) > TEXT_CHARS_MAX:
                return None  # another thread changed the list
            try:
                body = PyUnicode_AsUTF8String(value)
            except UnicodeEncodeError:
                return None
            texts.append(body)
            size += 1 + PyBytes_GET_SIZE(body)
        elif atoms.tags[at] == ATOM_FLOAT or atoms.tags[at] == ATOM_INT:
            size += 8
    made = PyBytes_FromStringAndSize(NULL, size)
    p = <uint8_t *>PyBytes_AS_STRING(made)
    p[0] = c'm'
    for at in range(4):
        p[1 + at] = <uint8_t>(<uint64_t>(stop - start) >> (8 * at) & 0xFF)
    memcpy(p + 5, atoms.tags + start, stop - start)
    p += 5 + stop - start
    for at in range(start, stop):
        if atoms.tags[at] == ATOM_FLOAT:
            p = _put64(p, <uint64_t>atoms.bits[at])
    for at in range(start, stop):
        if atoms.tags[at] == ATOM_INT:
            p = _put64(p, <uint64_t>atoms.bits[at])
    for body in texts:
        p[0] = <uint8_t>PyBytes_GET_SIZE(body)
        p += 1
    for body in texts:
        memcpy(p, PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
        p += PyBytes_GET_SIZE(body)
    return made


cdef int _pack_segment(list values, const Atoms *atoms, Py_ssize_t start, Py_ssize_t stop,
                       int form, list found) except -1:
    """Append the runs of a segment; none of them if one cannot be made."""
    cdef Py_ssize_t at = start, end
    cdef list runs = []
    cdef object content
    if form == c'm':
        _mark_mixed(values, atoms, start, stop)
    else:
        _mark_numbers(atoms, start, stop)
    while at < stop:
        end = _unit_end(atoms.marks, at, stop)
        if form == c'm':
            content = _pack_mixed(values, atoms, at, end)
            if content is None:
                return 0
        else:
            content = _pack_numbers(atoms.bits + at, end - at, form)
        runs.append((at, end, content))
        at = end
    found.extend(runs)
    return 0


def pack_runs(list values not None, bint numbers, bint finite):
    """``(start, stop, content)`` of the runs in which a list is stored, in order.

    With ``numbers``, only segments of floats (and None, True, False) without a float of integral
    value; otherwise of all atoms. With ``finite``, segments with NaN or an infinity are left for
    the serialiser to reject.
    """
    cdef Py_ssize_t count = len(values), at = 0, stop
    cdef list found = []
    cdef Atoms atoms
    cdef int form
    if count < RUN_MIN:
        return found
    atoms.bits = <int64_t *>malloc(count * 8)
    atoms.tags = <uint8_t *>malloc(count)
    atoms.marks = <uint8_t *>malloc(count)
    try:
        if atoms.bits == NULL or atoms.tags == NULL or atoms.marks == NULL:
            raise MemoryError
        for at in range(count):
            atoms.tags[at] = <uint8_t>memcore_atom(values, at, &atoms.bits[at])
        at = 0
        while at < count:
            stop = at
            while stop < count and _joins(atoms.tags[stop], atoms.bits[stop], numbers):
                stop += 1
            if stop - at >= RUN_MIN:
                form = _form_of(&atoms, at, stop, numbers, finite)
                if form:
                    _pack_segment(values, &atoms, at, stop, form, found)
            at = stop + 1
    finally:
        free(atoms.bits)
        free(atoms.tags)
        free(atoms.marks)
    return found


cdef inline uint64_t _little(const uint8_t *p, int width) noexcept nogil:
    cdef uint64_t found = 0
    cdef int byte
    for byte in range(width):
        found |= <uint64_t>p[byte] << (8 * byte)
    return found


cdef int _no_run() except -1:
    raise ValueError("no run of atoms")


cdef list _unpack_mixed(const uint8_t *p, Py_ssize_t left):
    cdef Py_ssize_t at, count, floats = 0, ints = 0, texts = 0, size = 0
    cdef const uint8_t *tags
    cdef const uint8_t *doubles
    cdef const uint8_t *integers
    cdef const uint8_t *sizes
    cdef list made = []
    if left < 4:
        _no_run()
    count = <Py_ssize_t>_little(p, 4)
    tags = p + 4
    left -= 4
    if left < count or count > UNIT_MAX:
        _no_run()
    for at in range(count):
        if tags[at] > ATOM_TEXT:
            _no_run()
        floats += tags[at] == ATOM_FLOAT
        ints += tags[at] == ATOM_INT
        texts += tags[at] == ATOM_TEXT
    left -= count
    if left < 8 * floats + 8 * ints + texts:
        _no_run()
    doubles = tags + count
    integers = doubles + 8 * floats
    sizes = integers + 8 * ints
    p = sizes + texts
    left -= 8 * floats + 8 * ints + texts
    for at in range(texts):
        size += sizes[at]
    if size != left:
        _no_run()
    for at in range(count):
        if tags[at] == ATOM_NONE:
            made.append(None)
        elif tags[at] == ATOM_FALSE:
            made.append(False)
        elif tags[at] == ATOM_TRUE:
            made.append(True)
        elif tags[at] == ATOM_FLOAT:
            made.append(_as_double(<int64_t>_little(doubles, 8)))
            doubles += 8
        elif tags[at] == ATOM_INT:
            made.append(<int64_t>_little(integers, 8))
            integers += 8
        else:
            made.append(PyUnicode_DecodeUTF8(<const char *>p, sizes[0], "surrogatepass"))
            p += sizes[0]
            sizes += 1
    return made


def unpack_run(bytes content not None):
    """The values of a run.

    Raises:
        ValueError: it is malformed, or has more values than are ever written.
    """
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(content)
    cdef Py_ssize_t left = PyBytes_GET_SIZE(content) - 1, at
    cdef int form, width
    cdef list made = []
    if left < 0:
        _no_run()
    form = p[0]
    p += 1
    if form == c'm':
        return _unpack_mixed(p, left)
    width = 8 if form == c'd' or form == c'q' else 4 if form == c'I' else (
        2 if form == c'H' else 1 if form == c'B' else 0)
    if width == 0 or left % width:
        _no_run()
    left //= width
    if left > UNIT_MAX:
        _no_run()
    if form == c'd':
        for at in range(left):
            made.append(_as_double(<int64_t>_little(p + 8 * at, 8)))
    elif form == c'q':
        for at in range(left):
            made.append(<int64_t>_little(p + 8 * at, 8))
    else:
        for at in range(left):
            made.append(<uint32_t>_little(p + width * at, width))
    return made
