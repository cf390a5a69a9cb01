"""``memcore hold``: list, set and release legal holds."""

from __future__ import annotations

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
)
from memcore.cli.output import complain, emit_json, escape, print_table, timestamp
from memcore.retention.legal_holds import would_hold

__all__ = [
    "hold_data",
]


@verb("hold")
@store_option
@click.argument(
    "user", required=False, metavar="[USER]", help="Whose data; without: show all holds."
)
@app_option
@click.option("--session", metavar="SESSION", help="This session only.")
@click.option("--reason", metavar="TEXT", help="Set a hold, for this reason.")
@click.option("--release", is_flag=True, help="End the hold.")
@dry_run_option
@click.option("--yes", is_flag=True, help="Consent to --release.")
@json_option
def hold_data(
    store: str,
    user: str | None,
    *,
    app: str | None,
    session: str | None,
    reason: str | None,
    release: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show legal holds, or set or end one, in all of the user's applications or in one (--app).

    Data under a hold is neither deleted nor erased.
    """
    if reason is None and not release:
        _show(store, user, app, as_json=as_json)
        return
    if user is None or (release and reason is not None):
        complain("name the user, and say either --reason TEXT or --release")
        raise SystemExit(ExitCode.USAGE)
    if release:
        need_choice(dry_run, yes, see="which holds would end", do="let the data be deleted")
    with reading(store) if dry_run else writing(store) as db:
        warn_of_stranger(db, user, app)
        if dry_run:
            covered = would_hold(db.engine, user, app, session, reason=reason)
        elif reason is None:
            covered = db.release(user, app=app, session=session)
        else:
            covered = db.hold(user, reason=reason, app=app, session=session)
    if as_json:
        emit_json("hold", {"dry_run": dry_run, "released": release, "apps": covered})
    elif covered:
        done = "released" if release else "set"
        what = f"would be {done}" if dry_run else f"was {done}"
        print(escape(f"the hold {what}, in these applications: {', '.join(covered)}"))
        if dry_run:
            print("nothing was written")
    if release and not covered:
        complain("there was no such hold; 'memcore hold' shows all")
        raise SystemExit(ExitCode.NOT_FOUND)


def _show(store: str, user: str | None, app: str | None, *, as_json: bool) -> None:
    with reading(store) as db:
        found = db.holds(user=user, app=app)
    if as_json:
        rows = [
            {"app": h.app, "user": h.user, "session": h.session_id, "reason": h.reason,
             "since": h.since}
            for h in found
        ]  # fmt: skip
        emit_json("hold", {"holds": rows})
        return
    headings = ("user", "app", "session", "since", "reason")
    rows_ = [(h.user, h.app, h.session_id or "(all)", timestamp(h.since), h.reason) for h in found]
    print_table(headings, rows_, flexible=-1)
