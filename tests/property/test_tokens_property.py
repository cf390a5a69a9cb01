"""Laws of counting: messages of any shape, and cuts of any text."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import memcore
import strategies
from memcore.codec import values as codec
from memcore.tokens.counter import TextCounter
from memcore.tokens.media import may_hold_media
from memcore.tokens.message import FRAMED, HIDDEN, STRUCTURED, gather

relaxed = settings(deadline=None, max_examples=150)

KINDS = (
    "image", "image_url", "input_image", "input_audio", "input_file", "file", "document", "media",
    "tool_use", "tool_call", "text", "base64", "content",
)  # fmt: skip
KEYS = (
    "role", "type", "content", "parts", "name", "data", "source", "url", "image_url", "file_data",
    "inlineData", "fileData", "mimeType", "detail", "tool_calls", "additional_kwargs", "text",
    "function_call", "id", "call_id", *sorted(FRAMED | STRUCTURED), "signature", "status",
)  # fmt: skip
URL = "data:image/png;base64,"
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(KINDS), st.text(max_size=8),
    st.sampled_from((URL, URL + "A" * 300, URL + "A" * 300 + URL, "\ud800", "https://x.org", "QQ")),
)  # fmt: skip


def _objects(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(st.sampled_from(KEYS), children, max_size=5)


messages = _objects(
    st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | _objects(inner), max_leaves=12)
)


def backwards(value: Any) -> Any:
    """The same with the members of every object in the opposite order, but for structured ones."""
    if isinstance(value, list):
        return [backwards(entry) for entry in value]
    if isinstance(value, dict):
        return {
            key: entry if key in STRUCTURED else backwards(entry)
            for key, entry in reversed(value.items())
        }
    return value


def _one_of(history: list[Any]) -> st.SearchStrategy[Any]:
    return st.sampled_from(history) if history else st.just({})


def encode(value: Any) -> bytes:
    return codec.encode_json(value)[0]


@relaxed
@given(messages)
def test_any_message_is_counted_whatever_the_order_of_its_members(message):
    encoded = encode(message)
    fixed, texts, media = gather(encoded)
    assert fixed >= 3
    assert not media or may_hold_media(encoded)
    other = gather(encode(backwards(message)))
    assert (fixed, sorted(texts), sorted(media)) == (other[0], sorted(other[1]), sorted(other[2]))
    for name in ("o200k_base", "bytes/4", "o200k_base*1.2+digits@gemini"):
        by = memcore.get_counter(name)
        assert by.count_message(message, encoded) >= 0
    exact = memcore.get_counter()
    table = memcore.tokens.PROFILES["openai"]
    assert exact.count_message(message, encoded) == (
        fixed + sum(map(exact.count, texts)) + sum(map(table, media))
    )


def tuples(value: Any) -> Any:
    """The same with tuples for lists: JSON has no other word for them."""
    if isinstance(value, list):
        return tuple(map(tuples, value))
    return {key: tuples(at) for key, at in value.items()} if isinstance(value, dict) else value


@relaxed
@given(st.one_of(messages, strategies.mixed_histories().flatmap(_one_of)))
def test_the_counter_in_c_follows_the_rules(message):
    encoded = encode(message)
    for by in (memcore.get_counter(), memcore.get_counter("cl100k_base@anthropic")):
        expected = TextCounter.count_message(by, message, encoded)
        assert by.count_message(message, encoded) == expected
        assert by.count_message(tuples(message), encoded) == expected
        assert by.count_message(backwards(message), encode(backwards(message))) == expected


@relaxed
@given(messages, st.sampled_from(sorted(HIDDEN | {"id", "any_id", "anyId"})), leaves)
def test_hidden_members_never_count(message, key, value):
    changed = {**message, key: {"text": value}}
    kept = {name: entry for name, entry in changed.items() if name != key}
    if key != "type":
        assert gather(encode(changed)) == gather(encode(kept))


@relaxed
@given(messages)
def test_text_counts_are_those_of_tiktoken(message):
    encoded = encode(message)
    ours, theirs = (memcore.get_counter(name) for name in ("o200k_base", "tiktoken:o200k_base"))
    assert ours.count_message(message, encoded) == theirs.count_message(message, encoded)


TEXT = st.text(
    st.one_of(st.sampled_from("aA1 \n'./é日👩‍\u0301\ud800"), st.characters()), max_size=60
)


@relaxed
@given(
    TEXT,
    st.integers(1, 30),
    st.sampled_from(("head", "tail", "middle")),
    st.sampled_from((None, "", "…", "\n[cut]\n")),
    st.sampled_from(("o200k_base", "cl100k_base", "bytes/2", "o200k_base*1.4+digits")),
)
def test_a_cut_never_exceeds_its_budget(text, most, keep, marker, name):
    by = memcore.get_counter(name)
    if marker and by.count(marker) > most:
        return
    found = by.truncate(text, most, keep=keep, marker=marker)
    assert found.kept == by.count(found.text) <= most
    assert found.total == by.count(text)
    assert (found.text == text) == (found.total <= most) or marker


@relaxed
@given(
    st.lists(st.dictionaries(st.sampled_from((*KEYS, "properties", "enum")), leaves, max_size=4))
)
def test_any_tools_are_counted(tools):
    for name in ("o200k_base", "bytes/4@anthropic"):
        assert memcore.count_tools(tools, counter=name) >= (0 if not tools else 1)
