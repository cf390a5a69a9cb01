"""Scope: the handle that serves one user of one application."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from memcore import blobs, graph, kv, maintenance, retention
from memcore import compaction as compacting
from memcore import session as sessions
from memcore import state as states
from memcore.access import Access
from memcore.errors import InvalidOptionError, NotFoundError, ReadOnlyError
from memcore.log import Head
from memcore.model import ItemKind, SearchHit, SessionEntry, Summarize
from memcore.options import (
    checked_bool,
    checked_callable,
    checked_several,
    need_instance,
    refuse_copies,
    shown,
)
from memcore.rows import names
from memcore.rows.head import head_key
from memcore.session import Engine, Session, SessionOptions, SessionRef
from memcore.session.lease import Lease
from memcore.store.interface import ReadTxn, Txn
from memcore.store.lmdb import verify as structure_of
from memcore.tokens import TokenCounter, get_counter
from memcore.wire import policy_name

if TYPE_CHECKING:
    from memcore.blobs import BlobStore
    from memcore.compaction import CompactionPolicy
    from memcore.graph import GraphStore
    from memcore.kv import KeyValue, Requests
    from memcore.maintenance.backup import Progress
    from memcore.memory import Memories
    from memcore.privacy.write_filter import ScopeFilter
    from memcore.retention import ErasureReceipt, Hold
    from memcore.session.content_filter import Quarantine
    from memcore.state import SharedState
    from memcore.state.handle import Once

__all__ = [
    "Scope",
    "engine_of",
    "erase_user",
    "need_access",
    "rows_of",
    "scope_beside",
    "scope_filter_of",
    "sessions_under",
]


# --- Scope: the handle that serves one user of one application ------------------------------------

_LIST_PAGE = 256
_RAISE_OR_KEEP = ("raise", "keep")


class Scope:
    """Everything owned by one ``(app, user)``. Except ``app_state``, it reaches no other scope."""

    __reduce__ = refuse_copies

    def __init__(
        self, engine: Engine, app: str, user: str, *, access: Access | None = None
    ) -> None:
        self._engine = engine
        self._app = app
        self._user = user
        self._access = access
        self._scope_filter: ScopeFilter | None = None

    def __repr__(self) -> str:
        return f"Scope(user={self._user!r}, app={self._app!r})"

    @property
    def _label(self) -> str:
        return f"user {self._user!r} in app {self._app!r}"

    @property
    def actor(self) -> str | None:
        """Actor passed to the authorizer; None without an authorizer."""
        return None if self._access is None else self._access.actor

    @property
    def user(self) -> str:
        """The user it serves."""
        return self._user

    @property
    def app(self) -> str:
        """The application it belongs to."""
        return self._app

    def session(
        self,
        session_id: str,
        *,
        policy: str | None = None,
        orphans: str = "raise",
        shape: str = "raise",
        counter: str | TokenCounter | None = None,
        recount: bool | None = None,
        compaction: CompactionPolicy | str | Mapping[str, Any] | None = None,
        state: Any = None,
        create: bool = True,
        access_counts: bool | None = None,
        auto_compact: Summarize | None = None,
        auto_recover: bool = False,
    ) -> Session:
        """Open a session by name; its first change creates it.

        Args:
            session_id: any non-empty string.
            policy: the pair policy of a new session; an existing one must have the same.
            orphans: ``"raise"`` refuses results without their call, ``"keep"`` stores them as they
                come and leaves them out of every context.
            shape: ``"raise"`` refuses what is no message of any known format: an unknown role or
                type, content that is neither a text nor a list; ``"keep"`` stores it as it is. Item
                types that are unknown are kept with the policy ``openai_responses``, which gets new
                ones. ``memcore.validate`` judges more.
            counter: the token counter of a new session; an existing one must have the same.
            recount: True recounts an existing session instead, when this handle first reads or
                changes it, if its counter is not ``counter`` (or, without it, the database's).
                None: the database's setting.
            compaction: how this handle compacts: a CompactionPolicy, a preset's name or a mapping;
                None: the database's setting.
            state: the fields of the session's state: a StateSchema, a TypedDict class or a list of
                them; None: any field, without reducers.
            create: False raises NotFoundError if the session does not exist.
            access_counts: count reads through this handle (``Session.accessed``); None: the
                database's setting.
            auto_compact: a summarizer (``memcore.extractive`` needs no model): after each append
                through this handle, whatever its policy says is due is compacted before the append
                returns, as a ``Compactor`` would. A failure is logged; the append is stored.
            auto_recover: on its first use the handle reads the whole session once and, if rows are
                damaged, recovers it like ``Session.recover``, but never to an empty one. Recovery
                is logged.

        Raises:
            InvalidOptionError, NotFoundError, PolicyMismatchError, CounterUnavailableError
            AccessDeniedError: the authorizer refused access.
            StateSchemaError: ``state`` is not a schema.
            ReadOnlyError: ``recount``, ``auto_compact`` and ``auto_recover`` need a database that
                is open for writing.
        """
        names.check_name(session_id, "session")
        for what, given in (("orphans", orphans), ("shape", shape)):
            if given not in _RAISE_OR_KEEP:
                msg = f"{what}: expected 'raise' or 'keep', got {given!r}"
                raise InvalidOptionError(msg)
        name = None if policy is None else policy_name(policy)
        by = None if counter is None else get_counter(counter)
        if by is not None:
            self._engine.counters.setdefault(by.id, by)
        anew = self._engine.recount if recount is None else checked_bool("recount", recount)
        if checked_bool("auto_recover", auto_recover) or anew or auto_compact is not None:
            self._need_writable()
        rule = None if compaction is None else compacting.compaction_policy(compaction)
        fields = None if state is None else states.state_schema(state)
        if access_counts is not None:
            checked_bool("access_counts", access_counts)
        options = SessionOptions(
            name, by, orphans, rule, anew, fields, access_counts, shape, recover=auto_recover
        )
        self._need("session", session_id)
        address = SessionRef(self._engine, self._app, self._user, session_id, options)
        address.access = self._access
        session = Session(address)
        if auto_compact is not None:
            session.after_append = sessions.Compactor(session, auto_compact).after_append
        checked_bool("create", create)
        if not session.exists() and not create:
            msg = f"there is no session {session_id!r} of user {self._user!r} in app {self._app!r}"
            raise NotFoundError(msg)
        return session

    def sessions(self) -> Iterator[SessionEntry]:
        """Iterate over the scope's sessions in name order, one read transaction per page."""
        self._need("sessions")
        return self._sessions()

    def _sessions(self, after: str | None = None) -> Iterator[SessionEntry]:
        while True:
            page = self._engine.store.read(lambda txn, after=after: self._page(txn, after))  # type: ignore[misc]
            yield from page
            if len(page) < _LIST_PAGE:
                return
            after = page[-1].session_id

    def _page(self, txn: ReadTxn, after: str | None) -> list[SessionEntry]:
        scope = names.scope_of(txn, self._app, self._user)
        found: list[SessionEntry] = []
        if scope is None:
            return found
        listed = names.sessions(txn, scope, after)
        while batch := list(islice(listed, _LIST_PAGE - len(found))):
            txn.prefetch([head_key(scope, session) for _, session in batch])
            for name, session in batch:
                key = head_key(scope, session)
                value = txn.get(key)
                if value is not None:
                    found.append(self._entry(name, Head.unpack(key, value)))
        return found

    def _entry(self, name: str, head: Head) -> SessionEntry:
        return SessionEntry(
            session_id=name,
            app=self._app,
            user=self._user,
            items=head.count,
            tokens=head.tokens,
            open_calls=head.open_calls,
            revision=head.revision,
            policy=head.policy,
            counter=head.counter,
            created_at=head.created_ms / 1000,
            updated_at=head.updated_ms / 1000,
        )

    def search(
        self,
        query: str,
        *,
        k: int = 10,
        sessions: Iterable[str] | None = None,
        kinds: Iterable[ItemKind | str] | None = None,
        authors: Iterable[str] | None = None,
        since: float | None = None,
        until: float | None = None,
        explain: bool = False,
        mode: str = "auto",
        memories: bool = False,
    ) -> list[SearchHit]:
        """Return the live items of the sessions that best match the words of a query, best first.

        The arguments are those of ``Session.search``; ``sessions`` limits it to those with these
        names. A session that the authorizer does not let the actor search is left out.
        With ``memories``, an active memory lends half of its score to the items that it rests on:
        what was said in other words is found by those of the memory.

        Raises:
            InvalidOptionError, EmbedderError, AccessDeniedError, CorruptValueError,
            StorageError: as for ``Session.search``.
        """
        self._need("search")
        return self._search(
            query,
            k=k,
            sessions=sessions,
            kinds=kinds,
            authors=authors,
            since=since,
            until=until,
            explain=explain,
            mode=mode,
            memories=memories,
        )

    def _search(self, query: object, **options: object) -> list[SearchHit]:
        asked = sessions.search_request(query, **options)
        return sessions.search_scope(self._engine, self._app, self._user, asked, self._access)

    def index_sessions(self) -> int:
        """Bring the search index up to date; return the number of items added to it.

        A search does so itself where much is missing. Each commit adds at most 256 items.

        Raises:
            ReadOnlyError, StorageError
        """
        self._need("index_sessions")
        return sessions.index_sessions(self._engine, self._app, self._user)

    def reindex(self) -> int:
        """Drop the search index and build it anew; return the number of items in it.

        Raises:
            ReadOnlyError, StorageError
        """
        self._need("reindex")
        return sessions.reindex(self._engine, self._app, self._user)

    def delete_session(self, session_id: str, *, lease: Lease | None = None) -> bool:
        """Delete a session; return True if it existed. Works on a full device.

        One commit makes it unreachable for everyone, then its rows are deleted, many per commit but
        never all of a long session. Rows shared with forks are deleted with the last fork.

        Args:
            session_id: its name.
            lease: the lease on it, which is deleted as well.

        Raises:
            LeaseHeldError, FencedError: it is leased, and not by ``lease``; it is unchanged.
            StorageError: the session is unchanged, or it is gone and its remaining rows are deleted
                with the next deletion, or when the file is opened for writing.
        """
        names.check_name(session_id, "session")
        self._need("delete_session", session_id)
        self._need_writable()
        if lease is not None:
            need_instance("lease", lease, Lease, what="the lease on it, or None")
        tenure = None if lease is None else lease.tenure
        return sessions.delete_session(
            self._engine, self._app, self._user, session_id, tenure=tenure
        )

    def kv(self, namespace: str) -> KeyValue:
        """Open ordered key/value storage under a namespace of this scope.

        Raises:
            InvalidOptionError: the namespace is not a non-empty string, or begins with U+0000 as
                those that memcore keeps for itself.
        """
        if isinstance(namespace, str) and namespace.startswith("\x00"):
            msg = f"namespace: {namespace[:40]!r} begins with U+0000, so it is memcore's own"
            raise InvalidOptionError(msg)
        return self._rows(namespace, gated=True, memory=False)

    @property
    def _passes(self) -> ScopeFilter | None:
        """Write filter of the scope; None: content is stored unfiltered."""
        write_filter = self._engine.write_filter
        if write_filter is None:
            return None
        if self._scope_filter is None:
            self._scope_filter = write_filter.at(self._app, self._user)
        return self._scope_filter

    def _rows(self, namespace: str, *, gated: bool, memory: bool) -> KeyValue:
        names.check_name(namespace, "namespace")
        self._need("kv", namespace)
        scope_filter = self._passes if gated else None

        def find(txn: ReadTxn) -> tuple[int, int] | None:
            scope = self._find(txn)
            number = None if scope is None else names.namespace_of(txn, scope, namespace)
            return None if scope is None or number is None else (scope, number)

        def ensure(txn: Txn) -> tuple[int, int]:
            scope = self._ensure(txn)
            return scope, names.ensure_namespace(txn, scope, namespace)

        engine, seed = self._engine, self._blob_seed()
        requests = self._requests(f"kv {namespace}")
        return kv.KeyValue(
            engine.store,
            find,
            ensure,
            now_ms=engine.now_ms,
            seed=seed,
            requests=requests,
            gate=None if scope_filter is None else kv.EntryFilter(scope_filter, namespace),
            memory=memory,
            label=f"{namespace!r} of {self._label}",
        )

    def _requests(self, about: str) -> Requests:
        """Return the idempotency requests about one object of this scope."""

        def find(txn: ReadTxn) -> tuple[int, int] | None:
            scope = self._find(txn)
            number = None if scope is None else names.namespace_of(txn, scope, kv.REQUESTS)
            return None if scope is None or number is None else (scope, number)

        def ensure(txn: Txn) -> tuple[int, int]:
            scope = self._ensure(txn)
            return scope, names.ensure_namespace(txn, scope, kv.REQUESTS)

        engine = self._engine
        return kv.Requests(find, ensure, now_ms=engine.now_ms, seed=engine.seed, about=about)

    @property
    def state(self) -> SharedState:
        """The user's state, seen by all their sessions in the application as ``user:NAME``."""
        self._need("state")
        label = f"user {self._user!r} in app {self._app!r}"
        return states.SharedState(
            self._engine.store,
            self._find,
            self._ensure,
            label=label,
            once=self._once("state"),
            scope_filter=self._passes,
        )

    def _once(self, about: str) -> Once:
        def closure(fn: Callable[[Txn], int], key: str, content: bytes) -> Callable[[Txn], int]:
            requests = self._requests(about)
            return requests.once(fn, requests.request(key, (content,)))

        return closure

    @property
    def app_state(self) -> SharedState:
        """The application's state, seen by the sessions of all its users as ``app:NAME``.

        It is all that users share: any handle of the application can read and write it.
        """
        self._need("app_state")
        app = self._app
        return states.SharedState(
            self._engine.store,
            lambda txn: names.app_scope_of(txn, app),
            lambda txn: names.ensure_app_scope(txn, app),
            label=f"app {app!r}",
            once=self._once("app_state"),
            scope_filter=None if self._passes is None else self._passes.shared[1],
        )

    @property
    def quarantine(self) -> Quarantine:
        """Quarantine of the scope's sessions: items that guards held back."""
        self._need("quarantine")
        return sessions.Quarantine(self._engine, self._find, self._label)

    @property
    def graph(self) -> GraphStore:
        """Checkpoints of graph runtimes in this scope."""
        self._need("graph")
        engine = self._engine
        return graph.GraphStore(
            engine.store,
            engine.graphs,
            self._find,
            self._ensure,
            now_ms=engine.now_ms,
            scope_filter=self._passes,
        )

    @property
    def blobs(self) -> BlobStore:
        """Content-addressed bytes of this scope."""
        self._need("blobs")
        store, seed = self._engine.store, self._blob_seed()
        return blobs.BlobStore(
            store,
            self._find,
            seed=seed,
            ensure=self._ensure,
            scope_filter=self._passes,
            label=self._label,
        )

    @property
    def memory(self) -> Memories:
        """Long-term memory of the user: statements with their sources, and playbooks."""
        self._need("memory")
        return sessions.open_memory(self._engine, self._app, self._user, access=self._access)

    def _blob_seed(self) -> int:
        return int.from_bytes(self._engine.seed[:8], "little")

    def _find(self, txn: ReadTxn) -> int | None:
        return names.scope_of(txn, self._app, self._user)

    def _ensure(self, txn: Txn) -> int:
        return names.ensure_scope(txn, self._app, self._user)

    def _need(self, action: str, name: str | None = None) -> None:
        """Ask the authorizer, if there is one, to allow an action.

        Raises:
            AccessDeniedError: the authorizer refused.
        """
        if self._access is not None:
            self._access.need(action, app=self._app, user=self._user, name=name)

    def _need_writable(self) -> None:
        if self._engine.store.read_only:
            msg = "the database is open read-only; open it for writing"
            raise ReadOnlyError(msg)

    # --- erasure, holds, memory -------------------------------------------------------------------

    def erase(
        self,
        *,
        compact: bool = True,
        verify: bool = True,
        override_hold: bool = False,
        probes: Iterable[str | bytes] = (),
        key: bytes | None = None,
        name_in_receipt: bool = False,
    ) -> ErasureReceipt:
        """Erase the user in this application: ``db.erase(user, app=app, ...)``."""
        self._need("erase")
        if override_hold:
            self._need("override_hold")
        return erase_user(
            self._engine,
            self._user,
            app=self._app,
            compact=compact,
            verify=verify,
            override_hold=override_hold,
            probes=probes,
            key=key,
            name_in_receipt=name_in_receipt,
        )

    def hold(self, *, reason: str) -> bool:
        """Put everything the user owns here under a legal hold; return True if it was under none.

        Until ``release``, erasing the user and deleting a session or thread are refused with
        HeldError, and sweeps and retention rules skip the scope.

        Raises:
            InvalidOptionError: the reason is not a text of 1 to 1,000 characters.
            ReadOnlyError, StorageError
        """
        self._need("hold")
        return retention.hold(self._engine, self._app, self._user, None, reason=reason)

    def release(self) -> bool:
        """Release the hold on the scope; return True if there was one. Holds on sessions stay."""
        self._need("release")
        return retention.release(self._engine, self._app, self._user, None)

    def holds(self) -> list[Hold]:
        """List the holds on the scope and on its sessions."""
        self._need("holds")
        return retention.holds(self._engine, self._app, self._user)

    @property
    def memory_opt_out(self) -> bool:
        """True if the user opted out of long-term memory."""
        self._need("memory_opt_out")
        return retention.opted_out(self._engine, self._app, self._user)

    def opt_out_memory(self, *, remove: bool = False) -> int:
        """Stop writing and searching the user's memories; return the number of rows removed.

        Memory services, graph stores and agents' files then store nothing and find nothing.
        Sessions, states and ``kv`` keep working.

        Args:
            remove: also remove existing memories. If it is cut off, the next sweep or open removes
                the rest of the user's own memory; call it again for what adapters store.

        Raises:
            HeldError: a legal hold covers memories to remove; nothing was changed.
            InvalidOptionError, ReadOnlyError, StorageError
        """
        checked_bool("remove", remove)
        self._need("opt_out_memory")
        retention.opt_out(self._engine, self._user, self._app, remove=remove)
        if not remove:
            return 0
        found = retention.memories(self._engine, self._app, self._user)
        removed = sessions.open_memory(self._engine, self._app, self._user).clear()
        removed += sum(self.kv(namespace).clear() for namespace in found)
        sessions.resume_removals(self._engine.store)  # of the indexes
        return removed

    def opt_in_memory(self) -> bool:
        """Undo ``opt_out_memory``; return True if the user had opted out."""
        self._need("opt_in_memory")
        return bool(retention.opt_in(self._engine, self._user, self._app))


# Functions for memcore's own adapters, kept off the handle: the holder of a scope can reach nothing
# beyond it.


def engine_of(scope: Scope | SessionRef) -> Engine:
    """Return the engine shared by all handles of the scope's database."""
    return scope.engine if isinstance(scope, SessionRef) else scope._engine  # noqa: SLF001


def rows_of(scope: Scope, namespace: str, *, memory: bool = False) -> KeyValue:
    """Open a namespace like ``scope.kv``, unfiltered; for adapters, which redact what they encode.

    ``memory`` marks it as long-term memory, which a user may opt out of.
    """
    return scope._rows(namespace, gated=False, memory=memory)  # noqa: SLF001 - this module's


def scope_filter_of(scope: Scope) -> ScopeFilter | None:
    """Return the scope's write filter; None: content is stored unfiltered."""
    return scope._passes  # noqa: SLF001 - this module's


def scope_beside(scope: Scope, *, app: str, user: str) -> Scope:
    """Open another scope of the same database for the same actor.

    Raises:
        InvalidOptionError: a name is invalid.
        AccessDeniedError: the authorizer refused access.
    """
    names.check_name(app, "app")
    names.check_name(user, "user")
    access = scope._access  # noqa: SLF001 - this module's
    if access is not None:
        access.need("scope", app=app, user=user)
    return Scope(engine_of(scope), app, user, access=access)


def sessions_under(scope: Scope, prefix: str) -> Iterator[SessionEntry]:
    """Iterate over the sessions whose names begin with a prefix and go on behind it.

    It costs what these cost, however many others the scope has.

    Raises:
        AccessDeniedError: the authorizer refused access.
    """
    scope._need("sessions")  # noqa: SLF001 - this module's
    for entry in scope._sessions(prefix):  # noqa: SLF001 - this module's
        name = entry.session_id
        if names.is_long_session_name(name) or not name.startswith(prefix):
            break
        yield entry
    # Names that are too long for a key are behind all others.
    for entry in scope._sessions("\U0010ffff"):  # noqa: SLF001 - this module's
        name = entry.session_id
        if names.is_long_session_name(name) and name.startswith(prefix):
            yield entry


def need_access(scope: Scope, action: str, name: str | None = None) -> None:
    """Ask the authorizer as the scope itself does, for a handle opened without going through it.

    Raises:
        AccessDeniedError: the authorizer refused access.
    """
    scope._need(action, name)  # noqa: SLF001 - this module's


def _checked_probes(probes: object) -> tuple[str | bytes, ...]:
    """Return the texts to look for in the file.

    Raises:
        InvalidOptionError: one is no text.
    """
    if isinstance(probes, str | bytes):
        return (probes,)
    found = tuple(checked_several("probes", probes, "texts"))
    for each in found:
        if not isinstance(each, str | bytes):
            msg = f"probes: expected texts, got {shown(each)}"
            raise InvalidOptionError(msg)
    return found


def erase_user(
    engine: Engine,
    user: str,
    *,
    app: str | None,
    compact: bool,
    verify: bool,
    override_hold: bool,
    probes: Iterable[str | bytes],
    key: bytes | None,
    name_in_receipt: bool,
    progress: Progress | None = None,
) -> ErasureReceipt:
    """Erase a user for an authorized caller; see ``Database.erase``.

    Raises:
        HeldError, InvalidOptionError, ReadOnlyError, CorruptValueError, StorageError
    """
    flags = {"compact": compact, "override_hold": override_hold, "named": name_in_receipt}
    for name, value in flags.items():
        checked_bool("name_in_receipt" if name == "named" else name, value)
    checked_callable("progress", progress)
    texts = _checked_probes(probes)
    asked = retention.ErasureRequest(user, app, probes=texts, key=key, **flags)
    judge = (
        maintenance.judge_for(engine, progress) if checked_bool("verify", verify) else structure_of
    )
    return retention.erase(engine, asked, judge)
