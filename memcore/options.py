"""Checking the arguments of the public API, in one voice."""

from __future__ import annotations

from typing import Any

from memcore.errors import InvalidOptionError

__all__ = ["checked_bool", "checked_int", "checked_optional_int"]


def checked_int(name: str, value: Any, *, least: int = 0) -> int:
    """``value`` if it is an int of at least ``least`` (a bool is none).

    Raises:
        InvalidOptionError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        kind = {0: "a non-negative int", 1: "a positive int"}.get(least, f"an int >= {least}")
        msg = f"{name}: expected {kind}, got {value!r}"
        raise InvalidOptionError(msg)
    return value


def checked_optional_int(name: str, value: Any, *, least: int = 0) -> int | None:
    """As ``checked_int``; None stays None."""
    return None if value is None else checked_int(name, value, least=least)


def checked_bool(name: str, value: Any) -> bool:
    """``value`` if it is True or False.

    Raises:
        InvalidOptionError: it is not.
    """
    if not isinstance(value, bool):
        msg = f"{name}: expected True or False, got {value!r}"
        raise InvalidOptionError(msg)
    return value
