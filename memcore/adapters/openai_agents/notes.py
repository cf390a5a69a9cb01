"""What is kept with a session beside its items: title, metadata, and the run that waits in it.

They are fields of the session's state, so they go with the session: into exports, backups, forks,
erasures. With ``encryption_key`` they are sealed as items are. A run belongs to what it has said:
it is remembered with a digest of the last item, and counts as long as that is the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from agents import RunState

from memcore.adapters.openai_agents.branches import Branches
from memcore.adapters.openai_agents.history import Bound
from memcore.adapters.openai_agents.items import Unreadable
from memcore.adapters.openai_agents.place import MAIN
from memcore.adapters.openai_agents.sealing import unreadable_error
from memcore.aio.commit import commit_to
from memcore.codec import plain_json
from memcore.database import Scope
from memcore.errors import InvalidOptionError, UnreadableItemsError
from memcore.log import Draft, SessionLog
from memcore.session import Changes
from memcore.session.changes import Closure
from memcore.session.ending import mark_of, marked
from memcore.session.handle import store_of
from memcore.state import ScopedChange
from memcore.state.rows import read_header, value_at
from memcore.store.base import ReadTxn, Txn

__all__ = ["Notes"]

TITLE: Final = "openai_agents.title"
METADATA: Final = "openai_agents.metadata"
RUN: Final = "openai_agents.run_state"


class Notes(Branches):
    """Title, metadata and the state of a run."""

    # --- title and metadata -----------------------------------------------------------------------

    async def get_title(self, *, wrapper: Any = None) -> str | None:
        """The session's title, None if it has none.

        Raises:
            UnreadableItemsError: it is encrypted otherwise.
            RuntimeError: the session is closed.
        """
        found = self._note(self._first(self.scope_for(wrapper)), TITLE)
        return found if isinstance(found, str) else None

    async def set_title(self, title: str | None, *, wrapper: Any = None) -> None:
        """Give the session a title, or take it away (None). A session may have one before items.

        Raises:
            InvalidOptionError: it is no str.
            RuntimeError: the session is closed.
        """
        if title is not None and not isinstance(title, str):
            msg = f"title: expected a str or None, got {type(title).__name__}"
            raise InvalidOptionError(msg)
        await self._keep(self._first(self.scope_for(wrapper)), TITLE, title)

    async def get_metadata(self, *, wrapper: Any = None) -> dict[str, Any]:
        """What was set with ``set_metadata``, ``{}`` if nothing was.

        Raises:
            UnreadableItemsError: it is encrypted otherwise.
            RuntimeError: the session is closed.
        """
        found = self._note(self._first(self.scope_for(wrapper)), METADATA)
        return dict(found) if isinstance(found, dict) else {}

    async def set_metadata(
        self, metadata: Mapping[str, Any] | None, *, wrapper: Any = None
    ) -> None:
        """Keep values with the session in the place of those that it has; None: none.

        Args:
            metadata: whatever JSON can say.
            wrapper: the Runner's context wrapper.

        Raises:
            InvalidOptionError: it is no mapping.
            TypeError: a value is nothing that JSON can say.
            RuntimeError: the session is closed.
        """
        if metadata is not None and not isinstance(metadata, Mapping):
            msg = f"metadata: expected a mapping or None, got {type(metadata).__name__}"
            raise InvalidOptionError(msg)
        value = dict(metadata) if metadata else None
        await self._keep(self._first(self.scope_for(wrapper)), METADATA, value)

    def notes_in(self, scope: Scope) -> tuple[str | None, dict[str, Any]]:
        """Title and metadata, for lists; none where another key is needed."""
        bound = self._first(scope)
        try:
            title, metadata = self._note(bound, TITLE), self._note(bound, METADATA)
        except UnreadableItemsError:
            return None, {}
        return (
            title if isinstance(title, str) else None,
            metadata if isinstance(metadata, dict) else {},
        )

    def _first(self, scope: Scope) -> Bound:
        """Where what belongs to all branches lies."""
        if self.branch_in(scope) == MAIN:
            return self.bound_in(scope)
        return self.bound_at(MAIN)

    # --- the run that waits -----------------------------------------------------------------------

    async def save_run_state(
        self,
        state: RunState[Any, Any] | None,
        *,
        items: Sequence[Any] = (),
        wrapper: Any = None,
        **options: Any,
    ) -> None:
        """Keep the state of a run that waits (for approvals) with the session, in one commit.

        It belongs to the items that are stored by then: once others are added or the last one is
        popped, ``load_run_state`` does not give it any more. So a run that went on is not gone on
        with twice, in the very commit that stores what it did.

        Args:
            state: ``result.to_state()``, approvals made or not; None: no run waits any more.
            items: to be added in the same commit; those that the Runner stored are there already.
            wrapper: the Runner's context wrapper.
            options: of ``RunState.to_json`` (``context_serializer``, ``strict_context``).

        Raises:
            UserError: the state cannot be written as JSON.
            BranchGone: the session was cleared meanwhile, and the branch of the run with it.
            RuntimeError: the session is closed.
        """
        bound = self.bound(wrapper)
        value = None if state is None else state.to_json(**options)
        prepared = self.prepared(bound, list(items))
        append = bound.session.sync.appending.append(prepared) if prepared else None
        sealed = None if value is None else self._sealed_note(bound, RUN, value)

        def work(draft: Draft) -> None:
            said = None if sealed is None else {"end": mark_of(draft), "run": sealed}
            _put(bound, draft, RUN, said)

        keep: Closure[None] = Changes(bound.address).change(
            work, create=value is not None, revised=False, missing=lambda: None
        )

        def closure(txn: Txn) -> None:
            if append is not None:
                append(txn)
            try:
                keep(txn)
            except BaseException:
                txn.spoil()
                raise

        await bound.session.store(prepared, closure)
        if prepared:
            bound.known.forget()

    async def load_run_state(
        self, agent: Any, *, wrapper: Any = None, **options: Any
    ) -> RunState[Any, Any] | None:
        """The run that waits in the session; None if there is none, or the session went on.

        Args:
            agent: the agent that it began with.
            wrapper: the Runner's context wrapper.
            options: of ``RunState.from_json`` (``context_override``, ``context_deserializer``,
                ``strict_context``).

        Raises:
            UserError: the state is of another version of the SDK, or of other agents.
            UnreadableItemsError: it is encrypted otherwise.
            RuntimeError: the session is closed.
        """
        bound = self.bound(wrapper)

        def look(log: SessionLog, txn: ReadTxn) -> Any:
            found = _field(log, txn, RUN)
            is_there = isinstance(found, dict) and found.get("end") == marked(log, txn)
            return found.get("run") if is_there else None

        found = bound.session.sync.reading.run(look, None)
        run = None if found is None else self._opened_note(bound, found)
        return await RunState.from_json(agent, run, **options) if isinstance(run, dict) else None

    # --- how they are kept ------------------------------------------------------------------------

    async def _keep(self, bound: Bound, name: str, value: Any) -> None:
        sealed = None if value is None else self._sealed_note(bound, name, value)
        closure = Changes(bound.address).change(
            lambda draft: _put(bound, draft, name, sealed),
            create=value is not None,
            revised=False,
            missing=lambda: None,
        )
        await commit_to(store_of(bound.session.sync), closure)

    def _note(self, bound: Bound, name: str) -> Any:
        found = bound.session.sync.reading.run(lambda log, txn: _field(log, txn, name), None)
        return None if found is None else self._opened_note(bound, found)

    def _sealed_note(self, bound: Bound, name: str, value: Any) -> dict[str, Any]:
        """The value as it is stored: admitted, and encrypted if items are."""
        passage = bound.address.passage
        if passage is not None:
            value = passage.value(plain_json(value), "state", name=name, under=name)
        return bound.coder.encode([{"value": value}], None)[0]

    def _opened_note(self, bound: Bound, found: Any) -> Any:
        """The value; None for what this adapter did not write there."""
        try:
            value = bound.coder.decode(found) if isinstance(found, dict) else None
        except Unreadable as exc:
            raise unreadable_error(self.session_id, {str(exc): 1}) from exc
        return value.get("value") if isinstance(value, dict) else None


def _put(bound: Bound, draft: Draft, name: str, value: Any) -> None:
    change = ScopedChange(None, {})
    if value is None:
        change.delete([name])
    else:
        change.update({name: value})
    bound.session.sync.state.write(change, draft)


def _field(log: SessionLog, txn: ReadTxn, name: str) -> Any:
    version = value_at(txn, *log.place, name, read_header(txn, *log.place).counter)
    return None if version is None else version.value()
