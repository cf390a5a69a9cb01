# Numbers: resident and student ids, telephone and card numbers, IPv4 addresses.

cdef enum:
    DIGITS_MAX = 24
    GROUPS_MAX = 8

ctypedef struct Chain:
    # Groups of digits separated by a space or a dash.
    uint8_t digit[24]
    int groups
    int upto[8]             # number of digits up to the end of each group
    Py_ssize_t stop[8]      # end of each group


cdef Py_ssize_t _read_chain(Scan *s, Py_ssize_t i, Chain *chain) noexcept nogil:
    """Read the groups from an offset on; returns the end of the first. No groups if too long."""
    cdef Py_ssize_t at = i, first = i
    cdef int size, total = 0
    chain.groups = 0
    while chain.groups < GROUPS_MAX:
        size = 0
        while _has(s, at, P_DIGIT):
            if total + size < DIGITS_MAX:
                chain.digit[total + size] = s.t[at] - c'0'
            size += 1
            if chain.groups and total + size > DIGITS_MAX:
                break
            at += 1
        if chain.groups == 0:
            first = at
        if size == 0 or total + size > DIGITS_MAX:
            break
        total += size
        chain.upto[chain.groups] = total
        chain.stop[chain.groups] = at
        chain.groups += 1
        if (_byte(s, at) != c' ' and _byte(s, at) != c'-') or not _has(s, at + 1, P_DIGIT):
            break
        at += 1
    s.work += at - i
    return first


cdef inline int _size(const Chain *chain, int group) noexcept nogil:
    return chain.upto[group] - (chain.upto[group - 1] if group else 0)


cdef int _value(const Chain *chain, int first, int count) noexcept nogil:
    """The number formed by ``count`` digits from ``first`` on."""
    cdef int k, value = 0
    for k in range(first, first + count):
        value = 10 * value + chain.digit[k]
    return value


cdef bint _in_token(Scan *s, Py_ssize_t i, Py_ssize_t stop) noexcept nogil:
    """Return True if digits are part of a hash or the like: adjacent to letters, and long."""
    cdef Py_ssize_t start = i, end = stop
    cdef bint hexadecimal = True
    if not _has(s, i - 1, P_LETTER) and not _has(s, stop, P_LETTER):
        return False
    while i - start < 48 and _has(s, start - 1, P_KEY | P_BASE64):
        start -= 1
        if not _has(s, start, P_HEX) and s.t[start] != c'-':
            hexadecimal = False
    while end - stop < 48 and _has(s, end, P_KEY | P_BASE64):
        if not _has(s, end, P_HEX) and s.t[end] != c'-':
            hexadecimal = False
        end += 1
    s.work += end - start
    return end - start >= (24 if hexadecimal else 40)


# --- resident ids ---------------------------------------------------------------------------------

cdef bint _is_province(int code) noexcept nogil:
    return (
        11 <= code <= 15 or 21 <= code <= 23 or 31 <= code <= 37 or 41 <= code <= 46
        or 50 <= code <= 54 or 61 <= code <= 65 or code == 71 or 81 <= code <= 83 or code == 91
    )


cdef bint _is_date(int year, int month, int day) noexcept nogil:
    cdef int last = 31
    if month == 4 or month == 6 or month == 9 or month == 11:
        last = 30
    elif month == 2:
        last = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 1900 <= year < 2100 and 1 <= month <= 12 and 1 <= day <= last


cdef bint _is_resident(const Chain *chain, int last) noexcept nogil:
    """Return True if 17 digits and ``last`` (10: X) satisfy GB 11643: province, date, ISO 7064."""
    cdef int k, weight = 1, total = last
    if not _is_province(_value(chain, 0, 2)):
        return False
    if not _is_date(_value(chain, 6, 4), _value(chain, 10, 2), _value(chain, 12, 2)):
        return False
    for k in range(17):
        weight = 2 * weight % 11
        total += weight * chain.digit[16 - k]
    return total % 11 == 1


cdef Py_ssize_t _resident(Scan *s, const Chain *chain) noexcept nogil:
    """The end of a resident's id, -1 if the chain does not begin with one."""
    cdef int g
    cdef Py_ssize_t stop
    for g in range(chain.groups):
        if g and chain.upto[0] != 6:
            break
        stop = chain.stop[g]
        if chain.upto[g] == 18 and _is_resident(chain, chain.digit[17]):
            return stop
        if chain.upto[g] == 17 and (_byte(s, stop) | 32) == c'x':
            if not _has(s, stop + 1, P_ALNUM) and _is_resident(chain, 10):
                return stop + 1
    return -1


# --- telephones -----------------------------------------------------------------------------------

cdef Py_ssize_t _mobile(
    Scan *s, Py_ssize_t i, const Chain *chain, Py_ssize_t *start
) noexcept nogil:
    """The end of a Chinese mobile number, -1 if the chain does not begin with one."""
    cdef int g, k, prefix
    cdef bint plus = _byte(s, i - 1) == c'+', grouped
    for g in range(chain.groups):
        prefix = chain.upto[g] - 11
        if prefix > 4:
            break
        if prefix == 2 and not (chain.digit[0] == 8 and chain.digit[1] == 6):
            continue
        if prefix == 4 and not _value(chain, 0, 4) == 86:
            continue
        if prefix != 2 and (plus or (prefix != 0 and prefix != 4)):
            continue
        if chain.digit[prefix] != 1 or chain.digit[prefix + 1] < 3:
            continue
        k = 1 if prefix and chain.upto[0] == prefix else 0     # the number's first group
        grouped = g == k or (
            g == k + 2 and _size(chain, k) - (prefix if k == 0 else 0) == 3
            and _size(chain, k + 1) == 4
        )
        if not grouped and not plus and not _phone_context(s, i):
            continue
        if g == 0 and _byte(s, i - 1) == c'.' and _has(s, i - 2, P_DIGIT):
            return -1       # part of a fraction
        if g == 0 and _byte(s, chain.stop[0]) == c'.' and _has(s, chain.stop[0] + 1, P_DIGIT):
            if not _phone_context(s, i):
                return -1
        if _in_token(s, i, chain.stop[g]):
            return -1
        start[0] = i - 1 if plus and prefix == 2 else i
        return chain.stop[g]
    return -1


cdef bint _is_country(int first, int second, int third) noexcept nogil:
    """Return True if an E.164 country code begins with these digits."""
    if first == 1 or first == 7:
        return True
    if first == 2:
        return second == 0 or second == 7 or second == 1 and third != 0 and third != 4 or (
            second != 8 and second > 1
        )
    if first == 3 or first == 4 or first == 5 or first == 6 or first == 9:
        return True
    return first == 8 and second != 3 and second != 9


cdef Py_ssize_t _read_phone(
    Scan *s, Py_ssize_t i, int most, int *digits, int *groups, bint *is_date
) noexcept nogil:
    """The end of the number at an offset, with spaces, dashes, dots and parentheses."""
    cdef Py_ssize_t at = i, stop = i, next_at
    cdef int size, first = 0, sep
    digits[0] = groups[0] = 0
    is_date[0] = False
    while True:
        size = 0
        while _has(s, at, P_DIGIT):
            at += 1
            size += 1
            if digits[0] + size > most:
                s.work += at - i
                return stop if groups[0] else -1
        if size == 0:
            break
        digits[0] += size
        groups[0] += 1
        stop = at
        if groups[0] == 1:
            first = size
        elif groups[0] == 2 and first == 4 and size <= 2:
            sep = _value_at(s, i, 4)
            is_date[0] = 1900 <= sep < 2100 and 1 <= _value_at(s, at - size, size) <= 12
        next_at = at
        if _byte(s, next_at) == c')':
            next_at += 1
        if _byte(s, next_at) == c' ' or _byte(s, next_at) == c'-' or _byte(s, next_at) == c'.':
            next_at += 1
        if _byte(s, next_at) == c'(':
            next_at += 1
        if next_at == at or not _has(s, next_at, P_DIGIT):
            break
        at = next_at
    s.work += at - i
    return stop


cdef int _value_at(const Scan *s, Py_ssize_t i, Py_ssize_t size) noexcept nogil:
    cdef int value = 0
    cdef Py_ssize_t k
    for k in range(i, i + size):
        value = 10 * value + s.t[k] - c'0'
    return value


cdef Py_ssize_t _bracketed_mobile(Scan *s, Py_ssize_t i, Py_ssize_t *start) noexcept nogil:
    """The end of a Chinese mobile number after (+86) with the 86 at an offset; else -1."""
    cdef Chain chain
    cdef Py_ssize_t at = i + 3
    if not _says(s, i - 2, b"(+86)", 5):
        return -1
    if _byte(s, at) == c' ' or _byte(s, at) == c'-':
        at += 1
    _read_chain(s, at, &chain)
    start[0] = i - 2
    return _mobile(s, at, &chain, &at) if chain.groups else -1


cdef Py_ssize_t _phone(Scan *s, Py_ssize_t i, Py_ssize_t *start) noexcept nogil:
    """The end of any other telephone number, preceded by a + or by a word; else -1."""
    cdef int digits = 0, groups = 0
    cdef bint is_date = False
    cdef Py_ssize_t stop
    start[0] = i
    if _byte(s, i - 1) == c'+' and not _has(s, i - 2, P_ALNUM) and _byte(s, i - 2) != c'+':
        if _is_country(s.t[i] - c'0', _byte(s, i + 1) - c'0', _byte(s, i + 2) - c'0'):
            stop = _read_phone(s, i, 11 if s.t[i] == c'1' else 15, &digits, &groups, &is_date)
            start[0] = i - 2 if _byte(s, i - 2) == c'(' else i - 1
            if stop > 0 and (digits == 11 if s.t[i] == c'1' or s.t[i] == c'7' else digits >= 9):
                return stop
            if stop > 0 and digits >= 8 and (groups > 1 or _phone_context(s, i - 1)):
                if s.t[i] != c'1' and s.t[i] != c'7':
                    return stop
    stop = _read_phone(s, i, 15, &digits, &groups, &is_date)
    if stop < 0 or digits < 7 or is_date or (_octets(s, i, &stop) and groups >= 4):
        return -1
    if _byte(s, i - 1) == c'(' or _byte(s, i - 1) == c'+':
        start[0] = i - 1
    return stop if _phone_context(s, start[0]) and not _in_token(s, i, stop) else -1


# --- cards ----------------------------------------------------------------------------------------

cdef bint _is_luhn(const Chain *chain, int total) noexcept nogil:
    cdef int k, d, weighed = 0
    for k in range(total):
        d = chain.digit[total - 1 - k]
        if k & 1:
            d = 2 * d - 9 if d > 4 else 2 * d
        weighed += d
    return weighed % 10 == 0


cdef bint _is_issued(const Chain *chain, int total) noexcept nogil:
    """Return True if an issuer uses this prefix with this number of digits."""
    cdef int two = _value(chain, 0, 2), three = _value(chain, 0, 3), four = _value(chain, 0, 4)
    if chain.digit[0] == 4:                                         # Visa
        return total == 13 or total == 16 or total == 19
    if 51 <= two <= 55 or 2221 <= four <= 2720:                     # Mastercard
        return total == 16
    if two == 34 or two == 37:                                      # American Express
        return total == 15
    if 300 <= three <= 305 or three == 309 or two == 36 or two == 38 or two == 39:  # Diners
        return total == 14 or total == 16 or total == 19
    if two == 62 or two == 81:                                      # UnionPay
        return total >= 16
    if two == 60 or 644 <= three <= 649 or two == 65 or two == 82:  # Discover, RuPay
        return total >= 16
    if 3528 <= four <= 3589 or 2200 <= four <= 2204:                # JCB, Mir
        return total >= 16
    if four == 9558:                                                # ICBC
        return total == 19
    return two == 50 or 56 <= two <= 58 or two == 63 or two == 67   # Maestro


cdef bint _is_card_shape(const Chain *chain, int last) noexcept nogil:
    """Return True if card numbers are written in such groups."""
    cdef int g
    if last == 0:
        return True
    if chain.upto[0] == 4 and last == 2:
        return (_size(chain, 1) == 6 and (_size(chain, 2) == 5 or _size(chain, 2) == 4))
    if last == 1:
        return chain.upto[0] == 6 and _size(chain, 1) >= 9
    for g in range(last):
        if _size(chain, g) != 4:
            return False
    return 1 <= _size(chain, last) <= 4


cdef Py_ssize_t _card(Scan *s, Py_ssize_t i, const Chain *chain) noexcept nogil:
    """The end of a card number, -1 if the chain does not begin with one."""
    cdef int g = chain.groups, total
    while g > 0:
        g -= 1
        total = chain.upto[g]
        if not 13 <= total <= 19 or not _is_card_shape(chain, g):
            continue
        if not _is_issued(chain, total) or not _is_luhn(chain, total):
            continue
        # Four groups of four are hardly ever anything else.
        if g == 3 and total == 16 or _card_context(s, i, chain.stop[g]):
            if not _in_token(s, i, chain.stop[g]):
                return chain.stop[g]
    return -1


# --- all of them ----------------------------------------------------------------------------------

cdef Py_ssize_t _number(Scan *s, Py_ssize_t i) noexcept nogil:
    """Examine digits; returns where to continue: after the number found, or after these digits."""
    cdef Chain chain
    cdef Py_ssize_t first = _read_chain(s, i, &chain), stop, start = i
    cdef int size
    if s.classes & (1 << C_PASSWORD | 1 << C_TOKEN):
        stop = _spoken(s, i)
        if stop > 0:
            return stop
    if chain.groups == 0:
        return first
    size = chain.upto[0]
    if 8 <= size <= 12 and _on(s, C_STUDENT_ID) and _student_context(s, i):
        return _found(s, i, first, C_STUDENT_ID)
    if (size == 6 or size >= 17) and _on(s, C_CN_ID):
        stop = _resident(s, &chain)
        if stop > 0:
            return _found(s, i, stop, C_CN_ID)
    if _on(s, C_CN_MOBILE):
        stop = _mobile(s, i, &chain, &start)
        if stop < 0 and size == 2:
            stop = _bracketed_mobile(s, i, &start)
        if stop > 0:
            return _found(s, start, stop, C_CN_MOBILE)
    if _on(s, C_CARD) and chain.upto[chain.groups - 1] >= 13:
        stop = _card(s, i, &chain)
        if stop > 0:
            return _found(s, i, stop, C_CARD)
    if _on(s, C_PHONE):
        stop = _phone(s, i, &start)
        if stop > 0:
            return _found(s, start, stop, C_PHONE)
    if size <= 3 and _on(s, C_IPV4):
        stop = _ipv4(s, i)
        if stop > 0:
            return _emit_whole(s, i, stop, C_IPV4)
    return first


cdef Py_ssize_t _found(Scan *s, Py_ssize_t start, Py_ssize_t stop, int number) noexcept nogil:
    """Emit a number, without the part that an earlier finding covers."""
    if s.count and start < s.found[s.count - 1].stop:
        start = s.found[s.count - 1].stop
    _emit(s, start, stop, number)
    return stop
