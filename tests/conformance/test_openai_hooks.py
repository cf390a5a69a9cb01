"""MemcoreSession under the SDK's wrappers, encrypted by itself, with items that expire."""

from __future__ import annotations

import asyncio
import inspect
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from agents import Agent, RunConfig, Runner, SQLiteSession
from agents.exceptions import UserError
from agents.extensions.memory import EncryptedSession
from agents.memory import OpenAIResponsesCompactionSession
from agents.testing import ScriptedModel, assistant_message
from cryptography.fernet import Fernet, InvalidToken

import memcore
from memcore.adapters.openai_agents import MemcoreSession
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.errors import UnreadableItemsError
from memcore.session.session import store_of
from memcore.store.commit import Leader
from messages import user
from raw import rows

KEY = Fernet.generate_key()
SUMMARY = {"type": "compaction", "id": "cmp", "encrypted_content": "said"}
DAY_US = 24 * 3600 * 1_000_000


def run(work: Any) -> Any:
    return asyncio.run(work)


class Clock:
    def __init__(self, db: memcore.Database) -> None:
        self.us = 1_700_000_000_000_000
        db.engine.now_us = lambda: self.us


@pytest.fixture
def clock(db):
    return Clock(db)


@pytest.fixture
def session(db):
    return MemcoreSession("chat", db)


def fc(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}


def fo(call_id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": "done"}


# --- compaction -----------------------------------------------------------------------------------


def compacting(backend: Any, while_it_runs: Any = None) -> OpenAIResponsesCompactionSession:
    async def compact(**_: Any) -> Any:
        if while_it_runs is not None:
            await while_it_runs()
        return SimpleNamespace(output=[SUMMARY], usage=None)

    client: Any = SimpleNamespace(responses=SimpleNamespace(compact=compact))
    return OpenAIResponsesCompactionSession(
        "chat", backend, client=client, compaction_mode="input",
        should_trigger_compaction=lambda _: True,
    )  # fmt: skip


async def talk(session: Any, limit: int | None = None) -> None:
    model = ScriptedModel([[assistant_message("done")]])
    config = RunConfig(session_settings={"limit": limit}, tracing_disabled=True)
    await Runner.run(Agent(name="a", model=model), "go on", session=session, run_config=config)


def test_compaction_replaces_what_the_model_saw_in_one_commit(session):
    async def work():
        await session.add_items([user(str(n)) for n in range(4)])
        await talk(compacting(session), limit=2)
        return await session.get_items()

    assert run(work()) == [user("0"), user("1"), SUMMARY]
    assert session.native().revision == 4  # four items, the question, the answer, the replacement


def test_who_writes_while_it_is_compacted_loses_nothing(session):
    async def work():
        await session.add_items([user(str(n)) for n in range(4)])
        await talk(compacting(session, lambda: session.add_items([user("late")])))
        return await session.get_items()

    found = run(work())
    assert len(found) == 7
    assert found[-1] == user("late")
    assert SUMMARY not in found


def test_a_commit_that_fails_leaves_the_history(session, monkeypatch):
    def refuse(*_: Any) -> None:
        raise OSError("no")

    async def fail():
        monkeypatch.setattr(Leader, "_commit", refuse)

    async def work():
        await session.add_items([user("a")])
        with pytest.raises(memcore.StorageError):
            await talk(compacting(session, fail))
        monkeypatch.undo()
        return await session.get_items()

    found = run(work())
    assert found[:2] == [user("a"), user("go on")]
    assert len(found) == 3
    assert SUMMARY not in found


def test_a_manual_compaction_is_one_commit_too(session):
    async def work():
        await session.add_items([user("a"), user("b")])
        await compacting(session).run_compaction({"force": True})
        return await session.get_items()

    assert run(work()) == [SUMMARY]
    assert session.native().revision == 2


def test_a_manual_compaction_of_what_is_damaged(tmp_path):
    async def work(session):
        await session.add_items([user("a"), user("b")])
        native = session.native().sync
        log = native._ref.resolve()
        key = keys.session_row(*log.place, Row.ITEM, 1)
        store_of(native).transact(lambda txn: txn.put(key, txn.get(key)[:-1] + b"~"))
        await compacting(session).run_compaction({"force": True})
        return await session.get_items()

    with MemcoreSession("a", tmp_path / "damaged") as session:
        assert run(work(session)) == [SUMMARY]


def test_a_cancelled_replacement_is_settled_before_who_comes_next(session):
    async def work():
        await session.add_items([user("a"), user("b")])
        snapshot = await session._get_compaction_snapshot(9)
        queue = store_of(session.native().sync)._env.queue
        lead = queue.claim(5)
        replacing = asyncio.create_task(snapshot.replace_suffix(1, [SUMMARY]))
        await asyncio.sleep(0)
        replacing.cancel()
        await asyncio.sleep(0)
        adding = asyncio.create_task(session.add_items([user("c")]))
        await asyncio.sleep(0)
        assert not replacing.done()
        queue.release(lead)
        with pytest.raises(asyncio.CancelledError):
            await replacing
        await adding
        return await session.get_items()

    assert run(work()) == [user("a"), SUMMARY, user("c")]


def test_a_snapshot_says_whether_it_is_all_and_of_what_is_damaged_there_is_none(tmp_path):
    async def work(session):
        await session.add_items([user("a")])
        await session.native().record("note", {})
        await session.add_items([{"n": float("inf")}])
        whole = await session._get_compaction_snapshot(9)
        part = await session._get_compaction_snapshot(2)
        assert (whole.items, whole.complete) == ([user("a"), {"n": float("inf")}], True)
        assert (part.items, part.complete) == ([{"n": float("inf")}], False)
        assert not await whole.replace_suffix(2, [])
        assert await whole.replace_suffix(1, [user("b")])
        assert not await part.replace_suffix(0, [])
        assert await session.get_items() == [user("a"), user("b")]

    with MemcoreSession("a", tmp_path / "x") as session:
        run(work(session))


class Shouting(MemcoreSession):
    async def add_items(self, items: Any, **options: Any) -> None:
        await super().add_items([{**item, "loud": True} for item in items], **options)


class Counting(MemcoreSession):
    _is_as_stored = True


def test_a_subclass_that_may_transform_items_has_no_snapshot(db):
    async def work():
        for kind in (Shouting, Counting):
            session = kind("a", db)
            await session.add_items([user("a")])
            await compacting(session).run_compaction({"force": True})
            yield await session.get_items(), await session._get_compaction_snapshot(3)

    async def both():
        return [found async for found in work()]

    (loud, none), (quiet, snapshot) = run(both())
    assert loud == [{**SUMMARY, "loud": True}]
    assert none is None
    assert quiet == [SUMMARY]
    assert snapshot is not None


# --- the SDK's EncryptedSession -------------------------------------------------------------------


def enveloped(backend: Any, key: bytes = KEY, ttl: int = 600) -> EncryptedSession:
    return EncryptedSession("chat", backend, encryption_key=key.decode(), ttl=ttl)


def test_envelopes_are_kept_as_they_are(session):
    async def work():
        await enveloped(session).add_items([user("secret"), fo("nobody")])
        stored = await session.get_items()
        return stored, await enveloped(session).get_items(5), await enveloped(session).pop_item()

    stored, found, popped = run(work())
    assert all(set(item) == {"__enc__", "v", "kid", "payload"} for item in stored)
    assert found == [user("secret"), fo("nobody")]
    assert popped == fo("nobody")


@pytest.mark.parametrize("count", [1, 3])
def test_a_pop_with_a_wrong_key_leaves_everything(session, count):
    async def work():
        await enveloped(session).add_items([user(str(n)) for n in range(count)])
        before = await session.get_items()
        with pytest.raises(InvalidToken):
            await enveloped(session, Fernet.generate_key()).pop_item()
        assert await session.get_items() == before
        return await enveloped(session).pop_item()

    assert run(work()) == user(str(count - 1))


def test_a_pop_takes_what_expired_only_with_the_right_key(session, monkeypatch):
    now = [1000]
    monkeypatch.setattr("cryptography.fernet.time.time", lambda: now[0])

    async def work():
        await enveloped(session, ttl=10).add_items([user("a"), user("b")])
        now[0] += 11
        with pytest.raises(InvalidToken):
            await enveloped(session, Fernet.generate_key(), ttl=10).pop_item()
        assert len(await session.get_items()) == 2
        assert await enveloped(session, ttl=10).pop_item() is None
        return await session.get_items()

    assert run(work()) == []


def test_a_pop_of_what_is_damaged_goes_on_as_in_sqlite(session):
    async def work():
        await session.add_items([user("no envelope")])
        await enveloped(session).add_items([user("a")])
        await session.add_items([{**(await session.get_items())[-1], "payload": "no token"}])
        with pytest.raises(InvalidToken):
            await enveloped(session).pop_item()
        await session.pop_item()
        assert await enveloped(session).pop_item() == user("a")
        assert await enveloped(session).pop_item() is None  # plain ones are passed over, as there
        return await session.get_items()

    assert run(work()) == []


class Popping(MemcoreSession):
    async def pop_item(self, **options: Any) -> Any:
        return await super().pop_item(**options)


def test_a_session_stands_for_sqlite_where_its_pop_is_asked_for(db):
    session = MemcoreSession("chat", db)
    assert isinstance(session, SQLiteSession)
    assert MemcoreSession.pop_item is SQLiteSession.pop_item
    assert "wrapper" in inspect.signature(session.pop_item).parameters
    assert Popping.pop_item is not SQLiteSession.pop_item

    async def work():
        await session.add_items([user("a"), user("b")])
        assert await MemcoreSession.pop_item(session) == user("b")
        return await Popping("chat", db).pop_item()

    assert run(work()) == user("a")


def test_a_pop_for_one_of_many_users_is_refused_under_the_sdks_encryption(db):
    async def work():
        session = MemcoreSession("chat", db, scope_of=lambda wrapper: ("app", wrapper.context))
        wrapper: Any = SimpleNamespace(context="ann")
        await enveloped(session).add_items([user("a")], wrapper=wrapper)
        with pytest.raises(UserError):
            await enveloped(session, Fernet.generate_key()).pop_item(wrapper=wrapper)
        return await enveloped(session).get_items(wrapper=wrapper)

    assert run(work()) == [user("a")]


def test_validation_happens_before_anything_is_removed(session):
    def refuse(item: Any) -> None:
        raise InvalidToken

    def broken(item: Any) -> None:
        raise PermissionError("whatever it is")

    async def work():
        await session.add_items([user("a"), user("b")])
        for check, error in ((refuse, InvalidToken), (broken, PermissionError)):
            with pytest.raises(error):
                await session._pop_item_with_validation(check)
        seen: list[Any] = []
        assert await session._pop_item_with_validation(seen.append) == user("b")
        assert seen == [user("b")]
        return await session.get_items()

    assert run(work()) == [user("a")]


def test_compaction_reclaims_what_expired_under_encryption(session, monkeypatch):
    now = [1000]
    monkeypatch.setattr("cryptography.fernet.time.time", lambda: now[0])

    async def work():
        wrapped = enveloped(compacting(session), ttl=10)
        await wrapped.add_items([user("expired")] * 40)
        now[0] += 11
        await wrapped.add_items([user(f"live {n}") for n in range(6)])
        session.session_settings = {"limit": 6}
        await talk(wrapped, limit=6)
        return await session.get_items(-1)

    assert len(run(work())) == 1


# --- native encryption ----------------------------------------------------------------------------

SECRETS = [user("secret"), fc("c1"), fo("c1"), ["secret"], {"n": float("inf"), "s": "secret"}, None]


def test_encrypted_items_come_back_and_are_not_in_the_file(db):
    async def work():
        session = MemcoreSession("chat", db, encryption_key=KEY)
        await session.add_items(SECRETS)
        assert await session.get_items() == SECRETS
        again = MemcoreSession("chat", db, encryption_key=KEY.decode(), cache_bytes=0)
        assert await again.get_items(2) == SECRETS[-2:]
        assert session.native().open_calls == []
        return await again.pop_item(), await again.pop_item()

    assert run(work()) == (None, SECRETS[-2])
    assert not any(b"secret" in value for value in rows(db.engine.store).values())


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"encryption_key": "another"}, "another key"), ({}, "no key")],
)
def test_what_cannot_be_decrypted_is_told_and_stays(db, options, reason, caplog):
    async def work():
        await MemcoreSession("chat", db, encryption_key=KEY).add_items([user("a"), user("b")])
        wrong = MemcoreSession("chat", db, **options)
        for call in (wrong.get_items, lambda: wrong.get_items(1), wrong.pop_item):
            with pytest.raises(UnreadableItemsError, match=reason) as caught:
                await call()
        assert caught.value.reasons == {reason: 1}
        with pytest.raises(UnreadableItemsError, match=f"2 items .*2 {reason}"):
            await wrong.get_items()
        skipping = MemcoreSession("chat", db, unreadable="skip", **options)
        await skipping.add_items([user("c")])
        assert await skipping.get_items(2) == [user("c")]
        assert skipping.skipped_items == 2
        assert f"2 {reason}" in caplog.text
        assert await wrong._get_compaction_snapshot(9) is None

    run(work())


def tampered(db: memcore.Database, change: Any) -> MemcoreSession:
    """A session of which one message was changed by who has no key."""

    async def work():
        session = MemcoreSession("chat", db, encryption_key=KEY)
        await session.add_items([fc("c1")])
        native = session.native()
        message = dict((await native.undo(1))[0].message)
        change(message)
        await native.append(message)
        return session

    return run(work())


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(call_id="c2"),
        lambda m: m.update(more=1),
        lambda m: m.pop("type"),
        lambda m: m.update(__memcore_sealed__=m["__memcore_sealed__"][:-8] + "AAAAAAA="),
        lambda m: m.update(__memcore_sealed__=m["__memcore_sealed__"][:8]),
        lambda m: m.update(__memcore_sealed__="no base64"),
        lambda m: m.update(__memcore_sealed__=7),
    ],
)
def test_whatever_is_changed_of_a_sealed_item_is_found_out(db, change):
    with pytest.raises(UnreadableItemsError, match="changed"):
        run(tampered(db, change).get_items())


def test_no_item_opens_elsewhere_and_clear_ones_are_not_taken_for_sealed(db):
    async def work():
        one = MemcoreSession("one", db, encryption_key=KEY)
        await one.add_items([user("a")])
        (item,) = [item async for item in one.native().items()]
        for other in (MemcoreSession("two", db, encryption_key=KEY),
                      MemcoreSession("one", db, user="u", encryption_key=KEY)):  # fmt: skip
            await other.native().append(item.message)
            with pytest.raises(UnreadableItemsError, match="another key"):
                await other.get_items()
        await one.native().append(user("slipped in"))
        with pytest.raises(UnreadableItemsError, match="1 in clear"):
            await one.get_items()

    run(work())


def test_keys_may_be_turned_over(db):
    async def work():
        await MemcoreSession("chat", db, encryption_key="old").add_items([user("a")])
        both = MemcoreSession("chat", db, encryption_key=["new", "old"])
        await both.add_items([user("b")])
        assert await both.get_items() == [user("a"), user("b")]
        return await MemcoreSession("chat", db, encryption_key="new").get_items(1)

    assert run(work()) == [user("b")]


def test_equal_items_differ_and_retries_are_the_same(db):
    async def work():
        session = MemcoreSession("chat", db, encryption_key=KEY)
        await session.add_items([user("a"), user("a")])
        for _ in range(2):
            await session.add_items([user("b"), user("b")], idempotency_key="k")
        assert len(await session.get_items()) == 4
        return {item.message["__memcore_sealed__"] async for item in session.native().items()}

    assert len(run(work())) == 4


def test_compaction_of_an_encrypted_session(db):
    async def work():
        session = MemcoreSession("chat", db, encryption_key=KEY)
        await session.add_items([user("secret one"), user("secret two")])
        await talk(compacting(session), limit=1)
        return await session.get_items()

    assert run(work()) == [user("secret one"), SUMMARY]


# --- age ------------------------------------------------------------------------------------------


def test_what_expired_is_neither_returned_nor_kept(db, clock, caplog):
    caplog.set_level(logging.INFO, "memcore.openai_agents")

    async def work():
        session = MemcoreSession("chat", db, ttl_seconds=60)
        await session.add_items([user("secret"), fc("c")])
        clock.us += 59 * 1_000_000
        assert len(await session.get_items()) == 2
        await session.add_items([fo("c")])
        clock.us += 2 * 1_000_000
        assert await session.get_items(9) == [fc("c"), fo("c")]
        assert "1 expired items removed" in caplog.text
        assert not any(b"secret" in value for value in rows(db.engine.store).values())
        assert await session.get_items(1) == [fo("c")]
        clock.us += 60 * 1_000_000
        assert await session.pop_item() is None
        return await MemcoreSession("chat", db).get_items()

    assert run(work()) == []


def test_few_expired_items_wait_for_more_and_are_not_shown(db, clock):
    async def work():
        session = MemcoreSession("chat", db, ttl_seconds=60)
        await session.add_items([user("old")])
        clock.us += 61 * 1_000_000
        await session.add_items([user(str(n)) for n in range(20)])
        assert len(await session.get_items()) == 20
        assert len(session.native()) == 21
        snapshot = await session._get_compaction_snapshot(21)
        assert (len(snapshot.items), snapshot.complete) == (20, True)
        assert await session._read_compaction_items(21) == (snapshot.items, True)
        assert (await session._read_compaction_items(None))[1] is False
        assert await session.remove_expired() == 1
        assert await session.remove_expired() == 0
        return len(session.native())

    assert run(work()) == 20
    assert run(MemcoreSession("chat", db).remove_expired()) == 0


def test_large_content_that_is_damaged_stops_no_expiry(tmp_path):
    def lose(txn):
        large = [key for key, value in txn.scan(b"\x01", b"\xff") if len(value) > 50_000]
        for key in large:
            txn.delete(key)
        return len(large)

    async def work(database):
        clock, session = Clock(database), MemcoreSession("chat", database, ttl_seconds=10)
        await session.add_items([user("old")])
        clock.us += 9_000_000
        await session.add_items([user("x" * 1_000_000), user("new")])
        assert store_of(session.native().sync).transact(lose)
        clock.us += 2_000_000
        assert await session.get_items() == [user("new")]
        return await session.pop_item()

    with memcore.open(tmp_path / "damaged") as database:
        assert run(work(database)) == user("new")


def test_a_time_to_live_may_be_endless(db, clock):
    session = MemcoreSession("chat", db, ttl_seconds=float("inf"))
    run(session.add_items([user()]))
    clock.us += 365 * DAY_US
    assert run(session.get_items()) == [user()]


def test_a_retry_after_a_renewal_stores_nothing_twice(db, clock):
    async def work():
        session = MemcoreSession("chat", db, ttl_seconds=60)
        await session.add_items([user("old")], idempotency_key="old")
        clock.us += 40 * 1_000_000
        await session.add_items([user("a"), user("b")], idempotency_key="turn 2")
        assert session.native().sync.state.update({"n": 1}, idempotency_key="state") == 1
        clock.us += 30 * 1_000_000
        assert await session.remove_expired() == 1
        await session.add_items([user("a"), user("b")], idempotency_key="turn 2")
        assert await session.get_items() == [user("a"), user("b")]
        with pytest.raises(memcore.DuplicateRequestError):
            await session.add_items([user("c")], idempotency_key="turn 2")
        assert session.native().sync.state.update({"n": 1}, idempotency_key="state") == 1
        await session.add_items([user("old")], idempotency_key="old")  # it is gone: a new one
        return await session.get_items()

    assert run(work()) == [user("a"), user("b"), user("old")]


def usage_of(tokens: int) -> Any:
    usage = SimpleNamespace(
        requests=1, input_tokens=tokens, output_tokens=0, total_tokens=tokens,
        input_tokens_details=None, output_tokens_details=None,
    )  # fmt: skip
    return SimpleNamespace(context_wrapper=SimpleNamespace(usage=usage))


async def two_turns(session: MemcoreSession, between: Any = None) -> None:
    for at, text in enumerate(("one", "two"), 1):
        await session.add_items([user(text), said(text)])
        await session.store_run_usage(usage_of(at))
        if between is not None and at == 1:
            between()


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def tokens_by_turn(rows_of: Any) -> dict[int, int]:
    return {row["user_turn_number"]: row["input_tokens"] for row in rows_of}


def test_usage_stays_with_its_turn_over_a_renewal(db, clock):
    def later() -> None:
        clock.us += 40 * 1_000_000

    async def work():
        session = MemcoreSession("chat", db, ttl_seconds=60)
        await two_turns(session, later)
        assert tokens_by_turn(await session.get_turn_usage()) == {1: 1, 2: 2}
        clock.us += 30 * 1_000_000
        assert await session.remove_expired() == 2
        assert tokens_by_turn(await session.get_turn_usage()) == {1: 2}
        await session.add_items([user("three")])
        await session.store_run_usage(usage_of(3))
        assert tokens_by_turn(await session.get_turn_usage()) == {1: 2, 2: 3}
        assert await session.pop_item() == user("three")
        assert tokens_by_turn(await session.get_turn_usage()) == {1: 2}
        await session.pop_item()
        assert await session.pop_item() == user("two")
        return await session.get_turn_usage()

    assert run(work()) == []


def test_usage_of_a_session_that_a_sweep_renewed_is_not_told(db, clock):
    async def work():
        session = MemcoreSession("chat", db)
        await two_turns(session)
        await session.create_branch_from_turn(2, "other")
        await session.store_run_usage(usage_of(7))
        await session.switch_to_branch("main")
        db.retention.set([{"what": "items", "keep_last": 2, "action": "remove"}])
        yield (await session.get_session_usage())["input_tokens"]
        assert db.sweep().items_removed == 0  # the branch refers to the items
        await session.delete_branch("other")
        assert db.sweep().items_removed == 2
        assert len(await session.get_items()) == 2
        yield await session.get_session_usage()
        await session.store_run_usage(usage_of(4))
        yield tokens_by_turn(await session.get_turn_usage())

    async def all_of_it():
        return [found async for found in work()]

    assert run(all_of_it()) == [10, None, {1: 4}]


def test_usage_goes_with_turns_that_are_replaced(session):
    async def work():
        await two_turns(session)
        snapshot = await session._get_compaction_snapshot(2)
        assert await snapshot.replace_suffix(0, [SUMMARY])
        yield tokens_by_turn(await session.get_turn_usage())
        await compacting(session).run_compaction({"force": True})
        yield tokens_by_turn(await session.get_turn_usage())

    async def both():
        return [found async for found in work()]

    assert run(both()) == [{1: 1}, {}]


def test_what_was_counted_of_readers_outlives_a_renewal(tmp_path):
    db = memcore.open(tmp_path / "file", access_counts=True)
    clock = Clock(db)

    async def work():
        session = MemcoreSession("chat", db, ttl_seconds=60)
        await session.add_items([user("old")])
        clock.us += 40 * 1_000_000
        await session.add_items([user("a")])
        native = db.session("chat", policy="openai_responses", orphans="keep")
        assert [native.get(seq).message for seq in (1, 2, 2)][-1] == user("a")
        await session.add_items([user("b")])
        before = native.accessed().count
        clock.us += 30 * 1_000_000
        assert await session.remove_expired() == 1
        native = db.session("chat", policy="openai_responses", orphans="keep")
        assert native.accessed().count == before
        return native.accessed(1).count, native.accessed(2).count

    assert run(work()) == (2, 0)
    db.close()


# --- a history that is replaced as a whole --------------------------------------------------------


@pytest.mark.parametrize("first", [[], [user("a"), user("b")]])
def test_a_forced_compaction_refuses_to_lose_what_others_add(db, first):
    other = MemcoreSession("chat", db)

    async def meanwhile():
        await other.add_items([user("foreign")])

    async def work():
        session = MemcoreSession("chat", db)
        if first:
            await session.add_items(first)
        wrapped = compacting(session, meanwhile)
        with pytest.raises(memcore.RevisionConflict):
            await wrapped.run_compaction({"force": True})
        assert await session.get_items() == [*first, user("foreign")]
        assert (
            db.session("chat", policy="openai_responses", orphans="keep").revision
            == bool(first) + 1
        )
        await compacting(session).run_compaction({"force": True})
        return await session.get_items()

    assert run(work()) == [SUMMARY]


def test_nothing_is_replaced_that_a_forced_compaction_did_not_see(db):
    asked: list[Any] = []

    async def work():
        session, other = MemcoreSession("chat", db), MemcoreSession("chat", db)
        wrapped = compacting(session)
        compact = wrapped.client.responses.compact
        wrapped.client.responses.compact = lambda **given: asked.append(given) or compact(**given)
        wrapped.should_trigger_compaction = lambda _: False
        await wrapped.add_items([user("a")])
        await wrapped.run_compaction({"response_id": "r1"})  # which remembers what it read
        await other.add_items([user("foreign")])
        await wrapped.add_items([user("mine")])
        with pytest.raises(memcore.RevisionConflict):
            await wrapped.run_compaction({"force": True})
        await wrapped.run_compaction({"force": True})
        return await session.get_items()

    assert run(work()) == [SUMMARY]
    assert [len(given["input"]) for given in asked] == [2, 3]


def test_items_that_come_with_a_run_state_hide_nobody_elses_from_a_compaction(db):
    async def work():
        session, other = MemcoreSession("chat", db), MemcoreSession("chat", db)
        wrapped = compacting(session)
        wrapped.should_trigger_compaction = lambda _: False
        await wrapped.add_items([user("a")])
        await wrapped.run_compaction({"response_id": "r1"})  # which remembers what it read
        await other.add_items([user("foreign")])
        await session.save_run_state(None, items=[user("with the state")])
        with pytest.raises(memcore.RevisionConflict):
            await wrapped.run_compaction({"force": True})
        return await session.get_items()

    assert run(work()) == [user("a"), user("foreign"), user("with the state")]


def test_a_session_that_was_cleared_and_begun_anew_is_not_overwritten(db):
    other = MemcoreSession("chat", db)

    async def meanwhile():
        await other.clear_session()
        await other.add_items([user("new")])

    async def work():
        session = MemcoreSession("chat", db)
        await session.add_items([user("old")])
        with pytest.raises(memcore.RevisionConflict):
            await compacting(session, meanwhile).run_compaction({"force": True})
        return await session.get_items()

    assert run(work()) == [user("new")]


def test_what_expires_while_a_compaction_runs_is_no_conflict(db, clock):
    async def later():
        clock.us += 30 * 1_000_000

    async def work():
        session = MemcoreSession("chat", db, ttl_seconds=60)
        await session.add_items([user("old")])
        clock.us += 40 * 1_000_000
        await session.add_items([user("a")])
        await compacting(session, later).run_compaction({"force": True})
        return await session.get_items()

    assert run(work()) == [SUMMARY]


@pytest.mark.parametrize("text", [7, "{", None, "[" * 100_000])
def test_a_row_that_only_looks_like_one_of_ours_is_told(db, text):
    async def work():
        session = MemcoreSession("chat", db)
        await session.add_items([user("a")])
        await session.native().append({"role": "user", "content": "", "__memcore_json__": text})
        windowed = MemcoreSession("chat", db, budget_tokens=500_000)
        for call in (session.get_items, session.pop_item, windowed.get_items):
            with pytest.raises(UnreadableItemsError, match="no item"):
                await call()
        return await MemcoreSession("chat", db, unreadable="skip").get_items()

    assert run(work()) == [user("a")]
