"""What a Session object remembers of the log that it shows: whose changes its holder knows.

It stands in the slot that ADK's own services use for this; copies of the object keep it, JSON does
not. It is read and written as pydantic keeps it: attribute access takes ten times as long.
"""

from __future__ import annotations

from typing import Final

from google.adk.sessions.session import Session

__all__ = ["marker_in", "marker_of", "put_marker"]

_SLOT: Final = "_storage_update_marker"
_OURS: Final = "memcore:"


def marker_of(place: tuple[int, int], revision: int) -> str:
    """The marker of a session's revision; numbers of sessions are never given twice."""
    return f"{_OURS}{place[1]}:{revision}"


def marker_in(session: Session) -> str | None:
    """The marker that an object has, None if it has none of memcore's."""
    found = (session.__pydantic_private__ or {}).get(_SLOT)
    return found if isinstance(found, str) and found.startswith(_OURS) else None


def put_marker(session: Session, marker: str) -> None:
    """Give an object a marker."""
    private = session.__pydantic_private__
    if private is None:
        session._storage_update_marker = marker  # noqa: SLF001 - ADK's own slot for it
    else:
        private[_SLOT] = marker
