"""``memcore erase``: delete all data of a user, including the bytes in free pages."""

from __future__ import annotations

from typing import Any

import click

from memcore.cli.options import (
    ExitCode,
    app_option,
    dry_run_option,
    json_option,
    need_choice,
    reading,
    store_option,
    verb,
    warn_of_stranger,
    writing,
    yes_option,
)
from memcore.cli.output import (
    complain,
    emit_json,
    escape,
    print_pairs,
    progress,
    said_here,
    timestamp,
)
from memcore.retention import ErasureReceipt

__all__ = [
    "erase_user",
]


@verb("erase")
@store_option
@click.argument("user", required=False, metavar="[USER]", help="Whom to erase.")
@app_option
@click.option("--finish", is_flag=True, help="Do what earlier erasures left undone.")
@click.option(
    "--compact/--no-compact", default=True, help="Have the bytes leave, or --finish later."
)
@click.option("--override-hold", is_flag=True, help="Erase even what is under a legal hold.")
@dry_run_option
@yes_option
@json_option
def erase_user(
    store: str,
    user: str | None,
    *,
    app: str | None,
    finish: bool,
    compact: bool,
    override_hold: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Erase a user in all applications, or in one, and print the signed receipt.

    The exit code is 1 if the erasure is incomplete; the receipt lists what remains and why.
    """
    if (user is None) != finish:
        both = "--finish finishes all erasures: name no user with it"
        complain(both if finish else "name the user to erase, or say --finish")
        raise SystemExit(ExitCode.USAGE)
    need_choice(dry_run, yes, see="what would go", do="erase")
    if dry_run:
        _show_plan(store, user, app, as_json=as_json)
        return
    with writing(store) as db, progress("checking the copy") as report:
        warn_of_stranger(db, user, app)
        if user is None:
            done = db.finish_erasures(progress=report)
        else:
            done = [
                db.erase(
                    user, app=app, compact=compact, override_hold=override_hold, progress=report
                )
            ]
    if as_json:
        emit_json("erase", {"dry_run": False, "receipts": [each.fields() for each in done]})
    else:
        for each in done:
            _show(each)
        if not done:
            print("nothing is left to be done")
    if not all(each.bytes_gone for each in done):
        raise SystemExit(ExitCode.FINDINGS)


def _show_plan(store: str, user: str | None, app: str | None, *, as_json: bool) -> None:
    with reading(store) as db:
        warn_of_stranger(db, user, app)
        found: dict[str, Any] = {}
        if user is None:
            found["pending"] = db.pending_erasures()
        else:
            found = dict(db.would_erase(user, app=app))
            found["holds"] = len(db.holds(user=user, app=app))
    if as_json:
        emit_json("erase", {"dry_run": True, **found})
        return
    print_pairs([(name.replace("_", " "), count) for name, count in found.items()])
    if found.get("holds"):
        print("\nunder a legal hold: --yes is refused without --override-hold")
    print("\nnothing was written")


def _show(receipt: ErasureReceipt) -> None:
    told: list[tuple[str, object]] = [
        ("receipt", receipt.id),
        ("user (keyed digest)", receipt.user_digest),
        ("scopes", receipt.scopes),
        *((name.replace("_", " "), count) for name, count in receipt.counts.items()),
        ("method", ", ".join(receipt.method) or "none needed"),
        ("bytes gone", receipt.bytes_gone),
        ("bytes before", receipt.bytes_before),
        ("bytes after", receipt.bytes_after),
        ("asked", timestamp(receipt.asked_at)),
        ("signature", receipt.signature),
    ]
    print_pairs(told)
    for what in receipt.pending:
        print(escape(f"still to be done: {said_here(what)}"))
    if receipt.pending:
        print("then run: memcore erase --finish --yes")
    for what in receipt.out_of_reach:
        print(escape(f"out of reach: {what}"))
