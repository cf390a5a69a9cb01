"""What a session's handle does to be taken back and to branch: undo, checkpoints, rewind, fork."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from memcore.log import History
from memcore.model import Checkpoint, Item, Receipt
from memcore.session.address import Address
from memcore.session.changes import Closure
from memcore.session.checkpointing import Checkpointing, Position
from memcore.session.condensed import Condensed
from memcore.session.recovered import Recovery
from memcore.session.recovering import RECOVERY_STEPS, Recovering
from memcore.store.base import ReadTxn

__all__ = ["Branched"]


class Branched(Condensed):
    """The branches of a session."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self.checkpointing = Checkpointing(address)  # the asynchronous facade commits what it plans
        self.recovering = Recovering(address)

    def undo(self, count: int = 1, *, expected_revision: int | None = None) -> list[Item]:
        """Take the last ``count`` items off the live history and return them, oldest first."""
        closure = self.changes.undo(count, expected_revision=expected_revision)
        return self._commit(closure, makes_room=True)

    # --- checkpoints ------------------------------------------------------------------------------

    def checkpoint(
        self,
        name: str | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
        expected_revision: int | None = None,
        idempotency_key: str | None = None,
    ) -> Checkpoint:
        """Save the present position: the live history, the current view, the values of the state.

        Nothing is copied: it costs one small row. It stays when its items are undone.

        Args:
            name: of at least one character; may repeat.
            meta: a JSON object kept with it.
            expected_revision: save it only if the session is at this revision.
            idempotency_key: the same key saves it once, within a week, and returns the first one.

        Raises:
            DuplicateRequestError: the key was used for another name or ``meta``.
            RevisionConflict, InvalidItemError, InvalidOptionError, ReadOnlyError, StorageError
        """
        return self._commit(
            self.checkpointing.save(
                name,
                meta,
                expected_revision=expected_revision,
                idempotency_key=idempotency_key,
            )
        )

    def checkpoints(self) -> Iterator[Checkpoint]:
        """The checkpoints, newest last; lazy, a page at a time.

        Raises:
            CorruptValueError: one of them is damaged.
        """
        return self.checkpointing.all()

    def get_checkpoint(self, which: str | int) -> Checkpoint:
        """A checkpoint by its number, or the newest of a name.

        Raises:
            NotFoundError: there is none.
            CorruptValueError: it is damaged.
        """
        return self.checkpointing.get(which)

    def delete_checkpoint(self, which: Checkpoint | str | int) -> bool:
        """Delete a checkpoint, by its number, or the newest of a name; whether there was one.

        The items that it refers to stay, as all items do.
        """
        return self._commit(self.checkpointing.delete(which), makes_room=True)

    # --- going back -------------------------------------------------------------------------------

    def rewind(
        self, to: Position, *, state: bool = True, expected_revision: int | None = None
    ) -> Receipt:
        """Make ``to`` the last live item (0: none), or go back to a checkpoint.

        A checkpoint brings its whole history back, items that were undone since included, and the
        view that was current. Views recorded since do not apply any more. The values of the state
        as they were come back under a new counter: those of the checkpoint, or of the time before
        the item that followed ``to``.

        Args:
            to: a live seq, a Checkpoint, or a checkpoint's name.
            state: False leaves the state alone.
            expected_revision: only if the session is at this revision.

        Raises:
            NotFoundError: the item is not in the live history, there is no such checkpoint, or the
                values of then were trimmed.
            RevisionConflict, CorruptValueError, InvalidOptionError, ReadOnlyError
        """
        closure = self.checkpointing.rewind(to, state=state, expected_revision=expected_revision)
        return self._commit(closure, makes_room=True)

    def fork(
        self,
        session_id: str,
        *,
        at: Position | None = None,
        policy: str | None = None,
        state: bool = True,
        expected_revision: int | None = None,
    ) -> Self:
        """A new session of the same scope that shares the history up to and including ``at``.

        Args:
            session_id: name of the fork; no session may have it.
            at: a live seq, a Checkpoint or its name (live or not); None: all of the live history;
                0: none of it.
            policy: another pair policy for the fork.
            state: whether it begins with the values of the state of then; False: with those of now.
            expected_revision: only if this session is at this revision.

        Raises:
            NotFoundError, RevisionConflict, InvalidOptionError
        """
        closure, target = self.plan_fork(
            session_id, at=at, policy=policy, state=state, expected_revision=expected_revision
        )
        self._commit(closure)
        return target

    def plan_fork(
        self,
        session_id: str,
        *,
        at: Position | None,
        policy: str | None,
        state: bool = True,
        expected_revision: int | None = None,
    ) -> tuple[Closure[None], Self]:
        """The closure of ``fork`` and the handle of the new session."""
        target = self._address.beside(session_id, policy=policy)
        point = self.checkpointing.point(at)
        closure = self.changes.fork(target, point, state=state, expected_revision=expected_revision)
        return closure, type(self)(target)

    def history_at(self, txn: ReadTxn, at: Position | None) -> tuple[int, History]:
        """Scope and history of a position as a transaction sees it; None: the live history.

        Raises:
            NotFoundError: there is no session, no such live item, or no such checkpoint.
            CorruptValueError: a row is damaged.
        """
        return self.checkpointing.history(txn, at)

    # --- recovery ---------------------------------------------------------------------------------

    def recover(self, *, plan: bool = False, steps: Sequence[str] = RECOVERY_STEPS) -> Recovery:
        """Make a session usable again of which rows are damaged or missing.

        The first of these that serves: ``mend`` what follows from items, if the whole live history
        can be read; go back to the last valid ``checkpoint``; go on with what can be read of the
        ``log`` (what stands behind the first lost item is appended once more); the ``empty``
        session. No item is removed, and where the session was is saved as a checkpoint named
        ``before recovery`` if that can be told. Nothing is changed if nothing is wrong.

        Args:
            plan: report what would be done; write nothing.
            steps: which of these may be taken, in the order to try them.

        Raises:
            NotFoundError: there is no session of this name.
            CounterUnavailableError, InvalidOptionError, ReadOnlyError, StorageError
        """
        return self.recovering.run(plan=plan, steps=steps)
