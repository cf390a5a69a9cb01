"""Memory of a user as sessions see it: its handle, and what removed items take with them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from memcore import kv, memory
from memcore import session as sessions
from memcore.access import Access
from memcore.rows import names
from memcore.session.engine import Engine
from memcore.store.interface import ReadTxn, Txn

if TYPE_CHECKING:
    from memcore.memory import Memories

__all__ = [
    "forget_items",
    "forget_session",
    "move_items",
    "open_memory",
]


def open_memory(
    engine: Engine, app: str, user: str, session: str | None = None, *, access: Access | None = None
) -> Memories:
    """Return the memory of a user in an application; plain seqs refer to ``session``.

    ``access`` is asked about grants; None: everything is allowed.
    """

    # By name in each transaction: after an erasure the user's name gets another number.
    def find(txn: ReadTxn) -> int | None:
        return names.scope_of(txn, app, user)

    def ensure(txn: Txn) -> int:
        return names.ensure_scope(txn, app, user)

    def find_requests(txn: ReadTxn) -> tuple[int, int] | None:
        scope = find(txn)
        number = None if scope is None else names.namespace_of(txn, scope, kv.REQUESTS)
        return None if scope is None or number is None else (scope, number)

    def ensure_requests(txn: Txn) -> tuple[int, int]:
        scope = ensure(txn)
        return scope, names.ensure_namespace(txn, scope, kv.REQUESTS)

    requests = kv.Requests(
        find_requests, ensure_requests, now_ms=engine.now_ms, seed=engine.seed, about="memory"
    )
    write_filter = engine.write_filter
    return memory.Memories(
        engine.store,
        find,
        ensure,
        now_ms=engine.now_ms,
        seed=engine.seed,
        drafts=engine.drafts,
        requests=requests,
        scope_filter=None if write_filter is None else write_filter.at(app, user),
        indexes=engine.indexes,
        session=session,
        read_only=engine.store.read_only,
        uses=engine.memory_uses,
        owner=(app, user),
        embedding=None if engine.embedder is None else sessions.embedding_of(engine),
        grants=lambda: memory.Grants(
            engine.store,
            find,
            now_ms=engine.now_ms,
            owner=(app, user),
            access=access,
            redactor=partial(_redactor, engine),
            read_only=engine.store.read_only,
            indexes=engine.indexes,
        ),
    )


def _redactor(engine: Engine, policy: str, place: tuple[str, str]) -> Callable[[Any], Any]:
    """Return what redacts JSON as data of an application and user, by a policy's name."""
    redacts = sessions.redacts_at(engine, policy, (*place, None))
    return lambda value: redacts.value(value)[0]


# Whatever removes or replaces items calls one of these in the same transaction.


def forget_session(txn: Txn, engine: Engine, scope: int, session: int) -> None:
    """Take a session that is being deleted from all memories."""
    memory.forget_items(memory.Book(txn, scope, engine.seed), session, engine.now_ms())


def forget_items(txn: Txn, engine: Engine, scope: int, session: int, seqs: Iterable[int]) -> int:
    """Take items whose contents are being replaced, such as expired ones, from all memories.

    Returns how many memories were forgotten with them.
    """
    book = memory.Book(txn, scope, engine.seed)
    return memory.forget_items(book, session, engine.now_ms(), seqs=seqs)


def would_forget(
    txn: ReadTxn,
    engine: Engine,
    scope: int,
    session: int,
    seqs: Collection[int] | None = None,
    *,
    also: Mapping[int, Collection[int]] | None = None,
) -> list[int]:
    """Return the ids of the memories that go with these items, or with the whole session.

    ``also``: items by session that are to go, too.
    """
    book = memory.Book(txn, scope, engine.seed)  # type: ignore[arg-type]
    return memory.would_forget(book, session, seqs=seqs, also=also or {})


def move_items(
    txn: Txn, engine: Engine, place: tuple[int, int], to: int, *, moved: Mapping[int, int]
) -> None:
    """Let memories follow items to the session that replaces theirs.

    ``moved`` maps their old seqs to the new ones.
    """
    scope, session = place
    memory.move_sources(memory.Book(txn, scope, engine.seed), session, to, moved)
