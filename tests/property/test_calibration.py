"""The arithmetic of usage anchoring, alone and against simulated providers."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcore.rows.usage import (
    EWMA_TOKENS,
    FACTOR_MAX_PPM,
    FACTOR_MIN_PPM,
    MILLION,
    SAMPLE_MAX_PPM,
    Anchor,
    Learned,
    Scale,
    learn,
)

numbers = st.integers(-(2**48), 2**48)
tokens = st.integers(0, 2**48)
factors = st.integers(FACTOR_MIN_PPM, FACTOR_MAX_PPM)
scales = st.builds(Scale, factors, tokens, tokens)
views = st.sampled_from(((0, 0), (7, 1), (7, 2)))
anchors = st.builds(
    Anchor,
    st.integers(1, 2**48),
    tokens,
    st.integers(0, 5),
    st.integers(1, 3),
    views,
    st.sampled_from(("openai_chat", "anthropic")),
)


def anchor(billed: int, counted: int, seq: int, *, cut: int = 1, view: int = 0) -> Anchor:
    return Anchor(billed, counted, seq, cut, (view, view), "openai_chat")


def told(known: Learned, report: Anchor) -> Learned:
    """After a report in order, of messages that are still there."""
    return known.after(report, live=True, stands=True)


# --- laws -----------------------------------------------------------------------------------------


@given(factors, st.integers(0, EWMA_TOKENS), numbers, numbers)
def test_a_factor_never_leaves_its_bounds(factor, seen, billed, counted):
    found, weight = learn(factor, seen, input_delta=billed, counted_delta=counted)
    assert FACTOR_MIN_PPM <= found <= FACTOR_MAX_PPM
    assert seen <= weight <= EWMA_TOKENS
    if billed <= 0 or counted <= 0 or billed * MILLION // counted > SAMPLE_MAX_PPM:
        assert (found, weight) == (factor, seen)


@given(factors, st.integers(0, EWMA_TOKENS), st.integers(1, 2**40), st.integers(1, 2**40))
def test_a_sample_draws_the_factor_towards_itself(factor, seen, billed, counted):
    found, _ = learn(factor, seen, input_delta=billed, counted_delta=counted)
    sample = min(max(billed * MILLION // counted, FACTOR_MIN_PPM), FACTOR_MAX_PPM)
    assert min(factor, sample) - 1 <= found <= max(factor, sample)


@given(st.lists(st.tuples(anchors, st.booleans(), st.booleans()), max_size=12))
def test_no_sequence_of_reports_breaks_it(reports):
    known = Learned("m", "bytes/4")
    for number, (report, live, stands) in enumerate(reports, 1):
        before, known = known, known.after(report, live=live, stands=stands)
        assert FACTOR_MIN_PPM <= known.factor_ppm <= FACTOR_MAX_PPM
        assert known.reports == number
        assert known.anchor in (before.anchor, report)
        if not stands:
            assert known.anchor == before.anchor
        if before.anchor is None or not live:
            assert known.factor_ppm == before.factor_ppm


@given(scales, tokens, tokens)
def test_estimates_grow_with_what_is_counted(scale, one, two):
    few, many = sorted((one, two))
    assert 0 <= scale.estimate(few) <= scale.estimate(many)


@given(scales, tokens)
def test_the_allowed_tokens_are_the_most_within_the_budget(scale, budget):
    allowed = scale.allowed(budget)
    if allowed >= 0:
        assert scale.estimate(allowed) <= budget
    assert scale.estimate(max(allowed + 1, 0)) > budget


@given(scales)
def test_at_the_anchor_the_estimate_is_what_was_billed(scale):
    least = -(-FACTOR_MIN_PPM * scale.counted_tokens // MILLION)
    assert scale.estimate(scale.counted_tokens) == max(scale.input_tokens, least)


def test_a_scale_without_anchor_is_the_factor():
    assert Scale().estimate(1_234) == 1_234
    assert Scale(1_550_000).estimate(1_000) == 1_550
    assert Scale(1_550_000).allowed(1_550) == 1_000


# --- what a report teaches ------------------------------------------------------------------------


def test_the_first_report_teaches_no_factor():
    """3,000 of the 5,000 are tool schemas: 2.5 would be silly, and so would be the clamp."""
    known = told(Learned("m", "c"), anchor(5_000, 2_000, 4))
    assert known.factor_ppm == MILLION
    assert known.scale(anchored=True).estimate(2_500) == 5_500


def test_what_is_fixed_drops_out_of_the_second():
    known = told(Learned("m", "c"), anchor(3_000 + 3_000, 2_000, 4))
    known = told(known, anchor(3_000 + 4_500, 3_000, 8))
    assert known.factor_ppm == pytest.approx(1_500_000, rel=0.01)
    assert known.scale(anchored=True).estimate(3_000) == 7_500
    assert known.scale(anchored=False).estimate(3_000) == pytest.approx(4_500, rel=0.01)


def test_a_few_tokens_move_it_a_little():
    known = told(told(Learned("m", "c"), anchor(100, 50, 1)), anchor(106, 53, 2))
    assert MILLION < known.factor_ppm < 1_200_000


@pytest.mark.parametrize("billed", [4_000, 5_000, 5_000 + 5_100])
def test_tools_that_come_or_go_move_the_anchor_alone(billed):
    known = told(Learned("m", "c"), anchor(5_000, 2_000, 4))
    known = told(known, anchor(billed, 3_000, 8))
    assert known.factor_ppm == MILLION
    assert known.anchor == anchor(billed, 3_000, 8)


def test_tools_that_are_added_hardly_move_a_settled_factor():
    known = Learned("m", "c", 1_200_000, EWMA_TOKENS, 9, anchor(9_000, 5_000, 9))
    known = told(known, anchor(9_000 + 2_000 + 600, 5_500, 10))
    assert known.factor_ppm < 1_250_000


@pytest.mark.parametrize(
    "report",
    [
        anchor(8_000, 3_900, 8, cut=3),
        anchor(8_000, 4_000, 8, view=1),
        anchor(8_000, 4_000, 8)._replace(policy="anthropic"),
    ],
)
def test_messages_that_are_shown_otherwise_teach_nothing(report):
    known = told(told(Learned("m", "c"), anchor(5_000, 2_000, 4)), report)
    assert (known.factor_ppm, known.anchor) == (MILLION, report)


@pytest.mark.parametrize(
    "report", [anchor(5_000 + 3_000, 4_000, 8, cut=3), anchor(5_000 - 1_500, 1_000, 8, cut=3)]
)
def test_a_window_that_moved_teaches_if_it_is_of_quite_another_size(report):
    known = told(told(Learned("m", "c"), anchor(5_000, 2_000, 4)), report)
    assert known.factor_ppm == pytest.approx(1_500_000, rel=0.01)


def test_a_late_report_changes_nothing():
    known = told(told(Learned("m", "c"), anchor(5_000, 2_000, 4)), anchor(6_500, 3_000, 8))
    late = told(known, anchor(5_700, 2_400, 6))
    assert late._replace(reports=2) == known


def test_a_report_on_what_is_gone_teaches_and_is_no_anchor():
    known = told(Learned("m", "c"), anchor(5_000, 2_000, 4))
    after = known.after(anchor(6_500, 3_000, 8), live=True, stands=False)
    assert after.factor_ppm > 1_400_000
    assert after.anchor == known.anchor


# --- simulated providers --------------------------------------------------------------------------


class Provider:
    """Bills ``factor * counted + fixed``, each message with noise of its own."""

    def __init__(self, factor: float, fixed: int, noise: float, seed: int) -> None:
        self.factor, self.noise = factor, noise
        self.rng = random.Random(seed)
        self.billed = float(fixed)
        self.counted = self.seq = 0

    def turn(self) -> Anchor:
        """A turn later: what is billed for all that was said."""
        said = self.rng.choice((12, 60, 300, 900))
        self.counted += said
        self.billed += said * self.factor * (1 + self.rng.uniform(-self.noise, self.noise))
        self.seq += 2
        return anchor(round(self.billed), self.counted, self.seq)


def errors(provider: Provider, turns: int) -> list[tuple[float, float]]:
    """Of each request: the relative errors of the estimate before it and of the plain count."""
    known, found = Learned("m", "c"), []
    for _ in range(turns):
        request = provider.turn()
        billed = request.input_tokens
        estimate = known.scale(anchored=True).estimate(request.counted_tokens)
        found.append((abs(estimate / billed - 1), abs(request.counted_tokens / billed - 1)))
        known = told(known, request)
    return found


@given(st.floats(0.8, 2.0), st.integers(0, 20_000), st.floats(0, 0.3), st.integers(0, 2**32))
def test_the_factor_converges_to_the_provider_s(factor, fixed, noise, seed):
    provider, known = Provider(factor, fixed, noise, seed), Learned("m", "c")
    for _ in range(60):
        known = told(known, provider.turn())
    assert known.factor_ppm / MILLION == pytest.approx(factor, rel=0.03 + noise / 2)


@pytest.mark.parametrize("seed", range(5))
def test_like_claude_with_tools_the_error_is_a_fraction_of_the_plain_one(seed):
    """Factor 1.55 and 3,000 tokens of tool schemas, messages 20 % off this way or the other."""
    found = errors(Provider(1.55, 3_000, 0.2, seed), 40)
    assert all(estimated < plain / 4 for estimated, plain in found[1:])
    assert sum(plain for _, plain in found[20:]) / 20 > 0.35  # the plain count misses a third
    assert sum(estimated for estimated, _ in found[20:]) / 20 < 0.01


def test_a_new_tokenizer_is_followed():
    provider, known = Provider(1.0, 500, 0.1, 7), Learned("m", "c")
    for _ in range(40):
        known = told(known, provider.turn())
    provider.factor = 1.5
    for _ in range(120):
        known = told(known, provider.turn())
    assert known.factor_ppm / MILLION == pytest.approx(1.5, rel=0.05)
