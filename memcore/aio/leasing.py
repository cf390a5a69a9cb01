"""AsyncLease: a session's lease with ``await``."""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import Self

from memcore.aio.commit import commit
from memcore.session import Lease, Session

__all__ = ["AsyncLease", "Leased"]


class AsyncLease:
    """As ``Lease``."""

    def __init__(self, session: Session, sync: Lease) -> None:
        self._session = session
        self.sync = sync

    def __repr__(self) -> str:
        return f"Async{self.sync!r}"

    @property
    def owner(self) -> str:
        """As ``Lease.owner``."""
        return self.sync.owner

    @property
    def epoch(self) -> int:
        """As ``Lease.epoch``."""
        return self.sync.epoch

    @property
    def expires_at(self) -> float:
        """As ``Lease.expires_at``."""
        return self.sync.expires_at

    async def renew(self, ttl_seconds: float | None = None) -> None:
        """As ``Lease.renew``."""
        self.sync.settle(await commit(self._session, self.sync.renewing(ttl_seconds)))

    async def release(self) -> bool:
        """As ``Lease.release``."""
        try:
            return await commit(self._session, self.sync.releasing())
        finally:
            self.sync.drop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.release()


class Leased:
    """What ``AsyncSession.lease`` returns: to be awaited, or used in ``async with``."""

    def __init__(self, session: Session, owner: str, ttl_seconds: float, *, force: bool) -> None:
        self._session = session
        self._asked = owner, ttl_seconds, force
        self._lease: AsyncLease | None = None

    def __await__(self) -> Generator[object, None, AsyncLease]:
        return self._take().__await__()

    async def _take(self) -> AsyncLease:
        leasing, (owner, ttl_seconds, force) = self._session.leasing, self._asked
        closure, ttl_ms = leasing.taking(owner, ttl_seconds, force=force)
        row = await commit(self._session, closure)
        return AsyncLease(self._session, leasing.taken(row, ttl_ms))

    async def __aenter__(self) -> AsyncLease:
        self._lease = await self._take()
        return self._lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lease is not None:
            await self._lease.release()
