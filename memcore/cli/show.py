"""``memcore show``: items, transcript or context of a session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import click

import memcore
from memcore.cli.options import (
    app_option,
    find_session,
    json_option,
    reading,
    session_argument,
    store_option,
    user_option,
    verb,
)
from memcore.cli.output import clip, emit_json, escape, print_table
from memcore.model import Item, ItemKind
from memcore.options import counted
from memcore.preview import preview
from memcore.records import record
from memcore.wire import WireItem, bind

__all__ = [
    "PREVIEW_CHARS",
    "Line",
    "describe",
    "print_messages",
    "show_context",
    "show_session",
    "transcribe",
]


# --- Items as a readable transcript, with open calls and orphans marked ---------------------------

PREVIEW_CHARS: Final = 96


@record(frozen=True, slots=True)
class Line:
    """One item of a transcript."""

    item: Item
    open_calls: tuple[str, ...]
    abandoned: tuple[str, ...]
    orphan: bool

    @property
    def mark(self) -> str:
        """The warning marks of the item: open calls, abandoned calls, orphan; empty without any."""
        marks = []
        if self.open_calls:
            marks.append(f"OPEN {', '.join(self.open_calls)}")
        if self.abandoned:
            marks.append(f"ABANDONED {', '.join(self.abandoned)}")
        if self.orphan:
            marks.append("ORPHAN")
        return "; ".join(marks)

    @property
    def row(self) -> tuple[object, ...]:
        """The table row: seq, kind, tokens, text."""
        text = preview(self.item.message)
        if self.mark:
            text = f"[{self.mark}] {text}"
        return (self.item.seq, kind_of(self.item), self.item.tokens, clip(text, PREVIEW_CHARS))


def kind_of(item: Item) -> str:
    """The item's kind in lowercase."""
    return item.kind.name.lower()


def transcribe(items: Sequence[Item]) -> list[Line]:
    """The items with the state of their calls; needs all items, starting with the first."""
    binding = bind(
        WireItem(item.seq, item.message, event=item.kind == ItemKind.EVENT) for item in items
    )
    lines = []
    for at, item in enumerate(items):
        waiting = [slot for slot in binding.calls[at] if not slot.results and not slot.is_server]
        answers = binding.answers[at]
        orphan = item.kind == ItemKind.RESULT and not any(slot for _, slot in answers)
        lines.append(
            Line(
                item,
                tuple(slot.key[1] for slot in waiting if not slot.abandoned),
                tuple(slot.key[1] for slot in waiting if slot.abandoned),
                orphan,
            )
        )
    return lines


# --- ``memcore show``: the items of a session -----------------------------------------------------


@verb("show")
@session_argument
@store_option
@user_option
@app_option
@click.option("--start", type=click.IntRange(min=0), default=0, help="From this seq on.")
@click.option("--tail", type=click.IntRange(min=0), help="Only the last N items.")
@click.option("--full", is_flag=True, help="Show texts as a whole.")
@json_option
def show_session(
    session_id: str,
    store: str,
    *,
    user: str | None,
    app: str | None,
    start: int,
    tail: int | None,
    full: bool,
    as_json: bool,
) -> None:
    """Show a session's items: seq, kind, tokens, text; open calls and orphans are marked."""
    with reading(store) as db:
        session = find_session(db, session_id, user=user, app=app)
        items = list(session.items())
        totals = {
            "session_id": session.id,
            "user": session.user,
            "app": session.app,
            "policy": session.policy,
            "items": len(items),
            "tokens": (tokens := session.tokens),
            "revision": session.revision,
            "open_calls": [asdict(call) for call in session.open_calls],
        }
        calibration = _calibration_of(session)
    lines = [line for line in transcribe(items) if line.item.seq >= start]
    if tail is not None:
        lines = lines[len(lines) - tail :] if tail < len(lines) else lines
    if as_json:
        emit_json(
            "show", {"session": totals | calibration, "items": [_fields(line) for line in lines]}
        )
        return
    print(
        escape(
            f"session {session_id} (user {totals['user']}, app {totals['app']}): "
            f"{counted(len(items), 'item')}, {counted(tokens, 'token')}, "
            f"{counted(len(session_calls(lines)), 'open call')}, policy {totals['policy']}"
        )
    )
    if items and start > items[-1].seq:
        print(f"there is no item from seq {start} on: the last one is {items[-1].seq}")
    for found in calibration["calibrations"]:
        print(escape(_calibrated(found)))
    if calibration["damaged_calibration"]:
        print("the calibration is damaged: the next report_usage writes it anew")
    if full:
        for line in lines:
            _print_full(line)
        return
    print_table(("seq", "kind", "tokens", "text"), (line.row for line in lines))


def _print_full(line: Line) -> None:
    item = line.item
    mark = f"  [{line.mark}]" if line.mark else ""
    print(escape(f"{item.seq}  {kind_of(item)}  {counted(item.tokens, 'token')}{mark}"))
    for text in preview(item.message).splitlines():
        print(escape(f"    {text}"))


def session_calls(lines: list[Line]) -> list[str]:
    """The open calls in the lines."""
    return [call for line in lines for call in line.open_calls]


def _calibration_of(session: memcore.Session) -> dict[str, Any]:
    """Estimates calibrated by the provider's counts; a flag, not an error, if they are damaged."""
    try:
        estimated, known = session.estimated_tokens, session.calibrations()
    except memcore.CorruptValueError:
        return {"estimated_tokens": None, "calibrations": [], "damaged_calibration": True}
    return {
        "estimated_tokens": estimated,
        "calibrations": [asdict(found) for found in known],
        "damaged_calibration": False,
    }


def _calibrated(found: dict[str, Any]) -> str:
    """One line about a calibration."""
    text = (
        f"calibration (model {found['model'] or 'unnamed'}): {found['factor']:.3f} tokens of the "
        f"provider for one of {found['counter']}, {counted(found['reports'], 'report')}"
    )
    if found["anchored"]:
        billed = counted(found["input_tokens"], "token was", "tokens were")
        text += f"; {billed} billed up to item {found['seq']:,}"
    return text


def _fields(line: Line) -> dict[str, Any]:
    item = line.item
    return {
        "seq": item.seq,
        "kind": kind_of(item),
        "type": item.type,
        "tokens": item.tokens,
        "created_at": item.created_at,
        "request_id": item.request_id,
        "meta": None if item.meta is None else dict(item.meta),
        "envelope": None if item.envelope is None else item.envelope.mapping(),
        "open_calls": line.open_calls,
        "abandoned_calls": line.abandoned,
        "orphan": line.orphan,
        "message": item.message,
    }


# --- ``memcore context``: the messages of a session that a model would receive --------------------


@verb("context")
@session_argument
@store_option
@click.option(
    "--budget",
    type=click.IntRange(min=1),
    metavar="TOKENS",
    help="At most this many tokens; default: all.",
)
@click.option(
    "--reserve",
    type=click.IntRange(min=0),
    default=0,
    metavar="TOKENS",
    help="Tokens of the budget to leave free, for the answer.",
)
@click.option(
    "--calibrated/--no-calibrated",
    default=False,
    help="Keep what the provider is estimated to bill within the budget.",
)
@user_option
@app_option
@json_option
def show_context(
    session_id: str,
    store: str,
    *,
    budget: int | None,
    reserve: int,
    calibrated: bool,
    user: str | None,
    app: str | None,
    as_json: bool,
) -> None:
    """Show the context within a budget: its messages, tokens and repairs."""
    if reserve and (budget is None or reserve >= budget):
        of = "there is no --budget" if budget is None else f"the budget is {budget:,}"
        msg = f"--reserve: leaves {counted(reserve, 'token')} free, but {of}"
        raise memcore.InvalidOptionError(msg)
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
    """One line about how much is shown and how much is left out."""
    tokens = counted(found.tokens, "token")
    if budget is not None:
        tokens = f"{found.tokens:,} of {counted(budget, 'token')}"
    summary = " (summarized)" if found.summary is not None else ""
    billed = ""
    if found.estimated_tokens is not None:
        billed = f"; the provider is estimated to bill {found.estimated_tokens:,}"
    kept_out = "" if found.limited_by is None else f"; limited by: {found.limited_by}"
    return (
        f"{counted(len(found.messages), 'message')}, {tokens}, "
        f"{counted(found.omitted, 'item')} omitted before seq {found.cut:,}{summary}, "
        f"{counted(found.open_calls, 'open call')}{billed}{kept_out}"
    )


def print_messages(found: memcore.Context) -> None:
    """Print the messages as a table."""
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
