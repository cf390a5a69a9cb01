"""Usage reports of a session: what they are about, what becomes of them, what contexts make of."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import memcore
from memcore import aio
from memcore.codec import keys
from memcore.limits import USAGE_MODELS_MAX, USAGE_TOKENS_MAX
from memcore.rows.usage import usage_key
from memcore.store.transaction import RawTxn, WriteTxn
from messages import assistant, call, result, system, turns, user

FIXED = 3_000
"""What the provider bills beside the messages."""
FACTOR = 1.5


@pytest.fixture
def session(db: memcore.Database) -> memcore.Session:
    """A session that does not exist yet, counted by its bytes."""
    return db.session("chat", counter="bytes/4")


def bill(tokens: int) -> int:
    """What the provider bills for messages of so many tokens."""
    return FIXED + round(FACTOR * tokens)


def talk(session: memcore.Session, count: int, **options: Any) -> memcore.Context:
    """Turns of a conversation, each with its report; the last context."""
    for number in range(count):
        session.append(user(f"question {number} " + "word " * 60))
        sent = session.context()
        session.report_usage(bill(sent.tokens), **options)
        session.append(assistant(f"answer {number} " + "word " * 60))
    return sent


def known(session: memcore.Session) -> memcore.Calibration:
    return session.calibrations()[0]


def spoil(db: memcore.Database, session: memcore.Session) -> bytes:
    """Damage the usage row of the file's first session; its key."""
    key = usage_key(1, 1)

    def work(txn: Any) -> None:
        value = txn.get(key)
        txn.put(key, value[:-1] + bytes((value[-1] ^ 1,)))

    db.engine.store.transact(work)
    return key


# --- what a report is about -----------------------------------------------------------------------


def test_nothing_is_known_before_the_first_report(session):
    assert (session.estimated_tokens, session.calibrations()) == (0, [])
    session.extend(turns(3))
    assert session.estimated_tokens == session.tokens
    assert session.calibrations() == []
    assert session.context().estimated_tokens is None


def test_one_report_is_an_anchor_and_no_factor(session):
    session.append(user("x" * 400))
    sent = session.context()
    found = session.report_usage(bill(sent.tokens), model="m-1")
    assert found == memcore.Calibration(
        "m-1", "bytes/4", 1.0, 1, anchored=True, input_tokens=bill(sent.tokens),
        counted_tokens=sent.tokens, seq=1,
    )  # fmt: skip
    assert session.calibrations() == [found]
    before = session.tokens
    session.append(assistant("y" * 400))
    assert session.estimated_tokens == bill(sent.tokens) + session.tokens - before


def test_further_reports_teach_the_factor(session):
    talk(session, 5)
    assert known(session).factor == pytest.approx(FACTOR, rel=0.03)
    assert session.estimated_tokens == pytest.approx(bill(session.tokens), rel=0.01)
    context = session.context()
    assert context.estimated_tokens == session.estimated_tokens


def test_without_a_context_it_is_about_the_whole_history(session):
    session.extend(turns(4))
    found = session.report_usage(9_000)
    assert (found.counted_tokens, found.seq) == (session.tokens, 8)
    session.compact(lambda _: "so far", keep_last=2)
    found = session.report_usage(9_000)
    assert found.counted_tokens == session.context().tokens
    assert found.counted_tokens < session.tokens


def test_contexts_of_this_handle_are_meant_and_not_what_came_later(db, session):
    session.extend(turns(2))
    sent = session.context()
    db.session("chat").append(user("meanwhile"))
    found = session.report_usage(500)
    assert (found.counted_tokens, found.seq) == (sent.tokens, 4)
    assert db.session("chat").estimated_tokens == 500 + session.tokens - sent.tokens


def test_overlapping_requests_say_which(session):
    session.append(user("x" * 400))
    first = session.context()
    session.append(assistant("y" * 4_000))
    second = session.context()
    found = session.report_usage(3_000, counted_tokens=first.tokens)
    assert (found.counted_tokens, found.seq) == (first.tokens, 1)
    found = session.report_usage(4_400, counted_tokens=second.tokens)
    assert (found.counted_tokens, found.seq) == (second.tokens, 2)
    late = session.report_usage(3_000, counted_tokens=first.tokens)
    assert (late.counted_tokens, late.factor) == (second.tokens, found.factor)


def test_a_count_of_the_caller_s_own_stands_for_the_latest_context(session):
    session.extend(turns(2))
    session.context()
    found = session.report_usage(700, counted_tokens=650)
    assert (found.input_tokens, found.counted_tokens, found.seq) == (700, 650, 4)
    session.append(user("x" * 400))
    assert session.estimated_tokens == 700 + session.tail(1)[0].tokens


def test_an_empty_live_history_measures_what_is_fixed(session):
    session.append(user())
    session.undo()
    session.context()
    session.report_usage(FIXED)
    session.append(user("x" * 400))
    assert session.estimated_tokens == FIXED + session.tokens
    session.report_usage(bill(session.tokens))  # about the empty context still: an odd caller
    session.context()
    session.report_usage(bill(session.tokens))
    assert known(session).counted_tokens == session.tokens


def test_a_session_that_is_not_there(db, session):
    with pytest.raises(memcore.NotFoundError, match="there is no session 'chat'"):
        session.report_usage(5)
    session.append(user())
    session.context()
    db.delete_session("chat")
    with pytest.raises(memcore.NotFoundError):
        session.report_usage(5)
    db.session("chat").append(user("another one"))
    with pytest.raises(memcore.NotFoundError, match="was deleted"):
        session.report_usage(5)
    assert session.calibrations() == []
    session.context()
    assert session.report_usage(5).reports == 1


BAD: list[dict[str, Any]] = [
    *({"input_tokens": value} for value in (0, -1, True, 1.5, "9", None, 2**48 + 1, 10**5000)),
    {"input_tokens": -(10**5000)},
    *({"input_tokens": 5, "counted_tokens": value} for value in (-1, False, 2.0, "7", 2**48 + 1)),
    *({"input_tokens": 5, "model": value} for value in ("", 7, b"m", "m" * 201, 10**5000)),
]


@pytest.mark.parametrize("arguments", BAD)
def test_what_a_report_refuses(session, arguments):
    session.append(user())
    with pytest.raises(memcore.InvalidOptionError, match="expected"):
        session.report_usage(**arguments)
    assert session.calibrations() == []


def test_the_largest_report(session):
    session.append(user())
    session.report_usage(USAGE_TOKENS_MAX, counted_tokens=USAGE_TOKENS_MAX, model="m" * 200)
    session.append(user())
    assert session.estimated_tokens == USAGE_TOKENS_MAX + session.tail(1)[0].tokens
    assert session.context(10_000, calibrated=True).tokens < 10_000  # far below the anchor


def test_any_name_of_a_model(session, open_db):
    session.append(user())
    for name in ("é\ud800", "a\0b", "🤖"):
        session.report_usage(5, model=name)
    again = open_db().session("chat")
    assert [found.model for found in again.calibrations()] == ["🤖", "a\0b", "é\ud800"]


# --- what becomes of an anchor --------------------------------------------------------------------


def test_an_anchor_goes_with_its_item_and_the_factor_stays(session):
    talk(session, 4)
    factor = known(session).factor
    session.undo()  # the answer behind the anchor
    assert known(session).anchored
    session.undo()
    assert (known(session).anchored, known(session).factor) == (False, factor)
    assert session.estimated_tokens == pytest.approx(factor * session.tokens, abs=1)
    session.append(user("in its place"))
    assert not known(session).anchored
    session.context()
    session.report_usage(777)
    assert (known(session).anchored, known(session).factor) == (True, factor)
    assert session.estimated_tokens == 777


def test_rewind_to_the_anchor_keeps_it(session):
    talk(session, 3)
    seq = known(session).seq
    session.rewind(seq)
    assert known(session).anchored
    assert session.estimated_tokens == known(session).input_tokens
    session.rewind(0)
    assert not known(session).anchored
    assert session.estimated_tokens == 0


def test_a_compaction_drops_it_and_uncompact_shows_the_same_messages_again(session):
    talk(session, 4)
    factor, before = known(session).factor, session.estimated_tokens
    session.compact(lambda _: "so far", keep_last=2)
    assert (known(session).anchored, known(session).factor) == (False, factor)
    shown = session.context()
    assert shown.estimated_tokens == pytest.approx(factor * shown.tokens, abs=1)
    assert session.estimated_tokens == shown.estimated_tokens
    session.uncompact()
    assert session.estimated_tokens == before
    session.compact(lambda _: "so far", keep_last=2)
    shown = session.context()
    session.report_usage(bill(shown.tokens))
    assert session.estimated_tokens == bill(shown.tokens)
    session.uncompact()
    assert not known(session).anchored


def test_differences_over_a_compaction_teach_nothing(session):
    session.extend(turns(20))
    session.context()
    session.report_usage(4_000)
    session.compact(lambda _: "so far", keep_last=2)
    session.append(user("x" * 4_000))
    session.context()
    assert session.report_usage(9_000).factor == 1.0


def test_a_compaction_between_context_and_report(session):
    talk(session, 4)
    session.append(user("x" * 2_000))
    sent = session.context()
    session.compact(lambda _: "so far", keep_last=1)
    found = session.report_usage(bill(sent.tokens))
    assert (found.anchored, found.reports) == (False, 5)
    assert found.factor == pytest.approx(FACTOR, rel=0.02)


def test_an_undo_between_context_and_report_leaves_the_anchor_before(session):
    talk(session, 4)
    before = known(session)
    session.append(user("x" * 2_000))
    sent = session.context()
    session.undo()
    found = session.report_usage(bill(sent.tokens))
    assert (found.anchored, found.seq) == (True, before.seq)
    assert found.factor > before.factor


def test_another_policy_drops_it(session):
    talk(session, 3)
    session.set_policy("langchain")
    assert not known(session).anchored
    session.set_policy("openai_chat")
    assert known(session).anchored


def test_windows_that_move_a_little_teach_nothing_and_anchor_all_the_same(session):
    session.extend(turns(6))
    session.context(60)
    session.report_usage(4_000)
    session.extend(turns(3))
    small = session.context(60)
    found = session.report_usage(9_999)
    assert (found.factor, found.anchored) == (1.0, True)
    assert small.cut > 1
    assert session.context(60).estimated_tokens == 9_999


def test_each_model_has_its_own(session):
    talk(session, 3, model="big")
    small = session.report_usage(50, model="small")
    assert [found.model for found in session.calibrations()] == ["small", "big"]
    assert (small.factor, small.reports) == (1.0, 1)
    assert session.context().estimated_tokens < FIXED
    assert session.context(model="big").estimated_tokens > FIXED
    assert session.context(model="new").estimated_tokens is None
    for number in range(USAGE_MODELS_MAX):
        session.report_usage(50, model=f"m{number}")
    assert len(session.calibrations()) == USAGE_MODELS_MAX
    assert "big" not in [found.model for found in session.calibrations()]


def test_calibration_belongs_to_a_counter(session):
    talk(session, 3)
    before = session.calibrations()
    sent = session.context()
    session.recount("bytes/2")
    assert session.calibrations() == []
    assert session.context(calibrated=True).estimated_tokens is None
    assert session.estimated_tokens == session.tokens
    other = session.fork("other")
    session.recount("bytes/4")
    assert session.calibrations() == before
    assert session.context().estimated_tokens == session.estimated_tokens
    other.context()
    assert other.report_usage(9_000).counter == "bytes/2"
    assert len(other.calibrations()) == 1
    assert sent.tokens == session.tokens


def test_a_recount_between_context_and_report(session):
    talk(session, 3)
    session.context()
    session.recount("bytes/2")
    assert session.report_usage(9_000).reports == 0  # of another counter's tokens: not kept
    assert session.calibrations() == []
    session.recount("bytes/4")
    assert known(session).reports == 3


# --- forks, files, handles ------------------------------------------------------------------------


def test_a_fork_inherits_what_lies_in_the_history_that_it_shares(session):
    talk(session, 4)
    seq = known(session).seq
    whole = session.fork("whole")
    assert whole.calibrations() == session.calibrations()
    assert whole.estimated_tokens == session.estimated_tokens
    early = session.fork("early", at=seq - 2)
    assert (known(early).anchored, known(early).factor) == (False, known(session).factor)
    early.extend(turns(4))  # these take the seqs of the parent's items
    assert not known(early).anchored
    early.context()
    early.report_usage(5)
    assert known(session).input_tokens != 5


def test_a_fork_of_a_session_without_reports_has_no_row(db, session):
    session.append(user())
    before = db.stats()
    session.fork("fork")
    assert db.stats()["calibrated_sessions"] == before["calibrated_sessions"] == 0


def test_it_outlives_the_handle(session, open_db):
    talk(session, 3, model="m")
    again = open_db().session("chat")
    assert again.calibrations() == session.calibrations()
    assert again.estimated_tokens == session.estimated_tokens


def test_it_is_no_change_of_the_log(db, session):
    session.append(user())
    session.context()
    entry = next(iter(db.sessions()))
    session.report_usage(5)
    assert next(iter(db.sessions())) == entry
    assert session.append(user(), expected_revision=entry.revision).revision == entry.revision + 1


def test_it_goes_with_the_session(db, session):
    session.extend([user("x" * 100)] * 2_500)  # several pieces
    talk(session, 2)
    assert db.stats()["calibrated_sessions"] == 1
    db.delete_session("chat")
    assert db.stats()["calibrated_sessions"] == 0
    start = bytes((keys.Kind.SESSION,))
    assert db.engine.store.read(lambda txn: list(txn.scan(start, keys.after(start)))) == []


def test_a_read_only_handle_may_not_report(session, open_db):
    talk(session, 2)
    reader = open_db(read_only=True).session("chat")
    assert reader.estimated_tokens == session.estimated_tokens
    with pytest.raises(memcore.ReadOnlyError):
        reader.report_usage(5)


def test_threads_lose_no_report(db, session):
    session.append(user())

    def report(number: int) -> None:
        mine = db.session("chat")
        mine.append(user(f"line {number}"))
        mine.context()
        mine.report_usage(1_000 + number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(report, range(64)))
    assert known(session).reports == 64
    assert known(session).anchored


CHILD = """
import sys, memcore
with memcore.open(sys.argv[1]) as db:
    session = db.session("chat")
    for number in range(20):
        session.context()
        session.report_usage(100 + number, model=sys.argv[2])
"""


def test_processes_lose_no_report(session, path):
    session.append(user())
    command = [sys.executable, "-c", CHILD, str(path)]
    children = [subprocess.Popen([*command, model]) for model in ("a", "b")]
    assert [child.wait() for child in children] == [0, 0]
    assert {(found.model, found.reports) for found in session.calibrations()} == {
        ("a", 20),
        ("b", 20),
    }


def test_copies_keep_it_and_exports_leave_it_out(db, session, tmp_path):
    talk(session, 3)
    found = session.calibrations()
    db.backup(tmp_path / "backup")
    with memcore.open(tmp_path / "backup") as copy:
        assert copy.session("chat").calibrations() == found
    with memcore.open(tmp_path / "imported") as other:
        other.import_(db.export())
        assert other.session("chat").calibrations() == []
        assert other.check() == []


def test_a_compact_copy_keeps_it(path):
    with memcore.open(path) as db:
        talk(db.session("chat"), 3)
        found = db.session("chat").calibrations()
        db.copy_compact()
        assert db.session("chat").calibrations() == found


def test_a_damaged_row_keeps_nobody_from_the_items(tmp_path):
    with memcore.open(tmp_path / "damaged") as db:
        session = db.session("chat")
        talk(session, 3)
        key = spoil(db, session)
        assert any(key.hex() in finding for finding in db.check())
        assert session.context().estimated_tokens is None
        session.append(user())
        session.fork("fork")
        for ask in (
            session.calibrations,
            lambda: session.estimated_tokens,
            lambda: session.context(9_000, calibrated=True),
        ):
            with pytest.raises(memcore.CorruptValueError):
                ask()
        assert session.report_usage(5_000).reports == 1
        assert db.check() == []


def test_check_finds_an_anchor_at_an_item_that_never_was(tmp_path):
    with memcore.open(tmp_path / "damaged") as db:
        session = db.session("chat")
        session.extend(turns(2))
        session.context()
        session.report_usage(50)
        db.session("other").append(user())
        key, other = usage_key(1, 1), usage_key(1, 2)

        def swap(txn: Any) -> None:
            txn.put(other, memcore.codec.values.seal_value(other, txn.get(key)[10:]))

        db.engine.store.transact(swap)
        assert db.check() == [
            "session 'other': its usage is anchored at item 4, which it never had"
        ]


# --- budgets --------------------------------------------------------------------------------------


def test_a_calibrated_context_keeps_both_counts_within_the_budget(session):
    talk(session, 30)
    for budget in range(FIXED + 200, bill(session.tokens) + 500, 97):
        plain = session.context(budget)
        context = session.context(budget, calibrated=True)
        assert context.tokens <= plain.tokens <= budget
        assert context.estimated_tokens <= budget
        assert bill(context.tokens) <= budget * 1.01  # the provider is never far off
    assert context == plain  # all of it fits


def test_a_window_over_a_long_history_settles_within_the_provider_s_budget(session):
    """The first request is far too large: nothing is known. The factor is learned on the way."""
    session.extend([user("word " * 40), assistant("word " * 40)] * 200)
    budget, billed = 8_000, []
    for _ in range(12):
        session.append(user("word " * 50))
        sent = session.context(budget, calibrated=True)
        billed.append(bill(sent.tokens))
        session.report_usage(billed[-1])
        session.append(assistant("word " * 50))
    assert billed[0] > 1.5 * budget
    assert all(budget - 300 < each <= 1.01 * budget for each in billed[2:])
    assert known(session).factor == pytest.approx(FACTOR, rel=0.02)


def test_reserve_counts_for_both(session):
    talk(session, 20)
    budget = bill(session.tokens) // 2 + FIXED // 2
    context = session.context(budget, reserve_tokens=500, calibrated=True)
    assert context.estimated_tokens <= budget - 500
    assert context == session.context(budget - 500, calibrated=True)


def test_a_small_factor_never_exceeds_the_budget_by_the_session_s_counter(session):
    for _ in range(12):
        session.append(user("word " * 100))
        sent = session.context()
        session.report_usage(round(0.8 * sent.tokens))
    assert known(session).factor < 0.85
    budget = session.tokens - 1
    assert session.context(budget, calibrated=True) == session.context(budget)


def test_without_reports_calibrated_changes_nothing(session):
    session.extend([system(), *turns(9), call("c"), result("c")])
    for budget in (None, 90, 1_000):
        assert session.context(budget, calibrated=True) == session.context(budget)


def test_the_default_does_not_depend_on_reports(session):
    session.extend(turns(30))
    before = session.context(200)
    session.report_usage(60_000)
    after = session.context(200)
    assert (after.messages, after.tokens) == (before.messages, before.tokens)
    assert after.estimated_tokens is not None


@pytest.mark.parametrize("budget", [1, FIXED - 1, FIXED + 20])
def test_an_overflow_names_the_provider_s_tokens(session, budget):
    talk(session, 6)
    session.append(user("x" * 800))
    with pytest.raises(memcore.ContextOverflowError, match="by the provider's count") as caught:
        session.context(budget, calibrated=True)
    assert caught.value.budget_tokens == budget
    assert caught.value.needed_tokens > FIXED + 200
    found = session.context(caught.value.needed_tokens, calibrated=True)
    assert found.estimated_tokens == caught.value.needed_tokens
    with pytest.raises(memcore.ContextOverflowError):
        session.context(caught.value.needed_tokens - 1, calibrated=True)


@pytest.mark.parametrize("options", [{"calibrated": 1}, {"calibrated": None}, {"model": 3}])
def test_what_a_context_refuses(session, options):
    with pytest.raises(memcore.InvalidOptionError):
        session.context(100, **options)


# --- what it costs --------------------------------------------------------------------------------


@pytest.fixture
def written(monkeypatch) -> Callable[[Callable[[], object]], list[int]]:
    """The sizes of the rows that a change writes."""
    sizes: list[int] = []
    drop = WriteTxn.drop

    def measured(txn: WriteTxn) -> RawTxn | None:
        sizes.extend(len(key) + size for key, size in txn.puts.items())
        return drop(txn)

    monkeypatch.setattr(WriteTxn, "drop", measured)

    def of(change: Callable[[], object]) -> list[int]:
        sizes.clear()
        change()
        return sizes.copy()

    return of


def test_a_report_writes_one_small_row_and_appends_none(session, written):
    session.extend([user()] * 3)
    plain = written(lambda: session.append(user()))
    session.context()
    assert written(lambda: session.report_usage(5, model="claude-opus-4-7"))[0] < 300
    assert len(written(lambda: session.report_usage(6, model="claude-opus-4-7"))) == 1
    after = written(lambda: session.append(user()))
    assert len(after) == len(plain) == 3
    assert sum(after) < sum(plain) + 60  # one index record more in the page


# --- the other faces ------------------------------------------------------------------------------


async def _reported(path: Any) -> tuple[Any, ...]:
    async with aio.open(path) as db:
        session = db.session("chat")
        await session.append(user("x" * 400))
        sent = await session.context()
        found = await session.report_usage(4_000, model="m", counted_tokens=sent.tokens)
        tight = await session.context(5_000, calibrated=True, model="m")
        return found, await session.calibrations(), session.estimated_tokens, tight


def test_the_asynchronous_face(path):
    found, listed, estimated, tight = asyncio.run(_reported(path))
    assert listed == [found]
    assert estimated == tight.estimated_tokens == 4_000


def test_another_handle_reports_what_was_sent_before_the_answer(path):
    """A handle a request: the answer was appended between the context and the report."""
    with memcore.open(path, counter="bytes/4") as db:
        first = db.session("s")
        first.append({"role": "user", "content": "question " * 30})
        sent = first.context()
        first.append({"role": "assistant", "content": "answer " * 1000})
        told = db.session("s").report_usage(3000 + sent.tokens, counted_tokens=sent.tokens)
        assert (told.seq, told.counted_tokens) == (1, sent.tokens)
        again = db.session("s")
        assert again.estimated_tokens == again.context().estimated_tokens == 3000 + again.tokens
