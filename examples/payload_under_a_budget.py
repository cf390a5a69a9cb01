"""A request of at most 8,000 tokens for 300 turns: memory, passages, two sub-agents, state.

Everything that the model receives is assembled under one budget. Nothing is cut in the middle, each
part says where it comes from, and most of each request begins like the one before, which is what a
provider's prompt cache keeps. The model is scripted: no key, no network. It prints:

    300 turns within 8000 tokens each
    most turns keep 96% of their prefix
    instructions, instructions: operator, {}
    memories, memory 1: user, {'memory': 1, 'version': 1}
    evidence, page 3: import, {'book': 'page 3'}
    evidence, page 7: import, {'book': 'page 7'}
    agents, reader 299: agent, {}
    agents, checker 299: agent, {}
    state, subject: agent, {'field': 'subject'}
    state, turn: agent, {'field': 'turn'}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import memcore

TURNS, BUDGET = 300, 8_000
SUBJECTS = ("fractions", "gravity", "the water cycle", "adverbs")
BOOK = {f"page {at}": f"Page {at} explains {SUBJECTS[at % 4]} again." for at in range(8)}


def passages(question: str) -> Iterator[memcore.PayloadUnit]:
    """Return the pages whose words the question has, the best first."""
    asked = set(question.lower().split())
    for name, text in BOOK.items():
        score = len(asked & set(text.lower().split()))
        if score:
            yield memcore.PayloadUnit(id=name, text=text, score=score, source={"book": name})


def delegate(session: memcore.Session, agent: str, turn: int) -> memcore.PayloadUnit:
    """Let another agent answer a call, from a history of its own; return its result."""
    function = {"name": agent, "arguments": "{}"}
    call = {"id": f"{agent}-{turn}", "type": "function", "function": function}
    session.append({"role": "assistant", "content": None, "tool_calls": [call]})
    with session.delegate(call["id"], agent=agent) as work:
        work.session.append({"role": "user", "content": f"Work on turn {turn}."})
        result = f"The {agent} has looked at turn {turn}."
        work.finish(result)
    return memcore.PayloadUnit(id=f"{agent} {turn}", text=result, by="agent")


def main(path: Path) -> None:
    """Run the turns, and say what the last request consists of."""
    with memcore.open(path) as db:
        session = db.session("lesson", app="tutor", user="ann")
        session.append({"role": "user", "content": "Note: I am ten, and I like trains."})
        session.memory.remember("Ann is ten and likes trains", source=1)
        payload = memcore.Payload(BUDGET, reserve_tokens=500)
        payload.instructions("You are a tutor. Answer from the passages.")
        payload.memories(session.memory, budget_tokens=300)
        payload.history(session, at_least_tokens=2_000)
        kept: list[float] = []
        before = ""
        for turn in range(TURNS):
            question = f"Please explain {SUBJECTS[turn % 4]} again, question {turn}."
            session.append({"role": "user", "content": question})
            results = [delegate(session, agent, turn) for agent in ("reader", "checker")]
            payload.evidence(passages(question), budget_tokens=800)
            payload.agents(results, budget_tokens=200)
            payload.state({"turn": turn, "subject": SUBJECTS[turn % 4]}, budget_tokens=100)
            made = payload.assemble()
            again = payload.assemble()
            if again.digest() != made.digest() or made.tokens > BUDGET - 500:
                raise SystemExit("equal input gives equal bytes, within the budget")
            text = json.dumps(made.request())
            kept.append(_common(before, text) / len(text))
            before = text
            for name in ("evidence", "agents", "state"):
                payload.remove(name)
            answer = f"Answer {turn}: " + "it follows from the page. " * 6
            session.append({"role": "assistant", "content": answer})
        session.record("payload", made.record())
        print(f"{TURNS} turns within {BUDGET} tokens each")
        print(f"most turns keep {sorted(kept)[len(kept) // 2]:.0%} of their prefix")
        for part in made.provenance:
            if part.section != "history":
                print(f"{part.section}, {part.unit}: {part.by}, {dict(part.source)}")


def _common(one: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with TemporaryDirectory() as folder:
            main(Path(folder) / "lesson.memcore")
