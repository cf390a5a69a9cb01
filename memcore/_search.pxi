# Full-text search: terms of a text, blocks of postings, BM25 and the best documents.

cdef extern from "_search_stem.h":
    int memcore_stem_word(uint8_t *text, int size) noexcept nogil
    int memcore_is_stop(const uint8_t *text, int size) noexcept nogil
    void memcore_dots(const int8_t *rows, int count, const int16_t *query, int size,
                      int32_t *dots) noexcept nogil

cdef extern from "Python.h":
    bint Py_UNICODE_ISALNUM(Py_UCS4 c) noexcept nogil

cdef enum:
    TERM_BYTES = 64         # of a word in UTF-8; the rest of a longer one is ignored
    ENTRY_BYTES = 9         # of packed terms: hash u64, occurrences u8
    TIMES_MAX = 255         # occurrences of a term in a document that are told apart
    POSTING_BYTES = 8       # of a posting in the open: ordinal u32, occurrences u32
    BLOCK_HEADER = 2        # of a block: postings u16
    BLOCK_POSTINGS = 512    # at most, in one block
    RECORD_BYTES = 32       # of a document: see memcore.search.index
    CHAINED = 1             # flag of a document: it has neighbours, by number within its group
    VECTOR_SCALE = 4        # of a vector: 1 / its length, float32; 0: there is none
    VECTOR_DIMENSIONS = 4096  # of a vector, at most
    DOTS = 64               # dot products taken at once
    BEGINNINGS = 1024       # of words, as ``_beginning`` tells them apart

cdef struct Words:
    const void *data
    int kind
    Py_ssize_t length
    Py_ssize_t at           # the code point to go on with
    Py_ssize_t start        # the word found last
    Py_ssize_t stop
    bint paired             # the last character was the second of a pair
    const uint8_t *wanted   # by ``_beginning``: 1 if a word wanted begins so; NULL: all are
    int size
    uint8_t text[TERM_BYTES + 8]

cdef struct Posting:
    uint64_t term
    uint32_t ordinal
    uint32_t times

cdef struct Document:       # what scoring reads: 16 bytes, four to a line of the cache
    uint32_t before         # the ordinal of the neighbour before it, plus 1; 0: none
    uint32_t behind
    uint32_t length
    uint8_t kind            # 0: there is no such document
    uint8_t role
    uint8_t weight          # in hundredths
    uint8_t flags

cdef struct Origin:         # where a document is from: read for the few that may be among the best
    uint64_t group
    uint64_t number
    uint32_t time
    uint32_t author

cdef struct Ranked:
    double score
    double own
    uint64_t group
    uint64_t number
    uint32_t ordinal
    uint32_t kind

cdef struct Matches:
    double *scores          # by ordinal
    uint32_t *touched       # ordinals with a score: all scores that are not 0
    double *cosines         # by ordinal; below -1: there is no vector; below -2: it does not count
    Py_ssize_t count

cdef struct Similarity:
    double *cosines         # those of the matches
    Py_ssize_t counted      # documents whose scores take part in the scale
    double least
    double most

cdef struct Wanted:
    uint64_t kinds          # one bit each
    uint64_t roles
    uint32_t since
    uint32_t until
    const uint32_t *authors
    Py_ssize_t n_authors
    const uint64_t *ranges  # group, first number, last number
    Py_ssize_t n_ranges     # -1: all documents are in range


# --- terms ----------------------------------------------------------------------------------------

cdef inline bint _is_pair_script(uint32_t c) noexcept nogil:
    """Return True for scripts without spaces whose pairs of characters are the terms."""
    if c < 0x1100:
        return False
    return (
        0x3041 <= c <= 0x309F           # Hiragana
        or 0x30A1 <= c <= 0x30FA or 0x30FC <= c <= 0x30FF or 0x31F0 <= c <= 0x31FF  # Katakana
        or 0x4E00 <= c <= 0x9FFF or 0x3400 <= c <= 0x4DBF or 0xF900 <= c <= 0xFAFF  # Han
        or 0x20000 <= c <= 0x323AF or c == 0x3005 or c == 0x3007
        or 0xAC00 <= c <= 0xD7A3 or 0x1100 <= c <= 0x11FF or 0x3131 <= c <= 0x318E  # Hangul
    )


cdef inline bint _is_mark(uint32_t c) noexcept nogil:
    """Return True for marks that belong to the letter before them, and for joiners."""
    return (
        0x0300 <= c <= 0x036F or 0x0483 <= c <= 0x0487 or 0x0591 <= c <= 0x05BD
        or 0x05BF <= c <= 0x05C2 and c != 0x05C0 or 0x05C4 <= c <= 0x05C7 and c != 0x05C6
        or 0x0610 <= c <= 0x061A or 0x064B <= c <= 0x065F or c == 0x0670
        or 0x06D6 <= c <= 0x06DC or 0x06DF <= c <= 0x06E8 or 0x06EA <= c <= 0x06ED
        or 0x0711 <= c <= 0x074A or 0x07A6 <= c <= 0x07B0
        or 0x0900 <= c <= 0x0E7F and c not in (0x0964, 0x0965, 0x0970, 0x0DF4, 0x0E3F, 0x0E4F,
                                               0x0E5A, 0x0E5B)
        or 0x0EB1 <= c <= 0x0ECD or 0x0F71 <= c <= 0x0F84 or 0x102B <= c <= 0x103E
        or 0x17B4 <= c <= 0x17D3 or 0x1AB0 <= c <= 0x1AFF or 0x1DC0 <= c <= 0x1DFF
        or c == 0x200C or c == 0x200D or 0x20D0 <= c <= 0x20FF or 0xFE00 <= c <= 0xFE0F
        or 0xFE20 <= c <= 0xFE2F
    )


cdef inline void _put_code(Words *words, uint32_t c) noexcept nogil:
    """Append a code point in UTF-8, unless the word is full."""
    cdef uint8_t *p = words.text + words.size
    if words.size >= TERM_BYTES:
        return
    if c < 0x80:
        p[0] = <uint8_t>c
        words.size += 1
    elif c < 0x800:
        p[0] = <uint8_t>(0xC0 | c >> 6)
        p[1] = <uint8_t>(0x80 | (c & 0x3F))
        words.size += 2
    elif c < 0x10000:
        p[0] = <uint8_t>(0xE0 | c >> 12)
        p[1] = <uint8_t>(0x80 | (c >> 6 & 0x3F))
        p[2] = <uint8_t>(0x80 | (c & 0x3F))
        words.size += 3
    else:
        p[0] = <uint8_t>(0xF0 | c >> 18)
        p[1] = <uint8_t>(0x80 | (c >> 12 & 0x3F))
        p[2] = <uint8_t>(0x80 | (c >> 6 & 0x3F))
        p[3] = <uint8_t>(0x80 | (c & 0x3F))
        words.size += 4


cdef inline bint _is_word_ascii(uint32_t c) noexcept nogil:
    return c'a' <= c <= c'z' or c'A' <= c <= c'Z' or c'0' <= c <= c'9'


cdef bint _next_pair(Words *words, uint32_t c) noexcept nogil:
    """Take a character of a pair script at ``at``; return True if a term begins with it."""
    cdef uint32_t following = 0
    cdef Py_ssize_t at = words.at
    cdef bint second = words.paired
    words.at += 1
    words.paired = False
    if at + 1 < words.length:
        following = _read(words.data, words.kind, at + 1)
    if _is_pair_script(following):
        words.paired = True
        words.stop = at + 2
    elif second:
        return False  # the last of a run, which the pair before has
    else:
        words.stop = at + 1
    words.start = at
    words.size = 0
    _put_code(words, c)
    if words.paired:
        _put_code(words, following)
    return True


cdef inline int _beginning(const uint8_t *text, int size) noexcept nogil:
    """Return what the first two bytes of a word and of its stem have in common, below 1,024.

    Stemming keeps the first letter, and the second one but for a y that becomes an i (dying, die).
    A stem of one letter is told apart by the caller.
    """
    cdef int second = text[1] if size > 1 else 0
    if second == c'y':
        second = c'i'
    return (text[0] << 2 ^ second * 5) & (BEGINNINGS - 1)


cdef bint _next_word(Words *words) noexcept nogil:
    """Find the next term of a folded text; return False at its end.

    A term is a word without its ending, or a pair of characters; stop words are passed over.
    """
    cdef uint32_t c
    cdef bint plain, any_letter
    while words.at < words.length:
        c = _read(words.data, words.kind, words.at)
        if _is_pair_script(c):
            if _next_pair(words, c):
                return True
            continue
        words.paired = False
        if not (_is_word_ascii(c) if c < 0x80 else Py_UNICODE_ISALNUM(c)):
            words.at += 1
            continue
        words.start = words.at
        words.size = 0
        plain, any_letter = True, False
        while words.at < words.length:
            c = _read(words.data, words.kind, words.at)
            if c < 0x80:
                if not _is_word_ascii(c):
                    break
                if c'A' <= c <= c'Z':
                    c |= 0x20
                any_letter = any_letter or c >= c'a'
            elif _is_pair_script(c) or not (Py_UNICODE_ISALNUM(c) or _is_mark(c)):
                break
            else:
                plain = False
            _put_code(words, c)
            words.at += 1
        words.stop = words.at
        if words.wanted != NULL and not words.wanted[_beginning(words.text, words.size)]:
            continue
        if plain:
            if memcore_is_stop(words.text, words.size):
                continue
            if any_letter:
                words.size = memcore_stem_word(words.text, words.size)
        return True
    return False


cdef void _begin_words(Words *words, str text) noexcept:
    words.data = PyUnicode_DATA(text)
    words.kind = PyUnicode_KIND(text)
    words.length = PyUnicode_GET_LENGTH(text)
    words.at = words.start = words.stop = 0
    words.paired = False
    words.wanted = NULL
    words.size = 0


cdef inline void _store64(uint8_t *p, uint64_t value) noexcept nogil:
    memcpy(p, &value, 8)


cdef inline uint32_t _load32(const uint8_t *p) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, p, 4)
    return value


cdef int _by_number(const void *a, const void *b) noexcept nogil:
    cdef uint64_t one = (<const uint64_t *>a)[0], other = (<const uint64_t *>b)[0]
    return (one > other) - (one < other)


def search_terms(str text not None, bytes key not None, Py_ssize_t most):
    """Return ``(packed terms, length)`` of a folded text: of its first ``most`` terms.

    Packed terms ascend by hash: ``hash u64 | occurrences u8`` each, little-endian. The length
    counts every occurrence. ``key`` is of 16 bytes.
    """
    cdef const uint8_t *seed = _seed(key)
    cdef uint64_t k0 = _load64(seed), k1 = _load64(seed + 8)
    cdef Words words
    cdef uint64_t *found = NULL
    cdef uint64_t *grown
    cdef Py_ssize_t count = 0, room = 0, at, distinct = 0, same
    cdef bytes packed
    cdef uint8_t *p
    _begin_words(&words, text)
    try:
        while count < most and _next_word(&words):
            if count == room:
                room = 2 * room if room else 64
                grown = <uint64_t *>realloc(found, <size_t>room * sizeof(uint64_t))
                if grown == NULL:
                    raise MemoryError
                found = grown
            found[count] = _siphash13(k0, k1, words.text, words.size)
            count += 1
        if not count:
            return b"", 0
        qsort(found, <size_t>count, sizeof(uint64_t), _by_number)
        for at in range(count):
            if at == 0 or found[at] != found[at - 1]:
                distinct += 1
        packed = PyBytes_FromStringAndSize(NULL, ENTRY_BYTES * distinct)
        p = <uint8_t *>PyBytes_AS_STRING(packed)
        at = 0
        while at < count:
            same = 1
            while at + same < count and found[at + same] == found[at]:
                same += 1
            _store64(p, found[at])
            p[8] = <uint8_t>(same if same < TIMES_MAX else TIMES_MAX)
            p += ENTRY_BYTES
            at += same
        return packed, count
    finally:
        free(found)


def search_spans(str text not None, bytes key not None, dict wanted=None):
    """Return ``(hash, start, stop)`` of each term of a folded text, in order.

    ``wanted``: only of these terms, by hash.
    """
    cdef const uint8_t *seed = _seed(key)
    cdef uint64_t k0 = _load64(seed), k1 = _load64(seed + 8)
    cdef Words words
    cdef list found = []
    cdef object term
    cdef str word
    cdef Py_UCS4 c
    cdef uint8_t beginnings[BEGINNINGS]
    _begin_words(&words, text)
    if wanted is not None:
        memset(beginnings, 0, sizeof(beginnings))
        for word in wanted.values():
            words.size = 0
            for c in word[:2]:
                _put_code(&words, c)
            # A stem of one letter may be of a longer word; a lone surrogate is shown as U+FFFD.
            if words.size < 2 or words.text[0] == 0xEF:
                memset(beginnings, 1, sizeof(beginnings))
            beginnings[_beginning(words.text, words.size)] = 1
        words.wanted = beginnings
    while _next_word(&words):
        term = _siphash13(k0, k1, words.text, words.size)
        if wanted is None or term in wanted:
            found.append((term, words.start, words.stop))
    return found


def search_words(str text not None):
    """Return the terms of a folded text as they are hashed, in order."""
    cdef Words words
    cdef list found = []
    _begin_words(&words, text)
    while _next_word(&words):
        # A lone surrogate has no UTF-8 that Python reads, hence "replace".
        found.append(words.text[:words.size].decode("utf-8", "replace"))
    return found


def stem_word(str word not None):
    """Return the stem of a word of lower-case ASCII letters and digits; others are unchanged."""
    cdef uint8_t buffer[TERM_BYTES + 8]
    cdef Py_ssize_t size = PyUnicode_GET_LENGTH(word), at
    cdef const void *data = PyUnicode_DATA(word)
    cdef int kind = PyUnicode_KIND(word)
    cdef uint32_t c
    if size > TERM_BYTES:
        return word
    for at in range(size):
        c = _read(data, kind, at)
        if not (c'a' <= c <= c'z' or c'0' <= c <= c'9'):
            return word
        buffer[at] = <uint8_t>c
    return buffer[:memcore_stem_word(buffer, <int>size)].decode("ascii")


# --- postings -------------------------------------------------------------------------------------

cdef int _by_term(const void *a, const void *b) noexcept nogil:
    cdef const Posting *one = <const Posting *>a
    cdef const Posting *other = <const Posting *>b
    if one.term != other.term:
        return 1 if one.term > other.term else -1
    return (one.ordinal > other.ordinal) - (one.ordinal < other.ordinal)


cdef Py_ssize_t _entries(bytes packed) except -1:
    """The number of entries in packed terms, which must be whole."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(packed)
    if size % ENTRY_BYTES:
        raise ValueError("packed terms end inside an entry")
    return size // ENTRY_BYTES


def is_packed(bytes packed not None):
    """Return True if packed terms are whole, ascending, and each occurs."""
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(packed)
    cdef Py_ssize_t at
    if PyBytes_GET_SIZE(packed) % ENTRY_BYTES:
        return False
    for at in range(0, PyBytes_GET_SIZE(packed), ENTRY_BYTES):
        if not p[at + 8] or (at and _load64(p + at) <= _load64(p + at - ENTRY_BYTES)):
            return False
    return True


def invert_terms(list documents not None):
    """Return ``(term, postings)`` of all terms of ``(ordinal, packed terms)``, by term.

    A term is its hash, 8 bytes big-endian; postings are in the open: ``ordinal u32 | occurrences
    u32`` each, by ordinal.

    Raises:
        ValueError: packed terms are damaged, or an ordinal is none.
    """
    cdef Py_ssize_t total = 0, count, at, entry, first, place
    cdef Posting *found
    cdef const uint8_t *p
    cdef bytes packed, raw
    cdef uint8_t *out
    cdef object ordinal
    cdef uint32_t number
    cdef uint64_t term
    cdef uint8_t name[8]
    cdef list terms = []
    for ordinal, packed in documents:
        total += _entries(packed)
    if not total:
        return terms
    found = <Posting *>malloc(<size_t>total * sizeof(Posting))
    if found == NULL:
        raise MemoryError
    try:
        count = 0
        for ordinal, packed in documents:
            if not 0 <= ordinal < UINT32_MAX:
                raise ValueError("an ordinal is out of range")
            number = ordinal
            p = <const uint8_t *>PyBytes_AS_STRING(packed)
            for entry in range(_entries(packed)):
                if count == total:
                    raise ValueError("the documents changed")
                found[count].term = _load64(p)
                found[count].ordinal = number
                found[count].times = p[8]
                count += 1
                p += ENTRY_BYTES
        qsort(found, <size_t>count, sizeof(Posting), _by_term)
        at = 0
        while at < count:
            first, term = at, found[at].term
            while at < count and found[at].term == term:
                at += 1
            raw = PyBytes_FromStringAndSize(NULL, POSTING_BYTES * (at - first))
            out = <uint8_t *>PyBytes_AS_STRING(raw)
            for place in range(first, at):
                memcpy(out, &found[place].ordinal, 4)
                memcpy(out + 4, &found[place].times, 4)
                out += POSTING_BYTES
            for place in range(8):
                name[place] = <uint8_t>(term >> (56 - 8 * place) & 0xFF)
            terms.append((name[:8], raw))
        return terms
    finally:
        free(found)


def pack_postings(bytes postings not None, uint32_t base):
    """Return a block of at most 512 postings, given in the open; ordinals begin at ``base``.

    A block is ``postings u16``, then for each a varint of twice its distance from the one before,
    plus 1 if the occurrences follow in a byte because they are not one.

    Raises:
        ValueError: they are none, too many, or not in order.
    """
    cdef Py_ssize_t size = PyBytes_GET_SIZE(postings), at, count = size // POSTING_BYTES
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(postings)
    cdef uint8_t out[BLOCK_HEADER + BLOCK_POSTINGS * 6]
    cdef uint8_t *end = out + BLOCK_HEADER
    cdef uint32_t ordinal, times, before = base
    cdef uint64_t value
    if size % POSTING_BYTES or not 0 < count <= BLOCK_POSTINGS:
        raise ValueError("a block holds 1 to 512 postings")
    for at in range(count):
        ordinal, times = _load32(p), _load32(p + 4)
        p += POSTING_BYTES
        if ordinal < before or (at and ordinal == before) or not 0 < times <= TIMES_MAX:
            raise ValueError("postings are out of order")
        value = <uint64_t>(ordinal - before) << 1 | (times != 1)
        while value >= 0x80:
            end[0] = <uint8_t>(value & 0x7F | 0x80)
            end += 1
            value >>= 7
        end[0] = <uint8_t>value
        end += 1
        if times != 1:
            end[0] = <uint8_t>times
            end += 1
        before = ordinal
    out[0] = <uint8_t>(count & 0xFF)
    out[1] = <uint8_t>(count >> 8)
    return out[:end - out]


cdef Py_ssize_t _unpack_block(bytes block, uint32_t base, uint32_t stop, uint32_t *ordinals,
                              uint8_t *times) noexcept:
    """Decode a block into arrays of 512; return its number of postings, or -1 if it is damaged."""
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(block)
    cdef const uint8_t *end = p + PyBytes_GET_SIZE(block)
    cdef Py_ssize_t count, at
    cdef uint64_t value, ordinal = base
    cdef int shift
    cdef uint8_t last
    if end - p < BLOCK_HEADER:
        return -1
    count = _u16(p)
    p += BLOCK_HEADER
    if not 0 < count <= BLOCK_POSTINGS:
        return -1
    for at in range(count):
        value, shift = 0, 0
        while True:
            if p >= end or shift > 28:
                return -1
            last = p[0]
            value |= <uint64_t>(last & 0x7F) << shift
            shift += 7
            p += 1
            if not last & 0x80:
                break
        if last == 0 and shift > 7:
            return -1  # longer than it has to be
        if at and value >> 1 == 0:
            return -1
        ordinal += value >> 1
        if ordinal >= stop:
            return -1
        ordinals[at] = <uint32_t>ordinal
        times[at] = 1
        if value & 1:
            if p >= end or p[0] < 2:
                return -1
            times[at] = p[0]
            p += 1
    return count if p == end else -1


def unpack_postings(bytes block not None, uint32_t base, uint32_t stop):
    """Return the postings of a block in the open; all ordinals are below ``stop``.

    Raises:
        ValueError: the block is damaged.
    """
    cdef uint32_t ordinals[BLOCK_POSTINGS]
    cdef uint8_t times[BLOCK_POSTINGS]
    cdef Py_ssize_t at, count = _unpack_block(block, base, stop, ordinals, times)
    cdef uint32_t value
    cdef bytes raw
    cdef uint8_t *out
    if count < 0:
        raise ValueError("a block of postings is damaged")
    raw = PyBytes_FromStringAndSize(NULL, POSTING_BYTES * count)
    out = <uint8_t *>PyBytes_AS_STRING(raw)
    for at in range(count):
        value = times[at]
        memcpy(out, &ordinals[at], 4)
        memcpy(out + 4, &value, 4)
        out += POSTING_BYTES
    return raw


# --- ranking --------------------------------------------------------------------------------------

cdef inline bint _is_better(const Ranked *a, const Ranked *b) noexcept nogil:
    """Return True if ``a`` ranks before ``b``: by score, then by document."""
    if a.score != b.score:
        return a.score > b.score
    if a.kind != b.kind:
        return a.kind < b.kind
    if a.group != b.group:
        return a.group < b.group
    if a.number != b.number:
        return a.number < b.number
    return a.ordinal < b.ordinal


cdef int _by_rank(const void *a, const void *b) noexcept nogil:
    return -1 if _is_better(<const Ranked *>a, <const Ranked *>b) else 1


cdef void _sink(Ranked *heap, Py_ssize_t count, Py_ssize_t at) noexcept nogil:
    """Restore the heap below ``at``; its top is the worst."""
    cdef Py_ssize_t below
    cdef Ranked moved = heap[at]
    while True:
        below = 2 * at + 1
        if below >= count:
            break
        if below + 1 < count and _is_better(&heap[below], &heap[below + 1]):
            below += 1
        if not _is_better(&moved, &heap[below]):
            break
        heap[at] = heap[below]
        at = below
    heap[at] = moved


cdef void _free_matches(Matches *found) noexcept nogil:
    free(found.scores)
    free(found.touched)
    free(found.cosines)


@cython.final
@cython.auto_pickle(False)
@cython.no_gc
cdef class SearchTable:
    """Documents of an index by ordinal, in memory, and the ranking of those that match.

    Args:
        count: the number of ordinals given out so far.
    """

    cdef Document *documents
    cdef Origin *origins
    cdef Py_ssize_t count
    cdef Matches kept  # of the last ranking, for the next: new arrays are hundreds of page faults

    def __cinit__(self, Py_ssize_t count):
        if not 0 <= count < UINT32_MAX:
            raise ValueError("an index has fewer than 4 billion documents")
        self.count = count
        self.documents = <Document *>calloc(<size_t>count + 1, sizeof(Document))
        self.origins = <Origin *>calloc(<size_t>count + 1, sizeof(Origin))
        if self.documents == NULL or self.origins == NULL:
            raise MemoryError

    def __dealloc__(self):
        _free_matches(&self.kept)
        free(self.origins)
        free(self.documents)

    def __len__(self):
        return self.count

    def load(self, Py_ssize_t first, bytes records not None):
        """Take over the records of consecutive documents; those of kind 0 are none.

        Raises:
            ValueError: they are damaged.
        """
        cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(records)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(records), at
        cdef Document *each
        cdef Origin *origin
        if size % RECORD_BYTES or first < 0 or first > self.count - size // RECORD_BYTES:
            raise ValueError("the records of documents are damaged")
        for at in range(first, first + size // RECORD_BYTES):
            each, origin = &self.documents[at], &self.origins[at]
            origin.group, origin.number = _load64(p), _load64(p + 8)
            each.length, origin.time, origin.author = (
                _load32(p + 16), _load32(p + 20), _load32(p + 24))
            each.kind, each.role, each.weight, each.flags = p[28], p[29], p[30], p[31]
            # A score of 0 marks a document that no term has reached: a weight of 0 would forge it.
            if each.kind and (each.kind >= 64 or each.role >= 64 or not each.weight):
                each.kind = 0
                raise ValueError("the record of a document is damaged")
            p += RECORD_BYTES

    def link(self):
        """Find the neighbours of all documents, once all records are loaded."""
        cdef Py_ssize_t at, size = 2
        cdef uint32_t *last
        cdef Document *each
        cdef Document *known
        cdef const Origin *origin
        cdef const Origin *other
        cdef size_t slot
        cdef bint ascending = True
        while size < 2 * self.count:
            size *= 2
        last = <uint32_t *>calloc(<size_t>size, sizeof(uint32_t))
        if last == NULL:
            raise MemoryError
        try:
            for at in range(self.count):
                each = &self.documents[at]
                each.before = each.behind = 0
                if not (each.kind and each.flags & CHAINED):
                    continue
                origin = &self.origins[at]
                slot = <size_t>((origin.group * 0x9E3779B97F4A7C15ULL + each.kind) >> 20)
                while True:
                    slot &= <size_t>size - 1
                    if not last[slot]:
                        break
                    known, other = &self.documents[last[slot] - 1], &self.origins[last[slot] - 1]
                    if other.group == origin.group and known.kind == each.kind:
                        if other.number >= origin.number:
                            ascending = False
                            break
                        known.behind = <uint32_t>at + 1
                        each.before = last[slot]
                        break
                    slot += 1
                if not ascending:
                    break
                last[slot] = <uint32_t>at + 1
        finally:
            free(last)
        if not ascending:
            self._link_sorted()

    cdef int _link_sorted(self) except -1:
        """Find the neighbours where some were added out of order."""
        cdef Ranked *found = <Ranked *>malloc((<size_t>self.count + 1) * sizeof(Ranked))
        cdef Py_ssize_t at, count = 0
        cdef Document *each
        if found == NULL:
            raise MemoryError
        for at in range(self.count):
            each = &self.documents[at]
            each.before = each.behind = 0
            if each.kind and each.flags & CHAINED:
                found[count].score = 0.0
                found[count].kind, found[count].group = each.kind, self.origins[at].group
                found[count].number, found[count].ordinal = self.origins[at].number, <uint32_t>at
                count += 1
        qsort(found, <size_t>count, sizeof(Ranked), _by_rank)
        for at in range(1, count):
            if (found[at].kind == found[at - 1].kind and found[at].group == found[at - 1].group):
                self.documents[found[at].ordinal].before = found[at - 1].ordinal + 1
                self.documents[found[at - 1].ordinal].behind = found[at].ordinal + 1
        free(found)
        return 0

    def record(self, Py_ssize_t ordinal):
        """Return ``(kind, group, number, length, weight, before, behind)`` of a document.

        ``before`` and ``behind`` are the ordinals of its neighbours, -1 for none. None: there is
        no such document.
        """
        cdef const Document *each
        cdef const Origin *origin
        if not 0 <= ordinal < self.count or not self.documents[ordinal].kind:
            return None
        each, origin = &self.documents[ordinal], &self.origins[ordinal]
        return (each.kind, origin.group, origin.number, each.length, each.weight,
                <Py_ssize_t>each.before - 1, <Py_ssize_t>each.behind - 1)

    cdef Py_ssize_t _add(self, Matches *found, uint32_t ordinal, double value) noexcept nogil:
        """Add to a document's score."""
        if not self.documents[ordinal].kind or not value > 0.0:
            return 0
        if found.scores[ordinal] == 0.0:
            found.touched[found.count] = ordinal
            found.count += 1
        found.scores[ordinal] += value
        return 0

    cdef double _part(self, uint32_t ordinal, uint32_t times, double idf, double k1,
                      double floor_, double slope) noexcept nogil:
        """A term's part of a document's score: BM25 of Robertson and Zaragoza (2009), eq. 3.15."""
        return idf * times * (k1 + 1.0) / (
            times + k1 * (floor_ + slope * self.documents[ordinal].length))

    cdef bint _is_wanted(self, uint32_t ordinal, const Wanted *wanted) noexcept nogil:
        cdef const Document *each = &self.documents[ordinal]
        cdef const Origin *origin = &self.origins[ordinal]
        cdef Py_ssize_t at
        cdef bint found = wanted.n_authors == 0
        if not (wanted.kinds >> each.kind & 1 and wanted.roles >> each.role & 1):
            return False
        if not wanted.since <= origin.time < wanted.until:
            return False
        for at in range(wanted.n_authors):
            found = found or wanted.authors[at] == origin.author
        if not found or wanted.n_ranges < 0:
            return found
        for at in range(wanted.n_ranges):
            if (origin.group == wanted.ranges[3 * at]
                    and wanted.ranges[3 * at + 1] <= origin.number <= wanted.ranges[3 * at + 2]):
                return True
        return False

    def rank(self, list terms not None, list pending not None, list absent not None, *,
             Py_ssize_t k, double total, double k1, double b, double average, double lend,
             uint64_t kinds, uint64_t roles, uint32_t since, uint32_t until,
             bytes authors not None, bytes ranges, list vectors=None, bytes query=b"",
             double mix=0.0, list lent=None):
        """Return the best documents, ``(ordinal, score, own score)``, best first, and frequencies.

        The frequencies are the numbers of documents that have each term.

        The score is BM25 by the document's weight, plus ``lend`` of its neighbours' scores; equal
        ones are in the order of kind, group and number.

        Args:
            terms: ``(hash, [(base, stop, block)])`` of each term of the query.
            pending: ``(ordinal, packed terms)`` of documents that no block has yet.
            absent: packed terms of documents that blocks have and the table has not.
            k: the most results.
            total: the number of documents.
            k1: BM25's saturation.
            b: BM25's weight of the length.
            average: the average length of a document.
            lend: the part of its score that a document lends each neighbour.
            kinds: the kinds of documents wanted, one bit each.
            roles: the roles wanted, likewise.
            since: the first time wanted, in seconds since 1970.
            until: the first time no longer wanted.
            authors: hashes u32 of the authors wanted; empty: all.
            ranges: ``group u64, first number u64, last number u64`` of the documents wanted; None:
                all.
            vectors: ``(first ordinal, block)`` of vectors; None: BM25 alone counts. Otherwise the
                scores of all documents of the kinds wanted and the cosine similarities of those
                with a vector are each scaled to 0..1 and mixed; of those without neighbours, only
                the roles wanted count.
            query: the query's vector, float32 scale and int8 numbers.
            mix: the part of the similarity in a score, 0 to 1.
            lent: ``(ordinal, score)`` that is added to the own scores of documents.

        Raises:
            ValueError: a block, packed terms or vectors are damaged.
        """
        cdef Wanted wanted
        cdef Matches found
        cdef Ranked *heap = NULL
        cdef Py_ssize_t at, size = 0
        cdef uint32_t ordinal
        cdef double value
        cdef list best = []
        cdef list frequencies
        wanted.kinds, wanted.roles, wanted.since, wanted.until = kinds, roles, since, until
        wanted.authors = <const uint32_t *>PyBytes_AS_STRING(authors)
        wanted.n_authors = PyBytes_GET_SIZE(authors) // 4
        wanted.ranges, wanted.n_ranges = NULL, -1
        if ranges is not None:
            wanted.ranges = <const uint64_t *>PyBytes_AS_STRING(ranges)
            wanted.n_ranges = PyBytes_GET_SIZE(ranges) // 24
        k = max(0, min(k, self.count))
        self._borrow(&found)
        heap = <Ranked *>malloc((<size_t>k + 1) * sizeof(Ranked))
        try:
            if heap == NULL:
                raise MemoryError
            frequencies = self._match(&found, terms, pending, absent, total, k1,
                                      1.0 - b, b / average if average > 0.0 else 0.0)
            if vectors is not None:
                self._mix(&found, vectors, query, mix, &wanted)
            with nogil:
                for at in range(found.count):
                    ordinal = found.touched[at]
                    found.scores[ordinal] *= self.documents[ordinal].weight / 100.0
            if lent is not None:
                for at, value in lent:
                    if 0 <= at < self.count:
                        self._add(&found, <uint32_t>at, value)
            with nogil:
                size = self._select(&found, heap, k, lend, &wanted)
            for at in range(size):
                best.append((heap[at].ordinal, heap[at].score, heap[at].own))
            return best, frequencies
        finally:
            self._give_back(&found)
            free(heap)

    cdef int _borrow(self, Matches *found) except -1:
        """Take the arrays of the last ranking, whose scores are all 0; new ones if they are taken.

        Two rankings may run at once, as each gives up the GIL while it counts.
        """
        found[0] = self.kept
        memset(&self.kept, 0, sizeof(Matches))
        found.count = 0
        if found.scores != NULL:
            return 0
        found.scores = <double *>calloc(<size_t>self.count + 1, sizeof(double))
        found.touched = <uint32_t *>malloc((<size_t>self.count + 1) * sizeof(uint32_t))
        if found.scores == NULL or found.touched == NULL:
            _free_matches(found)
            raise MemoryError
        return 0

    cdef void _give_back(self, Matches *found) noexcept:
        """Keep the arrays of a ranking for the next one, unless another gave its own back."""
        cdef Py_ssize_t at
        if self.kept.scores != NULL:
            _free_matches(found)
            return
        for at in range(found.count):
            found.scores[found.touched[at]] = 0.0
        self.kept = found[0]

    cdef Py_ssize_t _select(self, Matches *found, Ranked *heap, Py_ssize_t k, double lend,
                            const Wanted *wanted) noexcept nogil:
        """Put the best k documents wanted into ``heap``, best first; return how many they are.

        Neighbours of matching documents, which live on what these lend, join the list on the way;
        their own scores are negative.
        """
        cdef Py_ssize_t at = 0, size = 0, own = found.count
        cdef uint32_t ordinal, beside
        cdef int side
        cdef double lent, value, most = 0.0
        cdef Ranked each
        cdef const Document *document
        cdef const Origin *origin
        for at in range(own):
            most = max(most, found.scores[found.touched[at]])
        at = 0
        while at < found.count:
            ordinal = found.touched[at]
            # With two neighbours of the highest score it would not be among the best, nor would a
            # neighbour that lives on what it lends: what that needs, its other neighbour has.
            if at < own and size == k > 0 and (
                found.scores[ordinal] + 2.0 * lend * most < heap[0].score
            ):
                at += 1
                continue
            document = &self.documents[ordinal]
            lent = 0.0
            for side in range(2):
                beside = document.behind if side else document.before
                if not beside:
                    continue
                value = found.scores[beside - 1]
                if value > 0.0:
                    lent += value
                elif value == 0.0 and at < own:
                    found.scores[beside - 1] = -1.0
                    found.touched[found.count] = beside - 1
                    found.count += 1
            each.own = found.scores[ordinal] if at < own else 0.0
            each.score = each.own + lend * lent
            at += 1
            if each.score <= 0.0 or (size == k > 0 and each.score < heap[0].score):
                continue
            if not self._is_wanted(ordinal, wanted):
                continue
            origin = &self.origins[ordinal]
            each.group, each.number, each.kind = origin.group, origin.number, document.kind
            each.ordinal = ordinal
            size = _keep_best(heap, size, k, &each)
        qsort(heap, <size_t>size, sizeof(Ranked), _by_rank)
        return size

    cdef inline bint _counts(self, Py_ssize_t ordinal, const Wanted *wanted) noexcept nogil:
        """Whether a document's score takes part in the scale of all.

        One of another role does if it may lend to its neighbours. Without neighbours it is as if it
        were not there: what nobody may see, as a memory in quarantine, does not move the scale.
        """
        cdef const Document *each = &self.documents[ordinal]
        if not each.kind or not wanted.kinds >> each.kind & 1:
            return False
        return each.flags & CHAINED or wanted.roles >> each.role & 1

    cdef int _mix(self, Matches *found, list vectors, bytes query, double mix,
                  const Wanted *wanted) except -1:
        """Replace the scores of BM25 by their mixture with the similarity of vectors."""
        cdef Similarity similar
        cdef Py_ssize_t at, first, dims = PyBytes_GET_SIZE(query) - VECTOR_SCALE
        cdef int16_t wide[VECTOR_DIMENSIONS]
        cdef float length
        cdef bytes block
        if not 0 < dims <= VECTOR_DIMENSIONS or not 0.0 <= mix <= 1.0:
            raise ValueError("the vector of a query is damaged")
        memcpy(&length, PyBytes_AS_STRING(query), VECTOR_SCALE)
        if not 0.0 <= length <= 1.0:
            raise ValueError("the vector of a query is damaged")
        _widen(wide, <const int8_t *>PyBytes_AS_STRING(query) + VECTOR_SCALE, dims)
        similar.least, similar.most, similar.counted = 2.0, -2.0, 0
        if found.cosines == NULL:
            found.cosines = <double *>malloc((<size_t>self.count + 1) * sizeof(double))
            if found.cosines == NULL:
                raise MemoryError
        similar.cosines = found.cosines
        with nogil:
            for at in range(self.count):
                if self._counts(at, wanted):
                    similar.cosines[at] = -2.0
                    similar.counted += 1
                else:
                    similar.cosines[at] = -3.0
        for first, block in vectors:
            if not 0 <= first <= self.count or PyBytes_GET_SIZE(block) % (VECTOR_SCALE + dims):
                raise ValueError("a block of vectors is damaged")
            if self._compare(&similar, first, block, wide, dims, length) < 0:
                raise ValueError("a block of vectors is damaged")
        with nogil:
            self._blend(found, &similar, mix)
        return 0

    cdef int _compare(self, Similarity *similar, Py_ssize_t first, bytes block,
                      const int16_t *query, Py_ssize_t dims, float length) noexcept:
        """Compare the vectors of a block with the query's; return -1 if a scale is impossible."""
        cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(block)
        cdef Py_ssize_t rows = PyBytes_GET_SIZE(block) // (VECTOR_SCALE + dims), at, begin, part
        cdef const int8_t *numbers = <const int8_t *>p + VECTOR_SCALE * rows
        cdef int32_t dots[DOTS]
        cdef double *cosines = similar.cosines + first
        cdef double value, least = similar.least, most = similar.most
        cdef float scale
        cdef int damaged = 0
        rows = min(rows, self.count - first)
        with nogil:
            begin = 0
            while begin < rows:
                part = min(rows - begin, <Py_ssize_t>DOTS)
                memcore_dots(numbers + begin * dims, <int>part, query, <int>dims, dots)
                for at in range(begin, begin + part):
                    memcpy(&scale, p + VECTOR_SCALE * at, VECTOR_SCALE)
                    if not 0.0 <= scale <= 1.0:
                        damaged = -1
                    if scale == 0.0 or cosines[at] < -2.5:
                        continue
                    value = <double>dots[at - begin] * scale * length
                    value = max(-1.0, min(1.0, value))
                    cosines[at] = value
                    least = min(least, value)
                    most = max(most, value)
                begin += part
            similar.least, similar.most = least, most
        return damaged

    cdef Py_ssize_t _blend(self, Matches *found, const Similarity *similar,
                           double mix) noexcept nogil:
        """Scale scores and similarities to 0..1 over all documents that count, and mix them.

        Where all values of a side are the same, each is 1.
        """
        cdef Py_ssize_t at, scored = 0
        cdef uint32_t ordinal
        cdef double least = -1.0, most = 0.0, score, cosine
        cdef double lowest = similar.least, spread = similar.most - similar.least
        for at in range(found.count):
            ordinal = found.touched[at]
            if similar.cosines[ordinal] < -2.5:
                found.scores[ordinal] = 0.0
                continue
            score = found.scores[ordinal]
            least = score if least < 0.0 else min(least, score)
            most = max(most, score)
            scored += 1
        if scored < similar.counted:
            least = 0.0  # that of a document without a word of the query
        found.count = 0
        for at in range(self.count):
            cosine = similar.cosines[at]
            if cosine < -2.5:
                continue
            score = found.scores[at]
            if score > 0.0:
                score = (score - least) / (most - least) if most > least else 1.0
                score *= 1.0 - mix
            if cosine >= -1.0:
                score += mix * ((cosine - lowest) / spread if spread > 0.0 else 1.0)
            found.scores[at] = score
            if score > 0.0:
                found.touched[found.count] = <uint32_t>at
                found.count += 1
        return found.count

    cdef list _match(self, Matches *found, list terms, list pending, list absent, double total,
                     double k1, double floor_, double slope):
        """Add up the scores of all documents; return the number that has each term.

        The inverse document frequency is Lucene's, which is never negative.
        """
        cdef uint32_t ordinals[BLOCK_POSTINGS]
        cdef uint8_t times[BLOCK_POSTINGS]
        cdef Py_ssize_t count, at, having, fresh
        cdef Posting *found_in = <Posting *>malloc((<size_t>len(pending) + 1) * sizeof(Posting))
        cdef double idf
        cdef uint64_t term
        cdef uint32_t base, stop
        cdef list blocks, frequencies = []
        cdef bytes block, packed
        cdef const uint8_t *p
        cdef Py_ssize_t ordinal
        if found_in == NULL:
            raise MemoryError
        try:
            for term, blocks in terms:
                having = fresh = 0
                for base, stop, block in blocks:
                    if PyBytes_GET_SIZE(block) < BLOCK_HEADER:
                        raise ValueError("a block of postings is damaged")
                    having += _u16(<const uint8_t *>PyBytes_AS_STRING(block))
                for ordinal, packed in pending:
                    if not 0 <= ordinal < self.count:
                        raise ValueError("an ordinal is out of range")
                    p = <const uint8_t *>PyBytes_AS_STRING(packed)
                    at = _entry_of(p, _entries(packed), term)
                    if at >= 0:
                        found_in[fresh].ordinal = <uint32_t>ordinal
                        found_in[fresh].times = p[ENTRY_BYTES * at + 8]
                        fresh += 1
                having += fresh
                for packed in absent:
                    p = <const uint8_t *>PyBytes_AS_STRING(packed)
                    having -= _entry_of(p, _entries(packed), term) >= 0
                having = max(having, 0)
                frequencies.append(having)
                idf = log(1.0 + (total - having + 0.5) / (having + 0.5))
                for base, stop, block in blocks:
                    count = _unpack_block(
                        block, base, min(stop, <uint32_t>self.count), ordinals, times)
                    if count < 0:
                        raise ValueError("a block of postings is damaged")
                    for at in range(count):
                        self._add(found, ordinals[at], self._part(
                            ordinals[at], times[at], idf, k1, floor_, slope))
                for at in range(fresh):
                    self._add(found, found_in[at].ordinal, self._part(
                        found_in[at].ordinal, found_in[at].times, idf, k1, floor_, slope))
            return frequencies
        finally:
            free(found_in)


cdef Py_ssize_t _entry_of(const uint8_t *p, Py_ssize_t entries, uint64_t term) noexcept nogil:
    """The entry of a term in packed terms, or -1."""
    cdef Py_ssize_t low = 0, high = entries, at
    cdef uint64_t found
    while low < high:
        at = (low + high) // 2
        found = _load64(p + ENTRY_BYTES * at)
        if found == term:
            return at
        if found < term:
            low = at + 1
        else:
            high = at
    return -1


cdef Py_ssize_t _keep_best(Ranked *heap, Py_ssize_t size, Py_ssize_t k,
                           const Ranked *each) noexcept nogil:
    """Put a document into the heap of the best k; returns the heap's size."""
    cdef Py_ssize_t at
    if k == 0:
        return 0
    if size < k:
        heap[size] = each[0]
        size += 1
        if size == k:
            for at in range(k // 2 - 1, -1, -1):
                _sink(heap, k, at)
        return size
    if _is_better(each, &heap[0]):
        heap[0] = each[0]
        _sink(heap, k, 0)
    return size


def times_in(bytes packed not None, uint64_t term):
    """Return the occurrences of a term in packed terms.

    Raises:
        ValueError: they are damaged.
    """
    cdef Py_ssize_t entries = _entries(packed)
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(packed)
    cdef Py_ssize_t at = _entry_of(p, entries, term)
    return 0 if at < 0 else p[ENTRY_BYTES * at + 8]


# --- vectors --------------------------------------------------------------------------------------

def quantized(tuple numbers not None):
    """Round a vector to int8, its largest number to 127; return it packed.

    Packed are its scale, 1 / its length then, as float32, and its numbers. None: a number is
    infinite or NaN.

    Raises:
        TypeError, ValueError: something is not a number.
        OverflowError: an integer is too large for a float.
    """
    cdef Py_ssize_t count = len(numbers), at
    cdef double most = 0.0, squares = 0.0, value
    cdef double *given = <double *>malloc(<size_t>(count + 1) * sizeof(double))
    cdef bytes packed
    cdef uint8_t *p
    cdef int8_t number
    cdef float scale = -0.0
    if given == NULL:
        raise MemoryError
    try:
        for at in range(count):
            value = float(numbers[at])
            if not isfinite(value):
                return None
            given[at] = value
            most = max(most, fabs(value))
        packed = PyBytes_FromStringAndSize(NULL, VECTOR_SCALE + count)
        p = <uint8_t *>PyBytes_AS_STRING(packed)
        for at in range(count):
            number = <int8_t>rint(given[at] / most * 127) if most > 0.0 else 0
            squares += number * number
            p[VECTOR_SCALE + at] = <uint8_t>number
        if most > 0.0:
            scale = <float>(1.0 / sqrt(squares))
        memcpy(p, &scale, VECTOR_SCALE)
        return packed
    finally:
        free(given)


cdef inline void _widen(int16_t *wide, const int8_t *numbers, Py_ssize_t count) noexcept nogil:
    """Widen numbers to 16 bits, as the processor multiplies them."""
    cdef Py_ssize_t at
    for at in range(count):
        wide[at] = numbers[at]


def best_vectors(bytes vectors not None, bytes query not None, Py_ssize_t k):
    """Return ``(row, dot product)`` of the ``k`` rows most similar to a query, best first.

    Exact. ``vectors`` holds rows of int8, each as long as the query; equal products are in the
    order of rows.

    Raises:
        ValueError: the query has no or more than 65,536 numbers, or the last row is cut short.
    """
    cdef Py_ssize_t dims = PyBytes_GET_SIZE(query), size = PyBytes_GET_SIZE(vectors), count, at
    cdef const int8_t *rows = <const int8_t *>PyBytes_AS_STRING(vectors)
    cdef int16_t *wide
    cdef int32_t dots[DOTS]
    cdef Ranked *heap
    cdef Ranked each
    cdef Py_ssize_t kept = 0, begin, part
    cdef list best = []
    if not 0 < dims <= 65536 or size % dims:
        raise ValueError("vectors are rows of 1 to 65,536 numbers, as many as the query has")
    count = size // dims
    if count >= UINT32_MAX:
        raise ValueError("there are 4 billion vectors or more")
    k = max(0, min(k, count))
    heap = <Ranked *>malloc((<size_t>k + 1) * sizeof(Ranked))
    wide = <int16_t *>malloc(<size_t>dims * sizeof(int16_t))
    try:
        if heap == NULL or wide == NULL:
            raise MemoryError
        _widen(wide, <const int8_t *>PyBytes_AS_STRING(query), dims)
        with nogil:
            memset(&each, 0, sizeof(Ranked))
            begin = 0
            while begin < count:
                part = min(count - begin, <Py_ssize_t>DOTS)
                memcore_dots(rows + begin * dims, <int>part, wide, <int>dims, dots)
                for at in range(begin, begin + part):
                    each.score = dots[at - begin]
                    each.ordinal = <uint32_t>at
                    kept = _keep_best(heap, kept, k, &each)
                begin += part
            qsort(heap, <size_t>kept, sizeof(Ranked), _by_rank)
        for at in range(kept):
            best.append((heap[at].ordinal, <int64_t>heap[at].score))
        return best
    finally:
        free(heap)
        free(wide)
