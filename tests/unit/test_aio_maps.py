"""AsyncKeyValue: what the synchronous one does, without a thread for single entries."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import pytest

import memcore
import memcore.aio
from memcore.aio import AsyncBlobStore, AsyncKeyValue
from memcore.errors import InvalidItemError, InvalidOptionError
from raw import rows

LARGE = b"x" * 200_000


def contents(db: memcore.Database) -> list[bytes]:
    """Rows of contents, those that are being removed included."""
    return [key for key in rows(db.engine.store) if key[0] in (6, 7, 13)]


def run(db: memcore.Database, main: Callable[[AsyncKeyValue], Awaitable[Any]]) -> Any:
    async def inside() -> Any:
        return await main(memcore.aio.AsyncDatabase(db).scope().kv("notes"))

    return asyncio.run(inside())


@pytest.mark.parametrize("durability", ["full", "none"], indirect=True)
def test_single_entries_take_no_thread(
    db: memcore.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> NoReturn:
        raise AssertionError("a thread")

    async def main(kv: AsyncKeyValue) -> list[Any]:
        monkeypatch.setattr(asyncio, "to_thread", refuse)
        found = []
        for number in range(10):  # enough for commits on the loop's own thread
            await kv.put("a", {"n": number}, ttl_seconds=1000)
            await kv.put_many({"b": [number], "c": b"raw"})
            await kv.put_many({})
            found = [await kv.get("a"), await kv.get("b"), await kv.get("none", "default")]
            found += [await kv.increment("n", 2), await kv.delete("c"), await kv.delete("c")]
            found += [await kv.transact(lambda txn: (txn.put("t", 1), txn.get("a"))[1])]
            found += [await kv.expires("a") is None, await kv.expires("b")]
        return found

    assert run(db, main) == [{"n": 9}, [9], "default", 20, True, False, {"n": 9}, False, None]
    monkeypatch.undo()
    assert sorted(key for key, _ in db.scope().kv("notes").scan()) == ["a", "b", "n", "t"]


def test_a_function_of_the_caller_s_runs_in_another_thread(db: memcore.Database) -> None:
    async def main(kv: AsyncKeyValue) -> set[str]:
        return {await kv.transact(lambda _: threading.current_thread().name) for _ in range(10)}

    assert run(db, main) == {"memcore-writer"}


def test_a_large_content_is_stored_and_leaves(db: memcore.Database) -> None:
    async def main(kv: AsyncKeyValue) -> list[Any]:
        await kv.put("a", 1, content=LARGE)
        await kv.put("b", 2, content=memoryview(b"small"))
        found = [await kv.content("a") == LARGE, await kv.content("b")]
        await kv.put("a", 3)
        return [*found, await kv.get("a"), await kv.content("a")]

    assert run(db, main) == [True, b"small", 3, None]
    assert len(contents(db)) == 2  # header and chunk of the small one


def test_a_large_content_that_a_deletion_leaves_goes_too(db: memcore.Database) -> None:
    async def main(kv: AsyncKeyValue) -> bool:
        await kv.put("a", 1, content=b"y" * 9_000_000)
        return await kv.delete("a")

    assert run(db, main)
    assert contents(db) == []


def test_what_is_wrong_is_said_before_anything_is_queued(db: memcore.Database) -> None:
    async def main(kv: AsyncKeyValue) -> None:
        with pytest.raises(InvalidOptionError, match="empty"):
            await kv.put("", 1)
        with pytest.raises(InvalidItemError, match="NaN"):
            await kv.put_many({"a": 1, "b": float("nan")})
        with pytest.raises(InvalidOptionError, match="mapping"):
            await kv.put_many([("a", 1)])  # type: ignore[arg-type]
        with pytest.raises(InvalidOptionError, match="str"):
            await kv.get(7)  # type: ignore[arg-type]
        with pytest.raises(InvalidItemError, match="expected an int"):
            await kv.put("text", "t")
            await kv.increment("text")

    run(db, main)
    assert dict(db.scope().kv("notes").scan()) == {"text": "t"}


def test_increments_of_many_tasks_are_exact(db: memcore.Database) -> None:
    async def main(kv: AsyncKeyValue) -> list[int]:
        return await asyncio.gather(*(kv.increment("n") for _ in range(100)))

    assert sorted(run(db, main)) == list(range(1, 101))


def test_a_blob_is_looked_up_off_the_loop(db, monkeypatch) -> None:
    """On a server, that is a round trip."""
    scope = db.scope(user="u")
    address = scope.blobs.put(b"x" * 600_000)
    readers: list[str] = []
    store = type(db.engine.store)
    read = store.read

    def note(self: Any, *args: Any, **options: Any) -> Any:
        readers.append(threading.current_thread().name)
        return read(self, *args, **options)

    async def main() -> bytes:
        blobs = AsyncBlobStore(scope.blobs)
        return b"".join([chunk async for chunk in blobs.open(address)])

    monkeypatch.setattr(store, "read", note)
    assert asyncio.run(main()) == b"x" * 600_000
    assert readers
    assert threading.main_thread().name not in readers
