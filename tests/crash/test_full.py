"""A full device, the short sweep: ``python -m tests.crash full --long`` is the whole one."""

from __future__ import annotations

import pytest

from crash import full

SEEDS = {"tmpfs": 1, "limit": 2}


@pytest.mark.parametrize("device", ["tmpfs", "limit"])
def test_a_full_device_costs_nothing_that_was_acknowledged(device):
    if device == "tmpfs" and not full.may_mount():
        pytest.skip("only root may mount a small file system")
    said = []
    outcome = full.sweep(device, said.append, long=False, seed=SEEDS[device])
    assert outcome.findings == []
    assert outcome.facts["refusals"] > outcome.done
