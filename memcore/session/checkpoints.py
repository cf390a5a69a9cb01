"""Checkpoints of one session: save a position, find it, go back to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from memcore import memory
from memcore import state as states
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
from memcore.rows.head import SEQ_END, head_key
from memcore.session.change import Change, Unchanged, live_count, restore_state_at
from memcore.session.engine import SessionRef
from memcore.session.read import read_log
from memcore.store.interface import ReadTxn

__all__ = [
    "DeleteCheckpoint",
    "Position",
    "Rewind",
    "SaveCheckpoint",
    "checkpoints_of",
    "fork_point",
    "get_checkpoint",
    "history_at",
    "rewinding",
    "saving",
]


Position: TypeAlias = Checkpoint | int | str
"""A checkpoint, its name, or a live seq."""
_ABOUT: Final = b"checkpoint"
_PAGE: Final = 100
"""Checkpoints read per read transaction."""
_FIXED: Final = ("number", "name", "seq", "revision", "items", "created_at")
"""Fields that distinguish a session's checkpoint from another with the same number."""


# --- Saving ---------------------------------------------------------------------------------------


class SaveCheckpoint(Change[Checkpoint]):
    """Save the current position.

    Args:
        ref: the session.
        name: the checkpoint's name, if it has one.
        meta: a JSON object stored with it.
        expected_revision: save only if the session is at this revision.
        idempotency_key: makes the save idempotent: a repeat gets the first checkpoint.

    Raises:
        InvalidOptionError: the name is empty or not a str, or ``meta`` is not a mapping.
        InvalidItemError: ``meta`` is not JSON-serializable, or is too large.
    """

    __slots__ = ("expected_revision", "request", "step")
    revised = False

    def __init__(
        self,
        ref: SessionRef,
        name: str | None,
        meta: Mapping[str, Any] | None,
        *,
        expected_revision: int | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        self.step = saving(ref, name, meta)
        self.expected_revision = checked_optional_int("expected_revision", expected_revision)
        self.request = None
        if idempotency_key is not None:
            content = (repr(name).encode("utf-8", "surrogatepass"), _encoded(meta))
            seed = ref.engine.seed
            self.request = request_of(idempotency_key, content, seed=seed, about=_ABOUT)
        super().__init__(ref)

    def run(self, session: SessionTxn) -> Checkpoint | Unchanged:
        """Write the checkpoint, unless the request was already carried out."""
        now_ms, first = self.ref.engine.now_ms(), None
        if self.request is not None:
            first = find_request(session, self.request, now_ms=now_ms, is_live=False)
        # The seq of this receipt is the number of the checkpoint, as recorded below.
        saved = first and read_checkpoint(session.txn, *session.log.place, first.seq)
        if saved:  # otherwise it was deleted since
            return Unchanged(saved.checkpoint)
        # After the request: a retry names the revision that held when it first ran.
        session.expect(self.expected_revision)
        made = self.step(session)
        if self.request is not None:
            receipt = session.receipt(0)._replace(seq=made.number)
            record_request(session, self.request, receipt, now_ms=now_ms)
        return made


def saving(
    ref: SessionRef, name: str | None, meta: Mapping[str, Any] | None
) -> Callable[..., Checkpoint]:
    """Make the step that saves a session's position, at its revision or ``ahead`` of it.

    Raises:
        InvalidOptionError, InvalidItemError: as for ``SaveCheckpoint``.
    """
    if name is not None:
        names.check_name(name, "checkpoint")
    kept, scope_filter = _checked_meta(meta), ref.scope_filter
    if scope_filter is not None:  # a name may hold sensitive text, too
        name = None if name is None else scope_filter.text(name, "checkpoint")
        kept = None if kept is None else scope_filter.value(kept, "checkpoint")
    # Once, not in the step: a run that is repeated saves the same checkpoint.
    now_ms = ref.engine.now_ms()

    def step(session: SessionTxn, ahead: int = 0) -> Checkpoint:
        # The row holds the prefix hash of the last item, which exists only once that is written.
        session.flush()
        txn, log, head = session.txn, session.log, session.head
        checkpoint = Checkpoint(
            number=last_number(txn, log.scope, log.session) + 1,
            name=name,
            seq=session.last_seq,
            revision=head.revision + ahead,
            items=session.count,
            tokens=session.tokens,
            counter=head.counter,
            view=head.view_number,
            state=states.state_counter(txn, *log.place),
            created_at=now_ms / 1000,
            meta=kept,
        )
        write_checkpoint(txn, log.scope, log.session, CheckpointRow.of(head, checkpoint))
        return checkpoint

    return step


class DeleteCheckpoint(Change[bool]):
    """Delete a checkpoint; the result is True if there was one."""

    __slots__ = ("which",)
    creates = False
    makes_room = True

    def __init__(self, ref: SessionRef, which: Position) -> None:
        _checked(which, "checkpoint")
        self.which = which
        super().__init__(ref)

    def run(self, session: SessionTxn) -> Unchanged:
        """Delete its row; the log and the head are unchanged."""
        txn, place = session.txn, session.log.place
        number = _stored_number_of(self.ref, txn, place, self.which)
        if number:
            drop_checkpoint(txn, *place, number)
        return Unchanged(result=number != 0)

    def missing(self) -> bool:
        """Return False: there is no checkpoint."""
        return False


# --- Rewinding ------------------------------------------------------------------------------------


class Rewind(Change[Receipt]):
    """Make a live item the last one, or a checkpoint the live history."""

    __slots__ = ("expected_revision", "step")
    creates = False
    makes_room = True

    def __init__(
        self,
        ref: SessionRef,
        to: Position,
        *,
        state: bool = True,
        expected_revision: int | None = None,
    ) -> None:
        self.step = rewinding(ref, to, state=state)
        self.expected_revision = checked_optional_int("expected_revision", expected_revision)
        super().__init__(ref)

    def run(self, session: SessionTxn) -> Unchanged | None:
        """Rewind, if that changes anything."""
        session.expect(self.expected_revision)
        return None if self.step(session) else Unchanged(session.receipt(0))

    def done(self, session: SessionTxn, result: Any) -> Receipt:
        """Make the receipt."""
        del result
        return session.receipt(0)


def rewinding(ref: SessionRef, to: Position, *, state: bool = True) -> Callable[[SessionTxn], bool]:
    """Make the step that rewinds a session; it returns True if that changed the log."""
    _checked(to, "rewind")
    checked_bool("state", state)
    if isinstance(to, int):
        seq = checked_int("rewind", to)

        def cut(session: SessionTxn) -> bool:
            count, before = live_count(session, seq, ref.name), session.count
            # Before the cut: the moment that tells the state belongs to the item behind ``seq``.
            if state and count != before:
                restore_state_at(session, seq)
            session.cut_to(count)
            return count != before

        return cut

    def step(session: SessionTxn) -> bool:
        before = session.head.view_session, session.head.view_number
        saved = _find(ref, session.txn, session.log.place, to)
        # Items may be the same and the view another one: that changes what contexts show, too.
        changed, revived = session.move_to(saved)
        moved = changed or before != saved.view
        if revived:
            seqs, now_ms = (revived, session.last_seq), ref.engine.now_ms()
            memory.read_again(session.txn, session.log.place, ref.name, seqs, now_ms)
        if state and saved.checkpoint.state is not None:
            place, counter = session.log.place, saved.checkpoint.state
            states.restore(session.txn, *place, counter, seq=session.head.next_seq)
        return moved

    return step


def fork_point(
    ref: SessionRef, at: Position | None
) -> int | Callable[[SessionTxn], CheckpointRow] | None:
    """Return the position up to which ``Fork`` shares the history."""
    if at is None:
        return None
    _checked(at, "at")
    if isinstance(at, int):
        return at
    # Found in the transaction: until then one of the same name may be saved or deleted.
    return lambda session: _find(ref, session.txn, session.log.place, at)


# --- Reading --------------------------------------------------------------------------------------


def get_checkpoint(ref: SessionRef, which: Position) -> Checkpoint:
    """Return a checkpoint by its number, or the newest one with a name.

    Raises:
        NotFoundError: the session has no such checkpoint.
        CorruptValueError: its row is damaged.
    """
    _checked(which, "checkpoint")
    found = read_log(ref, lambda log, txn: _find(ref, txn, log.place, which), None)
    if found is None:
        raise _missing(ref, which)
    return found.checkpoint


def history_at(ref: SessionRef, txn: ReadTxn, at: Position | None) -> tuple[int, History]:
    """Return scope and history of a position; None: the live history.

    Raises:
        NotFoundError: there is no session, no such live item, or no such checkpoint.
        CorruptValueError: a row is damaged.
    """
    place = ref.find(txn)
    if place is None:
        msg = f"there is no session {ref.name!r}"
        raise NotFoundError(msg)
    if at is not None:
        _checked(at, "at")
    if not isinstance(at, int | None):
        return place[0], _find(ref, txn, place, at).history(txn, place[0])
    key = head_key(*place)
    value = txn.get(key)
    if value is None:
        raise ref.headless(*place)
    history = History(Head.unpack(key, value).all_segments(txn, place[0]))
    if at is None:
        return place[0], history
    position = history.position_of(at) if at else -1
    if position is None:
        msg = f"item {at} is not in the live history of session {ref.name!r}"
        raise NotFoundError(msg)
    return place[0], history.first(position + 1)


def checkpoints_of(ref: SessionRef) -> Iterator[Checkpoint]:
    """Yield all checkpoints, oldest first, one page per read transaction."""
    last = 0
    while True:
        page = _page(ref, last)
        yield from page
        if len(page) < _PAGE:
            return
        last = page[-1].number


def _page(ref: SessionRef, last: int) -> list[Checkpoint]:
    def collect(log: CachedSession, txn: ReadTxn) -> list[Checkpoint]:
        scope, session = log.place
        numbers = list(checkpoint_numbers(txn, scope, session, after=last, limit=_PAGE))
        found = (read_checkpoint(txn, scope, session, number) for number in numbers)
        return [saved.checkpoint for saved in found if saved is not None]

    empty: list[Checkpoint] = []
    return read_log(ref, collect, empty)


def _find(ref: SessionRef, txn: ReadTxn, place: tuple[int, int], which: Position) -> CheckpointRow:
    found = read_checkpoint(txn, *place, _stored_number_of(ref, txn, place, which))
    if found is None:
        raise _missing(ref, which)
    return found


def _stored_number_of(
    ref: SessionRef, txn: ReadTxn, place: tuple[int, int], which: Position
) -> int:
    number = _number_of(txn, *place, which)
    # As it is first: names that were saved before the policy stand there in clear.
    if number or not isinstance(which, str) or ref.scope_filter is None:
        return number
    return _number_of(
        txn, *place, ref.scope_filter.again(which)
    )  # the name was redacted when saved


def _missing(ref: SessionRef, which: Position) -> NotFoundError:
    told = which
    if isinstance(which, Checkpoint):
        told = f"{which.number} ({which.name!r:.40}) like this one"
    elif isinstance(which, str):
        told = f"{which!r:.60}"
    msg = f"session {ref.name!r} has no checkpoint {told}; 'memcore tree' lists them"
    return NotFoundError(msg)


def _number_of(txn: ReadTxn, scope: int, session: int, which: Checkpoint | int | str) -> int:
    """Return the number of an existing checkpoint, 0 if there is none."""
    if isinstance(which, str):
        for number in checkpoint_numbers(txn, scope, session, newest_first=True):
            try:
                saved = read_checkpoint(txn, scope, session, number)
            except CorruptValueError:
                continue  # its name is unknown; check() reports it
            if saved is not None and saved.checkpoint.name == which:
                return number
        return 0
    number = which if isinstance(which, int) else which.number
    if number >= SEQ_END:
        return 0
    try:
        saved = read_checkpoint(txn, scope, session, number)
    except CorruptValueError:
        if isinstance(which, int):
            return number  # reading it raises the error; deleting it works
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
    """Return a copy of ``meta`` as it will be read back."""
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
