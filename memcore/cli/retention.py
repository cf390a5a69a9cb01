"""``memcore retention``: show and change the retention rules of a file."""

from __future__ import annotations

import json
from typing import Any

import click

from memcore import Database
from memcore.cli.options import (
    ExitCode,
    app_option,
    dry_run_option,
    find_session,
    json_option,
    need_choice,
    preset_or_file,
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
from memcore.retention import RETENTION_PRESETS, RetentionRule, read_rules, retention_rules

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

    show --dry-run shows what a sweep would remove now; set --dry-run the rules that would be set,
    without what a sweep would then remove.
    """
    if action == "show" and rules is not None:
        complain(f"show takes no rules: say 'retention set {rules}' to set them")
        raise SystemExit(ExitCode.USAGE)
    if action == "set":
        if rules is None:
            complain("set: name the rules: a preset, a file, or 'none'")
            raise SystemExit(ExitCode.USAGE)
        need_choice(dry_run, yes, see="the rules", do="set them")
        made = _rules(rules)
        with reading(store) if dry_run else writing(store) as db:
            where = _place(db, session, user=user, app=app)
            warn_of_stranger(db, user)
            if dry_run:
                terms = {} if made is None else {"rules": [rule.mapping() for rule in made]}
            else:
                db.retention.set(made, **where)
                terms = db.retention.terms(**where)
        _show(terms, where, dry_run=dry_run, as_json=as_json)
        return
    with reading(store) as db:
        if dry_run:
            report = db.sweep(dry_run=True)
            show_report(report.mapping(), verb="retention", as_json=as_json)
        else:
            where = _place(db, session, user=user, app=app)
            warn_of_stranger(db, user)
            _show(db.retention.terms(**where), where, as_json=as_json)


def _place(
    db: Database, session: str | None, *, user: str | None, app: str | None
) -> dict[str, str | None]:
    """Return where rules lie; a session is looked for as by every verb, and has to be there."""
    if session is not None:
        found = find_session(db, session, user=user, app=app)
        user, app = found.user, found.app
    return {"user": user, "app": app, "session": session}


def _rules(given: str) -> tuple[RetentionRule, ...] | None:
    if given == "none":
        return None
    return preset_or_file(given, RETENTION_PRESETS, preset=retention_rules, read=read_rules)


def _show(
    terms: dict[str, Any],
    where: dict[str, str | None],
    *,
    dry_run: bool | None = None,
    as_json: bool,
) -> None:
    """Print terms; ``dry_run``: whether they were only looked at, None: they were not to be set."""
    if as_json:
        told = {} if dry_run is None else {"dry_run": dry_run}
        emit_json("retention", {**told, "terms": terms})
        return
    if terms:
        print(json.dumps(terms, indent=2, ensure_ascii=False))
    elif any(where.values()):
        print("no rules of its own: those of its user, application and file apply")
    else:
        print("no rules: everything stays")
    if dry_run is not None:
        print("nothing was written" if dry_run else "set")
