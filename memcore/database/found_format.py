"""The format record of a damaged file, or what can be said of it."""

from __future__ import annotations

from memcore.codec import clock_ms
from memcore.errors import KeyNeededError, StorageError, StoreFormatError
from memcore.store.format import ENCRYPTED, GRAPH_ROWS, Format
from memcore.store.vault import Vault
from memcore.store.wreck import Wreck

__all__ = ["format_of"]


def format_of(wreck: Wreck, source: str, vault: Vault | None) -> Format | None:
    """The format record, or one made from the reserved run's head; None without either.

    Raises:
        KeyNeededError: the file is encrypted, and there is no vault.
        StoreFormatError: nothing in it was written by memcore.
    """
    features = GRAPH_ROWS if vault is None else ENCRYPTED | GRAPH_ROWS
    problem: StorageError | None = None
    for row in wreck.format_rows:
        try:
            found = Format.unpack(row, source)
        except StorageError as error:
            problem = error
            continue
        if found.features & ENCRYPTED and vault is None:
            raise KeyNeededError(f"{source}: is encrypted; salvage it with key=")
        return found
    seed = None if wreck.run is None else wreck.run.seed
    if not wreck.rows and seed is None:
        if isinstance(problem, StoreFormatError):
            raise problem
        msg = f"{source}: nothing in it was written by memcore"
        raise StoreFormatError(msg)
    if seed is None:
        return None
    mode = "relaxed" if wreck.run is not None and wreck.run.relaxed else "full"
    return Format.new(durability=mode, seed=seed, created_ms=clock_ms(), features=features)
