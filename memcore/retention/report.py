"""What a sweep did, and what it stands on while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from memcore.errors import MemcoreError
from memcore.session import Backing
from memcore.tombstone import is_erased

__all__ = ["AuditSweep", "Exporter", "Run", "SweepReport"]

AuditSweep = Callable[[Backing, int, int, int, int], int]
"""Removes entries of an audit: ``(backing, scope, session, before ms, at most) -> how many``; 0 as
session is the scope's own audit, 0 as scope the database's."""


class Exporter(Protocol):
    """Writes what is about to leave as lines of an export."""

    def session(self, scope: int, name: str) -> Iterator[bytes]:
        """Everything of a session."""

    def items(self, scope: int, session: int, seqs: Iterable[int]) -> Iterator[bytes]:
        """Items that a session owns, behind a title of their own."""

    def fields(self, scope: int, session: int, fields: Iterable[str]) -> Iterator[bytes]:
        """Fields of a state as lines of their own sort; session 0: of what sessions share."""

    def entry(self, key: bytes, value: bytes) -> bytes:
        """A key/value entry as a line of its own sort, which no import reads."""


@dataclass(slots=True)
class SweepReport:
    """What a sweep removed, or would remove."""

    dry_run: bool = False
    entries: int = 0
    """Key/value entries, memories of adapters among them, that were gone since their time."""
    items: int = 0
    """Items of which only place and calls are left."""
    items_removed: int = 0
    """Items that left with the beginning of their history."""
    sessions: int = 0
    fields: int = 0
    """Fields of states."""
    checkpoints: int = 0
    threads: int = 0
    thread_checkpoints: int = 0
    """Checkpoints of threads that stay."""
    audit: int = 0
    """Entries of the audit log."""
    bytes: int = 0
    """What all this took, about, without the rows of an index."""
    archived: int = 0
    """Lines that were written to the archive."""
    held: int = 0
    """What was due and is under a legal hold."""
    kept: int = 0
    """What was due and stays: threads if there is an archive, which cannot hold them, checkpoints
    that a serialiser encrypted, and what changed meanwhile or is leased."""
    damaged: int = 0
    """Rows that were due and cannot be read; ``check`` lists them."""
    complete: bool = True
    """Whether all that is due was looked at; False: call it again."""

    @property
    def total(self) -> int:
        """How many things went."""
        return (
            self.entries + self.items + self.items_removed + self.sessions + self.fields
            + self.checkpoints + self.threads + self.thread_checkpoints + self.audit
        )  # fmt: skip

    def mapping(self) -> dict[str, Any]:
        """The report as JSON has it."""
        return asdict(self) | {"total": self.total}


@dataclass(slots=True)
class Run:
    """One sweep: what it stands on, and how far it may go."""

    backing: Backing
    now_ms: int
    limit: int
    report: SweepReport
    exporter: Exporter | None = None
    write: Callable[[Iterable[bytes]], int] | None = None
    """Puts lines into the archive and flushes it; without one nothing is archived."""
    audit: AuditSweep | None = None

    @property
    def dry(self) -> bool:
        """Whether nothing is to be changed."""
        return self.report.dry_run

    @property
    def left(self) -> int:
        """How many things it may still remove."""
        return max(self.limit - self.report.total, 0)

    @contextmanager
    def while_alive(self, scope: int) -> Iterator[None]:
        """Around what is done in a scope: if its user is erased meanwhile, the erasure does it."""
        try:
            yield
        except MemcoreError:
            if not self.backing.store.read(lambda txn: is_erased(txn, scope)):
                raise

    def archive(self, lines: Callable[[Exporter], Iterable[bytes]]) -> None:
        """Put what is about to leave into the archive, if there is one; it is flushed then."""
        if self.write is not None and self.exporter is not None and not self.dry:
            self.report.archived += self.write(lines(self.exporter))
