"""What salvage says of what it saved and what is lost."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SalvageReport", "SalvagedSession"]


@dataclass(frozen=True, slots=True)
class SalvagedSession:
    """A session of which something was lost, or of which it is not sure what counts."""

    app: str
    user: str
    session_id: str
    items: int
    """Live items that it has now."""
    lost: tuple[int, ...]
    """Seqs of the items that are gone."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SalvageReport:
    """What was saved and what was lost."""

    path: str
    durability: str
    sessions: int
    items: int
    """Live items of all sessions."""
    items_lost: int
    """Items that are known to be gone; there may be more on pages that could not be read."""
    entries: int
    """Key/value entries."""
    blobs: int
    blobs_lost: int
    threads: int
    """Threads of graphs."""
    pages_unread: int | None
    """Pages in use that could not be read in full; None if the list of free pages is lost."""
    damaged: tuple[SalvagedSession, ...]
    lost: tuple[str, ...]
    """What is gone, beside items: sessions, entries, blobs, in words."""
    unsure: tuple[str, ...]
    """What was possibly deleted or replaced before, in words."""

    @property
    def share(self) -> float:
        """The share of the items that was saved, of those that are known to have been there."""
        known = self.items + self.items_lost
        return self.items / known if known else 1.0
