"""``memcore keys``: show the key file of an encrypted database and rotate its keys."""

from __future__ import annotations

import dataclasses

import click

import memcore
from memcore.cli.options import (
    ExitCode,
    app_option,
    dry_run_option,
    json_option,
    need_choice,
    reading,
    store_option,
    user_option,
    verb,
    warn_of_stranger,
    writing,
    yes_option,
)
from memcore.cli.output import complain, emit_json, escape
from memcore.options import counted
from memcore.privacy import key_provider
from memcore.rows import names
from memcore.store import count_sealed
from memcore.store.interface import ReadTxn

__all__ = [
    "show_keys",
]


@verb("keys")
@store_option
@click.option(
    "--rotate-to",
    metavar="KEY",
    help="Protect the key file by it: env:NAME, file:PATH, keyring:S/N.",
)
@click.option("--rotate-data", is_flag=True, help="Encrypt contents anew, with new data keys.")
@user_option
@app_option
@dry_run_option
@yes_option
@json_option
def show_keys(
    store: str,
    *,
    rotate_to: str | None,
    rotate_data: bool,
    user: str | None,
    app: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show the key file, or rotate keys. MEMCORE_KEY is the current key, or names its source.

    The exit code is 1 if older data keys had to stay because another process has the file open.
    """
    if (user is not None or app is not None) and not rotate_data:
        complain("--user and --app say whose data keys --rotate-data replaces: say that, too")
        raise SystemExit(ExitCode.USAGE)
    if rotate_to is None and not rotate_data:
        with reading(store) as db:
            _print(db.key_status(), as_json=as_json)
        return
    need_choice(dry_run, yes, see="what would be encrypted anew", do="change the keys")
    if dry_run:
        _show_plan(store, rotate_to, rotate_data=rotate_data, user=user, app=app, as_json=as_json)
        return
    done = None
    with writing(store) as db:
        if rotate_data:
            warn_of_stranger(db, user, app)
            done = db.rotate_data_keys(user=user, app=app)
        if rotate_to is not None:
            db.rotate_key(rotate_to)
    _tell(done, changed=rotate_to is not None, as_json=as_json)
    if done is not None and not done.finished:
        raise SystemExit(ExitCode.FINDINGS)


def _show_plan(
    store: str,
    rotate_to: str | None,
    *,
    rotate_data: bool,
    user: str | None,
    app: str | None,
    as_json: bool,
) -> None:
    """Show what a rotation would do; the new key is looked for, and its form checked."""
    values = 0
    with reading(store) as db:
        db.key_status()  # raises if the database is not encrypted
        warn_of_stranger(db, user, app)
        if rotate_data:
            values = db.engine.store.read(lambda txn: _count(txn, user, app))
    if rotate_to is not None:
        key_provider(rotate_to)
    if as_json:
        fields = {"dry_run": True, "key_changed": rotate_to is not None}
        emit_json("keys", fields | ({"values": values} if rotate_data else {}))
        return
    if rotate_data:
        print(f"{counted(values, 'value')} would be encrypted anew")
    if rotate_to is not None:
        print("the key file would be protected by the new key")
    print("nothing was written")


def _count(txn: ReadTxn, user: str | None, app: str | None) -> int:
    """Count the values that a rotation of data keys would encrypt."""
    return sum(
        count_sealed(txn, scope)
        for scope, its_app, its_user in names.all_scopes(txn)
        if user in (None, its_user) and app in (None, its_app)
    )


def _print(found: memcore.KeyStatus, *, as_json: bool) -> None:
    if as_json:
        emit_json("keys", dataclasses.asdict(found))
        return
    owners = counted(found.users, "user and application", "users and applications")
    print(escape(f"{found.key_file}: data keys of {owners}"))
    for app, user in found.unfinished:
        print(escape(f"user {user!r} in app {app!r}: several keys; --rotate-data goes on with it"))


def _tell(done: memcore.Rotation | None, *, changed: bool, as_json: bool) -> None:
    if as_json:
        fields = {} if done is None else dataclasses.asdict(done)
        emit_json("keys", {"dry_run": False, **fields, "key_changed": changed})
        return
    if done is not None:
        left = "" if done.finished else "; the older keys stay: another process has the file open"
        print(f"{counted(done.values, 'value')} encrypted anew{left}")
    if changed:
        print("the key file is protected by the new key")
