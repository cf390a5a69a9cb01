"""Chaos for a store on a server: killed and stopped workers, server crashes, broken networks.

Workers on several connections append to the same sessions while a nemesis strikes. Afterwards every
acknowledged item is there once, at the seq that its receipt said; no refused one is; each session's
seqs are dense; what one thread wrote is in its order; ``check()`` finds nothing.
"""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from servers import USER, Server

import memcore
from tests.crash.server_worker import SESSIONS

ROOT = Path(__file__).parents[2]


class Proxy:
    """A TCP proxy in front of the server's socket, which can cut or freeze what passes."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._frozen = threading.Event()
        self._ended = False
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            upstream = socket.socket(socket.AF_UNIX)
            try:
                upstream.connect(self._target)
            except OSError:
                client.close()
                upstream.close()
                continue
            self._pairs.append((client, upstream))
            thread = threading.Thread(target=self._pump, args=(client, upstream), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _pump(self, client: socket.socket, upstream: socket.socket) -> None:
        ends = {client: upstream, upstream: client}
        with suppress(OSError, ValueError):
            while not self._ended:
                for source in select.select(list(ends), [], [], 0.2)[0]:
                    data = source.recv(65536)
                    while self._frozen.is_set() and not self._ended:
                        threading.Event().wait(0.01)
                    if not data:
                        raise OSError
                    ends[source].sendall(data)
        for end in ends:
            end.close()

    def cut(self) -> None:
        """Reset every connection."""
        for pair in self._pairs:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def freeze(self, seconds: float) -> None:
        """Let nothing pass for a while, then cut."""
        self._frozen.set()
        threading.Event().wait(seconds)
        self.cut()
        self._frozen.clear()

    def close(self) -> None:
        """End the proxy."""
        self._ended = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self.cut()
        for thread in self._threads:
            thread.join()
        self._listener.close()


@contextmanager
def workers(address: str, ledger: Path, count: int, seed: int) -> Iterator[list[subprocess.Popen]]:
    """Worker processes, killed at the end of the block."""
    running = [start(address, ledger, n, seed) for n in range(count)]
    try:
        yield running
    finally:
        for worker in running:
            worker.send_signal(signal.SIGCONT)
            worker.kill()
            worker.wait()


def start(address: str, ledger: Path, number: int, seed: int) -> subprocess.Popen:
    """Start one worker."""
    command = [sys.executable, "-P", "-m", "tests.crash.server_worker"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    return subprocess.Popen(
        [*command, address, str(ledger), str(number), str(seed + 100 * number)],
        cwd=ROOT, env=environment,
    )  # fmt: skip


class Nemesis:
    """Strikes workers, the network between, and the server."""

    FAULTS = ("kill", "stop", "cut", "freeze", "crash")

    def __init__(self, server: Server, proxy: Proxy, chance: random.Random) -> None:
        self._server, self._proxy, self._chance = server, proxy, chance

    def strike(self, running: list[subprocess.Popen], address: str, ledger: Path) -> str:
        """Make one fault happen; returns its name."""
        chance = self._chance
        which, at = chance.choice(self.FAULTS), chance.randrange(len(running))
        if which == "kill":
            running[at].kill()
            running[at].wait()
            running[at] = start(address, ledger, at, chance.randrange(1 << 30))
        elif which == "stop":
            running[at].send_signal(signal.SIGSTOP)
            threading.Event().wait(chance.uniform(0.1, 1.0))
            running[at].send_signal(signal.SIGCONT)
        elif which == "cut":
            self._proxy.cut()
        elif which == "freeze":
            self._proxy.freeze(chance.uniform(0.1, 0.5))
        else:
            self._server.stop(crash=True)
            self._server.start()
        return which


def chaos(
    server: Server, name: str, directory: Path, *, seed: int, faults: int, spawned: int = 3
) -> tuple[list[str], dict[str, int]]:
    """Run workers under faults; returns what is wrong, and what happened.

    Faults begin when the workers store items, and end when these have stored eight for each.
    """
    proxy = Proxy(f"{server.directory}/.s.PGSQL.5432")
    ledger = directory / "ledger"
    address = f"postgresql://{USER}@127.0.0.1:{proxy.port}/postgres#{name}"
    chance = random.Random(seed)
    nemesis = Nemesis(server, proxy, chance)
    happened: dict[str, int] = {}
    try:
        with workers(address, ledger, spawned, seed) as running:
            _wait_for(ledger, 1)
            for _ in range(faults):
                threading.Event().wait(chance.uniform(0.1, 0.6))
                struck = nemesis.strike(running, address, ledger)
                happened[struck] = happened.get(struck, 0) + 1
            _wait_for(ledger, 8 * faults)
    finally:
        proxy.close()
    with memcore.open(server.address(name)) as db:
        wrong = judge(db, ledger.read_text(encoding="utf-8"), happened)
    return wrong, happened


def _wait_for(ledger: Path, stored: int) -> None:
    """Wait until the workers have stored so many items; for a minute at most, on a busy machine."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if ledger.exists() and ledger.read_text(encoding="utf-8").count("stored ") >= stored:
            return
        threading.Event().wait(0.1)


def judge(db: memcore.Database, ledger: str, happened: dict[str, int]) -> list[str]:
    """Return what the store holds that the workers' ledger contradicts."""
    stored: dict[str, tuple[str, int]] = {}
    refused: set[str] = set()
    for line in ledger.splitlines():
        what, item, *rest = line.split()
        happened[what] = happened.get(what, 0) + 1
        if what == "stored":
            stored[item] = (rest[0], int(rest[1]))
        elif what == "refused":
            refused.add(item)
    wrong: list[str] = list(db.check())
    found: dict[str, tuple[str, int]] = {}
    for number in range(SESSIONS):
        session = db.session(f"s{number}", user="u")
        latest: dict[str, int] = {}
        try:
            items = list(session.items())
        except memcore.CorruptValueError as error:  # a commit that was lost in part
            wrong.append(f"{session.id}: {error}")
            continue
        for seq, item in enumerate(items, 1):
            name = item.message["content"]
            if item.seq != seq:
                wrong.append(f"{session.id}: seq {item.seq} at position {seq}")
            if name in found:
                wrong.append(f"{name} is stored twice")
            found[name] = (session.id, item.seq)
            writer, _, count = name.rpartition(".")
            if latest.get(writer, -1) >= int(count):
                wrong.append(f"{name} is out of its writer's order")
            latest[writer] = int(count)
    for item, at in stored.items():
        if found.get(item) != at:
            wrong.append(f"{item} was acknowledged as {at}, and is {found.get(item)}")
    wrong += [f"{item} was refused, and is stored" for item in refused if item in found]
    return wrong


def main() -> None:
    """Run seeds one after the other: python -m tests.crash.server_chaos SEEDS FAULTS."""
    import tempfile

    from servers import postgres

    seeds, faults = int(sys.argv[1]), int(sys.argv[2])
    first = int(time.time())
    for seed in range(first, first + seeds):
        with postgres() as server, tempfile.TemporaryDirectory() as directory:
            wrong, happened = chaos(server, "chaos", Path(directory), seed=seed, faults=faults)
            told = [f"{seed}: {happened}, {len(wrong)} wrong", *wrong[:5]]
            sys.stdout.write("\n  ".join(told) + "\n")
            sys.stdout.flush()
            if wrong:
                sys.exit(1)


if __name__ == "__main__":
    main()
