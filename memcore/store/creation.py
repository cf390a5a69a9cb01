"""A new file: built whole under another name, flushed, then given its name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from memcore.codec import clock_ms
from memcore.errors import StorageError, StoreAccessError, StoreFullError
from memcore.store import lmdb as binding
from memcore.store.device import is_cramped
from memcore.store.file import drop_pages, publish, replace_empty
from memcore.store.format import ENCRYPTED, FORMAT_KEY, REDO_KEY, Format
from memcore.store.naming import LOCK, temporary_name
from memcore.store.run import SEED_BYTES, make_run

__all__ = ["build_file", "create_file", "new_record"]

_FILE_MODE: Final = 0o600


def new_record(durability: str, *, seed: bytes | None = None) -> Format:
    """The format record of a file that is made now, with a seed of its own.

    With the ``seed`` of a key file it is one of an encrypted database.
    """
    return Format.new(
        durability=durability,
        seed=os.urandom(SEED_BYTES) if seed is None else seed,
        created_ms=clock_ms(),
        features=0 if seed is None else ENCRYPTED,
    )


def build_file(path: str, record: Format, *, sync: bool) -> None:
    """Fill an empty or missing file with what every store holds."""
    run = make_run(record.seed, relaxed=record.durability == "relaxed")
    rows = {FORMAT_KEY: record.pack(), REDO_KEY: run}
    binding.build(path, rows, sync=sync, mode=_FILE_MODE)


def create_file(name: str, durability: str, *, seed: bytes | None = None) -> None:
    """Make a store at ``name``: never half a file. ``seed``: as in ``new_record``.

    A file of 0 bytes that is there is replaced, as a name that somebody has reserved.

    Raises:
        FileExistsError: somebody else was first.
        StoreAccessError: the system refused.
        StoreFullError: no space is left.
    """
    temporary = temporary_name(name)
    try:
        build_file(temporary, new_record(durability, seed=seed), sync=True)
        drop_pages(temporary)
        if not replace_empty(temporary, name):
            publish(temporary, name)
    except FileExistsError:
        raise
    except (OSError, StorageError) as error:
        if _is_full(name):  # LMDB calls a write that was cut short an input/output error
            raise StoreFullError(f"{name}: cannot create: no space is left; free some") from error
        if isinstance(error, StorageError):
            raise
        raise StoreAccessError(f"{name}: cannot create: {error.strerror}") from error
    finally:
        # By functions in C alone, as in ``copying.beside``.
        try:
            os.unlink(temporary)
        except OSError:
            pass
        finally:
            try:  # noqa: SIM105 - as above
                os.unlink(temporary + LOCK)
            except OSError:
                pass


def _is_full(path: str) -> bool:
    """Whether the device, or a limit, may have no room for a new file beside ``path``."""
    try:
        fd = os.open(Path(path).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return is_cramped(fd, 0)
    finally:
        os.close(fd)
