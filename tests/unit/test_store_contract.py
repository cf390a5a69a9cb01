"""What every store promises: an ordered map with transactions, on LMDB, in memory, on a server."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memcore.codec import keys
from memcore.codec.keys import Kind, Row
from memcore.errors import ClosedError, InternalError, ReadOnlyError
from memcore.store import open_store

KINDS = ("lmdb", "memory", "postgres")
_numbers = itertools.count()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def opened(kind: str, path: Any, request: pytest.FixtureRequest):
    """Opens handles of one store; a second one of a store in memory is the first."""
    handles: list[Any] = []
    if kind == "postgres":
        from memcore.store.postgres.store import PostgresStore

        address = request.getfixturevalue("server").address(f"contract{next(_numbers)}")

    def open_one(**options: Any) -> Any:
        if kind == "memory" and handles:
            return handles[0]
        if kind == "postgres":
            store = PostgresStore(address, **options)
        else:
            store = open_store(":memory:" if kind == "memory" else path, **options)
        handles.append(store)
        return store

    yield open_one
    for store in handles:
        store.close()


@pytest.fixture
def store(opened):
    return opened()


def item(number: int, session: int = 1) -> bytes:
    return keys.session_row(7, session, Row.ITEM, number)


def put_all(rows):
    def closure(txn):
        for key, value in rows:
            txn.put(key, value)

    return closure


def rows_of(store, start, stop, **options):
    return store.read(lambda txn: list(txn.scan(start, stop, **options)))


def test_rows_come_in_key_order(store):
    rows = [(item(n), b"%d" % n) for n in range(300)]
    store.transact(put_all(reversed(rows)))
    start, stop = item(0), item(1000)
    assert rows_of(store, start, stop) == rows
    assert rows_of(store, start, stop, reverse=True) == rows[::-1]
    assert rows_of(store, item(17), item(20)) == rows[17:20]
    assert rows_of(store, start, stop, limit=3) == rows[:3]
    assert rows_of(store, start, stop, limit=3, reverse=True) == rows[:-4:-1]
    assert rows_of(store, item(299), item(299)) == []
    assert store.read(lambda txn: txn.take(item(5), 4)) == rows[5:9]
    assert store.read(lambda txn: (txn.get(item(4)), txn.get(item(300)))) == (b"4", None)


def test_a_scan_over_everything(store):
    prefixes = [keys.session_row(7, s, Row.ITEM, 1) for s in (1, 2, 3)]
    prefixes += [keys.scoped(Kind.CARE, 4, b"\x01x"), keys.kv_prefix(2, 3) + b"k\0"]
    store.transact(put_all((key, key[:4]) for key in prefixes))
    found = rows_of(store, b"\x02", b"\xff")
    assert [row for row in found if row[0] in prefixes] == [(k, k[:4]) for k in sorted(prefixes)]


def test_a_transaction_sees_its_own_writes(store):
    store.transact(put_all((item(n), b"old") for n in range(6)))

    def closure(txn):
        txn.put(item(2), b"new")
        txn.put(item(9), b"more")
        assert txn.delete(item(3))
        assert not txn.delete(item(3))
        assert (txn.get(item(2)), txn.get(item(3)), txn.get(item(9))) == (b"new", None, b"more")
        forward = [keys.number_of(key) for key, _ in txn.scan(item(0), item(99))]
        backward = [keys.number_of(key) for key, _ in txn.scan(item(0), item(99), reverse=True)]
        assert forward == backward[::-1] == [0, 1, 2, 4, 5, 9]
        assert [keys.number_of(k) for k, _ in txn.scan(item(0), item(99), limit=4)] == [0, 1, 2, 4]
        assert txn.delete_range(item(4), item(99)) == 3
        return forward

    assert store.transact(closure) == [0, 1, 2, 4, 5, 9]
    found = rows_of(store, item(0), item(99))
    assert [keys.number_of(key) for key, _ in found] == [0, 1, 2]


def test_what_raises_stores_nothing(store):
    store.transact(put_all([(item(1), b"kept")]))

    def fails(txn):
        txn.put(item(1), b"lost")
        txn.delete(item(1))
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        store.transact(fails)
    assert rows_of(store, item(0), item(99)) == [(item(1), b"kept")]


def test_one_failing_closure_of_a_batch_is_left_out(store):
    """They share a transaction: those that did not fail are stored, each once."""
    gate, threads, results = threading.Event(), [], {}

    def first(txn):
        gate.wait(10)
        txn.put(item(0), b"first")

    def run(n):
        def closure(txn):
            txn.put(item(n), b"%d" % n)
            if n % 3 == 0:
                raise ValueError(n)
            return n

        try:
            results[n] = store.transact(closure)
        except ValueError as error:
            results[n] = error.args[0] * -1

    leader = threading.Thread(target=store.transact, args=(first,))
    leader.start()
    for n in range(1, 13):
        threads.append(threading.Thread(target=run, args=(n,)))
        threads[-1].start()
    gate.set()
    for thread in (leader, *threads):
        thread.join()
    assert results == {n: -n if n % 3 == 0 else n for n in range(1, 13)}
    stored = [keys.number_of(key) for key, _ in rows_of(store, item(0), item(99))]
    assert stored == [0, 1, 2, 4, 5, 7, 8, 10, 11]


def test_callbacks_and_topics_follow_the_commit(store):
    told: list[str] = []
    store.notifier.subscribe(b"topic", lambda: told.append("topic"))

    def closure(txn):
        txn.put(item(1), b"x")
        txn.on_commit(lambda: told.append("callback"))
        txn.notify(b"topic")
        assert not told

    store.transact(closure)
    assert told == ["callback", "topic"]

    def fails(txn):
        txn.on_commit(lambda: told.append("never"))
        raise ValueError

    with pytest.raises(ValueError):
        store.transact(fails)
    assert told == ["callback", "topic"]


def test_a_nested_read_shares_the_outer_one(store):
    assert store.read(lambda txn: store.read(lambda inner: inner is txn))


def test_writes_within_a_read_or_a_write_are_refused(store):
    with pytest.raises(InternalError, match="inside a read"):
        store.read(lambda _: store.transact(lambda txn: None))
    with pytest.raises(InternalError, match="inside a transaction"):
        store.transact(lambda _: store.transact(lambda txn: None))


def test_a_transaction_ends_with_its_closure(store):
    kept = []
    store.read(kept.append)
    store.transact(kept.append)
    for txn in kept:
        with pytest.raises(InternalError, match="after its end"):
            txn.get(item(1))


def test_keys_of_the_store_and_overlong_ones_are_refused(store):
    for key in (b"", b"\0x", bytes([5]) * 600):
        with pytest.raises(InternalError, match="key"):
            store.transact(lambda txn, key=key: txn.put(key, b""))


def test_values_of_all_sizes(store):
    sizes = [0, 1, 2047, 4096, 70_000, 3_000_000]
    rows = [(item(n), bytes([n]) * size) for n, size in enumerate(sizes)]
    store.transact(put_all(rows))
    assert rows_of(store, item(0), item(99)) == rows


def test_another_handle_sees_every_commit(opened):
    one, other = opened(), opened()
    for n in range(20):
        one.transact(put_all([(item(n), b"x"), (item(n, session=2), b"y")]))
        assert other.read(lambda txn, n=n: txn.get(item(n))) == b"x"
        assert len(rows_of(other, item(0, session=2), item(99, session=2))) == n + 1
        other.transact(lambda txn, n=n: txn.delete(item(n)))
        assert one.read(lambda txn, n=n: txn.get(item(n))) is None


def test_two_handles_that_count_lose_nothing(opened):
    handles = [opened(), opened()]

    def add(store, session):
        def closure(txn):
            before = int(txn.get(item(0, session)) or b"0")
            txn.put(item(0, session), b"%d" % (before + 1))
            return before + 1

        seen.extend((session, store.transact(closure)) for _ in range(40))

    seen: list[tuple[int, int]] = []
    threads = [
        threading.Thread(target=add, args=(store, session))
        for store in handles
        for session in (1, 1, 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == sorted([(1, n) for n in range(1, 161)] + [(2, n) for n in range(1, 81)])


def test_what_is_read_is_of_one_state(opened):
    """A writer moves one token between sessions; a reader always finds exactly one."""
    writer, reader = opened(), opened()
    writer.transact(put_all([(item(0, 1), b"token")]))
    stop = threading.Event()

    def move():
        at = 1
        while not stop.is_set():
            to = at % 3 + 1

            def closure(txn, at=at, to=to):
                txn.delete(item(0, at))
                txn.put(item(0, to), b"token")

            writer.transact(closure)
            at = to

    thread = threading.Thread(target=move)
    thread.start()
    try:
        for _ in range(150):
            found = reader.read(lambda txn: [txn.get(item(0, n)) for n in (1, 2, 3)])
            assert sorted(map(bool, found)) == [False, False, True]
            wide = rows_of(reader, item(0, 1), item(9, 3))
            assert len(wide) == 1
    finally:
        stop.set()
        thread.join()


def test_writes_of_a_scan_over_sessions_are_atomic_too(opened):
    """A closure that scans over partitions, against others that write into them meanwhile."""
    one, other = opened(), opened()
    one.transact(put_all((item(0, n), b"0") for n in range(1, 5)))
    stop = threading.Event()

    def count():
        while not stop.is_set():

            def closure(txn):
                for n in (1, 4):
                    txn.put(item(0, n), b"%d" % (int(txn.get(item(0, n)) or b"0") + 1))

            other.transact(closure)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        for _ in range(15):

            def total(txn):
                found = [value for _, value in txn.scan(item(0, 1), item(9, 4))]
                assert found[0] == found[-1]
                txn.put(item(5, 2), found[0])
                return int(found[0])

            one.transact(total)
    finally:
        stop.set()
        thread.join()
    assert one.read(lambda txn: txn.get(item(5, 2))) is not None


def test_submitted_closures(store):
    async def run():
        loop = asyncio.get_running_loop()
        futures = [store.submit(lambda txn, n=n: txn.put(item(n), b"x"), loop) for n in range(30)]
        await asyncio.gather(*futures)
        failing = store.submit(lambda _: 1 // 0, loop)
        with pytest.raises(ZeroDivisionError):
            await failing

    asyncio.run(run())
    assert len(rows_of(store, item(0), item(99))) == 30


def test_a_closed_store_and_a_read_only_one(opened, kind):
    store = opened()
    store.transact(put_all([(item(1), b"x")]))
    if kind != "memory":
        reader = opened(read_only=True)
        assert rows_of(reader, item(0), item(9)) == [(item(1), b"x")]
        with pytest.raises(ReadOnlyError):
            reader.transact(put_all([(item(2), b"x")]))
    store.close()
    store.close()
    for call in (store.transact, store.read):
        with pytest.raises(ClosedError):
            call(lambda _: None)


OPERATIONS = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 3), st.integers(0, 30), st.binary(max_size=40)),
    st.tuples(st.just("delete"), st.integers(1, 3), st.integers(0, 30)),
    st.tuples(st.just("range"), st.integers(1, 3), st.integers(0, 30), st.integers(0, 30)),
    st.tuples(
        st.just("scan"), st.integers(1, 3), st.integers(0, 30), st.integers(0, 30),
        st.booleans(), st.integers(0, 5),
    ),
)  # fmt: skip


def run(txn, model, operation):
    """Do one operation on a transaction and on a dict, and compare what they answer."""
    name, session, *rest = operation
    if name == "put":
        txn.put(item(rest[0], session), rest[1])
        model[item(rest[0], session)] = rest[1]
    elif name == "delete":
        gone = model.pop(item(rest[0], session), None)
        assert txn.delete(item(rest[0], session)) == (gone is not None)
    elif name == "range":
        start, stop = item(rest[0], session), item(rest[1], session)
        gone = [key for key in model if start <= key < stop]
        assert txn.delete_range(start, stop) == len(gone)
        for key in gone:
            del model[key]
    else:
        first, last, reverse, limit = rest
        start, stop = item(first, session), item(last, session)
        expected = sorted((k, v) for k, v in model.items() if start <= k < stop)
        expected = expected[::-1] if reverse else expected
        found = list(txn.scan(start, stop, reverse=reverse, limit=limit))
        assert found == (expected[:limit] if limit else expected)


def handles_of(kind, request, tmp_path_factory):
    """Two handles of one new store; of a store in memory, the same one twice."""
    if kind == "postgres":
        from memcore.store.postgres.store import PostgresStore

        address = request.getfixturevalue("server").address(f"model{next(_numbers)}")
        return [PostgresStore(address), PostgresStore(address)]
    if kind == "memory":
        return [open_store(":memory:")] * 2
    file = tmp_path_factory.mktemp("model") / "file"
    return [open_store(file, durability="none"), open_store(file)]


def run_all(store, model, operations, *, fails):
    """Run operations in one transaction; return what the store holds then by the model."""
    changed: dict[bytes, bytes] = {}

    def closure(txn):
        changed.clear()  # it may run again
        changed.update(model)
        for operation in operations:
            run(txn, changed, operation)
        if fails:
            raise ValueError

    try:
        store.transact(closure)
    except ValueError:
        return model
    return dict(changed)


@pytest.mark.parametrize("kind", KINDS)
def test_against_a_model(kind, tmp_path_factory, request):
    """Transactions on two handles, some of which fail, against a dict."""

    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.tuples(st.booleans(), st.booleans(), st.lists(OPERATIONS, max_size=8))))
    def check(batches):
        handles = handles_of(kind, request, tmp_path_factory)
        model: dict[bytes, bytes] = {}
        try:
            for which, fails, operations in batches:
                model = run_all(handles[which], model, operations, fails=fails)
                second = {key: value for key, value in model.items() if key[16] == 2}
                for handle in handles:
                    assert dict(rows_of(handle, item(0, 1), item(99, 3))) == model
                    assert dict(rows_of(handle, item(0, 2), item(99, 2))) == second
        finally:
            for handle in handles:
                handle.close()

    check()
