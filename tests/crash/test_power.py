"""A short run of the power-loss simulator: no image may fail, and every planted bug must show."""

from __future__ import annotations

import pytest
from shim.flushcount import compiler

from crash import power
from crash.controls import CONTROLS
from crash.sealed import AVAILABLE
from crash.trial import Case
from thinned import thinned

IMAGES = 6
"""Of each workload."""
SEED = "short"

CASES = [
    Case(workload, durability, "", SEED, IMAGES, sealed=sealed)
    for durability, sealed in power.MODES
    for workload in power.workloads_for(sealed=sealed)
]


def is_short(at: int) -> bool:
    """Whether the gate has the case: of each workload one mode, and all modes alike."""
    name = CASES[at].workload
    alike = [place for place, case in enumerate(CASES) if case.workload == name]
    return at == alike[sorted(power.WORKLOADS).index(name) % len(alike)]


pytestmark = pytest.mark.skipif(compiler() is None, reason="the recorder needs a C compiler")


@pytest.mark.parametrize(
    "case", thinned(CASES, is_short), ids=lambda case: f"{case.mode}-{case.workload}"
)
def test_nothing_is_lost(case: Case) -> None:
    if case.sealed and not AVAILABLE:
        pytest.skip("encryption needs the package cryptography")
    outcome = power.run_mode([case], lambda _: None)

    assert outcome.findings == []
    assert outcome.done == IMAGES


@pytest.mark.parametrize("name", thinned(CONTROLS, 6))
def test_a_planted_bug_is_seen(name: str) -> None:
    if CONTROLS[name].sealed and not AVAILABLE:
        pytest.skip("encryption needs the package cryptography")
    outcome = power.run_controls([name], SEED, lambda _: None, enough=1)

    assert outcome.findings == []
