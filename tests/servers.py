"""A PostgreSQL server of its own for tests, ended by its process id."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

USER = "tester"


def programs() -> tuple[str | None, ...]:
    """The paths of ``initdb`` and ``postgres``: those in MEMCORE_POSTGRES, or what is installed."""
    installed = [str(each) for each in sorted(Path("/usr/lib/postgresql").glob("*/bin"))]
    asked = os.environ.get("MEMCORE_POSTGRES")
    search = asked or os.pathsep.join([*installed, os.environ["PATH"]])
    return tuple(shutil.which(name, path=search) for name in ("initdb", "postgres"))


class Server:
    """A running server: its directory holds the data and the socket."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.dsn = f"host={directory} user={USER} dbname=postgres"
        self._who = (
            {"user": "postgres", "group": "postgres", "extra_groups": ()} if not os.getuid() else {}
        )

    def address(self, name: str) -> str:
        """What ``memcore.open`` takes for the store ``name``."""
        return f"postgresql://{USER}@/postgres?host={quote(self.directory, safe='')}#{name}"

    def make(self) -> None:
        """Make the data directory; skips where PostgreSQL is not installed."""
        initdb, postgres = programs()
        if initdb is None or postgres is None:
            pytest.skip("PostgreSQL is not installed")
        if self._who:
            shutil.chown(self.directory, "postgres", "postgres")
        making = [initdb, "-D", f"{self.directory}/data", "-U", USER, "-A", "trust", "--no-sync"]
        subprocess.run(making, check=True, capture_output=True, cwd=self.directory, **self._who)

    def start(self, *more: str) -> None:
        """Start it, and wait until it answers."""
        options = ["-D", f"{self.directory}/data", "-k", self.directory, "-c", "listen_addresses="]
        options += ["-c", "fsync=off", "-c", "max_connections=200"]
        options += [each for option in more for each in ("-c", option)]
        postgres = programs()[1]
        assert postgres is not None
        self.running = subprocess.Popen(
            [postgres, *options], stderr=subprocess.PIPE, text=True, cwd=self.directory, **self._who
        )
        assert self.running.stderr is not None
        ready = "ready to accept connections"
        assert next((x for x in self.running.stderr if ready in x), None) is not None
        self._drain = threading.Thread(target=self.running.stderr.read, daemon=True)
        self._drain.start()

    def stop(self, *, crash: bool = False) -> None:
        """End it; ``crash``: as ``pg_ctl stop -m immediate``, without writing anything more."""
        if crash:
            self.running.send_signal(subprocess.signal.SIGQUIT)  # type: ignore[attr-defined]
        else:
            self.running.send_signal(subprocess.signal.SIGINT)  # type: ignore[attr-defined]
        self.running.wait()
        self._drain.join()
        assert self.running.stderr is not None
        self.running.stderr.close()


@contextmanager
def postgres() -> Iterator[Server]:
    """A server that runs until the end of the block."""
    directory = tempfile.mkdtemp(prefix="memcore-pg-")
    server = Server(directory)
    try:
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory)
