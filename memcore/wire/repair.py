"""Repaired views: replacements for broken items. Pure and deterministic.

Orphaned results and results superseded by a newer result of their call are removed; in mode
``drop``, so are the calls that rendering would answer synthetically. The order and number of
messages are left to rendering, since no item represents them. Only the broken part of a message is
removed; a message without remaining content is hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from typing import Any, Final, NamedTuple

from memcore._fast import classify
from memcore.model import ItemKind, Message
from memcore.records import record
from memcore.wire.message import (
    ABANDON_EVENT,
    BY_NAME,
    FLAG_MODEL,
    REMOVED,
    SECOND,
    Binding,
    CallSlot,
    Key,
    Path,
    WireItem,
    bind,
    body_path,
    edited,
    value_at,
)
from memcore.wire.policy import PairPolicy

__all__ = [
    "MODES",
    "Mend",
    "apply_mends",
    "mend",
]


MODES: Final = ("drop", "synthesize")
_CALL_LISTS: Final = ("tool_calls", "invalid_tool_calls", "content", "parts")
_THINKING: Final = frozenset(("thinking", "redacted_thinking", "reasoning"))
_SAID: Final = ("refusal", "audio")
_ORDER: Final = ("dropped", "superseded", "orphan", "reasoning")
"""Precedence of actions: the first that applies names the change of a message."""


class Mend(NamedTuple):
    """The replacement of one entry."""

    at: int
    action: str
    """``dropped``, ``superseded``, ``orphan`` or ``reasoning``."""
    message: Message | None
    """None: the entry is hidden."""
    because: int
    """The last entry that the change depends on (its own position if on no later one): without it,
    the entry may be needed unchanged."""
    keys: tuple[Key, ...]
    """Keys of the removed calls, or of the calls whose results were removed."""


@record(slots=True)
class _Wound:
    """The parts to remove from one entry."""

    parts: set[Path] = field(default_factory=set)
    whole: bool = False
    actions: set[str] = field(default_factory=set)
    because: int = -1
    keys: list[Key] = field(default_factory=list)

    def add(self, action: str, because: int, key: Key | None = None) -> None:
        self.actions.add(action)
        self.because = max(self.because, because)
        if key is not None:
            self.keys.append(key)


def mend(
    entries: Sequence[WireItem], policy: PairPolicy, mode: str, *, locked: Iterable[int] = ()
) -> list[Mend]:
    """Return the changes that remove orphans, superseded results and (``drop``) unanswered calls.

    Entries at positions in ``locked`` stay. A removal may orphan other parts (the reasoning before
    a call, the children of a program), so passes repeat until one finds nothing; findings of a
    later pass depend on everything that the earlier passes depend on.
    """
    fixed = frozenset(locked)
    shown: list[WireItem | None] = list(entries)
    made: dict[int, Mend] = {}
    floor, gone = -1, frozenset[Key]()
    while True:
        places = [at for at, entry in enumerate(shown) if entry is not None]
        found = _Pass([entry for entry in shown if entry is not None], policy, gone)
        found.look(drop=mode == "drop")
        wounds = {places[at]: wound for at, wound in found.wounds.items()}
        changed = [at for at in sorted(wounds) if at not in fixed]
        for at in changed:
            entry, wound = shown[at], wounds[at]
            assert entry is not None  # noqa: S101 - passes see shown entries only
            message = None if wound.whole else _without(entry.message, wound.parts)
            before = made.get(at)
            actions = wound.actions | ({before.action} if before is not None else set())
            because = max(at, floor, places[wound.because] if wound.because >= 0 else -1)
            keys = (*(before.keys if before is not None else ()), *wound.keys)
            action = min(actions, key=_ORDER.index)
            made[at] = Mend(at, action, message, because, keys)
            shown[at] = None if message is None else entry._replace(message=message)
        if not changed:
            return [made[at] for at in sorted(made)]
        floor = max(floor, *(made[at].because for at in changed))
        gone |= {key for at in changed for key in wounds[at].keys if made[at].action == "dropped"}


def apply_mends(entries: Sequence[WireItem], mends: Iterable[Mend]) -> list[WireItem]:
    """Return the entries as shown with the changes applied."""
    by_place = {each.at: each for each in mends}
    found = []
    for at, entry in enumerate(entries):
        change = by_place.get(at)
        if change is None:
            found.append(entry)
        elif change.message is not None:
            found.append(entry._replace(message=change.message))
    return found


class _Pass:
    """One pass over the entries, which finds the parts to remove from each."""

    def __init__(self, entries: list[WireItem], policy: PairPolicy, gone: frozenset[Key]) -> None:
        self.entries = entries
        self.policy = policy
        self.gone = gone
        """Calls removed by earlier passes."""
        self.binding: Binding = bind(entries)
        self.binding.leave_out_strays()
        self.wounds: dict[int, _Wound] = {}

    def look(self, *, drop: bool) -> None:
        """Fill ``wounds``."""
        for at in self.binding.strays:
            self._wound(at).add("orphan", -1)
            self._wound(at).whole = True
        for at, answers in enumerate(self.binding.answers):
            if answers or self.binding.is_result(at):
                self._look_at_results(at)
        if drop:
            self._look_at_calls()
            self._look_for_children()
        if self.policy.wire == "responses":
            self._look_at_reasoning()

    def _wound(self, at: int) -> _Wound:
        return self.wounds.setdefault(at, _Wound())

    # --- results ----------------------------------------------------------------------------------

    def _look_at_results(self, at: int) -> None:
        answers, binding = self.binding.answers[at], self.binding
        if not answers:
            if not self.policy.standalone_results:
                self._wound(at).add("orphan", -1)
                self._wound(at).whole = True
            return
        lost = [(key, slot) for key, slot in answers if not _stands(slot, at)]
        blocks = list(_answering_blocks(self.entries[at].message))
        if blocks:
            removed = _blocks_to_remove(blocks, at, answers)
        else:
            removed = []
            if len(lost) == len(answers) and binding.is_result(at):
                self._wound(at).whole = True
            else:
                lost = []
        for key, slot in lost:
            action = "orphan" if slot is None else "superseded"
            self._wound(at).add(action, -1 if slot is None else slot.results[-1], key)
        if removed:
            wound = self._wound(at)
            wound.parts.update(removed)
            if not wound.actions:
                wound.add("superseded", -1)  # of several blocks for one call the last one counts

    # --- calls ------------------------------------------------------------------------------------

    def _look_at_calls(self) -> None:
        ends = self.binding.ends()
        behind = -1  # the next entry after which preceding calls count as unanswered
        given_up = -1
        for at in range(len(self.entries) - 1, -1, -1):
            missing = [
                slot
                for slot in self.binding.calls[at]
                if not slot.results and not slot.is_server and (slot.abandoned or ends.passed(slot))
            ]
            for slot in missing:
                because = behind if behind > at and not slot.abandoned else given_up
                self._wound(at).add("dropped", max(because, -1), slot.key)
            if missing:
                self._take_calls(at, missing)
            if self.entries[at].event:
                if self.entries[at].message.get("type") == ABANDON_EVENT:
                    given_up = max(given_up, at)
            elif not self.binding.is_result(at) and self.binding.kinds[at] != ItemKind.CALL:
                behind = at

    def _take_calls(self, at: int, missing: list[CallSlot]) -> None:
        wound = self._wound(at)
        if self.binding.kinds[at] == ItemKind.CALL:
            wound.whole = True
            return
        by_name: dict[Key, list[Path]] = {}
        wanted = {slot.key for slot in missing}
        for key, path in _calls_of(self.entries[at].message):
            if key not in wanted:
                continue
            if key[0] & BY_NAME:
                by_name.setdefault(key, []).append(path)
            else:
                wound.parts.add(path)
        for key, paths in by_name.items():
            slots = [slot for slot in self.binding.calls[at] if slot.key == key]
            for place, path in enumerate(paths):  # LangChain may repeat the whole list of calls
                if slots[place % len(slots)] in missing:
                    wound.parts.add(path)

    def _look_for_children(self) -> None:
        """Remove the calls that refer to a removed program."""
        known: set[Key] = set()
        for at, entry in enumerate(self.entries):
            if self.binding.kinds[at] == ItemKind.CALL:
                for cls, text in classify(entry.message)[2]:
                    key = (cls & ~SECOND, text)
                    if cls & SECOND and key in self.gone and key not in known:
                        self._wound(at).whole = True
                        for slot in self.binding.calls[at]:
                            self._wound(at).add("dropped", -1, slot.key)
            known |= {slot.key for slot in self.binding.calls[at]}

    def _look_at_reasoning(self) -> None:
        """Remove reasoning that no item of its response follows, except at the end of the list."""
        behind = -1
        for at in range(len(self.entries) - 1, -1, -1):
            if not self.binding.is_shown(at) or (at in self.wounds and self.wounds[at].whole):
                continue
            if self.binding.kinds[at] != ItemKind.REASONING:
                behind = at
            elif behind >= 0 and not self.binding.flags[behind] & FLAG_MODEL:
                self._wound(at).add("reasoning", behind)
                self._wound(at).whole = True


def _stands(slot: CallSlot | None, at: int) -> bool:
    return slot is not None and slot.results[-1] == at


def _answering_blocks(message: Message) -> Iterator[tuple[Path, Sequence[Key] | None]]:
    """Yield the blocks that answer calls, each with its keys; None if it names no call."""
    base = body_path(message)
    body = value_at(message, base)
    if not isinstance(body, dict):
        return
    field_name = "parts" if isinstance(body.get("parts"), list) else "content"
    role = "assistant" if classify(message)[0] == ItemKind.ASSISTANT else "user"
    blocks = body.get(field_name)
    for at, block in enumerate(blocks if isinstance(blocks, list) else ()):
        if not isinstance(block, dict):
            continue
        closes = classify({"role": role, field_name: [block]})[2]
        is_result = block.get("type") == "tool_result" or any(
            isinstance(block.get(name), dict) for name in ("functionResponse", "function_response")
        )
        if closes or (is_result and role == "user"):
            yield (*base, field_name, at), closes or None


def _blocks_to_remove(
    blocks: list[tuple[Path, Sequence[Key] | None]],
    at: int,
    answers: list[tuple[Key, CallSlot | None]],
) -> list[Path]:
    """Find blocks that answer no call, or are superseded: the last block of a call stays."""
    wanted: dict[Key, list[CallSlot | None]] = {}
    for key, slot in answers:
        wanted.setdefault(key, []).append(slot)
    removed, answered = [], []
    for path, keys in reversed(blocks):
        slots = wanted.get(keys[0]) if keys else None
        slot = slots.pop() if slots else None
        if slot is None or not _stands(slot, at) or slot in answered:
            if keys is None or keys[0] in wanted:
                removed.append(path)
        else:
            answered.append(slot)
    return removed


def _calls_of(message: Message) -> Iterator[tuple[Key, Path]]:
    """Yield every place at which a model message holds a call, with the call's key."""
    base = body_path(message)
    body = value_at(message, base)
    for inner in ((), ("additional_kwargs",)):
        holder = value_at(body, inner)
        if not isinstance(holder, dict):
            continue
        for name in _CALL_LISTS:
            listed = holder.get(name)
            for at, entry in enumerate(listed if isinstance(listed, list) else ()):
                for key in classify({"role": "assistant", name: [entry]})[1]:
                    yield key, (*base, *inner, name, at)
        single = holder.get("function_call")
        for key in classify({"role": "assistant", "function_call": single})[1]:
            yield key, (*base, *inner, "function_call")


def _without(message: Message, parts: set[Path]) -> Message | None:
    """Remove parts of a message; None if no content is left."""
    found: Message = edited(message, dict.fromkeys(parts, REMOVED))
    emptied = {path[:-1] for path in parts if isinstance(path[-1], int)}
    lists = {path for path in emptied if path[-1] not in ("content", "parts")}
    found = edited(found, {path: REMOVED for path in lists if not value_at(found, path)})
    body = value_at(found, body_path(found))
    if any(classify(found)[1:3]) or any(body.get(name) for name in _SAID):
        return found
    left = body.get("parts" if isinstance(body.get("parts"), list) else "content")
    if isinstance(left, list):
        left = [block for block in left if not _is_thinking(block)]
    return found if left else None


def _is_thinking(block: Any) -> bool:
    return isinstance(block, dict) and (
        block.get("type") in _THINKING or block.get("thought") is True
    )
