"""Which result answers which call, over a list of entries; the same rules as the ledger's."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from memcore._fast import classify
from memcore.model import ItemKind, Message

__all__ = ["Binder", "Binding", "CallSlot", "Entry", "bind"]

CLASS_PROGRAM: Final = 7
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


class Ends(NamedTuple):
    """The last entries that show that the open calls before them were passed over, -1 if none."""

    content: int
    outside: int
    """Of these the last that is not the model's."""

    def passed(self, slot: CallSlot) -> bool:
        """Whether the list goes on behind a call.

        A program runs at its provider: what the model says behind it is its continuation.
        """
        return slot.at < (self.outside if slot.key[0] == CLASS_PROGRAM else self.content)


@dataclass(slots=True)
class Binding:
    """What ``bind`` found, one element an entry."""

    kinds: list[int]
    flags: list[int]
    calls: list[list[CallSlot]]
    answers: list[list[tuple[Key, CallSlot | None]]]
    references: list[tuple[int, CallSlot | None]] = field(default_factory=list)
    """Entries that refer to a call without answering it, and the call: what a program called,
    a hosted tool that was approved."""
    strays: set[int] = field(default_factory=set)

    def is_shown(self, at: int) -> bool:
        """Whether the entry has a place in a context (events and whole orphans have none)."""
        return self.kinds[at] != ItemKind.EVENT and at not in self.strays

    def leave_out_strays(self) -> None:
        """Items without the call that they refer to are not shown, their results are orphans."""
        self.strays.update(at for at, slot in self.references if slot is None)
        for at, slot in self.references:
            if slot is not None and slot.at in self.strays:
                self.strays.add(at)
        for at in self.strays:
            for slot in self.calls[at]:
                for result in slot.results:
                    self.answers[result] = [
                        (key, None if found is slot else found)
                        for key, found in self.answers[result]
                    ]
            self.calls[at] = []

    def ends(self) -> Ends:
        """Where it shows that open calls were passed over.

        Results do not show it, and where calls are items of their own neither does the run of them
        at the end: they are calls of the same response.
        """
        outside = len(self.kinds) - 1
        while outside >= 0 and (
            self.flags[outside] & FLAG_MODEL
            or self.is_result(outside)
            or not self.is_shown(outside)
        ):
            outside -= 1
        at = len(self.kinds) - 1
        while at >= 0 and (not self.is_shown(at) or self.is_result(at)):
            at -= 1
        while at >= 0 and (self.kinds[at] == ItemKind.CALL or not self.is_shown(at)):
            at -= 1
        return Ends(at, outside)

    def is_result(self, at: int) -> bool:
        """Whether the entry holds nothing but results."""
        return self.kinds[at] == ItemKind.RESULT and not self.flags[at] & FLAG_MIXED


class Binder:
    """The state of one pass: entries are taken one after the other."""

    def __init__(self) -> None:
        self.latest: dict[Key, CallSlot] = {}
        self.groups: dict[Key, tuple[int, deque[CallSlot]]] = {}
        """Where the group of calls of a name starts, and those that may be open."""
        self.references: list[tuple[int, CallSlot | None]] = []
        """As ``Binding.references``."""
        self.run = -1
        """Where the run of calling items starts that the last shown entry belongs to, -1: none."""

    def find(self, key: Key) -> CallSlot | None:
        """The call that a result with this key answers."""
        slot = self.latest.get((key[0] & ~SECOND, key[1]))
        if slot is not None and key[0] & BY_NAME:
            waiting = self.groups[key][1]
            while waiting and (waiting[0].results or waiting[0].abandoned):
                waiting.popleft()
            if waiting:
                return waiting[0]
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
            run = at if self.run < 0 else self.run
            if key not in self.groups or self.groups[key][0] != run:
                self.groups[key] = (run, deque())
            self.groups[key][1].append(slot)
        return slot

    def take(
        self, at: int, entry: Entry
    ) -> tuple[int, int, list[CallSlot], list[tuple[Key, CallSlot | None]]]:
        """``(kind, flags, calls, answers)`` of the next entry."""
        answers: list[tuple[Key, CallSlot | None]] = []
        slots: list[CallSlot] = []
        if entry.event:
            _give_up(self, entry.message)
            return int(ItemKind.EVENT), 0, slots, answers
        kind, opens, closes, flags = classify(entry.message)
        for key in closes:
            found = self.find(key)
            if key[0] & SECOND:
                self.references.append((at, found))
                continue
            if found is not None:
                found.results.append(at)  # the next one of this name finds the next call
            answers.append((key, found))
        for key in opens:
            slot = self.open(key, at, slots)
            if slot is not None:
                slots.append(slot)
        # A whole orphan is invisible to the runs of calls, as it is to the ledger.
        if kind != ItemKind.RESULT or flags & FLAG_MIXED or any(s for _, s in answers):
            self.run = (at if self.run < 0 else self.run) if opens else -1
        return kind, flags, slots, answers


def bind(entries: Iterable[Entry]) -> Binding:
    """Bind every result to the latest call with its (class, id), open or closed.

    Calls without ids bind first-in-first-out by name within their run of calling items.
    """
    state = Binder()
    binding = Binding([], [], [], [], state.references)
    for at, entry in enumerate(entries):
        kind, flags, slots, answers = state.take(at, entry)
        binding.kinds.append(kind)
        binding.flags.append(flags)
        binding.calls.append(slots)
        binding.answers.append(answers)
    return binding


def _give_up(state: Binder, event: Message) -> None:
    payload = event.get("payload")
    if event.get("type") != ABANDON_EVENT or not isinstance(payload, dict):
        return
    cls, text = payload.get("class"), payload.get("id")
    if isinstance(cls, int) and isinstance(text, str):
        slot = state.newest_open((cls, text))
        if slot is not None:
            slot.abandoned = True
