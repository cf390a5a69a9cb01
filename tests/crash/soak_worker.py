"""Processes of the soak besides those of the kill loop: racers, a forker, a hoarder, readers."""

from __future__ import annotations

import faulthandler
import hashlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random

import memcore
from memcore.errors import RevisionConflict

from .ledgers import Ledger, user

RACE = "race"
RACE_ITEMS_MAX = 200
CHILD_STEPS = 5
CHILD_SECONDS = 120
HOARD_BYTES = 2_000_000
HOARD_ITEMS = 4


class Racer:
    """Compare-and-set on one session: each success has a revision that nobody else was given."""

    def __init__(self, db: memcore.Database, acks: Path) -> None:
        self.session = db.session(RACE)
        self.fd = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def step(self) -> None:
        revision = self.session.revision
        try:
            if len(self.session) >= RACE_ITEMS_MAX:
                receipt = self.session.rewind(0, expected_revision=revision)
            else:
                receipt = self.session.append(user("mine"), expected_revision=revision)
        except RevisionConflict:
            os.write(self.fd, b"0\n")  # a sign of life
            return
        os.write(self.fd, b"%d\n" % receipt.revision)
        if receipt.revision != revision + 1:
            raise AssertionError(f"expected revision {revision}, was given {receipt.revision}")


class Worker:
    """One process: its database, its threads, and what it dies of."""

    def __init__(self, path: str, folder: str, name: str, map_bytes: str, seed: str) -> None:
        self.folder = Path(folder)
        self.name = name
        self.random = Random(seed)
        self.path = path
        self.db = memcore.open(path, map_bytes=int(map_bytes))
        self.stop = threading.Event()
        self.threads: list[threading.Thread] = []

    def beside(self, step: Callable[[], None]) -> None:
        """Repeat ``step`` on a thread of its own until the process is asked to finish."""

        def work() -> None:
            try:
                while not self.stop.is_set():
                    step()
            except BaseException:  # noqa: BLE001 - whatever it is, it is a finding
                os.write(1, traceback.format_exc().encode())
                os._exit(3)

        self.threads.append(threading.Thread(target=work))

    def run(self) -> None:
        for thread in self.threads:
            thread.start()
        sys.stdin.read()
        self.stop.set()
        for thread in self.threads:
            thread.join()
        self.db.close()

    # --- roles -------------------------------------------------------------------------------

    def racer(self) -> None:
        for number in range(3):
            self.beside(Racer(self.db, self.folder / f"race-{self.name}{number}").step)

    def forker(self) -> None:
        """Threads write, and the process forks again and again; children race, and fork too."""
        for number in range(2):
            ledger = Ledger(self.folder / f"{self.name}{number}")
            ledger.open()
            ledger.settle(self.db)
            random = Random(self.random.random())
            self.beside(lambda ledger=ledger, random=random: ledger.step(self.db, random))
        racer = Racer(self.db, self.folder / f"race-{self.name}")
        self.beside(lambda: self._fork(racer, generations=2))

    def _fork(self, racer: Racer, generations: int) -> None:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                signal.alarm(CHILD_SECONDS)
                for _ in range(CHILD_STEPS):
                    racer.step()
                if generations > 1:
                    self._fork(racer, generations - 1)
                status = 0
            except BaseException:  # noqa: BLE001 - whatever it is, it is a finding
                os.write(1, traceback.format_exc().encode())
            finally:
                os._exit(status)
        racer.step()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code:
            raise AssertionError(f"a child of a fork ended with {code}")

    def hoarder(self) -> None:
        """Items far above the redo slot, read back, deleted: the map grows under the others."""
        acks = os.open(
            self.folder / f"hoard-{self.name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )

        def step() -> None:
            session = self.db.session("hoard")
            content = self.random.randbytes(self.random.randint(1, HOARD_BYTES // 2)).hex()
            receipt = session.append(user(content))
            found = session.get(receipt.seq).message["content"]
            if hashlib.sha256(found.encode()).digest() != hashlib.sha256(content.encode()).digest():
                raise AssertionError(f"item {receipt.seq} came back with other content")
            if len(session) >= HOARD_ITEMS:
                self.db.delete_session("hoard")
            os.write(acks, b".\n")

        self.beside(step)

    def reader(self) -> None:
        """Holds one snapshot for good and makes others; killed, never asked to finish."""
        held = threading.Event()

        def hold(txn: object) -> None:
            held.set()
            os.write(1, b"!")
            self.stop.wait()

        self.beside(lambda: self.db.engine.store.read(hold))
        self.beside(self._look)

    def _look(self) -> None:
        for entry in self.db.sessions():
            self.db.session(entry.session_id, create=True).context()


def main() -> None:
    role, path, folder, name, map_bytes, seed = sys.argv[1:]
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    worker = Worker(path, folder, name, map_bytes, seed)
    roles: dict[str, Callable[[], None]] = {
        "racer": worker.racer,
        "forker": worker.forker,
        "hoarder": worker.hoarder,
        "reader": worker.reader,
    }
    roles[role]()
    worker.run()


if __name__ == "__main__":
    main()
