"""A short, repeatable run of every fuzz target; the gate runs it under the sanitizers as well."""

from __future__ import annotations

import pytest
from fuzz.corpus import seeds
from fuzz.mutations import run
from fuzz.targets import TARGETS

RUNS = 1500


@pytest.mark.parametrize("name", TARGETS)
def test_fuzz(name: str) -> None:
    runs = RUNS // 5 if name in {"nodes", "structure", "vocabulary"} else RUNS
    runs = RUNS // 15 if name == "resealed" else runs
    assert run(TARGETS[name], seeds(name), seed=1, seconds=0, runs=runs) == runs
