"""Laws of reducers over histories of every wire format, large texts and arguments in them."""

from __future__ import annotations

import copy
import json
import zlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
import strategies
from memcore._fast import classify
from memcore.compaction.reducers import REDUCERS, Reducer, Reduction, Visible, reduce_all
from memcore.log import count_message
from memcore.model import ItemKind, Mask
from memcore.tokens import get_counter
from memcore.wire import POLICIES, WireItem, render
from memcore.wire.message import arguments_of, value_at
from memcore.wire.validate import find_violations

COUNTER = get_counter("bytes/4")
TEXTS = (
    "ok",
    "short and sweet",
    "The build failed: 3 of 214 tests are red.\n" * 9,
    "One line. " * 60,
    "".join(f"{n}: a line of a long listing\n" for n in range(80)),
    "ein längerer Text über Füße — 数据 " * 12,
)
ARGUMENTS: tuple[Any, ...] = (
    {},
    {"path": "/tmp/x", "content": TEXTS[3]},
    {"edits": [{"old": TEXTS[2], "new": "x"}, {"old": "y", "new": TEXTS[4]}], "n": 1.5},
)

_small = st.sampled_from((16, 20, 40, 100))
_keep = st.integers(0, 3)
_cut = st.sampled_from(("head", "tail", "middle"))
_tools = st.sampled_from(((), ("f",), ("search",)))
REDUCER = {
    "clear_results": {
        "keep_last": _keep,
        "min_gain_tokens": st.sampled_from((0, 0, 100)),
        "exclude_tools": _tools,
        "clear_arguments": st.booleans(),
    },
    "elide_outputs": {
        "max_tokens": _small,
        "keep": _cut,
        "exclude_tools": _tools,
        "kinds": st.sampled_from((("result",), ("result", "user", "assistant"), ("user",))),
    },
    "truncate_arguments": {"max_tokens": _small, "keep_last": _keep, "keep": _cut},
    "drop_duplicates": {"min_tokens": st.sampled_from((1, 20, 50)), "exclude_tools": _tools},
    "drop_similar": {
        "threshold": st.sampled_from((0.5, 0.9, 1.0)),
        "min_tokens": st.sampled_from((1, 20)),
    },
    "offload_results": {
        "min_tokens": st.sampled_from((100, 200)),
        "preview_lines": st.sampled_from((0, 1, 5)),
        "keep_last": _keep,
    },
    "strip_reasoning": {"keep_last_turn": st.booleans()},
}
reducers = st.one_of(
    *(st.builds(REDUCERS[name], **options) for name, options in REDUCER.items())  # type: ignore[arg-type]
)


def letters(texts: Any) -> list[list[float]]:
    """Vectors of how often each letter comes."""
    return [[float(text.count(letter)) for letter in "abcdefghilnorst:\n"] for text in texts]


def offload(seq: int, call_id: str | None, text: str) -> str:
    return f"item:{seq}:{len(call_id or '')}:{zlib.crc32(text.encode()):08x}"


class Filling:
    """Fills the small messages of the strategies with texts, arguments and responses."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw

    def text(self) -> str:
        return self.draw(st.sampled_from(TEXTS))

    def fill(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.fill(entry) for entry in value]
        if not isinstance(value, dict):
            return self.text() if value in ("ok", "hello", "and now", "hm") else value
        made = {key: self.fill(entry) for key, entry in value.items()}
        for call, field in (("functionCall", "args"), ("functionResponse", "response")):
            snake = "function_" + call.removeprefix("function").lower()
            for name in (call, snake):
                if isinstance(made.get(name), dict) and "arguments" not in made[name]:
                    made[name][field] = self.object(field)
        if set(made) == {"name"} or made.get("type") == "function_call":
            made["arguments"] = json.dumps(self.draw(st.sampled_from(ARGUMENTS)))
        for field in ("args", "input"):
            if made.get(field) == {}:
                made[field] = self.draw(st.sampled_from(ARGUMENTS))
        if made.get("type") == "tool_result" and self.draw(st.booleans()):
            made["content"] = [{"type": "text", "text": self.text()} for _ in range(2)]
        return made

    def object(self, field: str) -> Any:
        if field == "args":
            return self.draw(st.sampled_from(ARGUMENTS))
        one = {"output": self.text()}
        return one if self.draw(st.booleans()) else {**one, "rows": [self.text(), 7]}


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, list[Visible]]:
    """A policy and what it shows; open calls and some other items are protected."""
    fmt = draw(st.sampled_from(strategies.FORMATS))
    history = draw(strategies.histories(fmt, orderly=draw(st.booleans())))
    filling, items = Filling(draw), []
    for at, item in enumerate(history):
        if isinstance(item, oracle.Event):
            continue
        message = filling.fill(item)
        kind = ItemKind(classify(message)[0])
        tokens = count_message(message, COUNTER)
        protected = draw(st.sampled_from((False, False, False, True)))
        items.append(Visible(at + 1, kind, message, tokens, protected))
    return fmt, items


def shown(items: list[Visible], masks: dict[int, Mask]) -> list[Visible]:
    found = []
    for item in items:
        mask = masks.get(item.seq)
        if mask is None:
            found.append(item)
        elif mask.message is not None:
            found.append(
                item._replace(message=mask.message, tokens=mask.tokens, masked=mask.action)
            )
    return found


def broken(items: list[Visible], fmt: str) -> list[Any]:
    """What is illegal in the items as they are rendered."""
    policy = POLICIES[fmt]
    messages = render([WireItem(item.seq, item.message) for item in items], policy).messages
    return [v.rule for v in find_violations(messages, policy)] + [
        rule for _, rule, *_ in oracle.brute_force_violations(messages, fmt)
    ]


def hold_rules(reducer: Reducer, items: list[Visible], by: Reduction) -> dict[int, Mask]:
    before = copy.deepcopy(items)
    masks = reducer.reduce(items, by)
    assert items == before
    assert masks == reducer.reduce(items, by)
    assert [mask.seq for mask in masks] == sorted({mask.seq for mask in masks})
    by_seq = {item.seq: item for item in items}
    for mask in masks:
        item = by_seq[mask.seq]
        assert not item.protected
        assert mask.tokens < item.tokens
        if mask.message is None:
            assert mask.tokens == 0
            assert classify(item.message)[1:3] == ((), ())
            continue
        assert classify(mask.message)[1:3] == classify(item.message)[1:3]
        assert mask.tokens == count_message(mask.message, by.counter)
        if mask.action == "cleared":
            continue
        # In their order: what was taken out before them moves them to another place.
        pairs = zip(arguments_of(item.message), arguments_of(mask.message), strict=True)
        for its, after in pairs:
            old = value_at(item.message, its.path)
            new = value_at(mask.message, after.path)
            if its.form == "json":
                assert shape(json.loads(new)) == shape(json.loads(old))
            else:
                assert shape(new) == shape(old)
    found = {mask.seq: mask for mask in masks}
    assert reducer.reduce(shown(items, found), by) == []
    return found


def shape(value: Any) -> Any:
    """A JSON value with its strings left out."""
    if isinstance(value, dict):
        return {key: shape(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [shape(entry) for entry in value]
    return "" if isinstance(value, str) else value


@settings(strategies.no_deadline, max_examples=60)
@given(cases(), st.lists(reducers, min_size=1, max_size=4))
def test_masks_keep_the_rules(case, chosen):
    fmt, items = case
    by = Reduction(POLICIES[fmt], COUNTER, offload, letters)
    was_broken = set(broken(items, fmt))
    for reducer in chosen:
        masks = hold_rules(reducer, items, by)
        assert set(broken(shown(items, masks), fmt)) <= was_broken, reducer
    masks = reduce_all(items, chosen, by)
    after = shown(items, masks)
    assert set(broken(after, fmt)) <= was_broken
    assert sum(item.tokens for item in after) <= sum(item.tokens for item in items)
