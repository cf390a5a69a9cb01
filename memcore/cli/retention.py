"""``memcore retention``: show and change the retention rules of a file."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from memcore.cli.options import (
    ExitCode,
    app_option,
    dry_run_option,
    find_session,
    json_option,
    reading,
    store_option,
    user_option,
    verb,
    warn_of_stranger,
    writing,
    yes_option,
)
from memcore.cli.output import complain, emit_json
from memcore.cli.sweep import show_report
from memcore.retention import read_rules, retention_rules

__all__ = [
    "keep",
]


@verb("retention")
@store_option
@click.argument(
    "action",
    type=click.Choice(["show", "set"]),
    default="show",
    metavar="[ACTION]",
    help="show the rules, or set them.",
)
@click.argument(
    "rules",
    required=False,
    metavar="[RULES]",
    help="A preset, a TOML or JSON file, or 'none' to take them back.",
)
@user_option
@app_option
@click.option("--session", metavar="SESSION", help="Those of this session.")
@dry_run_option
@yes_option
@json_option
def keep(
    store: str,
    action: str,
    rules: str | None,
    *,
    user: str | None,
    app: str | None,
    session: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show or set the retention rules of the database, of a user, or of a session.

    --dry-run shows what a sweep would remove now.
    """
    where = {"user": user, "app": app, "session": session}
    if action == "set":
        if dry_run:
            complain("set them with --yes; then 'memcore sweep --dry-run' shows what they remove")
            raise SystemExit(ExitCode.USAGE)
        if rules is None or not yes:
            complain(
                "set: name the rules and say --yes; 'memcore sweep --dry-run' shows what is due"
            )
            raise SystemExit(ExitCode.USAGE if rules is None else ExitCode.REFUSED)
        with writing(store) as db:
            warn_of_stranger(db, user)
            db.retention.set(_rules(rules), **where)
            _show(db.retention.terms(**where), as_json=as_json)
        return
    with reading(store) as db:
        if dry_run:
            report = db.sweep(dry_run=True)
            show_report(report.mapping(), verb="retention", as_json=as_json)
            return
        if session is not None:
            find_session(db, session, user=user, app=app)  # a mistyped name is an error
        _show(db.retention.terms(**where), as_json=as_json)


def _rules(given: str) -> Any:
    if given == "none":
        return None
    if os.path.exists(given):
        return read_rules(given)
    return retention_rules(given)


def _show(terms: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit_json("retention", {"terms": terms})
        return
    print(
        json.dumps(terms, indent=2, ensure_ascii=False) if terms else "no rules: everything stays"
    )
