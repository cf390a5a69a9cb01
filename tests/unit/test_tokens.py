"""Counters: by name, of one's own, scaled, for models; truncation; tools; what nonsense gets."""

from __future__ import annotations

import enum
import os
import signal
import sys
import threading
from array import array
from typing import Any

import pytest

import memcore
from memcore import tokens, vocab
from memcore.tokens import media as payload
from memcore.tokens.builtin import PART_CHARS_MAX
from memcore.tokens.media import KINDS, PROFILES
from memcore.tokens.registry import FAMILIES, OPENAI_MODELS
from messages import user
from strategies import HostileStr

NAMES = (
    "o200k_base", "cl100k_base", "bytes/4", "bytes/1", "o200k_base*1.2@anthropic",
    "cl100k_base*0.5+digits", "o200k_base*1.02+digits*0.5@generic", "bytes/3*2", "bytes/4@gemini",
    "tiktoken:o200k_base", "tiktoken:cl100k_base*1.1+digits",
)  # fmt: skip
TEXTS = (
    "", "hello world", "Call 555 0123 at 12:30", " " * 500, "ü" * 40, "日本語のテキスト" * 20,
    "<|endoftext|> and \ud800", "line\n" * 60, "👩‍👩‍👧‍👦" * 20, "a" * 300,
)  # fmt: skip


class Minimal:
    """The least that is a counter."""

    id = "minimal"
    exact = False

    def count(self, text: str) -> int:
        return len(text.split())


# --- by name --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_the_id_of_its_counter(name):
    by = memcore.get_counter(name)
    assert by.id == name
    assert isinstance(by, memcore.TokenCounter)
    assert by.exact == ("*" not in name and "bytes" not in name)


@pytest.mark.parametrize("name", NAMES)
def test_a_counter_agrees_with_itself(name):
    by = memcore.get_counter(name)
    counts = by.count_many(TEXTS)
    assert isinstance(counts, array)
    assert counts.typecode == "I"
    assert list(counts) == [by.count(text) for text in TEXTS]
    assert by.count_many([]) == array("I")


def test_the_default_is_exact():
    by = memcore.get_counter()
    assert (by.id, by.exact, by.count("hello world")) == ("o200k_base", True, 2)
    with memcore.open(":memory:") as db:
        assert db.session("s").append(user("hello world")).tokens == 3 + 1 + 2


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("o200k-base", "did you mean 'o200k_base'"), ("", "bytes/N"), ("bytes/0", "bytes/N"),
        ("bytes/65", "bytes/N"), ("bytes/٤", "bytes/N"), ("bytes/" + "9" * 5_000, "bytes/N"),
        ("tiktoken:", "tiktoken:ENCODING"), ("tiktoken:p50k_base", "nothing is fetched"),
        ("o200k_base@claude", "openai"), ("o200k_base@", "no media profile"),
        ("o200k_base*", "BASE*FACTOR"), ("o200k_base*nan", "BASE*FACTOR"),
        ("o200k_base*0", "factor"), ("o200k_base*999", "factor"), ("x*1.2", "BASE*FACTOR"),
        ("o200k_base*1.2*1.2", "BASE*FACTOR"), ("model:", "no counter is known"),
        ("model:gtp-4o", "did you mean 'gpt-4o'"), ("\ud800", "bytes/N"),
    ],
    ids=ascii,
)  # fmt: skip
def test_an_unknown_name_says_what_there_is(name, hint):
    with pytest.raises(memcore.InvalidOptionError, match=hint.replace("*", r"\*")):
        memcore.get_counter(name)


@pytest.mark.parametrize("thing", [7, object(), b"bytes/4", len, {"id": "x"}], ids=ascii)
def test_what_is_no_counter_is_refused(thing):
    with pytest.raises(memcore.InvalidOptionError, match="CallableCounter"):
        memcore.get_counter(thing)


def test_without_tiktoken_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    monkeypatch.setattr("memcore.tokens.builtin._built", {})
    with pytest.raises(memcore.CounterUnavailableError, match=r"memcore-db\[tiktoken\]"):
        memcore.get_counter("tiktoken:o200k_base")


# --- counters of one's own ------------------------------------------------------------------------


def test_the_least_counter_is_completed(open_db):
    by = memcore.get_counter(Minimal())
    assert (by.id, by.exact) == ("minimal", False)
    assert list(by.count_many(["a b", "c"])) == [2, 1]
    assert by.truncate("one two three", 2).kept == 2
    assert by.count_tools([{"name": "f", "parameters": {}}]) > 0
    db = open_db(path=":memory:", counter=Minimal())
    assert db.session("s").append(user("a b c")).tokens == 3 + 1 + 3


def test_what_a_counter_has_itself_is_used():
    class Own(Minimal):
        def count_message(self, message: Any, encoded: bytes) -> int:
            return 70

        def count_many(self, texts: Any) -> Any:
            return array("I", [5 for _ in texts])

        def truncate(self, text: str, max_tokens: int, **_: Any) -> tokens.Truncated:
            return tokens.Truncated("cut", 1, 2)

        def count_tools(self, tools: Any) -> int:
            return 9

    own = Own()
    assert memcore.get_counter(own) is own
    del Own.count_tools
    by = memcore.get_counter(own)
    assert by.count_message(user(), b"{}") == 70
    assert list(by.count_many(["x"])) == [5]
    assert by.truncate("a b c", 1).text == "cut"
    assert by.count_tools([]) == 0


@pytest.mark.parametrize("nonsense", [-1, 1.5, "7", None, True, 2**32, float("nan")], ids=repr)
def test_nonsense_of_a_counter_is_typed(nonsense):
    by = memcore.CallableCounter(lambda _: nonsense, name="odd")
    for ask in (
        lambda: by.count("x"),
        lambda: by.count_many(["x"]),
        lambda: by.truncate("x", 1),
        lambda: memcore.count_messages([user()], counter=by),
        lambda: memcore.count_tools([{"name": "f"}], counter=by),
        lambda: memcore.ScaledCounter(by, 1.5).count("x"),
    ):
        with pytest.raises(memcore.InvalidOptionError):
            ask()


def test_media_figures_of_ones_own():
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}

    def flat(media: memcore.Media) -> int:
        return 11 if media.kind == "image" else 0

    by = memcore.ExactCounter(media=flat)
    assert by.id == "o200k_base+media-flat"
    assert memcore.count_messages([picture], counter=by) == 3 + 3 + 1 + 11
    ids = {memcore.BytesEstimate(media={"image": n}).id for n in (1, 2)}
    assert len(ids) == 2
    assert memcore.BytesEstimate(media="gemini").id == "bytes/4@gemini"
    for wrong in (lambda _: 1, {"picture": 1}, {"image": -1}, {"image": True}, "none", 7):
        with pytest.raises(memcore.InvalidOptionError):
            memcore.ExactCounter(media=wrong)

    def broken(_: memcore.Media) -> Any:
        return "many"

    with pytest.raises(memcore.InvalidOptionError, match="media"):
        memcore.count_messages([picture], counter=memcore.ExactCounter(media=broken))


# --- models ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("gpt-4o", "o200k_base"), ("gpt-4o-2024-08-06", "o200k_base"), ("gpt-4", "cl100k_base"),
        ("gpt-4-turbo", "cl100k_base"), ("gpt-3.5-turbo-0125", "cl100k_base"),
        ("ft:gpt-4o:acme", "o200k_base"), ("openai/gpt-4.1", "o200k_base"),
        ("gpt-5.1", "o200k_base@openai-70"), ("o3-pro", "o200k_base@openai-75"),
        ("gpt-4.1-mini-2025-04-14", "o200k_base@openai-patches-1.62"),
        ("claude-3-5-sonnet-20241022", "o200k_base*1.2@anthropic"),
        ("claude-opus-4-20250514", "o200k_base*1.2@anthropic"),
        ("us.anthropic.claude-opus-4-7-v1:0", "o200k_base*1.55@anthropic-large"),
        ("anthropic/claude-sonnet-5", "o200k_base*1.55@anthropic-large"),
        ("models/gemini-2.5-flash", "o200k_base*1.06+digits@gemini"),
        ("gemini-3-pro", "o200k_base*1.06+digits@gemini-3"),
        ("Qwen/Qwen3-32B", "o200k_base*1.02+digits@generic"),
        ("meta.llama3-1-70b-instruct-v1:0", "o200k_base*1.01@generic"),
        ("deepseek-chat", "o200k_base*1.04@generic"),
        ("mistral.mistral-large-2402-v1:0", "o200k_base*1.04+digits@generic"),
    ],
)  # fmt: skip
def test_models_have_counters(model, expected):
    by = memcore.counter_for_model(model)
    assert by.id == expected == memcore.get_counter(f"model:{model}").id
    assert memcore.get_counter(by.id).id == by.id


def test_the_tables_are_sound():
    for family in FAMILIES:
        assert family.profile in PROFILES
        assert family.source
        found = [memcore.counter_for_model(prefix) for prefix in family.prefixes]
        assert {by.factor for by in found} == {family.factor}
    for prefix, encoding, profile in OPENAI_MODELS:
        by = memcore.counter_for_model(prefix)
        assert by.id == (encoding if profile == "openai" else f"{encoding}@{profile}")


def test_our_encodings_of_models_are_those_of_tiktoken():
    from tiktoken import model

    ours = {"o200k_harmony": "o200k_base"}
    for name, encoding in {**model.MODEL_TO_ENCODING, **model.MODEL_PREFIX_TO_ENCODING}.items():
        if encoding in (*vocab.NAMES, *ours):
            by = memcore.counter_for_model(name)
            assert by.id.partition("@")[0] == ours.get(encoding, encoding), name


def test_digits_are_added_one_by_one():
    exact, by = memcore.get_counter(), memcore.get_counter("o200k_base*1+digits")
    for text, more in (("no digits", 0), ("12", 1), ("123456", 4), ("1234 5", 2)):
        assert by.count(text) == exact.count(text) + more
    plain = memcore.ScaledCounter(memcore.CallableCounter(len, name="n"), 2.0, per_digit=1)
    assert plain.count("1234") == 2 * 4 + 2
    for factor, each in ((0, 0), (-1, 0), (True, 0), ("2", 0), (1, -1), (1e9, 0), (1, None)):
        with pytest.raises(memcore.InvalidOptionError):
            memcore.ScaledCounter(exact, factor, per_digit=each)
    with pytest.raises(memcore.InvalidOptionError):
        memcore.ScaledCounter(Minimal(), 2)
    for base in ("o200k_base*2", "o200k_base@gemini"):
        with pytest.raises(memcore.InvalidOptionError, match="base"):
            memcore.ScaledCounter(memcore.get_counter(base), 2)
    for name in ("p50k_base", "", None, ["o200k_base"]):
        with pytest.raises(memcore.InvalidOptionError):
            memcore.ExactCounter(name)


def test_a_scaled_message_is_scaled_as_a_whole():
    message = {"role": "user", "content": [{"text": "a"} for _ in range(10)]}
    assert memcore.count_messages([message], counter="o200k_base*1.1") == 3 + 3 + 13


# --- tiktoken -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", vocab.NAMES)
def test_tiktoken_counts_as_we_do(name):
    theirs, ours = memcore.get_counter(f"tiktoken:{name}"), memcore.get_counter(name)
    long = "word 123\nnext line\n" * (PART_CHARS_MAX // 16)
    for text in (*TEXTS, long, " " * 1_000_000, "x\n" * 150_000, " " * 300_000 + "\na" * 5):
        assert theirs.count(text) == ours.count(text)


def test_an_encoding_of_ones_own():
    import tiktoken

    letters = {bytes([at]): at for at in range(256)}
    made = tiktoken.Encoding(
        "letters", pat_str=r"(?s:.)", mergeable_ranks=letters, special_tokens={}
    )
    by = memcore.TiktokenCounter(made)
    assert (by.id, by.exact, by.count("abc"), by.count("x" * 500_000)) == (
        "tiktoken:letters", True, 3, 500_000,
    )  # fmt: skip
    for wrong in (7, object(), "gpt2"):
        with pytest.raises(memcore.InvalidOptionError):
            memcore.TiktokenCounter(wrong)


# --- truncation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["o200k_base", "bytes/4", "o200k_base*1.3+digits", "minimal"])
@pytest.mark.parametrize("keep", ["head", "tail", "middle"])
@pytest.mark.parametrize("marker", [None, "\n[...]\n"])
def test_truncated_texts_fit(name, keep, marker):
    by = memcore.get_counter(Minimal() if name == "minimal" else name)
    for text in TEXTS:
        total = by.count(text)
        for most in (1, 2, 5, 9, 40):
            if marker and by.count(marker) > most:
                with pytest.raises(memcore.InvalidOptionError, match="marker"):
                    by.truncate(text, most, keep=keep, marker=marker)
                continue
            found = by.truncate(text, most, keep=keep, marker=marker)
            assert found.kept == by.count(found.text) <= most
            assert found.total == total
            if total <= most:
                assert found.text is text
                continue
            head, _, tail = found.text.partition(marker) if marker else (found.text, "", "")
            if keep == "head":
                assert text.startswith(head)
            elif keep == "tail":
                assert text.endswith(tail if marker else head)
            elif marker:
                assert text.startswith(head)
                assert text.endswith(tail)


@pytest.mark.parametrize("name", ["o200k_base", "bytes/4", "minimal"])
def test_wrong_arguments_of_truncate_are_typed(name):
    by = memcore.get_counter(Minimal() if name == "minimal" else name)
    for wrong in (0, -1, 1.5, "3", True, None):
        with pytest.raises(memcore.InvalidOptionError, match="max_tokens"):
            by.truncate("a b c", wrong)
    for wrong in ("start", None, 7, ["head"]):
        with pytest.raises(memcore.InvalidOptionError, match="keep"):
            by.truncate("a b c", 1, keep=wrong)
    with pytest.raises(memcore.InvalidOptionError, match="marker"):
        by.truncate("a b c", 1, marker=7)
    with pytest.raises(memcore.InvalidOptionError, match="marker"):
        by.truncate("one two three four five", 2, marker="a much too long marker for it")
    for wrong in (None, b"abc", 7, ["a"]):
        with pytest.raises(memcore.InvalidItemError):
            by.truncate(wrong, 1)
        with pytest.raises(memcore.InvalidItemError):
            by.count(wrong)
        with pytest.raises(memcore.InvalidItemError):
            by.count_many([wrong])
    with pytest.raises(memcore.InvalidOptionError):
        by.count_many("abc")
    assert by.truncate("a b c", 10**30).text == "a b c"
    hostile = HostileStr("one two")
    assert by.count(hostile) == by.count("one two")


# --- requests -------------------------------------------------------------------------------------

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"unit": {"type": "string", "description": "C or F", "enum": ["C", "F"]}},
            "required": ["unit"],
        },
    },
}


def test_tools_as_the_cookbook_counts_them():
    count = memcore.get_counter().count
    lines = count("weather:Tells the weather") + count("unit:string:C or F") + 2 * count("C")
    assert memcore.count_tools([TOOL]) == 7 + lines + 3 + 3 - 3 + 2 * 3 + 12
    assert memcore.count_tools([TOOL], counter="cl100k_base") == memcore.count_tools([TOOL]) + 3
    assert memcore.count_tools([TOOL, TOOL]) == 2 * memcore.count_tools([TOOL]) - 12
    assert memcore.count_tools([]) == 0
    assert memcore.count_tools([TOOL["function"]]) == memcore.count_tools([TOOL])


def test_tools_of_others_are_json():
    plain = memcore.count_tools([TOOL], counter="o200k_base@generic")
    assert plain == memcore.count_tokens(memcore.tokens.message.json_text(TOOL))
    assert memcore.count_tools([TOOL], counter="o200k_base@anthropic") == plain + 346
    assert memcore.count_tools([], counter="o200k_base@anthropic") == 0


def test_a_request_is_messages_tools_and_the_start_of_the_reply():
    alone = memcore.count_messages([user()])
    assert alone == 3 + memcore.fit([user()]).tokens
    assert memcore.count_messages([user()], tools=[TOOL]) == alone + memcore.count_tools([TOOL])
    assert memcore.count_messages([]) == 3


def _circular() -> Any:
    found: dict[str, Any] = {}
    found["self"] = found
    return found


def _deep(levels: int) -> Any:
    found: Any = {"type": "string"}
    for _ in range(levels):
        found = {"type": "object", "properties": {"p": found}}
    return found


@pytest.mark.parametrize(
    "wrong",
    ["x", None, 7, {"a": 1}, [7], [None], [{"x": {1, 2}}], [{"x": float("nan")}], [_circular()],
     [_deep(50_000)]],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_requests_that_are_no_json_are_typed(wrong):
    with pytest.raises(memcore.InvalidItemError):
        memcore.count_messages(wrong)
    with pytest.raises(memcore.InvalidItemError):
        memcore.count_tools(wrong)


@pytest.mark.parametrize(
    "schema",
    [None, 7, [], {}, {"properties": None}, {"properties": []}, {"properties": {"a": None}},
     {"properties": {"a": {"enum": "xy", "type": ["string", "null"]}}}, {"items": {"items": 7}},
     {"anyOf": [{"type": "string"}]}, {"properties": {"a": {"description": 7, "enum": [1, None]}}},
     _deep(100)],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_odd_schemas_are_counted(schema):
    found = memcore.count_tools([{"name": "f", "parameters": schema}])
    assert 0 < found < 3_000


# --- media ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "size", "expected"),
    [
        ("openai", (512, 512), 255), ("openai", (1024, 1024), 765), ("openai", (2048, 4096), 1105),
        ("openai", (1, 1), 255), ("openai-70", (1024, 1024), 630),
        ("openai-patches-1.62", (1024, 1024), 1659), ("openai-patches-1.62", (4096, 4096), 2489),
        ("anthropic", (1092, 1092), 1525), ("anthropic", (8000, 8000), 1568),
        ("anthropic", (200, 200), 68), ("anthropic-large", (8000, 8000), 4784),
        ("gemini", (384, 384), 258), ("gemini", (1000, 1000), 1032), ("gemini-3", (9, 9), 1100),
    ],
)  # fmt: skip
def test_images_cost_what_the_providers_say(profile, size, expected):
    media = memcore.Media("image", width=size[0], height=size[1])
    assert PROFILES[profile](media) == expected


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("kind", [*KINDS, "hologram"])
def test_every_table_answers_for_anything(profile, kind):
    table = PROFILES[profile]
    for size in (None, 0, 1, 10**9):
        for mime in ("", "text/plain", "application/pdf"):
            for side in (None, 1, 100_000):
                media = memcore.Media(kind, mime, size, side, side, detail="low")
                assert type(table(media)) is int
                assert table(media) >= 0
    assert PROFILES["openai"](memcore.Media("image", detail="low")) == 85
    assert PROFILES["gemini"](memcore.Media("audio", seconds=2.5)) == 80


def _png(width: int, height: int) -> bytes:
    return (
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + width.to_bytes(4) + height.to_bytes(4) + b"\x08\2\0\0\0"
    )


def _jpeg(width: int, height: int, segments: int = 3) -> bytes:
    skipped = b"\xff\xe1" + (60_000).to_bytes(2) + b"\xff" * 59_998
    frame = b"\xff\xc2\0\x11\x08" + height.to_bytes(2) + width.to_bytes(2) + b"\3" * 20
    return b"\xff\xd8" + skipped * segments + frame


WEBP = b"RIFF\0\0\0\0WEBP"
IMAGES = [
    (_png(640, 480), (640, 480)),
    (b"GIF89a" + b"\x80\x02\xe0\x01" + b"\0" * 9, (640, 480)),
    (_jpeg(640, 480), (640, 480)),
    (WEBP + b"VP8 " + b"\0" * 10 + b"\x80\x02\xe0\x01", (640, 480)),
    (WEBP + b"VP8L\0\0\0\0\x2f" + (639 | 479 << 14).to_bytes(4, "little") + b"\0" * 5, (640, 480)),
    (WEBP + b"VP8X" + b"\0" * 8 + b"\x7f\x02\0" + b"\xdf\x01\0", (640, 480)),
    (_png(0, 5), None), (_png(2**31, 5), None), (_png(5, 5)[:20], None), (_jpeg(5, 5, 80), None),
    (b"\xff\xd8\xff\xe1\0\0" * 4, None), (b"\xff\xd8\0\0", None), (WEBP + b"VP9 " * 9, None),
    (b"", None), (b"%PDF-1.7" * 9, None),
]  # fmt: skip


@pytest.mark.parametrize(("content", "expected"), IMAGES, ids=range(len(IMAGES)))
def test_the_size_of_an_image_is_in_its_header(content, expected):
    import base64

    text = base64.b64encode(content).decode()
    assert payload.image_size(text) == expected
    assert payload.image_size(text.rstrip("=")) in (expected, None)
    safe = base64.urlsafe_b64encode(content).decode()
    assert payload.image_size(safe) == expected


@pytest.mark.parametrize(
    "text", ["", "=", "====", "iVBOR", "ü" * 99, "\ud800" * 99, "\n" * 99, "!!!!" * 99, "/9j/" * 9]
)
def test_hostile_base64_has_no_size(text):
    assert payload.image_size(text) is None
    assert payload.wav_seconds(text) is None


def test_a_wav_header_tells_the_length():
    import base64

    head = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0" + (8000).to_bytes(4, "little")
    head += (16000).to_bytes(4, "little") + b"\2\0\x10\0data\0\0\0\0"
    text = base64.b64encode(head + bytes(32_000 - len(head))).decode()
    assert payload.wav_seconds(text) == pytest.approx(2.0, abs=0.01)
    assert (
        payload.wav_seconds(base64.b64encode(head.replace(b"\x80\x3e", b"\0\0")).decode()) is None
    )


@pytest.mark.parametrize("name", ["o200k_base", "bytes/4", "o200k_base*1.2", "tiktoken:o200k_base"])
def test_no_counter_of_yours_takes_a_built_in_id(name):
    with pytest.raises(memcore.InvalidOptionError, match="one of memcore's"):
        memcore.get_counter(memcore.CallableCounter(len, name=name))


def test_names_as_frameworks_write_them():
    assert memcore.counter_for_model("openai:gpt-4o").id == "o200k_base"
    assert memcore.counter_for_model("anthropic:claude-sonnet-4-5").id == "o200k_base*1.2@anthropic"
    with pytest.raises(memcore.InvalidOptionError, match="'model:gpt-4o'"):
        memcore.get_counter("gpt-4o")


@pytest.mark.parametrize(
    ("model", "factor"),
    [
        ("claude-3-7-sonnet-latest", "1.2"), ("claude-sonnet-4", "1.2"), ("claude-opus-4-6", "1.2"),
        ("claude-opus-4-10", "1.55"), ("claude-opus-4-7", "1.55"), ("claude-epic-6", "1.55"),
    ],
)  # fmt: skip
def test_an_unknown_claude_is_taken_for_a_late_one(model, factor):
    assert memcore.counter_for_model(model).id.startswith(f"o200k_base*{factor}@")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_child_of_a_fork_counts_though_a_thread_was_loading(monkeypatch):
    reading, go = threading.Event(), threading.Event()
    read = vocab._read

    def slowly(file):
        if threading.current_thread() is loader:
            reading.set()
            go.wait()
        return read(file)

    monkeypatch.setattr(vocab, "_encodings", {})
    monkeypatch.setattr(vocab, "_read", slowly)
    loader = threading.Thread(target=vocab.load, args=("o200k_base",))
    loader.start()
    reading.wait()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        os._exit(0 if vocab.load("o200k_base").count("hello world") == 2 else 1)
    status = os.waitpid(pid, 0)[1]
    go.set()
    loader.join()
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("name", ["o200k_base", "bytes/4", "o200k_base*1.2"])
def test_whether_a_text_fits(name):
    counter = memcore.get_counter(name)
    text = "Two coffees, please. 18 °C " * 40
    tokens = counter.count(text)
    assert [counter.fits(text, most) for most in (tokens - 1, tokens, 10**30)] == [
        False,
        True,
        True,
    ]
    assert not counter.fits(text, 0)
    assert counter.fits("", 0)
    with pytest.raises(memcore.InvalidOptionError):
        counter.fits(text, -1)
    with pytest.raises(memcore.InvalidItemError):
        counter.fits(b"text", 1)


def test_a_counter_may_be_named_by_a_kind_of_str(tmp_path) -> None:
    class Names(enum.StrEnum):
        MINE = "mine"

    class Counter:
        id = Names.MINE

        def __getattr__(self, name):
            return getattr(tokens.get_counter("bytes/4"), name)

    with memcore.open(tmp_path / "a.memcore", counter=Counter()) as db:
        assert db.session("s").append({"role": "user", "content": "x"}).tokens
