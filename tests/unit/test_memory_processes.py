"""Eight processes that remember at once leave what one after the other would have left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import memcore
from memcore import Source

ROOT = Path(__file__).parents[2]
PROCESSES = 8
CHILD = """
import sys
import memcore
from memcore import Source
path, number = sys.argv[1], int(sys.argv[2])
with memcore.open(path) as db:
    sys.stdin.readline()
    memory = db.scope(app="default", user="alice").memory
    for at in range(10):
        memory.remember(f"Fact {at}", source=Source(f"s{number}", (1,)))
        memory.remember(f"Only {number}.{at}", by="operator", labels={"by": str(number)})
        memory.remember(f"Value {number}.{at}", slot="shared", by="operator")
        memory.remember("Counted once", by="operator", idempotency_key=f"key {at}")
    memory.record_outcome(f"s{number}", scenario="all", passed=number % 2 == 0)
"""


def test_processes_equal_one_after_the_other(path):
    with memcore.open(path) as db:
        for number in range(PROCESSES):
            session = db.session(f"s{number}", user="alice")
            session.append({"role": "user", "content": "Fact 0 1 2 3 4 5 6 7 8 9"})
        children = [
            subprocess.Popen(
                [sys.executable, "-c", CHILD, str(path), str(number)],
                stdin=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for number in range(PROCESSES)
        ]
        for child in children:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
        assert [child.wait(120) for child in children] == [0] * PROCESSES
        for child in children:
            assert child.stdin is not None
            child.stdin.close()
        memory = db.scope(app="default", user="alice").memory
        found = memory.list()
        assert [each.id for each in found] == list(range(1, len(found) + 1))
        facts = [each for each in found if each.text.startswith("Fact")]
        assert len(facts) == 10
        every = tuple(Source(f"s{number}", (1,)) for number in range(PROCESSES))
        for fact in facts:
            assert (fact.support, fact.version, fact.status) == (PROCESSES, PROCESSES, "active")
            assert tuple(sorted(fact.sources)) == every
        for number in range(PROCESSES):
            own = [each.text for each in found if each.labels.get("by") == str(number)]
            assert own == [f"Only {number}.{at}" for at in range(10)]
        values = [each for each in found if each.slot == "shared"]
        assert len(values) == 10 * PROCESSES
        assert [each.status for each in values] == ["superseded"] * (len(values) - 1) + ["active"]
        assert [each.superseded_by for each in values[:-1]] == [each.id for each in values[1:]]
        assert [each.valid_to for each in values[:-1]] == [each.valid_from for each in values[1:]]
        assert [each.version for each in found if each.text == "Counted once"] == [1]
        (playbook,) = memory.playbooks()
        assert (playbook.successes, playbook.failures) == (4, 4)
        assert db.check() == []
