"""Exports, imports and iteration of asynchronous handles."""

from __future__ import annotations

import asyncio

import memcore
import memcore.aio


def test_what_is_exported_is_imported() -> None:
    async def main() -> None:
        async with memcore.aio.open(":memory:") as db, memcore.aio.open(":memory:") as other:
            for number in range(40):  # more than are read at a time
                session = db.session(f"s{number:02}", user="ann")
                await session.extend([{"role": "user", "content": str(n)} for n in range(20)])
            assert [item.message["content"] async for item in session] == [*map(str, range(20))]
            chunks = [chunk async for chunk in db.export(user="ann")]
            assert chunks == list(db.sync.export(user="ann"))
            done = await other.import_(b"".join(chunks).splitlines(keepends=True))
            assert (done.sessions, done.failures) == (40, [])
            assert [chunk async for chunk in other.export(user="ann")] == chunks
            assert await other.pending_erasures() == 0
            async for _ in db.export(user="ann"):
                break  # an export that is left early holds nothing open
            assert await db.check() == []

    asyncio.run(main())


def test_a_closed_database_is_not_entered() -> None:
    db = memcore.open(":memory:")
    db.close()
    try:
        with db:
            pass
    except memcore.ClosedError as error:
        assert "open it again" in str(error)
    else:
        raise AssertionError("it was entered")
