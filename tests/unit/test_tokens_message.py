"""What a message counts: the rules of memcore.tokens.message, one by one and by wire format."""

from __future__ import annotations

import enum
import json
from typing import Any

import pytest

import memcore
from memcore.codec import values as codec
from memcore.tokens import media
from memcore.tokens.media import PROFILES, may_hold_media
from memcore.tokens.message import FRAMED, HIDDEN, gather
from memcore.wire import synthetic_samples
from messages import assistant, call, result, user

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
LONG = "QUJD" * 5_000


def encode(message: Any) -> bytes:
    text = json.dumps(message, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def found(message: Any) -> tuple[int, list[str], list[tuple[str, str]]]:
    """Fixed tokens, the texts in order of the alphabet, and kind and MIME type of the media."""
    fixed, texts, parts = gather(encode(message))
    return fixed, sorted(texts), [(part.kind, part.mime) for part in parts]


def tokens(message: Any, counter: Any = None) -> int:
    return memcore.get_counter(counter).count_message(message, encode(message))


CHAT_CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q":1}'}},
        {"id": "c2", "type": "custom", "custom": {"name": "sql", "input": "select"}},
    ],
}


@pytest.mark.parametrize(
    ("message", "fixed", "texts"),
    [
        ({}, 3, []),
        (user("hello"), 3, ["hello", "user"]),
        ({"role": "user", "name": "ann", "content": "hi"}, 4, ["ann", "hi", "user"]),
        (CHAT_CALL, 3 + 2 * 4, ["assistant", "search", "select", "sql", '{"q":1}']),
        (result("c1", "done"), 3, ["done", "tool"]),
        (
            {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
            3 + 4,
            ["assistant", "f", "{}"],
        ),
        # Responses: the item is the call, so only its own framing counts
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}, 4, ["f", "{}"]),
        ({"type": "function_call_output", "call_id": "c", "output": "ok"}, 3, ["ok"]),
        (
            {"type": "function_call_output", "output": [{"type": "input_text", "text": "ok"}]},
            3,
            ["ok"],
        ),
        (
            {"type": "reasoning", "encrypted_content": LONG, "summary": [{"text": "so"}]},
            3,
            ["so"],
        ),
        (
            {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls"]}},
            3,
            ['{"type":"exec","command":["ls"]}'],
        ),
        # Anthropic
        (
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": LONG},
                    {"type": "redacted_thinking", "data": LONG},
                    {"type": "text", "text": "ok", "cache_control": {"type": "ephemeral"}},
                    {"type": "tool_use", "id": "t", "name": "f", "input": {"a": [1, "ü"]}},
                ],
            },
            3 + 4,
            ["assistant", "f", "hm", "ok", '{"a":[1,"ü"]}'],
        ),
        (
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t", "content": "one"},
                    {"type": "tool_result", "tool_use_id": "u", "content": [{"text": "two"}]},
                ],
            },
            3 + 2 * 3,
            ["one", "two", "user"],
        ),
        # Gemini
        (
            {
                "role": "model",
                "parts": [
                    {"text": "hm", "thought": True, "thoughtSignature": LONG},
                    {"functionCall": {"id": "1", "name": "f", "args": {}}},
                ],
            },
            3 + 4,
            ["f", "hm", "model", "{}"],
        ),
        (
            {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"r": 1}}}]},
            3 + 4,
            ["f", "user", '{"r":1}'],
        ),
        # LangChain
        (
            {
                "type": "ai",
                "data": {
                    "type": "ai",
                    "content": "",
                    "tool_calls": [{"name": "f", "args": {"a": 1}, "id": "c", "type": "tool_call"}],
                    "response_metadata": {"model_name": "x"},
                    "additional_kwargs": {"tool_calls": [{"function": {"name": "f"}}]},
                },
            },
            3 + 4,
            ["f", '{"a":1}'],
        ),
        (
            {
                "lc": 1,
                "type": "constructor",
                "id": ["langchain", "schema", "messages", "AIMessage"],
                "kwargs": {
                    "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}],
                    "tool_calls": [{"name": "f", "args": {}, "id": "c"}],
                },
            },
            3 + 4,
            ["f", "{}"],
        ),
        (
            {"type": "ai", "content": "", "additional_kwargs": {"function_call": {"name": "f"}}},
            4,
            ["f"],
        ),
        ({"type": "tool", "content": "ok", "tool_call_id": "c", "artifact": {"x": "y"}}, 3, ["ok"]),
        # odd values
        ({"role": 7, "content": {"deep": ["a", {"b": "c"}, None, 1.5, True]}}, 3, ["a", "c"]),
        ({"content": "a", "arguments": None, "function": {"arguments": None}}, 3, ["a"]),
        ({"name": None, "tool_calls": "x", "additional_kwargs": "y"}, 3, ["x"]),
    ],
    ids=repr,
)  # fmt: skip
def test_the_texts_of_a_message(message, fixed, texts):
    assert found(message) == (fixed, sorted(texts), [])


def test_a_message_counts_its_texts_each_on_its_own():
    by = memcore.get_counter()
    fixed, texts, _ = gather(encode(CHAT_CALL))
    assert tokens(CHAT_CALL) == fixed + sum(map(by.count, texts)) == 20


@pytest.mark.parametrize("key", sorted(HIDDEN | {"id", "call_id", "tool_use_id", "toolUseId"}))
def test_hidden_members_cost_nothing(key):
    block = {key: {"text": "seen?"}}
    extra = 3 if key in FRAMED else 0
    assert found({"content": [block]}) == (3 + extra, [], [])


def test_json_comes_back_as_it_is_stored():
    big, lone = 10**30, "\ud800"
    message = {"content": [{"type": "tool_use", "input": {"n": big, "x": [1e16, lone]}}]}
    assert found(message)[1] == [f'{{"n":{big},"x":[1e+16,"{lone}"]}}']
    assert found({"input": {"x": 1e16}})[1] == [codec.encode_json({"x": 1e16})[0].decode()]
    assert tokens(message) > 3


def test_deep_nesting_is_no_recursion():
    deep: Any = "end"
    for _ in range(500):
        deep = [deep]
    assert found({"content": deep}) == (3, ["end"], [])
    assert len(found({"input": deep})[1]) == 1
    with pytest.raises(memcore.InvalidItemError):
        gather(b"[" * 100_000 + b"]" * 100_000)
    with pytest.raises(memcore.InvalidItemError):
        gather(b"no json")


# --- media ----------------------------------------------------------------------------------------

URL = {"url": f"data:image/png;base64,{PNG}"}
MEDIA = [
    ({"type": "image_url", "image_url": URL}, "image", "image/png"),
    ({"type": "image_url", "image_url": {"url": "https://x.org/a.png"}}, "image", ""),
    ({"type": "input_image", "image_url": URL["url"], "detail": "low"}, "image", "image/png"),
    ({"type": "input_image", "file_id": "file-1"}, "image", ""),
    ({"type": "input_audio", "input_audio": {"data": LONG, "format": "wav"}}, "audio", "wav"),
    ({"type": "input_file", "file_data": LONG}, "document", ""),
    ({"type": "file", "file": {"file_data": "data:application/pdf;base64," + LONG}}, "document",
     "application/pdf"),
    ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
     "image", "image/png"),
    ({"type": "document", "source": {"type": "url", "url": "https://x.org/a.pdf"}}, "document", ""),
    ({"inlineData": {"mimeType": "image/PNG", "data": PNG}}, "image", "image/png"),
    ({"inline_data": {"mime_type": "audio/mp3", "data": LONG}}, "audio", "audio/mp3"),
    ({"fileData": {"mimeType": "video/mp4", "fileUri": "gs://x"}}, "video", "video/mp4"),
    ({"type": "image", "source_type": "base64", "data": PNG, "mime_type": "image/png"}, "image",
     "image/png"),
    ({"type": "image", "base64": PNG, "mime_type": "image/png"}, "image", "image/png"),
    ({"type": "media", "mime_type": "audio/wav", "data": LONG}, "audio", "audio/wav"),
]  # fmt: skip


@pytest.mark.parametrize(("block", "kind", "mime"), MEDIA, ids=repr)
def test_media_are_recognised_wherever_they_are(block, kind, mime):
    message = {"role": "user", "content": [{"type": "text", "text": "see"}, block]}
    inside = {"role": "user", "content": [{"type": "tool_result", "content": [block]}]}
    assert found(message) == (3, ["see", "user"], [(kind, mime)])
    assert found(inside)[2] == [(kind, mime)]
    assert may_hold_media(encode(message))
    assert may_hold_media(encode(inside))


def test_media_as_items_of_responses():
    shot = {"type": "computer_screenshot", "image_url": URL["url"]}
    output = {"type": "computer_call_output", "call_id": "c", "output": shot}
    assert found(output)[2] == [("image", "image/png")]
    assert may_hold_media(encode(output))
    made = {"type": "image_generation_call", "id": "ig", "status": "completed", "result": PNG}
    assert found(made) == (3, [], [("image", "")])
    assert may_hold_media(encode(made))


@pytest.mark.parametrize("label", media.KIND_OF)
def test_the_quick_look_misses_no_kind(label):
    block = {"type": label, "file_id": "f"}
    assert found({"content": [block]})[2] != []
    assert may_hold_media(encode({"content": [block]}))
    assert not may_hold_media(encode(CHAT_CALL))


def test_what_a_media_block_says_is_text():
    block = {
        "type": "document",
        "title": "Plan",
        "citations": {"enabled": True},
        "source": {"type": "base64", "media_type": "application/pdf", "data": LONG},
    }
    assert found({"content": [block]}) == (3, ["Plan"], [("document", "application/pdf")])
    block["source"] = {"type": "text", "media_type": "text/plain", "data": "the text"}
    assert found({"content": [block]}) == (3, ["Plan", "the text"], [])
    block["source"] = {"type": "content", "content": [{"type": "text", "text": "a"}, MEDIA[0][0]]}
    assert found({"content": [block]}) == (3, ["Plan", "a"], [("image", "image/png")])


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image"},
        {"type": "image", "source": None},
        {"type": "image", "source": {"source": {"source": {}}}},
        {"type": "file", "path": "a.py", "content": "x"},
        {"inlineData": "AAAA"},
        {"type": ["image"], "text": "x"},
        {"type": "document", "source": "handbook.pdf", "content": "text"},
        {"type": "file", "file": "main.py", "data": {"a": "b"}},
    ],
    ids=repr,
)
def test_what_only_looks_like_media_is_none(block):
    assert found({"content": [block]})[2] == []


SEVEN = dict.fromkeys(("image", "audio", "video", "document"), 7)


@pytest.mark.parametrize(
    "by",
    [
        memcore.ExactCounter("cl100k_base", media=SEVEN),
        memcore.BytesEstimate(4, media=SEVEN),
        memcore.counter_for_model("gemini-2.5-pro", media=SEVEN),
        memcore.CallableCounter(len, name="letters", media=SEVEN),
    ],
    ids=lambda by: by.id,
)
@pytest.mark.parametrize(("block", "kind", "mime"), MEDIA, ids=repr)
def test_base64_is_never_counted_as_text(by, block, kind, mime):
    long = json.loads(json.dumps(block).replace(PNG, PNG[:40] + LONG).replace(LONG, LONG * 2))
    message, other = ({"role": "user", "content": [entry]} for entry in (block, long))
    assert tokens(message, by) == tokens(other, by)
    assert 7 < tokens(message, by) < 7 + 50


def test_a_data_url_in_a_text_is_no_text():
    text = f"look: data:image/png;base64,{LONG} there"
    bare = "look: data:image/png;base64, there"
    for message in (user(text), {"output": text}, {"input": {"x": text}}):
        texts = found(message)[1]
        assert found(message)[2] == [("image", "image/png")]
        assert LONG not in "".join(texts)
    assert tokens(user(text)) == tokens(user(bare)) + PROFILES["openai"](memcore.Media("image"))
    assert tokens(user(text), "bytes/4") < 1_000
    short = f"data:image/png;base64,{PNG}"
    assert found(user(short)) == (3, sorted([short, "user"]), [])
    assert memcore.count_tokens(text) > 5_000  # a text that is counted by itself is what it is


@pytest.mark.parametrize(
    "hostile",
    [
        "data:" * 20_000 + ";base64,",
        "data:" + "a/" * 50_000 + ";base64," + LONG,
        ";base64," * 20_000,
    ],
    ids=("heads", "slashes", "tails"),
)
def test_hostile_data_urls_are_text(hostile):
    assert found(user(hostile))[1] == sorted([hostile, "user"])


# --- sessions -------------------------------------------------------------------------------------


def test_sessions_count_by_these_rules(open_db):
    db = open_db()
    session = db.session("s")
    history = [user("hello"), CHAT_CALL, result("c1"), result("c2"), assistant("ok")]
    session.extend([*history, {"role": "user", "content": [entry for entry, _, _ in MEDIA]}])
    assert [item.tokens for item in session] == [tokens(item.message) for item in session]
    assert memcore.fit(history).tokens == sum(map(tokens, history))
    assert memcore.count_messages(history) == memcore.fit(history).tokens + 3


def test_what_an_open_call_may_cost_is_enough(open_db):
    """Contexts with synthetic results stay within what the ledger reckoned."""
    open_calls = {
        "openai_chat": call("a"),
        "anthropic": {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}],
        },
        "gemini": {"role": "model", "parts": [{"functionCall": {"name": "f" * 30, "args": {}}}]},
        "langchain": {"type": "ai", "content": "", "tool_calls": [{"name": "f", "id": "a"}]},
        "openai_responses": {"type": "function_call", "call_id": "a", "name": "f"},
    }
    most = max(map(tokens, synthetic_samples()))
    db = open_db()
    for policy, opening in open_calls.items():
        session = db.session(policy, policy=policy)
        said = {"parts": [{"text": "q"}]} if policy == "gemini" else {"content": "q"}
        said["role" if policy != "langchain" else "type"] = (
            "human" if policy == "langchain" else "user"
        )
        session.extend([said, opening, said])
        context = session.context()
        assert [repair.action for repair in context.repairs] == ["synthesized"], policy
        assert session.tokens < context.tokens <= session.tokens + most


class Label(enum.StrEnum):
    PICTURE = "image_url"


def test_a_type_from_an_enum_is_what_it_is_in_json():
    url = {"url": "https://example.org/cat.png"}
    plain = {"role": "user", "content": [{"type": "image_url", "image_url": url}]}
    named = {"role": "user", "content": [{"type": Label.PICTURE, "image_url": url}]}
    encoded = codec.encode_json(named)[0]
    assert memcore.get_counter().count_message(named, encoded) == tokens(plain)


def test_the_exact_counter_is_final():
    with pytest.raises(TypeError, match="cannot be subclassed"):
        type("Mine", (memcore.ExactCounter,), {})


BASE64 = "QUJD" * 100


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;BASE64,{BASE64}",
        f'data:image/png;charset="utf-8";base64,{BASE64}',
        f"data:image/png;a=1;b=2;c=3;d=4;e=5;name=my%20file.png;base64,{BASE64}",
        f"data:image/png;base64, {BASE64[:76]}\r\n{BASE64[76:]}",
        "data:image/png;base64," + BASE64 + "%2B%2F%3D",
        "data:image\\/png;base64," + BASE64 + "\\/" + BASE64,
    ],
)
def test_base64_in_any_data_url_is_no_text(url):
    _, texts, parts = gather(encode(user(f"Look: {url} !")))
    assert [part.kind for part in parts] == ["image"]
    assert max(map(len, texts)) < 140
    assert tokens(user(url)) > 600  # the picture's estimate


def test_a_word_after_a_wrapped_line_stays_a_word():
    message = user(f"data:image/png;base64,{BASE64}\nNobody knows")
    assert any("Nobody knows" in text for text in gather(encode(message)).texts)


def test_data_with_spaces_is_text():
    words = {"type": "x", "data": "plain words " * 50}
    assert tokens(words) > 90
    assert tokens({"type": "x", "data": "QUJD" * 50}) == 3
