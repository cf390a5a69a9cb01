"""Many workers, wrong clocks, lost messages: nothing is lost or doubled, no lease is shared."""

from __future__ import annotations

import pytest

from memcore.session.engine import LeaseToken
from tests.simulation import Settings, simulated

SMALL = Settings(workers=24, sessions=40, seconds=90, storm_seconds=7)


@pytest.mark.parametrize("seed", range(4))
def test_no_item_is_lost_or_doubled_and_no_epoch_shared(tmp_path, seed):
    _, wrong, happened = simulated(tmp_path / "s.memcore", SMALL, seed)
    assert wrong == []
    assert happened["stored"] > 500
    for what in ("lost", "crash", "part", "clock", "storm", "LeaseHeldError", "FencedError"):
        assert happened[what], what


def test_a_seed_is_one_history(tmp_path):
    first, *_ = simulated(tmp_path / "1.memcore", SMALL, 7)
    again, *_ = simulated(tmp_path / "2.memcore", SMALL, 7)
    other, *_ = simulated(tmp_path / "3.memcore", SMALL, 8)
    assert first == again != other


def test_a_lease_that_does_not_fence_is_found(tmp_path, monkeypatch):
    """A planted bug."""
    monkeypatch.setattr(LeaseToken, "is_of", lambda self, row: row is not None)
    _, wrong, _ = simulated(tmp_path / "s.memcore", SMALL, 1)
    assert any("behind an item of epoch" in each for each in wrong)


def test_a_request_that_is_carried_out_twice_is_found(tmp_path, monkeypatch):
    """A planted bug: no idempotency key is looked up."""
    monkeypatch.setattr("memcore.session.append.find_request", lambda *_, **__: None)
    _, wrong, _ = simulated(tmp_path / "s.memcore", SMALL, 1)
    assert any("stored twice" in each for each in wrong)


@pytest.mark.long
def test_a_thousand_workers(tmp_path):
    settings = Settings(workers=1_000, sessions=20_000, seconds=60)
    _, wrong, happened = simulated(tmp_path / "s.memcore", settings, 1)
    assert wrong == []
    assert happened["stored"] > 50_000
