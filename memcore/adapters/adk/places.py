"""Where the versions of an artifact lie: one entry each, in the order of their numbers.

A key is the artifact's place, a NUL and the version in eight hex digits; the place is ``u`` and the
file of a user's artifact, ``s``, the session, a NUL and the file of a session's. Session and file
are labels, so no name looks like a part of another, whatever characters it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from google.adk.artifacts import artifact_util
from google.adk.errors.input_validation_error import InputValidationError

from memcore.adapters.adk.labels import END, is_name, label
from memcore.adapters.adk.parts import KINDS
from memcore.errors import CorruptValueError
from memcore.kv import KeyValueView

__all__ = [
    "VERSION_MAX",
    "Place",
    "latest",
    "names_of",
    "place_of",
    "row_of",
    "session_of",
    "versions_of",
]

USER: Final = "user:"
_BEHIND: Final = "\x01"
_VERSION_CHARS: Final = 8
_HEX: Final = frozenset("0123456789abcdef")
VERSION_MAX: Final = 16**_VERSION_CHARS - 1
_SESSION_BYTES_MAX: Final = 150
_FILE_BYTES_MAX: Final = 300
"""Together with what stands between them they fit a key."""
_PAGE: Final = 256

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an artifact is: its session (None: the user's) and its name without ``user:``."""

    session_id: str | None
    name: str

    @property
    def filename(self) -> str:
        """The name by which it is found from every session."""
        return self.name if self.session_id is not None else USER + self.name

    @property
    def start(self) -> str:
        """The beginning of the keys of its versions."""
        return _beginning(self.session_id) + label(self.name, _FILE_BYTES_MAX) + END

    @property
    def is_told(self) -> bool:
        """Whether the key tells the name."""
        return is_name(label(self.name, _FILE_BYTES_MAX))

    def key(self, version: int) -> str:
        """The key of a version."""
        return f"{self.start}{version:0{_VERSION_CHARS}x}"


def place_of(session_id: str | None, filename: str, *, saving: bool = False) -> Place:
    """The place of an artifact; one that begins with ``user:``, or has no session, is the user's.

    Raises:
        InputValidationError: the session id is not legal.
    """
    if not isinstance(filename, str):
        msg = f"filename must be a string, got {type(filename).__name__}."
        raise InputValidationError(msg)
    if filename.startswith(USER):
        return Place(None, filename[len(USER) :])
    found = session_of(session_id)
    if saving and found is not None and found.replace("\\", "/").split("/")[0] == "user":
        msg = "session_id must not be or start with the reserved value 'user'."
        raise InputValidationError(msg)
    return Place(found, filename)


def session_of(session_id: str | None) -> str | None:
    """The session id, stripped.

    Raises:
        InputValidationError: it is not legal.
    """
    if session_id is None:
        return None
    artifact_util.validate_path_segment(session_id, "session_id")
    return session_id.strip()


def _beginning(session_id: str | None) -> str:
    return "u" if session_id is None else "s" + label(session_id, _SESSION_BYTES_MAX) + END


def row_of(key: str, found: Any) -> Row:
    """The row of a version, as it was stored.

    Raises:
        CorruptValueError: it is none.
    """
    told = found if isinstance(found, dict) else {}
    at = told.get("at")
    is_sound = (
        told.get("kind", "") in KINDS
        and isinstance(told.get("part"), dict)
        and isinstance(told.get("metadata"), dict)
        and isinstance(told.get("mime", ()), str | None)
        and isinstance(told.get("content", ""), str)
        and isinstance(at, int | float)
        and not isinstance(at, bool)
        and isinstance(told.get("name", ""), str)
        and (is_name(_label_in(key)) or "name" in told)
    )
    if not is_sound:
        raise _damaged(key)
    return told


def _damaged(key: str) -> CorruptValueError:
    msg = f"the row of the artifact at {key!r:.200} is damaged; run 'memcore check'"
    return CorruptValueError(msg, key=b"")


def latest(view: KeyValueView, place: Place) -> tuple[int, Row] | None:
    """The number and row of the newest version; None if there is no such artifact."""
    for key, row in view.scan(prefix=place.start, reverse=True, limit=1):
        return _version_in(key), row_of(key, row)
    return None


def versions_of(view: KeyValueView, place: Place) -> Iterator[tuple[int, Row]]:
    """The versions in the order of their numbers."""
    for key, row in view.scan(prefix=place.start):
        yield _version_in(key), row_of(key, row)


def _version_in(key: str) -> int:
    told = key[-_VERSION_CHARS:]
    if len(told) != _VERSION_CHARS or not set(told) <= _HEX:
        raise _damaged(key)
    return int(told, 16)


def _label_in(key: str) -> str:
    """The label of the file in a key."""
    return key[: -_VERSION_CHARS - 1].rpartition(END)[2].removeprefix("u")


def names_of(
    view: KeyValueView, session_id: str | None, after: str | None
) -> tuple[list[str], str | None]:
    """Up to 256 names of a session's artifacts, or the user's, and where the next ones begin.

    Each costs a look at its first version, however many there are.
    """
    start = _beginning(session_id)
    found: list[str] = []
    while len(found) < _PAGE:
        first = next(view.scan(after or "", prefix=start, limit=1), None)
        if first is None:
            return found, None
        key, row = first
        _version_in(key)
        name = key[len(start) : -_VERSION_CHARS - 1]
        told = name[1:] if is_name(name) else row_of(key, row)["name"]
        found.append(Place(session_id, told).filename)
        after = key[: -_VERSION_CHARS - 1] + _BEHIND
    return found, after
