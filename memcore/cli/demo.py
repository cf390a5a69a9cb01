"""``memcore demo``: the main guarantees, shown on a temporary file with measured times."""

from __future__ import annotations

import json
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeVar

import click

import memcore
from memcore.cli import storm
from memcore.cli.options import ExitCode, need_directory, verb
from memcore.cli.output import complain, escape, print_table
from memcore.cli.show import describe, print_messages, transcribe
from memcore.options import counted
from memcore.records import record

__all__ = [
    "CONVERSATION",
    "LATE_CALL",
    "ORPHAN",
    "OTHER_WISH",
    "run_demo",
]


# --- The demo conversation: a travel agent rebooks a cancelled flight -----------------------------


def _calls(*calls: tuple[str, str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for call_id, name, arguments in calls
        ],
    }


def _result(call_id: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": json.dumps(content)}


LATE_CALL: Final = "call_hotel"
"""Call whose result, the hotel's answer, arrives only after the conversation has continued."""

CONVERSATION: Final[tuple[dict[str, Any], ...]] = (
    {
        "role": "system",
        "content": "You are the travel desk's agent. Confirm before you change a booking.",
    },
    {
        "role": "user",
        "content": "My flight LX2084 to Lisbon tomorrow is cancelled. Booking K7QX2M. Help!",
    },
    _calls(
        ("call_booking", "get_booking", {"code": "K7QX2M"}),
        ("call_flights", "search_flights", {"from": "ZRH", "to": "LIS", "date": "2026-03-14"}),
        ("call_rules", "get_fare_rules", {"fare": "Y-FLEX"}),
    ),
    _result("call_flights", {"options": ["TP939 11:55", "LX2088 17:40"], "seats": [4, 19]}),
    _result("call_booking", {"name": "A. Keller", "flight": "LX2084", "hotel": "Alfama 12"}),
    _result("call_rules", {"rebooking": "free within 48 h", "refund": "fare difference"}),
    {
        "role": "assistant",
        "content": "You can fly TP939 at 11:55 or LX2088 at 17:40; both are free of charge.",
    },
    {"role": "user", "content": "LX2088, please. And tell the hotel that I arrive late."},
    _calls(
        ("call_rebook", "rebook", {"code": "K7QX2M", "flight": "LX2088"}),
        (LATE_CALL, "notify_hotel", {"hotel": "Alfama 12", "arrival": "21:30"}),
    ),
    _result("call_rebook", {"status": "confirmed", "seat": "14C"}),
    {"role": "assistant", "content": "You are on LX2088, seat 14C. The hotel has yet to answer."},
    {"role": "user", "content": "Thanks. Do I get the difference in fare back?"},
    _result(LATE_CALL, {"status": "noted", "message": "Reception is open all night."}),
    _calls(("call_refund", "request_refund", {"code": "K7QX2M"})),
    _result("call_refund", {"amount": "38.40 CHF", "days": 5}),
    {
        "role": "assistant",
        "content": "Yes: 38.40 CHF within 5 days. And the hotel expects you, all night long.",
    },
)

ORPHAN: Final = _result("call_nobody_made", {"status": "ok"})
OTHER_WISH: Final = {"role": "user", "content": "Rather TP939: I have to be there at three."}


# --- ``memcore demo``: the main features in action, with measured times ---------------------------

T = TypeVar("T")
SESSION: Final = "rebooking"
APP: Final = "travel"
BUDGET_TOKENS: Final = 320
KEEP_LAST: Final = 4
FORK_SEQ: Final = 7
CONTEXT_ROUNDS: Final = 50


@record(slots=True)
class Findings:
    """The results of the demo, row by row, and the claims that failed."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def note(self, step: str, result: str, took: str) -> None:
        """Add a row to the closing table."""
        self.rows.append((step, result, took))

    def claim(self, what: str, *, holds: bool) -> None:
        """Record a claim as failed unless it holds."""
        if not holds:
            self.failed.append(what)
            print(f"   FAILED: {what}")


@verb("demo")
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Keep the database, at this path.",
)
def run_demo(*, keep: Path | None) -> None:
    """Show the main features: append, refuse, fit, compact, fork, survive SIGKILL.

    Needs no network. The exit code is 1 if any of its claims fails.
    """
    if keep is not None:
        need_directory(str(keep))
    if keep is not None and keep.exists():
        complain(f"{keep} exists; the demo starts with a new file")
        raise SystemExit(ExitCode.REFUSED)
    with tempfile.TemporaryDirectory(prefix="memcore-demo-") as directory:
        findings = _play(keep or Path(directory) / "demo.memcore")
    if keep is not None:
        print()
        print(escape(f"kept: memcore show {SESSION} --store {keep}"))
    if findings.failed:
        complain(f"{counted(len(findings.failed), 'claim')} failed: {'; '.join(findings.failed)}")
        raise SystemExit(ExitCode.FINDINGS)


def _play(path: Path) -> Findings:
    """Run all steps on one file."""
    findings = Findings()
    with memcore.open(path) as db:
        session = db.session(SESSION, user=storm.USER, app=APP)
        _append(session, findings)
        _refuse(session, findings)
        _fit(session, findings)
        _compact(session, findings)
        _fork(session, findings)
    _crash(path, findings)
    _title("What was shown")
    print_table(("step", "result", "time"), findings.rows, flexible=1, wrap=True)
    return findings


def _title(text: str) -> None:
    print(f"\n== {text}")


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    """The result of ``work`` and the seconds it took."""
    started = time.perf_counter()
    result = work()
    return result, time.perf_counter() - started


def _append(session: memcore.Session, findings: Findings) -> None:
    _title("A conversation with parallel tool calls, item by item, each one durable")
    times = []
    for message in CONVERSATION:
        _, seconds = _timed(lambda message=message: session.append(message))  # type: ignore[misc]
        times.append(seconds)
    print_table(
        ("seq", "kind", "tokens", "text"), (line.row for line in transcribe(list(session.items())))
    )
    findings.claim("every item is in the log", holds=len(session) == len(CONVERSATION))
    findings.note(
        "append, durability full",
        f"{counted(len(session), 'item')}, {counted(session.tokens, 'token')}",
        f"{median(times) * 1e6:,.0f} µs (median)",
    )


def _refuse(session: memcore.Session, findings: Findings) -> None:
    _title("A result that answers no call is refused")
    before = session.revision
    try:
        session.append(ORPHAN)
    except memcore.OrphanResultError as error:
        print(escape(f"   OrphanResultError: {error}"))
        refused = True
    else:
        refused = False
    findings.claim("the orphan is refused", holds=refused and session.revision == before)
    findings.note("append an orphan result", "OrphanResultError, nothing stored", "")


def _fit(session: memcore.Session, findings: Findings) -> None:
    _title(f"The context within {BUDGET_TOKENS} of {session.tokens} tokens")
    found = session.context(BUDGET_TOKENS)
    times = [_timed(lambda: session.context(BUDGET_TOKENS))[1] for _ in range(CONTEXT_ROUNDS)]
    print(f"   {describe(found, BUDGET_TOKENS)}")
    for repair in found.repairs:
        print(f"   repair: {repair.action} item {repair.seq}, call {repair.call_id}")
    print_messages(found)
    violations = memcore.validate(found.messages)
    print(f"   violations of the provider's rules: {len(violations)}")
    hoisted = [repair.call_id for repair in found.repairs if repair.action == "hoisted"]
    findings.claim("the context is legal", holds=not violations)
    findings.claim("the context is within its budget", holds=found.tokens <= BUDGET_TOKENS)
    findings.claim("older items are omitted", holds=found.omitted > 0)
    findings.claim("the late result is behind its call", holds=hoisted == [LATE_CALL])
    findings.note(
        f"context({BUDGET_TOKENS})",
        f"{counted(len(found.messages), 'message')}, {counted(found.tokens, 'token')}, "
        f"{counted(found.omitted, 'item')} omitted, {counted(len(hoisted), 'late result')} "
        f"hoisted, {counted(len(violations), 'violation')}",
        f"{median(times) * 1e6:,.0f} µs (median)",
    )


def _compact(session: memcore.Session, findings: Findings) -> None:
    _title("Compaction without a network: the log stays, the context gets short")
    items = len(session)
    result, seconds = _timed(lambda: session.compact(memcore.extractive, keep_last=KEEP_LAST))
    found = session.context()
    print(f"   {describe(found, None)}")
    print(
        f"   asked to keep {KEEP_LAST} items, it keeps {items - result.plan.cut}: the late result "
        f"of {LATE_CALL} pulls the cut back to before its call"
    )
    for line in (found.summary or "").splitlines():
        print(escape(f"   | {line}"))
    before = 0 if result.view is None else result.view.tokens_before
    after = 0 if result.view is None else result.view.tokens_after
    findings.claim("the older items are summarized", holds=result.status == "summarized")
    findings.claim("the log keeps every item", holds=len(session) == items)
    findings.claim("it is legal after it", holds=not memcore.validate(found.messages))
    findings.note(
        "compact, extractive",
        f"{before} tokens became {after}, {items} of {items} items in the log",
        f"{seconds * 1e3:.1f} ms",
    )


def _fork(session: memcore.Session, findings: Findings) -> None:
    _title(f"A fork behind item {FORK_SEQ}: the same beginning, another wish")
    fork, seconds = _timed(lambda: session.fork("rebooking-early", at=FORK_SEQ))
    receipt = fork.append(OTHER_WISH)
    shared = [item.message for item in fork.items()][:FORK_SEQ]
    original = [item.message for item in session.items(stop=FORK_SEQ + 1)]
    print(
        f"   {session.id}: {counted(len(session), 'item')}; {fork.id}: {len(fork)}, the last of "
        "them its own"
    )
    findings.claim("the fork shares its beginning", holds=shared == original)
    findings.claim("the fork goes on from there", holds=receipt.seq == FORK_SEQ + 1)
    findings.note("fork", f"{FORK_SEQ} items shared, none copied", f"{seconds * 1e3:.1f} ms")


def _crash(path: Path, findings: Findings) -> None:
    _title("A child process commits in a loop and is killed by SIGKILL in the middle of it")
    (acknowledged, status), storm_seconds = _timed(lambda: storm.run_child(path))
    db, open_seconds = _timed(lambda: memcore.open(path))
    with db:
        session = db.session(storm.SESSION, user=storm.USER)
        stored = {item.seq: item.message for item in session.items()}
        waiting = len(session.open_calls)
        survived = [item.message for item in db.session(SESSION, user=storm.USER, app=APP).items()]
        check, check_seconds = _timed(db.check)
    missing = [
        seq
        for seq, writer, number in acknowledged
        if [stored.get(seq - 1), stored.get(seq)] != storm.pair(writer, number)
    ]
    last = max((seq for seq, _, _ in acknowledged), default=0)
    print(f"   the child ended with signal {-status}; last acknowledged seq {last}")
    stop = max(stored, default=0)
    print(f"   in the file after reopening: {counted(len(stored), 'item')} up to seq {stop}")
    print(f"   acknowledged and missing: {len(missing)}; calls without a result: {waiting}")
    print(f"   check: {'; '.join(map(escape, check)) or 'clean'}")
    findings.claim("the child was killed", holds=status == -signal.SIGKILL)
    findings.claim("it had acknowledged commits", holds=bool(acknowledged))
    findings.claim("nothing acknowledged is missing", holds=not missing)
    findings.claim("no commit is half there", holds=waiting == 0 and len(stored) % 2 == 0)
    findings.claim("the other session is whole", holds=survived == list(CONVERSATION))
    findings.claim("check is clean", holds=not check)
    result = f"{counted(len(acknowledged), 'commit')} acknowledged, {len(missing)} missing"
    findings.note("SIGKILL among commits", result, f"{storm_seconds:.2f} s")
    findings.note("reopen", "no repair needed", f"{open_seconds * 1e3:.1f} ms")
    findings.note("check", counted(len(check), "finding"), f"{check_seconds * 1e3:.1f} ms")
