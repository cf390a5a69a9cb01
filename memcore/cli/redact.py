"""``memcore redact``: report the findings of a redaction policy, or replace them in stored data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from memcore.cli.options import (
    REDACTIONS,
    ExitCode,
    app_option,
    dry_run_option,
    former_policy_option,
    json_option,
    need_choice,
    reading,
    renamed,
    store_option,
    user_option,
    verb,
    warn_of_stranger,
    yes_option,
)
from memcore.cli.options import writing as opened
from memcore.cli.output import emit_json, print_table, warn
from memcore.store.interface import SERVER_SCHEMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcore import Database, RedactionPolicy
    from memcore.database.redact import Finding
    from memcore.privacy.write_filter import Redacts

__all__ = [
    "redact_store",
]


@verb("redact")
@store_option
@click.option(
    "--redact",
    metavar="PRESET",
    help=f"What to look for: {REDACTIONS} (default).",
)
@former_policy_option
@user_option
@app_option
@dry_run_option
@yes_option
@json_option
def redact_store(
    store: str,
    *,
    redact: str | None,
    former: str | None,
    user: str | None,
    app: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Count personal data by class and session, or replace it with placeholders.

    --yes rewrites the items and views of sessions, for all forks that share them, states with their
    history, names and meta of checkpoints, and key/value entries with their contents, including
    expired ones; then it recounts the tokens of these sessions. Memories that rest on rewritten
    items, and on nothing else, are forgotten. It resumes an interrupted run. Data that is damaged,
    under a legal hold, nested too deeply or written by adapters is reported and
    left as it is. Not examined are blobs and graph checkpoints (which are content-addressed), keys,
    field names, event types, envelopes, reasons of legal holds, and the quarantine. The old bytes
    stay in free pages of the file until 'memcore copy-compact'. No value is ever shown. Exit code
    1: something was found and is still there, or could not be examined.
    """
    from memcore.privacy import redaction_policy

    need_choice(dry_run, yes, see="what would be replaced", do="replace it")
    policy = renamed("--redact", redact, former) or "default"
    rule = redaction_policy(policy)
    assert rule is not None  # noqa: S101 - a preset's name is a policy
    with reading(store) if dry_run else opened(store) as db:
        warn_of_stranger(db, user, app)
        found = list(_findings(db, rule, (user, app), write=yes))
    found = [each for each in found if each.classes or each.is_left]
    if as_json:
        told = [
            {
                "app": each.app,
                "user": each.user,
                "session": each.session,
                "where": each.where,
                "classes": dict(sorted(each.classes.items())),
                "rewritten": each.rewritten,
                "unreadable": each.unreadable,
                "kept": each.kept,
                "held": each.held,
                "forgotten": each.forgotten,
            }
            for each in found
        ]
        emit_json("redact", {"dry_run": dry_run, "policy": policy, "findings": told})
    else:
        _show(found)
        if dry_run:
            print("\nnothing was written")
        elif any(each.rewritten for each in found):
            advice = (
                "old bytes stay on the server until it has vacuumed, and in its log and backups"
                if store.startswith(SERVER_SCHEMES)
                else "run 'memcore copy-compact' to take the old bytes out of the file"
            )
            warn(f"{store}: {advice}")
    if any(dry_run or each.is_left for each in found):
        raise SystemExit(ExitCode.FINDINGS)


def _findings(
    db: Database, rule: RedactionPolicy, chosen: tuple[str | None, str | None], *, write: bool
) -> Iterator[Finding]:
    from secrets import token_bytes

    from memcore.database.redact import redact_all
    from memcore.privacy import Redaction
    from memcore.session.content_filter import redacts_at

    counting = Redaction(rule, secret=token_bytes(32))  # its placeholders are never shown

    def at(app: str, user: str, session: str | None) -> Redacts:
        if write:
            return redacts_at(db.engine, rule, (app, user, session))
        return counting.for_place(app, user, session)

    user, app = chosen
    return redact_all(db.engine, at, user=user, app=app, write=write)


def _show(found: list[Finding]) -> None:
    rows = [
        (
            each.session or "",
            each.user,
            each.app,
            each.where,
            ", ".join(f"{name} {count:,}" for name, count in sorted(each.classes.items())),
            each.rewritten or "",
            each.forgotten or "",
            _left(each),
        )
        for each in found
    ]
    if not rows:
        print("nothing was found")
        return
    print_table(
        ("session", "user", "app", "where", "found", "written anew", "memories gone", "stays"), rows
    )


def _left(each: Finding) -> str:
    counts = (("held", each.held), ("damaged", each.unreadable), ("kept", each.kept))
    return ", ".join(f"{count:,} {why}" for why, count in counts if count)
