"""``memcore compact``: apply a policy with an extractive summary, or show the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

import memcore
from memcore.cli.options import (
    app_option,
    dry_run_option,
    find_session,
    json_option,
    need_choice,
    preset_or_file,
    reading,
    session_argument,
    store_option,
    user_option,
    verb,
    writing,
    yes_option,
)
from memcore.cli.output import clip, emit_json, escape, print_table
from memcore.cli.show import PREVIEW_CHARS, kind_of
from memcore.compaction import CompactionPolicy
from memcore.options import counted
from memcore.preview import preview
from memcore.session import compact
from memcore.session.compact import CompactionDraft
from memcore.session.session import ref_of

__all__ = [
    "compact_session",
    "policy_option",
]


def _policy(
    _context: click.Context, _option: click.Parameter, given: str | None
) -> CompactionPolicy | None:
    """A preset by name, else the policy in a file."""
    if given is None:
        return None
    return preset_or_file(
        given, memcore.PRESETS, preset=memcore.compaction_policy, read=memcore.read_policy
    )


policy_option = click.option(
    "--policy",
    metavar="PRESET|FILE",
    callback=_policy,
    help=f"Compaction policy: {', '.join(memcore.PRESETS)}; or a TOML or JSON file.",
)


@verb("compact")
@session_argument
@store_option
@user_option
@app_option
@dry_run_option
@yes_option
@click.option(
    "--keep-last",
    type=click.IntRange(0),
    metavar="ITEMS",
    help="Keep at least this many items (3).",
)
@click.option(
    "--keep-tokens",
    type=click.IntRange(1),
    metavar="TOKENS",
    help="Keep the longest safe suffix within these tokens; with --keep-last, what keeps more.",
)
@policy_option
@click.option("--stage", metavar="NAME", help="The stage to run, due or not (the one that is due).")
@click.option("--force", is_flag=True, help="Compact although no stage of the policy is due.")
@json_option
def compact_session(
    session_id: str,
    store: str,
    *,
    user: str | None,
    app: str | None,
    dry_run: bool,
    yes: bool,
    keep_last: int | None,
    keep_tokens: int | None,
    policy: CompactionPolicy | None,
    stage: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Replace a session's older items in contexts with an extractive summary, without a model.

    The log keeps every item; only contexts change.
    """
    need_choice(dry_run, yes, see="what would be folded", do="compact")
    rule = policy or memcore.compaction_policy(None)
    with reading(store) if dry_run else writing(store) as db:
        session = find_session(db, session_id, user=user, app=app)
        ref = ref_of(session)
        rule, asked = compact.asked(
            ref, rule, stage, keep_last=keep_last, keep_tokens=keep_tokens, force=force
        )
        draft = compact.begin(ref, rule, asked)
        draft = compact.summarize(ref, draft, memcore.extractive)
        if dry_run:
            _show_plan(session, draft, as_json=as_json)
        else:
            planned = _fields(session, draft) if as_json else {}  # before items are folded
            _report(compact.record_draft(ref, draft), planned)


def _report(result: memcore.CompactionResult, planned: dict[str, Any]) -> None:
    """Print what was done; as JSON if there are the fields of the plan."""
    if planned:
        view = None if result.view is None else _view_fields(result.view)
        fields = {
            "dry_run": False,
            "status": result.status,
            "reason": result.reason,
            "plan": _plan_fields(result.plan),
        }
        emit_json("compact", planned | fields | {"view": view})
    elif result.view is None:
        print(f"nothing done: {_told(result.reason)}")
    else:
        print(
            f"{result.status}: seq {result.view.cut_seq:,} and before, "
            f"{counted(len(result.plan.masks), 'item')} masked; "
            f"{counted(result.view.tokens_before, 'token')} before, "
            f"{result.view.tokens_after:,} after"
        )


def _told(reason: str | None) -> str:
    """A reason with options named as on the command line."""
    return (reason or "").replace("force=True or stage=", "--force or --stage")


def _view_fields(view: memcore.View) -> dict[str, Any]:
    return asdict(view) | {"masks": [mask._asdict() for mask in view.masks]}


def _plan_fields(plan: memcore.Plan) -> dict[str, Any]:
    return asdict(plan) | {"masks": [mask._asdict() for mask in plan.masks]}


def _show_plan(session: memcore.Session, draft: CompactionDraft, *, as_json: bool) -> None:
    """Show the plan and the summary, exactly as they would be recorded."""
    if as_json:
        emit_json("compact", _fields(session, draft))
        return
    plan = draft.plan
    rows = list(_fates(session, plan))
    after = 0 if draft.is_empty else compact.tokens_after(draft)
    before = 0 if draft.is_empty else compact.tokens_before(draft)
    if draft.is_empty:
        print(f"nothing to do: {_told(draft.reason)}")
        return
    fates = Counter(fate for _, fate in rows)
    print(
        f"{draft.policy.name}/{draft.stage.name}, {draft.status}: cut after seq {plan.cut_seq:,}; "
        f"{counted(fates['fold'], 'item is', 'items are')} folded, "
        f"{fates['keep'] + fates['mask']:,} kept, {fates['mask']:,} of them masked; "
        f"{counted(before, 'token')} before, {after:,} after"
    )
    print_table(
        ("fate", "seq", "kind", "tokens", "text"),
        (
            (fate, item.seq, kind_of(item), item.tokens, clip(preview(item.message), PREVIEW_CHARS))
            for item, fate in rows
        ),
    )
    print("\nsummary:" if draft.summary else "\nno summary")
    for line in (draft.summary or "").splitlines():
        print(escape(f"  {line}"))
    print("\nnothing was written")


def _fields(session: memcore.Session, draft: CompactionDraft) -> dict[str, Any]:
    """Return the plan, the summary, and what becomes of each item."""
    fates = _fates(session, draft.plan)
    return {
        "dry_run": True,
        "status": "nothing" if draft.is_empty and draft.reason is None else draft.status,
        "policy": f"{draft.policy.name}/{draft.stage.name}",
        "reason": draft.reason,
        "plan": _plan_fields(draft.plan),
        "tokens_before": 0 if draft.is_empty else compact.tokens_before(draft),
        "tokens_after": 0 if draft.is_empty else compact.tokens_after(draft),
        "summary": draft.summary,
        "items": [{"seq": item.seq, "fate": fate} for item, fate in fates],
    }


def _fates(session: memcore.Session, plan: memcore.Plan) -> Iterator[tuple[memcore.Item, str]]:
    """Yield every live item with the plan's effect on it."""
    pins = True
    masked = {mask.seq for mask in plan.masks}
    for position, item in enumerate(session.items()):
        pins = pins and item.kind in (memcore.ItemKind.SYSTEM, memcore.ItemKind.EVENT)
        if position >= plan.cut:
            yield item, "mask" if item.seq in masked else "keep"
        elif item.seq in plan.pinned:
            yield item, "pin"
        elif position >= plan.fold_from:
            yield item, "fold"
        else:
            yield item, "pin" if pins else "covered"
