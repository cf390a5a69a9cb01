"""A short run of the power-loss simulator: no image may fail, and every planted bug must show."""

from __future__ import annotations

import os
import traceback
from random import Random

import pytest
from shim.flushcount import compiler

from crash import power
from crash.controls import CONTROLS
from crash.sealed import AVAILABLE
from crash.trial import Case
from crash.workloads import WORKLOADS, Lane
from thinned import thinned

IMAGES = 3
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


@pytest.mark.parametrize("seed", range(20))
def test_the_bytes_of_one_erasure_wait_for_whoever_opens_an_image(seed: int) -> None:
    lane = Lane("0.0.0", Random(seed), {})
    erasures = [each for each in WORKLOADS["erasing"].lane(lane) if each[0] == "erase"]

    assert sorted(compact for _, compact in erasures) == [False, True]


def test_a_user_has_a_backup_that_is_older_than_an_erasure() -> None:
    lane = Lane("0.0.0", Random(1), {})
    names = [each[0] for each in WORKLOADS["keepsakes"].lane(lane)]

    assert "erase" in names[names.index("backup") :]


@pytest.mark.parametrize("name", CONTROLS)
def test_a_bug_can_be_planted(name: str) -> None:
    """What it replaces is still there; most of them are not run in the short gate."""
    control = CONTROLS[name]
    child = os.fork()
    if not child:
        try:
            control.plant()
            control.plant_in_judge()
        except BaseException:  # noqa: BLE001 - told by the exit code
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("name", thinned(CONTROLS, 6))
def test_a_planted_bug_is_seen(name: str) -> None:
    if CONTROLS[name].sealed and not AVAILABLE:
        pytest.skip("encryption needs the package cryptography")
    outcome = power.run_controls([name], SEED, lambda _: None, enough=1)

    assert outcome.findings == []
