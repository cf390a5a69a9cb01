"""A short run of the power-loss simulator: no image may fail, and every planted bug must show."""

from __future__ import annotations

import pytest
from shim.flushcount import compiler

from crash import power
from crash.controls import CONTROLS
from crash.trial import Case
from crash.workloads import WORKLOADS

IMAGES = 12
"""Of each workload: more than 200 a mode."""
SEED = "short"

pytestmark = pytest.mark.skipif(compiler() is None, reason="the recorder needs a C compiler")


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("mode", power.MODES)
def test_nothing_is_lost(mode: str, workload: str) -> None:
    outcome = power.run_mode(mode, [Case(workload, mode, "", SEED, IMAGES)], lambda _: None)

    assert outcome.findings == []
    assert outcome.done == IMAGES


@pytest.mark.parametrize("name", CONTROLS)
def test_a_planted_bug_is_seen(name: str) -> None:
    outcome = power.run_controls([name], SEED, lambda _: None, enough=1)

    assert outcome.findings == []
