"""Units of a payload and their lines: texts as data, each on one line that it cannot leave.

A line holds its text as a JSON string between the marks of a fence. No text begins a line, ends a
fence, hides characters or changes the direction of what follows, and each can be read back.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any, Final, NamedTuple

from memcore.codec.values import decode_json, encode_json
from memcore.errors import InvalidItemError, InvalidOptionError
from memcore.memory.recall import line_of, playbook_line, quoted
from memcore.memory.trust import ACTIVE_BY, BY
from memcore.model import Memory, MemoryHit, Playbook
from memcore.options import checked_choice
from memcore.records import record

__all__ = [
    "NAME",
    "PayloadUnit",
    "UnitLine",
    "as_units",
    "escaper",
    "is_number",
    "json_copy",
    "memory_candidates",
    "state_candidates",
    "unit_candidates",
]


NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
"""Name of a section, which is the tag of its fence."""
UNITS_MAX: Final = 100_000
"""Most units of a section."""
_ID_CHARS_MAX: Final = 256
_NUMBER_MAX: Final = sys.float_info.max


@record(frozen=True, slots=True, kw_only=True)
class PayloadUnit:
    """Part of a section that is shown whole or not at all.

    Raises:
        InvalidOptionError, InvalidItemError: a field is invalid.
    """

    id: str
    """Name within its section, up to 256 characters."""
    text: str
    source: Mapping[str, Any] = field(default_factory=dict)
    """Origin, as JSON: an address, a session with seqs, an agent with its task."""
    by: str = "import"
    """Origin of its trust, as for memories: ``operator`` to ``import``."""
    score: float | None = None
    """Rank within its section, the greatest first; None: it stands where it was given."""
    expires_at: float | None = None
    """Time from which it is left out, seconds since 1970."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Text and origin: ids alone are unique in one section only."""
        return self.id, self.text, str(dict(self.source))

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not 0 < len(self.id) <= _ID_CHARS_MAX:
            msg = f"id: expected a str of 1 to {_ID_CHARS_MAX} characters, got {self.id!r:.80}"
            raise InvalidOptionError(msg)
        if not isinstance(self.text, str):
            msg = f"text of unit {self.id!r:.80}: expected a str, got {type(self.text).__name__}"
            raise InvalidItemError(msg)
        checked_choice("by", self.by, BY)
        for name in ("score", "expires_at"):
            value = getattr(self, name)
            if value is not None and not is_number(value):
                msg = f"{name} of unit {self.id!r:.80}: expected a number, got {value!r:.80}"
                raise InvalidOptionError(msg)
        if not isinstance(self.source, Mapping):
            msg = f"source of unit {self.id!r:.80}: expected a JSON object, got {self.source!r:.80}"
            raise InvalidItemError(msg)
        object.__setattr__(self, "source", json_copy(dict(self.source), f"unit {self.id!r:.80}"))


def is_number(value: object) -> bool:
    """Return True for a finite int or float within the range of floats."""
    return type(value) in (int, float) and abs(value) <= _NUMBER_MAX  # type: ignore[arg-type]


def json_copy(value: Any, what: str) -> Any:
    """Return a copy of JSON, which no later change of the original reaches.

    Raises:
        InvalidItemError: it is no JSON; ``what`` names it.
    """
    try:
        return decode_json(*encode_json(value))
    except (TypeError, ValueError, RecursionError) as exc:
        msg = f"{what} cannot be written as JSON: {exc}"
        raise InvalidItemError(msg) from exc


def as_units(given: Any, section: str, **defaults: Any) -> tuple[PayloadUnit, ...]:
    """Return units, each given as such or as a mapping with its fields.

    Args:
        given: the units.
        section: name of their section, for messages.
        defaults: fields that a mapping need not have.

    Raises:
        InvalidItemError, InvalidOptionError: one is not valid, or two have the same id.
    """
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        msg = f"{section}: expected a list of units, got {type(given).__name__}"
        raise InvalidItemError(msg)
    found: dict[str, PayloadUnit] = {}
    for at, each in enumerate(given):
        unit = each if isinstance(each, PayloadUnit) else _made(each, f"{section}[{at}]", defaults)
        if unit.id in found:
            msg = f"{section}[{at}]: two units are named {unit.id!r:.80}"
            raise InvalidOptionError(msg)
        if at >= UNITS_MAX:
            msg = f"{section}: more than {UNITS_MAX:,} units"
            raise InvalidOptionError(msg)
        found[unit.id] = unit
    return tuple(found.values())


def _made(fields: Any, where: str, defaults: Mapping[str, Any]) -> PayloadUnit:
    try:
        return PayloadUnit(**{**defaults, **fields})
    except TypeError as exc:
        msg = f"{where}: expected a PayloadUnit, or its fields id, text, source, by, score: {exc}"
        raise InvalidItemError(msg) from exc
    except (InvalidItemError, InvalidOptionError) as exc:
        raise type(exc)(f"{where}: {exc}") from exc


# --- Lines ----------------------------------------------------------------------------------------


class UnitLine(NamedTuple):
    """Unit with the line that shows it."""

    unit: PayloadUnit
    line: str
    start: int
    """First character of the text in the line: a JSON string without its quotes."""
    stop: int
    refused: str | None = None
    """Reason why it must not be shown."""


_HIDDEN: Final = (
    "\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Characters that break a line, change its direction, cannot be seen, or are half of a pair."""


def escaper(names: Iterable[str]) -> re.Pattern[str]:
    """Return the pattern of what is escaped in texts: hidden characters, and marks of fences.

    ``names``: those of all sections, which are the tags of their fences.
    """
    tags = "|".join(sorted(names))
    return re.compile(rf"[{_HIDDEN}]|<(?=\s*(?:/\s*)?(?:{tags})\b)", re.IGNORECASE)


def _escape(found: re.Match[str]) -> str:
    """Return a character as JSON escapes it, in UTF-16."""
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def _json(text: str, risky: re.Pattern[str]) -> str:
    return risky.sub(_escape, json.dumps(text, ensure_ascii=False))


def unit_candidates(units: Iterable[PayloadUnit], risky: re.Pattern[str]) -> Iterator[UnitLine]:
    """Yield units with their lines; ``risky``: what ``escaper`` returns."""
    for unit in units:
        head = f"- {_json(unit.id, risky)} by {unit.by}: "
        line = head + _json(unit.text, risky)
        yield UnitLine(unit, line, len(head) + 1, len(line) - 1)


def state_candidates(units: Iterable[PayloadUnit], risky: re.Pattern[str]) -> Iterator[UnitLine]:
    """Yield fields of a state, of which each text is JSON, with their lines."""
    for unit in units:
        head = f"- {_json(unit.id, risky)}: "
        line = head + risky.sub(_escape, unit.text)
        yield UnitLine(unit, line, len(head), len(line))


def memory_candidates(found: Iterable[Memory | MemoryHit | Playbook]) -> Iterator[UnitLine]:
    """Yield memories and playbooks with the lines that contexts show for them, by id.

    Those that nobody vouches for are refused.

    Raises:
        InvalidItemError: one is neither.
    """
    known: set[tuple[Any, ...]] = set()
    for each in found:
        if isinstance(each, Playbook):
            line = playbook_line(each)
            unit = PayloadUnit(
                id=f"playbook {each.scenario}"[:_ID_CHARS_MAX],
                text=line.removeprefix("- "),
                source={"playbook": each.scenario, "version": each.version},
                by="operator",
            )
            refused = None if each.status == "active" else "trust"
            yield UnitLine(unit, line, 2, len(line), refused)
            continue
        memory = each.memory if isinstance(each, MemoryHit) else each
        if not isinstance(memory, Memory):
            msg = f"memories: expected a Memory or a Playbook, got {type(memory).__name__}"
            raise InvalidItemError(msg)
        line, shown = line_of(memory), quoted(memory.text)
        source: dict[str, Any] = {"memory": memory.id, "version": memory.version}
        if memory.shared_from is not None:
            source["shared_from"] = list(memory.shared_from)
        unit = PayloadUnit(
            id=f"memory {memory.id}" if memory.shared_from is None else
            f"memory {memory.id} of {'/'.join(memory.shared_from)}"[:_ID_CHARS_MAX],
            text=json.loads(shown),
            source=source,
            by=memory.by,
            score=each.score if isinstance(each, MemoryHit) else None,
        )  # fmt: skip
        vouched = memory.by in ACTIVE_BY or memory.shared_from is not None
        refused = None if memory.status == "active" and vouched else "trust"
        if refused is None and unit.key in known:
            refused = "duplicate"
        known.add(unit.key)
        yield UnitLine(unit, line, len(line) - len(shown) + 1, len(line) - 1, refused)
