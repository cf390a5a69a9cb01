"""``memcore audit``: verify, show, anchor and cut the audit of a file."""

from __future__ import annotations

import errno
import os
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import click

import memcore
from memcore.audit.start import key_in
from memcore.audit.verify import need_audited
from memcore.cli.options import (
    DAYS_MAX,
    ExitCode,
    FiniteRange,
    InOrder,
    app_option,
    dry_run_option,
    find_session,
    json_option,
    need_apart,
    need_choice,
    need_directory,
    reading,
    store_option,
    user_option,
    verb,
    writing,
    yes_option,
)
from memcore.cli.output import complain, emit_json, escape, print_table, progress, timestamp, warn
from memcore.database.audit import would_cut_audit
from memcore.options import counted

__all__ = [
    "verbs",
]


verbs = InOrder(
    "audit",
    help="Prove a database by its audit. The key: --key-file, or MEMCORE_AUDIT_KEY (hexadecimal), "
    "or MEMCORE_AUDIT_KEY_FILE.",
    no_args_is_help=True,
)

key_file_option = click.option(
    "--key-file", metavar="FILE", help="The audit key: bytes or hexadecimal digits."
)
anchor_path_option = click.option(
    "--anchor", metavar="FILE", help="The file of anchors, kept outside of the database."
)


def _audit(key_file: str | None, **options: Any) -> memcore.Audit:
    if key_file is not None and not os.path.lexists(key_file):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), key_file)
    if key_file is not None:
        return memcore.Audit(key=key_in(key_file), **options)
    found = memcore.Audit.from_environment(**options)
    if found is None:
        complain(
            "the audit key is needed: --key-file, or the variable MEMCORE_AUDIT_KEY_FILE or "
            "MEMCORE_AUDIT_KEY"
        )
        raise SystemExit(ExitCode.REFUSED)
    return found


@verb("verify", of=verbs)
@store_option
@key_file_option
@anchor_path_option
@json_option
def verify(store: str, *, key_file: str | None, anchor: str | None, as_json: bool) -> None:
    """Verify every entry, and every row by its entry.

    The first bad entry of each chain is reported.

    Findings are listed on stdout; the exit code is then 1.
    """
    if key_file is None:  # a missing key is no trouble where there is no audit
        with reading(store) as db:
            db.engine.store.read(lambda txn: need_audited(txn, store))
    key = _audit(key_file).key_bytes()
    with reading(store) as db, progress("verifying") as report:
        found = db.verify_audit(key=key, anchor=anchor, progress=report)
    if as_json:
        emit_json("audit verify", {"ok": found.ok, **asdict(found)})
    else:
        for problem in found.anchor_problems:
            print(escape(f"the anchor: {problem}"))
        for finding in found.findings:
            print(escape(str(finding)))
        count = len(found.findings) + len(found.anchor_problems)
        print(
            f"{counted(count, 'finding') if count else 'ok'}: {counted(found.chains, 'chain')}, "
            f"{counted(found.entries, 'entry', 'entries')}, {counted(found.rows, 'row')}, "
            f"{counted(found.anchors, 'anchor')}"
        )
    if not found.entries:
        warn("not one entry was made with this key: is it the right one?")
    if not found.is_anchored:
        warn("without --anchor, the loss of the end of a chain cannot be detected")
    if not found.ok:
        raise SystemExit(ExitCode.FINDINGS)


@verb("show", of=verbs)
@store_option
@click.argument(
    "session", required=False, metavar="[SESSION]", help="Without: the user's, or the file's."
)
@user_option
@app_option
@json_option
def show(
    store: str, session: str | None, *, user: str | None, app: str | None, as_json: bool
) -> None:
    """List the entries of a chain: the recorded operations and times.

    Needs no key and proves nothing.
    """
    with reading(store) as db:
        db.engine.store.read(lambda txn: need_audited(txn, store))
        if session is not None:
            found = find_session(db, session, user=user, app=app)
            user, app = found.user, found.app
        elif user is not None:
            app = app or "default"
        entries = list(db.audit_entries(session, user=user, app=app))
    if as_json:
        emit_json("audit show", {"entries": [asdict(entry) for entry in entries]})
        return
    print_table(
        ("entry", "time", "what", "row"),
        [(e.number, timestamp(e.at_ms / 1000), e.operation, e.row) for e in entries],
        flexible=3,
    )


@verb("anchor", of=verbs)
@store_option
@click.option("--anchor", required=True, metavar="FILE", help="Where to append.")
@key_file_option
@click.option("--reset", is_flag=True, help="Begin anew: give up the anchors before. Needs --yes.")
@yes_option
@json_option
def anchor(
    store: str, *, anchor: str, key_file: str | None, reset: bool, yes: bool, as_json: bool
) -> None:
    """Write an anchor: the current end of every chain. Nothing is written to the database."""
    if reset and not yes:
        complain("--reset gives up what was anchored before: say --yes, too")
        raise SystemExit(ExitCode.REFUSED)
    need_apart(anchor, store)
    need_directory(anchor)
    key = _audit(key_file).key_bytes()
    with reading(store) as db:
        count = db.anchor_audit(anchor, key=key, reset=reset)
    if as_json:
        emit_json("audit anchor", {"chains": count, "anchor": anchor, "reset": reset})
    else:
        print(f"anchored {counted(count, 'chain')}")


@verb("cut", of=verbs)
@store_option
@click.option(
    "--older-than-days",
    type=FiniteRange(min=0, max=DAYS_MAX),
    required=True,
    help="Entries as old as this go.",
)
@key_file_option
@anchor_path_option
@dry_run_option
@yes_option
@json_option
def cut(
    store: str,
    *,
    older_than_days: float,
    key_file: str | None,
    anchor: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete old audit entries. What they prove about existing rows stays proven."""
    need_choice(dry_run, yes, see="how many entries would go", do="forget them")
    audit = _audit(key_file, anchor=anchor)
    seconds = timedelta(days=older_than_days).total_seconds()
    with reading(store) as db:  # opening with an audit begins one
        db.engine.store.read(lambda txn: need_audited(txn, store))
        count = would_cut_audit(db.engine, audit.key_bytes(), seconds) if dry_run else 0
    if not dry_run:
        with writing(store, audit=audit) as db:
            count = db.cut_audit(older_than_seconds=seconds)
    if as_json:
        emit_json("audit cut", {"dry_run": dry_run, "entries": count})
    elif dry_run:
        print(f"{counted(count, 'entry', 'entries')} would be cut; nothing was written")
    else:
        print(f"cut {counted(count, 'entry', 'entries')}")
