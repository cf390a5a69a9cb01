"""A short, repeatable run of every fuzz target; the gate runs it under the sanitizers as well."""

from __future__ import annotations

import pytest
from fuzz import resealed
from fuzz.corpus import seeds
from fuzz.mutations import run
from fuzz.targets import TARGETS

from memcore._fast import build_flavour
from memcore.codec.values import decoding

RUNS = 60 if build_flavour() == "trace" else 600
"""A traced build shows which lines run, and is slow."""
RESEALED_RUNS = 25 if build_flavour() == "sanitize" else 60
"""Each opens a file and reads all of it: under the sanitizers that takes two thirds of a second."""


@pytest.mark.parametrize("name", TARGETS)
def test_fuzz(name: str) -> None:
    runs = RUNS // 5 if name in {"nodes", "structure", "vocabulary"} else RUNS
    runs = RESEALED_RUNS if name == "resealed" else runs
    assert run(TARGETS[name], seeds(name), seed=1, seconds=0, runs=runs) == runs


def test_a_reader_without_its_boundary_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: what reading a row raises gets out as it is."""
    monkeypatch.setattr(decoding, "__exit__", lambda *_: None)
    with pytest.raises(AssertionError, match=r"(?i)error"):
        run(resealed.resealed, seeds("resealed"), seed=1, seconds=0, runs=200)
