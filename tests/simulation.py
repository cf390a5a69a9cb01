"""Simulation of many workers that take leases and append: one thread, one seed, one history.

The calls are memcore's own, on one store; simulated are the network between each worker and the
store (delays, lost requests, lost answers, partitions), every worker's clock (wrong from the start,
and set again now and then), and crashes. Time is that of the simulation, so hours pass in seconds,
and the same seed gives the same history.

    python -m tests.simulation WORKERS SESSIONS SECONDS [SEED]
"""

from __future__ import annotations

import hashlib
import heapq
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import memcore
from memcore.errors import FencedError, LeaseHeldError

START = 1_700_000_000.0
Step = Callable[[], Any]
"""A call of memcore, made where its request arrives."""


class Settings(NamedTuple):
    """What happens, and how often."""

    workers: int
    sessions: int
    seconds: float
    hot: float = 0.3
    """Share of the visits that go to one of eight sessions, which all workers want."""
    lost: float = 0.02
    """Share of requests, and of answers, that are lost."""
    crash_seconds: float = 30.0
    """Mean time of a worker between two crashes, partitions, and settings of its clock each."""
    skew_seconds: float = 3600.0
    """Most that a clock is wrong by."""
    storm_seconds: float = 20.0
    """Time between two partitions that part half of all workers from the store."""


class Answer(NamedTuple):
    """What a worker gets: a result, an error, or nothing in time."""

    result: Any = None
    error: Exception | None = None
    is_late: bool = False


class Worker:
    """One process: its handle, its clock, and what it does."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.skew = world.chance.uniform(-1, 1) * world.settings.skew_seconds
        self.parted_until = 0.0
        self.life = 0
        self.count = 0
        self.db = memcore.open(world.path, durability="none", allow_unsafe=True)
        self.db.engine.now_us = self.now_us

    def now_us(self) -> int:
        """Its clock."""
        return int((START + self.world.now + self.skew) * 1e6)

    def run(self) -> Generator[Step, Answer, None]:
        """Visit sessions for ever: take the lease, append under it, keep it, let it go."""
        chance, world = self.world.chance, self.world
        owner = f"w{self.number}.{self.life}"
        while True:
            name = world.wanted(chance)
            session = self.db.session(name, user="u")
            seconds = chance.uniform(0.5, 20.0)
            answer = yield lambda: session.lease(owner, ttl_seconds=seconds)  # noqa: B023 - made now
            if answer.result is None:
                continue
            lease = answer.result
            for _ in range(chance.randrange(1, 4 if name.startswith("h") else 2)):
                answer = yield from self._append(session, f"{owner}@{lease.epoch}.{self.count}")
                self.count += 1
                if answer.error is not None:
                    break
                if chance.random() < 0.2:
                    yield lease.renew
            if chance.random() < 0.8:
                yield lease.release

    def _append(self, session: memcore.Session, item: str) -> Generator[Step, Answer, Answer]:
        """Append, again with the same key while no answer comes; note what is told."""
        ledger, is_known = self.world.ledger, True
        for _ in range(5):
            answer = yield lambda: session.append(
                {"role": "user", "content": item}, idempotency_key=item
            )
            if answer.result is not None:
                ledger[item] = (session.id, answer.result.seq)
            elif answer.error is not None and is_known:
                ledger[item] = None  # refused
            if not answer.is_late:
                return answer
            is_known = False
        return answer


class World:
    """Events in the order of their times, and all that decides them."""

    def __init__(self, path: Path, settings: Settings, seed: int) -> None:
        self.path, self.settings, self.chance = path, settings, Random(seed)
        self.now = 0.0
        self.ledger: dict[str, tuple[str, int] | None] = {}
        """Of each item what its worker was told: where it is stored, or None if it was refused."""
        self.happened: Counter[str] = Counter()
        self._digest = hashlib.sha256()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._visited = 0
        self.workers = [Worker(self, n) for n in range(settings.workers)]

    def wanted(self, chance: Random) -> str:
        """A session to visit: one that all want, or the next that nobody has visited for long."""
        if chance.random() < self.settings.hot:
            return f"h{chance.randrange(8)}"
        self._visited += 1
        return f"s{self._visited % self.settings.sessions}"

    def at(self, delay: float, event: Callable[[], None]) -> None:
        """Let something happen later."""
        self._number += 1
        heapq.heappush(self._events, (self.now + delay, self._number, event))

    def run(self) -> str:
        """Let the time pass; returns a digest of all that happened."""
        for worker in self.workers:
            self.at(self.chance.random(), lambda worker=worker: self._begin(worker, 0))
            for fault in (self._crash, self._part, self._set_clock):
                self._plan(worker, fault)
        self.at(self.settings.storm_seconds, self._storm)
        while self._events and self._events[0][0] < self.settings.seconds:
            self.now, _, event = heapq.heappop(self._events)
            event()
        return self._digest.hexdigest()

    def note(self, *told: object) -> None:
        """Count an event, and take it into the digest."""
        self.happened[str(told[0])] += 1
        self._digest.update(repr((round(self.now, 6), told)).encode())

    # --- workers and their calls ------------------------------------------------------------------

    def _begin(self, worker: Worker, life: int) -> None:
        if life != worker.life:
            return  # it has crashed again
        work = worker.run()
        self._send(worker, worker.life, work, next(work))

    def _send(
        self, worker: Worker, life: int, work: Generator[Step, Answer, None], call: Step
    ) -> None:
        """Carry a call over the network, and its answer back; after a while it is late."""
        state = {"is_open": True}

        def answered(answer: Answer) -> None:
            if state["is_open"] and life == worker.life:
                state["is_open"] = False
                self._send(worker, life, work, work.send(answer))

        def arrived() -> None:
            answer = self._called(worker, call)
            if not self._is_lost(worker):
                self.at(self._delay(), lambda: answered(answer))

        if not self._is_lost(worker):
            self.at(self._delay(), arrived)
        self.at(5.0, lambda: answered(Answer(is_late=True)))

    def _called(self, worker: Worker, call: Step) -> Answer:
        try:
            result = call()
        except (LeaseHeldError, FencedError) as error:
            self.note(type(error).__name__, worker.number)
            return Answer(error=error)
        self.note("done", worker.number, getattr(result, "seq", 0), getattr(result, "epoch", 0))
        return Answer(result)

    def _delay(self) -> float:
        return self.chance.expovariate(200.0) + (self.chance.random() < 0.01) * self.chance.random()

    def _is_lost(self, worker: Worker) -> bool:
        if self.now < worker.parted_until or self.chance.random() < self.settings.lost:
            self.happened["lost"] += 1
            return True
        return False

    # --- faults -----------------------------------------------------------------------------------

    def _plan(self, worker: Worker, fault: Callable[[Worker], None]) -> None:
        def strike() -> None:
            fault(worker)
            self._plan(worker, fault)

        self.at(self.chance.expovariate(1 / self.settings.crash_seconds), strike)

    def _crash(self, worker: Worker) -> None:
        """End a worker; another one takes its place, under another name."""
        self.note("crash", worker.number)
        worker.life += 1
        life = worker.life
        self.at(self.chance.random(), lambda: self._begin(worker, life))

    def _part(self, worker: Worker) -> None:
        self.note("part", worker.number)
        worker.parted_until = self.now + self.chance.uniform(0.1, 30.0)

    def _set_clock(self, worker: Worker) -> None:
        self.note("clock", worker.number)
        worker.skew = self.chance.uniform(-1, 1) * self.settings.skew_seconds

    def _storm(self) -> None:
        """Part half of all workers from the store: the others take over what they held."""
        self.note("storm")
        for worker in self.workers[:: 2 if self.chance.random() < 0.5 else 3]:
            worker.parted_until = self.now + self.chance.uniform(1.0, 10.0)
        self.at(self.settings.storm_seconds, self._storm)

    def close(self) -> None:
        """Close all handles."""
        for worker in self.workers:
            worker.db.close()


def judge(world: World) -> list[str]:
    """Return what the store holds that contradicts what the workers were told."""
    wrong: list[str] = []
    found: dict[str, tuple[str, int]] = {}
    with memcore.open(world.path, durability="none", allow_unsafe=True) as db:
        wrong += db.check()
        for entry in db.sessions():
            owners: dict[int, str] = {}
            latest = 0
            for item in db.session(entry.session_id, user="u").items():
                name = item.message["content"]
                owner, _, rest = name.partition("@")
                epoch = int(rest.split(".")[0])
                if name in found:
                    wrong.append(f"{name} is stored twice")
                found[name] = (entry.session_id, item.seq)
                if epoch < latest:
                    wrong.append(f"{name} is stored behind an item of epoch {latest}")
                latest = max(latest, epoch)
                if owners.setdefault(epoch, owner) != owner:
                    wrong.append(f"epoch {epoch} of {entry.session_id} has two owners")
    for name, at in world.ledger.items():
        if at is not None and found.get(name) != at:
            wrong.append(f"{name} was acknowledged at {at}, and is at {found.get(name)}")
        elif at is None and name in found:
            wrong.append(f"{name} was refused, and is stored")
    return wrong


def simulated(path: Path, settings: Settings, seed: int) -> tuple[str, list[str], Counter[str]]:
    """Run one simulation; returns its digest, what is wrong, and what happened."""
    world = World(path, settings, seed)
    try:
        digest = world.run()
    finally:
        world.close()
    world.happened["stored"] = sum(at is not None for at in world.ledger.values())
    return digest, judge(world), world.happened


def main() -> None:
    """Run one simulation from the command line."""
    workers, sessions, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else int(time.time())
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "simulated.memcore"
        digest, wrong, happened = simulated(path, Settings(workers, sessions, seconds), seed)
    told = [f"seed {seed}: {dict(happened)}", f"{digest[:16]}, {len(wrong)} wrong", *wrong[:5]]
    sys.stdout.write("\n".join([*told, f"{time.monotonic() - begun:.0f} s"]) + "\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
