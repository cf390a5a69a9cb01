# --- finding sensitive data in a text -------------------------------------------------------------
#
# One pass over a copy in which every code point is one byte: ASCII unchanged, full-width forms as
# their ASCII equivalents, all else 0x80 (0x81: invisible). So its offsets are offsets in the text.
# A table lists the bytes at which something may begin. What is examined from there is bounded, or
# is not examined again, so that every text takes linear time; `work` counts the steps, for tests.
#
# A text with escapes (\u0040, %40, &#64;) or invisible characters is scanned twice: unchanged, and
# decoded without the invisible ones, with a map of the offsets. The findings of both passes count.

cdef enum:
    # Classes: memcore/privacy/policy.py has the names.
    C_EMAIL = 0
    C_CN_MOBILE = 1
    C_PHONE = 2
    C_CN_ID = 3
    C_STUDENT_ID = 4
    C_CARD = 5
    C_API_KEY = 6
    C_JWT = 7
    C_PRIVATE_KEY = 8
    C_TOKEN = 9
    C_PASSWORD = 10
    C_IPV4 = 11
    C_IPV6 = 12

cdef enum:
    # Triggers: the kind of finding that a byte may begin.
    T_DIGIT = 1
    T_LETTER = 2        # the first letter of a key, or of "Bearer"; the J of a web token
    T_AT = 3
    T_COLON = 4
    T_EQUAL = 5
    T_BRACKET = 6
    T_SIGN = 7          # -, _ or . in the prefix of a key; a private key

cdef enum:
    # Properties of a byte.
    P_DIGIT = 1
    P_LOWER = 2
    P_UPPER = 4
    P_LETTER = 6
    P_ALNUM = 7
    P_LOCAL = 8         # legal in the part of an address before the @
    P_KEY = 16          # legal in a key: alphanumeric, _ and -
    P_BEARER = 32       # legal in a bearer token
    P_HEX = 64
    P_QUOTE = 128
    P_SPACE = 256
    P_END = 512         # ends an unquoted value
    P_BASE64 = 1024
    P_BREAK = 2048      # a value in prose begins after it
    P_LEAD = 4096       # may separate such a value from the words before it

cdef enum:
    INVISIBLE = 0x81
    GIL_HELD_CHARS = 16384
    KEY_BODY_MAX = 16384
    PREFIX_MAX = 10
    WRAPPED_LEAST = 6       # least characters on each line of a key wrapped over two
    BACKSLASHES_MAX = 8     # before an escape: JSON in JSON in JSON

cdef extern from *:
    """
    /* Keys of known providers: the prefix ('?' is any lower-case letter), the least number of
       characters that follow, their alphabet (0 alphanumeric, 1 also _ and -, 2 also -, 3 capitals
       and digits), and whether that number is exact. Grouped by first letter, which is an A or an
       L, or has a sign among the next ten characters (a dot: see _sign). */
    typedef struct { const char *prefix; int size, least, alphabet, exact; } memcore_key;
    #define KEY(prefix, least, alphabet, exact) {prefix, sizeof(prefix) - 1, least, alphabet, exact}
    static const memcore_key MEMCORE_KEYS[] = {
        KEY("ABIA", 16, 3, 1), KEY("ACCA", 16, 3, 1), KEY("AGE-SECRET-KEY-1", 50, 3, 0),
        KEY("AIza", 30, 1, 0), KEY("AKIA", 16, 3, 1), KEY("AKID", 28, 0, 0),
        KEY("AKLT", 28, 0, 0), KEY("ASIA", 16, 3, 1), KEY("ATATT3", 40, 1, 0),
        KEY("GOCSPX-", 20, 1, 0), KEY("LTAI", 12, 0, 0), KEY("PMAK-", 40, 2, 0),
        KEY("csk-", 30, 0, 0), KEY("dckr_pat_", 20, 1, 0), KEY("dop_v1_", 32, 0, 0),
        KEY("e2b_", 30, 0, 0), KEY("figd_", 30, 1, 0),
        KEY("gh?_", 30, 0, 0), KEY("github_pat_", 22, 1, 0), KEY("gldt-", 20, 1, 0),
        KEY("glpat-", 20, 1, 0), KEY("glptt-", 20, 1, 0), KEY("glrt-", 20, 1, 0),
        KEY("glsa_", 30, 1, 0), KEY("gsk_", 30, 0, 0), KEY("hf_", 20, 0, 0),
        KEY("hvs.", 20, 1, 0), KEY("jina_", 30, 1, 0), KEY("lin_api_", 30, 0, 0),
        KEY("lsv2_", 30, 1, 0), KEY("npm_", 30, 0, 0), KEY("ntn_", 30, 0, 0),
        KEY("nvapi-", 40, 1, 0), KEY("pcsk_", 40, 1, 0), KEY("pplx-", 30, 0, 0),
        KEY("pscale_", 30, 1, 0), KEY("pypi-", 40, 1, 0), KEY("r8_", 30, 0, 0),
        KEY("rk_live_", 16, 0, 0), KEY("rk_test_", 16, 0, 0), KEY("rubygems_", 40, 0, 0),
        KEY("sbp_", 30, 0, 0), KEY("shp??_", 30, 0, 0), KEY("sk-", 20, 1, 0),
        KEY("sk_live_", 16, 0, 0), KEY("sk_test_", 16, 0, 0), KEY("sntry?_", 40, 1, 0),
        KEY("tvly-", 20, 1, 0), KEY("whsec_", 16, 0, 0), KEY("xai-", 30, 0, 0),
        KEY("xapp-", 10, 2, 0), KEY("xkeysib-", 40, 2, 0), KEY("xox?-", 10, 2, 0),
        KEY("ya29.", 20, 1, 0),
    };
    enum { MEMCORE_KEYS_COUNT = sizeof(MEMCORE_KEYS) / sizeof(MEMCORE_KEYS[0]) };
    """
    ctypedef struct memcore_key:
        const char *prefix
        int size
        int least
        int alphabet
        int exact
    const memcore_key MEMCORE_KEYS[]
    int MEMCORE_KEYS_COUNT

cdef uint8_t _TRIGGER[256]
cdef uint16_t _PROPERTY[256]
cdef int8_t _FIRST_KEY[256]

ctypedef struct Found:
    Py_ssize_t start
    Py_ssize_t stop
    int number

ctypedef struct Scan:
    const uint8_t *t
    Py_ssize_t n
    const void *raw         # the text itself, for non-ASCII words
    int kind
    int classes
    int context
    Found *found
    Py_ssize_t count
    Py_ssize_t room
    Py_ssize_t floor        # end of the findings that an address may not absorb
    Py_ssize_t judged       # up to here, values in prose have been examined
    Py_ssize_t footer_from      # start of the last search for the footer of a private key
    Py_ssize_t footer
    Py_ssize_t footer_stop
    int64_t work
    bint failed


cdef void _mark(const char *chars, int properties) noexcept:
    while chars[0]:
        _PROPERTY[<uint8_t>chars[0]] |= <uint16_t>properties
        chars += 1


cdef void _fill_tables() noexcept:
    cdef int c, at
    cdef int alnum = P_LOCAL | P_KEY | P_BEARER | P_BASE64
    for c in range(256):
        _TRIGGER[c] = 0
        _PROPERTY[c] = P_END | P_BREAK if c >= 128 else 0
        _FIRST_KEY[c] = -1
    for c in range(c'0', c'9' + 1):
        _PROPERTY[c] = <uint16_t>(P_DIGIT | P_HEX | alnum)
        _TRIGGER[c] = T_DIGIT
    for c in range(c'a', c'z' + 1):
        _PROPERTY[c] = <uint16_t>(P_LOWER | alnum)
        _PROPERTY[c - 32] = <uint16_t>(P_UPPER | alnum)
    _mark(b"abcdefABCDEF", P_HEX)
    _mark(b"._%+-", P_LOCAL)
    _mark(b"_-", P_KEY)
    _mark(b"-._~+/=", P_BEARER)
    _mark(b"+/=", P_BASE64)
    _mark(b"\"'`", P_QUOTE | P_END | P_BREAK | P_LEAD)
    _mark(b" \t\r\n\v\f", P_SPACE | P_END | P_BREAK)
    _mark(b",;&<>)}]|", P_END | P_BREAK)
    _mark(b":=[(*\\", P_BREAK | P_LEAD)
    _mark(b" \n", P_LEAD)
    for at in range(MEMCORE_KEYS_COUNT):
        c = MEMCORE_KEYS[at].prefix[0]
        if _FIRST_KEY[c] < 0:
            _FIRST_KEY[c] = <int8_t>at
    for c in b"ALJBb":
        _TRIGGER[c] = T_LETTER
    for c in b"-_.":
        _TRIGGER[c] = T_SIGN
    _TRIGGER[c'@'] = T_AT
    _TRIGGER[c':'] = T_COLON
    _TRIGGER[c'='] = T_EQUAL
    _TRIGGER[c'['] = T_BRACKET


_fill_tables()


cdef inline bint _has(const Scan *s, Py_ssize_t i, int properties) noexcept nogil:
    return 0 <= i < s.n and _PROPERTY[s.t[i]] & properties != 0


cdef inline uint8_t _byte(const Scan *s, Py_ssize_t i) noexcept nogil:
    """The byte at an offset; 0 outside."""
    return s.t[i] if 0 <= i < s.n else 0


cdef inline bint _on(const Scan *s, int number) noexcept nogil:
    return (s.classes >> number) & 1 != 0


cdef inline bint _says(
    const Scan *s, Py_ssize_t i, const char *word, Py_ssize_t size
) noexcept nogil:
    """Return True if a word (lower-case ASCII) is at an offset, in any case."""
    cdef Py_ssize_t k
    cdef uint8_t c
    if i < 0 or i + size > s.n:
        return False
    for k in range(size):
        c = s.t[i + k]
        if _PROPERTY[c] & P_UPPER:
            c += 32
        if c != <uint8_t>word[k]:
            return False
    return True


cdef inline bint _escape_before(const Scan *s, Py_ssize_t i) noexcept nogil:
    """Return True if the letter at an offset belongs to an escape: \\n in JSON kept as text."""
    cdef uint8_t c = _byte(s, i)
    if _byte(s, i - 1) != c'\\':
        return False
    return c == c'n' or c == c'r' or c == c't' or c == c'b' or c == c'f'


cdef inline bint _begins(const Scan *s, Py_ssize_t i) noexcept nogil:
    """Return True if an offset is not in the middle of a word or key."""
    return i == 0 or not _has(s, i - 1, P_KEY) or _escape_before(s, i - 1)


cdef void _emit(Scan *s, Py_ssize_t start, Py_ssize_t stop, int number) noexcept nogil:
    cdef Found *grown
    if s.count == s.room:
        grown = <Found *>realloc(s.found, <size_t>(2 * s.room + 8) * sizeof(Found))
        if grown == NULL:
            s.failed = True
            return
        s.found = grown
        s.room = 2 * s.room + 8
    s.found[s.count].start = start
    s.found[s.count].stop = stop
    s.found[s.count].number = number
    s.count += 1


cdef inline Py_ssize_t _emit_whole(
    Scan *s, Py_ssize_t start, Py_ssize_t stop, int number
) noexcept nogil:
    """Emit a finding that no address may absorb; returns where to continue."""
    _emit(s, start, stop, number)
    s.floor = stop
    return stop


cdef Py_ssize_t _placeholder(const Scan *s, Py_ssize_t i) noexcept nogil:
    """The end of the placeholder at an offset, -1 if there is none."""
    cdef Py_ssize_t j = i + 1, k
    cdef uint8_t c
    while j < s.n and j - i <= 41 and (_PROPERTY[s.t[j]] & (P_UPPER | P_DIGIT) or s.t[j] == c'_'):
        j += 1
    if _byte(s, j) != c']' or j - i < 9 or s.t[j - 7] != c'_':
        return -1
    for k in range(j - 6, j):
        c = s.t[k]
        if c == c'_' or c == c'I' or c == c'L' or c == c'O' or c == c'U':
            return -1
    for k in range(i + 1, j - 7):
        if _PROPERTY[s.t[k]] & P_DIGIT:
            return -1
    if s.t[i + 1] == c'_' or s.t[j - 8] == c'_':
        return -1
    return j + 1


# --- addresses ------------------------------------------------------------------------------------

cdef Py_ssize_t _local(Scan *s, Py_ssize_t at) noexcept nogil:
    """The start of the part before the @; ``at`` if there is none."""
    cdef Py_ssize_t start = at
    while start > s.floor and _has(s, start - 1, P_LOCAL):
        start -= 1
    s.work += at - start
    if start < at and _escape_before(s, start):
        start += 1
    while start < at and not _has(s, start, P_ALNUM):
        if s.t[start] == c'_':
            break
        start += 1
    if at - start == 3 and _says(s, start, b"git", 3):
        return at       # a repository
    return start


cdef inline bint _is_ideographic_stop(const Scan *s, Py_ssize_t i) noexcept nogil:
    """Return True at an ideographic full stop, which host names may have for a dot (RFC 3490).

    It also ends sentences: only the first dot of a domain may be one.
    """
    return (_byte(s, i) == 0x80 and _has(s, i + 1, P_ALNUM)
            and (_point(s, i) == 0x3002 or _point(s, i) == 0xFF61))


cdef Py_ssize_t _domain(Scan *s, Py_ssize_t i) noexcept nogil:
    """The end of the domain at an offset; -1 if there is none."""
    cdef Py_ssize_t at = i, label = i, end = -1, letters
    cdef bint dotted = False
    while True:
        while _has(s, at, P_ALNUM) or (at > label and _byte(s, at) == c'-'):
            at += 1
        if at == label:
            break
        letters = label
        while _has(s, letters, P_LETTER):
            letters += 1
        if dotted and (letters - label >= 2):
            # A last label of letters; what follows it without a dot is not part of the address.
            if letters == at or _has(s, letters, P_DIGIT) or _byte(s, letters) == c'-':
                end = at if _says(s, label, b"xn--", 4) else letters
        if _byte(s, at) != c'.' and (dotted or not _is_ideographic_stop(s, at)):
            break
        dotted = True
        at += 1
        label = at
    s.work += at - i
    return end


cdef Py_ssize_t _email(Scan *s, Py_ssize_t at) noexcept nogil:
    """Emit the address whose @ is at an offset; returns its end, -1 if it is not an address."""
    cdef Py_ssize_t start, stop
    if not _on(s, C_EMAIL):
        return -1
    start = _local(s, at)
    if start == at or s.t[at - 1] == c'.':
        return -1
    stop = _domain(s, at + 1)
    if stop < 0:
        return -1
    while s.count and s.found[s.count - 1].start >= start:
        s.count -= 1    # a number within the address
    if s.count and s.found[s.count - 1].stop > start:
        start = s.found[s.count - 1].stop
    return _emit_whole(s, start, stop, C_EMAIL)


cdef bint _octets(const Scan *s, Py_ssize_t i, Py_ssize_t *stop) noexcept nogil:
    """Return True if four dot-separated decimal bytes are at an offset; sets their end."""
    cdef int part, value, size
    for part in range(4):
        if part:
            if _byte(s, i) != c'.':
                return False
            i += 1
        value = size = 0
        while _has(s, i, P_DIGIT) and size < 4:
            value = 10 * value + s.t[i] - c'0'
            i += 1
            size += 1
        if size == 0 or size > 3 or value > 255:
            return False
    stop[0] = i
    return True


cdef Py_ssize_t _ipv4(Scan *s, Py_ssize_t i) noexcept nogil:
    """The end of the IPv4 address at an offset, -1 if there is none."""
    cdef Py_ssize_t stop = i
    if _has(s, i - 1, P_LETTER) or _byte(s, i - 1) == c'.' or _byte(s, i - 1) == c'_':
        return -1
    if not _octets(s, i, &stop) or _has(s, stop, P_ALNUM):
        return -1
    return -1 if _byte(s, stop) == c'.' and _has(s, stop + 1, P_DIGIT) else stop


cdef Py_ssize_t _ipv6(Scan *s, Py_ssize_t colon) noexcept nogil:
    """Emit the IPv6 address whose first colon is at an offset; returns its end, -1 if none."""
    cdef Py_ssize_t i = colon, size, tail = 0
    cdef int groups = 0, digits = 0
    cdef bint gap = False
    while i > 0 and colon - i < 4 and _has(s, i - 1, P_HEX):
        i -= 1
    if _has(s, i - 1, P_KEY) or _byte(s, i - 1) == c':' or _byte(s, i - 1) == c'.' or i < s.floor:
        return -1
    if i == colon and _byte(s, i + 1) != c':':
        return -1
    cdef Py_ssize_t start = i
    while groups < 8:
        if groups >= 2 and _octets(s, i, &tail) and (gap or groups == 6):
            groups += 2
            digits += 4
            i = tail
            break
        size = 0
        while size < 4 and _has(s, i, P_HEX):
            digits += _has(s, i, P_DIGIT)
            i += 1
            size += 1
        if size:
            groups += 1
        if _byte(s, i) != c':':
            break
        if _byte(s, i + 1) == c':':
            if gap:
                return -1
            gap = True
            i += 2
            if not _has(s, i, P_HEX):
                break
        elif size and groups < 8 and _has(s, i + 1, P_HEX):
            i += 1
        else:
            break
    s.work += i - start
    if _has(s, i, P_ALNUM) or _byte(s, i) == c'_' or (groups != 8 and not gap) or groups > 8:
        return -1
    if gap and (groups < 2 or (groups < 3 and digits == 0)):
        return -1
    if s.count and s.found[s.count - 1].stop > start:
        return -1
    return _emit_whole(s, start, i, C_IPV6)


# --- keys and tokens ------------------------------------------------------------------------------

cdef bint _is_mixed(const Scan *s, Py_ssize_t i, Py_ssize_t stop) noexcept nogil:
    """Return True if a token is not a plain word: it has digits, or letters of both cases."""
    cdef int seen = 0
    while i < stop:
        seen |= _PROPERTY[s.t[i]] & P_ALNUM
        if seen == P_LETTER or seen & P_DIGIT:
            return True
        i += 1
    return False


cdef inline bint _of_alphabet(const Scan *s, Py_ssize_t i, int alphabet) noexcept nogil:
    if alphabet == 0:
        return _has(s, i, P_ALNUM)
    if alphabet == 1:
        return _has(s, i, P_KEY)
    if alphabet == 2:
        return _has(s, i, P_ALNUM) or _byte(s, i) == c'-'
    return _has(s, i, P_UPPER | P_DIGIT)


cdef bint _has_prefix(const Scan *s, Py_ssize_t i, const memcore_key *key) noexcept nogil:
    """Return True if the prefix of a key is at an offset."""
    cdef int k = 0
    while k < key.size and i + k < s.n:
        if key.prefix[k] == c'?':
            if not _has(s, i + k, P_LOWER):
                return False
        elif <uint8_t>key.prefix[k] != s.t[i + k]:
            return False
        k += 1
    return k == key.size


cdef bint _is_prefix(const Scan *s, Py_ssize_t i) noexcept nogil:
    """Return True if any key's prefix is at an offset."""
    cdef int at = _FIRST_KEY[_byte(s, i)]
    while 0 <= at < MEMCORE_KEYS_COUNT and <uint8_t>MEMCORE_KEYS[at].prefix[0] == s.t[i]:
        if _has_prefix(s, i, &MEMCORE_KEYS[at]):
            return True
        at += 1
    return False


cdef Py_ssize_t _next_line(const Scan *s, Py_ssize_t i) noexcept nogil:
    """The start of the next line if one ends at an offset, also as escapes of JSON; else -1."""
    cdef Py_ssize_t at = i
    if _byte(s, at) == c'\\' and _byte(s, at + 1) == c'r':
        at += 2
    elif _byte(s, at) == c'\r':
        at += 1
    if _byte(s, at) == c'\\' and _byte(s, at + 1) == c'n':
        at += 2
    elif _byte(s, at) == c'\n':
        at += 1
    else:
        return -1
    while _byte(s, at) == c' ' and at - i < 16:
        at += 1
    return at


cdef Py_ssize_t _wrapped(
    Scan *s, Py_ssize_t body, Py_ssize_t stop, const memcore_key *key
) noexcept nogil:
    """The end of a key that continues on the next line; -1 if it does not."""
    cdef Py_ssize_t line = _next_line(s, stop), at, least = key.least
    cdef int seen = 0
    if line < 0 or stop - body < (2 if key.exact else WRAPPED_LEAST):
        return -1
    at = line
    while _of_alphabet(s, at, key.alphabet):
        seen |= _PROPERTY[s.t[at]] & P_ALNUM
        at += 1
    s.work += at - stop
    if key.exact:
        return at if at - line + stop - body == least and not _has(s, at, P_LOWER) else -1
    if at - line < WRAPPED_LEAST or at - line + stop - body < least or _is_prefix(s, line):
        return -1
    if not (seen & P_DIGIT and seen & P_LETTER):
        return -1       # probably a word
    if stop - body >= least and at - line < 2 * WRAPPED_LEAST and seen != P_ALNUM:
        return -1       # probably the next word
    if at < s.n and not _has(s, at, P_END) and s.t[at] != c'\\' and s.t[at] != c'.':
        return -1       # probably a name that is assigned to
    return at


cdef Py_ssize_t _provider_key(Scan *s, Py_ssize_t i) noexcept nogil:
    """The end of the provider's key at an offset, -1 if there is none."""
    cdef int at = _FIRST_KEY[s.t[i]], k
    cdef const memcore_key *key
    cdef Py_ssize_t j, stop
    if at < 0:
        return -1
    while at < MEMCORE_KEYS_COUNT and <uint8_t>MEMCORE_KEYS[at].prefix[0] == s.t[i]:
        key = &MEMCORE_KEYS[at]
        at += 1
        if not _has_prefix(s, i, key):
            continue
        k = key.size
        j = i + k
        while _of_alphabet(s, j, key.alphabet):
            j += 1
        s.work += j - i
        stop = _wrapped(s, i + k, j, key) if j - i - k != key.least or not key.exact else -1
        if stop > 0 and _is_mixed(s, i + k, stop):
            return stop
        if j - i - k < key.least:
            continue
        if key.exact:
            if j - i - k == key.least and not _has(s, j, P_LOWER):
                return j
        elif _is_mixed(s, i + k, j):
            return j
    return -1


cdef Py_ssize_t _segments(Scan *s, Py_ssize_t i, int least, int most) noexcept nogil:
    """The end of dot-separated base64url segments; -1 if there are too few."""
    cdef Py_ssize_t j = i, begun = i
    cdef int count = 0
    while count < most:
        begun = j
        while _has(s, j, P_KEY):
            j += 1
        if j - begun < 8 and not (count + 1 >= least and j > begun):
            break
        count += 1
        if _byte(s, j) != c'.' or not _has(s, j + 1, P_KEY):
            break
        j += 1
    s.work += j - i
    while count < most and j > i and s.t[j - 1] == c'.':
        j -= 1
    return j if count >= least else -1


cdef Py_ssize_t _key_at(Scan *s, Py_ssize_t i, int *number) noexcept nogil:
    """The end of the key or web token at an offset, -1 if there is none."""
    cdef Py_ssize_t stop
    if i >= s.n or not _begins(s, i):
        return -1
    if _on(s, C_JWT) and s.t[i] == c'e' and _byte(s, i + 1) == c'y' and _byte(s, i + 2) == c'J':
        number[0] = C_JWT
        return _segments(s, i, 3, 5)
    if not _on(s, C_API_KEY):
        return -1
    number[0] = C_API_KEY
    if s.t[i] == c'S' and _byte(s, i + 1) == c'G' and _byte(s, i + 2) == c'.':
        stop = _segments(s, i + 3, 2, 2)
        return stop if stop - i >= 40 and _is_mixed(s, i + 3, stop) else -1
    return _provider_key(s, i)


cdef bint _is_authorization(const Scan *s, Py_ssize_t i) noexcept nogil:
    """Return True if an offset is the value of an Authorization header or of a key so named."""
    cdef Py_ssize_t at = i
    cdef int k
    for k in range(8):
        if _has(s, at - 1, P_QUOTE) or _byte(s, at - 1) == c' ' or _byte(s, at - 1) == c':' or (
            _byte(s, at - 1) == c'=' or _byte(s, at - 1) == c'\\'
        ):
            at -= 1
    return at < i and _says(s, at - 13, b"authorization", 13)


cdef Py_ssize_t _bearer(Scan *s, Py_ssize_t i) noexcept nogil:
    """Emit the token after "Bearer" or "Basic" at an offset; returns its end, -1 if none."""
    cdef Py_ssize_t at, stop
    cdef int number = 0, least = 16
    if not _on(s, C_TOKEN):
        return -1
    if _says(s, i, b"bearer", 6):
        at = i + 6
    elif _says(s, i, b"basic", 5) and _is_authorization(s, i):
        at, least = i + 5, 8
    else:
        return -1
    if _byte(s, at) == c':':
        at += 1
    if _byte(s, at) != c' ':
        return -1
    while _byte(s, at) == c' ' and at < i + 10:
        at += 1
    if _key_at(s, at, &number) > 0:
        return -1
    stop = at
    while _has(s, stop, P_BEARER):
        stop += 1
    s.work += stop - i
    if stop - at < least or not _is_mixed(s, at, stop):
        return -1
    if s.t[stop - 1] == c'.':
        stop -= 1
    return _emit_whole(s, at, stop, C_TOKEN)


cdef Py_ssize_t _letter(Scan *s, Py_ssize_t i) noexcept nogil:
    """Examine a letter that may belong to a key; returns where to continue."""
    cdef Py_ssize_t stop = -1, start = i
    cdef int number = 0
    if s.t[i] == c'J':
        start = i - 2
        if start < s.floor or s.t[i - 1] != c'y' or s.t[start] != c'e':
            return i + 1
    elif not _begins(s, i):
        return i + 1
    elif s.t[i] == c'b' or s.t[i] == c'B':
        stop = _bearer(s, i)
        return stop if stop > 0 else i + 1
    stop = _key_at(s, start, &number)
    return _emit_whole(s, start, stop, number) if stop > 0 else i + 1


cdef Py_ssize_t _sign(Scan *s, Py_ssize_t i) noexcept nogil:
    """Examine a sign that may be in a key's prefix or begin a private key; where to continue."""
    cdef Py_ssize_t start = i, stop
    cdef int number = 0
    if s.t[i] == c'-' and _byte(s, i + 1) == c'-':
        return _private_key(s, i) if _on(s, C_PRIVATE_KEY) else i + 1
    if s.t[i] == c'.' and _byte(s, i - 1) != c'G' and _byte(s, i - 1) != c'9' and (
        not _says(s, i - 3, b"hvs", 3)
    ):
        return i + 1
    while start > s.floor and i - start < PREFIX_MAX and _has(s, start - 1, P_ALNUM):
        start -= 1
    if start < i and _escape_before(s, start):
        start += 1
    if start == i or not _begins(s, start):
        return i + 1
    stop = _key_at(s, start, &number)
    return _emit_whole(s, start, stop, number) if stop > i else i + 1


cdef Py_ssize_t _footer(Scan *s, Py_ssize_t i) noexcept nogil:
    """The end of the next footer of a private key, -1 if there is none."""
    cdef Py_ssize_t at = i, stop
    if s.footer_from <= i <= s.footer:
        return s.footer_stop
    s.footer_from, s.footer, s.footer_stop = i, s.n, -1
    while at + 8 <= s.n:
        if s.t[at] == c'-' and _says(s, at, b"-----end", 8):
            stop = at + 8
            while stop < s.n and stop - at < 64 and s.t[stop] != c'-':
                stop += 1
            while _byte(s, stop) == c'-' and stop - at < 80:
                stop += 1
            s.footer, s.footer_stop = at, stop
            break
        at += 1
    s.work += at - i
    return s.footer_stop


cdef Py_ssize_t _private_key(Scan *s, Py_ssize_t i) noexcept nogil:
    """Emit the private key (PEM) that a dash begins; returns where to continue."""
    cdef Py_ssize_t head, stop, at, line
    if not _says(s, i, b"-----begin ", 11):
        return i + 1
    head = i + 11
    while head < s.n and head - i < 64 and s.t[head] != c'-':
        head += 1
    if not _says(s, head - 11, b"private key", 11) and (
        not _says(s, head - 17, b"private key block", 17)
    ):
        return i + 1
    while _byte(s, head) == c'-' and head - i < 80:
        head += 1
    stop = _footer(s, head)
    if stop < 0 or stop - head > KEY_BODY_MAX:
        # Truncated: continue as long as there are long runs of base64.
        stop = at = head
        while at < s.n:
            while _has(s, at, P_SPACE) or _escape_before(s, at) or _byte(s, at) == c'\\':
                at += 1
            line = at
            while _has(s, at, P_BASE64):
                at += 1
            if at - line < 16:
                break
            stop = at
        s.work += at - head
    return _emit_whole(s, i, stop, C_PRIVATE_KEY)


from cpython.bytearray cimport PyByteArray_AS_STRING

include "_scan_words.pxi"
include "_scan_numbers.pxi"


# --- the pass -------------------------------------------------------------------------------------

cdef void _scan_range(Scan *s, Py_ssize_t i, Py_ssize_t stop) noexcept nogil:
    cdef uint8_t trigger
    cdef Py_ssize_t end
    while i < stop:
        trigger = _TRIGGER[s.t[i]]
        if trigger == 0:
            i += 1
        elif trigger == T_LETTER:
            i = _letter(s, i)
        elif trigger == T_DIGIT:
            i = _number(s, i)
        elif trigger == T_AT:
            end = _email(s, i)
            if end < 0:
                end = _spoken(s, i)
            i = end if end > 0 else i + 1
        elif trigger == T_COLON:
            i = _colon(s, i)
        elif trigger == T_EQUAL:
            end = _assigned(s, i)
            i = end if end > 0 else i + 1
        elif trigger == T_BRACKET:
            end = _placeholder(s, i)
            if end > 0:
                s.floor = end
            i = end if end > 0 else i + 1
        else:
            i = _sign(s, i)


cdef Py_ssize_t _colon(Scan *s, Py_ssize_t i) noexcept nogil:
    """Examine a colon (URL with a password, assignment, IPv6, login); where to continue."""
    cdef Py_ssize_t end = -1, at, colon = -1, last = -1, n
    if _byte(s, i + 1) == c'/' and _byte(s, i + 2) == c'/':
        if not _on(s, C_PASSWORD):
            return i + 3
        at = i + 3
        while at < s.n and s.t[at] != c'/' and not _has(s, at, P_SPACE | P_QUOTE):
            if s.t[at] == c':' and colon < 0:
                colon = at
            elif s.t[at] == c'@':
                last = at
            elif s.t[at] == c'[' and _placeholder(s, at) > 0:
                if last < 0:
                    colon = s.n     # already redacted
            elif s.t[at] == c'<' or s.t[at] == c'>' or s.t[at] == c'{' or s.t[at] == c'$':
                if last < 0:
                    colon = s.n     # a template
            at += 1
        s.work += at - i
        if colon < 0 or last <= colon + 1:
            return i + 3
        n = s.n
        s.n = colon
        _scan_range(s, i + 3, colon)
        s.n = n
        return _emit_whole(s, colon + 1, last, C_PASSWORD)
    end = _assigned(s, i)
    if end < 0 and _on(s, C_IPV6):
        end = _ipv6(s, i)
    if end < 0 and _on(s, C_PASSWORD):
        end = _login(s, i)
    return end if end > 0 else i + 1


cdef Py_ssize_t _login(Scan *s, Py_ssize_t colon) noexcept nogil:
    """Emit the password of ``-u user:password`` with its colon at an offset; its end, or -1."""
    cdef Py_ssize_t at = colon, stop
    if _has(s, colon + 1, P_END):
        return -1
    while at > 0 and colon - at < 64 and _has(s, at - 1, P_LOCAL | P_KEY):
        at -= 1
    s.work += colon - at
    if at == colon:
        return -1
    if _has(s, at - 1, P_QUOTE):
        at -= 1
    if not (_says(s, at - 4, b" -u ", 4) or _says(s, at - 7, b"--user ", 7)):
        return -1
    stop = _value_stop(s, colon + 1, 0, 0, s.n)
    if stop - colon - 1 < 4 or _is_template(s, colon + 1, stop) or _byte(s, colon + 1) == c'/':
        return -1
    return _emit_whole(s, colon + 1, stop, C_PASSWORD)


cdef inline uint8_t _plain(uint32_t c) noexcept nogil:
    """The byte for a code point: ASCII or the ASCII equivalent, else 0x80 or 0x81."""
    if c < 128:
        return <uint8_t>c
    if 0x3001 <= c < 0xFE00:
        return INVISIBLE if c == 0x3164 else 0x80
    if 0xFF01 <= c <= 0xFF5E:
        return <uint8_t>(c - 0xFEE0)
    if c == 0xA0 or c == 0x3000 or 0x2000 <= c <= 0x200A or c == 0x202F or c == 0x205F:
        return c' '
    if 0x2010 <= c <= 0x2015 or c == 0x2212 or c == 0xFE63 or c == 0xFE58:
        return c'-'
    if _is_invisible(c):
        return INVISIBLE
    if c == 0x2018 or c == 0x2019:
        return c"'"
    if c == 0x201C or c == 0x201D:
        return c'"'
    if c == 0xFE6B:
        return c'@'
    if c == 0xFE52:
        return c'.'
    if 0x0660 <= c <= 0x0669 or 0x06F0 <= c <= 0x06F9:
        return <uint8_t>(c'0' + (c & 15))
    if 0x1D7CE <= c <= 0x1D7FF:
        return <uint8_t>(c'0' + (c - 0x1D7CE) % 10)
    if 0x1D400 <= c <= 0x1D6A3:
        c = (c - 0x1D400) % 52
        return <uint8_t>(c'A' + c if c < 26 else c'a' + c - 26)
    return 0x80


cdef inline bint _is_invisible(uint32_t c) noexcept nogil:
    """Return True for code points that Unicode calls Default_Ignorable: they are not displayed."""
    return (
        c == 0xAD or c == 0x34F or c == 0x61C or c == 0x115F or c == 0x1160 or c == 0x17B4
        or c == 0x17B5 or 0x180B <= c <= 0x180F or 0x200B <= c <= 0x200F or 0x202A <= c <= 0x202E
        or 0x2060 <= c <= 0x206F or c == 0x3164 or 0xFE00 <= c <= 0xFE0F or c == 0xFEFF
        or c == 0xFFA0 or 0xFFF0 <= c <= 0xFFF8 or 0x1BCA0 <= c <= 0x1BCA3
        or 0x1D173 <= c <= 0x1D17A or 0xE0000 <= c <= 0xE0FFF
    )


cdef void _flatten(const void *data, int kind, Py_ssize_t n, uint8_t *out) noexcept nogil:
    cdef Py_ssize_t i
    if kind == 1:
        for i in range(n):
            out[i] = _plain((<const uint8_t *>data)[i])
    elif kind == 2:
        for i in range(n):
            out[i] = _plain((<const uint16_t *>data)[i])
    else:
        for i in range(n):
            out[i] = _plain((<const uint32_t *>data)[i])


include "_scan_escapes.pxi"


# --- the text decoded: escapes and invisible characters -------------------------------------------

cdef void _scan_decoded(Scan *s) noexcept nogil:
    """Add the findings in the decoded text, at the offsets of the text itself."""
    cdef Scan d = s[0]
    cdef size_t size = <size_t>s.n
    cdef Py_ssize_t *origin = <Py_ssize_t *>malloc((size + 1) * sizeof(Py_ssize_t))
    cdef uint32_t *points = <uint32_t *>malloc((size + 1) * sizeof(uint32_t))
    cdef uint8_t *copy = <uint8_t *>malloc(size + 1)
    cdef Py_ssize_t i, stop
    d.found, d.count, d.room = NULL, 0, 0
    if origin == NULL or points == NULL or copy == NULL:
        s.failed = True
    else:
        d.n = _decode(s, points, origin)
        _flatten(points, 4, d.n, copy)
        d.t, d.raw, d.kind = copy, points, 4
        _scan_plain(&d)
        for i in range(d.count):
            stop = origin[d.found[i].stop]
            while s.t[stop - 1] == INVISIBLE:   # after the value
                stop -= 1
            d.found[i].start, d.found[i].stop = origin[d.found[i].start], stop
        s.work += s.n + d.work
        s.failed = s.failed or d.failed
        if not s.failed and d.count:
            _unite(s, &d)
    free(origin)
    free(points)
    free(copy)
    free(d.found)


cdef void _unite(Scan *s, Scan *d) noexcept nogil:
    """Merge the findings of two scans; of overlapping ones the longer determines the class."""
    cdef Scan both
    cdef Found found
    cdef Found *last
    cdef Py_ssize_t i = 0, k = 0
    both.found, both.count, both.room, both.failed = NULL, 0, 0, False
    while i < s.count or k < d.count:
        if k == d.count or (i < s.count and s.found[i].start <= d.found[k].start):
            found = s.found[i]
            i += 1
        else:
            found = d.found[k]
            k += 1
        if both.count == 0 or both.found[both.count - 1].stop <= found.start:
            _emit(&both, found.start, found.stop, found.number)
            if both.failed:
                break
            continue
        last = &both.found[both.count - 1]
        if found.stop - found.start > last.stop - last.start:
            last.number = found.number
        last.stop = max(last.stop, found.stop)
    free(s.found)
    s.found, s.count, s.room, s.failed = both.found, both.count, both.room, both.failed


# --- one text -------------------------------------------------------------------------------------

cdef void _scan_plain(Scan *s) noexcept nogil:
    """Scan a text without decoding it."""
    s.floor = s.judged = s.footer_from = 0
    s.footer = s.footer_stop = -1
    s.work = s.n
    if not _whole_secret(s):
        _scan_range(s, 0, s.n)


cdef void _scan_text(Scan *s, uint8_t *copy) noexcept nogil:
    if copy != NULL:
        _flatten(s.raw, s.kind, s.n, copy)
    _scan_plain(s)
    if not s.failed and _is_disguised(s):
        _scan_decoded(s)


cdef object _scanned(str text, int classes, int context, int64_t *work):
    cdef Scan s
    cdef uint8_t *copy = NULL
    cdef Py_ssize_t i
    cdef list found
    _begin(&s, text, classes, context)
    if not PyUnicode_IS_ASCII(text):
        copy = <uint8_t *>PyMem_Malloc(<size_t>s.n)
        if copy == NULL:
            raise MemoryError
        s.t = copy
    try:
        if s.n > GIL_HELD_CHARS:
            with nogil:
                _scan_text(&s, copy)
        else:
            _scan_text(&s, copy)
        if s.failed:
            raise MemoryError
        found = []
        for i in range(s.count):
            found.append((s.found[i].start, s.found[i].stop, s.found[i].number))
        work[0] = s.work
        return found
    finally:
        PyMem_Free(copy)
        free(s.found)


cdef void _begin(Scan *s, str text, int classes, int context) noexcept:
    s.raw, s.kind = PyUnicode_DATA(text), PyUnicode_KIND(text)
    s.t, s.n = <const uint8_t *>s.raw, PyUnicode_GET_LENGTH(text)
    s.classes, s.context = classes, context
    s.found, s.count, s.room = NULL, 0, 0
    s.work, s.failed = 0, False


def find_sensitive(str text not None, int classes, int context=0):
    """Find data of the classes (bits): ``(start, stop, class number)`` in order, disjoint.

    ``context``: the ``key_context`` of the key whose value the text is.
    """
    cdef int64_t work = 0
    return _scanned(text, classes, context, &work)


def sensitive_work(str text not None, int classes, int context=0):
    """The number of steps that ``find_sensitive`` takes, for tests of its linear time."""
    cdef int64_t work = 0
    _scanned(text, classes, context, &work)
    return work


cpdef int key_context(str key) except -1:
    """The classes (bits) for which a JSON key gives context: phone_number, 卡号, password."""
    cdef Scan s
    cdef bytearray copy
    _begin(&s, key, 0, 0)
    if not PyUnicode_IS_ASCII(key):
        copy = bytearray(s.n)
        s.t = <const uint8_t *>PyByteArray_AS_STRING(copy)
        _flatten(s.raw, s.kind, s.n, <uint8_t *>PyByteArray_AS_STRING(copy))
    return _context_of(&s)


# --- pre-check of whole values --------------------------------------------------------------------

cdef enum:
    NUMBER_LEAST = 1000
    NUMBER_DIGITS = 4   # of that number, and of the shortest text that a key makes sensitive
    BEGIN_CHARS = 10
    ID_DIGITS = 17
    LOOK_DEPTH_MAX = 200


cdef bint _json_may_hold(Scan *s) noexcept nogil:
    """Return True if JSON in a text may hold data that its serialised form hides from a scan.

    In a text, digits are judged by the words beside them, in JSON by all keys above them: here by
    any word of the text that would give a key context, if it has keys and enough digits.
    """
    cdef Py_ssize_t i, at, digits = 0
    cdef int run = 0, groups
    cdef bint has_key = False, has_word = s.context != 0
    cdef uint8_t c
    for i in range(s.n):
        c = s.t[i]
        if _PROPERTY[c] & P_DIGIT:
            digits += 1
            run += 1
            if run >= ID_DIGITS:
                return True
            continue
        if run and (c == c'e' or c == c'E'):
            digits += NUMBER_DIGITS  # an exponent: a large number of few digits
        run = 0
        if c == c'\\':
            # The letter of an escape stands where the decoded text has no letter, so that a number
            # or key behind it seems to go on a word. Only an escaped quote is harmless.
            if _byte(s, i + 1) != c'"':
                return True
        elif c == c':':
            at = i
            while at > 0 and (_has(s, at - 1, P_SPACE | P_QUOTE) or s.t[at - 1] == c'\\'):
                at -= 1
                has_key = has_key or s.t[at] == c'"'
            groups = _groups_at(s, at, W_PHONE | W_CARD | W_STUDENT | W_PASSWORD | W_SECRET
                                | W_CODE | W_SURE)
            if groups & (W_PHONE | W_CARD | W_STUDENT | W_PASSWORD | W_SECRET):
                return True
            has_word = has_word or groups != 0
        elif c == c'-' and s.n - i > BEGIN_CHARS:
            if memcmp(s.t + i, b"-----BEGIN", BEGIN_CHARS) == 0:
                return True
    if digits < NUMBER_DIGITS:
        return False
    if has_key and not has_word:
        for i in range(1, s.n + 1):
            if _groups_at(s, i, W_PHONE | W_CARD | W_STUDENT):
                return True
    return has_word


cdef bint _text_may_hold(str text, int classes, int context) except -1:
    cdef Scan s
    cdef uint8_t *copy = NULL
    cdef bint found
    if PyUnicode_GET_LENGTH(text) == 0:
        return False
    _begin(&s, text, classes, context)
    if not PyUnicode_IS_ASCII(text):
        copy = <uint8_t *>PyMem_Malloc(<size_t>s.n)
        if copy == NULL:
            raise MemoryError
        s.t = copy
    _scan_text(&s, copy)
    found = s.count > 0 or s.failed
    if not found and (s.t[0] == c'{' or s.t[0] == c'[' or s.t[0] >= 0x80 or s.t[0] <= c' '):
        found = _json_may_hold(&s)
    PyMem_Free(copy)
    free(s.found)
    return found


cdef bint _may_hold(object value, int classes, int context, int depth) except -1:
    cdef object key = None, entry = None, each
    cdef Py_ssize_t at = 0
    cdef int overflow = 0, inner
    cdef long long number
    if type(value) is str:
        return _text_may_hold(value, classes, context)
    if value is None or type(value) is bool:
        return False
    if depth > LOOK_DEPTH_MAX:
        return True
    if type(value) is dict:
        while memcore_next(value, &at, key, entry):
            inner = context
            if type(key) is str:
                if _text_may_hold(key, classes, 0):
                    return True
                inner |= key_context(key)
            if _may_hold(entry, classes, inner, depth + 1):
                return True
        return False
    if type(value) is list:
        for each in <list>value:
            if _may_hold(each, classes, context, depth + 1):
                return True
        return False
    if type(value) is int:
        number = PyLong_AsLongLongAndOverflow(value, &overflow)
        return overflow != 0 or number >= 10 ** 17 or (context != 0 and number >= NUMBER_LEAST)
    if type(value) is float:
        return <double>value >= 1e17 or (context != 0 and <double>value >= NUMBER_LEAST)
    return True


def holds_sensitive(object value, int classes):
    """False if a JSON value cannot hold data of the classes; True if it has to be walked."""
    return _may_hold(value, classes, 0, 0)
