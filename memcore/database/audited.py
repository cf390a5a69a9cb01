"""What a database offers about its audit: a part of ``Database``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

from memcore.audit.report import AuditedEntry, AuditReport
from memcore.database.auditing import anchor_audit, cut_audit, list_audit, verify_audit
from memcore.database.permitted import Permitted

__all__ = ["Audited"]


class Audited(Permitted):
    """The audit of an open database."""

    def verify_audit(
        self,
        *,
        key: bytes | None = None,
        anchor: str | os.PathLike[str] | Iterable[str | bytes] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> AuditReport:
        """Prove every entry of the audit, and every row by its entry; name what does not hold.

        It reads stored bytes: no data key is needed. One read transaction a chain.

        Args:
            key: the audit key; None: the one that the database was opened with.
            anchor: the anchor's file or its lines; None: the file that it was opened with, if any.
            progress: called with (chains done, chains in all).

        Raises:
            InvalidOptionError: there is no key.
            AuditError: the file is not audited, or the anchor cannot be read.
            NotFoundError: there is no such anchor.
        """
        self._need("verify_audit")
        return verify_audit(self._backing, key=key, anchor=anchor, progress=progress)

    def audit_entries(
        self, session_id: str | None = None, *, user: str | None = None, app: str | None = None
    ) -> Iterator[AuditedEntry]:
        """The entries of a session's chain; without a session those of a user, else the database's.

        Raises:
            NotFoundError: there is no such session or user.
        """
        self._need("audit_entries", app=app, user=user, name=session_id)
        return list_audit(self._backing, session_id, user=user, app=app)

    def anchor_audit(
        self,
        anchor: str | os.PathLike[str] | None = None,
        *,
        key: bytes | None = None,
        reset: bool = False,
    ) -> int:
        """Put down where all chains stand, those that have not grown, too; how many there are.

        Args:
            anchor: the file to append to; None: what the database was opened with.
            key: the audit key; None: the one that the database was opened with.
            reset: what was anchored before binds no more: after a backup was restored on purpose.

        Raises:
            InvalidOptionError: there is no anchor, or no key.
            AuditError: it cannot be written.
        """
        self._need("anchor_audit")
        return anchor_audit(self._backing, anchor, key=key, reset=reset)

    def cut_audit(self, *, older_than_seconds: float | None = None) -> int:
        """Forget old entries of the audit; how many. What they say of rows that are there stays.

        Args:
            older_than_seconds: None: ``Audit.keep_seconds``.

        Raises:
            InvalidOptionError: the database was opened without an audit, or no age is known.
            AuditError: an entry does not prove what it says.
        """
        self._need("cut_audit")
        return cut_audit(self._backing, older_than_seconds)
