"""A loose file: a store that nobody else knows yet, looked at or filled before it gets its name.

Not through ``open_store``: whoever works on such a file may have the lead of another environment,
for which an opener waits with the lock on opening.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from memcore.limits import MAP_BYTES_DEFAULT
from memcore.store import lmdb as binding
from memcore.store.creation import build_file
from memcore.store.environment import Environment
from memcore.store.format import FORMAT_KEY, Format
from memcore.store.handle import LmdbStore
from memcore.store.run import find_run
from memcore.store.vault import Vault

__all__ = ["built", "examined"]


@contextmanager
def examined(path: str, *, vault: Vault | None = None) -> Iterator[LmdbStore]:
    """A finished copy, opened read-only; ``vault``: of the database that it is a copy of."""
    with _opened(path, vault, read_only=True) as store:
        yield store


@contextmanager
def built(path: str, record: Format, *, vault: Vault | None = None) -> Iterator[LmdbStore]:
    """The empty file at ``path`` as an open store; at the end it is what ``record`` says.

    Nothing of it is durable before the caller has flushed the file.
    """
    build_file(path, record._replace(durability="none"), sync=False)
    with _opened(path, vault, read_only=False) as store:
        yield store
    binding.amend(path, {FORMAT_KEY: record.pack()})
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        find_run(fd, path).set_mode(fd, relaxed=record.durability == "relaxed")
    finally:
        os.close(fd)


@contextmanager
def _opened(path: str, vault: Vault | None, *, read_only: bool) -> Iterator[LmdbStore]:
    env = Environment(path, map_bytes=MAP_BYTES_DEFAULT)
    env.vault = vault
    env.attach(read_only=read_only)
    try:
        yield LmdbStore(env, read_only=read_only)
    finally:
        env.shut()
