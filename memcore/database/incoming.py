"""A session on its way in: its lines checked and made ready to be stored."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from secrets import token_hex
from typing import Any, Final, NamedTuple

from memcore import names
from memcore.database.admission import admitted_line
from memcore.database.arrived import Arrived, arrived_of
from memcore.database.exchange import (
    CREATED_US_END,
    LINES,
    STAND_INS_A_LINE,
    Title,
    checked_fields,
    checked_numbers,
    refuse,
)
from memcore.database.states import ArrivedState
from memcore.envelope import Envelope, checked_envelope
from memcore.errors import CorruptValueError, CounterUnavailableError
from memcore.formats.binding import ABANDON_EVENT
from memcore.log import (
    Head,
    History,
    Prepared,
    Segment,
    SessionLog,
    count_message,
    prepare_event,
    prepare_item,
)
from memcore.log.head import head_key
from memcore.model import VIEW_STATUSES, Mask, Repair, View
from memcore.session import Address, Backing, SessionOptions, resume_removals, start_removal
from memcore.session.admitting import admitted_item, told
from memcore.session.appending import Appending
from memcore.store.base import ReadTxn, Txn
from memcore.tokens import TokenCounter

__all__ = ["Entry", "Incoming", "StandIns", "remove_leftovers", "remove_unfinished"]

UNFINISHED: Final = "memcore import (unfinished): "
"""How the name of a session begins that is not stored to its end. A user may name one so too: the
flag in the head alone says that it is an import's."""
LEFTOVER_AGE_MS: Final = 60 * 60 * 1000
"""An import that committed nothing for so long is taken for dead. If it lives, it loses the one
session that it was at."""
_NAME_SHOWN: Final = 64
"""Characters of the final name in the one that it grows under, which has to fit a key: names that
do not are not found by how they begin."""

STAND_INS_FREE: Final = 4096
"""Seqs without an item that an import stores though no line pays for them: half a megabyte."""
_MISSING_EVENT: Final = "undone"
"""The type of the event that stands for an undone item that was not exported."""
_CLASS_MAX: Final = 255


class Entry(NamedTuple):
    """An item on its way in."""

    live: bool
    item: Prepared
    after: int | None = None
    """The seq before it, if it is undone and that is not the one below."""


class StandIns:
    """How many stand-ins an import may still store: few lines cannot ask for a large file."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = STAND_INS_FREE

    def pay(self) -> None:
        """Count a line that was read."""
        self.left += STAND_INS_A_LINE

    def spend(self, count: int, field: str, value: int, *, lines: int = 0) -> None:
        """Take ``count`` stand-ins; with ``lines`` only ask, as if so many more had been read.

        Raises:
            InvalidItemError: there are not so many left.
        """
        if count > self.left + lines * STAND_INS_A_LINE:
            refuse(
                f"{field}: {value} leaves {count:,} seqs without an item, more than so few lines "
                "may; export the session again, with --undone (undone=True)"
            )
        if not lines:
            self.left -= count


class Incoming:
    """A session that is being read from the lines of an export."""

    def __init__(
        self,
        title: Title,
        counter: TokenCounter,
        backing: Backing,
        *,
        line: int,
        stand_ins: StandIns,
    ) -> None:
        options = SessionOptions(None, None, "keep")
        self.title = title
        self.line = line
        """The number of its first line."""
        self.counter = counter
        self.seed = backing.seed
        self._backing = backing
        self.appending = Appending(Address(backing, title.app, title.user, title.session, options))
        self.entries: list[Entry] = []
        """What was read and is not stored yet."""
        self.views: list[View] = []
        self.checkpoints: list[Arrived] = []
        self.state = ArrivedState()
        border = backing.border
        self._passage = border.at(title.app, title.user, title.session) if border else None
        self.growing_name = f"{UNFINISHED}{token_hex(8)}: {title.session[:_NAME_SHOWN]}"
        """Its name until it is stored to its end; no other import has the same."""
        self.number: tuple[int, int] | None = None
        """Scope and session once a part of it is committed."""
        self.is_given_up = False
        """Whether it was told as a failure: nothing more of it is stored, whatever follows."""
        self.orphans = "keep"
        """What becomes of results without their call: an export has them where they were kept."""
        self.is_conversation = False
        self.open_calls = self.orphan_count = 0
        """Of the last commit that stored a part of it."""
        self.log: SessionLog | None = None
        """Held from then on, so that no commit reads the index of those before it."""
        self._following = 1
        self._stand_ins = stand_ins
        self._live: list[Segment] = []
        self._filled: list[Segment] = []
        """Seqs that have stand-ins."""
        self._before: dict[int, int] = {}
        """The seq before an item, where it is not the one below."""
        self._items_left = title.items
        self._views_left = title.views
        self._checkpoints_left = title.checkpoints
        self._states_left = title.state
        gaps = title.next_seq - 1 - title.items
        stand_ins.spend(gaps, "next_seq", title.next_seq, lines=title.items + 1)

    @classmethod
    def of_messages(
        cls, title: Title, prepared: list[Prepared], backing: Backing, *, line: int, orphans: str
    ) -> Incoming:
        """A session that is read whole: the messages of one line."""
        counter = backing.counter_named(title.counter)
        found = cls(title, counter, backing, line=line, stand_ins=StandIns())
        found.entries = [Entry(live=True, item=item) for item in prepared]
        found.orphans, found.is_conversation = orphans, True
        return found

    @property
    def lines_left(self) -> int:
        """How many of its lines were not read yet."""
        left = self._items_left + self._views_left
        return left + self._checkpoints_left + self._states_left

    def take(self, found: Any) -> None:
        """One line of it.

        Raises:
            InvalidItemError: it is not what comes next.
        """
        if not isinstance(found, dict):
            refuse(f"expected an object, got {type(found).__name__}")
        if self._passage is not None and not self._items_left:
            found = admitted_line(self._passage, found)
        if self._items_left:
            self._take_item(found)
            self._items_left -= 1
        elif self._views_left:
            self._take_view(found.get("view"))
            self._views_left -= 1
        elif self._checkpoints_left:
            self._take_checkpoint(found.get("checkpoint"))
            self._checkpoints_left -= 1
        else:
            self.state.take(found.get("state"))
            self._states_left -= 1
            if not self._states_left:
                self.state.finish(self.title.next_seq)

    def finish(self) -> None:
        """All its lines were read: what follows is undone."""
        self._fill(self.title.next_seq)

    def _take_item(self, found: Mapping[str, Any]) -> None:
        said = checked_fields("item", found)
        seq, undone = said["seq"], said["undone"]
        if not self._following <= seq < self.title.next_seq:
            refuse(f"seq: expected {self._following} to {self.title.next_seq - 1}, got {seq}")
        if said["after"] is not None and said["after"] >= seq:
            refuse(f"after: expected less than {seq}, got {said['after']}")
        item = self._prepared(found, said)
        self._fill(seq)
        last = self._live[-1].hi if self._live else 0
        after = said["after"] if undone else last
        if after not in (None, seq - 1):
            self._before[seq] = after
        self.entries.append(Entry(not undone, item, after if undone else None))
        self._following = seq + 1
        if undone:
            return
        if self._live and self._live[-1].hi == seq - 1:
            self._live[-1] = self._live[-1]._replace(hi=seq)
        else:
            self._live.append(Segment(0, seq, seq))

    def _prepared(self, found: Mapping[str, Any], said: Mapping[str, Any]) -> Prepared:
        item, meta, now_us = said["item"], found.get("meta"), said["created_us"]
        abandons = found.get("kind") == "event" and item.get("type") == ABANDON_EVENT
        if self._passage is None or abandons:
            return self._made(found, item, meta, now_us)
        if found.get("kind") == "event":
            self._passage.name(item.get("type"), "type of an event")
        admitted = admitted_item(self._passage, item, meta, source="import")
        prepared = self._made(
            found, admitted.message, admitted.meta, now_us, redacted=admitted.redacted
        )
        prepared.held = admitted.held
        return prepared

    def _made(
        self,
        found: Mapping[str, Any],
        item: dict[str, Any],
        meta: Any,
        now_us: int,
        *,
        redacted: bool | None = None,
    ) -> Prepared:
        said, request_id = _told(found.get("envelope")), found.get("request_id")
        if self._passage is not None:
            said = told(self._passage, said, redacted=redacted, request_id=request_id)
        options: dict[str, Any] = {
            "counter": self.counter,
            "seed": self.seed,
            "now_us": now_us,
            "meta": meta,
            "request_id": request_id,
            "envelope": said,
        }
        if found.get("kind") != "event":
            return prepare_item(item, **options)
        if list(item) != ["type", "payload"]:
            refuse('item: expected {"type": ..., "payload": ...} of an event')
        abandons = _abandoned(item) if item["type"] == ABANDON_EVENT else ()
        return prepare_event(item["type"], item["payload"], abandons=abandons, **options)

    def _fill(self, seq: int) -> None:
        """Stand-ins for the seqs before ``seq`` that have no line: items that were undone."""
        missing = seq - self._following
        if missing:
            self._stand_ins.spend(missing, "seq", seq)
            item = prepare_event(
                _MISSING_EVENT,
                None,
                counter=self.counter,
                seed=self.seed,
                now_us=min(self.title.created_ms * 1000, CREATED_US_END - 1),
            )
            self._filled.append(Segment(0, self._following, seq - 1))
            self.entries += [Entry(live=False, item=item)] * missing

    def _take_checkpoint(self, found: Any) -> None:
        arrived = arrived_of(found, self.title, len(self.views))
        last = 0
        for lo, hi in arrived.segments:
            if not last < lo <= hi < self._following:
                refuse(f"checkpoint.segments: {lo} to {hi} are not what follows {last}")
            breaks = [seq for seq in self._before if lo < seq <= hi]
            if breaks or self._before.get(lo, lo - 1) != last:
                refuse(f"checkpoint.segments: item {breaks[0] if breaks else lo} follows another")
            if any(gap.lo <= hi and lo <= gap.hi for gap in self._filled):
                refuse(f"checkpoint.segments: not all of {lo} to {hi} were exported")
            last = hi
        self.checkpoints.append(arrived)

    def _take_view(self, found: Any) -> None:
        view = _view(found, self.title.counter)
        history = History(self._live)
        position = history.position_of(view.cut_seq) if view.cut_seq else -1
        if position is None or position + 1 != view.covered:
            refuse(f"view: {view.covered} items up to seq {view.cut_seq} are not what is live")
        masks = tuple(self._counted(mask, view.counter) for mask in view.masks)
        for mask in masks:
            for seq in (mask.seq, mask.because or mask.seq):
                if history.position_of(seq) is None:
                    refuse(f"view.masks: there is no live item {seq}")
        self.views.append(replace(view, masks=masks))

    def _counted(self, mask: Mask, counter: str) -> Mask:
        """The mask with tokens that a budget may rely on, whatever its line says.

        By a counter that cannot be had nothing relies on them: they are counted when they are read.
        """
        if mask.message is None:
            return mask._replace(tokens=0)
        by = self.counter
        if counter != by.id:
            with suppress(CounterUnavailableError):
                by = self._backing.counter_named(counter)
        try:
            tokens = count_message(mask.message, by)
        except (TypeError, ValueError, RecursionError) as exc:
            refuse(f"view.masks: the message for item {mask.seq} is none: {exc}")
        return mask if by.id != counter else mask._replace(tokens=tokens)


def remove_leftovers(backing: Backing, app: str, user: str) -> None:
    """Remove what imports that are taken for dead left in the scope."""
    silent_since = backing.now_ms() - LEFTOVER_AGE_MS

    def leftovers(txn: ReadTxn) -> list[tuple[int, int, str]]:
        found: list[tuple[int, int, str]] = []
        scope = names.scope_of(txn, app, user)
        if scope is None:
            return found
        for name, session in names.sessions(txn, scope, UNFINISHED):
            if not name.startswith(UNFINISHED):
                break
            if _is_unfinished(txn, scope, session, silent_since):
                found.append((scope, session, name))
        return found

    for place in backing.store.read(leftovers):
        remove_unfinished(backing, *place, silent_since=silent_since)


def remove_unfinished(
    backing: Backing, scope: int, session: int, name: str, *, silent_since: int | None = None
) -> None:
    """Remove a session that an import did not finish; never another one that bears its name.

    ``silent_since``: only if the import committed nothing after this time, in milliseconds.
    """

    def closure(txn: Txn) -> None:
        if names.session_of(txn, scope, name) != session:
            return
        if _is_unfinished(txn, scope, session, silent_since):
            start_removal(txn, backing, scope, name, finished=False)

    backing.store.transact(closure, makes_room=True)
    resume_removals(backing.store)


def _is_unfinished(txn: ReadTxn, scope: int, session: int, silent_since: int | None) -> bool:
    key = head_key(scope, session)
    value = txn.get(key)
    with suppress(CorruptValueError):  # a damaged head is check()'s to report
        head = None if value is None else Head.unpack(key, value)
        if head is not None and head.unfinished:
            return silent_since is None or head.updated_ms <= silent_since
    return False


def _abandoned(item: Mapping[str, Any]) -> tuple[tuple[int, str], ...]:
    """The call that an event gives up."""
    payload = item["payload"]
    if not isinstance(payload, dict) or not isinstance(payload.get("id"), str):
        refuse(f"item.payload: expected a class and an id, got {payload!r}")
    number = payload.get("class")
    if type(number) is not int or not 0 <= number <= _CLASS_MAX:
        refuse(f"item.payload.class: expected 0 to {_CLASS_MAX}, got {number!r:.40}")
    return ((number, payload["id"]),)


def _view(found: Any, counter: str) -> View:
    """The view of a line; ``counter`` counted it if the line names none."""
    said = checked_fields("view", found)
    if said["status"] not in VIEW_STATUSES:
        refuse(
            f"view.status: expected one of {', '.join(VIEW_STATUSES)}; got {said['status']!r:.40}"
        )
    return View(
        number=0,
        parent=0,
        cut_seq=said["cut_seq"],
        covered=said["covered"],
        summary=said["summary"],
        pinned=checked_numbers("view.pinned", said["pinned"]),
        status=said["status"],
        tokens_before=said["tokens_before"],
        tokens_after=said["tokens_after"],
        created_at=said["created_ms"] / 1000,
        counter=counter if said["counter"] is None else said["counter"],
        masks=tuple(Mask(**_listed("view.masks", entry)) for entry in said["masks"]),
        policy=said["policy"] or "",
        reason=said["reason"],
        repair=said["repair"],
        repairs=tuple(Repair(**_listed("view.repairs", entry)) for entry in said["repairs"]),
    )


def _listed(sort: str, found: Any) -> dict[str, Any]:
    """The fields of what a line writes as a list of values, the last of which may be missing."""
    names = list(LINES[sort])
    if not isinstance(found, list) or len(found) > len(names):
        refuse(f"{sort}: expected [{', '.join(names)}], got {found!r:.40}")
    return checked_fields(sort, dict(zip(names, found, strict=False)))


def _told(found: Any) -> Envelope | None:
    """The envelope of an item's line; one without fields held a request id, which has its own."""
    return Envelope() if found == {} else checked_envelope(found)
