"""What the verification of an audit has found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from memcore.store.recording import Place

__all__ = ["AuditFinding", "AuditReport", "AuditedEntry", "Suspicion", "Why"]


class Why(StrEnum):
    """What was done to an entry, or to the row that it tells of."""

    MODIFIED = "modified"
    DELETED = "deleted"
    INSERTED = "inserted"
    REORDERED = "reordered"
    SWAPPED = "swapped"
    """The rows of two entries hold each other's content."""
    RESTORED = "restored"
    """A row is there again that was deleted."""
    ROLLED_BACK = "rolled back"
    """The head of the session is an older one."""
    TRUNCATED = "truncated"
    """Entries are missing at the end of the chain."""
    REWRITTEN = "rewritten"
    """The chain holds, but it is another one than was anchored: somebody has the key."""
    UNAUDITED = "unaudited"
    """Rows that no entry tells of: written without audit, or their entries were cut off."""


class Suspicion(NamedTuple):
    """The first thing that is wrong with one chain."""

    place: Place
    number: int
    why: Why
    what: str


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """The first entry of a chain that does not hold, and why."""

    app: str | None
    user: str | None
    session: str | None
    """None: the chain of the user's scope, or, if ``user`` is None, too, the database's."""
    scope_number: int
    session_number: int
    entry: int
    """The number of the first bad entry; one behind the last if what is wrong lies behind it."""
    why: Why
    what: str

    def __str__(self) -> str:
        if self.session_number:
            name = f"{self.session!r}" if self.session is not None else f"{self.session_number}"
            whose = f"session {name} of user {self.user!r} in app {self.app!r}"
        elif self.scope_number:
            whose = f"user {self.user!r} in app {self.app!r}"
        else:
            whose = "the database"
        return f"{whose}: entry {self.entry}: {self.why}: {self.what}"


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What ``Database.verify_audit`` has found; ``ok`` if nothing."""

    findings: tuple[AuditFinding, ...]
    """One for each chain that does not hold."""
    anchor_problems: tuple[str, ...]
    """What is wrong with the anchor itself."""
    chains: int
    entries: int
    """Entries whose mac proves them."""
    rows: int
    """Rows that are what their entries say."""
    anchors: int
    """Lines of the anchor."""
    resets: int
    """How often the anchor was begun anew on purpose."""
    is_anchored: bool
    """False: no anchor was given, so chains that were cut off at the end do not show."""
    needs_recovery: bool
    """The last commit waits for an opening for writing: it may read as truncated until then."""

    @property
    def ok(self) -> bool:
        """Whether everything holds."""
        return not (self.findings or self.anchor_problems)


@dataclass(frozen=True, slots=True)
class AuditedEntry:
    """One entry of a chain, for the eye."""

    number: int
    at_ms: int
    operation: str
    row: str
    """What it tells of, in words or as hexadecimal digits."""
    mac: str
