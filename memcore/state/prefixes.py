"""Prefixes of names: whose a field is."""

from __future__ import annotations

from typing import Final

__all__ = ["APP", "TEMPORARY", "USER", "is_shared", "prefix_of"]

APP: Final = "app:"
"""The application's: all sessions of all its users see it."""
USER: Final = "user:"
"""The user's: all their sessions in the application see it."""
TEMPORARY: Final = "temp:"
"""The handle's: it is never stored."""
_ALL: Final = (APP, USER, TEMPORARY)


def prefix_of(key: object) -> str:
    """The prefix of a field's name; empty: it is the session's own."""
    if isinstance(key, str):
        for prefix in _ALL:
            if key.startswith(prefix):
                return prefix
    return ""


def is_shared(key: object) -> bool:
    """Whether a field is not the session's own."""
    return bool(prefix_of(key))
