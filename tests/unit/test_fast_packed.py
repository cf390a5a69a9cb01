"""Types named in MessagePack: as a decoder finds them, and never out of bounds."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcore._fast import types_in_packed
from memcore.privacy.redact_packed import Extension, Pairs, pack, unpack

NAMELESS = 1 << 6 | 1 << 7
_leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=40)
    | st.binary(max_size=300)
)
_names = st.text(max_size=40)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    named = st.builds(lambda module, name, rest: pack([module, name, *rest]), _names, _names,
                      st.lists(inner, max_size=16))  # fmt: skip
    return (
        st.lists(inner, max_size=20)
        | st.dictionaries(st.text(max_size=9), inner, max_size=20)
        | st.builds(Extension, st.sampled_from([0, 1, 2, 3, 4, 5, 40, 127]), named)
        | st.builds(Extension, st.sampled_from([6, 7]), inner.map(pack))
    )


_values = st.recursive(_leaves, _objects, max_leaves=12)


def _named(value: Any) -> set[tuple[str, str]]:
    """The same, by decoding."""
    if isinstance(value, Pairs):
        return set().union(*(_named(part) for pair in value for part in pair))
    if isinstance(value, dict):
        return set().union(*map(_named, value.values()))
    if isinstance(value, list):
        return set().union(*map(_named, value))
    if isinstance(value, Extension):
        inner = unpack(value.content)
        own = set() if value.code in (6, 7) else {(inner[0], inner[1])}
        return own | _named(inner)
    return set()


@given(value=_values)
def test_it_finds_what_a_decoder_finds(value: Any) -> None:
    assert types_in_packed(pack(value), NAMELESS) == _named(value)


@given(value=_values, data=st.data())
def test_damage_raises_or_is_read(value: Any, data: st.DataObject) -> None:
    content = bytearray(pack(value))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        found = types_in_packed(damaged, NAMELESS)
    except ValueError:
        return
    assert all(isinstance(part, str) for named in found for part in named)


@given(content=st.binary(max_size=64))
def test_arbitrary_bytes_are_read_within_their_bounds(content: bytes) -> None:
    with contextlib.suppress(ValueError):
        types_in_packed(content, 0)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "cut short"),
        (b"\xdc\xff\xff", "cut short"),
        (b"\xdd\xff\xff\xff\xff\xc0", "cut short"),
        (b"\xc7\x05\x05\xc0", "cut short"),
        (b"\xd4\x05", "cut short"),
        (b"\xd4\x05\xc0", "names no type"),
        (b"\xd6\x05\x92\xa1a\x01", "names no type"),
        (b"\xc0\xc0", "more than one"),
        (b"\xc1", "0xC1"),
    ],
)
def test_what_is_no_value_is_refused(content: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        types_in_packed(content, 0)


def test_texts_that_are_not_utf8_are_refused() -> None:
    with pytest.raises(ValueError, match="utf-8"):
        types_in_packed(b"\xd7\x05\x92\xa1\xff\xa1a\xc0\xc0\xc0", 0)


def test_a_codes_bit_makes_it_nameless() -> None:
    content = pack(Extension(7, pack(["a", "b"])))
    assert types_in_packed(content, 0) == {("a", "b")}
    assert types_in_packed(content, 1 << 7) == set()
