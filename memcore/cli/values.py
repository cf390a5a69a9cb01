"""``memcore kv`` and ``state``: values under keys of a user, and fields of a session."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import click

import memcore
from memcore.cli.options import (
    ExitCode,
    app_option,
    dry_run_option,
    find_session,
    json_option,
    need_choice,
    reading,
    session_argument,
    store_option,
    user_option,
    verb,
    warn_of_stranger,
    writing,
    yes_option,
)
from memcore.cli.output import clip, complain, emit_json, escape, print_table
from memcore.limits import JSON_DEPTH_MAX
from memcore.options import counted

__all__ = [
    "show_state",
    "show_values",
]


_SHOWN_CHARS = 96
_BYTES_SHOWN = 16
set_to_option = click.option("--set", "set_to", metavar="JSON", help="Store this value.")
delete_option = click.option("--delete", is_flag=True, help="Delete the value.")


@verb("kv")
@click.argument("namespace", metavar="NAMESPACE", help="Of the user's keys.")
@store_option
@click.argument("key", required=False, metavar="[KEY]", help="One value; without: all of them.")
@click.option("--user", default="default", metavar="USER", help="Whose values.")
@click.option("--app", default="default", metavar="APP", help="In which application.")
@set_to_option
@delete_option
@dry_run_option
@yes_option
@json_option
def show_values(
    namespace: str,
    store: str,
    key: str | None,
    *,
    user: str,
    app: str,
    set_to: str | None,
    delete: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show a user's key/values in a namespace, or store or delete one."""
    changes = _asked(key, set_to, delete=delete, dry_run=dry_run, yes=yes)
    with writing(store) if changes and not dry_run else reading(store) as db:
        warn_of_stranger(db, user, app, may_be_new=set_to is not None)
        rows = db.scope(user=user, app=app).kv(namespace)
        if changes and key is not None:
            found = _changed(rows, key, set_to, dry_run=dry_run)
        else:
            known = dict(rows.scan()) if key is None else {key: rows.get(key, rows)}
            found = known if key is None else {key: _one(known[key], rows, key)}
    _show("kv", found, key, dry_run if changes else None, as_json=as_json)


@verb("state")
@session_argument
@store_option
@click.argument("field", required=False, metavar="[FIELD]", help="One value; without: all of them.")
@user_option
@app_option
@set_to_option
@delete_option
@dry_run_option
@yes_option
@json_option
def show_state(
    session_id: str,
    store: str,
    field: str | None,
    *,
    user: str | None,
    app: str | None,
    set_to: str | None,
    delete: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show the state of a session, shared fields of its user and app included; or change one."""
    changes = _asked(field, set_to, delete=delete, dry_run=dry_run, yes=yes)
    if changes and field is not None and field.startswith("temp:"):
        msg = f"{field[:80]!r}: temporary fields are kept by a program's handle and never stored"
        raise memcore.InvalidOptionError(msg)
    with writing(store) if changes and not dry_run else reading(store) as db:
        state = find_session(db, session_id, user=user, app=app).state
        if changes and field is not None:
            found = _changed(state, field, set_to, dry_run=dry_run)
        else:
            known = state.all()
            found = known if field is None else {field: _one(known.get(field, known), known, field)}
    _show("state", found, field, dry_run if changes else None, as_json=as_json)


def _asked(key: str | None, set_to: str | None, *, delete: bool, dry_run: bool, yes: bool) -> bool:
    """Return True if a value is to be changed; end the program unless that was said in full."""
    changes = set_to is not None or delete
    if changes and (not key or (set_to is not None and delete)):
        complain("name one value, and say either --set JSON or --delete")
        raise SystemExit(ExitCode.USAGE)
    if set_to is not None:
        _parsed(set_to)  # a malformed value is told before anything is asked
    if changes:
        need_choice(dry_run, yes, see="what would be changed", do="change what is stored")
    return changes


def _changed(of: Any, key: str, set_to: str | None, *, dry_run: bool) -> dict[str, Any]:
    """Store or delete a value, unless it is a dry run; return what is there then."""
    if set_to is None:
        _one(of.get(key, of), of, key)
        if not dry_run:
            of.delete(key)
        return {}
    value = _parsed(set_to)
    if not dry_run:
        of.put(key, value)
    return {key: value}


def _parsed(set_to: str) -> Any:
    try:
        return json.loads(set_to)
    except RecursionError as exc:
        msg = f"--set: nested deeper than the {JSON_DEPTH_MAX} levels that can be stored"
        raise memcore.InvalidOptionError(msg) from exc
    except ValueError as exc:
        msg = f"--set: expected JSON (a text needs quotes: '\"text\"'), got {set_to[:80]!r}: {exc}"
        raise memcore.InvalidOptionError(msg) from exc


def _one(found: Any, missing: Any, key: str) -> Any:
    if found is missing:
        msg = f"there is no value {key[:80]!r}"
        raise memcore.NotFoundError(msg)
    return found


def _show(
    command: str, found: dict[str, Any], key: str | None, dry_run: bool | None, *, as_json: bool
) -> None:
    """Print values; ``dry_run``: whether their change was only planned, None: none was asked."""
    if as_json:
        values = {
            name: _packed(value) if isinstance(value, bytes) else value
            for name, value in found.items()
        }
        told = {} if dry_run is None else {"dry_run": dry_run}
        emit_json(command, {**told, "values": values})
        return
    shown = {name: _shown(value) for name, value in found.items()}
    if key is not None and dry_run is None:
        for line in json.dumps(shown[key], ensure_ascii=False, indent=2).splitlines():
            print(escape(line))
    elif dry_run is not None:
        done = "stored" if found else "deleted"
        print(f"would be {done}; nothing was written" if dry_run else done)
    else:
        rows = ((name, clip(json.dumps(value, ensure_ascii=False), _SHOWN_CHARS))
                for name, value in shown.items())  # fmt: skip
        print_table(("key", "value"), rows, flexible=1)


def _packed(value: bytes) -> dict[str, Any]:
    return {"bytes": len(value), "base64": b64encode(value).decode()}


def _shown(value: Any) -> Any:
    """Return a value as it is shown: of bytes, how many they are, and the first ones."""
    if not isinstance(value, bytes):
        return value
    begin = value[:_BYTES_SHOWN].hex(" ")
    return f"<{counted(len(value), 'byte')}: {begin}{' …' * (len(value) > _BYTES_SHOWN)}>"
