"""Checksums of the core against the package xxhash, at every length and seed."""

from __future__ import annotations

import mmap
import random

import pytest
import xxhash

from memcore._fast import is_sealed, seal_value, xxh3_64

LENGTHS = [*range(1_300), *(random.Random(2).randrange(1_300, 40_000) for _ in range(100))]
"""All branches of the algorithm and the borders between them: 16, 128, 240, blocks of 1,024."""


@pytest.mark.parametrize("seed", [0, 1, 0x9E3779B97F4A7C15, 2**64 - 1])
def test_the_hash_is_that_of_the_package(seed) -> None:
    rng = random.Random(seed)
    for length in LENGTHS:
        data = rng.randbytes(length)
        assert xxh3_64(data, seed) == xxhash.xxh3_64_intdigest(data, seed), length


def test_anything_with_a_contiguous_buffer_is_hashed() -> None:
    data = bytes(range(256)) * 3
    expected = xxhash.xxh3_64_intdigest(data)
    shared = mmap.mmap(-1, len(data))
    shared[:] = data
    for each in (bytearray(data), memoryview(data), memoryview(b"x" + data)[1:], shared):
        assert xxh3_64(each) == expected
    assert xxh3_64(b"") == xxhash.xxh3_64_intdigest(b"")
    with pytest.raises(BufferError):
        xxh3_64(memoryview(data)[::2])
    with pytest.raises(TypeError):
        xxh3_64("text")
    for seed in (-1, 2**64):
        with pytest.raises(OverflowError):
            xxh3_64(data, seed)


def test_a_seal_is_the_documented_hash_and_covers_every_byte() -> None:
    rng = random.Random(1)
    for keyed in (1, 9, 511):
        for size in (0, 1, 200, 2_047, 2_048, 2_049, 70_000):
            key, body = rng.randbytes(keyed), rng.randbytes(size)
            value = seal_value(key, body, 5, value_format=2)
            head = bytes((2, 5))
            content = keyed.to_bytes(2, "little") + head + key + body
            assert value == head + xxhash.xxh3_64_digest(content) + body
            assert is_sealed(key, value)
            for at in {0, 1, 2, 9, len(value) - 1, rng.randrange(len(value))}:
                broken = bytearray(value)
                broken[at] ^= 1 << rng.randrange(8)
                assert not is_sealed(key, bytes(broken)), at
            other = bytearray(key)
            other[rng.randrange(keyed)] ^= 1
            assert not is_sealed(bytes(other), value)


def test_what_is_no_row_is_not_sealed() -> None:
    value = seal_value(b"k", b"")
    assert is_sealed(b"k", value)
    assert not is_sealed(b"k", value[:-1])
    assert not is_sealed(b"k", b"")
    assert not is_sealed(b"k" * 512, value)
    for flags, value_format in ((256, 1), (-1, 1), (0, 256), (0, -1)):
        with pytest.raises(ValueError, match="one byte"):
            seal_value(b"k", b"", flags, value_format=value_format)
    with pytest.raises(ValueError, match="511"):
        seal_value(b"k" * 512, b"")
