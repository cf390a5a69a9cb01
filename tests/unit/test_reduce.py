"""Reducers: what each does to small histories, what they refuse, and how they are put in a row."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from typing import Any

import pytest

from memcore._fast import classify
from memcore.compaction import reducers as duplicates
from memcore.compaction.reducers import (
    REDUCERS,
    Reduction,
    Visible,
    as_embedder,
    mask_of,
    reduce_all,
    reducer_from,
    wordllama_embedder,
)
from memcore.errors import InternalError, InvalidOptionError
from memcore.log import count_message
from memcore.model import ItemKind, Mask
from memcore.tokens import get_counter
from memcore.wire import POLICIES, WireItem, render
from memcore.wire.validate import find_violations
from messages import Message, assistant, result, system, user

COUNTER = get_counter("bytes/4")
BY = Reduction(POLICIES["openai_chat"], COUNTER)
LONG = "".join(f"line {n} of the output\n" for n in range(200))

ClearResults, ElideOutputs = REDUCERS["clear_results"], REDUCERS["elide_outputs"]
DropDuplicates, DropSimilar = REDUCERS["drop_duplicates"], REDUCERS["drop_similar"]
OffloadResults, StripReasoning = REDUCERS["offload_results"], REDUCERS["strip_reasoning"]
TruncateArguments = REDUCERS["truncate_arguments"]


def visible(messages: list[Message], by: Reduction = BY) -> list[Visible]:
    return [
        Visible(at + 1, ItemKind(classify(m)[0]), m, count_message(m, by.counter))
        for at, m in enumerate(messages)
    ]


def calling(call_id: str, name: str = "f", arguments: str = "{}") -> Message:
    function = {"name": name, "arguments": arguments}
    calls = [{"id": call_id, "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def tool_turns(count: int, text: str = LONG, name: str = "f", arguments: str = "{}") -> list[Any]:
    return [
        message
        for n in range(count)
        for message in (
            user(f"q{n}"),
            calling(f"c{n}", name, arguments),
            result(f"c{n}", f"{n} {text}"),
        )
    ]


def masked(messages: list[Message], reducer: Any, by: Reduction = BY) -> dict[int, Any]:
    """The masks' messages by position."""
    masks = reduce_all(visible(messages, by), [reducer], by)
    return {seq - 1: mask.message for seq, mask in masks.items()}


def contents(found: dict[int, Any]) -> dict[int, Any]:
    return {at: message["content"] for at, message in found.items()}


# --- clearing -------------------------------------------------------------------------------------


def test_old_results_are_cleared_and_the_newest_stay():
    history = tool_turns(5)
    assert contents(masked(history, ClearResults(keep_last=3))) == {2: "[cleared]", 5: "[cleared]"}
    assert masked(history, ClearResults(keep_last=5)) == {}
    assert len(masked(history, ClearResults(keep_last=0, placeholder="-"))) == 5


def test_nothing_is_cleared_for_a_small_gain():
    history = tool_turns(4)
    gain = sum(
        item.tokens - count_message(result(f"c{n}", "[cleared]"), COUNTER)
        for n, item in enumerate(visible(history)[2:6:3])
    )
    assert len(masked(history, ClearResults(keep_last=2, min_gain_tokens=gain))) == 2
    assert masked(history, ClearResults(keep_last=2, min_gain_tokens=gain + 1)) == {}


def test_tools_can_be_excluded_by_the_name_of_the_call():
    history = tool_turns(2, name="read") + [
        m if m.get("role") != "tool" else {**m, "tool_call_id": f"x{m['tool_call_id']}"}
        for m in [calling("xc0", "run"), result("c0", LONG)]
    ]
    assert list(masked(history, ClearResults(keep_last=0, exclude_tools=["read"]))) == [7]


def test_arguments_are_cleared_with_the_results():
    history = tool_turns(3, arguments=json.dumps({"code": LONG}))
    found = masked(history, ClearResults(keep_last=1, clear_arguments=True))
    assert sorted(found) == [1, 2, 4, 5]
    assert found[1] == calling("c0")
    history[2:3] = []  # a call that waits keeps its arguments
    assert sorted(masked(history, ClearResults(keep_last=1, clear_arguments=True))) == [3, 4]


# --- shortening -----------------------------------------------------------------------------------


@pytest.mark.parametrize("counter", ["o200k_base", "bytes/4"])
@pytest.mark.parametrize("keep", ["head", "middle", "tail"])
def test_outputs_are_cut_exactly_to_a_count(counter, keep):
    by = replace(BY, counter=get_counter(counter))
    found = masked(tool_turns(1), ElideOutputs(max_tokens=100, keep=keep), by)
    text = found[2]["content"]
    assert 90 <= by.counter.count(text) <= 100
    assert text.startswith("0 line 0") == (keep != "tail")
    assert text.endswith("line 199 of the output\n") == (keep != "head")
    left_out = int(text.split("[… ")[1].split(" tokens left out …]")[0])
    assert abs(left_out + 100 - by.counter.count(f"0 {LONG}")) <= 20


def test_only_the_kinds_that_are_asked_for_are_elided():
    history = [system(LONG), user(LONG), assistant(LONG), *tool_turns(1)]
    assert sorted(masked(history, ElideOutputs(max_tokens=50))) == [5]
    both = ElideOutputs(max_tokens=50, kinds=("user", "assistant"))
    assert sorted(masked(history, both)) == [1, 2]


def test_arguments_stay_json_of_the_same_shape():
    given = {"path": "a.py", "edits": [{"new": LONG, "n": 1.5}, None], "ünïcode": "ü" * 4_000}
    history = tool_turns(3, text="ok", arguments=json.dumps(given))
    found = masked(history, TruncateArguments(max_tokens=40, keep_last=1))
    assert sorted(found) == [1, 4]
    arguments = json.loads(found[1]["tool_calls"][0]["function"]["arguments"])
    assert arguments["path"] == "a.py"
    assert arguments["edits"][1] is None
    assert arguments["edits"][0]["n"] == 1.5
    for text in (arguments["edits"][0]["new"], arguments["ünïcode"]):
        assert COUNTER.count(text) <= 40
        assert "tokens left out" in text
    assert list(arguments) == list(given)


@pytest.mark.parametrize(
    "arguments",
    ['{"a": "' + LONG, f"{LONG}", '{"a": NaN, "b": "' + "x" * 5_000 + '"}', "[" * 5_000],
)
def test_arguments_that_are_no_json_stay(arguments):
    history = tool_turns(1, arguments=arguments)
    assert masked(history, TruncateArguments(max_tokens=40, keep_last=0)) == {}


# --- duplicates -----------------------------------------------------------------------------------


def test_the_newest_copy_stays():
    history = [user(LONG), *tool_turns(1), calling("d0", "read"), result("d0", f"0 {LONG}")]
    history += [user(LONG), calling("d1", "read"), result("d1", f"0 {LONG}")]
    assert contents(masked(history, DropDuplicates())) == {
        0: "[the same as the later message]",
        3: "[the same as the later result of read]",
        5: "[the same as the later result of read]",
    }
    assert masked([user("hi"), user("hi")], DropDuplicates(min_tokens=1)) == {}


def test_what_says_nearly_the_same_goes_without_an_embedder():
    lines = "\n".join(f"worker {n} read page {7 * n} and stored it" for n in range(10))
    morning, evening = f"In the morning\n{lines}", f"In the evening\n{lines} at last"
    other = " ".join(f"another text of word{n} and thing{n}" for n in range(20))
    assert contents(masked([user(morning), user(other), user(evening)], DropSimilar())) == {
        0: "[much the same as the later message]"
    }
    assert masked([user(morning), user(evening)], DropSimilar(resemblance=0.99)) == {}
    halves = morning + other, evening
    assert masked([user(half) for half in halves], DropSimilar()) == {}


@pytest.mark.parametrize(
    ("one", "other"),
    [("total 100 EUR", "total 900 EUR"), ("please do not delete", "please do delete"),
     ("failed=0", "failed=1"), ("请不要删除", "请删除")],
)  # fmt: skip
def test_texts_that_differ_in_a_number_or_a_negation_are_not_alike(one, other):
    rest = " ".join(f"word{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(120))
    assert masked([user(f"{rest} {one}"), user(f"{rest} {other}")], DropSimilar()) == {}
    assert masked([user(f"{rest} {one}"), user(f"{rest} {one}!")], DropSimilar()) != {}


def test_chinese_is_compared_by_its_characters():
    text = "今天的会议讨论了三个问题：预算、进度和人员安排，结论写在附件里。" * 4
    assert contents(masked([user(text), user(text + "（修订）")], DropSimilar())) == {
        0: "[much the same as the later message]"
    }
    assert (
        masked(
            [user(text), user("完全不同的内容，说的是另一件事情和别的安排。" * 5)], DropSimilar()
        )
        == {}
    )


def test_very_long_texts_are_compared_by_a_sample():
    letters = "abcdefghij"
    spelled = ["".join(letters[int(digit)] for digit in str(n)) for n in range(20_000)]
    words, others = [f"w{word}" for word in spelled], [f"v{word}" for word in spelled]
    changed = [*words[:9_000], *others[:500], *words[9_500:]]
    far = [*words[:9_000], *others[:11_000]]
    texts = [user(" ".join(each)) for each in (far, changed, words)]
    assert contents(masked(texts, DropSimilar())) == {1: "[much the same as the later message]"}


def test_what_means_the_same_goes_by_an_embedder():
    history = [user(LONG), user("q" * 400), user(LONG + "!")]
    by = replace(
        BY, embed=lambda texts: [[float("q" in text), float("l" in text)] for text in texts]
    )
    assert contents(masked(history, DropSimilar(), by)) == {
        0: "[much the same as the later message]"
    }


def test_only_the_newest_texts_are_compared(monkeypatch):
    monkeypatch.setattr(duplicates, "CANDIDATES_MAX", 3)
    by = replace(BY, embed=lambda texts: [[float("q" in text), 1.0] for text in texts])
    items = visible([user(f"{n} {'q' * 400 if n < 3 else LONG}") for n in range(5)])
    masks = DropSimilar(threshold=1.0).reduce(items, by)
    assert [mask.seq for mask in masks] == [4]
    masked_item = items[3]._replace(message=masks[0].message, tokens=masks[0].tokens)
    assert DropSimilar(threshold=1.0).reduce([*items[:3], masked_item, items[4]], by) == []


@pytest.mark.parametrize("vectors", [[], [[1.0]], [[1.0], [1.0, 2.0]], [[float("nan")], [1.0]]])
def test_vectors_that_cannot_be_compared_are_refused(vectors):
    by = replace(BY, embed=lambda _: vectors)
    with pytest.raises(InvalidOptionError, match="the embedder returned"):
        masked([user(LONG), user("q" * 400)], DropSimilar(), by)


SAID_TWICE = (
    "All the tests pass now: 214 passed in 3.2 seconds, and there were no warnings at all. "
    "Coverage of the package is at 91 percent, two points above what the gate asks for."
)
SAID_AGAIN = (
    "All tests pass: 214 passed in 3.1 seconds, there were no warnings. "
    "Coverage of the package is 91 percent, two points above what the gate asks."
)
OTHER = (
    "The deployment failed because the disk of the build server is full. Remove the old images, "
    "then start the pipeline again; the database migration has not been run yet."
)


def test_a_real_model_tells_what_means_the_same():
    if importlib.util.find_spec("wordllama") is None:
        with pytest.raises(InvalidOptionError, match=r"memcore-db\[embed\]"):
            wordllama_embedder()
        pytest.skip("wordllama is not installed (the extra 'embed')")
    by = replace(BY, embed=wordllama_embedder())
    history = [user(SAID_TWICE), user(OTHER), user(SAID_AGAIN)]
    reducer = DropSimilar(threshold=0.9, min_tokens=30)
    assert contents(masked(history, reducer, by)) == {0: "[much the same as the later message]"}


def test_models_of_several_libraries_serve_as_embedders():
    class Encodes:
        def encode(self, texts):
            return [[1.0]] * len(texts)

    assert as_embedder(Encodes())(["a", "b"]) == [[1.0], [1.0]]
    assert as_embedder(lambda texts: [[2.0] for _ in texts])(("a",)) == [[2.0]]
    with pytest.raises(InvalidOptionError, match="embed: expected a function"):
        as_embedder(object())


# --- offloading -----------------------------------------------------------------------------------


def test_large_results_are_kept_elsewhere():
    kept = {}

    def offload(seq: int, call_id: str, text: str) -> str:
        kept[seq, call_id] = text
        return f"blob:{len(kept)}"

    history, by = tool_turns(3), replace(BY, offload=offload)
    found = masked(history, OffloadResults(min_tokens=400, keep_last=1, preview_lines=2), by)
    assert kept == {(3, "c0"): f"0 {LONG}", (6, "c1"): f"1 {LONG}"}
    assert found[2]["content"].splitlines() == [
        f"[offloaded: {COUNTER.count(f'0 {LONG}')} tokens, to be read by blob:1]",
        "0 line 0 of the output",
        "line 1 of the output",
        "[… 196 lines left out …]",
        "line 198 of the output",
        "line 199 of the output",
    ]
    assert masked(history, OffloadResults(min_tokens=400)) == {}


def test_a_preview_of_one_endless_line_is_short():
    by = replace(BY, offload=lambda *_: "blob:1")
    found = masked([calling("c0"), result("c0", "x" * 50_000)], OffloadResults(min_tokens=400), by)
    assert COUNTER.count(found[1]["content"]) < 140


def test_what_would_be_offloaded_again_is_not():
    by = replace(BY, offload=lambda *_: "blob:" + "x" * 400)
    history = [calling("c0"), result("c0", "x" * 4_000)]
    assert masked(history, OffloadResults(min_tokens=100), by) == {}


def test_a_mask_has_fewer_tokens_than_its_item():
    (item,) = visible([user("four char")])
    shorter = mask_of(item, {("content",): "four"}, "elided", BY)
    assert shorter == Mask(1, "elided", item.tokens - 2, user("four"))
    assert mask_of(item, {("content",): "some char"}, "elided", BY) is None
    assert mask_of(item._replace(protected=True), {("content",): ""}, "elided", BY) is None


# --- thinking -------------------------------------------------------------------------------------

THINKING = {"type": "thinking", "thinking": "hm " * 50, "signature": "s"}
SAID = {"type": "text", "text": "ok"}


def model(*blocks: Any) -> Message:
    return {"role": "assistant", "content": list(blocks)}


def use(call_id: str) -> Message:
    return {"type": "tool_use", "id": call_id, "name": "f", "input": {}}


def answer(call_id: str) -> Message:
    block = {"type": "tool_result", "tool_use_id": call_id, "content": "ok"}
    return {"role": "user", "content": [block]}


def test_thinking_stays_in_the_turn_that_runs():
    turn = [user(), model(THINKING, use("c0")), answer("c0"), model(THINKING, SAID)]
    again = [user(), model(THINKING), user(), model(THINKING, use("c1")), answer("c1")]
    by = replace(BY, policy=POLICIES["anthropic"])
    found = masked([*turn, *again], StripReasoning(), by)
    assert found == {1: model(use("c0")), 3: model(SAID), 5: None}
    for waiting in ([], [user()]):
        history = [*turn, *again[2:], *waiting]
        assert sorted(masked(history, StripReasoning(), by)) == [1, 3]
    assert masked([*turn, user()], StripReasoning(), by) == {}
    assert sorted(masked([*turn, user()], StripReasoning(keep_last_turn=False), by)) == [1, 3]
    # The user spoke, but the call still waits, or was answered only then.
    late = [user(), model(THINKING, use("c1")), user(), answer("c1")]
    for history in (late[:3], late):
        assert masked(history, StripReasoning(keep_last_turn=False), by) == {}


def test_thinking_in_the_other_formats():
    thought = {"text": "hm " * 50, "thought": True}
    call = {"functionCall": {"name": "f", "args": {}}, "thoughtSignature": "s"}
    reply = {"functionResponse": {"name": "f", "response": {"output": "ok"}}}
    asks = {"role": "user", "parts": [{"text": "hi"}]}
    gemini = [
        asks,
        {"role": "model", "parts": [thought, call]},
        {"role": "user", "parts": [reply]},
        asks,
        {"role": "model", "parts": [thought, call]},
    ]
    assert masked(gemini, StripReasoning()) == {1: {"role": "model", "parts": [call]}}
    chat = [user(), {**assistant(), "reasoning_content": "hm " * 50}, user(), assistant()]
    assert masked(chat, StripReasoning()) == {1: assistant()}
    ai = {"type": "ai", "data": {"content": [THINKING, SAID]}}
    human = {"type": "human", "data": {"content": "hi"}}
    assert masked([human, ai, human, ai], StripReasoning()) == {
        1: {"type": "ai", "data": {"content": [SAID]}}
    }


def test_reasoning_items_stay_with_items_that_ask_for_them():
    def turn(**more: Any) -> list[Message]:
        return [
            user(),
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "hm"}],
            },
            {"type": "function_call", "call_id": "c0", "name": "f", "arguments": "{}", **more},
            {"type": "function_call_output", "call_id": "c0", "output": "ok"},
            {"type": "message", "role": "assistant", "content": "ok"},
        ]

    by = replace(BY, policy=POLICIES["openai_responses"])
    assert masked([*turn(), *turn()], StripReasoning(), by) == {1: None}
    assert masked([*turn(id="fc_1"), *turn()], StripReasoning(), by) == {}


# --- all together ---------------------------------------------------------------------------------


def test_each_reducer_sees_what_the_ones_before_it_show():
    masks = reduce_all(
        visible(tool_turns(3)), [ElideOutputs(max_tokens=50), ClearResults(keep_last=1)], BY
    )
    assert {seq: mask.action for seq, mask in masks.items()} == {
        3: "cleared",
        6: "cleared",
        9: "elided",
    }


def test_protected_items_stay():
    items = [item._replace(protected=True) for item in visible(tool_turns(3))]
    assert reduce_all(items, [ClearResults(keep_last=0), ElideOutputs(max_tokens=16)], BY) == {}


def made_wrong(mask: Any) -> Any:
    class Wrong:
        name = "wrong"

        def reduce(self, items, by):
            return [mask] if isinstance(mask, Mask) else mask

        def settings(self):
            return {}

    return Wrong()


RESULT = count_message(result("c0", "x"), COUNTER)


@pytest.mark.parametrize(
    ("mask", "problem"),
    [
        (Mask(9, "x", 0, None), "no item"),
        (Mask(3, "x", 0, None), "calls of its item"),
        (Mask(3, "x", RESULT, result("c1", "x")), "calls of its item"),
        (Mask(3, "x", RESULT + 1, result("c0", "x")), "tokens, its message has"),
        (Mask(3, "x", 10**6, result("c0", LONG)), "not fewer than"),
        (Mask(1, "x", 0, None), "protected"),
        ([Mask(3, "x", RESULT, result("c0", "x"))] * 2, "not in the order"),
    ],
)
def test_a_broken_reducer_masks_nothing(mask, problem):
    first, *others = visible(tool_turns(1))
    with pytest.raises(InternalError, match=problem):
        reduce_all([first._replace(protected=True), *others], [made_wrong(mask)], BY)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("clear_result", "did you mean 'clear_results'"),
        ({"keep_last": 3}, "expected one of"),
        ({"reducer": 7}, "expected one of"),
        (7, "expected a name or a mapping"),
        ({"reducer": "clear_results", "keep_lst": 1}, "did you mean 'keep_last'"),
        ({"reducer": "clear_results", "keep_last": -1}, "keep_last"),
        ({"reducer": "clear_results", "min_gain_tokens": 1.5}, "min_gain_tokens"),
        ({"reducer": "clear_results", "placeholder": ""}, "placeholder"),
        ({"reducer": "clear_results", "clear_arguments": 1}, "clear_arguments"),
        ({"reducer": "clear_results", "exclude_tools": "f"}, "exclude_tools"),
        ({"reducer": "elide_outputs", "max_tokens": 15}, "max_tokens"),
        ({"reducer": "elide_outputs", "keep": "start"}, "keep"),
        ({"reducer": "elide_outputs", "kinds": ["system"]}, "kinds"),
        ({"reducer": "truncate_arguments", "keep_last": None}, "keep_last"),
        ({"reducer": "drop_duplicates", "min_tokens": 0}, "min_tokens"),
        ({"reducer": "drop_similar", "threshold": 1.01}, "threshold"),
        ({"reducer": "drop_similar", "threshold": float("nan")}, "threshold"),
        ({"reducer": "offload_results", "min_tokens": 99}, "min_tokens"),
        ({"reducer": "offload_results", "preview_lines": -1}, "preview_lines"),
        ({"reducer": "strip_reasoning", "keep_last_turn": "yes"}, "keep_last_turn"),
    ],
)
def test_nonsense_is_refused(given, words):
    with pytest.raises(InvalidOptionError, match=words):
        reducer_from(given)


@pytest.mark.parametrize("name", REDUCERS)
def test_settings_make_an_equal_reducer(name):
    plain = reducer_from(name)
    assert plain.name == name
    assert plain.settings() == {}
    option, value = {"strip_reasoning": ("keep_last_turn", False)}.get(
        name, ("exclude_tools", ["f"])
    )
    other = reducer_from({"reducer": name, option: value})
    assert json.loads(json.dumps(other.settings())) == {option: value}
    assert reducer_from({"reducer": name, **other.settings()}) == other != plain


def test_real_conversations_stay_legal(corpus):
    """Every 60th conversation of the corpus, under all reducers."""
    chain = [
        StripReasoning(),
        DropDuplicates(),
        OffloadResults(min_tokens=1_000),
        ElideOutputs(max_tokens=300, kinds=("result", "user")),
        TruncateArguments(max_tokens=100),
        ClearResults(keep_last=5, min_gain_tokens=100, clear_arguments=True),
    ]
    by = replace(BY, offload=lambda *_: "blob:1")
    before = after = 0
    with corpus.open(encoding="utf-8") as lines:
        conversations = [
            json.loads(line)["messages"] for n, line in enumerate(lines) if n % 60 == 0
        ]
    for messages in conversations:
        items = visible(messages)
        masks = reduce_all(items, chain, by)
        entries = []
        for item in items:
            mask = masks.get(item.seq)
            before += item.tokens
            after += item.tokens if mask is None else mask.tokens
            if mask is None or mask.message is not None:
                entries.append(WireItem(item.seq, item.message if mask is None else mask.message))
        assert find_violations(render(entries, by.policy).messages, by.policy) == []
    assert after < before * 0.75
