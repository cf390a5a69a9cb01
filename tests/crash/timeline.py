"""What must be in the file at a power cut: the marks of a recorded log, read as promises."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any, NamedTuple

from .recording import Op, Record, mark_of
from .verbs import VERBS, State, Step, is_big

NEVER = 2**62


class Track:
    """The operations of one lane: when each began, when it was acknowledged, what it made."""

    def __init__(self, lane: str) -> None:
        self.lane = lane
        self.operations: list[list[Any]] = []
        self.begun: list[int] = []
        self.acked: list[int] = []
        self.states: list[State] = [{}]

    def begin(self, at: int, operation: list[Any]) -> None:
        state = dict(self.states[-1])
        name, *arguments = operation
        VERBS[name].then(state, Step(self.lane, len(self.operations), arguments))
        self.operations.append(operation)
        self.begun.append(at)
        self.acked.append(NEVER)
        self.states.append(state)

    def blobs(self) -> list[str]:
        """Tags of all blobs that were ever put."""
        return [name[2:] for name in self.states[-1] if name.startswith("b/")]


class Bounds(NamedTuple):
    """How many operations of a lane a file may hold: at least ``floor``, at most ``ceiling``."""

    floor: int
    ceiling: int


class Copy(NamedTuple):
    """A backup that may be there, or must, and between which points of the log it was taken."""

    name: str
    required: bool
    begun: int
    ended: int


class Timeline:
    """All lanes of a log, and what was seen or made steady when. Positions count records."""

    def __init__(self, log: Iterable[Record], durability: str) -> None:
        self.durability = durability
        self.tracks: dict[str, Track] = {}
        self.seen: list[tuple[int, str, int]] = []
        self.steady: list[tuple[int, int]] = []
        self.closed: list[tuple[int, list[str]]] = []
        self.failures: list[str] = []
        self._steady_begun: dict[str, int] = {}
        for at, record in enumerate(log):
            if record.op is Op.MARK:
                self._take(at, mark_of(record))

    def _take(self, at: int, mark: dict[str, Any]) -> None:
        kind = mark["kind"]
        if kind == "begin":
            lane = mark["lane"]
            self.tracks.setdefault(lane, Track(lane)).begin(at, mark["operation"])
        elif kind == "ack":
            track = self.tracks[mark["lane"]]
            track.acked[mark["number"]] = at
            if track.operations[mark["number"]][0] == "flush":
                self.steady.append((track.begun[mark["number"]], at))
        elif kind == "seen":
            self.seen.append((at, mark["lane"], mark["number"]))
        elif kind == "closed":
            self.closed.append((at, mark["lanes"]))
        elif kind == "steady-begin":
            self._steady_begun[mark["point"]] = at
        elif kind == "steady-end":
            self.steady.append((self._steady_begun.pop(mark["point"]), at))
        elif kind == "failure":
            self.failures.append(f"{mark['lane']}: {mark['what']}")

    def bounds(self, cut: int) -> dict[str, Bounds]:
        """What the file must hold if the power fails before record ``cut``."""
        if self.durability == "relaxed":
            promised = max((begun for begun, ended in self.steady if ended < cut), default=0)
            found = self.between(promised, cut)
            for at, lanes in self.closed:
                if at < cut:  # closing leaves nothing that a power cut could take
                    found |= {lane: Bounds(*[found[lane].ceiling] * 2) for lane in lanes}
            return found
        found = self.between(cut, cut)
        for at, lane, number in self.seen:
            floor, ceiling = found.get(lane, Bounds(0, 0))
            if at < cut and number >= floor and not is_big(self.tracks[lane].operations[number]):
                found[lane] = Bounds(number + 1, ceiling)
        return found

    def between(self, early: int, late: int) -> dict[str, Bounds]:
        """At least what was acknowledged before ``early``, at most what began before ``late``."""
        found = {
            lane: Bounds(bisect_left(track.acked, early), bisect_left(track.begun, late))
            for lane, track in self.tracks.items()
        }
        return {lane: bounds for lane, bounds in found.items() if bounds.ceiling}

    def copies(self, cut: int) -> list[Copy]:
        """The backups that had begun before ``cut``."""
        return [
            Copy(operation[1], track.acked[n] < cut, track.begun[n], min(track.acked[n], cut))
            for track in self.tracks.values()
            for n, operation in enumerate(track.operations)
            if operation[0] == "backup" and track.begun[n] < cut
        ]


class Verdict(NamedTuple):
    """How many operations of every lane are there, and what is wrong with that.

    Several numbers may give the same state: ``present`` is the largest of them, ``surely`` the
    smallest that what was promised allows.
    """

    present: dict[str, int]
    surely: dict[str, int]
    findings: list[str]


def compare(timeline: Timeline, bounds: dict[str, Bounds], found: dict[str, State]) -> Verdict:
    """Hold what a database has against what it may have.

    Besides its bounds, no lane may hold an operation that began after one was acknowledged that is
    missing in another: what is there is a prefix over all sessions.
    """
    findings = [
        f"{lane}: stored, but never begun: {sorted(found[lane])[:3]}"
        for lane in sorted(found.keys() - bounds.keys())
        if found[lane]
    ]
    present: dict[str, int] = {}
    surely: dict[str, int] = {}
    least: dict[str, int] = {}
    for lane, (floor, ceiling) in bounds.items():
        states, state = timeline.tracks[lane].states, found.get(lane, {})
        fits = [count for count in range(ceiling + 1) if states[count] == state]
        if not fits:
            findings.append(
                f"{lane}: no state that it ever had: {_difference(states, floor, state)}"
            )
        elif fits[-1] < floor:
            lost = timeline.tracks[lane].operations[fits[-1]]
            findings.append(
                f"{lane}: lost: holds {fits[-1]} of {floor} operations, not {lost}"[:200]
            )
        else:
            present[lane], least[lane] = fits[-1], fits[0]
            surely[lane] = next(count for count in fits if count >= floor)
    return Verdict(present, surely, findings + _gaps(timeline, present, least))


def _difference(states: list[State], floor: int, state: State) -> str:
    expected = states[floor]
    names = [n for n in expected.keys() | state.keys() if expected.get(n) != state.get(n)]
    return "; ".join(
        f"{n}: {str(state.get(n))[-90:]} instead of {str(expected.get(n))[-90:]}"
        for n in sorted(names)[:2]
    )


def _gaps(timeline: Timeline, present: dict[str, int], least: dict[str, int]) -> list[str]:
    begun = max((timeline.tracks[i].begun[least[i] - 1] for i in present if least[i]), default=0)
    return [
        f"{lane}: operation {count} is missing, but a later one of another lane is there"
        for lane, count in present.items()
        if count < len(timeline.tracks[lane].acked) and timeline.tracks[lane].acked[count] < begun
    ]
