"""Files that are no vocabulary: refused, or counted with, but never a crash."""

from __future__ import annotations

import random

import pytest

import adversary
from memcore._fast import Encoding
from vocabularies import CLASSES, MERGES, REAL, small, use


def some_texts(dice: random.Random) -> list[str]:
    soup = "".join(dice.choices(["the", "thing", "in", "aaaaa", "a" * 300, " ", "中", "7"], k=30))
    return ["", "the thing", "a" * 1000, soup, adversary.nasty(dice, 40)]


def test_a_small_one_counts() -> None:
    found = Encoding(small(), CLASSES)
    assert found.n_tokens == 256 + len(MERGES)
    assert found.encode("thing") == [256 + 12]
    assert [found.token(at) for at in found.encode("a" * 200)] == [
        b"a" * 128, b"a" * 64, b"a" * 8]  # fmt: skip
    assert use(small(), CLASSES, some_texts(random.Random(1)))


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 31, 32, 33, 288, 1000, -1])
def test_truncated_files(cut: int) -> None:
    texts = some_texts(random.Random(1))
    for vocabulary, classes in (
        (REAL[:cut], CLASSES),
        (small()[:cut], CLASSES),
        (REAL, CLASSES[:cut]),
    ):
        assert not use(vocabulary, classes, texts)


def test_empty_and_swapped_files() -> None:
    for vocabulary, classes in (
        (b"", b""),
        (b"", CLASSES),
        (REAL, b""),
        (CLASSES, REAL),
        (REAL, REAL),
    ):
        with pytest.raises(ValueError):
            Encoding(vocabulary, classes)


def test_extended_files() -> None:
    for vocabulary, classes in ((small() + b"\0", CLASSES), (small(), CLASSES + b"\0")):
        with pytest.raises(ValueError):
            Encoding(vocabulary, classes)


def test_what_is_no_bytes() -> None:
    for wrong in (None, "text", 7, bytearray(small())):
        with pytest.raises(TypeError):
            Encoding(wrong, CLASSES)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            Encoding(small(), wrong)  # type: ignore[arg-type]


def test_numbers_that_lie() -> None:
    """Counts and lengths of the header at their limits."""
    for offset in range(8, 24, 4):
        for number in (0, 1, 3, 255, 256, 2**16, 2**18 - 1, 2**18, 2**31 - 1, 2**31, 2**32 - 1):
            for at, file in enumerate((small(), CLASSES)):
                changed = file[:offset] + number.to_bytes(4, "little") + file[offset + 4 :]
                files = (changed, CLASSES) if at == 0 else (small(), changed)
                use(*files, some_texts(random.Random(1)))


def test_vocabularies_that_contradict_themselves() -> None:
    texts, dice = some_texts(random.Random(1)), random.Random(2)
    single = [bytes([byte]) for byte in range(256)]
    assert not use(
        small(tokens=[*single[:255], b"\0", *MERGES]), CLASSES, texts
    )  # a byte is missing
    assert not use(small(tokens=[*single, *MERGES[:-1], b"th"]), CLASSES, texts)  # twice
    assert not use(small(tokens=[*single, *MERGES[:-1], b""]), CLASSES, texts)  # empty
    assert not use(small(tokens=[*single, *MERGES[:-1], b"a" * 129]), CLASSES, texts)  # too long
    for _ in range(200):
        splits = [0] * 256 + [dice.randrange(max(len(token), 2)) for token in MERGES]
        use(small(splits=splits), CLASSES, texts)
        order = [*single, *MERGES]
        dice.shuffle(order)
        splits = [dice.randrange(1, len(token)) if len(token) > 1 else 0 for token in order]
        use(small(tokens=order, splits=splits), CLASSES, texts)


@pytest.mark.parametrize("seed", range(4))
def test_flipped_bits(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(150):
        files = [bytearray(small()), bytearray(CLASSES)]
        changed = dice.choice(files)
        for _ in range(dice.choice((1, 2, 9))):
            changed[dice.choice((dice.randrange(len(changed)), dice.randrange(600)))] ^= (
                1 << dice.randrange(8)
            )
        use(bytes(files[0]), bytes(files[1]), some_texts(dice))


def test_random_classes() -> None:
    """Any code point in any class: where the table is taken, pieces change and the bounds hold."""
    dice, texts = random.Random(3), some_texts(random.Random(3))
    first = 32 + 2 * 8704 + 128 * int.from_bytes(CLASSES[32:34], "little")
    blocks_at = 32 + 2 * 8704
    for _ in range(30):
        # 7, the newlines, are carriage return and line feed alone.
        classes = CLASSES[:blocks_at] + bytes(dice.choices(range(7), k=len(CLASSES) - blocks_at))
        for pattern in (1, 2):
            assert not use(small(pattern=pattern), classes, texts)  # ASCII is not as it is
            kept = classes[:first] + CLASSES[first : first + 128] + classes[first + 128 :]
            assert use(small(pattern=pattern), kept, texts)
    for character in range(128):
        for other in range(9):
            changed = bytearray(CLASSES)
            changed[first + character] = other
            same = other == CLASSES[first + character]
            text = f"{chr(character)} a{chr(character)}\n"
            assert use(small(), bytes(changed), [chr(character), text]) == same


def test_a_real_one_with_flipped_bits() -> None:
    dice = random.Random(4)
    for _ in range(12):
        changed = bytearray(REAL)
        for _ in range(3):
            changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
        use(bytes(changed), CLASSES, some_texts(dice))
