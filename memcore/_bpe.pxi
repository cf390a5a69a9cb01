# --- token counts: the Python side of _bpe.c ------------------------------------------------------

from cpython.array cimport array, clone
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Free, PyMem_Malloc


cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object)
    int PyUnicode_KIND(object)
    void *PyUnicode_DATA(object)


cdef extern from "_bpe.h" nogil:
    ctypedef struct bpe_vocab:
        pass
    ctypedef struct bpe_work:
        pass
    ctypedef struct bpe_measure:
        int64_t tokens
        int64_t digits
        int64_t numbers
    ctypedef struct bpe_cut:
        int64_t bytes
        int64_t tokens
        int64_t total
    int BPE_ENOMEM
    int BPE_CL100K
    bpe_vocab *bpe_vocab_new(const uint8_t *, size_t, const uint8_t *, size_t, const char **)
    void bpe_vocab_free(bpe_vocab *)
    int bpe_pattern(const bpe_vocab *)
    uint32_t bpe_size(const bpe_vocab *)
    const uint8_t *bpe_token(const bpe_vocab *, uint32_t, size_t *)
    bpe_work *bpe_work_new()
    void bpe_work_free(bpe_work *)
    void bpe_work_trim(bpe_work *)
    uint8_t *bpe_scratch(bpe_work *, size_t)
    int64_t bpe_count(bpe_vocab *, bpe_work *, const uint8_t *, size_t)
    int64_t bpe_count_to(bpe_vocab *, bpe_work *, const uint8_t *, size_t, int64_t)
    int bpe_measure_text(bpe_vocab *, bpe_work *, const uint8_t *, size_t, bpe_measure *)
    int64_t bpe_encode(bpe_vocab *, bpe_work *, const uint8_t *, size_t, uint32_t *)
    int bpe_cuts(bpe_vocab *, bpe_work *, const uint8_t *, size_t, int64_t, int64_t, bpe_cut *,
                 bpe_cut *)
    size_t bpe_utf8(const void *, int, size_t, uint8_t *)
    size_t bpe_units(const void *, int, size_t, size_t)


cdef extern from *:
    """
    /* Take an idle workspace (NULL: none) and give it back: one C call each, since a tracer runs
       between two lines of Cython and lets other threads take one, too. */
    static inline bpe_work *memcore_take(bpe_work **idle, int *count) {
        return *count ? idle[--*count] : NULL;
    }

    static inline int memcore_give_back(bpe_work **idle, int *count, int most, bpe_work *work) {
        if (*count >= most) return 0;
        idle[(*count)++] = work;
        return 1;
    }
    """
    bpe_work *memcore_take(bpe_work **, int *)
    bint memcore_give_back(bpe_work **, int *, int, bpe_work *)


cdef enum:
    IDLE_MAX = 16               # idle workspaces kept for later calls
    GIL_HELD_BYTES = 16384      # up to this size, counting is cheaper than releasing the GIL

cdef array _COUNTS = array("I")

ctypedef struct Utf8:
    const uint8_t *at
    size_t size


@cython.final
@cython.auto_pickle(False)
@cython.no_gc
cdef class Encoding:
    """A byte-pair encoding: exact counts, ids and cuts of texts; may be shared by threads.

    Special tokens are ordinary text, and an unpaired surrogate counts as U+FFFD, as in tiktoken's
    ``encode_ordinary``.
    """

    cdef bpe_vocab *vocab
    cdef Py_buffer file            # the vocabulary: bytes, or a mapped file
    cdef bpe_work *idle[IDLE_MAX]
    cdef int idle_count

    def __cinit__(self, vocabulary, bytes classes not None):
        cdef const char *why = NULL
        PyObject_GetBuffer(vocabulary, &self.file, PyBUF_SIMPLE)
        if not self.file.readonly:
            raise TypeError("a vocabulary has to stay as it is: expected bytes or a mapped file")
        self.vocab = bpe_vocab_new(
            <const uint8_t *>self.file.buf, <size_t>self.file.len,
            <const uint8_t *>PyBytes_AS_STRING(classes), <size_t>PyBytes_GET_SIZE(classes), &why)
        if self.vocab is NULL:
            if why is NULL:
                raise MemoryError
            raise ValueError((<bytes>why).decode())

    def __dealloc__(self):
        while self.idle_count:
            self.idle_count -= 1
            bpe_work_free(self.idle[self.idle_count])
        bpe_vocab_free(self.vocab)
        PyBuffer_Release(&self.file)

    @property
    def name(self):
        """The encoding's name in tiktoken."""
        return "cl100k_base" if bpe_pattern(self.vocab) == BPE_CL100K else "o200k_base"

    @property
    def n_tokens(self):
        """The number of tokens in the vocabulary, without special ones."""
        return bpe_size(self.vocab)

    def token(self, uint32_t number):
        """The bytes of the token with this id."""
        cdef size_t size
        cdef const uint8_t *found
        if number >= bpe_size(self.vocab):
            raise IndexError(f"token {number} of {bpe_size(self.vocab)}")
        found = bpe_token(self.vocab, number, &size)
        return PyBytes_FromStringAndSize(<const char *>found, <Py_ssize_t>size)

    # One workspace per call: with the GIL released, several calls run at the same time.

    cdef bpe_work *take(self) except NULL:
        cdef bpe_work *work = memcore_take(self.idle, &self.idle_count)
        if work is NULL:
            work = bpe_work_new()
        if work is NULL:
            raise MemoryError
        return work

    cdef void give_back(self, bpe_work *work) noexcept:
        bpe_work_trim(work)
        if not memcore_give_back(self.idle, &self.idle_count, IDLE_MAX, work):
            bpe_work_free(work)

    cdef int utf8_of(self, str text, bpe_work *work, Utf8 *found) except -1:
        """The text as UTF-8: its own buffer if it is ASCII, else a copy in the workspace."""
        cdef size_t units = <size_t>PyUnicode_GET_LENGTH(text)
        cdef int kind
        cdef uint8_t *scratch
        if PyUnicode_IS_ASCII(text):
            found.at = <const uint8_t *>PyUnicode_DATA(text)
            found.size = units
            return 0
        kind = PyUnicode_KIND(text)
        scratch = bpe_scratch(work, units * (4 if kind == 4 else <size_t>kind + 1))
        if scratch is NULL:
            raise MemoryError
        found.size = bpe_utf8(PyUnicode_DATA(text), kind, units, scratch)
        found.at = scratch
        return 0

    cdef int64_t count_text(self, str text, bpe_work *work, int64_t most) except -1:
        cdef Utf8 utf8
        cdef int64_t found
        self.utf8_of(text, work, &utf8)
        if utf8.size <= GIL_HELD_BYTES:
            found = bpe_count_to(self.vocab, work, utf8.at, utf8.size, most)
        else:
            with nogil:
                found = bpe_count_to(self.vocab, work, utf8.at, utf8.size, most)
        if found < 0:
            _raise_bpe(<int>found)
        return found

    cdef int64_t count_bytes(self, bytes text, bpe_work *work) except -1:
        """The number of tokens of valid UTF-8."""
        cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(text)
        cdef size_t size = <size_t>PyBytes_GET_SIZE(text)
        cdef int64_t found
        with nogil:
            found = bpe_count(self.vocab, work, at, size)
        if found < 0:
            _raise_bpe(<int>found)
        return found

    def count(self, str text not None):
        """The number of tokens of a text."""
        cdef bpe_work *work = self.take()
        try:
            return self.count_text(text, work, INT64_MAX)
        finally:
            self.give_back(work)

    def fits(self, str text not None, int64_t max_tokens):
        """Return True if a text has at most ``max_tokens`` tokens; stops counting past that.

        A token has 1 to 128 bytes, so most answers need no counting at all.
        """
        cdef Py_ssize_t units = PyUnicode_GET_LENGTH(text)
        cdef bpe_work *work
        cdef Py_ssize_t widest = 1 if PyUnicode_IS_ASCII(text) else min(PyUnicode_KIND(text) + 1, 4)
        if units * widest <= max_tokens:
            return True
        if max_tokens < 0 or units > max_tokens * 128:
            return False
        work = self.take()
        try:
            return self.count_text(text, work, max_tokens) <= max_tokens
        finally:
            self.give_back(work)

    def count_many(self, texts not None):
        """The number of tokens of each text of a list or tuple, as an ``array('I')``."""
        cdef Py_ssize_t at
        cdef tuple kept
        cdef array counts
        cdef int64_t found
        cdef object text
        cdef bpe_work *work
        if not isinstance(texts, (list, tuple)):
            raise TypeError(f"texts: expected a list or tuple, got {type(texts).__name__}")
        kept = tuple(texts)  # while a large text is counted, another thread may change the list
        counts = clone(_COUNTS, len(kept), False)
        work = self.take()
        try:
            for at in range(len(kept)):
                text = kept[at]
                if not isinstance(text, str):
                    raise TypeError(f"texts[{at}]: expected a str, got {type(text).__name__}")
                found = self.count_text(<str>text, work, INT64_MAX)
                if found > UINT32_MAX:
                    raise OverflowError(f"texts[{at}] has {found} tokens")
                counts.data.as_uints[at] = <uint32_t>found
        finally:
            self.give_back(work)
        return counts

    def encode(self, str text not None):
        """The ids of a text's tokens."""
        cdef bpe_work *work = self.take()
        cdef Utf8 utf8
        cdef uint32_t *ids = NULL
        cdef int64_t found, at
        cdef list numbers
        try:
            self.utf8_of(text, work, &utf8)
            ids = <uint32_t *>PyMem_Malloc((utf8.size + 1) * sizeof(uint32_t))
            if ids is NULL:
                raise MemoryError
            with nogil:
                found = bpe_encode(self.vocab, work, utf8.at, utf8.size, ids)
            if found < 0:
                _raise_bpe(<int>found)
            numbers = []
            for at in range(found):
                numbers.append(ids[at])
            return numbers
        finally:
            PyMem_Free(ids)
            self.give_back(work)

    def measure(self, str text not None):
        """``(tokens, digits, number pieces)`` of a text; a piece has up to three digits."""
        cdef bpe_work *work = self.take()
        cdef Utf8 utf8
        cdef bpe_measure found
        cdef int status
        try:
            self.utf8_of(text, work, &utf8)
            with nogil:
                status = bpe_measure_text(self.vocab, work, utf8.at, utf8.size, &found)
            if status < 0:
                _raise_bpe(status)
            return found.tokens, found.digits, found.numbers
        finally:
            self.give_back(work)

    def truncate(
        self, str text not None, int64_t max_tokens, *, str keep not None="head", marker=None
    ):
        """``(text, tokens kept, total)``: at most ``max_tokens`` tokens, including the marker.

        ``keep`` selects what remains: ``"head"``, ``"tail"`` or, with ``"middle"``, both ends
        without the middle. The marker replaces what was removed. Cuts are between tokens and
        between characters; the result is counted again, so it never exceeds the budget. A text
        that fits is returned unchanged.

        Raises:
            ValueError: ``max_tokens`` is not positive, the marker alone exceeds it, or ``keep`` is
                none of the three.
        """
        cdef int64_t room, share, kept, total
        cdef Py_ssize_t head, tail
        cdef str before, after, found, mark = ""
        if marker is not None:
            if not isinstance(marker, str):
                raise TypeError(f"marker: expected a str or None, got {type(marker).__name__}")
            mark = marker
        if keep not in ("head", "tail", "middle"):
            raise ValueError(f"keep: expected 'head', 'tail' or 'middle', got {keep!r}")
        if max_tokens <= 0:
            raise ValueError(f"max_tokens: expected a positive int, got {max_tokens}")
        room = max_tokens - (self.count(mark) if mark else 0)
        if room < 0:
            raise ValueError(
                f"the marker alone has {max_tokens - room} tokens; {max_tokens} are allowed")
        share = room if keep == "head" else 0 if keep == "tail" else room - room // 2
        head, tail, total = self.ends(text, share, room - share)
        if total <= max_tokens:
            return text, total, total
        before, after = text[:head], text[tail:]
        while True:
            found = before + mark + after
            kept = self.count(found)
            if kept <= max_tokens:
                return found, kept, total
            # At the new ends and where the parts join, tokens may differ from those of the text.
            room = max(room - (kept - max_tokens), 0)
            share = room if keep == "head" else 0 if keep == "tail" else room - room // 2
            before = before[:self.ends(before, share, 0)[0]]
            after = after[self.ends(after, 0, room - share)[1]:]

    cdef tuple ends(self, str text, int64_t head, int64_t tail):
        """``(end, start, total)``, in one pass: the end of the longest prefix of at most ``head``
        tokens, and the start of the longest suffix of at most ``tail`` tokens."""
        cdef bpe_work *work = self.take()
        cdef Utf8 utf8
        cdef bpe_cut first, last
        cdef int status
        try:
            self.utf8_of(text, work, &utf8)
            with nogil:
                status = bpe_cuts(self.vocab, work, utf8.at, utf8.size, head, tail, &first, &last)
        finally:
            self.give_back(work)
        if status < 0:
            _raise_bpe(status)
        return _units(text, first.bytes), _units(text, last.bytes), first.total


cdef Py_ssize_t _units(str text, int64_t size) noexcept:
    """The index in a text of a byte offset in its UTF-8."""
    if PyUnicode_IS_ASCII(text):
        return <Py_ssize_t>size
    return <Py_ssize_t>bpe_units(PyUnicode_DATA(text), PyUnicode_KIND(text),
                                 <size_t>PyUnicode_GET_LENGTH(text), <size_t>size)


cdef int _raise_bpe(int status) except -1:
    if status == BPE_ENOMEM:
        raise MemoryError
    raise RuntimeError("the vocabulary contradicts itself")


# --- messages -------------------------------------------------------------------------------------

cdef extern from "Python.h":
    Py_UCS4 PyUnicode_READ_CHAR(object, Py_ssize_t)


cdef extern from *:
    """
    #include <string.h>

    /* True if JSON contains a data URL: base64 is never counted as text. */
    static int memcore_has_data_url(const char *p, size_t n) {
        const char *end = p + n;
        for (; (p = memchr(p, ';', (size_t)(end - p))); p++)
            if (end - p >= 8 && (!memcmp(p, ";base64,", 8) || !memcmp(p, ";BASE64,", 8))) return 1;
        return 0;
    }
    """
    bint memcore_has_data_url(const char *, size_t)


cdef enum:
    # Roles of a member by its key; the numbers are those of tokens/message.py.
    KEY_HIDDEN = 1
    KEY_STRUCTURED = 2
    KEY_FRAMED = 4
    KEY_NAME = 8
    KEY_DATA = 16
    KEY_CALLS = 32
    KEY_CONTENT = 64
    KEY_TYPE = 128
    KEY_INLINE = 256
    KEY_ODD = 512               # left to the reference implementation

    WALK_DEPTH_MAX = 64
    OPAQUE_CHARS = 256


@cython.final
@cython.auto_pickle(False)
cdef class MessageCounter:
    """The rules of tokens/message.py for the common case: messages of plain JSON without media.

    Anything else goes to ``reference``, which must agree wherever this class answers.

    Args:
        load: returns the Encoding; called once, by the first count.
        reference: counts a message, given it and its compact JSON.
        keys: the ``KEY_`` bits of a member by its key.
        kinds: values of ``type`` that mark an object as media.
        dumps: returns the compact JSON of a value as bytes.
        costs: tokens per message, per name, per frame.
    """

    cdef object load, reference, dumps
    cdef dict keys, kinds
    cdef Encoding encoding
    cdef int64_t message_tokens, name_tokens, frame_tokens

    def __init__(
        self, load, reference, dict keys not None, dict kinds not None, dumps, tuple costs not None
    ):
        self.load = load
        self.reference = reference
        self.keys = keys
        self.kinds = kinds
        self.dumps = dumps
        self.message_tokens, self.name_tokens, self.frame_tokens = costs

    def count(self, message, bytes encoded not None):
        """The number of tokens of a message; ``encoded`` is its compact JSON."""
        cdef int64_t tokens
        cdef list texts
        if self.encoding is None:
            self.encoding = self.load()
        if type(message) is dict and not memcore_has_data_url(
                PyBytes_AS_STRING(encoded), <size_t>PyBytes_GET_SIZE(encoded)):
            tokens = self.message_tokens
            texts = []
            # The walk runs nothing that could change the message: texts are counted afterwards.
            if self.members(message, texts, &tokens, 0):
                try:
                    return tokens + self.texts_of(texts)
                except TypeError:  # `dumps` cannot serialise a structured member
                    pass
        return self.reference(message, encoded)

    cdef int64_t texts_of(self, list texts) except -1:
        cdef bpe_work *work
        cdef int64_t tokens = 0
        cdef bytes json
        cdef object text
        cdef Py_ssize_t at
        for at in range(len(texts)):
            text = texts[at]
            if type(text) is not str:
                json = self.dumps(text)
                texts[at] = json
        work = self.encoding.take()
        try:
            for text in texts:
                if type(text) is str:
                    tokens += self.encoding.count_text(<str>text, work, INT64_MAX)
                else:
                    tokens += self.encoding.count_bytes(<bytes>text, work)
        finally:
            self.encoding.give_back(work)
        return tokens

    cdef int members(self, object message, list texts, int64_t *tokens, int depth) except -1:
        """Add up the cost of a dict's members; 0 if the reference has to count."""
        cdef object key = None, entry = None, found
        cdef Py_ssize_t at = 0
        cdef long said = 0
        cdef long seen = 0
        if depth > WALK_DEPTH_MAX:
            return 0
        while memcore_next(message, &at, key, entry):
            if type(key) is not str:
                return 0
            found = memcore_get(self.keys, key, None)
            said = 0 if found is None else <long>found
            if depth and said & KEY_FRAMED and entry is not None:
                tokens[0] += self.frame_tokens
            if said & KEY_TYPE:
                if type(entry) is not str:
                    return 0  # an enum member is a string in JSON
                if memcore_get(self.kinds, entry, _MISSING) is not _MISSING:
                    return 0
            if said & KEY_HIDDEN or (not said and _is_id(key)):
                continue
            if said & KEY_ODD or (said & KEY_INLINE and type(entry) is dict):
                return 0
            if said & KEY_DATA and type(entry) is str and not _has_space(entry):
                continue
            if said & KEY_STRUCTURED and (
                type(entry) is dict or type(entry) is list or type(entry) is tuple
            ):
                texts.append(entry)
                continue
            if said & KEY_NAME and type(entry) is str:
                tokens[0] += self.name_tokens
            seen |= said & KEY_CALLS
            if said & KEY_CONTENT and (type(entry) is list or type(entry) is tuple):
                seen |= KEY_CONTENT
            if seen == KEY_CALLS | KEY_CONTENT:
                return 0
            if not self.value(entry, texts, tokens, depth):
                return 0
        return 1

    cdef int value(self, object entry, list texts, int64_t *tokens, int depth) except -1:
        cdef object part
        cdef type kind = type(entry)
        if kind is str:
            texts.append(entry)
            return 1
        if depth > WALK_DEPTH_MAX:
            return 0
        if kind is dict:
            return self.members(entry, texts, tokens, depth + 1)
        if kind is list:
            for part in <list>entry:
                if not self.value(part, texts, tokens, depth + 1):
                    return 0
            return 1
        if kind is tuple:
            for part in <tuple>entry:
                if not self.value(part, texts, tokens, depth + 1):
                    return 0
            return 1
        return entry is None or kind is bool or kind is int or kind is float


cdef bint _has_space(object text) noexcept:
    """Return True if there is a space among the first characters: base64 has none."""
    cdef Py_ssize_t at
    for at in range(min(PyUnicode_GET_LENGTH(text), OPAQUE_CHARS)):
        if PyUnicode_READ_CHAR(text, at) == u" ":
            return True
    return False


cdef bint _is_id(object key) noexcept:
    """Return True if a key is ``id`` or ends in ``_id`` or ``Id``."""
    cdef Py_ssize_t size = PyUnicode_GET_LENGTH(key)
    cdef Py_UCS4 i
    if size < 2 or PyUnicode_READ_CHAR(key, size - 1) != u"d":
        return False
    i = PyUnicode_READ_CHAR(key, size - 2)
    if i == u"I":
        return True
    return i == u"i" and (size == 2 or PyUnicode_READ_CHAR(key, size - 3) == u"_")
