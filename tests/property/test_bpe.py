"""The shipped vocabularies are OpenAI's, and all of Unicode is counted as tiktoken does.

The tests of each text and each method are in ``test_fast_bpe.py``; these are about the whole.
"""

from __future__ import annotations

import random
import threading
from functools import cache
from importlib import resources
from importlib.machinery import SourceFileLoader
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_loader
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import tiktoken

import adversary
from memcore import vocab
from tiktokens import NAMES, agree, definition, digest, disagreement, reference, tokens

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "make_vocab"

each = pytest.mark.parametrize("name", NAMES)

SHA256 = {
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
}
POINTS = [at for at in range(0x110000) if not 0xD800 <= at < 0xE000]
RICH = "{0}a{0}'s {0}B{0}{0}1{0}.{0}\n{0} {0}/"
"""A code point before, behind and between all kinds; where little is assigned, LEAN will do."""
LEAN = "{0}a "
RICH_RANGES = (
    range(0x3400),
    range(0xA000, 0xAC00),
    range(0xF900, 0x12000),
    range(0x16A00, 0x17000),
    range(0x1D000, 0x1FC00),
    range(0xE0000, 0xE0200),
)
RICH_POINTS = frozenset(chain.from_iterable(RICH_RANGES))

CLASSES = {
    1: r"[\p{Lu}\p{Lt}]",
    2: r"\p{Ll}",
    3: r"[\p{Lm}\p{Lo}]",
    4: r"\p{M}",
    5: r"\p{N}",
    6: r"\s",
}


@each
def test_the_tokens_are_openais(name: str) -> None:
    assert digest(name) == SHA256[name]
    assert definition(name)["mergeable_ranks"] == SHA256[name]  # what tiktoken expects of the file


@cache
def maker() -> Any:
    """The script that makes the files."""
    loader = SourceFileLoader("make_vocab", str(SCRIPT))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


@each
def test_a_vocabulary_is_what_its_script_makes_of_the_tokens(name: str) -> None:
    made = maker().vocabulary(tokens(name), maker().PATTERNS[name])
    assert (maker().HOME / f"{name}.bin").read_bytes() == made


def test_the_classes_are_what_their_script_makes_of_the_engine() -> None:
    if not version("tiktoken").startswith(maker().ENGINE):
        pytest.skip(f"the classes are those of tiktoken {maker().ENGINE}*")
    assert (maker().HOME / "classes.bin").read_bytes() == maker().classes()


@each
def test_every_code_point(name: str) -> None:
    """All 1,112,064 of them, each in its own probe; a difference is narrowed to its code point."""
    assert len(POINTS) == 1_112_064
    step = 1 << 12
    for start in range(0, len(POINTS), step):
        text = probes(POINTS[start : start + step])
        if vocab.load(name).encode(text) != reference(name).encode_ordinary(text):
            wrong = narrowed(name, POINTS[start : start + step])
            agree(name, probes(wrong))
            pytest.fail(f"{name}: only together: {[hex(at) for at in wrong][:9]}")


def probes(points: list[int]) -> str:
    return "|".join((RICH if point in RICH_POINTS else LEAN).format(chr(point)) for point in points)


def narrowed(name: str, points: list[int]) -> list[int]:
    """The half, the half of that, and so on, that still differs."""
    while len(points) > 1:
        half = len(points) // 2
        parts = [
            part for part in (points[:half], points[half:]) if disagreement(name, probes(part))
        ]
        if not parts:
            return points
        points = parts[0]
    return points


def test_a_difference_is_narrowed_to_its_code_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        narrowed.__globals__,
        "disagreement",
        lambda _, text: "differs" if "\u017f" in text else None,
    )
    assert narrowed("o200k_base", POINTS[:4096]) == [ord("\u017f")]


def test_the_classes_are_those_of_tiktokens_engine() -> None:
    """An Encoding drops what its pattern does not match: the engine itself names the members."""
    file = (resources.files("memcore.vocab") / "classes.bin").read_bytes()
    assert file[:8] == b"mc-class"
    index, blocks = memoryview(file)[32 : 32 + 2 * 8704].cast("H"), file[32 + 2 * 8704 :]
    shipped = b"".join(blocks[128 * block : 128 * block + 128] for block in index)
    expected = bytearray(0x110000)
    ranks = {bytes([byte]): byte for byte in range(256)}
    for number, pattern in CLASSES.items():
        oracle = tiktoken.Encoding("", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        for start in range(0, len(POINTS), 4096):
            text = "".join(map(chr, POINTS[start : start + 4096]))
            for member in bytes(oracle.encode_ordinary(text)).decode():
                assert expected[ord(member)] == 0
                expected[ord(member)] = number
    expected[10] = expected[13] = 7
    differing = [hex(at) for at in range(0x110000) if expected[at] != shipped[at]]
    assert differing == []


@each
def test_long_pieces(name: str) -> None:
    """One piece of 64 KiB each; `python -m tests.fuzz bpe --long` does it with 1 and 2 MiB."""
    for run in adversary.runs(random.Random(3), 1 << 16):
        agree(name, run)


@each
def test_a_megabyte_that_is_one_piece(name: str) -> None:
    """tiktoken panics on a million spaces; we follow the law of a run: its longest token again."""
    ours, size = vocab.load(name), 1 << 20
    for character in " a":
        one = {text for text in adversary.families(name)["any"] if set(text) == {character}}
        counts = [ours.count(character * part) for part in (size, size // 2)]
        assert abs(counts[0] - 2 * counts[1]) <= 4
        assert counts[0] >= size // max(map(len, one))
    agree(name, "a" * size)
    assert ours.count(" " * size) == len(ours.encode(" " * size))
    assert b"".join(map(ours.token, ours.encode(" " * size))) == b" " * size


@each
def test_a_long_piece_of_token_halves(name: str) -> None:
    dice = random.Random(4)
    halves = [text[len(text) // 2 :] for text in adversary.families(name)["lower"] if len(text) > 5]
    text = "".join(dice.choices(halves, k=50_000))
    assert vocab.load(name).encode(text) == reference(name).encode_ordinary(text)


@each
def test_threads_that_count_at_once(name: str) -> None:
    """Large texts are counted without the interpreter lock; each thread has its own scratch."""
    ours = vocab.load(name)
    texts = [adversary.soup(random.Random(seed), name, 3000) for seed in range(6)]
    texts += [adversary.nasty(random.Random(seed), 9000) for seed in range(6)]
    expected = [len(reference(name).encode_ordinary(text)) for text in texts]
    wrong: list[int] = []
    together = threading.Barrier(8)

    def count_all(first: int) -> None:
        together.wait()
        for step in range(len(texts)):
            at = (step * 7 + first) % len(texts)
            found = (ours.count(texts[at]), len(ours.encode(texts[at])), ours.measure(texts[at])[0])
            if found != (expected[at],) * 3:
                wrong.append(at)

    threads = [threading.Thread(target=count_all, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert list(ours.count_many(texts)) == expected
