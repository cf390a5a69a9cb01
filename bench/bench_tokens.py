"""How fast are exact counts (o200k_base), against tiktoken and the exact packages beside it?

Times are CPU times of this process: no side waits for anything, so a busy machine says less.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import exp, log
from pathlib import Path
from random import Random
from time import process_time_ns
from typing import Any

import texts
from bench_memory import MIB, resident
from harness import (
    Effort,
    Figure,
    NotInstalled,
    Race,
    Row,
    Target,
    absent,
    at_least,
    at_most,
    compare,
    in_child,
    race,
    scratch,
    settle,
)
from rivals import TOKENIZERS, tokenizer

NAME = "o200k_base"
ROUNDS = 20
LONG_BYTES = 1 << 20
FEWEST_TIMES_FASTER = {"logs": 8.0, "JSON records": 8.0}
"""Against tiktoken; 2 for the other kinds of text, 5 for the geometric mean."""
LONG_RIVALS = ("tiktoken", "bpe-openai")
APPENDS = 10
Count = Callable[[str], Any]


def rows(effort: Effort) -> Iterator[Row]:
    """Eight kinds of text, tiny texts, cold starts, memory, single pieces of a megabyte."""
    with scratch() as place:
        vocabulary = write_vocabulary(place / "o200k_base.tiktoken")
        sides, missing = _sides(vocabulary)
        yield from _kind_rows(effort, sides, missing)
        yield from _tiny_rows(effort, sides)
        yield from _long_rows(effort, sides)
        yield from _cold_rows(effort, vocabulary)
        yield _append_row(effort, place)


def write_vocabulary(path: Path) -> Path:
    """OpenAI's file made again from the shipped vocabulary: what rivals read that carry none."""
    from memcore import vocab

    ours = vocab.load(NAME)
    tokens = (ours.token(at) for at in range(ours.n_tokens))
    lines = (b"%s %d\n" % (base64.b64encode(token), at) for at, token in enumerate(tokens))
    path.write_bytes(b"".join(lines))
    return path


@dataclass(frozen=True, slots=True)
class _Side:
    name: str
    count: Count


def _sides(vocabulary: Path) -> tuple[list[_Side], dict[str, str]]:
    """Ours first, then the rivals that are installed; and why the others are missing.

    Raises:
        RuntimeError: a rival counts differently: its speed would say nothing.
    """
    from memcore import vocab

    sides, missing = [_Side("memcore", vocab.load(NAME).count)], {}
    for name in TOKENIZERS:
        try:
            count, version = tokenizer(name, vocabulary)
        except NotInstalled as error:
            missing[name] = str(error)
        else:
            sides.append(_Side(f"{name} {version}", count))
    return sides, missing


def _number(found: Any) -> int:
    return found if isinstance(found, int) else len(found)


def _check(sides: Sequence[_Side], sample: Sequence[str]) -> None:
    for text in sample:
        counts = {side.name: _number(side.count(text)) for side in sides}
        if len(set(counts.values())) > 1:
            raise RuntimeError(f"counts differ: {counts} of {text!r:.300}")


def _race_all(sides: Sequence[_Side], batches: Sequence[Sequence[str]]) -> list[Race]:
    """A batch a round for every side, the order turned each round; ours is compared with each.

    ``map`` calls a side without a Python frame in between. The first round is thrown away.
    """
    found = [Race() for _ in sides]
    settle()
    for number, batch in enumerate(batches):
        times = [0.0] * len(sides)
        for turn in range(len(sides)):
            at = (turn + number) % len(sides)
            count = sides[at].count
            start = process_time_ns()
            deque(map(count, batch), maxlen=0)
            times[at] = (process_time_ns() - start) / len(batch)
        if number:
            for each, theirs in zip(found, times, strict=True):
                each.add([times[0]], [theirs])
    return found


# --- kinds of text -------------------------------------------------------------------------------


def _target(kind: str, side: str) -> Target | None:
    if not side.startswith("tiktoken"):
        return None
    return at_least(FEWEST_TIMES_FASTER.get(kind, 2.0))


def _kind_rows(effort: Effort, sides: Sequence[_Side], missing: dict[str, str]) -> Iterator[Row]:
    races: list[list[Race]] = []
    for kind in texts.KINDS:
        batches, source = kind.batches(effort.rounds(ROUNDS) + 1)
        _check(sides, batches[0])
        races.append(_race_all(sides, batches))
        size = sum(len(text.encode()) for batch in batches for text in batch)
        mean = size // sum(map(len, batches))
        for side, found in zip(sides[1:], races[-1][1:], strict=True):
            yield compare(
                f"count {kind.name}, {mean:,} B",
                found,
                side.name,
                faster=True,
                target=_target(kind.name, side.name),
                note=f"{source}; {len(batches[0])} fresh texts a round",
            )
    for name, why in missing.items():
        yield absent("count eight kinds of text", name, why)
    for at, side in enumerate(sides[1:], 1):
        yield _mean_row(side.name, [found[at] for found in races])


def _mean_row(rival: str, races: Sequence[Race]) -> Row:
    """Geometric means over the kinds, round by round."""
    rounds = list(zip(*(race.ratios for race in races), strict=True))
    return Row(
        "geometric mean of the eight",
        "µs",
        _mean([Figure.of(race.ours).median for race in races]),
        len(rounds),
        rival=rival,
        theirs=_mean([Figure.of(race.theirs).median for race in races]),
        ratio=Figure.of(
            [exp(sum(-log(ratio) for ratio in ratios) / len(ratios)) for ratios in rounds]
        ),
        faster=True,
        target=at_least(5.0) if rival.startswith("tiktoken") else None,
    )


def _geometric(numbers: Sequence[float]) -> float:
    return exp(sum(map(log, numbers)) / len(numbers))


def _mean(times_ns: Sequence[float]) -> Figure:
    mean = _geometric(times_ns) * 1e-3
    return Figure(mean, mean, mean)


# --- tiny texts ----------------------------------------------------------------------------------


def _tiny_rows(effort: Effort, sides: Sequence[_Side]) -> Iterator[Row]:
    """What a call costs: short words, the same hundred ten times a round."""
    from memcore import vocab

    dice = Random(3)
    words = sorted({word for text in texts.prose()[:500] for word in text.split() if len(word) < 7})
    batches = [dice.sample(words, 100) * 10 for _ in range(effort.rounds(ROUNDS) + 1)]
    for side, found in zip(sides[1:], _race_all(sides, batches)[1:], strict=True):
        ours = side.name.startswith("tiktoken")
        yield compare(
            "a call from Python, tiny text",
            found,
            side.name,
            unit="ns",
            faster=True,
            target=at_most(150.0, "ours") if ours else None,
            note="short words, 100 of them 10 times a round, called by map",
        )
    many = vocab.load(NAME).count_many
    times = []
    for batch in batches:
        start = process_time_ns()
        many(batch)
        times.append((process_time_ns() - start) / len(batch))
    yield Row(
        "the same inside count_many, a text",
        "ns",
        Figure.of(times[1:]),
        len(times) - 1,
        target=at_most(60.0, "ours"),
        note="a call from C",
    )


# --- single pieces -------------------------------------------------------------------------------


def long_pieces(size: int) -> dict[str, str]:
    """Texts that no pattern splits; name to text."""
    dice = Random(1)
    han = [chr(point) for point in range(0x4E00, 0x9F00)]
    return {
        "the letter a": "a" * size,
        "random letters": "".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=size)),
        "random capitals": "".join(dice.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=size)),
        "spaces": " " * size,
        "equals signs": "=" * size,
        "tabs before a letter": "\t" * (size - 1) + "x",
        "random Chinese": "".join(dice.choices(han, k=size // 3)),
    }


def _long_rows(effort: Effort, sides: Sequence[_Side]) -> Iterator[Row]:
    size = effort.items(LONG_BYTES)
    for name, text in long_pieces(size).items():
        question = f"{size:,} B in one piece: {name}"
        rivals = [side for side in sides[1:] if side.name.split()[0] in LONG_RIVALS]
        if text[:2].isspace():  # tiktoken panics at a million, and takes the process with it
            rivals = [side for side in rivals if not side.name.startswith("tiktoken")]
            yield absent(question, "tiktoken", "panics on a long run of whitespace")
        raced = [sides[0], *rivals]
        races = _race_all(raced, [[text]] * (effort.rounds(5) + 1))
        for side, found in zip(raced[1:], races[1:], strict=True):
            yield compare(
                question, found, side.name, unit="ms", faster=True, target=at_most(100.0, "ours")
            )


# --- cold start and memory -----------------------------------------------------------------------


def _cold_rows(effort: Effort, vocabulary: Path) -> Iterator[Row]:
    ask = partial(in_child, "bench_tokens", "cold", vocabulary=str(vocabulary))
    rounds = effort.rounds(5)
    ours: list[dict[str, float]] = [ask(name="memcore") for _ in range(rounds)]
    for name in TOKENIZERS:
        try:
            theirs = [ask(name=name) for _ in range(rounds)]
        except NotInstalled as error:
            yield absent("cold start", name, error)
            continue
        for question, unit, key, bound in (
            ("cold start: import, load, first count", "ms", "ms", 20.0),
            ("resident memory of the encoding", "MiB", "mib", 15.0),
        ):
            one, two = ([found[key] for found in side] for side in (ours, theirs))
            ratios = [b / max(a, 1e-9) for a, b in zip(one, two, strict=True)]
            yield Row(
                question,
                unit,
                Figure.of(one),
                rounds,
                rival=name,
                theirs=Figure.of(two),
                ratio=Figure.of(ratios),
                faster=True,
                target=at_most(bound, "ours") if name == "tiktoken" else None,
                note="a fresh process each, after import memcore; of memory, faster is less",
            )


def cold(name: str, vocabulary: str) -> dict[str, float]:
    """In a child: the time until the first count, and what is resident after some texts."""
    import memcore  # noqa: F401 - its import is not the encoding's

    before, start = resident()["VmRSS"], process_time_ns()
    if name == "memcore":
        from memcore import vocab

        count: Count = vocab.load(NAME).count
    else:
        count, _ = tokenizer(name, Path(vocabulary))
    count("Hello, world.")
    took = (process_time_ns() - start) / 1e6
    for text in SAMPLE * 50:
        count(text)
    return {"ms": took, "mib": (resident()["VmRSS"] - before) / MIB}


SAMPLE = (
    "The quick brown fox jumps over the lazy dog, doesn't it?\n", '{"id": 17, "tags": ["a", "b"]}',
    "def f(x):\n    return x ** 2  # squared\n",
    "今天天气很好我们去公园吧。", "Спасибо, всё работает!",
)  # fmt: skip


# --- in an append --------------------------------------------------------------------------------


class _Uncounted:
    """A counter that does not count; it has every method, so that nothing wraps it."""

    id = "uncounted"
    exact = False

    def count_message(self, message: Any, encoded: bytes) -> int:  # noqa: ARG002
        return 1

    def count(self, *_: Any, **__: Any) -> int:
        return 1

    count_many = truncate = count_tools = count


def _append_row(effort: Effort, place: Path) -> Row:
    """The same append of a message of 1 KB with exact counts and without any."""
    import memcore
    from memcore.tokens import get_counter

    kind = texts.Kind("messages", 1_000, 1, texts.assistant)
    held, rounds = effort.items(300), effort.rounds(60)
    batches, _ = kind.batches(held + (rounds + 1) * APPENDS)
    messages = [{"role": "assistant", "content": batch[0][:1_000]} for batch in batches]
    counters: dict[str, Any] = {"exact": get_counter(NAME), "none": _Uncounted()}
    opened, appends = [], []
    for name, counter in counters.items():
        db = memcore.open(place / name, durability="none", allow_unsafe=True, counter=counter)
        opened.append(db)
        session = db.session("bench", orphans="keep")
        session.extend(messages[:held])
        fresh = iter(messages[held:])
        appends.append(partial(_append_next, session, fresh))
    try:
        found = race(*appends, rounds=rounds, calls=APPENDS)
    finally:
        for db in opened:
            db.close()
    return compare(
        "append of a message of 1 KB, exact count",
        found,
        "the same append, not counted",
        durability="none",
        target=at_most(1.6),
        note="both sides append the same fresh messages",
    )


def _append_next(session: Any, messages: Iterator[dict[str, Any]]) -> None:
    session.append(next(messages))


# --- pytest-benchmark ----------------------------------------------------------------------------


def test_count_prose(benchmark):
    from memcore import vocab

    count, paragraphs = vocab.load(NAME).count, texts.prose()[:200]
    benchmark(lambda: deque(map(count, paragraphs), maxlen=0))
