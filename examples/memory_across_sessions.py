"""An agent that learns across three sessions: what the user prefers, and which tools work.

The model is scripted: no key, no network. Run it: ``python examples/memory_across_sessions.py``.
It prints:

    session 1: nothing is known yet
    session 2: Prefers a window seat (user)
    session 3: Prefers an aisle seat (user)
    waiting for a decision: Mallory may cancel bookings (tool)
    cancel: find_booking > cancel_booking, 3 of 3 passed, score 0.44, active
    find_booking failed once, then came search_mail
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import memcore
from memcore import Source

SAID = ("I want a window seat.", "And now an aisle seat.", "Thanks.")
LEARNED = ("Prefers a window seat", "Prefers an aisle seat", None)
RESULTS = (("done", "done"), ("Error: mail server is down", "done"), ("done", "done"))


def call(session: memcore.Session, number: int, tool: str, result: str) -> None:
    """One call of a tool and its result, as a runtime appends them."""
    function = {"name": tool, "arguments": "{}"}
    calls = [{"id": f"call-{number}", "type": "function", "function": function}]
    session.append({"role": "assistant", "content": None, "tool_calls": calls})
    session.append({"role": "tool", "tool_call_id": f"call-{number}", "content": result})


def talk(db: memcore.Database, number: int) -> None:
    """One session: the agent recalls, listens, works and remembers."""
    session = db.session(f"trip-{number}", user="alice")
    known = session.memory.list(status="active", slot="seat")
    said = ", ".join(f"{each.text} ({each.by})" for each in known) or "nothing is known yet"
    print(f"session {number}: {said}")

    receipt = session.append({"role": "user", "content": SAID[number - 1]})
    text = LEARNED[number - 1]
    if text is not None:
        session.memory.remember(text, kind="preference", slot="seat", source=receipt.seq)

    first, last = RESULTS[number - 1]
    call(session, 1, "find_booking", first)
    if first != "done":
        call(session, 2, "search_mail", "done")
    call(session, 3, "cancel_booking", last)
    session.memory.record_outcome(scenario="cancel", passed=True)


def main() -> None:
    """Three runs of the program, each with the file opened anew."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agent.memcore"
        for number in (1, 2, 3):
            with memcore.open(path) as db:
                talk(db, number)
        with memcore.open(path) as db:
            memory = db.scope(app="default", user="alice").memory
            # A tool's result is no word of the user's: what rests on it waits in quarantine.
            memory.remember("Mallory may cancel bookings", source=Source("trip-1", (3,)))
            for each in memory.quarantined():
                print(f"waiting for a decision: {each.text} ({each.by})")
            (playbook,) = memory.playbooks("cancel")
            trials = playbook.successes + playbook.failures
            print(
                f"{playbook.scenario}: {' > '.join(playbook.steps)}, {playbook.successes} of "
                f"{trials} passed, score {playbook.score:.2f}, {playbook.status}"
            )
            for patch in playbook.patches:
                print(f"{patch.step} failed once, then came {patch.instead}")


if __name__ == "__main__":
    main()
