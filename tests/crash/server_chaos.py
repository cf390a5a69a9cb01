"""Chaos for a store on a server: killed and stopped workers, server crashes, broken networks, and
clocks that are wrong.

Workers on several connections append to the same sessions while a nemesis strikes. Afterwards every
acknowledged item is there once, at the seq that its receipt said; no refused one is; each session's
seqs are dense; what one thread wrote is in its order; ``check()`` finds nothing. In sessions that
are written under leases, an epoch has one owner, and nothing of an epoch follows a later one's.
"""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Self

from servers import USER, Server
from shim.flushcount import shim

import memcore
from tests.crash.server_worker import LEASED, SESSIONS

ROOT = Path(__file__).parents[2]


class Proxy:
    """A TCP proxy in front of the server's socket, which can cut or freeze what passes."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._muted = threading.Event()
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
                    held = self._frozen if source is client else self._muted
                    while held.is_set() and not self._ended:
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

    def freeze(self, *, answers_only: bool = False) -> None:
        """Let nothing pass, or nothing that the server says."""
        self._muted.set()
        if not answers_only:
            self._frozen.set()

    def thaw(self) -> None:
        """Reset the connections that were frozen, and let others pass."""
        self.cut()
        self._frozen.clear()
        self._muted.clear()

    def close(self) -> None:
        """End the proxy."""
        self._ended = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self.cut()
        for thread in self._threads:
            thread.join()
        self._listener.close()


class Workers:
    """Worker processes, each behind a network and with a clock of its own."""

    def __init__(
        self, server: Server, name: str, directory: Path, *, count: int, seed: int, planted: str
    ) -> None:
        self.ledger = directory / "ledger"
        self._name, self._seed, self._planted = name, seed, planted
        self._clocks = [directory / f"clock{n}" for n in range(count)]
        for clock in self._clocks:
            clock.write_bytes(bytes(8))
        self._library = shim("clock")
        self.proxies = [Proxy(f"{server.directory}/.s.PGSQL.5432") for _ in self._clocks]
        self.running = [self._start(number) for number in range(count)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        address = f"postgresql://{USER}@127.0.0.1:{self.proxies[number].port}/postgres#{self._name}"
        program = f"{self._planted}\nfrom tests.crash.server_worker import main\nmain()"
        self._seed += 1
        asked = [address, str(self.ledger), str(number), str(100 * self._seed)]
        return subprocess.Popen(
            [sys.executable, "-P", "-c", program, *asked],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
                "LD_PRELOAD": str(self._library),
                "CLOCK_FILE": str(self._clocks[number]),
            },
        )

    def restart(self, number: int) -> None:
        """Kill a worker, and start another one in its place."""
        self.running[number].kill()
        self.running[number].wait()
        self.running[number] = self._start(number)

    def set_clock(self, number: int, seconds: float) -> None:
        """Let a worker's clock differ from the machine's from now on."""
        with self._clocks[number].open("r+b") as file:
            file.write(struct.pack("=q", round(seconds * 1e9)))

    def stored(self) -> int:
        """Count the items that were acknowledged."""
        if not self.ledger.exists():
            return 0
        return self.ledger.read_text(encoding="utf-8").count("stored ")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.running:
            worker.send_signal(signal.SIGCONT)
            worker.kill()
            worker.wait()
        for proxy in self.proxies:
            proxy.close()


class Nemesis:
    """Strikes workers, the networks between, their clocks, and the server."""

    FAULTS = ("kill", "stop", "cut", "freeze", "mute", "part", "clock", "clock", "crash")

    def __init__(self, server: Server, workers: Workers, chance: random.Random) -> None:
        self._server, self._workers, self._chance = server, workers, chance

    def strike(self) -> str:
        """Make one fault happen; returns its name."""
        chance, workers = self._chance, self._workers
        which, at = chance.choice(self.FAULTS), chance.randrange(len(workers.running))
        one, proxies = workers.running[at], workers.proxies
        if which == "kill":
            workers.restart(at)
        elif which == "stop":
            one.send_signal(signal.SIGSTOP)
            threading.Event().wait(chance.uniform(0.1, 1.0))
            one.send_signal(signal.SIGCONT)
        elif which == "cut":
            for proxy in proxies:
                proxy.cut()
        elif which == "freeze":
            for proxy in proxies:
                proxy.freeze()
            threading.Event().wait(chance.uniform(0.1, 0.5))
            for proxy in proxies:
                proxy.thaw()
        elif which in ("part", "mute"):  # one worker is cut off, or hears no answers; others go on
            proxies[at].freeze(answers_only=which == "mute")
            threading.Event().wait(chance.uniform(0.1, 3.0))
            proxies[at].thaw()
        elif which == "clock":
            scale = chance.choice((0.1, 1, 10, 3600, 86400))
            workers.set_clock(at, chance.uniform(-scale, scale))
        else:
            self._server.stop(crash=True)
            self._server.start()
        return which


def chaos(
    server: Server,
    name: str,
    directory: Path,
    *,
    seed: int,
    faults: int,
    spawned: int = 3,
    planted: str = "",
) -> tuple[list[str], dict[str, int]]:
    """Run workers under faults; returns what is wrong, and what happened.

    Faults begin when the workers store items, and end when these have stored eight for each.
    ``planted`` is a program that each worker runs first.
    """
    chance = random.Random(seed)
    happened: dict[str, int] = {}
    with Workers(server, name, directory, count=spawned, seed=seed, planted=planted) as workers:
        nemesis = Nemesis(server, workers, chance)
        _wait_for(workers, 1)
        for _ in range(faults):
            threading.Event().wait(chance.uniform(0.1, 0.6))
            struck = nemesis.strike()
            happened[struck] = happened.get(struck, 0) + 1
        _wait_for(workers, 8 * faults)
    with memcore.open(server.address(name)) as db:
        wrong = judge(db, workers.ledger.read_text(encoding="utf-8"), happened)
    return wrong, happened


def _wait_for(workers: Workers, stored: int) -> None:
    """Wait until the workers have stored so many items; for a minute at most, on a busy machine."""
    until = time.monotonic() + 60
    while time.monotonic() < until and workers.stored() < stored:
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
    names = [f"s{n}" for n in range(SESSIONS)] + [f"l{n}" for n in range(LEASED)]
    for session in [db.session(name, user="u") for name in names]:
        try:
            items = list(session.items())
        except memcore.CorruptValueError as error:  # a commit that was lost in part
            wrong.append(f"{session.id}: {error}")
            continue
        contents = [item.message["content"] for item in items]
        if [item.seq for item in items] != list(range(1, len(items) + 1)):
            wrong.append(f"{session.id}: its seqs have gaps")
        wrong += [f"{each} is stored twice" for each in contents if each in found]
        found.update((each, (session.id, seq)) for seq, each in enumerate(contents, 1))
        wrong += _out_of_order(contents)
    for item, at in stored.items():
        if found.get(item) != at:
            wrong.append(f"{item} was acknowledged as {at}, and is {found.get(item)}")
    wrong += [f"{item} was refused, and is stored" for item in refused if item in found]
    return wrong


def _out_of_order(contents: list[str]) -> list[str]:
    """Return what contradicts the order of a thread's own items, or that of a session's leases."""
    wrong: list[str] = []
    latest: dict[str, int] = {}
    owners: dict[int, str] = {}
    epoch = 0
    for name in contents:
        writer, _, count = name.rpartition(".")
        if latest.get(writer, -1) >= int(count):
            wrong.append(f"{name} is out of its writer's order")
        latest[writer] = int(count)
        owner, _, told = writer.partition("@")
        if not told:
            continue
        if int(told) < epoch:
            wrong.append(f"{name} is stored behind an item of epoch {epoch}")
        epoch = max(epoch, int(told))
        if owners.setdefault(int(told), owner) != owner:
            wrong.append(f"epoch {told} is both {owner}'s and {owners[int(told)]}'s")
    return wrong


def main() -> None:
    """Run rounds of faults until the time is up: python -m tests.crash.server_chaos MINUTES."""
    import tempfile

    from servers import postgres

    minutes, seed = float(sys.argv[1]), int(time.time())
    until, total = time.monotonic() + 60 * minutes, Counter[str]()
    with postgres() as server:
        while time.monotonic() < until:
            with tempfile.TemporaryDirectory() as directory:
                wrong, happened = chaos(
                    server, f"chaos{seed}", Path(directory), seed=seed, faults=100
                )
            total.update(happened)
            told = [f"{seed}: {happened}, {len(wrong)} wrong", *wrong[:5]]
            sys.stdout.write("\n  ".join(told) + "\n")
            sys.stdout.flush()
            if wrong:
                sys.exit(1)
            seed += 1
    sys.stdout.write(f"all: {dict(total)}\n")


if __name__ == "__main__":
    main()
