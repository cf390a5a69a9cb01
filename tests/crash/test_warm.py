"""Warm copies under faults: what was shipped is in the copy, which is one state of its file."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from servers import USER, Server, postgres

import memcore
from memcore.errors import SupersededError
from tests.crash.server_chaos import ROOT, Proxy

NAMES = ("a", "b")
"""Workers, each with a session of its own; all use one file."""


class Round:
    """A file, its warm copy, and the workers that use it through a proxy."""

    def __init__(
        self, server: Server, place: Path, number: int, seed: int, *, planted: str, ship: str
    ) -> None:
        self._server = server
        self._place = place
        self._planted = planted
        self._ship = ship
        self._chance = random.Random(seed)
        self.path = place / f"file{number}"
        self.name = f"copy{number}"
        self.proxy = Proxy(f"{server.directory}/.s.PGSQL.5432")
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        address = f"postgresql://{USER}@127.0.0.1:{self.proxy.port}/postgres?sslmode=disable"
        ledger, seed = self._place / f"{self.name}.{name}", str(self._chance.randrange(2**32))
        program = f"{self._planted}import sys\nfrom tests.crash.warm_worker import main\n"
        program += "main(sys.argv[1:])"
        asked = [self.path, f"{address}#{self.name}", ledger, name, seed, self._ship]
        self._running[name] = subprocess.Popen(
            [sys.executable, "-c", program, *asked], cwd=ROOT, stderr=subprocess.DEVNULL
        )

    def strike(self, faults: int) -> None:
        """Strike ``faults`` times at work that goes on, and kill it at last."""
        for name in NAMES:
            self.start(name)
        while sum(self.noted(name, "S") >= 0 for name in NAMES) < len(NAMES):
            self._look_at_workers()
            threading.Event().wait(0.01)
        for _ in range(faults):
            threading.Event().wait(self._chance.random() * 0.3)
            match self._chance.randrange(4):
                case 0 | 1:
                    name = self._chance.choice(NAMES)
                    self._running[name].kill()
                    self._running[name].wait()
                    self.start(name)
                case 2:
                    self.proxy.cut()
                case 3:
                    self._server.stop(crash=True)
                    self._server.start()
        threading.Event().wait(self._chance.random() * 0.3)
        self._look_at_workers()
        self.end()

    def _look_at_workers(self) -> None:
        assert [each.poll() for each in self._running.values()] == [None, None]

    def end(self) -> None:
        for each in self._running.values():
            each.kill()
            each.wait()
        self._running.clear()

    def noted(self, name: str, what: str) -> int:
        """The last number that a worker noted."""
        ledger = self._place / f"{self.name}.{name}"
        lines = ledger.read_text(encoding="ascii").split("\n")[:-1] if ledger.exists() else []
        return max((int(line[2:]) for line in lines if line[0] == what), default=-1)

    def judge(self) -> list[str]:
        """What is wrong with the file or its copy, which is promoted."""
        wrong = []
        address = self._server.address(self.name)
        memcore.promote(address)
        with memcore.open(self.path) as file, memcore.open(address) as copy:
            for where, db in (("file", file), ("copy", copy)):
                wrong += [f"{where}: {finding}" for finding in db.check()]
                for name in NAMES:
                    found = [int(item.message["content"].split()[0])
                             for item in db.session(name).items()]  # fmt: skip
                    if found != list(range(len(found))):
                        wrong.append(f"{where}: {name} is not in order: {found}")
                    least = self.noted(name, "A" if where == "file" else "S")
                    if len(found) <= least:
                        wrong.append(f"{where}: {name} has {len(found)} of at least {least + 1}")
            for name in NAMES:
                held = [item.message for item in copy.session(name).items()]
                if held != [item.message for item in file.session(name).items()][: len(held)]:
                    wrong.append(f"the copy of {name} is not what the file was")
            copy.session("a").append({"role": "user", "content": "on"})
        with pytest.raises(SupersededError):
            memcore.open(self.path, warm=address)
        return wrong


def rounds(
    place: Path, *, count: int, faults: int, seed: int, planted: str = "", ship: str = "async"
) -> list[str]:
    wrong: list[str] = []
    with postgres() as server:
        for number in range(count):
            each = Round(server, place, number, seed * 1000 + number, planted=planted, ship=ship)
            try:
                each.strike(faults)
                try:
                    wrong += each.judge()
                except memcore.MemcoreError as error:
                    wrong.append(f"{type(error).__name__}: {error}")
            finally:
                each.end()
                each.proxy.close()
    return wrong


@pytest.mark.parametrize("ship", ["async", "sync"])
def test_faults(tmp_path: Path, ship: str) -> None:
    assert rounds(tmp_path, count=2, faults=4, seed=7, ship=ship) == []


@pytest.mark.long
@pytest.mark.parametrize("ship", ["async", "sync"])
@pytest.mark.parametrize("seed", range(2))
def test_many_faults(tmp_path: Path, seed: int, ship: str) -> None:
    assert rounds(tmp_path, count=10, faults=6, seed=seed, ship=ship) == []


def test_a_shipment_that_is_not_waited_for_is_found(tmp_path: Path) -> None:
    """A planted bug: ``ship`` returns at once."""
    planted = "from memcore.database.warm import WarmCopy\nWarmCopy.ship = lambda *_: None\n"
    wrong = rounds(tmp_path, count=4, faults=0, seed=1, planted=planted)
    assert any("of at least" in each for each in wrong)


def test_a_page_that_is_left_out_is_found(tmp_path: Path) -> None:
    """A planted bug: of the pages that changed, the last is not looked at."""
    planted = (
        "from memcore.store import changes\n"
        "real = changes.leaves_apart\n"
        "def skips(read, old, new):\n"
        "    gone, fresh = real(read, old, new)\n"
        "    return (gone[:-1], fresh[:-1]) if old else (gone, fresh)\n"
        "changes.leaves_apart = skips\n"
    )
    assert rounds(tmp_path, count=2, faults=0, seed=2, planted=planted)
