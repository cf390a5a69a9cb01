"""What sessions share, in an export: a line for the state of each user, and of each application.

```
{"memcore":1,"shared":{"app":"a","user":"u","values":{...}}}
{"memcore":1,"shared":{"app":"a","user":null,"values":{...}}}
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memcore import names
from memcore.codec import encode_json
from memcore.database.admission import admitted_fields
from memcore.database.exchange import VERSION, checked_fields, portable_json, refuse
from memcore.database.shared import label_of
from memcore.errors import InvalidItemError, InvalidOptionError
from memcore.session import Backing
from memcore.state import APP, USER, StateChange, values_at
from memcore.store.base import ReadTxn, Txn

__all__ = ["Owner", "export_shared", "import_shared", "is_shared"]

Owner = tuple[str, str]
"""Application and user; without a user it is the application itself."""
_FIELD = "shared"


def is_shared(found: object) -> bool:
    """Whether a parsed line holds what sessions share."""
    return isinstance(found, dict) and _FIELD in found


def export_shared(
    backing: Backing,
    *,
    user: str | None,
    app: str | None,
    form: str,
    left_out: Callable[[str], None] | None,
) -> Iterator[bytes]:
    """The lines of one user, or of all with those of the applications.

    Raises:
        InvalidOptionError: the format has no place for them, and ``left_out`` is None.
        CorruptValueError: a row is damaged.
    """

    def owners(txn: ReadTxn) -> list[Owner]:
        users = [(found, its) for _, found, its in names.scopes(txn) if user in (None, its)]
        apps = [] if user is not None else [(found, "") for _, found in names.app_scopes(txn)]
        return [owner for owner in (*users, *apps) if app in (None, owner[0])]

    for owner in backing.store.read(owners):
        values = backing.store.read(lambda txn, owner=owner: _values(txn, owner))  # type: ignore[misc]
        if not values:
            continue
        if form == "jsonl":
            body = {"app": owner[0], "user": owner[1] or None, "values": values}
            yield portable_json({"memcore": VERSION, _FIELD: body}) + b"\n"
        elif left_out is None:
            msg = f"left out {label_of(*owner)}; export it as jsonl, or say where to list what is "
            raise InvalidOptionError(msg + "left out (left_out=)")
        else:
            left_out(f"left out {label_of(*owner)}")


def _values(txn: ReadTxn, owner: Owner) -> dict[str, Any]:
    scope = _scope_of(txn, owner)
    found = {} if scope is None else values_at(txn, scope, 0)
    return {key: version.value() for key, version in found.items()}


def _scope_of(txn: ReadTxn, owner: Owner) -> int | None:
    app, user = owner
    return names.scope_of(txn, app, user) if user else names.app_scope_of(txn, app)


def import_shared(
    backing: Backing, found: Mapping[str, Any], rename: Callable[[Owner], Owner]
) -> None:
    """Store the fields of a line that the state lacks; what is there stays as it is.

    Raises:
        InvalidItemError: it is no such line, or the state has other values.
        InvalidUpdateError, InvalidOptionError: a name or a value is not legal.
    """
    if found.get("memcore") != VERSION:
        refuse(f"memcore: expected version {VERSION} of the export format")
    line = checked_fields(_FIELD, found[_FIELD])
    app, user, values = line["app"], line["user"], line["values"]
    names.check_name(app, "app")
    if user is not None:
        names.check_name(user, "user")
    owner = rename((app, user or ""))
    if user is not None:
        names.check_name(owner[1], "user")  # without one it would be for all to read
    if backing.border is not None:
        passage = backing.border.at(*owner)
        values = admitted_fields(passage, values, USER if owner[1] else APP)

    def closure(txn: Txn) -> list[str]:
        scope = _scope_of(txn, owner) or 0
        there = values_at(txn, scope, 0)
        others = [
            key
            for key in values.keys() & there.keys()
            if (there[key].body, there[key].flags) != encode_json(values[key])
        ]
        change = StateChange(None)
        change.update({key: value for key, value in values.items() if key not in there})
        writer = change.prepare(txn, scope, 0)
        if not writer.is_idle:
            ensure = names.ensure_scope(txn, *owner) if owner[1] else None
            writer.write(names.ensure_app_scope(txn, owner[0]) if ensure is None else ensure)
        return sorted(others)

    StateChange(None).update(values)  # refuses what is not legal before anything is stored
    others = backing.store.transact(closure)
    if others:
        shown = ", ".join(f"{key!r:.40}" for key in others[:5])
        msg = f"{label_of(*owner)} has other values of {shown}: they stay"
        raise InvalidItemError(msg)
