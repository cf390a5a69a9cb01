"""Long-term memory in an export: a line for each entry with its versions, and for each outcome.

```
{"memcore":1,"memory":{"app":"a","user":"u","entry":{"id":1,"version":2,...},"versions":[{...}]}}
{"memcore":1,"memory":{"app":"a","user":"u","outcome":{"scenario":"s","name":"session",...}}}
```

Sources name their sessions. An import finds the items again if the sessions were imported before.
Digests of forgotten texts are keyed by a secret of their file and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from memcore import memory
from memcore.errors import CorruptValueError, InvalidItemError, InvalidOptionError
from memcore.exchange.lines import VERSION, checked_fields, portable_json, refuse
from memcore.rows import names
from memcore.session import Engine
from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "export_memory",
    "import_memory",
    "is_memory",
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
                lambda txn, scope=scope, after=after: _page(txn, scope, after)  # type: ignore[misc]
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


def _page(txn: ReadTxn, scope: int, after: int) -> tuple[list[dict[str, Any]], int | None]:
    """Return the bodies of the next lines, and the id after which to continue."""
    page: list[dict[str, Any]] = [] if after else list(memory.export_outcomes(txn, scope))
    for number, body in memory.export_entries(txn, scope, after):
        page.append(body)
        if len(page) >= _PAGE:
            return page, number
    return page, None


def import_memory(
    engine: Engine, found: Mapping[str, Any], rename: Callable[[Owner], Owner]
) -> None:
    """Store the memory of a line under its id; an equal one that is there stays.

    Raises:
        InvalidItemError: it is not such a line, or another memory has its id or its place.
        InvalidOptionError, BlockedError, OptedOutError
    """
    if found.get("memcore") != VERSION:
        refuse(f"memcore: expected version {VERSION} of the export format")
    line = checked_fields(_FIELD, found[_FIELD])
    app, user = rename((line["app"], line["user"]))
    names.check_name(app, "app")
    names.check_name(user, "user")
    if line["outcome"] is not None:
        _import_outcome(engine, (app, user), line["outcome"])
        return
    bodies = [line["entry"], *line["versions"]]
    if engine.write_filter is not None:
        scope_filter = engine.write_filter.at(app, user)
        bodies = [scope_filter.value(body, "memory", source="import") for body in bodies]
    try:
        arrived = memory.arrived_entry(*bodies)
    except CorruptValueError as exc:
        msg = f"memory: expected an entry of an export: {exc}"
        raise InvalidItemError(msg) from exc

    def closure(txn: Txn) -> bool:
        scope = names.ensure_scope(txn, app, user)
        return memory.import_entry(memory.Book(txn, scope, engine.seed), arrived)

    if not engine.store.transact(closure):
        msg = (
            f"memory {arrived[0].id} of user {user!r} in app {app!r} exists and is another one, or "
            "another value of its slot holds at that time: it stays"
        )
        raise InvalidItemError(msg)


def _import_outcome(engine: Engine, owner: Owner, body: dict[str, Any]) -> None:
    """Store the outcome of a line, if its session is here; one that is there stays.

    Raises:
        InvalidItemError: it is not such a line, or its session is not here.
        BlockedError
    """
    if engine.write_filter is not None:
        body = engine.write_filter.at(*owner).value(body, "memory", source="import")

    def closure(txn: Txn) -> bool:
        scope = names.ensure_scope(txn, *owner)
        return memory.import_outcome(memory.Book(txn, scope, engine.seed), body)

    try:
        done = engine.store.transact(closure)
    except CorruptValueError as exc:
        msg = f"memory: expected an outcome of an export: {exc}"
        raise InvalidItemError(msg) from exc
    if not done:
        msg = "memory: the session of an outcome is not here; import it before"
        raise InvalidItemError(msg)
