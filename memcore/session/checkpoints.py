"""Checkpoints of one session: saving a position, finding it again, going back to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from memcore.codec import values as codec
from memcore.errors import CorruptValueError, InvalidItemError, InvalidOptionError, NotFoundError
from memcore.limits import META_BYTES_MAX
from memcore.log import (
    CachedSession,
    Head,
    History,
    SessionTxn,
    find_request,
    record_request,
    request_of,
)
from memcore.log.checkpoint import (
    CheckpointRow,
    checkpoint_numbers,
    drop_checkpoint,
    last_number,
    read_checkpoint,
    write_checkpoint,
)
from memcore.model import Checkpoint, Receipt
from memcore.options import checked_bool, checked_int, checked_optional_int
from memcore.rows import names
from memcore.rows.head import head_key
from memcore.session.append import Changes, Closure, Unchanged, restore_state_at
from memcore.session.engine import SessionRef
from memcore.session.read import SessionReader
from memcore.state import restore, state_counter
from memcore.store.interface import ReadTxn

__all__ = [
    "Checkpointing",
    "Position",
]


Position: TypeAlias = Checkpoint | int | str
"""A checkpoint, its name, or a live seq."""
_ABOUT: Final = b"checkpoint"
_PAGE: Final = 100
"""Checkpoints that one read transaction reads."""
_FIXED: Final = ("number", "name", "seq", "revision", "items", "created_at")
"""What tells a checkpoint of the session from another one of the same number."""


class Checkpointing:
    """The checkpoints of one session."""

    __slots__ = ("_address", "_changes", "_reading")

    def __init__(self, address: SessionRef) -> None:
        self._address = address
        self._changes = Changes(address)
        self._reading = SessionReader(address)

    # --- saving -----------------------------------------------------------------------------------

    def save(
        self,
        name: str | None,
        meta: Mapping[str, Any] | None,
        *,
        expected_revision: int | None = None,
        idempotency_key: str | None = None,
    ) -> Closure[Checkpoint]:
        """Save the present position."""
        step = self.saving(name, meta)
        revision = checked_optional_int("expected_revision", expected_revision)
        now_ms, seed = self._address.engine.now_ms, self._address.engine.seed
        request = None
        if idempotency_key is not None:
            content = (repr(name).encode("utf-8", "surrogatepass"), _encoded(meta))
            request = request_of(idempotency_key, content, seed=seed, about=_ABOUT)

        def work(draft: SessionTxn) -> Any:
            first = None
            if request is not None:
                first = find_request(draft, request, now_ms=now_ms(), is_live=False)
            saved = first and read_checkpoint(draft.txn, *draft.log.place, first.seq)
            if saved:  # else it was deleted since
                return Unchanged(saved.checkpoint)
            draft.expect(revision)
            made = step(draft)
            if request is not None:
                told = draft.receipt(0)._replace(seq=made.number)
                record_request(draft, request, told, now_ms=now_ms())
            return made

        return self._changes.change(work, revised=False)

    def saving(self, name: str | None, meta: Mapping[str, Any] | None) -> Callable[..., Checkpoint]:
        """What saves the position of a draft, at its revision or ``ahead`` of it.

        Raises:
            InvalidOptionError: the name is empty or no str, ``meta`` no mapping.
            InvalidItemError: ``meta`` cannot be written as JSON, or is too large.
        """
        if name is not None:
            names.check_name(name, "checkpoint")
        kept, passage = _checked_meta(meta), self._address.passage
        if passage is not None:
            name = self._admitted_name(name)
            kept = None if kept is None else passage.value(kept, "checkpoint")
        now_ms = self._address.engine.now_ms()

        def step(draft: SessionTxn, ahead: int = 0) -> Checkpoint:
            draft.flush()
            txn, log, head = draft.txn, draft.log, draft.head
            checkpoint = Checkpoint(
                number=last_number(txn, log.scope, log.session) + 1,
                name=name,
                seq=draft.last_seq,
                revision=head.revision + ahead,
                items=draft.count,
                tokens=draft.tokens,
                counter=head.counter,
                view=head.view_number,
                state=state_counter(txn, *log.place),
                created_at=now_ms / 1000,
                meta=kept,
            )
            write_checkpoint(txn, log.scope, log.session, CheckpointRow.of(head, checkpoint))
            return checkpoint

        return step

    def _admitted_name(self, name: str | None) -> str | None:
        """A checkpoint's name as it is stored: people write what they like into it."""
        passage = self._address.passage
        return name if name is None or passage is None else passage.text(name, "checkpoint")

    def delete(self, which: Checkpoint | int | str) -> Closure[bool]:
        """Delete a checkpoint; whether there was one."""
        _checked(which, "checkpoint")

        def work(draft: SessionTxn) -> Any:
            txn, (scope, session) = draft.txn, draft.log.place
            number = self._number_of(txn, scope, session, which)
            if not number:
                return Unchanged(result=False)
            drop_checkpoint(txn, scope, session, number)
            return Unchanged(result=True)

        return self._changes.change(work, create=False, missing=bool)

    # --- going back -------------------------------------------------------------------------------

    def rewind(
        self, to: Position, *, state: bool = True, expected_revision: int | None = None
    ) -> Closure[Receipt]:
        """Make a live item the last one, or a checkpoint the live history."""
        step = self.rewinding(to, state=state)
        revision = checked_optional_int("expected_revision", expected_revision)

        def work(draft: SessionTxn) -> Unchanged | None:
            draft.expect(revision)
            return None if step(draft) else Unchanged(draft.receipt(0))

        return self._changes.change(work, create=False, after=lambda draft: draft.receipt(0))

    def rewinding(self, to: Position, *, state: bool = True) -> Callable[[SessionTxn], bool]:
        """What takes a draft back; it tells whether that changed the log."""
        _checked(to, "rewind")
        checked_bool("state", state)
        if isinstance(to, int):
            seq = checked_int("rewind", to)

            def cut(draft: SessionTxn) -> bool:
                count, before = self._changes.live_count(draft, seq), draft.count
                if state and count != before:
                    restore_state_at(draft, seq)
                draft.cut_to(count)
                return count != before

            return cut

        def step(draft: SessionTxn) -> bool:
            before = draft.head.view_session, draft.head.view_number
            saved = self.saved_in(draft, to)
            moved = draft.move_to(saved) or before != saved.view
            if state and saved.checkpoint.state is not None:
                place, counter = draft.log.place, saved.checkpoint.state
                restore(draft.txn, *place, counter, seq=draft.head.next_seq)
            return moved

        return step

    def point(self, at: Position | None) -> int | Callable[[SessionTxn], CheckpointRow] | None:
        """What ``Changes.fork`` is to share."""
        if at is None:
            return None
        _checked(at, "at")
        return at if isinstance(at, int) else lambda draft: self.saved_in(draft, at)

    def saved_in(self, draft: SessionTxn, which: Checkpoint | str) -> CheckpointRow:
        """A checkpoint as a draft's transaction sees it.

        Raises:
            NotFoundError: the session has no such checkpoint.
            CorruptValueError: its row is damaged.
        """
        return self._find(draft.txn, *draft.log.place, which)

    # --- reading ----------------------------------------------------------------------------------

    def get(self, which: Checkpoint | int | str) -> Checkpoint:
        """One checkpoint, by its number, or the newest of a name."""
        _checked(which, "checkpoint")
        found = self._reading.run(lambda log, txn: self._find(txn, *log.place, which), None)
        if found is None:
            raise self._missing(which)
        return found.checkpoint

    def place(self, txn: ReadTxn) -> tuple[int, int]:
        """Scope and number of the session, as a transaction sees it.

        Raises:
            NotFoundError: there is none.
        """
        place = self._address.find(txn)
        if place is None:
            msg = f"there is no session {self._address.name!r}"
            raise NotFoundError(msg)
        return place

    def history(self, txn: ReadTxn, at: Position | None) -> tuple[int, History]:
        """Scope and history of a position; None: the live history."""
        place = self.place(txn)
        if at is not None:
            _checked(at, "at")
        if not isinstance(at, int | None):
            return place[0], self._find(txn, *place, at).history(txn, place[0])
        key = head_key(*place)
        value = txn.get(key)
        if value is None:
            raise self._address.headless(*place)
        history = History(Head.unpack(key, value).all_segments(txn, place[0]))
        if at is None:
            return place[0], history
        position = history.position_of(at) if at else -1
        if position is None:
            msg = f"item {at} is not in the live history of session {self._address.name!r}"
            raise NotFoundError(msg)
        return place[0], history.first(position + 1)

    def all(self) -> Iterator[Checkpoint]:
        """All checkpoints, oldest first, a page a read transaction."""
        last = 0
        while True:
            page = self._page(last)
            yield from page
            if len(page) < _PAGE:
                return
            last = page[-1].number

    def _page(self, last: int) -> list[Checkpoint]:
        def collect(log: CachedSession, txn: ReadTxn) -> list[Checkpoint]:
            scope, session = log.place
            numbers = list(checkpoint_numbers(txn, scope, session, after=last, limit=_PAGE))
            found = (read_checkpoint(txn, scope, session, number) for number in numbers)
            return [saved.checkpoint for saved in found if saved is not None]

        empty: list[Checkpoint] = []
        return self._reading.run(collect, empty)

    def _find(
        self, txn: ReadTxn, scope: int, session: int, which: Checkpoint | int | str
    ) -> CheckpointRow:
        number = self._number_of(txn, scope, session, which)
        found = read_checkpoint(txn, scope, session, number)
        if found is None:
            raise self._missing(which)
        return found

    def _number_of(self, txn: ReadTxn, scope: int, session: int, which: Position) -> int:
        number = _number_of(txn, scope, session, which)
        if number or not isinstance(which, str) or self._address.passage is None:
            return number
        return _number_of(txn, scope, session, self._address.passage.again(which))

    def _missing(self, which: Checkpoint | int | str) -> NotFoundError:
        told = which
        if isinstance(which, Checkpoint):
            told = f"{which.number} ({which.name!r:.40}) like this one"
        elif isinstance(which, str):
            told = f"{which!r:.60}"
        msg = (
            f"session {self._address.name!r} has no checkpoint {told}; session.checkpoints() "
            "lists them"
        )
        return NotFoundError(msg)


def _number_of(txn: ReadTxn, scope: int, session: int, which: Checkpoint | int | str) -> int:
    """The number of a checkpoint that there is, 0 if there is none."""
    if isinstance(which, str):
        for number in checkpoint_numbers(txn, scope, session, newest_first=True):
            try:
                saved = read_checkpoint(txn, scope, session, number)
            except CorruptValueError:
                continue  # its name is not known: check() reports it
            if saved is not None and saved.checkpoint.name == which:
                return number
        return 0
    number = which if isinstance(which, int) else which.number
    try:
        saved = read_checkpoint(txn, scope, session, number)
    except CorruptValueError:
        if isinstance(which, int):
            return number  # whoever reads it meets the error; it can be deleted
        raise
    if saved is None or (isinstance(which, Checkpoint) and not _is_same(saved.checkpoint, which)):
        return 0
    return number


def _is_same(found: Checkpoint, wanted: Checkpoint) -> bool:
    return all(getattr(found, field) == getattr(wanted, field) for field in _FIXED)


def _checked(which: object, option: str) -> None:
    if isinstance(which, bool) or not isinstance(which, Checkpoint | int | str):
        number = "its number" if option == "checkpoint" else "a seq"
        msg = f"{option}: expected a Checkpoint, a name or {number}, got {type(which).__name__}"
        raise InvalidOptionError(msg)
    if isinstance(which, int):
        checked_int(option, which)


def _encoded(meta: Mapping[str, Any] | None) -> bytes:
    return b"" if meta is None else codec.encode_json(dict(meta))[0]


def _checked_meta(meta: object) -> dict[str, Any] | None:
    """A copy of ``meta`` as it will be read back."""
    if meta is None:
        return None
    if not isinstance(meta, Mapping):
        msg = f"meta: expected a mapping or None, got {type(meta).__name__}"
        raise InvalidOptionError(msg)
    try:
        encoded, flags = codec.encode_json(dict(meta))
    except (TypeError, ValueError, RecursionError) as exc:
        msg = f"meta cannot be written as JSON: {exc}"
        raise InvalidItemError(msg) from exc
    if len(encoded) > META_BYTES_MAX:
        msg = f"meta is {len(encoded)} bytes as JSON; at most {META_BYTES_MAX} are allowed"
        raise InvalidItemError(msg)
    found: dict[str, Any] = codec.decode_json(encoded, flags)
    return found
