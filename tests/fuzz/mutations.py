"""A plain mutator of byte strings, for where no coverage-guided one is installed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from .targets import Target

WORDS = (b"\0", b"\xff", b"\0\xff", b"\xff" * 8, b"\x7f" * 4, b"\0\0\0\x80", b'"', b"{", b"[",
         b"\\u0000", b"-0", b"1e999", b"null", b"\xed\xa0\x80", b"\xfe")  # fmt: skip
BYTES_MAX = 1 << 16
POOL_MAX = 500


def mutated(dice: random.Random, pool: list[bytes]) -> bytes:
    """One of the pool, changed in one to five places."""
    data = bytearray(dice.choice(pool))
    for _ in range(dice.choice((1, 1, 2, 5))):
        at, count = dice.randrange(len(data) + 1), dice.choice((1, 1, 2, 8, 40))
        match dice.randrange(8):
            case 0 if data:
                data[min(at, len(data) - 1)] ^= 1 << dice.randrange(8)
            case 1:
                data[at : at + count] = dice.randbytes(count)
            case 2:
                del data[at : at + count]
            case 3:
                data[at:at] = dice.randbytes(count)
            case 4:
                data[at : at + count] = dice.choice(WORDS)
            case 5:
                data[at:at] = data[dice.randrange(len(data) + 1) :][:count]
            case 6:
                other = dice.choice(pool)
                data[at:] = other[dice.randrange(len(other) + 1) :]
            case _:
                size = dice.choice((1, 2, 4, 8))
                number = dice.choice((0, 1, 2**15, dice.getrandbits(8 * size)))
                data[at : at + size] = number.to_bytes(8, "little")[:size]
    return bytes(data[:BYTES_MAX])


def inputs(dice: random.Random, corpus: list[bytes]) -> Iterator[bytes]:
    """The corpus, then changes of it and of changes, without end."""
    yield from corpus
    pool = list(corpus)
    while True:
        data = mutated(dice, pool)
        yield data
        if dice.random() < 0.02:
            pool.append(data)
            if len(pool) > POOL_MAX:
                del pool[len(corpus)]


def run(target: Target, corpus: list[bytes], *, seed: int, seconds: float, runs: int) -> int:
    """Feed the target until either is used up (0: no limit); how many inputs.

    Raises whatever the target raises, with the input noted.
    """
    end = time.monotonic() + seconds
    done = 0
    for data in inputs(random.Random(seed), corpus):
        if (runs and done == runs) or (seconds and not done % 64 and time.monotonic() > end):
            break
        try:
            target(data)
        except BaseException as error:
            error.add_note(f"input {done} of seed {seed}: {data!r}")
            raise
        done += 1
    return done
