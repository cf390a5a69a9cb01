"""``memcore audit``: verify, show, anchor and cut the audit of a file."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any

import typer

import memcore
from memcore.audit.start import key_in
from memcore.cli.options import (
    App,
    AsJson,
    ExitCode,
    StorePath,
    User,
    Yes,
    find_session,
    is_judged,
    reading,
)
from memcore.cli.output import complain, emit_json, escape, print_table, progress, timestamp, warn

__all__ = [
    "verbs",
]


verbs = typer.Typer(
    help="Prove a database by its audit. The key: --key-file, or MEMCORE_AUDIT_KEY (hexadecimal), "
    "or MEMCORE_AUDIT_KEY_FILE.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_EPILOG = "Exit codes: memcore --help."
KeyFile = Annotated[
    str | None,
    typer.Option("--key-file", metavar="FILE", help="The audit key: bytes or hexadecimal digits."),
]
AnchorPath = Annotated[
    str | None, typer.Option("--anchor", metavar="FILE", help="The anchor outside of the file.")
]


def _audit(key_file: str | None, **options: Any) -> memcore.Audit:
    if key_file is not None:
        return memcore.Audit(key=key_in(key_file), **options)
    found = memcore.Audit.from_environment(**options)
    if found is None:
        complain("the audit key is needed: --key-file, or the variable MEMCORE_AUDIT_KEY")
        raise typer.Exit(ExitCode.USAGE)
    return found


@verbs.command("verify", epilog=_EPILOG)
def verify(
    store: StorePath,
    *,
    key_file: KeyFile = None,
    anchor: AnchorPath = None,
    as_json: AsJson = False,
) -> None:
    """Verify every entry, and every row by its entry; report the first bad one of each chain.

    Findings are listed on stdout; the exit code is then 1.
    """
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
            f"{f'{count:,} findings' if count else 'ok'}: {found.chains:,} chains, "
            f"{found.entries:,} entries, {found.rows:,} rows, {found.anchors:,} anchors"
        )
    if not found.entries:
        warn("not one entry was made with this key: is it the right one?")
    if not found.is_anchored:
        warn("without --anchor, chains that were cut off at their end do not show")
    if not found.ok:
        raise typer.Exit(ExitCode.FINDINGS)


@verbs.command("show", epilog=_EPILOG)
def show(
    store: StorePath,
    session: Annotated[
        str | None, typer.Argument(metavar="[SESSION]", help="Without: the user's, or the file's.")
    ] = None,
    *,
    user: User = None,
    app: App = None,
    as_json: AsJson = False,
) -> None:
    """List the entries of a chain: the recorded operations and times.

    Needs no key and proves nothing.
    """
    with reading(store) as db:
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


@verbs.command("anchor", epilog=_EPILOG)
def anchor(
    store: StorePath,
    *,
    anchor: Annotated[str, typer.Option("--anchor", metavar="FILE", help="Where to append.")],
    key_file: KeyFile = None,
    reset: Annotated[
        bool,
        typer.Option("--reset", help="What was anchored before binds no more. Needs --yes."),
    ] = False,
    yes: Yes = False,
) -> None:
    """Write an anchor: the current end of every chain. Nothing is written to the database."""
    if reset and not yes:
        complain("--reset gives up what was anchored before: say --yes, too")
        raise typer.Exit(ExitCode.REFUSED)
    key = _audit(key_file).key_bytes()
    with reading(store) as db:
        count = db.anchor_audit(anchor, key=key, reset=reset)
    print(f"anchored {count:,} chains")


@verbs.command("cut", epilog=_EPILOG)
def cut(
    store: StorePath,
    *,
    older_than_days: Annotated[float, typer.Option(min=0, help="Entries as old as this go.")],
    key_file: KeyFile = None,
    anchor: AnchorPath = None,
    yes: Yes = False,
) -> None:
    """Delete old audit entries. What they prove about existing rows stays proven."""
    if not yes:
        complain("say --yes to forget entries of the audit")
        raise typer.Exit(ExitCode.REFUSED)
    audit = _audit(key_file, anchor=anchor)
    with memcore.open(store, create=False, verify=is_judged(), audit=audit) as db:
        seconds = timedelta(days=older_than_days).total_seconds()
        count = db.cut_audit(older_than_seconds=seconds)
    print(f"cut {count:,} entries")
