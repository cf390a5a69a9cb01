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
# A branch is a memcore session with its own name. Used branch ids are recorded in the commit that
# forks and are never removed, so no id is ever reused.


class Moved(Exception):  # noqa: N818 - a signal to look up the turn again
    """The turn to branch from was moved or removed."""


class Seen(NamedTuple):
    """A branch as seen in one snapshot."""

    items: int
    turns: int
    created_ms: int


class Branches(Usage):
    """The branches of ``AdvancedSQLiteSession``, under its names."""

    async def create_branch_from_turn(
        self, turn_number: int, branch_name: str | None = None, *, wrapper: Any = None
    ) -> str:
        """Create a branch with the items before a turn of the current one, and switch to it.

        Nothing is copied; the branch and its id are recorded in a single commit.

        Args:
            turn_number: the user message to branch from; not itself part of the branch.
            branch_name: an id that this session has never used for a branch; None: one is
                generated.
            wrapper: the Runner's context wrapper.

        Returns:
            The branch's id.

        Raises:
            ValueError: there is no such turn, or the name is blank or already used.
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
        """As ``create_branch_from_turn``, from the first turn whose text contains a term.

        Raises:
            ValueError: no turn contains it, or the name is blank or already used.
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
            ValueError: the branch has no items or never existed.
            RuntimeError: the session is closed.
        """
        scope = self.scope_for(wrapper)
        book = self.book_of(scope)
        # Read the generation first: a clear that happens after this is detected when the branch is
        # first used.
        generation = engine_of(scope).store.read(lambda txn: book.reading(txn).generation())
        if not self._seen(scope, branch_id).items:
            raise _unknown(branch_id)
        old = self.branch_in(scope)
        self.enter_branch(scope, branch_id, generation or 0)
        self._logger.info("Switched from branch '%s' to '%s'", old, branch_id)

    async def delete_branch(
        self, branch_id: str, force: bool = False, *, wrapper: Any = None
    ) -> None:
        """Delete a branch and its usage; history shared with other branches stays.

        Its id remains reserved.

        Args:
            branch_id: the branch; never ``"main"``.
            force: allow deleting the current branch, and switch to ``"main"``.
            wrapper: the Runner's context wrapper.

        Raises:
            ValueError: the branch does not exist or may not be deleted.
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

        Returns the number of usage rows deleted, and the rows that remain to be deleted.
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
    """Return an unused id for a new branch.

    Raises:
        ValueError: the requested id was already used.
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


# --- Notes of a session: title, metadata, and its paused run --------------------------------------
# Notes are fields of the session's state, so exports, backups, forks and erasures include them.
# With ``encryption_key`` they are sealed like items. A paused run is tied to its items: it is
# stored with an end marker, a digest of the last item, and is valid only while that item is the
# last one. The marker is sealed, too, and contains a digest of the run, so it cannot be paired with
# another run.

TITLE: Final = "openai_agents.title"
METADATA: Final = "openai_agents.metadata"
RUN: Final = "openai_agents.run_state"
_END: Final = "openai_agents.run_end"


class Notes(Branches):
    """Title, metadata and paused run of a session."""

    # --- title and metadata -----------------------------------------------------------------------

    async def get_title(self, *, wrapper: Any = None) -> str | None:
        """The session's title; None if it has none.

        Raises:
            UnreadableItemsError: it is not readable with the session's key.
            RuntimeError: the session is closed.
        """
        found = self._note(self._first(self.scope_for(wrapper)), TITLE)
        return found if isinstance(found, str) else None

    async def set_title(self, title: str | None, *, wrapper: Any = None) -> None:
        """Set the title, or remove it (None). A session without items may have a title.

        Raises:
            InvalidOptionError: it is not a str.
            RuntimeError: the session is closed.
        """
        if title is not None and not isinstance(title, str):
            msg = f"title: expected a str or None, got {type(title).__name__}"
            raise InvalidOptionError(msg)
        await self._keep(self._first(self.scope_for(wrapper)), TITLE, title)

    async def get_metadata(self, *, wrapper: Any = None) -> dict[str, Any]:
        """The metadata set with ``set_metadata``; ``{}`` if there is none.

        Raises:
            UnreadableItemsError: it is not readable with the session's key.
            RuntimeError: the session is closed.
        """
        found = self._note(self._first(self.scope_for(wrapper)), METADATA)
        return dict(found) if isinstance(found, dict) else {}

    async def set_metadata(
        self, metadata: Mapping[str, Any] | None, *, wrapper: Any = None
    ) -> None:
        """Replace the session's metadata; None removes it.

        Args:
            metadata: JSON-serializable values.
            wrapper: the Runner's context wrapper.

        Raises:
            InvalidOptionError: it is not a mapping.
            TypeError: a value is not JSON-serializable.
            RuntimeError: the session is closed.
        """
        if metadata is not None and not isinstance(metadata, Mapping):
            msg = f"metadata: expected a mapping or None, got {type(metadata).__name__}"
            raise InvalidOptionError(msg)
        value = dict(metadata) if metadata else None
        await self._keep(self._first(self.scope_for(wrapper)), METADATA, value)

    def notes_in(self, scope: Scope) -> tuple[str | None, dict[str, Any]]:
        """Title and metadata for listings; empty if they are encrypted with another key."""
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
        """The main branch, which holds the notes shared by all branches."""
        return self.branch_bound(scope, MAIN)

    # --- the paused run ---------------------------------------------------------------------------

    async def save_run_state(
        self,
        state: RunState[Any, Any] | None,
        *,
        items: Sequence[Any] = (),
        wrapper: Any = None,
        **options: Any,
    ) -> None:
        """Store the state of a run paused for approvals with the session, in one commit.

        It is tied to the items stored at this point: once more are added or the last one is popped,
        ``load_run_state`` no longer returns it. The commit that stores a resumed run's items
        therefore prevents it from being resumed a second time, with no gap in between.

        Args:
            state: ``result.to_state()``, with or without approvals; None: clear the paused run.
            items: items to add in the same commit; not those that the Runner has already stored.
            wrapper: the Runner's context wrapper.
            options: options of ``RunState.to_json`` (``context_serializer``, ``strict_context``).

        Raises:
            UserError: the state is not JSON-serializable.
            BranchGone: the session was cleared in the meantime, removing the run's branch.
            RuntimeError: the session is closed.
        """
        bound = self.bound(wrapper)
        value = None if state is None else state.to_json(**options)
        prepared = self.prepared(bound, list(items))
        sealed = None if value is None else self._sealed_note(bound, RUN, value)
        # This instance's view of the session is left unchanged: a forced compaction that finds
        # these items refuses once, which is better than mistaking another writer's items for its
        # own.
        ends = self._note_coder(bound, _END)
        await bound.session.store(KeepNote(bound, RUN, sealed, items=prepared, ends=ends))

    async def load_run_state(
        self, agent: Any, *, wrapper: Any = None, **options: Any
    ) -> RunState[Any, Any] | None:
        """The run paused in the session; None if there is none or the session has moved on.

        Args:
            agent: the agent that the run started with.
            wrapper: the Runner's context wrapper.
            options: options of ``RunState.from_json`` (``context_override``,
                ``context_deserializer``, ``strict_context``).

        Raises:
            UserError: the state is from another version of the SDK, or from other agents.
            UnreadableItemsError: it is not readable with the session's key, or its end marker
                belongs to another run.
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
        # Without encryption the marker authenticates nothing, and a redaction may have rewritten
        # the run.
        if self._keys is not None and end.get("run") != _digest(found["run"]):
            raise self._unreadable(RUN, "changed")
        run = self._opened_note(bound, RUN, found["run"])
        return await RunState.from_json(agent, run, **options) if isinstance(run, dict) else None

    # --- storage ----------------------------------------------------------------------------------

    async def _keep(self, bound: Bound, name: str, value: Any) -> None:
        sealed = None if value is None else self._sealed_note(bound, name, value)
        await commit_to(store_of(bound.session.sync), KeepNote(bound, name, sealed))

    def _note(self, bound: Bound, name: str) -> Any:
        found = read_log(ref_of(bound.session.sync), lambda log, txn: _field(log, txn, name), None)
        return None if found is None else self._opened_note(bound, name, found)

    def _sealed_note(self, bound: Bound, name: str, value: Any) -> dict[str, Any]:
        """The value as it is stored: filtered, and encrypted if items are."""
        scope_filter = bound.address.scope_filter
        if scope_filter is not None:
            value = scope_filter.value(plain_json(value), "state", name=name, under=name)
        return self._note_coder(bound, name).encode([{"value": value}], None)[0]

    def _note_coder(self, bound: Bound, name: str) -> Coder:
        """The coder of a note; a key per note keeps ciphertexts from being substituted."""
        if self._keys is None:
            return bound.coder
        return Sealer(self._keys, bound.address.app, bound.address.user, self.session_id, name)

    def _opened_note(self, bound: Bound, name: str, found: Any) -> Any:
        """The decoded value; None for anything that this adapter did not write."""
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
    """Append items, then write or delete a note in the state.

    Args:
        bound: the session.
        name: the note's name.
        value: its content as stored; None deletes it.
        items: items to append first.
        ends: seals the note's end marker; None: the note has none.
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
        """Append the items, then write the state field."""
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
    """A digest that identifies a stored note."""
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

    Takes the arguments of ``SQLiteSession`` in their order, and memcore's own by keyword. Safe to
    use from any thread and event loop; many instances, in one or several processes, may share a
    file.

    Args:
        session_id: any string.
        db_path: a file, created if missing; ``":memory:"`` is a private one that is deleted on
            close. Or an open Database, AsyncDatabase or Scope, which stays open.
        sessions_table: with ``messages_table``: other names select another space in the same file.
        messages_table: see ``sessions_table``.
        session_settings: the SDK's SessionSettings, or a dict of its fields.
        user: the owner; sessions of different users are separate.
        app: the application; separates sessions as ``user`` does.
        durability: the durability of a file created here: ``"full"`` (the default), ``"relaxed"``
            or ``"none"``.
        allow_unsafe: consent to ``durability="none"`` for a file, as in ``memcore.open``.
        scope_of: a function of the Runner's context wrapper that returns the scope or
            ``(app, user)`` for a call.
        encryption_key: a random secret, or several (the first encrypts, all decrypt): items are
            encrypted except for their type, role and call ids.
        unreadable: ``"raise"`` (the default) or ``"skip"`` for items that the key does not decrypt;
            skipped ones are counted in ``skipped_items`` and in a logged warning.
        ttl_seconds: older items are no longer returned and are removed from the file, except a call
            whose result has not yet expired.
        cache_bytes: approximate size of the cache of decoded items, in bytes of their JSON, at most
            64 MiB for all sessions of the process; 0: no cache.
        compaction: compact the session automatically after a turn of the Runner: True, a policy,
            the name of a preset or a mapping (see ``docs/compaction.md``). Reads without a limit,
            or with that of ``session_settings``, then return the model's view: the summary and the
            items after it, as a legal sequence within the limit. The log keeps everything.
        summarize: a function of a SummaryRequest, or a coroutine function; None: folded items are
            trimmed instead of summarized.
        summarize_timeout_seconds: timeout for a summary.
        budget_tokens: these reads return a legal window of at most this many tokens.
        create_tables: accepted for compatibility with ``AdvancedSQLiteSession``; no effect.
        logger: the logger for warnings; None: ``memcore.openai_agents``.
    """

    _is_as_stored = True
    """A subclass whose ``get_items`` and ``add_items`` do not change items may set this again."""
