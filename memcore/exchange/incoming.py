"""Session being imported: its lines checked and prepared, and compared with a stored one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from secrets import token_hex
from typing import Any, Final, NamedTuple, TypeAlias

from memcore.codec.values import decode_json
from memcore.errors import (
    CorruptValueError,
    CounterUnavailableError,
    InvalidItemError,
)
from memcore.exchange.export import export_sessions
from memcore.exchange.lines import (
    CREATED_US_END,
    LINES,
    Arrived,
    StandIns,
    Title,
    arrived_of,
    checked_fields,
    checked_numbers,
    parse_line,
    refuse,
)
from memcore.exchange.state import ArrivedState
from memcore.log import (
    CachedSession,
    History,
    Prepared,
    Segment,
    count_message,
    prepare_event,
    prepare_item,
)
from memcore.model import VIEW_STATUSES, Envelope, Mask, Repair, View, checked_envelope
from memcore.rows import names
from memcore.rows.lifecycle import read_held
from memcore.session import Engine, SessionOptions, SessionRef
from memcore.session.content_filter import admitted_item, admitted_line, told
from memcore.session.read import iter_items
from memcore.store.interface import ReadTxn
from memcore.tokens import TokenCounter
from memcore.wire.message import ABANDON_EVENT

__all__ = [
    "LEFTOVER_AGE_MS",
    "UNFINISHED",
    "Incoming",
    "LoadedItem",
    "PartDiffers",
    "Place",
    "StoredTwin",
    "place_of",
]


# --- A session being imported: its lines checked and prepared for storage -------------------------

UNFINISHED: Final = "memcore import (unfinished): "
"""Name prefix of a session that is not completely stored. A user may choose such a name, too: only
the flag in the head marks an import's."""
LEFTOVER_AGE_MS: Final = 60 * 60 * 1000
"""An import that has committed nothing for this long, in milliseconds, is presumed dead. If it is
alive, it loses the one session that it was importing."""
_NAME_SHOWN: Final = 64
"""Characters of the final name in the temporary one, which has to fit a key: names that do not
cannot be found by prefix."""

_MISSING_EVENT: Final = "undone"
"""Type of the event that stands for an undone item that was not exported."""
_CLASS_MAX: Final = 255


Place: TypeAlias = tuple[str, str, str]
"""Application, user and name of a session."""


class PartDiffers(InvalidItemError):  # noqa: N818 - a signal, or listed as a failure
    """A part of a session has items that the stored session has otherwise."""


class LoadedItem(NamedTuple):
    """An item being imported."""

    live: bool
    item: Prepared
    after: int | None = None
    """Seq before it, if it is undone and that is not the preceding one."""


class Incoming:
    """A session being read from the lines of an export."""

    def __init__(
        self,
        title: Title,
        counter: TokenCounter,
        engine: Engine,
        *,
        line: int,
        stand_ins: StandIns,
        admitted: bool = False,
        begun: int = 0,
    ) -> None:
        """``admitted``: its content passed the filter of writes.

        ``begun``: the next seq of the stored session that it is a further part of; 0: of none.
        """
        options = SessionOptions(None, None, "keep")
        self.title = title
        self.line = line
        """Number of its first line."""
        self.counter = counter
        self.seed = engine.seed
        self._engine = engine
        self.ref = SessionRef(engine, title.app, title.user, title.session, options)
        self.entries: list[LoadedItem] = []
        """Items read but not stored yet."""
        self.views: list[View] = []
        self.checkpoints: list[Arrived] = []
        self.state = ArrivedState()
        write_filter = None if admitted else engine.write_filter
        self._scope_filter = (
            write_filter.at(title.app, title.user, title.session) if write_filter else None
        )
        self.growing_name = f"{UNFINISHED}{token_hex(8)}: {title.session[:_NAME_SHOWN]}"
        """Temporary name until it is completely stored; unique to this import."""
        self.number: tuple[int, int] | None = None
        """Scope and session numbers once a part of it is committed."""
        self.is_given_up = False
        """True if it was reported as a failure: nothing more of it is stored."""
        self.orphans = "keep"
        """Treatment of results without their call: an export contains those that were kept."""
        self.is_conversation = False
        self.twin: StoredTwin | None = None
        """The stored session that it may be; its items are not kept as long as the lines agree."""
        self.open_calls = self.orphan_count = 0
        """Counts of the last commit that stored a part of it."""
        self.log: CachedSession | None = None
        """Kept from then on, so that no commit rereads the index of earlier ones."""
        self.part: tuple[Title, Place] | None = None
        """Title and place in the file, of a part of a session."""
        self.begun = self.next_seq = begun
        """Next seq of the stored session when the next of its items is stored; 0: it is new."""
        self._following = begun or 1
        self.compared: list[Mapping[str, Any]] = []
        """Lines of items that were stored before."""
        self._stand_ins = stand_ins
        self._live: list[Segment] = []
        self._filled: list[Segment] = []
        """Ranges of seqs that have stand-ins."""
        self._before: dict[int, int] = {}
        """Seq before an item, where it is not the preceding one."""
        self._items_left, self._views_left = title.items, title.views
        self._checkpoints_left, self._states_left = title.checkpoints, title.state
        gaps = max(title.part - begun, 0) if begun else title.gaps
        stand_ins.spend(gaps, "next_seq", title.next_seq, lines=title.items + 1)

    @classmethod
    def of_messages(
        cls, title: Title, prepared: list[Prepared], engine: Engine, *, line: int, orphans: str
    ) -> Incoming:
        """Make a complete session from the messages of one line."""
        counter = engine.counter_named(title.counter)
        found = cls(title, counter, engine, line=line, stand_ins=StandIns())
        found.entries = [LoadedItem(live=True, item=item) for item in prepared]
        found.orphans, found.is_conversation = orphans, True
        return found

    @property
    def lines_left(self) -> int:
        """Number of its lines not read yet."""
        left = self._items_left + self._views_left
        return left + self._checkpoints_left + self._states_left

    def take(self, found: Any) -> None:
        """Read one of its lines.

        Raises:
            InvalidItemError: it is not the line expected next.
        """
        if not isinstance(found, dict):
            refuse(f"expected an object, got {type(found).__name__}")
        if self._scope_filter is not None and not self._items_left:
            found = admitted_line(self._scope_filter, found)
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

    @property
    def held(self) -> Any:
        """Original of the last line's item if that goes to quarantine, else None."""
        held = self.entries[-1].item.held if self.entries else None
        return None if held is None else decode_json(held[1:], held[0])["message"]

    @property
    def stood_in(self) -> int:
        """Number of seqs that got a stand-in."""
        return sum(each.hi - each.lo + 1 for each in self._filled)

    @property
    def last_seq(self) -> int:
        """Seq of the last item that was read."""
        return self._following - 1

    def drain(self) -> tuple[object, ...]:
        """Return what the last line said, for a comparison, and drop its items."""
        entries, self.entries = self.entries, []
        items = [
            (live, after, item.body, item.flags, item.payload) for live, item, after in entries
        ]
        state = self.state
        steps = state.steps[-1:], state.floor, state.moments
        return items, self.views[-1:], self.checkpoints[-1:], steps

    def finish(self) -> None:
        """Complete it after its last line: the remaining seqs are undone items."""
        self._fill(self.title.next_seq)

    def _take_item(self, found: Mapping[str, Any]) -> None:
        said = checked_fields("item", found)
        seq, undone = said["seq"], said["undone"]
        last = self.compared[-1]["seq"] if self.compared else 0
        if last < seq < self.begun:
            self._need_same(seq, found, said)
            self.compared.append(found)
            return
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
        self.entries.append(LoadedItem(not undone, item, after if undone else None))
        self._following = seq + 1
        if undone:
            return
        if self._live and self._live[-1].hi == seq - 1:
            self._live[-1] = self._live[-1]._replace(hi=seq)
        else:
            self._live.append(Segment(0, seq, seq))

    def _need_same(self, seq: int, found: Mapping[str, Any], said: Mapping[str, Any]) -> None:
        """Compare an item with the one that was stored before.

        Raises:
            PartDiffers: it is another one.
        """
        message = said["item"]
        if self._scope_filter is not None and found.get("kind") != "event":
            message = admitted_item(
                self._scope_filter, message, found.get("meta"), source="import"
            ).message
        stored = next(iter_items(self.ref, seq, seq + 1), None)
        kind = "" if stored is None else stored.kind.name.lower()
        if stored is None or (kind, stored.message) != (found.get("kind"), message):
            msg = (
                f"session {self.title.session!r} exists, and its item {seq} has other content: "
                "import it under another name (--on-conflict rename, on_conflict='rename')"
            )
            raise PartDiffers(msg)

    def _prepared(self, found: Mapping[str, Any], said: Mapping[str, Any]) -> Prepared:
        item, meta, now_us = said["item"], found.get("meta"), said["created_us"]
        abandons = found.get("kind") == "event" and item.get("type") == ABANDON_EVENT
        if self._scope_filter is None:
            return self._made(found, item, meta, now_us)
        if abandons:
            # The payload is a class and an id, which stay, or the line is refused.
            if isinstance(meta, dict):
                meta = self._scope_filter.value(meta, "meta", source="import")
            return self._made(found, item, meta, now_us)
        if found.get("kind") == "event":
            self._scope_filter.name(item.get("type"), "type of an event")
        admitted = admitted_item(self._scope_filter, item, meta, source="import")
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
        if self._scope_filter is not None:
            said = told(self._scope_filter, said, redacted=redacted, request_id=request_id)
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
        """Add stand-ins for the seqs before ``seq`` without a line: items that were undone."""
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
            self.entries += [LoadedItem(live=False, item=item)] * missing

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
        """Return the mask with its tokens counted: a budget cannot rely on the line's number.

        If the counter is not available, nothing relies on it: tokens are counted when they are
        read.
        """
        if mask.message is None:
            return mask._replace(tokens=0)
        by = self.counter
        if counter != by.id:
            with suppress(CounterUnavailableError):
                by = self._engine.counter_named(counter)
        try:
            tokens = count_message(mask.message, by)
        except (TypeError, ValueError, RecursionError) as exc:
            refuse(f"view.masks: the message for item {mask.seq} is none: {exc}")
        return mask if by.id != counter else mask._replace(tokens=tokens)


def _abandoned(item: Mapping[str, Any]) -> tuple[tuple[int, str], ...]:
    """Return the call that an event abandons."""
    payload = item["payload"]
    is_call = isinstance(payload, dict) and payload.keys() == {"class", "id"}
    if not is_call or not isinstance(payload["id"], str):
        refuse(f"item.payload: expected a class and an id, got {payload!r:.200}")
    number = payload.get("class")
    if type(number) is not int or not 0 <= number <= _CLASS_MAX:
        refuse(f"item.payload.class: expected 0 to {_CLASS_MAX}, got {number!r:.40}")
    return ((number, payload["id"]),)


def _view(found: Any, counter: str) -> View:
    """Parse the view of a line; ``counter`` is its counter if the line names none."""
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
    """Parse fields that a line writes as a list, the last of which may be missing."""
    names = list(LINES[sort])
    if not isinstance(found, list) or len(found) > len(names):
        refuse(f"{sort}: expected [{', '.join(names)}], got {found!r:.40}")
    return checked_fields(sort, dict(zip(names, found, strict=False)))


def _told(found: Any) -> Envelope | None:
    """Parse an item's envelope; an empty one only held the request id, which has its own field."""
    return Envelope() if found == {} else checked_envelope(found)


# --- A stored session that an arriving one may be -------------------------------------------------


class StoredTwin:
    """A stored session that an arriving one may be; the lines of both are compared in step.

    Their titles alone show too little: two sessions that began in one millisecond and have as many
    commits and items have the same one.
    """

    def __init__(
        self,
        engine: Engine,
        title: Title,
        lines: Iterator[bytes],
        *,
        kept: tuple[bool, bool],
        counter: TokenCounter,
        any_update: bool,
    ) -> None:
        """``kept``: whether all undone items, and those of every checkpoint, are compared."""
        self.place = place_of(title)
        self.wanted = title
        """Title of the arriving session, under the name that it would have were none stored."""
        self.origin = self.place
        """Name of the arriving session in the file."""
        self._engine = engine
        self._title = title
        self._kept = kept
        self._any_update = any_update
        self._lines = lines
        self._agreeing = 0
        """Number of lines after the title that agree."""
        self._given: list[tuple[Any, int]] | None = [] if engine.write_filter else None
        """These lines as they came, and their sizes: what is stored passed the filter of another
        session. None without a filter: the stored lines say the same."""
        stand_ins = StandIns()
        stand_ins.pay(title.gaps)
        self._stored = Incoming(title, counter, engine, line=0, stand_ins=stand_ins, admitted=True)

    @classmethod
    def of(
        cls, engine: Engine, title: Title, counter: TokenCounter, *, any_update: bool
    ) -> StoredTwin | None:
        """Return the stored session of the name; None if it has another title."""
        for kept in ((False, True), (False, False), (True, True)):  # the second as it once was
            lines = _after_title(engine, title, kept=kept, any_update=any_update)
            if lines is not None:
                return cls(engine, title, lines, kept=kept, counter=counter, any_update=any_update)
        return None

    def agrees(self, session: Incoming, found: Any, size: int) -> bool:
        """Return whether the next stored line says what the session's last line said.

        ``found``, ``size``: that line, and its length.

        Raises:
            InvalidItemError: the stored session is damaged.
            NotFoundError: it was deleted meanwhile.
        """
        self._stored.take(parse_line(next(self._lines)))
        held = session.held
        is_same = held is None or self._held(session.last_seq) == held
        if self._stored.drain() != session.drain() or not is_same:
            return False
        self._agreeing += 1
        if self._given is not None:
            self._given.append((found, size))
        return True

    def _held(self, seq: int) -> Any:
        """Return the original of a stored item that is in quarantine, else None."""

        def look(txn: ReadTxn) -> Any:
            app, user, name = self.place
            scope = names.scope_of(txn, app, user)
            number = None if scope is None else names.session_of(txn, scope, name)
            if scope is None or number is None:
                return None
            found = read_held(txn, scope, number, seq)
            return None if found is None else found.message

        return self._engine.store.read(look)

    def agreeing(self) -> Iterator[tuple[Any, int]]:
        """Yield the lines that agree, and their sizes."""
        if self._given is not None:
            yield from self._given
            return
        lines = _after_title(
            self._engine, self._title, kept=self._kept, any_update=self._any_update
        )
        if lines is None:
            refuse("a session of this name was changed meanwhile; import again")
        for line in islice(lines, self._agreeing):
            yield parse_line(line), len(line)


def _after_title(
    engine: Engine, title: Title, *, kept: tuple[bool, bool], any_update: bool
) -> Iterator[bytes] | None:
    """Return the lines of the stored session of the name; None if its title is another one.

    Args:
        engine: where it is stored.
        title: the title that is looked for.
        kept: with all items that were undone, and with those of every checkpoint.
        any_update: the time of the last change does not count, which a fork renews, too.
    """
    lines = _stored_lines(engine, title, kept)
    first = next(lines, None)
    if first is None:
        return None
    said = Title.of(parse_line(first))
    # Forks arrive as sessions of their own, and an import may count by another counter.
    said = replace(said, counter=title.counter, forked_from=title.forked_from)
    if any_update:
        said = replace(said, updated_ms=title.updated_ms)
    return lines if said == title else None


def _stored_lines(engine: Engine, title: Title, kept: tuple[bool, bool]) -> Iterator[bytes]:
    undone, every_checkpoint = kept
    try:
        yield from export_sessions(
            engine, [place_of(title)], form="jsonl",
            undone=undone, left_out=None, every_checkpoint=every_checkpoint,
        )  # fmt: skip
    except CorruptValueError as exc:
        msg = f"the stored session {title.session!r} cannot be compared, it is damaged: {exc}"
        raise InvalidItemError(msg) from exc


def place_of(title: Title) -> Place:
    """Return the place of a title's session."""
    return title.app, title.user, title.session
