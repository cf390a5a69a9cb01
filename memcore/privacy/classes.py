"""The built-in classes: what ``_fast.find_sensitive`` looks for, by name and by number."""

from __future__ import annotations

from typing import Final

__all__ = [
    "CLASSES",
    "CLASS_NAMES",
    "CODE_CONTEXT",
    "ID_CONTEXT",
    "NUMBERS",
    "NUMERIC",
    "canonical",
    "mask_of",
]

CLASSES: Final = {
    "email": 0,
    "cn_mobile": 1,
    "phone": 2,
    "cn_id": 3,
    "student_id": 4,
    "card": 5,
    "api_key": 6,
    "jwt": 7,
    "private_key": 8,
    "token": 9,
    "password": 10,
    "ipv4": 11,
    "ipv6": 12,
}
"""Numbers of the classes in the scanner, and bits of its masks."""
CLASS_NAMES: Final = tuple(CLASSES)
NUMERIC: Final = frozenset(("cn_mobile", "phone", "cn_id", "student_id", "card"))
"""Classes whose values are the same however their digits are grouped."""
ID_CONTEXT: Final = 1 << 30
"""The context of a key that says: this is an id."""
CODE_CONTEXT: Final = 1 << 21
"""The context of a key for codes of digits: otp, 验证码."""
NUMBERS: Final = ("cn_mobile", "phone", "student_id", "card")
"""Classes that an id may look like."""
_MOBILE_DIGITS: Final = 11
_CHECK_LETTERS: Final = "xX\uff58\uff38"


def mask_of(names: tuple[str, ...]) -> int:
    """The bits of some classes; names of others than the built-in ones have none."""
    return sum(1 << CLASSES[name] for name in names if name in CLASSES)


def canonical(name: str, text: str) -> str:
    """The value itself, without the way it is written: what the same placeholder stands for."""
    if name in {"email", "name"}:
        return text.casefold()
    if name not in NUMERIC:
        return text
    digits = "".join(
        str(int(char)) if char.isdecimal() else "X"
        for char in text
        if char.isdecimal() or char in _CHECK_LETTERS
    )
    return digits[-_MOBILE_DIGITS:] if name == "cn_mobile" else digits
