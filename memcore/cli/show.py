"""``memcore show``: the items of a session."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

import memcore
from memcore.cli.options import App, AsJson, SessionName, StorePath, User, find_session, reading
from memcore.cli.output import emit_json, escape, print_table
from memcore.cli.transcript import Line, kind_of, transcribe

__all__ = ["show_session"]


def show_session(
    session_id: SessionName,
    store: StorePath,
    *,
    user: User = None,
    app: App = None,
    start: Annotated[int, typer.Option(min=0, help="From this seq on.")] = 0,
    tail: Annotated[int | None, typer.Option(min=0, help="Only the last N items.")] = None,
    as_json: AsJson = False,
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
            "tokens": session.tokens,
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
            f"{len(items):,} items, {totals['tokens']:,} tokens, "
            f"{len(session_calls(lines))} open calls shown, policy {totals['policy']}"
        )
    )
    for found in calibration["calibrations"]:
        print(escape(_calibrated(found)))
    if calibration["damaged_calibration"]:
        print("the calibration is damaged: the next report_usage writes it anew")
    print_table(("seq", "kind", "tokens", "text"), (line.row for line in lines))


def session_calls(lines: list[Line]) -> list[str]:
    """The open calls of the lines."""
    return [call for line in lines for call in line.open_calls]


def _calibration_of(session: memcore.Session) -> dict[str, Any]:
    """What is known of the provider's counts; a damaged row keeps nobody from the items."""
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
    """One line on a calibration."""
    text = (
        f"calibration (model {found['model'] or 'unnamed'}): {found['factor']:.3f} tokens of the "
        f"provider for one of {found['counter']}, {found['reports']:,} reports"
    )
    if found["anchored"]:
        text += f"; {found['input_tokens']:,} tokens were billed up to item {found['seq']:,}"
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
