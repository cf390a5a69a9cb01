"""``memcore compact``: represent older items by an extractive summary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

import memcore
from memcore.cli.exits import ExitCode
from memcore.cli.options import (
    App,
    AsJson,
    SessionName,
    StorePath,
    User,
    find_session,
    reading,
    writing,
)
from memcore.cli.output import clip, complain, emit_json, escape, print_table
from memcore.cli.transcript import PREVIEW_CHARS, kind_of, preview

__all__ = ["compact_session"]


def compact_session(
    session_id: SessionName,
    store: StorePath,
    *,
    user: User = None,
    app: App = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done; write nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it.")] = False,
    keep_last: Annotated[
        int | None, typer.Option(metavar="ITEMS", help="Keep at least this many items (3).")
    ] = None,
    keep_tokens: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", help="Keep the longest safe suffix within these tokens."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Represent a session's older items by a summary that is made here, without a model.

    The log keeps every item; only contexts change.
    """
    if dry_run == yes:
        complain("say --dry-run to see what would be folded, or --yes to compact")
        raise typer.Exit(ExitCode.USAGE if yes else ExitCode.REFUSED)
    with reading(store) if dry_run else writing(store) as db:
        session = find_session(db, session_id, user=user, app=app)
        if dry_run:
            _show_plan(session, keep_last, keep_tokens, as_json=as_json)
        else:
            _compact(session, keep_last, keep_tokens, as_json=as_json)


def _compact(
    session: memcore.Session, keep_last: int | None, keep_tokens: int | None, *, as_json: bool
) -> None:
    result = session.compact(memcore.extractive, keep_last=keep_last, keep_tokens=keep_tokens)
    if as_json:
        view = None if result.view is None else asdict(result.view)
        fields = {"dry_run": False, "status": result.status, "plan": asdict(result.plan)}
        emit_json("compact", fields | {"view": view})
    elif result.view is None:
        print("nothing to compact")
    else:
        print(
            f"{result.status}: seq {result.view.cut_seq:,} and before; "
            f"{result.view.tokens_before:,} tokens before, {result.view.tokens_after:,} after"
        )


def _show_plan(
    session: memcore.Session,
    keep_last: int | None,
    keep_tokens: int | None,
    *,
    as_json: bool,
) -> None:
    """The plan and the summary, exactly as ``compact`` would make them."""
    compacting = session.compacting
    draft = compacting.prepare(compacting.rule(keep_last=keep_last, keep_tokens=keep_tokens))
    draft = compacting.summarized(draft, memcore.extractive)
    plan = draft.plan
    rows = list(_fates(session, plan))
    if as_json:
        fields = {"dry_run": True, "status": "nothing" if plan.is_empty else draft.status}
        items = [{"seq": item.seq, "fate": fate} for item, fate in rows]
        emit_json(
            "compact", fields | {"plan": asdict(plan), "summary": draft.summary, "items": items}
        )
        return
    if plan.is_empty:
        print("nothing to compact")
        return
    print(
        f"cut behind seq {plan.cut_seq:,}: {plan.cut - plan.fold_from:,} items are folded, "
        f"{len(rows) - plan.cut:,} kept; {plan.tokens_before:,} tokens before, "
        f"{plan.tokens_kept:,} kept beside the summary"
    )
    print_table(
        ("fate", "seq", "kind", "tokens", "text"),
        (
            (fate, item.seq, kind_of(item), item.tokens, clip(preview(item.message), PREVIEW_CHARS))
            for item, fate in rows
        ),
    )
    print("\nsummary:")
    for line in (draft.summary or "").splitlines():
        print(escape(f"  {line}"))
    print("\nnothing was written")


def _fates(session: memcore.Session, plan: memcore.Plan) -> Iterator[tuple[memcore.Item, str]]:
    """Every live item with what the plan does to it."""
    pins = True
    for position, item in enumerate(session.items()):
        pins = pins and item.kind in (memcore.ItemKind.SYSTEM, memcore.ItemKind.EVENT)
        if position >= plan.cut:
            yield item, "keep"
        elif item.seq in plan.pinned:
            yield item, "pin"
        elif position >= plan.fold_from:
            yield item, "fold"
        else:
            yield item, "pin" if pins else "covered"
