"""MemcoreSession: a drop-in for the SDK's SQLiteSession."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from agents import RunState

from memcore.adapters.openai_agents.analytics import USERS, Spot, Usage, moment_of, spot_of
from memcore.adapters.openai_agents.branch_rows import BranchGone, WritablePage
from memcore.adapters.openai_agents.history import (
    MAIN,
    Bound,
    Coder,
    Sealer,
    Unreadable,
    branch_name_of,
    finish_removal,
    options_in,
)
from memcore.adapters.openai_agents.protocol import stands_for_sqlite
from memcore.aio.commit import commit_to
from memcore.codec.values import encode_json, plain_json
from memcore.database import Scope
from memcore.database.scope import engine_of, need_access
from memcore.errors import InvalidOptionError, UnreadableItemsError
from memcore.log import CachedSession, Prepared, SessionTxn
from memcore.model import ItemKind
from memcore.session import SessionRef, start_removal
from memcore.session.change import Change, Fork
from memcore.session.read import head_of, read_log
from memcore.session.session import ref_of, store_of
from memcore.session.tail import mark_of, marked
from memcore.state import ScopedChange
from memcore.state.rows import read_header, value_at
from memcore.store.interface import ReadTxn, Txn
from memcore.telemetry import adapts

__all__ = [
    "Branches",
    "MemcoreSession",
    "Notes",
]


# --- Branches of a session: forks that share its history, at the same cost at any length ----------
# A branch is a session of memcore under a name of its own. The ids that were used are written in
# the commit of the fork, and stay: no id is used for two branches.


class Moved(Exception):  # noqa: N818 - a signal: look again
    """The turn to branch from was moved or removed."""


class Seen(NamedTuple):
    """A branch as a snapshot shows it."""

    items: int
    turns: int
    created_ms: int


class Branches(Usage):
    """The branches of ``AdvancedSQLiteSession``, under its names."""

    async def create_branch_from_turn(
        self, turn_number: int, branch_name: str | None = None, *, wrapper: Any = None
    ) -> str:
        """Create a branch with the items before a turn of the current one, and switch to it.

        Nothing is copied, and the branch and its name are there in one commit.

        Args:
            turn_number: the user message to branch from, which is not part of the branch.
            branch_name: an id that no branch of this session ever had; None: one is made.
            wrapper: the Runner's context wrapper.

        Returns:
            The branch's id.

        Raises:
            ValueError: there is no such turn, or the name is blank or was used.
            RuntimeError: the session is closed.
        """
        if branch_name is not None and not branch_name.strip():
            msg = "Branch name cannot be empty"
            raise ValueError(msg)
        scope = self.scope_for(wrapper)
        while True:
            bound = self.bound_in(scope)
            await self.remove_due(bound)
            if bound.address.scope_filter is not None:
                bound.address.scope_filter.name(branch_name, "name of a branch")
            spot = read_log(
                ref_of(bound.session.sync), lambda log, txn: spot_of(log, txn, turn_number), None
            )
            if spot is None:
                msg = (
                    f"Turn {turn_number} does not contain a user message in branch '{bound.branch}'"
                )
                raise ValueError(msg)
            branching = self._branching(scope, bound, spot, (turn_number, branch_name))
            try:
                branch_id, generation = await commit_to(engine_of(scope).store, branching)
            except (BranchGone, Moved):
                continue
            self.enter_branch(scope, branch_id, generation)
            self._logger.debug(
                "Created branch '%s' from turn %s in '%s'", branch_id, turn_number, bound.branch
            )
            return branch_id

    def _branching(
        self, scope: Scope, bound: Bound, spot: Spot, wanted: tuple[int, str | None]
    ) -> Callable[[Txn], tuple[str, int]]:
        """The closure that creates a branch; returns its id and the session's generation."""
        address, book = bound.address, self.book_of(scope)

        def closure(txn: Txn) -> tuple[str, int]:
            draft = address.draft(txn, create=False)
            if (
                draft is None
                or draft.log.place != spot.place
                or draft.position_of(spot.seq) is None
            ):
                raise Moved
            page = book.writing(txn)
            branch_id = _unused(page, *wanted)
            target = address.beside(branch_name_of(self.session_id, branch_id), policy=None)
            Fork(address, target, spot.before)(txn)
            try:
                return branch_id, page.add_branch(branch_id, now_us=engine_of(scope).now_us())
            except BaseException:
                txn.spoil()
                raise

        return closure

    async def create_branch_from_content(
        self, search_term: str, branch_name: str | None = None, *, wrapper: Any = None
    ) -> str:
        """As ``create_branch_from_turn``, from the first turn whose text holds a term.

        Raises:
            ValueError: no turn does, or the name is blank or was used.
            RuntimeError: the session is closed.
        """
        found = await self.find_turns_by_content(search_term, wrapper=wrapper)
        if not found:
            msg = f"No user turns found containing '{search_term}'"
            raise ValueError(msg)
        return await self.create_branch_from_turn(found[0]["turn"], branch_name, wrapper=wrapper)

    async def switch_to_branch(self, branch_id: str, *, wrapper: Any = None) -> None:
        """Make another branch the current one of this instance.

        Raises:
            ValueError: it has no items, or never was.
            RuntimeError: the session is closed.
        """
        scope = self.scope_for(wrapper)
        book = self.book_of(scope)
        # The generation first: a clear behind it is found out with the branch's first use.
        generation = engine_of(scope).store.read(lambda txn: book.reading(txn).generation())
        if not self._seen(scope, branch_id).items:
            raise _unknown(branch_id)
        old = self.branch_in(scope)
        self.enter_branch(scope, branch_id, generation or 0)
        self._logger.info("Switched from branch '%s' to '%s'", old, branch_id)

    async def delete_branch(
        self, branch_id: str, force: bool = False, *, wrapper: Any = None
    ) -> None:
        """Delete a branch with its usage; what other branches share with it stays.

        Its id stays taken.

        Args:
            branch_id: which; never ``"main"``.
            force: delete the current branch, too, and switch to ``"main"``.
            wrapper: the Runner's context wrapper.

        Raises:
            ValueError: there is no such branch, or it may not be deleted.
            AccessDeniedError: the authorizer refuses to delete the session.
            RuntimeError: the session is closed.
        """
        if not branch_id or not branch_id.strip():
            msg = "Branch ID cannot be empty"
            raise ValueError(msg)
        if branch_id == MAIN:
            msg = "Cannot delete the 'main' branch"
            raise ValueError(msg)
        scope = self.scope_for(wrapper)
        need_access(scope, "delete_session", self.session_id)
        if branch_id == self.branch_in(scope):
            if not force:
                msg = (
                    f"Cannot delete current branch '{branch_id}'. "
                    "Use force=True or switch branches first"
                )
                raise ValueError(msg)
            if not self._seen(scope, branch_id).items:
                raise _unknown(branch_id)
            await self.switch_to_branch(MAIN, wrapper=wrapper)
        deleting = self._deleting(scope, branch_id)
        usage, rest = await commit_to(engine_of(scope).store, deleting, makes_room=True)
        self._logger.info("Deleted branch '%s': %s usage entries", branch_id, usage)
        await finish_removal(self.bound_in(scope), rest)

    def _deleting(self, scope: Scope, branch_id: str) -> Callable[[Txn], tuple[int, list[bytes]]]:
        """The closure that deletes a branch.

        Returns the number of usage rows deleted, and rows left.
        """
        address, book = self._address_of(scope, branch_id), self.book_of(scope)

        def closure(txn: Txn) -> tuple[int, list[bytes]]:
            draft = address.draft(txn, create=False)
            if draft is None or not draft.count:
                raise _unknown(branch_id)
            number = draft.log.scope
            usage = book.writing(txn).delete_usage(branch_id)
            return usage, start_removal(txn, engine_of(scope), number, address.name)[1]

        return closure

    async def list_branches(self, *, wrapper: Any = None) -> list[dict[str, Any]]:
        """The branches that have items, oldest first.

        Returns:
            Dicts of ``branch_id``, ``message_count``, ``user_turns``, ``is_current`` and
            ``created_at`` (UTC).

        Raises:
            RuntimeError: the session is closed.
        """
        scope = self.scope_for(wrapper)
        book, current = self.book_of(scope), self.branch_in(scope)
        used = engine_of(scope).store.read(lambda txn: book.reading(txn).branches())
        found = []
        for branch_id in (MAIN, *(branch.branch_id for branch in used)):
            seen = self._seen(scope, branch_id)
            await asyncio.sleep(0)
            if seen.items:
                found.append(
                    {
                        "branch_id": branch_id,
                        "message_count": seen.items,
                        "user_turns": seen.turns,
                        "is_current": branch_id == current,
                        "created_at": moment_of(seen.created_ms / 1e3),
                    }
                )
        return sorted(found, key=lambda row: (row["created_at"], row["branch_id"]))

    def _seen(self, scope: Scope, branch_id: str) -> Seen:
        def look(log: CachedSession, txn: ReadTxn) -> Seen:
            head = head_of(log)
            ledger = log.full(txn, head).ledger
            events = ledger.count_of(1 << ItemKind.EVENT, 0)
            return Seen(head.count - events, ledger.count_of(USERS, 0), head.created_ms)

        return read_log(self._address_of(scope, branch_id), look, Seen(0, 0, 0))

    def _address_of(self, scope: Scope, branch_id: str) -> SessionRef:
        name = branch_name_of(self.session_id, branch_id)
        return SessionRef(engine_of(scope), scope.app, scope.user, name, options_in(scope))


def _unused(page: WritablePage, turn: int, wanted: str | None) -> str:
    """The id of a new branch.

    Raises:
        ValueError: a branch had the one that is wanted.
    """
    if wanted is not None:
        if page.is_used(wanted):
            msg = f"Branch ID '{wanted}' has already been used. Choose a new branch ID."
            raise ValueError(msg)
        return wanted
    base = f"branch_from_turn_{turn}_{int(time.time())}"
    branch_id, suffix = base, 1
    while page.is_used(branch_id):
        suffix += 1
        branch_id = f"{base}_{suffix}"
    return branch_id


def _unknown(branch_id: str) -> ValueError:
    return ValueError(f"Branch '{branch_id}' does not exist")


# --- Notes of a session: title, metadata, and the run that waits in it ----------------------------
# They are fields of the session's state, so exports, backups, forks and erasures include them. With
# ``encryption_key`` they are sealed as items are. A run belongs to its items: it is stored with its
# end, a digest of the last item, and is valid as long as that is the last one. The end is sealed,
# too, and names the run by a digest, so that it fits no other run.

TITLE: Final = "openai_agents.title"
METADATA: Final = "openai_agents.metadata"
RUN: Final = "openai_agents.run_state"
_END: Final = "openai_agents.run_end"


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
        """The metadata set with ``set_metadata``, ``{}`` if there is none.

        Raises:
            UnreadableItemsError: it is encrypted under another key.
            RuntimeError: the session is closed.
        """
        found = self._note(self._first(self.scope_for(wrapper)), METADATA)
        return dict(found) if isinstance(found, dict) else {}

    async def set_metadata(
        self, metadata: Mapping[str, Any] | None, *, wrapper: Any = None
    ) -> None:
        """Replace the session's metadata; None removes it.

        Args:
            metadata: values that can be written as JSON.
            wrapper: the Runner's context wrapper.

        Raises:
            InvalidOptionError: it is no mapping.
            TypeError: a value cannot be written as JSON.
            RuntimeError: the session is closed.
        """
        if metadata is not None and not isinstance(metadata, Mapping):
            msg = f"metadata: expected a mapping or None, got {type(metadata).__name__}"
            raise InvalidOptionError(msg)
        value = dict(metadata) if metadata else None
        await self._keep(self._first(self.scope_for(wrapper)), METADATA, value)

    def notes_in(self, scope: Scope) -> tuple[str | None, dict[str, Any]]:
        """Title and metadata, for lists; empty if they need another key."""
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
        """The first branch, which holds what belongs to all branches."""
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

        It belongs to the items that are stored at this point: once others are added or the last one
        is popped, ``load_run_state`` does not return it any more. So a run that was continued is
        not continued twice, from the very commit that stores its items.

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
        sealed = None if value is None else self._sealed_note(bound, RUN, value)
        # What this instance knows of the session stays as it is: a forced compaction that finds
        # these items refuses once, which is better than taking what others wrote for its own.
        ends = self._note_coder(bound, _END)
        await bound.session.store(KeepNote(bound, RUN, sealed, items=prepared, ends=ends))

    async def load_run_state(
        self, agent: Any, *, wrapper: Any = None, **options: Any
    ) -> RunState[Any, Any] | None:
        """The run that waits in the session; None if there is none, or the session has continued.

        Args:
            agent: the agent that it began with.
            wrapper: the Runner's context wrapper.
            options: of ``RunState.from_json`` (``context_override``, ``context_deserializer``,
                ``strict_context``).

        Raises:
            UserError: the state is of another version of the SDK, or of other agents.
            UnreadableItemsError: it is encrypted otherwise, or its end is that of another run.
            RuntimeError: the session is closed.
        """
        bound = self.bound(wrapper)

        def look(log: CachedSession, txn: ReadTxn) -> tuple[Any, str]:
            return _field(log, txn, RUN), marked(log, txn)

        found, mark = read_log(ref_of(bound.session.sync), look, (None, ""))
        if not isinstance(found, dict) or "run" not in found:
            return None
        end = self._opened_note(bound, _END, found.get("end"))
        if not isinstance(end, dict) or end.get("mark") != mark:
            return None
        # Without encryption nothing proves its author, and a redaction may have rewritten the run.
        if self._keys is not None and end.get("run") != _digest(found["run"]):
            raise self._unreadable(RUN, "changed")
        run = self._opened_note(bound, RUN, found["run"])
        return await RunState.from_json(agent, run, **options) if isinstance(run, dict) else None

    # --- how they are kept ------------------------------------------------------------------------

    async def _keep(self, bound: Bound, name: str, value: Any) -> None:
        sealed = None if value is None else self._sealed_note(bound, name, value)
        await commit_to(store_of(bound.session.sync), KeepNote(bound, name, sealed))

    def _note(self, bound: Bound, name: str) -> Any:
        found = read_log(ref_of(bound.session.sync), lambda log, txn: _field(log, txn, name), None)
        return None if found is None else self._opened_note(bound, name, found)

    def _sealed_note(self, bound: Bound, name: str, value: Any) -> dict[str, Any]:
        """The value as it is stored: admitted, and encrypted if items are."""
        scope_filter = bound.address.scope_filter
        if scope_filter is not None:
            value = scope_filter.value(plain_json(value), "state", name=name, under=name)
        return self._note_coder(bound, name).encode([{"value": value}], None)[0]

    def _note_coder(self, bound: Bound, name: str) -> Coder:
        """The coder of a note, with a key of its own: nothing else can be put in its place."""
        if self._keys is None:
            return bound.coder
        return Sealer(self._keys, bound.address.app, bound.address.user, self.session_id, name)

    def _opened_note(self, bound: Bound, name: str, found: Any) -> Any:
        """The value; None for what this adapter did not write there."""
        coder = self._note_coder(bound, name)
        if not isinstance(found, dict):
            if self._keys is not None and name == _END:
                raise self._unreadable(name, "in clear")
            return None
        try:
            value = coder.decode(found)
        except Unreadable as exc:
            raise self._unreadable(name, str(exc)) from exc
        return value.get("value") if isinstance(value, dict) else None

    def _unreadable(self, name: str, reason: str) -> UnreadableItemsError:
        msg = (
            f"{name} of session {self.session_id!r} cannot be read ({reason}): open the session "
            "with the encryption_key= that it was written with, or save it anew"
        )
        return UnreadableItemsError(msg, reasons={reason: 1})


class KeepNote(Change[None]):
    """Append items, and then write a note into the state, or delete it.

    Args:
        bound: the session.
        name: of the note.
        value: its content, as it is stored; None deletes it.
        items: appended before.
        ends: seals the position of the note in the log; None: it has none.
    """

    __slots__ = ("bound", "creates", "ends", "items", "name", "revised", "value")

    def __init__(
        self,
        bound: Bound,
        name: str,
        value: Any,
        *,
        items: Sequence[Prepared] = (),
        ends: Coder | None = None,
    ) -> None:
        self.bound, self.name, self.value = bound, name, value
        self.items, self.ends = items, ends
        self.creates = bool(items) or value is not None
        self.revised = bool(items)
        super().__init__(bound.address)

    def run(self, session: SessionTxn) -> None:
        """Append, then write the field of the state."""
        if self.items:
            session.append(self.items, orphans=self.ref.options.orphans)
        value = self.value
        if self.ends is not None and value is not None:
            end = {"mark": mark_of(session), "run": _digest(value)}
            value = {"end": self.ends.encode([{"value": end}], None)[0], "run": value}
        change = ScopedChange(None, {})
        if value is None:
            change.delete([self.name])
        else:
            change.update({self.name: value})
        self.bound.session.sync.state.write(change, session)

    def missing(self) -> None:
        """Do nothing: there is no note to delete."""


def _digest(sealed: Any) -> str:
    """The digest of a stored note, which identifies it."""
    return blake2b(encode_json(sealed)[0], digest_size=32).hexdigest()


def _field(log: CachedSession, txn: ReadTxn, name: str) -> Any:
    version = value_at(txn, *log.place, name, read_header(txn, *log.place).counter)
    return None if version is None else version.value()


# --- MemcoreSession: a drop-in for the SDK's SQLiteSession ----------------------------------------


@stands_for_sqlite
@adapts(
    get_items="items . count",
    add_items="append . entries",
    pop_item="undo",
    clear_session="delete",
    remove_expired="sweep . number",
    create_branch_from_turn="fork",
    create_branch_from_content="fork",
    switch_to_branch="branch.switch",
    delete_branch="branch.delete",
    list_branches="branches . count",
    get_conversation_turns="items . count",
    find_turns_by_content="items . count",
    get_conversation_by_turns="items . count",
    get_tool_usage="items . count",
    store_run_usage="report_usage",
    get_session_usage="usage",
    get_turn_usage="usage",
    get_title="state.get",
    set_title="state.update",
    get_metadata="state.get",
    set_metadata="state.update",
    save_run_state="state.update",
    load_run_state="state.get",
    _pop_item_with_validation="undo",
    _get_compaction_snapshot="items",
    _replace="batch",
    _atomic_replace_items="batch",
)
class MemcoreSession(Notes):
    """A session of the OpenAI Agents SDK in a memcore file.

    Arguments are those of ``SQLiteSession``, in their order, and by keyword memcore's own. May be
    used from any thread and event loop; many instances may share a file, in one process or several.

    Args:
        session_id: any string.
        db_path: a file, made if it is missing; ``":memory:"`` is a private one that is deleted when
            it is closed. Or an open Database, AsyncDatabase or Scope, which stays open.
        sessions_table: with ``messages_table``: other names are another space in the same file.
        messages_table: see ``sessions_table``.
        session_settings: the SDK's SessionSettings, or a dict of its fields.
        user: the owner; sessions of different users are separate.
        app: the application, as ``user``.
        durability: of a file that is made here: ``"full"`` (the default), ``"relaxed"`` or
            ``"none"``.
        allow_unsafe: consent to ``durability="none"`` of a file, as in ``memcore.open``.
        scope_of: a function of the Runner's context wrapper that returns the scope or
            ``(app, user)`` in which a call works.
        encryption_key: a random secret, or several (the first encrypts, all decrypt): items are
            encrypted, but for their type, role and call ids.
        unreadable: ``"raise"`` (the default) or ``"skip"`` for items that the key does not decrypt;
            skipped ones are counted in ``skipped_items`` and in a warning in the log.
        ttl_seconds: older items are not returned any more and are removed from the file, except a
            call whose result is not that old yet.
        cache_bytes: the cache of decoded items, in bytes of their JSON, about, and at most 64 MiB
            for all sessions of the process; 0: no cache.
        compaction: the session compacts itself after a turn of the Runner: True, a policy, the name
            of a preset or a mapping (see ``docs/compaction.md``). Reads without a limit, or with
            that of ``session_settings``, then give what the model may see: the summary and the
            items behind it, legally, and no more than the limit. The log keeps all.
        summarize: a function of a SummaryRequest, or a coroutine function; None: what is folded is
            trimmed.
        summarize_timeout_seconds: how long a summary may take.
        budget_tokens: these reads give a legal window of at most so many tokens.
        create_tables: accepted for compatibility with ``AdvancedSQLiteSession``; no effect.
        logger: where warnings go; None: ``memcore.openai_agents``.
    """

    _is_as_stored = True
    """Subclasses whose ``get_items`` and ``add_items`` do not change items may say so again."""
