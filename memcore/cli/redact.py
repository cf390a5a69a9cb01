"""``memcore redact``: report findings of a redaction policy, and rewrite items without them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from memcore.cli.options import (
    App,
    AsJson,
    DryRun,
    ExitCode,
    StorePath,
    User,
    Yes,
    need_choice,
    reading,
)
from memcore.cli.options import writing as opened
from memcore.cli.output import emit_json, print_table, warn

if TYPE_CHECKING:
    from memcore import Database, RedactionPolicy
    from memcore.database.redact import Finding

__all__ = [
    "redact_store",
]


def redact_store(
    store: StorePath,
    *,
    policy: Annotated[
        str, typer.Option("--policy", metavar="PRESET", help="What to look for.")
    ] = "default",
    user: User = None,
    app: App = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Count personal data by class and session, or put placeholders in their place.

    --yes writes items and the views of sessions anew, for all forks that share them, states with
    their past, names and meta of checkpoints, and key/value entries with their contents. It goes
    on where it was cut short. Entries that adapters wrote are counted and stay. Not looked at are
    blobs and checkpoints of graphs, which are found by their content, keys, names of fields, types
    of events, envelopes, and the quarantine. What was there before is in free pages of the file
    until 'memcore copy-compact'. No value is ever shown. Exit code 1: something was found and is
    still there.
    """
    from memcore.privacy import redaction_policy

    need_choice(dry_run, yes, see="what would be replaced", do="replace it")
    rule = redaction_policy(policy)
    assert rule is not None  # noqa: S101 - a preset's name is a policy
    with reading(store) if dry_run else opened(store) as db:
        found, left = _findings(db, rule, (user, app), yes=yes)
    left = [each for each in left if each.classes or each.unreadable]
    found = [each for each in found if each.classes or each.unreadable] + left
    left += [each for each in found if each.unreadable or each.kept]
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
            }
            for each in found
        ]
        emit_json("redact", {"dry_run": dry_run, "policy": policy, "findings": told})
    else:
        _show(found)
        if yes:
            warn(f"{store}: run 'memcore copy-compact' to take the old bytes out of the file")
    if left:
        raise typer.Exit(ExitCode.FINDINGS)


def _findings(
    db: Database, rule: RedactionPolicy, chosen: tuple[str | None, str | None], *, yes: bool
) -> tuple[list[Finding], list[Finding]]:
    """What was replaced, and what was found and is still there."""
    from secrets import token_bytes

    from memcore.database.redact import (
        findings_beside,
        findings_in,
        findings_of,
        redact_beside,
        redact_session,
        redact_state_of,
    )
    from memcore.privacy import Redaction
    from memcore.session.content_filter import redacts_at

    user, app = chosen
    found: list[Finding] = []
    left: list[Finding] = []
    counting = Redaction(rule, secret=token_bytes(32))  # its placeholders are shown to nobody
    for entry in db.sessions(user=user, app=app):
        place = entry.app, entry.user, entry.session_id
        if yes:
            redacts = redacts_at(db.engine, rule, place)
            found.append(redact_session(db.engine, place, redacts))
            found += redact_state_of(db.engine, place, redacts)
            continue
        left += findings_in(db.engine, place, counting.for_place(*place))
        session = db.session(entry.session_id, user=entry.user, app=entry.app)
        left += findings_of(session, counting.for_place(*place))
    for its_app, its_user in db.scopes():
        if user in (None, its_user) and app in (None, its_app):
            if yes:
                own, shared = (
                    redacts_at(db.engine, rule, (its_app, owner, None)) for owner in (its_user, "")
                )
                found += redact_beside(db.engine, its_app, its_user, own, shared)
            scope = db.scope(app=its_app, user=its_user)
            left += findings_beside(scope, counting.for_place(its_app, its_user, None))
    return found, left


def _show(found: list[Finding]) -> None:
    rows = [
        (
            each.session or "",
            each.user,
            each.app,
            each.where,
            ", ".join(f"{name} {count:,}" for name, count in sorted(each.classes.items())),
            each.rewritten or "",
        )
        for each in found
    ]
    print_table(("session", "user", "app", "where", "found", "written anew"), rows)
