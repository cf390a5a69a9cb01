"""Long-term memory in an export: a line for each entry with its versions, and for each outcome.

```
{"memcore":1,"memory":{"app":"a","user":"u","entry":{"id":1,"version":2,...},"versions":[{...}]}}
{"memcore":1,"memory":{"app":"a","user":"u","outcome":{"scenario":"s","name":"session",...}}}
```

Sources name their sessions. An import finds the items again in the sessions that it brought, under
the names that these have here; a memory that comes before its session is linked at the end.
Digests of forgotten texts are keyed by a secret of their file and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from memcore import memory
from memcore.errors import CorruptValueError, InvalidItemError, InvalidOptionError
from memcore.exchange.lines import (
    VERSION,
    checked_fields,
    portable_json,
    redacted_memory,
    refuse,
)
from memcore.log import Head, History
from memcore.log.read import stored_items
from memcore.rows import names
from memcore.rows.head import head_key
from memcore.session import Engine
from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "ArrivedMemory",
    "NamedMemory",
    "arrived_memory",
    "export_memory",
    "import_memories",
    "is_memory",
    "link_memories",
    "note_family",
]


Owner = tuple[str, str]
_FIELD: Final = "memory"
_PAGE: Final = 64


def is_memory(found: object) -> bool:
    """Return True if a parsed line holds a long-term memory."""
    return isinstance(found, dict) and _FIELD in found


def export_memory(
    engine: Engine,
    *,
    user: str | None,
    app: str | None,
    form: str,
    left_out: Callable[[str], None] | None,
) -> Iterator[bytes]:
    """Yield the lines of the memories of one user, or of all.

    Raises:
        InvalidOptionError: the format has no place for them, and ``left_out`` is None.
        CorruptValueError: a row is damaged.
    """
    owners = engine.store.read(
        lambda txn: [
            (scope, its_app, its_user)
            for scope, its_app, its_user in names.scopes(txn)
            if user in (None, its_user) and app in (None, its_app)
        ]
    )
    for scope, its_app, its_user in owners:
        after: int | None = 0
        while after is not None:
            page, after = engine.store.read(
                lambda txn, scope=scope, after=after: _page(  # type: ignore[misc]
                    txn, scope, after, engine.now_ms()
                )
            )
            if page and form != "jsonl":
                msg = f"left out the memories of user {its_user!r} in app {its_app!r}"
                if left_out is None:
                    more = "; export it as jsonl, or say where to list what is left out (left_out=)"
                    raise InvalidOptionError(msg + more)
                left_out(msg)
                break
            for body in page:
                told = {"app": its_app, "user": its_user, **body}
                yield portable_json({"memcore": VERSION, _FIELD: told}) + b"\n"


def _page(
    txn: ReadTxn, scope: int, after: int, now_ms: int
) -> tuple[list[dict[str, Any]], int | None]:
    """Return the bodies of the next lines, and the id after which to continue."""
    page: list[dict[str, Any]] = [] if after else list(memory.export_outcomes(txn, scope))
    for number, body in memory.export_entries(txn, scope, after, now_ms):
        page.append(body)
        if len(page) >= _PAGE:
            return page, number
    return page, None


class ArrivedMemory(NamedTuple):
    """Memory of a line, checked."""

    line: int
    """Number of the line."""
    file: Owner
    """Its owner in the file, in which sources name their sessions."""
    owner: Owner
    entry: tuple[memory.MemoryVersion, ...]
    """Its versions, the current one first; empty for an outcome."""
    outcome: dict[str, Any]

    @property
    def names(self) -> set[str]:
        """Names that its sources' sessions have in the file."""
        if not self.entry:
            name = self.outcome.get("name")
            return {name} if isinstance(name, str) else set()
        return {row.name for version in self.entry for row in version.sources}


def arrived_memory(
    engine: Engine, found: Mapping[str, Any], line: int, rename: Callable[[Owner], Owner]
) -> ArrivedMemory:
    """Check the memory of a line, redacted as it has to be.

    Raises:
        InvalidItemError: it is not such a line.
        InvalidOptionError, BlockedError
    """
    if found.get("memcore") != VERSION:
        refuse(f"memcore: expected version {VERSION} of the export format")
    told = checked_fields(_FIELD, found[_FIELD])
    file = told["app"], told["user"]
    app, user = rename(file)
    names.check_name(app, "app")
    names.check_name(user, "user")
    if engine.write_filter is not None:
        scope_filter = engine.write_filter.at(app, user)
        told = redacted_memory(
            told, lambda value: scope_filter.value(value, "memory", source="import")
        )
    if told["outcome"] is not None:
        return ArrivedMemory(line, file, (app, user), (), told["outcome"])
    try:
        entry = memory.arrived_entry(told["entry"], *told["versions"])
    except CorruptValueError as exc:
        msg = f"memory: expected an entry of an export: {exc}"
        raise InvalidItemError(msg) from exc
    return ArrivedMemory(line, file, (app, user), entry, {})


NamedMemory = tuple[ArrivedMemory, Mapping[str, str | None]]
"""A memory with the names that its sessions have here, by those in the file; None: such a session
was not imported."""


def import_memories(engine: Engine, arrived: Iterable[NamedMemory]) -> list[tuple[bool, str]]:
    """Store memories in one commit; return of each whether it was stored, and what is wrong.

    One that was here before is neither stored nor wrong.

    Raises:
        InvalidItemError, InvalidOptionError, OptedOutError: nothing was stored because of one.
    """

    def closure(txn: Txn) -> list[tuple[bool, str]]:
        batch = memory.ArrivalBatch()
        told = [_import(engine, txn, batch, *each) for each in arrived]
        batch.settle()
        return told

    return engine.store.transact(closure)


def _import(
    engine: Engine,
    txn: Txn,
    batch: memory.ArrivalBatch,
    each: ArrivedMemory,
    renamed: Mapping[str, str | None],
) -> tuple[bool, str]:
    scope = names.ensure_scope(txn, *each.owner)
    book = memory.Book(txn, scope, engine.seed)
    to = memory.Arrival(book, engine.drafts, renamed.get, engine.now_ms(), batch)
    if each.entry:
        app, user = each.owner
        ending = memory.import_entry(to, each.entry)
        wrong = (
            f"memory {each.entry[0].id} of user {user!r} in app {app!r} exists with other content, "
            "or another memory has its slot or its path: the stored one stays"
        )
        return ending == "stored", wrong if ending == "refused" else ""
    try:
        ending = memory.import_outcome(to, each.outcome)
    except CorruptValueError as exc:
        if exc.key:  # a row of the file
            raise
        msg = f"memory: expected an outcome of an export: {exc}"
        raise InvalidItemError(msg) from exc
    wrong = "memory: the session of an outcome is not here; import it before"
    return ending == "stored", wrong if ending == "refused" else ""


def link_memories(engine: Engine, owner: Owner, renamed: Mapping[str, str]) -> None:
    """Let memories that came before their sessions cite these.

    ``renamed``: the names that the imported sessions have here, by those in the file.
    """

    def waiting(txn: ReadTxn) -> list[int]:
        scope = names.scope_of(txn, *owner)
        return [] if scope is None else memory.unlinked_entries(txn, scope, renamed)

    def closure(txn: Txn, numbers: list[int]) -> None:
        scope = names.scope_of(txn, *owner)
        if scope is not None:
            book = memory.Book(txn, scope, engine.seed)
            batch = memory.ArrivalBatch()
            to = memory.Arrival(book, engine.drafts, renamed.get, engine.now_ms(), batch)
            memory.link_entries(to, numbers, renamed)

    found = engine.store.read(waiting)
    for start in range(0, len(found), _PAGE):
        engine.store.transact(partial(closure, numbers=found[start : start + _PAGE]))


def begins_alike(engine: Engine, one: tuple[str, str, str], other: tuple[str, str, str]) -> bool:
    """Return True if two sessions, by application, user and name, begin with the same item.

    A fork and its root do, to the microsecond. False if one of them is missing, empty or damaged.
    """

    def look(txn: ReadTxn) -> bool:
        first, second = _first_item(txn, *one), _first_item(txn, *other)
        return first is not None and first == second

    try:
        return engine.store.read(look)
    except CorruptValueError:  # check() reports it
        return False


def _first_item(txn: ReadTxn, app: str, user: str, name: str) -> tuple[int, float, Any] | None:
    """Return kind, time and message of a session's first item; None if there is none."""
    scope = names.scope_of(txn, app, user)
    number = None if scope is None else names.session_of(txn, scope, name)
    if scope is None or number is None:
        return None
    key = head_key(scope, number)
    value = txn.get(key)
    if value is None:
        return None
    history = History(Head.unpack(key, value).all_segments(txn, scope))
    for item, _ in stored_items(txn, scope, history, 0, 1):
        return item.kind, item.created_at, item.message
    return None


def note_family(engine: Engine, places: Iterable[tuple[str, str, str]]) -> None:
    """Note that sessions, by application, user and name, were forked from one, in short commits."""

    def closure(txn: Txn, page: list[tuple[str, str, str]]) -> None:
        found: dict[int, list[int]] = {}
        for app, user, name in page:
            scope = names.scope_of(txn, app, user)
            number = None if scope is None else names.session_of(txn, scope, name)
            if scope is not None and number is not None:
                found.setdefault(scope, []).append(number)
        for scope, sessions in found.items():
            memory.note_roots(txn, scope, sessions, engine.now_ms())

    first, *rest = sorted(places)
    for start in range(0, len(rest), _PAGE):
        engine.store.transact(partial(closure, page=[first, *rest[start : start + _PAGE]]))
