"""_fast.Ledger against its specification."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import oracle
import strategies
from memcore import _fast
from strategies import no_deadline

SEED = bytes(range(16))
SMALL_PAGE = 7

policies = st.fixed_dictionaries(
    {
        "start_mask": st.sampled_from((0, 1 << oracle.USER, 0b110, 0xFF)),
        "glue": st.integers(0, 3),
        "orphan": st.integers(0, 3),
        "open_tokens": st.sampled_from((0, 1, 10)),
    }
)
entries = st.one_of(
    strategies.histories(),
    strategies.histories(orderly=True),
    strategies.mixed_histories(),
    st.lists(strategies.facts, max_size=24),
)
tokens = st.one_of(st.integers(0, 20), st.just(2**32 - 1))


@st.composite
def counted(draw: st.DrawFn, histories: st.SearchStrategy[Any] = entries) -> list[tuple[Any, int]]:
    history = draw(histories)
    counts = draw(st.lists(tokens, min_size=len(history), max_size=len(history)))
    return list(zip(history, counts, strict=True))


def hashed(key: oracle.Key) -> bytes:
    packed = _fast.pack_event((key,), SEED)
    assert packed is not None
    return packed[6:]


def packed(entry: Any) -> bytes:
    if isinstance(entry, oracle.Event):
        facts = _fast.pack_event(entry.abandons, SEED)
    elif isinstance(entry, oracle.Facts):
        counts = struct.pack("<BBHH", entry.kind, entry.flags, len(entry.closes), len(entry.opens))
        facts = counts + b"".join(map(hashed, entry.closes + entry.opens))
    else:
        facts = _fast.pack_facts(entry, SEED)
    assert facts is not None
    return facts


def record(facts: bytes, tokens: int, counter: int = 1) -> bytes:
    return struct.pack("<IIQH", tokens, 0, 0, counter) + facts


def ledgers(policy: dict[str, int]) -> tuple[_fast.Ledger, oracle.OracleLedger]:
    return _fast.Ledger(**policy), oracle.OracleLedger(**policy)


KEYS = [(cls | name, key) for cls in (0, 1, 2, 9) for name in (0, 0x40) for key in strategies.IDS]
KEYS += [(0x40, name) for name in strategies.NAMES] + [(2, "lsh_c2"), (0x46, "tool_search")]


def answers(ledger: Any) -> dict[str, Any]:
    """Everything that one can ask a ledger."""
    n = len(ledger)
    fast = isinstance(ledger, _fast.Ledger)
    both = (False, True)
    return {
        "sums": (n, ledger.tokens, ledger.open_count, ledger.shown_count, ledger.turns),
        "last": ledger.last_shown,
        "kinds": [ledger.kind_at(i) for i in range(n)],
        "dropped": [ledger.is_dropped(i) for i in range(n)],
        "safe": [ledger.is_safe(i) for i in range(-1, n + 2)],
        "cuts": [ledger.safe_cuts(starts=starts) for starts in both],
        "open": (ledger.open_positions(), ledger.open_calls()),
        "costs": [ledger.cost(i) for i in range(n + 1)],
        "between": [ledger.sum_between(i, n - i) for i in range(n // 2)],
        "each": [ledger.tokens_of(i, n - i) for i in range(n // 2)],
        "first": [ledger.first_of(kind) for kind in range(8)],
        "last of": [
            ledger.last_of(kinds, count, at_least=at)
            for kinds in (0, 4, 0b10100100)
            for count in (-1, 0, 1, 3, n + 1)
            for at in (-1, 0, n // 2, n)
        ],
        "count of": [ledger.count_of(k, at) for k in (4, 0b100100) for at in (-1, n // 2, n + 1)],
        "at most": [ledger.cut_at_most(i) for i in range(-1, n + 2)],
        "keep": [ledger.cut_keep_last(k, starts=s) for k in range(-1, n + 2) for s in both],
        "budget": [
            ledger.cut_for_budget(cost + off, at_least=at, starts=starts)
            for cost in {ledger.cost(i) for i in range(0, n + 1, 2)}
            for off in (-1, 0)
            for at in (-1, n // 2)
            for starts in both
        ],
        "leading": [ledger.leading(kind) for kind in range(8)],
        "calls": [ledger.find_call(*key, SEED) if fast else ledger.find_call(*key) for key in KEYS],
    }


def counts(ledger: Any) -> tuple[Any, ...]:
    """What an overlay answers too."""
    n = len(ledger)
    kinds = [(ledger.kind_at(i), ledger.is_dropped(i)) for i in range(n)]
    return n, ledger.tokens, ledger.open_count, ledger.shown_count, ledger.turns, kinds


def fresh(history: list[tuple[Any, int]], policy: dict[str, int]) -> _fast.Ledger:
    ledger = _fast.Ledger(**policy)
    for entry, count in history:
        ledger.push(packed(entry), count)
    return ledger


def irregular(ledger: _fast.Ledger) -> list[bool]:
    return [ledger.irregular_from(i) for i in range(len(ledger) + 1)]


@no_deadline
@given(counted(), policies)
def test_it_answers_what_the_oracle_answers(history, policy):
    ledger, spec = ledgers(policy)
    for entry, count in history:
        assert ledger.push(packed(entry), count) == spec.push(entry, count)
        assert ledger.open_positions() == spec.open_positions()
        assert ledger.unbound == spec.unbound
    assert answers(ledger) == answers(spec)


@no_deadline
@given(counted(), policies, st.data())
def test_truncated_it_is_as_if_it_had_never_been_longer(history, policy, data):
    ledger = fresh(history, policy)
    kept = history
    for _ in range(3):
        length = data.draw(st.integers(0, len(kept)))
        ledger.truncate(length)
        kept = kept[:length]
        assert answers(ledger) == answers(fresh(kept, policy))
        assert irregular(ledger) == irregular(fresh(kept, policy))
        more = data.draw(counted())
        for entry, count in more:
            ledger.push(packed(entry), count)
        kept = kept + more
        same = fresh(kept, policy)
        assert answers(ledger) == answers(same)
        assert irregular(ledger) == irregular(same)


@no_deadline
@given(counted(), counted(), policies)
def test_a_copy_is_equal_and_independent(history, more, policy):
    ledger = fresh(history, policy)
    before = answers(ledger), irregular(ledger)
    copy = ledger.copy()
    assert (answers(copy), irregular(copy)) == before
    for entry, count in more:
        copy.push(packed(entry), count)
    same = fresh(history + more, policy)
    assert (answers(copy), irregular(copy)) == (answers(same), irregular(same))
    copy.truncate(0)
    assert (answers(ledger), irregular(ledger)) == before


@no_deadline
@given(counted(), counted(), counted(), policies, st.data())
def test_an_overlay_binds_like_the_ledger_and_folds_into_it(history, some, more, policy, data):
    ledger = fresh(history, policy)
    before = answers(ledger)
    overlay = _fast.Ledger(base=ledger)
    direct = fresh(history, policy)
    for entry, count in some:
        assert overlay.push(packed(entry), count) == direct.push(packed(entry), count)
        assert counts(overlay) == counts(direct)
    length = data.draw(st.integers(len(history), len(history) + len(some)))
    for each in (overlay, direct):
        each.truncate(length)
    assert counts(overlay) == counts(direct)
    for entry, count in more:
        assert overlay.push(packed(entry), count) == direct.push(packed(entry), count)
    assert counts(overlay) == counts(direct)
    assert answers(ledger) == before
    ledger.fold(overlay)
    assert answers(ledger) == answers(direct)
    assert irregular(ledger) == irregular(direct)


@no_deadline
@given(counted(), counted(), policies, st.integers(0, 4))
def test_an_overlay_is_of_no_use_when_its_base_has_changed(history, more, policy, drop):
    ledger = fresh(history, policy)
    overlay = _fast.Ledger(base=ledger)
    for entry, count in more:
        overlay.push(packed(entry), count)
    before = len(ledger)
    ledger.truncate(max(0, before - drop))
    while len(ledger) <= before:
        ledger.push(packed(oracle.Event()), 0)
    ledger.truncate(before)
    with pytest.raises(ValueError, match="does not stand"):
        ledger.fold(overlay)
    with pytest.raises(ValueError, match="has changed"):
        overlay.push(packed(oracle.Event()), 0)
    with pytest.raises(ValueError, match="has changed"):
        overlay.truncate(before)


@no_deadline
@given(counted(), policies, st.integers(0, 3))
def test_pages_load_like_pushes(history, policy, skip):
    records = [record(packed(entry), count) for entry, count in history]
    ledger = _fast.Ledger(**policy, expect_items=len(records), expect_calls=3)
    first = b"".join(records[:SMALL_PAGE])
    assert ledger.load(first, 0, 2, 1) == min(2, len(records[:SMALL_PAGE]))
    assert (
        ledger.load(first, len(ledger), 1 << 30, 1) == len(records[:SMALL_PAGE]) - len(ledger) or 1
    )
    for at in range(SMALL_PAGE, len(records), SMALL_PAGE):
        page = b"".join(records[at - skip : at + SMALL_PAGE])
        assert ledger.load(page, skip, SMALL_PAGE, 1) == len(records[at : at + SMALL_PAGE])
    same = fresh(history, policy)
    assert answers(ledger) == answers(same)
    assert irregular(ledger) == irregular(same)


@no_deadline
@given(counted(), st.data())
def test_a_refused_page_leaves_the_ledger_alone(history, data):
    ledger = fresh(history, {})
    before = answers(ledger)
    page = b"".join(record(packed(entry), count) for entry, count in history) + record(
        packed(oracle.Event()), 0
    )
    length = data.draw(st.integers(0, len(page) - 1))
    spans = _fast.record_spans(page)
    assert spans is not None
    assert spans[0][0] == 0
    assert spans[-1][1] == len(page)
    assert all(stop == start for (_, stop), (start, _) in pairwise(spans))
    torn = page[:length]
    if _fast.record_spans(torn) is None:
        assert ledger.load(torn, 0, 1 << 30, 1) == -1
    assert ledger.load(page, 0, 1 << 30, 2) == -2
    assert answers(ledger) == before


@no_deadline
@given(st.binary(max_size=200), st.integers(-1, 5), st.integers(-1, 5), st.integers(0, 3))
@example(record(b"\x05\x00\xff\xff\xff\xff", 1), 0, 1, 1)
@example(record(b"\xff\x00\x00\x00\x00\x00", 1), 0, 1, 1)
@example(record(b"\x02\x00\x00\x00\x01\x00" + bytes(8), 1), 0, 1, 1)
def test_no_bytes_crash_it(page, skip, take, glue):
    ledger = _fast.Ledger(start_mask=0xFF, glue=glue)
    done = ledger.load(page, skip, take, 1)
    assert len(ledger) == max(done, 0)
    spans = _fast.record_spans(page)
    assert spans is None or all(stop - start >= 24 for start, stop in spans)
    try:
        ledger.push(page, 1)
    except ValueError:
        assert len(ledger) == max(done, 0)
    assert len(answers(ledger)["kinds"]) == len(ledger)
    ledger.truncate(0)


@no_deadline
@given(
    st.binary(min_size=18, max_size=18), st.lists(st.binary(min_size=6, max_size=30), max_size=8)
)
def test_no_facts_crash_it(header, bodies):
    ledger = _fast.Ledger(start_mask=0xFF, glue=3, orphan=2)
    for body in bodies:
        n = len(body) - 6 >> 3
        facts = struct.pack("<BBHH", body[0] & 7, body[1], n, 0) + body[6 : 6 + 8 * n]
        ledger.load(header[:16] + b"\1\0" + facts, 0, 1, 1)
        calling = struct.pack("<BBHH", 3 + body[0] % 2, body[1], 0, n) + body[6 : 6 + 8 * n]
        ledger.push(calling, body[2])
        ledger.push(facts, body[3])
    n = len(ledger)
    ledger.truncate(n // 2)
    assert len(ledger) == n // 2
    assert answers(ledger)["sums"] == answers(ledger.copy())["sums"]


@no_deadline
@given(
    st.one_of(
        strategies.histories("openai_chat"), strategies.histories("openai_chat", orderly=True)
    )
)
def test_it_cuts_where_the_plain_rule_cuts(history):
    messages = [entry for entry in history if not isinstance(entry, oracle.Event)]
    # The plain rule knows neither the deprecated calls without an id nor the answers to them.
    messages = [m for m in messages if "function_call" not in m and m["role"] != "function"]
    ledger = _fast.Ledger(orphan=1, start_mask=0xFF)
    for n, message in enumerate(messages, 1):
        ledger.push(packed(message), 1)
        wanted = oracle.seed_rule_cut(messages[:n])
        assert ledger.cut_keep_last(min(3, n)) == (-1 if wanted is None else wanted)
        assert ledger.cut_keep_last(min(3, n), starts=True) == ledger.cut_keep_last(min(3, n))


@pytest.mark.parametrize("policy", oracle.POLICIES)
@pytest.mark.parametrize("orderly", [True, False])
def test_what_it_calls_regular_is_legal_as_it_is(policy, orderly):
    @given(strategies.histories(policy, orderly=orderly), st.integers(0, 3), st.integers(0, 3))
    @settings(max_examples=80, deadline=None)
    def check(history, glue, orphan):
        ledger = fresh([(entry, 1) for entry in history], {"glue": glue, "orphan": orphan})
        for i in range(len(history)):
            if not ledger.irregular_from(i):
                suffix = history[i:]
                assert not any(isinstance(entry, oracle.Event) for entry in suffix)
                assert not any(ledger.is_dropped(r) for r in range(i, len(history)))
                found = oracle.brute_force_violations(suffix, policy)
                # Long ids are looked for apart: the ledger knows hashes of ids, not their texts.
                apart = ("start", "a call id that is too long")
                assert [v for v in found if not v.rule.startswith(apart)] == []

    check()


def test_conversations_like_real_ones_are_regular_unless_spoilt():
    regular = 0
    for messages in strategies.corpus_like(7, 300):
        ledger = fresh([(message, 1) for message in messages], {"orphan": 2, "start_mask": 4})
        legal = not oracle.brute_force_violations(messages, "openai_chat")
        for i in ledger.safe_cuts():
            assert ledger.irregular_from(i) <= (not legal)
        regular += legal
    assert regular > 280
