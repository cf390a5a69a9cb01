"""What a caller says of the audit of a database."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from memcore.errors import AuditError, InvalidOptionError
from memcore.privacy.cipher import uncopied
from memcore.privacy.entry import KEY_BYTES_MIN

__all__ = ["Audit", "checked_seconds", "key_in"]

KEY_VARIABLE: Final = "MEMCORE_AUDIT_KEY"
KEY_FILE_VARIABLE: Final = "MEMCORE_AUDIT_KEY_FILE"


@dataclass(frozen=True, slots=True)
class Audit:
    """Chain every write under a key, so that whoever changes the file without it is found out.

    Args:
        key: at least 32 secret bytes, or a callable that gives them when a file is opened. Not
            kept in the file; without it an audited file can be read and not written.
        anchor: a file outside of the database to which the heads of changed chains are appended,
            or a callable that is given each line of it. None: a chain that is cut off at its end,
            rows and all, reads as if the rest had never been.
        every_seconds: anchor at the first commit so long after the last anchor.
        every_entries: or at the first commit after so many entries.
        on_failure: what if it cannot be anchored: ``"raise"``: what was committed stays, and
            every further write is an AuditError until it can; ``"log"``: write on and try later.
        keep_seconds: how long entries are kept when ``Database.cut_audit`` is not told.

    Raises:
        InvalidOptionError: an option is of a wrong type or out of range.
    """

    key: bytes | Callable[[], bytes] = field(repr=False)
    anchor: str | os.PathLike[str] | Callable[[str], Any] | None = None
    every_seconds: float = 60.0
    every_entries: int = 1000
    on_failure: str = "raise"
    keep_seconds: float | None = None

    __reduce_ex__ = uncopied

    def __post_init__(self) -> None:
        if not callable(self.key):
            _check_key(self.key)
        if not (self.anchor is None or callable(self.anchor)) and not isinstance(
            self.anchor, str | os.PathLike
        ):
            msg = f"anchor: expected a path, a callable or None, got {type(self.anchor).__name__}"
            raise InvalidOptionError(msg)
        if self.on_failure not in ("raise", "log"):
            msg = f"on_failure: expected 'raise' or 'log', got {self.on_failure!r}"
            raise InvalidOptionError(msg)
        if type(self.every_entries) is not int or self.every_entries < 1:
            msg = f"every_entries: expected an int of at least 1, got {self.every_entries!r}"
            raise InvalidOptionError(msg)
        checked_seconds("every_seconds", self.every_seconds)
        if self.keep_seconds is not None:
            checked_seconds("keep_seconds", self.keep_seconds)

    def key_bytes(self) -> bytes:
        """The key itself.

        Raises:
            InvalidOptionError: the callable gave none.
        """
        key = self.key() if callable(self.key) else self.key
        _check_key(key)
        return bytes(key)

    @classmethod
    def from_environment(cls, **options: Any) -> Audit | None:
        """With the key of ``MEMCORE_AUDIT_KEY`` (hex) or of the file ``MEMCORE_AUDIT_KEY_FILE``.

        None if neither is set. Options are those of the class.

        Raises:
            InvalidOptionError: what is set is no key.
            AuditError: the key's file cannot be read.
        """
        text = os.environ.get(KEY_VARIABLE)
        file = os.environ.get(KEY_FILE_VARIABLE)
        if text:
            return cls(key=_from_hex(text), **options)
        return cls(key=key_in(file), **options) if file else None


def key_in(file: str) -> bytes:
    """The key in a file: 64 or more hexadecimal digits, or else its bytes as they are.

    Raises:
        InvalidOptionError: it holds no key.
        AuditError: it cannot be read.
    """
    try:
        found = Path(file).read_bytes()
    except OSError as exc:
        raise AuditError(f"{file}: the audit key cannot be read: {exc.strerror}") from exc
    with suppress(ValueError):
        found = bytes.fromhex(found.decode("ascii"))
    _check_key(found)
    return found


def _from_hex(text: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError as exc:
        raise InvalidOptionError(f"{KEY_VARIABLE}: expected hexadecimal digits") from exc
    _check_key(key)
    return key


def _check_key(key: object) -> None:
    if not isinstance(key, bytes | bytearray) or len(key) < KEY_BYTES_MIN:
        what = f"{len(key)} of them" if isinstance(key, bytes) else type(key).__name__
        raise InvalidOptionError(
            f"the audit key: expected at least {KEY_BYTES_MIN} bytes, got {what}; "
            "os.urandom(32) makes one"
        )


def checked_seconds(name: str, seconds: object) -> float:
    """A span of time.

    Raises:
        InvalidOptionError: it is no number, or below 0.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidOptionError(f"{name}: expected a number, got {type(seconds).__name__}")
    if not (math.isfinite(seconds) and seconds >= 0):
        raise InvalidOptionError(f"{name}: expected 0 or more, got {seconds}")
    return float(seconds)
