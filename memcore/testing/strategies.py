"""Hypothesis strategies of histories in every wire format: an agent's, or as bad as they come.

``agent_histories`` are what a real agent appends, with the faults that are asked for.
``histories`` and ``mixed_histories`` are wild: steps whose ids come from a small pool, so that
parallel, late, interleaved, repeated, orphaned and unanswered calls all come up, together with
forms that few runtimes write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from hypothesis import strategies as st

from memcore.testing.facts import Event
from memcore.testing.script import FORMATS, IDS, Faults, Step, agent_script, write, written

__all__ = [
    "HOSTILE_IDS",
    "DrawnChoices",
    "agent_histories",
    "histories",
    "mixed_histories",
]

Item = dict[str, Any]
T = TypeVar("T")

HOSTILE_IDS: Final = (
    "", None, 7, "c" * 5_000, "\ud800", "\x00", "ü", ["c0"], {"id": "c0"}, True,
)  # fmt: skip

# --- wild histories -------------------------------------------------------------------------------

_ids = st.one_of(*[st.sampled_from(IDS)] * 9, st.sampled_from(HOSTILE_IDS))
_variant = st.integers(0, 7)
_some_ids = st.lists(_ids, min_size=1, max_size=4).map(tuple)


def _steps(*whats: str) -> st.SearchStrategy[Step]:
    return st.builds(Step, st.sampled_from(whats), _some_ids, _variant)


_scripts = st.lists(
    st.one_of(
        _steps("call", "results", "result"),
        _steps("call", "result"),
        _steps("user", "assistant", "system"),
        _steps("event", "abandon", "reasoning", "server", "server_result", "think", "odd"),
    ),
    max_size=24,
)


@st.composite
def _orderly_scripts(draw: st.DrawFn) -> list[Step]:
    """Scripts in which most calls are answered at once and ids do not come again."""
    script: list[Step] = []
    for turn in range(draw(st.integers(0, 6))):
        script.append(Step("user"))
        for loop in range(draw(st.integers(0, 3))):
            size = draw(st.sampled_from((1, 1, 1, 2, 3)))
            ids = tuple(f"t{turn}-{loop}-{i}" for i in range(size))
            variant = draw(_variant)
            if draw(st.booleans()):
                script.append(Step("reasoning"))
            script.append(Step("call", ids, variant))
            answered = draw(st.permutations(ids))
            fault = draw(st.sampled_from((*"......", "one missing", "one twice")))
            if fault == "one missing":
                answered = answered[1:]
            elif fault == "one twice":
                answered = [*answered, answered[0]]
            script.append(Step("results", tuple(answered), variant))
        script.append(Step("assistant"))
    noise = draw(
        st.lists(st.tuples(st.integers(0, 40), _steps("user", "event", "result")), max_size=2)
    )
    for at, step in noise:
        script.insert(at, step)
    return script


def histories(
    fmt: str | None = None, *, orderly: bool = False
) -> st.SearchStrategy[list[Item | Event]]:
    """Histories of one wire format (None: of any); ``orderly`` ones have few faults."""
    script = _orderly_scripts() if orderly else st.one_of(_scripts, _orderly_scripts())
    formats = st.just(fmt) if fmt is not None else st.sampled_from(FORMATS)
    return st.builds(write, script, formats)


def mixed_histories() -> st.SearchStrategy[list[Item | Event]]:
    """Histories whose items come from all formats at once."""
    piece = st.lists(_steps("call", "results", "user", "think", "reasoning", "odd"), max_size=4)
    pieces = st.lists(st.builds(write, piece, st.sampled_from(FORMATS)), max_size=6)
    return pieces.map(lambda parts: [item for part in parts for item in part])


# --- an agent's histories -------------------------------------------------------------------------


class DrawnChoices:
    """Choices that hypothesis draws; they shrink to few turns, no faults and short texts."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._texts = 0

    def chance(self, share: float) -> bool:
        """True in about so large a share of the cases."""
        if share <= 0:
            return False
        return self._draw(st.integers(0, 99)) >= round(100 * (1 - share))

    def count(self, least: int, most: int) -> int:
        """An integer from ``least`` to ``most``."""
        return self._draw(st.integers(least, most))

    def shuffled(self, entries: Sequence[T]) -> list[T]:
        """The entries in any order."""
        return list(self._draw(st.permutations(entries))) if len(entries) > 1 else list(entries)

    def text(self, words: int) -> str:
        """A text of one word to so many words; each has a number of its own."""
        self._texts += 1
        return " ".join([f"text{self._texts}", *["word"] * self._draw(st.integers(0, words - 1))])


@st.composite
def agent_histories(
    draw: st.DrawFn,
    *,
    policy: str = "openai_chat",
    faults: Faults | None = None,
    turns: tuple[int, int] = (1, 4),
) -> list[Item]:
    """Histories that an agent appends, in the format of a pair policy.

    Args:
        draw: hypothesis's own; it is not given.
        policy: a wire format: one of ``FORMATS``.
        faults: kinds of trouble, each with its share; None: late results and parallel calls.
        turns: the least and the greatest number of turns.
    """
    script = agent_script(DrawnChoices(draw), faults or Faults(), turns=turns)
    return written(script, policy)
