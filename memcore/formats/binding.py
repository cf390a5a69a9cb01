"""Which result answers which call, over a list of entries; the same rules as the ledger's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from memcore._fast import classify
from memcore.model import ItemKind, Message

__all__ = ["Binding", "CallSlot", "Entry", "bind"]

CLASS_SERVER: Final = 9
CLASS_MASK: Final = 0x3F
BY_NAME: Final = 0x40
SECOND: Final = 0x80

FLAG_MODEL: Final = 1
FLAG_MIXED: Final = 2

ABANDON_EVENT: Final = "abandon"
"""Type of the event that gives up a call; its payload is ``{"class": int, "id": str}``."""

Key = tuple[int, str]


class Entry(NamedTuple):
    """One item as rendering sees it."""

    seq: int
    message: Message
    event: bool = False


@dataclass(eq=False, slots=True)
class CallSlot:
    """A call and everything that answered it."""

    key: Key
    at: int
    """Index of the entry that made the call."""
    results: list[int] = field(default_factory=list)
    abandoned: bool = False
    before: CallSlot | None = None
    """The call with the same key before it."""

    @property
    def is_server(self) -> bool:
        """A provider's own tool: the provider answers it, nobody else can."""
        return self.key[0] & CLASS_MASK == CLASS_SERVER


@dataclass(slots=True)
class Binding:
    """What ``bind`` found, one element an entry."""

    kinds: list[int]
    flags: list[int]
    calls: list[list[CallSlot]]
    answers: list[list[tuple[Key, CallSlot | None]]]

    def is_shown(self, at: int) -> bool:
        """Whether the entry has a place in a context (events and whole orphans have none)."""
        return self.kinds[at] != ItemKind.EVENT

    def last_content(self) -> int:
        """The last entry that shows that the open calls before it were passed over, -1 if none.

        Results do not, and where calls are items of their own neither does the run of them at the
        end: they are calls of the same response.
        """
        at = len(self.kinds) - 1
        while at >= 0 and (not self.is_shown(at) or self.is_result(at)):
            at -= 1
        while at >= 0 and (self.kinds[at] == ItemKind.CALL or not self.is_shown(at)):
            at -= 1
        return at

    def is_result(self, at: int) -> bool:
        """Whether the entry holds nothing but results."""
        return self.kinds[at] == ItemKind.RESULT and not self.flags[at] & FLAG_MIXED


class _Binder:
    """The state of one pass."""

    def __init__(self) -> None:
        self.latest: dict[Key, CallSlot] = {}
        self.groups: dict[Key, tuple[int, list[CallSlot]]] = {}
        self.group = -1
        self.group_last = -1
        self.last_shown = -1

    def find(self, key: Key) -> CallSlot | None:
        """The call that a result with this key answers."""
        slot = self.latest.get((key[0] & ~SECOND, key[1]))
        if slot is not None and key[0] & BY_NAME:
            for waiting in self.groups[key][1]:
                if not waiting.results and not waiting.abandoned:
                    return waiting
        return slot

    def newest_open(self, key: Key) -> CallSlot | None:
        """The call with this key that is given up: the newest that is open."""
        slot = self.find(key)
        while slot is not None and (slot.results or slot.abandoned):
            slot = slot.before
        return slot

    def open(self, key: Key, at: int, before: list[CallSlot]) -> CallSlot | None:
        """A new call; None if the key is another id of the call before it."""
        identity = (key[0] & ~SECOND, key[1])
        if key[0] & SECOND and before:
            self.latest[identity] = before[-1]
            return None
        slot = CallSlot(identity, at, before=self.latest.get(identity))
        self.latest[identity] = slot
        if key[0] & BY_NAME:
            if self.group_last not in (at, self.last_shown):
                self.group = at
            self.group_last = at
            start, members = self.groups.get(key, (-1, []))
            self.groups[key] = (self.group, [*members, slot] if start == self.group else [slot])
        return slot


def bind(entries: Iterable[Entry]) -> Binding:
    """Bind every result to the latest call with its (class, id), open or closed.

    Calls without ids bind first-in-first-out by name within their run of calling items.
    """
    state = _Binder()
    binding = Binding([], [], [], [])
    for at, entry in enumerate(entries):
        if entry.event:
            _give_up(state, entry.message)
            kind, flags = int(ItemKind.EVENT), 0
            slots: list[CallSlot] = []
            answers: list[tuple[Key, CallSlot | None]] = []
        else:
            kind, opens, closes, flags = classify(entry.message)
            answers = []
            for key in closes:
                if key[0] & SECOND:
                    continue
                found = state.find(key)
                if found is not None:
                    found.results.append(at)  # the next one of this name finds the next call
                answers.append((key, found))
            slots = []
            for key in opens:
                slot = state.open(key, at, slots)
                if slot is not None:
                    slots.append(slot)
            # A whole orphan is invisible to the runs of calls, as it is to the ledger.
            if kind != ItemKind.RESULT or flags & FLAG_MIXED or any(s for _, s in answers):
                state.last_shown = at
        binding.kinds.append(kind)
        binding.flags.append(flags)
        binding.calls.append(slots)
        binding.answers.append(answers)
    return binding


def _give_up(state: _Binder, event: Message) -> None:
    payload = event.get("payload")
    if event.get("type") != ABANDON_EVENT or not isinstance(payload, dict):
        return
    cls, text = payload.get("class"), payload.get("id")
    if isinstance(cls, int) and isinstance(text, str):
        slot = state.newest_open((cls, text))
        if slot is not None:
            slot.abandoned = True
