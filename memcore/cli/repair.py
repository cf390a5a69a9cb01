"""``memcore repair``: repair an illegal history by recording a view."""

from __future__ import annotations

from typing import Any

import click

import memcore
from memcore.cli.options import (
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
    writing,
    yes_option,
)
from memcore.cli.output import emit_json, print_table
from memcore.options import counted

__all__ = [
    "repair_session",
]


@verb("repair")
@session_argument
@store_option
@user_option
@app_option
@click.option(
    "--mode",
    default="drop",
    metavar="drop|synthesize",
    help="What becomes of calls without a result.",
)
@click.option("--close-open", is_flag=True, help="Give up the calls that are still open.")
@dry_run_option
@yes_option
@json_option
def repair_session(
    session_id: str,
    store: str,
    *,
    user: str | None,
    app: str | None,
    mode: str,
    close_open: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Repair orphaned results and unanswered calls in what contexts show.

    The log keeps every item; only contexts change.
    """
    need_choice(dry_run, yes, see="what is broken", do="repair")
    with reading(store) if dry_run else writing(store) as db:
        session = find_session(db, session_id, user=user, app=app)
        result = session.repair(mode, plan=dry_run, close_open=close_open)
    if as_json:
        emit_json("repair", {"dry_run": dry_run, **_fields(result)})
        return
    if result.status == "nothing":
        print("nothing to repair")
        return
    rows = [(each.action, each.seq or 0, each.call_id or "") for each in result.repairs]
    rows += [("given up", call.seq, call.call_id) for call in result.open_calls]
    print_table(("repair", "seq", "call"), rows)
    print(
        f"\n{counted(len(result.masks), 'item is', 'items are')} changed or left out in contexts; "
        f"{counted(result.tokens_before, 'token')} before, {result.tokens_after:,} after"
    )
    print("nothing was written" if result.view is None else "contexts are repaired from now on")


def _fields(result: memcore.RepairResult) -> dict[str, Any]:
    return {
        "status": result.status,
        "mode": result.mode,
        "repairs": [
            {"action": each.action, "seq": each.seq, "call_id": each.call_id}
            for each in result.repairs
        ],
        "masks": [mask._asdict() for mask in result.masks],
        "given_up": [{"call_id": call.call_id, "seq": call.seq} for call in result.open_calls],
        "tokens_before": result.tokens_before,
        "tokens_after": result.tokens_after,
        "view": None if result.view is None else result.view.number,
    }
