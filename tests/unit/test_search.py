"""Search over sessions: filters, rights, removal, damage, encryption, the command line."""

from __future__ import annotations

import asyncio
import json
import random
import re
import resource
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import memcore
from memcore.cli.app import app
from memcore.codec import keys
from memcore.codec.keys import Kind, SearchRow
from memcore.codec.values import seal_value
from memcore.database.redact import redact_all
from memcore.privacy import Redaction, redaction_policy
from memcore.rows import names
from memcore.search import (
    Document,
    DocumentKind,
    IndexCache,
    IndexWriter,
    Query,
    Watermark,
    items,
    rank,
    read_head,
    read_watermarks,
    remove_documents,
    source_of,
    unpack_watermark,
)
from memcore.search.index import forward_of
from memcore.search.text import _PIECE, folded
from memcore.session import search as searching
from memcore.store.transaction import stored
from messages import user as said

INDEX = bytes((Kind.SEARCH,)), bytes((Kind.SEARCH + 1,))


def rows(db: memcore.Database, row: int | None = None) -> list[tuple[bytes, bytes]]:
    """The rows of search indexes."""
    found = db.engine.store.read(lambda txn: list(txn.scan(*INDEX)))
    return [each for each in found if row is None or each[0][9] == row]


def places(hits: list[memcore.SearchHit]) -> list[tuple[str, int]]:
    return [(hit.session_id, hit.seq) for hit in hits]


def fill(db: memcore.Database, count: int = 80, name: str = "long") -> memcore.Session:
    """A session with more items than a search reads for itself."""
    session = db.session(name)
    session.extend([said(f"{name} note {at} about topic{at % 7}") for at in range(count)])
    return session


def test_words_are_found_and_shown(db) -> None:
    session = db.session("s")
    session.append(said("The quick brown foxes were running"))
    session.append({"role": "assistant", "content": "A fox ran."})
    session.record("note", "fox")
    [first, second] = session.search("fox runs", explain=True)
    assert places([first, second]) == [("s", 1), ("s", 2)]
    assert first.snippet == "The quick brown foxes were running"
    assert [first.snippet[a:b] for a, b in first.highlights] == ["foxes", "running"]
    assert [each.term for each in first.why] == ["fox", "run"]
    assert first.score == pytest.approx(sum(e.score for e in first.why) + first.neighbours)
    assert (first.app, first.user, first.item.message) == (
        "default",
        "default",
        session.get(1).message,
    )
    assert session.search("zebra") == session.search("the of and !?") == []


def test_long_texts_are_cut_around_what_was_found(db) -> None:
    text = "filler " * 100 + "the   needle\nlies here " + "filler " * 100
    db.session("s").append(said(text))
    [hit] = db.session("s").search("needle")
    assert hit.snippet.startswith("…")
    assert hit.snippet.endswith("…")
    assert "the needle lies" in hit.snippet
    assert [hit.snippet[a:b] for a, b in hit.highlights] == ["needle"]
    assert len(hit.snippet) <= 202


def test_text_that_is_not_ascii_is_highlighted_in_place(db) -> None:
    wide = "\uff26\uff55\uff4c\uff4c"
    db.session("s").append(said(f"{wide} width, STRASSE und Straße, 東京タワー, ﬁsh"))
    for query, shown in (
        ("full", [wide]), ("straße", ["STRASSE", "Straße,"]), ("東京タ", ["東京タ"]),
        ("fish", ["ﬁsh"]),
    ):  # fmt: skip
        [hit] = db.session("s").search(query)
        assert [hit.snippet[a:b] for a, b in hit.highlights] == shown


def test_filters(db) -> None:
    clock = iter(range(1_700_000_000_000_000, 1_700_100_000_000_000, 10_000_000))
    db.engine.now_us = lambda: next(clock)
    one, two = db.session("one"), db.session("two")
    one.append({"role": "user", "name": "Carol", "content": "apple pie"})
    one.append({"role": "assistant", "content": "apple", "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "bake", "arguments": '{"what":"pie"}'}}
    ]})  # fmt: skip
    one.append({"role": "tool", "tool_call_id": "c", "content": "apple baked"})
    two.append(said("apple"), envelope={"author": "Dave"})
    scope = db.scope()
    assert sorted(places(scope.search("apple"))) == [("one", 1), ("one", 2), ("one", 3), ("two", 1)]
    assert places(scope.search("apple", sessions=["two", "none"])) == [("two", 1)]
    assert places(one.search("apple", kinds=["result"])) == [("one", 3)]
    assert places(one.search("bake", kinds=[memcore.ItemKind.ASSISTANT])) == [("one", 2)]
    assert places(scope.search("apple", authors=["carol"])) == [("one", 1)]
    assert places(scope.search("apple", authors=["DAVE", "nobody"])) == [("two", 1)]
    at = one.get(2).created_at
    assert places(one.search("apple", until=at)) == [("one", 1)]
    assert 1 not in [hit.seq for hit in one.search("apple", since=at)]
    assert len(scope.search("apple", k=2)) == 2
    assert places(scope.search("carol november 2023"))[0] == ("one", 1)
    found = scope.search("apple pie")
    db.index_sessions()
    assert scope.search("apple pie") == found


def test_the_row_of_an_item_says_what_it_is_and_not_the_index(path) -> None:
    with memcore.open(path) as db:
        session = db.session("s")
        session.append(said("apple pie"))
        db.index_sessions()
        made = searching.document_of(1, session.get(1))
        wrong = made._replace(role=int(memcore.ItemKind.RESULT), author="bob", time=5.0)

        def plant(txn):
            writer = IndexWriter(txn, 1)
            writer.remove(made.kind, (made.id,))
            writer.add((wrong.prepared(writer.head.key),))
            writer.close()

        db.engine.store.transact(plant)
        assert db.search("apple", kinds=["result"]) == []
        assert db.search("apple", authors=["bob"]) == []
        assert db.search("apple", until=6) == []
        assert len(db.search("apple")) == 1
        [finding] = db.check()
        assert "another record of item 1" in str(finding)


@pytest.mark.parametrize("last", [5, 9])
def test_a_watermark_that_covers_other_items_than_the_history_is_found(path, last) -> None:
    with memcore.open(path) as db:
        session = fill(db, 10, name="s")
        session.undo()
        session.fork("fork")
        db.index_sessions()

        def plant(txn):
            key, value = read_watermarks(txn, 1)[1]
            known = unpack_watermark(key, value)
            assert known.segments == [(1, 1, 9)]
            writer = IndexWriter(txn, 1)
            writer.put_watermark(1, Watermark(known.mark, [(1, 1, 10 if last == 9 else last)]))
            writer.close()

        assert db.check() == []
        db.engine.store.transact(plant)
        assert any("covers other items than its history" in str(each) for each in db.check())
        db.scope().reindex()
        assert db.check() == []


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("", {}), ("  ", {}), (None, {}), (b"x", {}), ("x" * 100_001, {}), ("x", {"k": 0}),
        ("x", {"k": 1001}), ("x", {"k": True}), ("x", {"k": "3"}), ("x", {"kinds": "user"}),
        ("x", {"kinds": ["system"]}), ("x", {"kinds": []}), ("x", {"kinds": [2]}),
        ("x", {"authors": [""]}), ("x", {"authors": 3}), ("x", {"since": -1}),
        ("x", {"since": "now"}), ("x", {"until": True}), ("x", {"until": 2**40}),
        ("x", {"explain": 1}),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(db, query, options) -> None:
    for handle in (db, db.scope(), db.session("s")):
        with pytest.raises(memcore.InvalidOptionError):
            handle.search(query, **options)


def test_an_append_writes_nothing_of_the_index_and_a_backlog_is_indexed_once(db) -> None:
    session = fill(db)
    assert rows(db) == []
    assert len(session.search("topic3", k=1000)) > 0
    head = rows(db, SearchRow.HEAD)
    assert len(rows(db, SearchRow.PLACE)) == 80
    session.append(said("one extra topic3"))
    assert places(session.search("extra", k=1)) == [("long", 81)]
    assert rows(db, SearchRow.HEAD) == head  # a few are read, not indexed
    assert db.index_sessions() == 1
    assert db.index_sessions() == 0
    assert db.check() == []


@pytest.mark.parametrize("change", ["append", "undo"])
def test_a_search_returns_while_others_change_the_session(path, monkeypatch, change) -> None:
    calls: list[int] = []
    real = searching._commit

    with memcore.open(path) as db:
        session = fill(db, 600)

        def commit(*args):
            calls.append(1)
            assert len(calls) < 100
            if change == "undo":
                session.undo()
            session.append(said(f"later note {len(calls)}"))
            return real(*args)

        monkeypatch.setattr(searching, "_commit", commit)
        hits = db.search("note", k=1000)
        assert len(calls) <= 8
        assert len(hits) == len(session)
        if change == "append":
            assert db.scope().index_sessions() > 0
            assert len(calls) <= 8
        monkeypatch.undo()
        db.index_sessions()
        assert db.check() == []
        assert len(db.search("note", k=1000)) == len(session)


@pytest.mark.parametrize("totals", [(0, 7), (80, 0), (80, 2**48), (0, 0), (1, 5), (79, 400)])
def test_totals_that_contradict_the_documents_are_damage(path, totals) -> None:
    with memcore.open(path) as db:
        fill(db, 300)
        fill(db, 20, name="few")
        db.index_sessions()
        wanted = places(db.search("topic3", k=1000))

        def plant(txn):
            head = read_head(txn, 1)
            head.documents, head.length = totals
            head.generation += 1
            key = keys.search_rows(1, SearchRow.HEAD)
            txn.put(key, seal_value(key, head.pack()))

        db.engine.store.transact(plant)
        assert places(db.search("topic3", k=1000, explain=True)) == wanted
        assert db.check() == []


def test_what_is_removed_leaves_the_index(db) -> None:
    fill(db)
    other = fill(db, name="other")
    db.index_sessions()
    term = keys.search_postings(1, b"")
    assert db.delete_session("long")
    assert len(rows(db, SearchRow.PLACE)) == len(rows(db, SearchRow.FORWARD)) == 80
    assert db.check() == []
    assert {hit.session_id for hit in db.search("note topic2", k=1000)} == {"other"}
    other.undo(80)
    assert db.search("topic2") == []
    assert db.delete_session("other")
    assert [row for row in rows(db) if row[0].startswith(term)] == []
    assert db.check() == []


def test_items_with_thousands_of_words_leave_in_pieces(db) -> None:
    chosen = random.Random(1)
    for at in range(3):
        words = " ".join(f"w{chosen.randrange(100_000)}" for _ in range(2000))
        db.session("s").append(said(f"{at} {words}"))
    fill(db, 300)
    db.index_sessions()
    before = len(rows(db, SearchRow.POSTINGS))
    db.delete_session("s")
    assert len(rows(db, SearchRow.POSTINGS)) < before - 5000
    assert db.check() == []


def test_a_transaction_moves_or_takes_out_few_terms(db, monkeypatch) -> None:
    """Postings are on pages of their own: those of long documents would stop all other writers."""
    monkeypatch.setattr("memcore.search.index.TERMS_MAX", 100)
    monkeypatch.setattr("memcore.session.search.TERMS_MAX", 100)
    monkeypatch.setattr("memcore.search.index.PENDING_MAX", 4)
    session, scope = db.session("s"), db.scope()
    for at in range(40):
        session.append(said(" ".join(f"word{at}x{each}" for each in range(30))))
    touched: list[int] = []
    real = db.engine.store.transact

    def transact(fn, **options):
        def counted(txn):
            before = len([key for key, _ in txn.scan(*INDEX) if key[9] == SearchRow.POSTINGS])
            found = fn(txn)
            after = len([key for key, _ in txn.scan(*INDEX) if key[9] == SearchRow.POSTINGS])
            touched.append(abs(after - before))
            return found

        return real(counted, **options)

    monkeypatch.setattr(type(db.engine.store), "transact", lambda _, *a, **o: transact(*a, **o))
    db.index_sessions()
    assert read_pending(db) <= 4
    assert max(touched) <= 100
    assert sum(touched) > 1000
    scope.memory.search("word")
    touched.clear()
    for at in range(6):
        scope.memory.remember(f"likes thing{at}", by="operator")
    assert max(touched) == 0  # a statement merges nothing
    scope.memory.search("likes")
    assert read_pending(db) <= 4
    session.undo(40)
    touched.clear()
    db.index_sessions()
    assert max(touched) <= 200
    assert sum(touched) > 1000
    assert db.check() == []


def read_pending(db: memcore.Database) -> int:
    """Number of ordinals that are not merged yet."""
    head = db.engine.store.read(lambda txn: read_head(txn, 1))
    return head.next - head.merged


def test_a_session_is_found_again_under_the_fork_that_shares_it(db) -> None:
    session = db.session("origin")
    session.extend([said("shared apple"), said("shared pear")])
    session.fork("fork").append(said("own apple"))
    db.index_sessions()
    assert sorted(places(db.search("apple"))) == [("fork", 3), ("origin", 1), ("origin", 2)]
    db.delete_session("origin")
    assert sorted(places(db.search("apple"))) == [("fork", 1), ("fork", 2), ("fork", 3)]
    db.delete_session("fork")
    db.index_sessions()
    assert rows(db, SearchRow.PLACE) == rows(db, SearchRow.POSTINGS) == []
    assert db.check() == []


def test_indexing_forks_unites_the_segments_of_each_history_once(db, monkeypatch) -> None:
    session = db.session("origin")
    session.extend([said(f"apple {at}") for at in range(5)])
    for at in range(60):
        session.fork(f"fork{at}").append(said(f"pear {at}"))
    united: list[int] = []
    real = searching.united

    def counted(*several):
        several = [list(each) for each in several]
        united.append(sum(map(len, several)))
        return real(*several)

    monkeypatch.setattr(searching, "united", counted)
    db.index_sessions()
    assert max(united) < 10  # the same segment of 60 forks is one
    assert len(db.search("apple", k=100)) == 5
    assert len(db.search("pear", k=100)) == 60
    session.undo(3)
    assert len(db.search("apple", k=100)) == 5  # they are live in the forks
    for at in range(60):
        db.delete_session(f"fork{at}")
    db.index_sessions()
    assert len(db.search("apple", k=100)) == 2


def test_nothing_is_found_for_who_opted_out(db) -> None:
    fill(db)
    db.index_sessions()
    db.scope().opt_out_memory()
    assert rows(db) == []
    assert db.search("topic1") == db.session("long").search("topic1") == []
    assert db.index_sessions() == db.reindex() == 0
    assert rows(db) == []
    db.scope().opt_in_memory()
    assert len(db.search("topic1")) == 10


def test_an_erased_user_leaves_nothing(path) -> None:
    with memcore.open(path) as db:
        fill(db)
        db.index_sessions()
        receipt = db.erase("default")
        assert receipt.counts["index_rows"] > 100
        assert rows(db) == []
        assert db.search("topic1") == []


def test_redaction_takes_the_words_along(db) -> None:
    session = db.session("s")
    session.append(said("mail alice@example.com about the apple"))
    session.append(said("nothing"))
    db.index_sessions()
    assert places(db.search("example.com")) == [("s", 1), ("s", 2)]  # and its neighbour
    redact = Redaction(redaction_policy("default"), secret=db.engine.store.secret.value())
    assert sum(1 for _ in redact_all(db.engine, redact.for_place, write=True)) > 0
    assert len(rows(db, SearchRow.PLACE)) == 1
    assert db.search("example.com") == []
    assert places(db.search("apple"))[0] == ("s", 1)
    assert db.check() == []


def test_expiry_takes_the_words_along(path) -> None:
    now = [1_700_000_000]
    with memcore.open(path) as db:
        db.engine.now_us = lambda: now[0] * 1_000_000
        db.session("s").append(said("needle one"))
        now[0] += 100
        db.session("s").append(said("needle two"))
        db.index_sessions()
        db.retention.set([{"what": "items", "max_age_seconds": 50}])
        now[0] += 10
        db.sweep()
        assert places(db.search("two"))[0] == ("s", 2)
        assert [hit.seq for hit in db.search("needle") if hit.highlights] == [2]
        assert db.check() == []


def committed(db: memcore.Database) -> int:
    """LMDB's number of the last transaction."""
    found: int = db.engine.store.read(lambda txn: stored(txn).id())
    return found


@pytest.mark.parametrize("way", ["compact", "erase"])
def test_what_was_read_of_a_file_is_not_taken_for_the_one_that_replaced_it(path, way) -> None:
    with memcore.open(path) as db:
        session, pad = db.session("s"), db.session("pad", app="other", user="other")
        db.session("gone", user="gone").append(said("x"))
        session.append(said("apple"))
        session.fork("fork")
        for at in range(12):
            session.append(said(f"secret apple {at}"))
        fill(db, name="long")
        db.scope().memory.remember("likes plums", by="operator")
        assert db.scope().memory.search("plums")
        assert len(db.scope().search("secret")) == 10
        before = committed(db)
        if way == "compact":
            db.copy_compact()
        else:
            db.erase("gone")
        db.session("long").undo(80)
        db.delete_session("s")
        assert committed(db) < before  # the file that replaced the first one counts anew
        while committed(db) < before:
            pad.append(said("pad"))
        assert db.scope().search("secret") == []
        assert places(db.scope().search("apple")) == [("fork", 1)]
        assert db.scope().search("note") == []
        assert db.scope().memory.search("plums")


def test_a_cache_keeps_nothing_of_another_file(db) -> None:
    fill(db)
    db.index_sessions()
    files = [1]
    cache = IndexCache(lambda: files[0])

    def look(txn):
        head = read_head(txn, 1)
        cache.remember(1, 7, "seen")
        cache.decoded(1)[b"key"] = b"value", "decoded"
        table, _ = cache.get(txn, 1, head)
        assert cache.recall(1) == (7, "seen")
        assert cache.get(txn, 1, head)[0] is table
        files[0] += 1
        assert cache.recall(1) == (-1, None)
        assert cache.decoded(1) == {}
        assert cache.get(txn, 1, head)[0] is not table

    db.engine.store.read(look)


def test_a_read_only_handle_reads_what_is_not_indexed(path, monkeypatch, caplog) -> None:
    with memcore.open(path) as db:
        fill(db)
    with memcore.open(path, read_only=True) as db:
        assert places(db.search("topic3", k=1)) == [("long", 4)]
        for verb in (db.index_sessions, db.scope().reindex):
            with pytest.raises(memcore.ReadOnlyError):
                verb()
        monkeypatch.setattr(searching, "UNINDEXED_MAX", 10)
        assert {hit.seq for hit in db.search("note", k=100)} == set(range(71, 81))
        assert "70 items are not indexed" in caplog.text


def test_only_allowed_sessions_are_searched(path) -> None:
    asked = []

    def authorizer(request: memcore.AccessRequest) -> bool:
        asked.append((request.action, request.name))
        return request.name != "secret" and request.user != "bob"

    with memcore.open(path) as db:
        db.session("secret").extend([said("apple")] * 30)
        db.session("open").append(said("one apple among many other things"))
    with memcore.open(path, authorizer=authorizer) as db:
        assert places(db.scope().search("apple", k=1)) == [("open", 1)]
        assert ("search", None) in asked
        assert ("search", "secret") in asked
        with pytest.raises(memcore.AccessDeniedError):
            db.search("apple", user="bob")


def test_many_refusals_take_few_rankings(path, monkeypatch) -> None:
    """An authorizer is asked once for each session; rankings do not grow with the refusals."""
    from memcore.session import search as searching

    asked: list[str | None] = []

    def authorizer(request: memcore.AccessRequest) -> bool:
        asked.append(request.name)
        return request.name is None or request.name.startswith("open")

    with memcore.open(path) as db:
        for at in range(300):
            db.session(f"secret{at}").append(said("apple"))
        for at in range(5):
            db.session(f"open{at}").append(said(f"one apple among many other things {at}"))
        parent = db.session("secret-parent")
        parent.append(said("pear"))
        parent.fork("open-fork")
        db.index_sessions()
        wanted = places(db.search("apple", k=3, sessions=[f"open{at}" for at in range(5)]))
    with memcore.open(path, authorizer=authorizer) as db:
        rounds: list[int] = []
        real = searching._find
        monkeypatch.setattr(searching, "_find", lambda *args: rounds.append(1) or real(*args))
        scope = db.scope()
        assert places(scope.search("apple", k=3)) == wanted
        assert len(rounds) < 10
        named = [name for name in asked if name is not None]
        assert len(named) == len(set(named))
        assert places(scope.search("pear", k=1)) == [("open-fork", 1)]
        assert len(scope.search("apple", k=100)) == 5


def test_scopes_are_ranked_by_themselves(db) -> None:
    db.session("s", user="alice").append(said("apple"))
    before = db.scope(user="alice").search("apple")
    for at in range(50):
        db.session(f"s{at}", user="bob", app="other").append(said("apple apple"))
    assert db.scope(user="alice").search("apple") == before
    assert {hit.user for hit in db.search("apple", k=100)} == {"alice", "bob"}
    assert {hit.user for hit in db.search("apple", k=100, app="other")} == {"bob"}
    assert db.scope(user="nobody").search("apple") == []


@pytest.mark.parametrize("row", [1, 2, 3, 4, 5, 6])
def test_a_damaged_index_is_found_and_built_anew(path, row, caplog) -> None:
    with memcore.open(path) as db:
        fill(db, 400)
        db.index_sessions()
        found = db.search("topic3", k=1000)
        key = rows(db, row)[0][0]
        db.engine.store.transact(lambda txn: txn.put(key, b"damaged"))
        assert any(key.hex() in finding for finding in db.check())
    with memcore.open(path) as db:  # nothing of it is in memory
        again = db.search("topic3", k=1000)
        if row in (1, 2, 5, 6):
            assert again == found or row == 6
        db.delete_session("long")  # where a row cannot be read, the index goes as a whole
        assert db.search("topic3") == []
        db.reindex()
        assert db.check() == []


@pytest.mark.parametrize(("documents", "following"), [(80, 2**47), (2**31, 2**31), (2**47, 2**47)])
def test_a_planted_head_makes_no_large_table(path, documents, following) -> None:
    with memcore.open(path) as db:
        fill(db)
        db.index_sessions()
        [(key, value)] = rows(db, SearchRow.HEAD)
        body = bytearray(value[10:])
        body[20:28], body[36:44] = documents.to_bytes(8, "little"), following.to_bytes(8, "little")
        db.engine.store.transact(lambda txn: txn.put(key, seal_value(key, bytes(body))))
    with memcore.open(path, read_only=True) as db:
        assert db.check() != []
        with pytest.raises(memcore.CorruptValueError):
            db.search("topic3")
    with memcore.open(path) as db:
        assert places(db.search("topic3", k=1)) == [("long", 4)]
        assert db.check() == []


def test_an_index_of_mostly_holes_is_built_anew(db, monkeypatch) -> None:
    monkeypatch.setattr("memcore.search.index._SPARSE_MIN", 1)
    session = fill(db)
    for _ in range(40):
        session.undo(79)
        session.extend([said("again and again")] * 79)
        db.index_sessions()
    head = searching.search.IndexHead.unpack(*rows(db, SearchRow.HEAD)[0])
    assert head.next < 40 * 79 / 2
    assert len(db.search("again", k=1000)) == 80  # and the neighbour of the first
    assert db.check() == []


@pytest.mark.parametrize(
    ("row", "finding"),
    [(2, "covers"), (3, "leads? to|place"), (4, "head says"), (5, "table"), (6, "postings")],
)
def test_the_check_compares_both_ways(db, row, finding) -> None:
    fill(db, 400)
    db.index_sessions()
    key = rows(db, row)[0][0]
    db.engine.store.transact(lambda txn: txn.delete(key))
    found = db.check()
    assert any("search index" in each for each in found)
    assert any(re.search(finding, each) for each in found), found
    assert db.reindex() == 400
    assert db.check() == []


def test_the_check_finds_an_item_that_reads_otherwise(db) -> None:
    session = fill(db)
    db.index_sessions()
    key = rows(db, SearchRow.FORWARD)[5][0]
    value = dict(rows(db))[key]
    db.engine.store.transact(lambda txn: txn.put(key, seal_value(key, value[10:-9])))
    assert any("no longer the words of item 6" in each for each in db.check())
    assert session.search("topic1")
    db.reindex()


def test_an_index_of_another_analysis_is_built_anew(db, monkeypatch) -> None:
    fill(db)
    db.index_sessions()
    monkeypatch.setattr("memcore.search.index.ANALYSIS", 2)
    assert len(db.search("topic3", k=1)) == 1
    assert len(rows(db, SearchRow.PLACE)) == 80
    assert rows(db, SearchRow.HEAD)[0][1][10:12] == b"\2\0"
    assert db.check() == []


def test_terms_are_hashed_and_sealed(path) -> None:
    pytest.importorskip("cryptography")
    key = b"k" * 32
    with memcore.open(path, key=key) as db:
        fill(db)
        db.index_sessions()
        clear = rows(db)
        stored = db.engine.store.read(lambda txn: dict(txn.raw.cursor().iternext()))
        assert all(stored[key] != value for key, value in clear)
        assert [value[0] for key, value in stored.items() if key[0] == Kind.SEARCH] == [2] * len(
            clear
        )
        assert places(db.search("topic3", k=1)) == [("long", 4)]
        assert db.check() == []
    with memcore.open(path, key=key, read_only=True) as db:
        assert places(db.search("topic3", k=1)) == [("long", 4)]
    assert b"topic" not in path.read_bytes()


@pytest.mark.as_stored
def test_salvage_leaves_the_index_out(path, tmp_path) -> None:
    with memcore.open(path) as db:
        fill(db)
        db.index_sessions()
    report = memcore.salvage(path, tmp_path / "new.memcore")
    assert report is not None
    with memcore.open(tmp_path / "new.memcore") as db:
        assert rows(db) == []
        assert places(db.search("topic3", k=1)) == [("long", 4)]
        assert db.check() == []


def test_a_large_item_is_found_by_its_blob(db) -> None:
    db.session("s").append(said("needle " + "hay " * 20_000))
    db.index_sessions()
    assert places(db.search("needle")) == [("s", 1)]
    assert db.check() == []


async def _found(path) -> list[memcore.SearchHit]:
    async with await memcore.aio.open(path) as db:
        session = db.session("long")
        assert await db.index_sessions() == 0
        assert await db.scope().search("topic3", k=1) == await session.search("topic3", k=1)
        return await db.search("topic3", k=1)


def test_the_asynchronous_handles_search(path) -> None:
    with memcore.open(path) as db:
        fill(db)
        db.index_sessions()
    assert places(asyncio.run(_found(path))) == [("long", 4)]


def test_the_command_line(path) -> None:
    with memcore.open(path) as db:
        fill(db)

    def run(*words: str) -> str:
        done = CliRunner().invoke(app, ["search", *words, "--store", str(path)])
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    shown = run("topic3", "-k", "1")
    assert "default/default/long 4" in shown
    assert "[topic3]" in shown
    told = json.loads(run("topic3", "--json", "--explain", "--kind", "user", "--session", "long"))
    assert told["hits"][0]["seq"] == 4
    assert told["hits"][0]["why"][0]["term"] == "topic3"
    assert "nothing was found" in run("zebra", "--index")
    assert "from the items beside it" in run("long 5", "--reindex", "--explain")
    with memcore.open(path) as db:
        assert len(rows(db, SearchRow.PLACE)) == 80


def test_threads_that_append_delete_and_search_agree_with_the_check(db) -> None:
    def work(number: int) -> None:
        session = db.session(f"s{number}")
        for turn in range(12):
            session.extend([said(f"apple {number} {turn} {at}") for at in range(9)])
            assert all(f"apple {number}" in hit.snippet for hit in session.search("apple"))
            db.scope().search(f"apple {turn}")
            if turn % 5 == 4:
                session.undo(5)
        db.delete_session(f"s{number}" if number % 2 else "none")

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [None] * 4
    db.index_sessions()
    assert {hit.session_id for hit in db.search("apple", k=1000)} == {"s0", "s2"}
    assert len(rows(db, SearchRow.PLACE)) == 2 * (12 * 9 - 2 * 5)
    assert db.check() == []


def test_documents_of_other_packages_share_the_index(db) -> None:
    fill(db)
    db.index_sessions()
    store, memory = db.engine.store, DocumentKind.ADK

    def add(txn, *texts: str) -> int:
        writer = IndexWriter(txn, 1, create=True)
        made = [Document(memory, f"id-{text}".encode(), text, role=3) for text in texts]
        added = writer.add(each.prepared(writer.head.key) for each in made)
        writer.put_source(memory, b"so far")
        writer.close()
        return added

    def found(txn, query: str) -> list[bytes]:
        head = read_head(txn, 1)
        ranking = rank(txn, 1, head, None, Query(query, kinds=[memory], roles=[3]), k=5)
        return [match.id for match in ranking.matches]

    assert store.transact(lambda txn: add(txn, "window seat", "aisle seat")) == 2
    assert store.transact(lambda txn: add(txn, "window seat", "topic3 of aisles")) == 1
    assert store.read(lambda txn: found(txn, "seats by the window")) == [
        b"id-window seat", b"id-aisle seat",
    ]  # fmt: skip
    assert store.read(lambda txn: found(txn, "topic3")) == [b"id-topic3 of aisles"]
    assert {hit.session_id for hit in db.search("topic3 seat", k=100)} == {"long"}
    assert db.check() == []
    assert store.read(lambda txn: source_of(txn, 1, memory)) == b"so far"
    gone = [b"id-aisle seat", b"id-none"]
    assert store.transact(lambda txn: remove_documents(txn, 1, memory, gone)) == 1
    assert store.read(lambda txn: found(txn, "aisle seat")) == [
        b"id-topic3 of aisles", b"id-window seat",
    ]  # fmt: skip
    assert db.check() == []
    db.reindex()  # it knows the items only: who has documents sees that they are gone
    assert store.read(lambda txn: source_of(txn, 1, memory)) is None
    assert store.read(lambda txn: found(txn, "seat")) == []


def test_documents_are_refused_that_no_index_can_hold(db) -> None:
    for kind, id_, role in (
        (0, b"x", 0),
        (64, b"x", 0),
        (2, b"", 0),
        (2, b"x" * 256, 0),
        (2, b"x", 64),
    ):
        with pytest.raises(memcore.InternalError):
            Document(kind, id_, "text", role=role).prepared(bytes(16))

    def add_of_another(txn) -> None:
        made = Document(2, b"x", "text").prepared(bytes(16))
        IndexWriter(txn, 1, create=True).add([made])

    db.session("s").append(said("x"))
    with pytest.raises(memcore.InternalError):
        db.engine.store.transact(add_of_another)
    assert rows(db) == []


# --- Damage that a checksum does not tell ---------------------------------------------------------


def planted(db, key_of, body: bytes) -> None:
    """Write a row of the index with a right checksum; ``key_of`` gets the number of the scope."""

    def closure(txn):
        scope = names.scope_of(txn, "default", "default")
        key = key_of(txn, scope)
        txn.put(key, seal_value(key, body))

    db.engine.store.transact(closure)


@pytest.fixture
def filled(tmp_path):
    with memcore.open(tmp_path / "filled") as db:
        session = db.session("chat")
        session.extend([{"role": "user", "content": f"word{n} common"} for n in range(40)])
        assert len(session.search("common", k=50)) == 40
        yield db
        assert db.check() == []


@pytest.mark.parametrize("segment", [(1, 1, 2**40), (1, 1, 2**64 - 1), (99, 1, 7), (1, 5, 2)])
def test_a_watermark_beyond_the_items_drops_the_index(filled, segment) -> None:
    body = bytes(8) + b"".join(part.to_bytes(8, "little") for part in segment)
    planted(filled, lambda _, scope: keys.search_watermark(scope, 1), body)
    assert filled.check() != []
    session = filled.session("chat")
    session.append({"role": "user", "content": "another common word"})
    assert len(session.search("common", k=50)) == 41
    planted(filled, lambda _, scope: keys.search_watermark(scope, 1), body)
    assert filled.delete_session("chat")
    assert filled.scope().search("common") == []


@pytest.mark.parametrize("packed", [b"x", bytes(9), b"\1" * 9 + b"\1" * 9])
def test_terms_that_are_none_drop_the_index(filled, packed) -> None:
    def key_of(txn, scope):
        return keys.search_forward(scope, 3)

    def record(txn):
        scope = names.scope_of(txn, "default", "default")
        return forward_of(txn, scope, 3)

    found = filled.engine.store.read(record)
    body = found.record + len(found.id).to_bytes(2, "little") + found.id + packed
    planted(filled, key_of, body)
    assert filled.check() != []
    assert filled.delete_session("chat")
    assert filled.scope().search("common") == []


def test_a_place_of_another_length_drops_the_index(filled) -> None:
    def key_of(txn, scope):
        return keys.search_documents(scope, 1, prefix=keys.u64(1) + keys.u64(3))

    planted(filled, key_of, b"\xff" * 20)
    assert filled.check() != []
    assert filled.delete_session("chat")


def test_a_search_on_a_full_device_reads_what_it_cannot_index(tmp_path) -> None:
    path = tmp_path / "full"
    with memcore.open(path) as db:
        db.session("chat").extend([{"role": "user", "content": f"w{n} common"} for n in range(90)])
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
        try:
            with pytest.raises(memcore.StoreFullError):
                while True:
                    db.session("filler").append({"role": "user", "content": "x" * 3_000})
            assert len(db.scope().search("common", k=100)) == 90
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert db.check() == []


def test_runs_of_combining_marks_are_folded_in_pieces() -> None:
    """All marks of one letter are sorted, in quadratic time: a text of them took minutes."""
    marks = "a" + "\u0316\u0301" * 100_000
    assert max(map(len, _PIECE.findall(marks))) <= 1_025
    assert "".join(_PIECE.findall(marks)) == marks
    words = "Ünïcödé wörds, ﬁnely separated; " * 200
    assert folded(words) == unicodedata.normalize("NFKC", words).casefold()


# --- Memories lend to the items that they rest on -------------------------------------------------


@pytest.fixture
def db(open_db):
    return open_db(durability="none")


def lent(db, query, **options):
    found = db.scope(user="u").search(query, memories=True, **options)
    return [(hit.session_id, hit.seq) for hit in found]


def test_an_item_is_found_by_the_words_of_a_memory_that_rests_on_it(db):
    say = db.session("s", user="u").append
    for text in ("My kitty is called Tom", "The bill came", "Nothing else", "More of nothing"):
        say({"role": "user", "content": text})
    memory = db.scope(user="u").memory
    made = memory.remember("Owns a cat", source=memcore.Source("s", (1,)))
    waits = memory.remember("Cat bills", source=memcore.Source("s", (2,)), by="assistant")
    assert (made.status, waits.status) == ("active", "quarantined")
    assert lent(db, "cat")[0] == ("s", 1)
    assert ("s", 2) not in lent(db, "cat")[:1]
    assert db.scope(user="u").search("cat") == []
    assert db.search("cat", user="u", memories=True)[0].seq == 1
    memory.forget(made.id)
    assert lent(db, "cat") == []
    with pytest.raises(memcore.InvalidOptionError):
        db.scope(user="u").search("cat", memories=1)


def test_memories_lend_nothing_to_items_that_are_not_wanted(db):
    for name in ("a", "b"):
        db.session(name, user="u").append({"role": "user", "content": f"My kitty is {name}"})
    memory = db.scope(user="u").memory
    memory.remember("Owns a cat", source=[memcore.Source("a", (1,)), memcore.Source("b", (1,))])
    assert sorted(lent(db, "cat")) == [("a", 1), ("b", 1)]
    assert lent(db, "cat", sessions=["b"]) == [("b", 1)]
    assert lent(db, "cat", kinds=["assistant"]) == []
    db.delete_session("a", user="u")
    assert lent(db, "cat") == [("b", 1)]
    db.scope(user="u").opt_out_memory()
    assert lent(db, "cat") == []


def test_memories_lend_without_an_index(path):
    with memcore.open(path) as db:
        db.session("a", user="u").append({"role": "user", "content": "My kitty is Tom"})
        db.scope(user="u").memory.remember("Owns a cat", source=memcore.Source("a", (1,)))
    with memcore.open(path, read_only=True) as db:
        assert lent(db, "cat") == []  # only what is indexed lends
    with memcore.open(path) as db:
        assert lent(db, "cat") == [("a", 1)]
    with memcore.open(path, read_only=True) as db:
        assert lent(db, "cat") == [("a", 1)]


def test_of_too_many_items_those_that_are_searched_are_read_first(db, monkeypatch, caplog) -> None:
    """A filter by session finds what lies behind thousands of newer items that are not indexed."""
    monkeypatch.setattr("memcore.session.search.UNINDEXED_MAX", 4)
    for number in range(12):
        db.session(f"s{number}").append({"role": "user", "content": f"window {number}"})
    assert [hit.session_id for hit in db.search("window", sessions=["s1"])] == ["s1"]
    assert "not searched" not in caplog.text
    found = {hit.session_id for hit in db.search("window", k=20)}
    assert found == {"s8", "s9", "s10", "s11"}
    assert "8 items are not indexed and not searched" in caplog.text


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 30), st.integers(0, 5)), max_size=12),
    st.integers(1, 4),
    st.integers(1, 36),
)
def test_an_item_is_found_in_segments_by_bisection(spans, session, seq) -> None:
    segments = items.united([(owner, low, low + more) for owner, low, more in spans])
    is_there = any(owner == session and low <= seq <= high for owner, low, high in segments)
    assert items.has_item(segments, session, seq) is is_there
    whole = items.newest_of(segments, seq)
    assert items.size_of(whole) == min(seq, items.size_of(segments))
    assert items.common(segments, whole) == items.united(whole)
