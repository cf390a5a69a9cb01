"""What an asynchronous database offers about its audit and its keys: a part of AsyncDatabase."""

from __future__ import annotations

import asyncio
from typing import Any

from memcore.audit.report import AuditedEntry, AuditReport
from memcore.database import Database
from memcore.database.keying import KeyStatus, Rotation
from memcore.privacy.provider import Key

__all__ = ["AsyncGuarded"]


class AsyncGuarded:
    """Audit and keys: all of it walks the file or waits for a device, so it runs in a thread."""

    _database: Database

    async def verify_audit(self, **options: Any) -> AuditReport:
        """As ``Database.verify_audit``."""
        return await asyncio.to_thread(self._database.verify_audit, **options)

    async def audit_entries(
        self, session_id: str | None = None, **options: Any
    ) -> list[AuditedEntry]:
        """As ``Database.audit_entries``, as a list."""
        return await asyncio.to_thread(
            lambda: list(self._database.audit_entries(session_id, **options))
        )

    async def anchor_audit(self, anchor: Any = None, **options: Any) -> int:
        """As ``Database.anchor_audit``."""
        return await asyncio.to_thread(self._database.anchor_audit, anchor, **options)

    async def cut_audit(self, *, older_than_seconds: float | None = None) -> int:
        """As ``Database.cut_audit``."""
        return await asyncio.to_thread(
            self._database.cut_audit, older_than_seconds=older_than_seconds
        )

    async def key_status(self) -> KeyStatus:
        """As ``Database.key_status``."""
        return await asyncio.to_thread(self._database.key_status)

    async def rotate_key(self, key: Key) -> None:
        """As ``Database.rotate_key``."""
        await asyncio.to_thread(self._database.rotate_key, key)

    async def rotate_data_keys(self, **options: Any) -> Rotation:
        """As ``Database.rotate_data_keys``."""
        return await asyncio.to_thread(self._database.rotate_data_keys, **options)
