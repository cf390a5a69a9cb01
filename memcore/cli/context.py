"""``memcore context``: what a model would receive of a session."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

import memcore
from memcore.cli.options import App, AsJson, SessionName, StorePath, User, find_session, reading
from memcore.cli.output import clip, emit_json, escape, print_table
from memcore.cli.transcript import PREVIEW_CHARS, preview

__all__ = ["describe", "print_messages", "show_context"]


def show_context(
    session_id: SessionName,
    store: StorePath,
    *,
    budget: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="At most this many tokens; default: all.")
    ] = None,
    reserve: Annotated[
        int, typer.Option(metavar="TOKENS", help="Of these, leave so many free.")
    ] = 0,
    calibrated: Annotated[
        bool, typer.Option(help="Keep what the provider is estimated to bill within the budget.")
    ] = False,
    user: User = None,
    app: App = None,
    as_json: AsJson = False,
) -> None:
    """Show the context within a budget: its messages, tokens and repairs."""
    with reading(store) as db:
        session = find_session(db, session_id, user=user, app=app)
        found = session.context(budget, reserve_tokens=reserve, calibrated=calibrated)
        policy = session.policy
    violations = memcore.validate(found.messages, policy)
    if as_json:
        fields = asdict(found) | {
            "session_id": session_id,
            "policy": policy,
            "budget_tokens": budget,
            "reserve_tokens": reserve,
            "calibrated": calibrated,
            "violations": [asdict(violation) for violation in violations],
        }
        emit_json("context", fields)
        return
    print(describe(found, budget))
    for repair in found.repairs:
        where = "" if repair.seq is None else f" item {repair.seq}"
        call = "" if repair.call_id is None else f", call {repair.call_id}"
        print(escape(f"repair: {repair.action}{where}{call}"))
    for violation in violations:
        print(escape(f"violation: message {violation.position}: {violation.reason}"))
    print_messages(found)


def describe(found: memcore.Context, budget: int | None) -> str:
    """One line: how much is shown and how much is left out."""
    limit = "" if budget is None else f" of {budget:,}"
    summary = " (summarized)" if found.summary is not None else ""
    billed = ""
    if found.estimated_tokens is not None:
        billed = f"; the provider is estimated to bill {found.estimated_tokens:,}"
    return (
        f"{len(found.messages):,} messages, {found.tokens:,}{limit} tokens, {found.omitted:,} "
        f"items omitted before seq {found.cut:,}{summary}, {found.open_calls:,} open calls{billed}"
    )


def print_messages(found: memcore.Context) -> None:
    """The messages as a table."""
    print_table(
        ("message", "role", "text"),
        (
            (
                at,
                str(message.get("role", message.get("type", ""))),
                clip(preview(message), PREVIEW_CHARS),
            )
            for at, message in enumerate(found.messages)
        ),
    )
