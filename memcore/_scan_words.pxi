# Words that give context to a number or a value: phone, card number, 学号, password.

cdef extern from *:
    """
    enum {
        W_PHONE = 1, W_CARD = 2, W_STUDENT = 4, W_PASSWORD = 8, W_SECRET = 16,
        W_CODE = 32,    /* of digits: a PIN, a one-time code */
        W_VETO = 64,    /* overrides a shorter word: "page token" is not a secret */
        W_LOOSE = 128,  /* also at the end of a longer word */
        W_SURE = 256,   /* unambiguous: client_secret, but not "token" */
        W_FINDS = 127,  /* groups that are looked up by the last letters */
        W_VERB = 512    /* "is" and the like, recognised by the last letters alone */
    };
    /* Grouped by last letter. A space matches a separator or nothing: phone_number, phoneNumber. */
    typedef struct { const char *text; int size, groups; } memcore_word;
    #define WORD(text, groups) {text, sizeof(text) - 1, groups}
    static const memcore_word MEMCORE_WORDS[] = {
        WORD("visa", W_CARD), WORD("senha", W_PASSWORD), WORD("cc", W_CARD), WORD("cvc", W_CODE),
        WORD("bank card", W_CARD), WORD("card", W_CARD), WORD("credit card", W_CARD),
        WORD("debit card", W_CARD), WORD("mastercard", W_CARD), WORD("pwd", W_PASSWORD),
        WORD("passwd", W_PASSWORD | W_LOOSE), WORD("password", W_PASSWORD | W_LOOSE),
        WORD("stu id", W_STUDENT), WORD("student id", W_STUDENT), WORD("pswd", W_PASSWORD),
        WORD("pass word", W_PASSWORD), WORD("call me", W_PHONE), WORD("passcode", W_PASSWORD),
        WORD("passphrase", W_PASSWORD), WORD("cell phone", W_PHONE), WORD("hotline", W_PHONE),
        WORD("mobile", W_PHONE), WORD("mobile phone", W_PHONE), WORD("phone", W_PHONE),
        WORD("telephone", W_PHONE), WORD("student code", W_STUDENT),
        WORD("secret key base", W_SECRET | W_SURE), WORD("mot de passe", W_PASSWORD),
        WORD("verification code", W_CODE), WORD("security code", W_CODE),
        WORD("one time code", W_CODE), WORD("login code", W_CODE),
        WORD("authentication code", W_CODE), WORD("two factor code", W_CODE),
        WORD("access code", W_CODE), WORD("unlock code", W_CODE), WORD("door code", W_CODE),
        WORD("sig", W_SECRET), WORD("cell", W_PHONE), WORD("dial", W_PHONE), WORD("tel", W_PHONE),
        WORD("card num", W_CARD), WORD("phone num", W_PHONE), WORD("student num", W_STUDENT),
        WORD("pan", W_CARD), WORD("access token", W_SECRET), WORD("api token", W_SECRET),
        WORD("auth token", W_SECRET), WORD("bearer token", W_SECRET),
        WORD("refresh token", W_SECRET), WORD("session token", W_SECRET), WORD("token", W_SECRET),
        WORD("bos token", W_VETO), WORD("cancellation token", W_VETO),
        WORD("continuation token", W_VETO), WORD("cursor token", W_VETO),
        WORD("eos token", W_VETO), WORD("first token", W_VETO), WORD("mask token", W_VETO),
        WORD("max token", W_VETO), WORD("new token", W_VETO), WORD("next token", W_VETO),
        WORD("pad token", W_VETO), WORD("page token", W_VETO), WORD("per token", W_VETO),
        WORD("special token", W_VETO), WORD("stop token", W_VETO), WORD("sync token", W_VETO),
        WORD("unk token", W_VETO), WORD("authorization", W_SECRET), WORD("pin", W_CODE),
        WORD("account no", W_CARD), WORD("card no", W_CARD), WORD("cell no", W_PHONE),
        WORD("contact no", W_PHONE), WORD("fax no", W_PHONE), WORD("mobile no", W_PHONE),
        WORD("phone no", W_PHONE), WORD("tel no", W_PHONE), WORD("matriculation no", W_STUDENT),
        WORD("stu no", W_STUDENT), WORD("student no", W_STUDENT), WORD("whatsapp", W_PHONE),
        WORD("otp", W_CODE), WORD("account number", W_CARD), WORD("card number", W_CARD),
        WORD("cell number", W_PHONE), WORD("contact number", W_PHONE),
        WORD("fax number", W_PHONE), WORD("mobile number", W_PHONE),
        WORD("phone number", W_PHONE), WORD("telephone number", W_PHONE),
        WORD("matriculation number", W_STUDENT), WORD("student number", W_STUDENT),
        WORD("call us", W_PHONE), WORD("american express", W_CARD), WORD("cards", W_CARD),
        WORD("db pass", W_PASSWORD), WORD("user pass", W_PASSWORD), WORD("mobiles", W_PHONE),
        WORD("phone numbers", W_PHONE), WORD("phones", W_PHONE), WORD("sms", W_PHONE),
        WORD("student ids", W_STUDENT), WORD("sas", W_SECRET), WORD("admin pass", W_PASSWORD),
        WORD("ftp pass", W_PASSWORD), WORD("mail pass", W_PASSWORD),
        WORD("mysql pass", W_PASSWORD), WORD("redis pass", W_PASSWORD),
        WORD("root pass", W_PASSWORD), WORD("smtp pass", W_PASSWORD), WORD("account", W_CARD),
        WORD("acct", W_CARD), WORD("credit", W_CARD), WORD("debit", W_CARD),
        WORD("app secret", W_SECRET | W_SURE), WORD("client secret", W_SECRET | W_SURE),
        WORD("secret", W_SECRET), WORD("access key secret", W_SECRET | W_SURE),
        WORD("api secret", W_SECRET | W_SURE), WORD("consumer secret", W_SECRET | W_SURE),
        WORD("jwt secret", W_SECRET | W_SURE), WORD("oauth secret", W_SECRET | W_SURE),
        WORD("shared secret", W_SECRET | W_SURE), WORD("signing secret", W_SECRET | W_SURE),
        WORD("webhook secret", W_SECRET | W_SURE), WORD("passwort", W_PASSWORD | W_LOOSE),
        WORD("cvv", W_CODE), WORD("amex", W_CARD), WORD("fax", W_PHONE), WORD("unionpay", W_CARD),
        WORD("access key", W_SECRET | W_SURE), WORD("api key", W_SECRET | W_SURE),
        WORD("encryption key", W_SECRET | W_SURE), WORD("private key", W_SECRET | W_SURE),
        WORD("secret access key", W_SECRET | W_SURE), WORD("secret key", W_SECRET | W_SURE),
        WORD("signing key", W_SECRET | W_SURE), WORD("app key", W_SECRET | W_SURE),
        WORD("account key", W_SECRET | W_SURE), WORD("auth key", W_SECRET | W_SURE),
        WORD("consumer key", W_SECRET | W_SURE), WORD("master key", W_SECRET | W_SURE),
        WORD("service key", W_SECRET | W_SURE),
        WORD("subscription key", W_SECRET | W_SURE),
    };
    enum { MEMCORE_WORDS_COUNT = sizeof(MEMCORE_WORDS) / sizeof(MEMCORE_WORDS[0]) };
    typedef struct { int size, groups; unsigned point[5]; } memcore_sign;
    static const memcore_sign MEMCORE_SIGNS[] = {
        /* 手机 电话 座机 固话 热线 传真 致电 拨打 来电 联系方式 手機 電話 座機 熱線 傳真 聯繫方式 聯絡方式 */
        {2, W_PHONE, {0x624B, 0x673A}}, {2, W_PHONE, {0x7535, 0x8BDD}},
        {2, W_PHONE, {0x5EA7, 0x673A}}, {2, W_PHONE, {0x56FA, 0x8BDD}},
        {2, W_PHONE, {0x70ED, 0x7EBF}}, {2, W_PHONE, {0x4F20, 0x771F}},
        {2, W_PHONE, {0x81F4, 0x7535}}, {2, W_PHONE, {0x62E8, 0x6253}},
        {2, W_PHONE, {0x6765, 0x7535}}, {4, W_PHONE, {0x8054, 0x7CFB, 0x65B9, 0x5F0F}},
        {2, W_PHONE, {0x624B, 0x6A5F}}, {2, W_PHONE, {0x96FB, 0x8A71}},
        {2, W_PHONE, {0x5EA7, 0x6A5F}}, {2, W_PHONE, {0x71B1, 0x7DDA}},
        {2, W_PHONE, {0x50B3, 0x771F}}, {4, W_PHONE, {0x806F, 0x7E6B, 0x65B9, 0x5F0F}},
        {4, W_PHONE, {0x806F, 0x7D61, 0x65B9, 0x5F0F}},
        /* 卡 卡号 账号 帐号 账户 帐户 银联 卡號 帳號 帳戶 銀聯 */
        {1, W_CARD, {0x5361}}, {2, W_CARD, {0x5361, 0x53F7}}, {2, W_CARD, {0x8D26, 0x53F7}},
        {2, W_CARD, {0x5E10, 0x53F7}}, {2, W_CARD, {0x8D26, 0x6237}},
        {2, W_CARD, {0x5E10, 0x6237}}, {2, W_CARD, {0x94F6, 0x8054}},
        {2, W_CARD, {0x5361, 0x865F}}, {2, W_CARD, {0x5E33, 0x865F}},
        {2, W_CARD, {0x5E33, 0x6236}}, {2, W_CARD, {0x9280, 0x806F}},
        /* 学号 学籍号 学生证号 学生号 學號 學籍號 學生證號 */
        {2, W_STUDENT, {0x5B66, 0x53F7}}, {3, W_STUDENT, {0x5B66, 0x7C4D, 0x53F7}},
        {4, W_STUDENT, {0x5B66, 0x751F, 0x8BC1, 0x53F7}}, {3, W_STUDENT, {0x5B66, 0x751F, 0x53F7}},
        {2, W_STUDENT, {0x5B78, 0x865F}}, {3, W_STUDENT, {0x5B78, 0x7C4D, 0x865F}},
        {4, W_STUDENT, {0x5B78, 0x751F, 0x8B49, 0x865F}},
        /* 密码 口令 密碼 授权码 パスワード 비밀번호 */
        {3, W_PASSWORD, {0x6388, 0x6743, 0x7801}},
        {5, W_PASSWORD, {0x30D1, 0x30B9, 0x30EF, 0x30FC, 0x30C9}},
        {4, W_PASSWORD, {0xBE44, 0xBC00, 0xBC88, 0xD638}},
        {2, W_PASSWORD, {0x5BC6, 0x7801}}, {2, W_PASSWORD, {0x53E3, 0x4EE4}},
        {2, W_PASSWORD, {0x5BC6, 0x78BC}},
        /* 验证码 校验码 动态码 驗證碼 校驗碼 動態碼 安全码 */
        {3, W_CODE, {0x9A8C, 0x8BC1, 0x7801}}, {3, W_CODE, {0x6821, 0x9A8C, 0x7801}},
        {3, W_CODE, {0x52A8, 0x6001, 0x7801}}, {3, W_CODE, {0x9A57, 0x8B49, 0x78BC}},
        {3, W_CODE, {0x6821, 0x9A57, 0x78BC}}, {3, W_CODE, {0x52D5, 0x614B, 0x78BC}},
        {3, W_CODE, {0x5B89, 0x5168, 0x7801}},
        /* 密钥 令牌 私钥 密鑰 私鑰 秘钥 */
        {2, W_SECRET, {0x79D8, 0x94A5}},
        {2, W_SECRET, {0x5BC6, 0x94A5}}, {2, W_SECRET, {0x4EE4, 0x724C}},
        {2, W_SECRET, {0x79C1, 0x94A5}}, {2, W_SECRET, {0x5BC6, 0x9470}},
        {2, W_SECRET, {0x79C1, 0x9470}},
    };
    enum { MEMCORE_SIGNS_COUNT = sizeof(MEMCORE_SIGNS) / sizeof(MEMCORE_SIGNS[0]) };
    """
    int W_PHONE, W_CARD, W_STUDENT, W_PASSWORD, W_SECRET
    int W_CODE, W_VETO, W_LOOSE, W_SURE, W_FINDS, W_VERB
    ctypedef struct memcore_word:
        const char *text
        int size
        int groups
    ctypedef struct memcore_sign:
        int size
        int groups
        unsigned int *point
    const memcore_word MEMCORE_WORDS[]
    const memcore_sign MEMCORE_SIGNS[]
    int MEMCORE_WORDS_COUNT
    int MEMCORE_SIGNS_COUNT

cdef enum:
    PHONE_GAP_MAX = 24      # between a word and the number it refers to
    STUDENT_GAP_MAX = 4
    CARD_BEFORE_MAX = 40
    CARD_BEHIND_MAX = 16
    SECRET_CHARS_MAX = 256  # longer values count as secrets unchecked
    SPOKEN_GAP_MAX = 24     # between a word and the "is" after it
    SPOKEN_CHARS_MAX = 64   # of a value after such words

cdef enum:
    # Contexts that a key gives, in addition to the bits of classes.
    K_CODE = 1 << 21
    K_SURE = 1 << 22

cdef uint8_t _LAST_LETTER[256]
cdef uint8_t _FIRST_WORD[256]
cdef uint16_t _LAST_TWO[1024]


cdef void _fill_words() noexcept:
    """Index the groups of words by their last letter, and by their last two."""
    cdef int c, at
    cdef const memcore_word *word
    cdef const char *verbs = b"issastobest"
    for c in range(1024):
        _LAST_TWO[c] = 0
    for c in range(256):
        _LAST_LETTER[c] = _FIRST_WORD[c] = 0
    for at in range(MEMCORE_WORDS_COUNT):
        c = MEMCORE_WORDS[at].text[MEMCORE_WORDS[at].size - 1]
        if not _LAST_LETTER[c]:
            _FIRST_WORD[c] = <uint8_t>at
        _LAST_LETTER[c] |= <uint8_t>(MEMCORE_WORDS[at].groups & W_FINDS)
        word = &MEMCORE_WORDS[at]
        c = _pair(<uint8_t>word.text[word.size - 2], <uint8_t>c)
        _LAST_TWO[c] |= <uint16_t>(word.groups & W_FINDS)
    _LAST_TWO[_pair(c"'", c's')] |= <uint16_t>W_VERB
    for at in range(10):
        _LAST_TWO[_pair(<uint8_t>verbs[at], <uint8_t>verbs[at + 1])] |= <uint16_t>W_VERB
    for c in range(c'a', c'z' + 1):
        _LAST_LETTER[c - 32] = _LAST_LETTER[c]
        _FIRST_WORD[c - 32] = _FIRST_WORD[c]
    _LAST_LETTER[0x80] = <uint8_t>W_FINDS


_fill_words()


cdef inline int _pair(uint8_t a, uint8_t b) noexcept nogil:
    """The index in ``_LAST_TWO`` of two letters, in any case."""
    return (a & 31) << 5 | b & 31


cdef inline uint32_t _point(const Scan *s, Py_ssize_t i) noexcept nogil:
    """The code point at an offset of the text itself."""
    return _read(s.raw, s.kind, i)


cdef bint _word_stands(const Scan *s, Py_ssize_t stop, const memcore_word *word) noexcept nogil:
    """Return True if the word ends at an offset and is not part of another."""
    cdef Py_ssize_t i = stop
    cdef int k = word.size
    cdef uint8_t c
    while k > 0:
        k -= 1
        c = _byte(s, i - 1)
        if word.text[k] == c' ':
            if c == c' ' or c == c'_' or c == c'-' or c == c'.':
                i -= 1
            continue
        if _PROPERTY[c] & P_UPPER:
            c += 32
        if c != <uint8_t>word.text[k]:
            return False
        i -= 1
    if word.groups & W_LOOSE or not _has(s, i - 1, P_LETTER) or _escape_before(s, i - 1):
        return True
    return _has(s, i, P_UPPER) and _has(s, i - 1, P_LOWER)     # studentId


cdef int _groups_at(Scan *s, Py_ssize_t stop, int groups) noexcept nogil:
    """The groups, among these, with a word that ends at an offset."""
    cdef int at, k, found = 0
    cdef uint8_t c = _byte(s, stop - 1)
    cdef const memcore_sign *sign
    cdef const memcore_word *word
    if not _LAST_LETTER[c] & groups:
        return 0
    if c == 0x80:
        s.work += 8
        for at in range(MEMCORE_SIGNS_COUNT):
            sign = &MEMCORE_SIGNS[at]
            if not sign.groups & groups or stop < sign.size:
                continue
            k = sign.size
            while k > 0 and _point(s, stop - sign.size + k - 1) == sign.point[k - 1]:
                k -= 1
            if k == 0:
                found |= sign.groups
        return found & groups
    if not _LAST_TWO[_pair(_byte(s, stop - 2), c)] & groups:
        return 0
    if _has(s, stop, P_LETTER) and not (_has(s, stop, P_UPPER) and _has(s, stop - 1, P_LOWER)):
        return 0
    s.work += 8
    if groups & W_SECRET:
        groups |= W_VETO
    if _PROPERTY[c] & P_UPPER:
        c += 32
    for at in range(_FIRST_WORD[c], MEMCORE_WORDS_COUNT):
        word = &MEMCORE_WORDS[at]
        if <uint8_t>word.text[word.size - 1] != c:
            break
        if word.groups & groups and _word_stands(s, stop, word):
            found |= word.groups
    return 0 if found & W_VETO else found & groups


cdef int _context_of(Scan *s) noexcept:
    """The classes for which a key gives context."""
    cdef Py_ssize_t i
    cdef int found = 0, classes = 0
    for i in range(1, s.n + 1):
        found |= _groups_at(s, i, W_PHONE | W_CARD | W_STUDENT)
    found |= _groups_at(s, s.n, W_PASSWORD | W_SECRET | W_CODE | W_SURE)
    if found & W_PHONE:
        classes |= 1 << C_PHONE | 1 << C_CN_MOBILE
    if found & W_CARD:
        classes |= 1 << C_CARD
    if found & W_STUDENT:
        classes |= 1 << C_STUDENT_ID
    if found & W_PASSWORD:
        classes |= 1 << C_PASSWORD
    if found & W_SECRET:
        classes |= 1 << C_TOKEN
    if found & W_CODE:
        classes |= K_CODE
    if found & W_SURE:
        classes |= K_SURE
    return classes


cdef bint _leads(const Scan *s, Py_ssize_t i) noexcept nogil:
    """Return True if little, and no digit, precedes an offset, after the last finding if any."""
    cdef Py_ssize_t from_ = s.found[s.count - 1].stop if s.count else 0
    if i - from_ > 12:
        return False
    while i > from_:
        i -= 1
        if _has(s, i, P_DIGIT):
            return False
    return True


cdef bint _phone_context(Scan *s, Py_ssize_t i) noexcept nogil:
    """Return True if the context marks the number at an offset as a telephone number."""
    cdef Py_ssize_t at = i
    cdef uint8_t c
    if s.context >> C_PHONE & 1 and _leads(s, i):
        return True
    while at > 0 and i - at <= PHONE_GAP_MAX:
        if _groups_at(s, at, W_PHONE):
            s.work += i - at
            return True
        at -= 1
        c = s.t[at]
        if _PROPERTY[c] & P_DIGIT or c == c'\n' or c == c',' or c == c';' or c == c']' or (
            c == 0x80 and (_point(s, at) == 0x3002 or _point(s, at) == 0x3001)
        ):
            break
    s.work += i - at
    return False


cdef bint _student_context(Scan *s, Py_ssize_t i) noexcept nogil:
    """Return True if a word at most 4 characters before marks a number as a student id."""
    cdef Py_ssize_t at = i
    if s.context >> C_STUDENT_ID & 1 and _leads(s, i):
        return True
    while at > 0 and i - at <= STUDENT_GAP_MAX:
        if _groups_at(s, at, W_STUDENT):
            return True
        at -= 1
        if _has(s, at, P_DIGIT) or s.t[at] == c']':
            break
    return False


cdef bint _card_context(Scan *s, Py_ssize_t i, Py_ssize_t stop) noexcept nogil:
    """Return True if there is a word for cards around a number."""
    cdef Py_ssize_t at
    if s.context >> C_CARD & 1:
        return True
    at = max(0, i - CARD_BEFORE_MAX)
    s.work += i - at + CARD_BEHIND_MAX
    while at < i:
        at += 1
        if _groups_at(s, at, W_CARD):
            return True
    at = stop
    while at < s.n and at < stop + CARD_BEHIND_MAX:
        at += 1
        if _groups_at(s, at, W_CARD):
            return True
    return False


# --- values identified by the words before them ---------------------------------------------------

cdef bint _is_part(
    const Scan *s, Py_ssize_t i, Py_ssize_t at, Py_ssize_t stop, const char *word, Py_ssize_t size
) noexcept nogil:
    """Return True if a word is part of a name: user_password, userPassword."""
    if at + size > stop or not _says(s, at, word, size):
        return False
    if at + size < stop and _has(s, at + size, P_LOWER):
        return False
    return at == i or not _has(s, at - 1, P_LETTER) or _has(s, at, P_UPPER)


cdef bint _is_word_of(const Scan *s, Py_ssize_t i, Py_ssize_t stop) noexcept nogil:
    """Return True if a value merely describes what belongs there: a type, null, a description."""
    cdef Py_ssize_t n = stop - i, k
    if (
        (n == 6 and (_says(s, i, b"sha256", 6) or _says(s, i, b"sha512", 6)
                     or _says(s, i, b"aes256", 6) or _says(s, i, b"base64", 6)
                     or _says(s, i, b"base32", 6) or _says(s, i, b"pbkdf2", 6)))
        or (n == 7 and (_says(s, i, b"sha-256", 7) or _says(s, i, b"aes-256", 7)))
        or (n == 4 and (_says(s, i, b"none", 4) or _says(s, i, b"null", 4)
                        or _says(s, i, b"true", 4)))
        or (n == 5 and (_says(s, i, b"false", 5) or _says(s, i, b"input", 5)))
        or (n == 6 and (_says(s, i, b"string", 6) or _says(s, i, b"secret", 6)
                        or _says(s, i, b"bearer", 6) or _says(s, i, b"hidden", 6)))
        or (n == 7 and _says(s, i, b"unknown", 7))
        or (n == 8 and (_says(s, i, b"required", 8) or _says(s, i, b"optional", 8)
                        or _says(s, i, b"redacted", 8) or _says(s, i, b"password", 8)))
        or (n == 9 and _says(s, i, b"undefined", 9))
    ):
        return True
    for k in range(i, stop):
        if _has(s, k, P_DIGIT):
            return False
    for k in range(i, stop):
        if (
            _is_part(s, i, k, stop, b"password", 8) or _is_part(s, i, k, stop, b"secret", 6)
            or _is_part(s, i, k, stop, b"token", 5) or _is_part(s, i, k, stop, b"key", 3)
            or _is_part(s, i, k, stop, b"your", 4) or _is_part(s, i, k, stop, b"passwd", 6)
        ):
            return True
    return False


cdef bint _is_template(const Scan *s, Py_ssize_t i, Py_ssize_t stop) noexcept nogil:
    """Return True if a value is a template variable, or repeats one character, such as stars."""
    cdef uint8_t c = s.t[i], d = _byte(s, i + 1)
    if c == c'<' or (c == c'$' and (d == c'{' or d == c'(')) or (c == c'{' and d == c'{'):
        return True
    if c == c'{' or c == c'(' or (c == c'%' and (d == c'(' or d == c's')):
        return True
    while i + 1 < stop:
        i += 1
        if s.t[i] != c:
            return False
    return True


cdef bint _is_secret(
    const Scan *s, Py_ssize_t i, Py_ssize_t stop, int group, bint quoted, bint near
) noexcept nogil:
    """Return True if a value announced by a word is a secret. ``near``: right after = or 密码：."""
    cdef Py_ssize_t n = stop - i, k
    cdef int seen = 0
    cdef bint special = False, dotted = False, under = False, called = False
    if n > SECRET_CHARS_MAX:
        return True
    if n < 4 or _is_template(s, i, stop) or _is_word_of(s, i, stop):
        return False
    for k in range(i, stop):
        seen |= _PROPERTY[s.t[k]]
        if _has(s, k, P_ALNUM):
            continue
        if s.t[k] == c'.':
            dotted = True
        elif s.t[k] == c'_':
            under = True
        elif s.t[k] == c'(':
            called = True
        elif s.t[k] == c':' and _byte(s, k + 1) == c'/' and _byte(s, k + 2) == c'/':
            return False
        else:
            special = True
    if seen & P_SPACE or s.t[i] == c'/':
        return False
    if not quoted and called:
        return False
    if group & W_SURE and n >= 8 and not (dotted and not quoted):
        if seen & P_DIGIT or special:
            return True
        return quoted or (near and not under) or (n >= 16 and not under)
    if group & W_SECRET:
        if n < (8 if quoted or near else 12) or not seen & P_DIGIT:
            return False
        return seen & P_LETTER != 0 or n >= 16
    if quoted:
        return True
    if near:
        return seen & P_DIGIT != 0 or special or not (dotted or under)
    return n >= 6 and (seen & P_DIGIT != 0 or special) and seen & P_LETTER != 0


cdef inline Py_ssize_t _behind_backslashes(const Scan *s, Py_ssize_t i) noexcept nogil:
    """The offset after the backslashes at an offset: each level of nested text doubles them."""
    cdef Py_ssize_t at = i
    while _byte(s, at) == c'\\' and at - i < BACKSLASHES_MAX:
        at += 1
    return at


cdef inline bint _word_ends(const Scan *s, Py_ssize_t i) noexcept nogil:
    """Return True if an unquoted value ends at an offset, also before an escaped quote or break."""
    cdef Py_ssize_t at
    if s.t[i] != c'\\':
        return _has(s, i, P_END)
    at = _behind_backslashes(s, i)
    return _has(s, at, P_QUOTE) or _escape_before(s, at)


cdef Py_ssize_t _value_stop(
    Scan *s, Py_ssize_t i, uint8_t quote, Py_ssize_t escaped, Py_ssize_t most
) noexcept nogil:
    """The end of a value: at its quote, at the end of the word, before a placeholder.

    Its quotes are preceded by ``escaped`` backslashes; quotes in it by more, and each backslash in
    it is written as twice as many.
    At most ``most`` + 1 characters are examined: a caller that rejects longer values must not walk
    one long word again from each position in it.
    """
    cdef Py_ssize_t at = i, behind, more
    while at < s.n and at - i <= most:
        if s.t[at] == c'[' and _placeholder(s, at) > 0:
            break
        if quote:
            if s.t[at] == quote or s.t[at] == c'\n' or at - i > SECRET_CHARS_MAX:
                break
            if s.t[at] == c'\\':
                behind = at + 1
                while escaped and _byte(s, behind) == c'\\':
                    behind += 1
                more = behind - at - escaped
                if escaped and _byte(s, behind) == quote and (
                    more <= 0 or more % (2 * escaped + 2) == 0
                ):
                    at += max(more, 0)
                    break
                at = behind
        elif _word_ends(s, at):
            break
        at += 1
    s.work += at - i
    return min(at, s.n)


cdef bint _is_given(Scan *s, Py_ssize_t i, int signs) noexcept nogil:
    """Return True if the equals signs that end at an offset assign a value to a word.

    Two signs before a space assign nothing, nor does one at the end of a line or a quoted text.
    """
    cdef Py_ssize_t at = i, quote
    cdef uint8_t c
    while _byte(s, at) == c' ' or _byte(s, at) == c'\t':
        at += 1
    s.work += at - i
    c = _byte(s, at)
    if signs == 0:
        return at > i and c == c'='
    if c == 0 or _has(s, at, P_SPACE) or (at > i and signs > 1):
        return False
    quote = _behind_backslashes(s, at)
    if not _has(s, quote, P_QUOTE):
        return quote == at or not _escape_before(s, quote)
    # A quote that closes the surrounding text is followed by no value; the same quote again is an
    # empty value.
    at = quote + 1
    c = _byte(s, at)
    if c == 0 or c == c':' or (c == c'\\' and _escape_before(s, at + 1)):
        return False
    return c == s.t[quote] or c == 0x80 or not _has(s, at, P_END)


cdef Py_ssize_t _tail_stop(Scan *s, Py_ssize_t stop) noexcept nogil:
    """The end of an unquoted password that may contain separators itself.

    It continues past one up to the last word with a digit, as long as no word is assigned a value:
    a = followed by nothing belongs to the password. Escapes are examined once decoded.
    """
    cdef Py_ssize_t at = stop, start
    cdef uint32_t point = 0
    cdef bint digit, escape
    cdef int signs
    cdef uint8_t c
    while at < s.n:
        c = s.t[at]
        if c != c'&' and c != c';' and c != c',' and c != c')' and c != c'|':
            break
        start, digit, escape, signs = at, False, False, 0
        at += 1
        while at < s.n and at - start <= SECRET_CHARS_MAX and not _word_ends(s, at):
            c = s.t[at]
            escape = c == c'\\' and _escape(s, at, &point) > 0
            if c == c'=' or c == c':' or c == c'[' or escape:
                break
            digit = digit or _has(s, at, P_DIGIT)
            at += 1
        while _byte(s, at) == c'=':
            at += 1
            signs += 1
        s.work += at - start
        c = _byte(s, at)
        if escape or c == c':' or c == c'[' or c == 0x80 or _is_given(s, at, signs):
            break
        if digit:
            stop = at
    return stop


cdef Py_ssize_t _assigned(Scan *s, Py_ssize_t i) noexcept nogil:
    """Emit the secret that follows a = or a colon; returns its end, -1 if there is none."""
    cdef Py_ssize_t at = i, stop, escaped = 0
    cdef int group, k, number = 0
    cdef uint8_t quote = 0
    cdef bint near = s.t[i] == c'='
    if not (s.classes & (1 << C_PASSWORD | 1 << C_TOKEN)) or _byte(s, i + 1) == c'=':
        return -1
    if near and at > 0 and s.t[at - 1] == c':':
        at -= 1
    for k in range(BACKSLASHES_MAX + 2):
        if at == 0 or not (s.t[at - 1] == c' ' or s.t[at - 1] == c'\\' or s.t[at - 1] == c']'
                           or _has(s, at - 1, P_QUOTE)):
            break
        at -= 1
    if at < i:
        near = near and not (s.t[at] == c' ')
    group = _groups_at(s, at, W_PASSWORD | W_SECRET | W_SURE)
    if not group & (W_PASSWORD | W_SECRET) or (
        not _on(s, C_PASSWORD if group & W_PASSWORD else C_TOKEN)
    ):
        return -1
    near = near or (s.t[at - 1] == 0x80)
    at = i + 1
    if _byte(s, at) == c'>':
        at += 1
    for k in range(4):
        if _byte(s, at) == c' ':
            at += 1
            near = near and s.t[i] != c'='
    stop = _behind_backslashes(s, at)
    if _has(s, stop, P_QUOTE):
        quote, escaped = s.t[stop], stop - at
        at = stop + 1
    if _says(s, at, b"token ", 6) and s.t[i] == c':':
        at += 6     # Authorization: token ...
    if at >= s.n or _key_at(s, at, &number) > 0:
        return -1
    stop = _value_stop(s, at, quote, escaped, s.n)
    s.work += min(stop - at, SECRET_CHARS_MAX)
    if stop <= at or not _is_secret(s, at, stop, group, quote != 0, near):
        return -1
    if not quote and group & W_PASSWORD:
        stop = _tail_stop(s, stop)
    return _emit_whole(s, at, stop, C_PASSWORD if group & W_PASSWORD else C_TOKEN)


cdef bint _whole_secret(Scan *s) noexcept nogil:
    """Emit the whole text if its key marks it as a secret; returns whether it did."""
    cdef int number = 0, group = 0
    cdef Py_ssize_t i
    if s.context >> C_PASSWORD & 1 and _on(s, C_PASSWORD):
        group = W_PASSWORD
    elif s.context >> C_TOKEN & 1 and _on(s, C_TOKEN):
        group = W_SECRET | W_SURE if s.context & K_SURE else W_SECRET
    elif s.context & K_CODE and _on(s, C_PASSWORD) and _code_stop(s, 0) == s.n > 0:
        _emit(s, 0, s.n, C_PASSWORD)
        return True
    if group == 0 or s.n == 0 or _key_at(s, 0, &number) == s.n:
        return False
    for i in range(min(s.n, SECRET_CHARS_MAX)):
        if s.t[i] == c'[' and _placeholder(s, i) > 0:
            return False
    if not _is_secret(s, 0, s.n, group, True, True):
        return False
    _emit(s, 0, s.n, C_PASSWORD if group == W_PASSWORD else C_TOKEN)
    return True


# --- values in prose: "my password is hunter2", 验证码是 482913 -----------------------------------

cdef Py_ssize_t _code_stop(const Scan *s, Py_ssize_t i) noexcept nogil:
    """The end of a code of 4 to 8 digits, or of two groups of three; -1 if there is none."""
    cdef Py_ssize_t at = i
    while at - i < 9 and _has(s, at, P_DIGIT):
        at += 1
    if at - i == 3 and (_byte(s, at) == c' ' or _byte(s, at) == c'-'):
        at += 1
        while at - i < 8 and _has(s, at, P_DIGIT):
            at += 1
        return at if at - i == 7 and not _has(s, at, P_ALNUM) else -1
    return at if 4 <= at - i <= 8 else -1


cdef bint _is_counted(const Scan *s, Py_ssize_t stop) noexcept nogil:
    """Return True if digits that end at an offset count something: bits, days, 位."""
    cdef Py_ssize_t at = stop
    cdef uint32_t c
    if _byte(s, at) == c' ' or _byte(s, at) == c'-':
        at += 1
    if _byte(s, at) == c'%':
        return True
    if _byte(s, at) == 0x80:
        c = _point(s, at)
        # 位 個 个 字 次 天 分 秒 年 月 元 小 条 種 种
        return (
            c == 0x4F4D or c == 0x500B or c == 0x4E2A or c == 0x5B57 or c == 0x6B21 or c == 0x5929
            or c == 0x5206 or c == 0x79D2 or c == 0x5E74 or c == 0x6708 or c == 0x5143
            or c == 0x5C0F or c == 0x6761 or c == 0x7A2E or c == 0x79CD
        )
    return (
        _says(s, at, b"bit", 3) or _says(s, at, b"byte", 4) or _says(s, at, b"char", 4)
        or _says(s, at, b"day", 3) or _says(s, at, b"digit", 5) or _says(s, at, b"hour", 4)
        or _says(s, at, b"item", 4) or _says(s, at, b"letter", 6) or _says(s, at, b"min", 3)
        or _says(s, at, b"sec", 3) or _says(s, at, b"time", 4) or _says(s, at, b"user", 4)
    )


cdef Py_ssize_t _before_quotes(
    const Scan *s, Py_ssize_t i, bint *colon, bint *broken
) noexcept nogil:
    """The offset before quotes, brackets, spaces, one line break, and colons or equals signs."""
    cdef Py_ssize_t at = i
    cdef uint32_t point
    cdef uint8_t c
    cdef int k
    for k in range(8):
        c = _byte(s, at - 1)
        if c == c':' or c == c'=':
            colon[0] = True
        elif c == c'\n' and not broken[0]:
            broken[0] = True
        elif c == 0x80:
            point = _point(s, at - 1)
            if point != 0x300C and point != 0x300E and point != 0x3010:     # 「 『 【
                break
        elif c != c' ' and c != c'(' and c != c'*' and c != c'[' and c != c'\\' and (
            not _has(s, at - 1, P_QUOTE)
        ):
            break
        at -= 1
    return at


cdef Py_ssize_t _before_verb(const Scan *s, Py_ssize_t i) noexcept nogil:
    """The offset before "is", "'s", "was", "to", 是, 为, 改成了 and the like; ``i`` if there is none."""
    cdef Py_ssize_t at = i
    cdef uint32_t c
    cdef int k
    if _byte(s, at - 1) == 0x80:
        for k in range(4):
            if _byte(s, at - 1) != 0x80:
                break
            c = _point(s, at - 1)
            # 是 为 為 成 叫 了 到 就 改 设 設 は 는 은
            if not (
                c == 0x662F or c == 0x4E3A or c == 0x70BA or c == 0x6210 or c == 0x53EB
                or c == 0x4E86 or c == 0x5230 or c == 0x5C31 or c == 0x6539 or c == 0x8BBE
                or c == 0x8A2D or c == 0x306F or c == 0xB294 or c == 0xC740
            ):
                break
            at -= 1
        return at
    if _byte(s, at - 1) != c's' and _byte(s, at - 1) != c'e' and _byte(s, at - 1) != c'o' and (
        _byte(s, at - 1) != c't' and _byte(s, at - 1) != c'S'
    ):
        return at
    if _says(s, at - 2, b"'s", 2):
        return at - 2
    if _says(s, at - 3, b" is", 3) or _says(s, at - 3, b" be", 3) or _says(s, at - 3, b" as", 3):
        return at - 3
    if _says(s, at - 4, b" was", 4) or _says(s, at - 4, b" ist", 4) or _says(s, at - 4, b" est", 4):
        return at - 4
    if _says(s, at - 3, b" to", 3):
        at = i - 3 - SPOKEN_GAP_MAX - 8
        while at < i - 3:
            if (
                _says(s, at, b"chang", 5) or _says(s, at, b"reset", 5)
                or _says(s, at, b" set", 4) or _says(s, at, b"updat", 5)
            ):
                return i - 3
            at += 1
    return i


cdef int _announced(Scan *s, Py_ssize_t i, bint *bare) noexcept nogil:
    """The groups of the words that announce the value at an offset.

    ``bare``: set if they directly precede it, without a colon or verb.
    """
    cdef int groups = W_PASSWORD | W_SECRET | W_CODE | W_SURE, found
    cdef bint colon = False, broken = False
    cdef Py_ssize_t at = _before_quotes(s, i, &colon, &broken), verb = _before_verb(s, at), end
    cdef uint8_t c
    s.work += i - verb
    bare[0] = not colon and verb == at
    if broken and bare[0]:
        return 0
    found = _groups_at(s, verb, groups)
    if found or verb == at:
        return found
    end = at = verb
    while at > 0 and end - at < SPOKEN_GAP_MAX:
        at -= 1
        c = s.t[at]
        if _PROPERTY[c] & P_DIGIT or c == c'\n' or c == c']' or c == c'.' or c == c',' or (
            c == c';' or c == c':' or c == c'?' or c == c'!'
        ):
            break
        if c == 0x80:
            if end - at > 6 or _point(s, at) == 0x3002 or _point(s, at) == 0x3001:
                break
        elif c != c' ':
            continue
        elif not _says(s, at, b" for ", 5) and not _says(s, at, b" of ", 4) and (
            not _says(s, at, b" on ", 4) and not _says(s, at, b" to ", 4)
            and not _says(s, at, b" will be", 8) and not _says(s, at, b" now", 4)
        ):
            continue
        found = _groups_at(s, at, groups)
        if found:
            break
    s.work += end - at
    return found


cdef Py_ssize_t _spoken(Scan *s, Py_ssize_t i) noexcept nogil:
    """Emit the value in prose to which the digit or @ at an offset belongs; returns its end.

    -1 if no words before it mark it as a secret.
    """
    cdef Py_ssize_t start = i, floor = max(s.floor, s.judged), stop, end, lead
    cdef int group
    cdef bint bare = False
    if s.count and s.found[s.count - 1].stop > floor:
        floor = s.found[s.count - 1].stop
    s.judged = i + 1
    if i < floor:
        return -1
    while start > floor and i - start < SPOKEN_CHARS_MAX and not _has(s, start - 1, P_BREAK):
        start -= 1
    s.work += i - start
    if start < i and _escape_before(s, start):
        start += 1
    if start == 0 or (_has(s, start - 1, P_KEY) and not _escape_before(s, start - 1)):
        return -1
    lead = start
    while start - lead < 8 and _has(s, lead - 1, P_LEAD):
        lead -= 1
    if lead == 0 or (s.t[lead - 1] < 128 and not (
        _LAST_TWO[_pair(_byte(s, lead - 2), s.t[lead - 1])]
        & (W_PASSWORD | W_SECRET | W_CODE | W_VERB)
    )):
        return -1       # the usual case
    group = _announced(s, start, &bare)
    if not group:
        return -1
    stop = _value_stop(s, start, 0, 0, SPOKEN_CHARS_MAX)
    end = stop
    while end > start and (s.t[end - 1] == c'.' or s.t[end - 1] == c'*' or s.t[end - 1] == c'!'
                           or s.t[end - 1] == c'?' or s.t[end - 1] == c':'):
        end -= 1
    if stop - start > SPOKEN_CHARS_MAX:
        return -1
    if _on(s, C_PASSWORD) and group & (W_CODE | W_PASSWORD):
        if start == i and (group & W_CODE or not bare) and not _is_counted(s, _code_stop(s, i)):
            if _code_stop(s, i) >= end:
                return _emit_whole(s, start, _code_stop(s, i), C_PASSWORD)
        if group & W_PASSWORD and _is_said(s, start, end, bare):
            return _emit_whole(s, start, stop if s.t[stop - 1] == c'!' else end, C_PASSWORD)
    if group & W_SECRET and _on(s, C_TOKEN) and _is_secret(s, start, end, W_SECRET, False, False):
        return _emit_whole(s, start, end, C_TOKEN)
    return -1


cdef bint _is_said(const Scan *s, Py_ssize_t i, Py_ssize_t stop, bint bare) noexcept nogil:
    """Return True if a value after a word for passwords is one: letters with digits or an @."""
    cdef Py_ssize_t k
    cdef int seen = 0
    cdef bint at = False, dashed = False
    for k in range(i, stop):
        seen |= _PROPERTY[s.t[k]]
        at = at or s.t[k] == c'@'
        dashed = dashed or s.t[k] == c'-' or s.t[k] == c'/'
    if not seen & P_DIGIT:
        return at and seen & P_LETTER != 0 and stop - i >= 6 and not dashed
    if not seen & P_LETTER:
        return stop - i >= 6 and not bare and not dashed and seen & (P_SPACE | P_END) == 0 and (
            not _is_counted(s, stop)
        )
    if dashed and seen & (P_UPPER | P_LOWER) != P_LETTER:
        return False        # probably a name: step-2, 2024-rules
    return _is_secret(s, i, stop, W_PASSWORD, False, not bare and stop - i >= 5)
