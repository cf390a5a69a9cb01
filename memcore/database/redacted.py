"""The lines of an export, redacted on their way out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from memcore.database.exchange import parse_line, portable_json
from memcore.privacy.border import Redacts

__all__ = ["redacted_lines"]

_PARTS: Final = {"view": ("summary", "reason", "masks"), "checkpoint": ("name", "meta")}
_VALUES: Final = ("values", "set")


def redacted_lines(pieces: Iterable[bytes], redacts: Redacts) -> Iterator[bytes]:
    """The lines that the pieces make, one piece each, redacted.

    Raises:
        InvalidItemError: a line is no JSON; no export writes such.
    """
    held: list[bytes] = []
    for piece in pieces:
        held.append(piece)
        if piece.endswith(b"\n"):
            for line in b"".join(held).splitlines():
                yield portable_json(_redacted(parse_line(line), redacts)) + b"\n"
            held = []
    if held:
        yield b"".join(held)


def _redacted(found: Any, redacts: Redacts) -> Any:
    if not isinstance(found, dict):
        return found
    made = dict(found)
    for name in ("item", "meta", "messages"):
        if name in made:
            made[name] = redacts.value(made[name])[0]
    for name, fields in _PARTS.items():
        if isinstance(made.get(name), dict):
            made[name] = {
                field: redacts.value(value)[0] if field in fields else value
                for field, value in made[name].items()
            }
    for name in ("state", "shared"):
        if isinstance(made.get(name), dict):
            made[name] = {
                field: redacts.value(value)[0] if field in _VALUES else value
                for field, value in made[name].items()
            }
    return made
