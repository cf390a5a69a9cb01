"""``python -m tests.fuzz bpe --long``: single pieces of 1 and 2 MiB, their counts and times."""

from __future__ import annotations

import random
import sys
import time

import adversary
import tiktokens

SIZES = (1 << 20, 1 << 21)


def halves(dice: random.Random, name: str, size: int) -> str:
    """Second halves of words, one piece."""
    words = [text for text in adversary.families(name)["lower"] if len(text) > 5]
    found = "".join(text[len(text) // 2 :] for text in dice.choices(words, k=size // 3))
    return found[:size]


def run_long(seed: int) -> None:
    """Print a line a piece, the first of each kind compared with tiktoken where it can read it.

    Raises:
        AssertionError: a count differs.
    """
    for name in tiktokens.NAMES:
        pieces = [
            [*adversary.runs(random.Random(seed), size), halves(random.Random(seed), name, size)]
            for size in SIZES
        ]
        for one, two in zip(*pieces, strict=True):
            times, counts = zip(*(timed(name, text) for text in (one, two)), strict=True)
            line = (
                f"{name} {one[:6]!r:40} {times[0]:8.1f} ms {times[1]:8.1f} ms {counts[0]:8} tokens"
            )
            if not one[:4].isspace():  # tiktoken panics
                expected = len(tiktokens.reference(name).encode_ordinary(one))
                assert counts[0] == expected, f"{line}; tiktoken: {expected}"
                line += ", as tiktoken"
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


def timed(name: str, text: str) -> tuple[float, int]:
    """The least of three times in milliseconds, and the count."""
    count = tiktokens.vocab.load(name).count
    times = []
    for _ in range(3):
        began = time.perf_counter()
        tokens = count(text)
        times.append(1e3 * (time.perf_counter() - began))
    return min(times), tokens
