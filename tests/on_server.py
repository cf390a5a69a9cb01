"""``memcore.open`` of a path as a store on a PostgreSQL server, so that tests of files run on it.

``MEMCORE_TEST_SERVER=1`` turns it on. Each path is a schema of its own, dropped when its test ends.
What only a file has stays a file: stores in memory, without durability, encrypted and audited ones.
Tests that look at a file's bytes, or open it in another process, are left out by ``NEED_A_FILE``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import servers

from memcore.database import open as opening

IS_ON = bool(os.environ.get("MEMCORE_TEST_SERVER"))
NEED_A_FILE: frozenset[str] = frozenset()
"""Names of tests that cannot pass on a server."""


class Redirect:
    """Opens paths on one server."""

    def __init__(self, server: servers.Server) -> None:
        import psycopg

        from memcore.store.postgres.store import PostgresStore

        self._server = server
        self._store = PostgresStore
        self._names: set[str] = set()
        self._plain = opening._open_file
        opening._open_file = self.open_file
        self._admin = psycopg.connect(server.dsn, autocommit=True)

    def open_file(self, file: str, *, read_only: bool, create: bool, **options: Any) -> Any:
        """As ``_open_file``."""
        if file.startswith("postgresql:/"):  # of a handle's path, maybe as a Path
            name = file.partition("#")[2]
            address = self._server.address(name)
            return self._store(address, read_only=read_only, create=create)
        is_plain = file == ":memory:" or options.get("access") or options["durability"] == "none"
        if is_plain or os.path.exists(file):
            return self._plain(file, read_only=read_only, create=create, **options)
        name = f"t{blake2b(os.path.realpath(file).encode(), digest_size=8).hexdigest()}"
        self._names.add(name)
        return self._store(
            self._server.address(name),
            read_only=read_only, create=create, durability=options["durability"],
        )  # fmt: skip

    def drop(self) -> None:
        """Drop what one test has made."""
        for name in self._names:
            self._admin.execute(f'drop schema if exists "{name}" cascade')
        self._names.clear()

    def end(self) -> None:
        """Open files again."""
        opening._open_file = self._plain
        self._admin.close()


@contextmanager
def redirected() -> Iterator[Redirect]:
    """A server, on which paths are opened."""
    with servers.postgres() as server:
        redirect = Redirect(server)
        try:
            yield redirect
        finally:
            redirect.end()
