"""Users who are erased while the power fails: the verb, and what must be true after the rest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import memcore

from .timeline import Timeline, Verdict
from .verbs import SHARED, Place, State, Step, verb

__all__ = ["erased_since", "erasure_findings", "finished", "is_erased"]


def _erased(state: State, _: Step) -> None:
    for name in [name for name in state if name != SHARED and not name.startswith("x/")]:
        del state[name]


@verb(_erased)
def erase(place: Place, step: Step) -> None:
    """``erase compact``: the lane's user is gone; its bytes, too, or they wait."""
    (compact,) = step.arguments
    receipt = place.db.erase(place.lane, compact=compact, verify=False)
    assert receipt.bytes_gone or receipt.pending
    assert not receipt.verification["rows_left"], receipt.pending


def is_erased(state: State) -> bool:
    """Whether nothing is there that an erasure removes."""
    return all(name == SHARED or name.startswith("x/") for name in state)


def erased_since(timeline: Timeline, begun: int, cut: int) -> dict[str, bool]:
    """The users who were being erased after a copy was begun, and whether that was acknowledged.

    Beside the key file such a copy has none of them: their keys are shredded.
    """
    found: dict[str, bool] = {}
    for lane, track in timeline.tracks.items():
        for number, operation in enumerate(track.operations):
            if operation[0] == "erase" and begun <= track.begun[number] < cut:
                found[lane] = found.get(lane, False) or track.acked[number] < cut
    return found


def erasure_findings(found: dict[str, State], erased: Mapping[str, bool]) -> list[str]:
    """Whoever was erased is there again in a copy of before."""
    return [
        f"{lane}: was erased since, and is there again"
        for lane, surely in erased.items()
        if surely and not is_erased(found.get(lane, {}))
    ]


def finished(
    db: memcore.Database,
    path: Path,
    timeline: Timeline,
    verdict: Verdict,
    facts: dict[str, int],
) -> list[str]:
    """Do the rest of all erasures; nothing of what was erased may be left in the file.

    A user who is not there may never have been: then what a power cut took back lies in pages that
    nothing uses, no erasure is to be finished, and only what surely was erased is looked for.
    """
    if not any(_erasures(timeline, verdict.present).values()):
        return []
    receipts = db.finish_erasures(verify=False)
    if receipts:
        facts["waiting"] = facts.get("waiting", 0) + 1
    findings = [
        f"an erasure cannot be finished: {receipt.pending}"
        for receipt in receipts
        if not receipt.bytes_gone
    ]
    content = path.read_bytes()
    findings += [
        f"{lane}: operation {number} was erased, and bytes of it are left"
        for lane, numbers in _erasures(timeline, verdict.surely).items()
        for number in range(max(numbers, default=0))
        if f"{lane}|{number}|".encode() in content
    ]
    return findings + [f"after erasures: {what}" for what in db.check()]


def _erasures(timeline: Timeline, counts: dict[str, int]) -> dict[str, list[int]]:
    """The erasures among the first operations of every lane."""
    return {
        lane: [n for n in range(count) if timeline.tracks[lane].operations[n][0] == "erase"]
        for lane, count in counts.items()
    }
