"""Redaction: what was redacted is changed no more, JSON stays JSON, ids stay, in linear time."""

# ruff: noqa: RUF001 - full-width digits are what is looked for
from __future__ import annotations

import json
import os
from collections import Counter
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

import planted
from memcore._fast import find_sensitive, holds_sensitive, sensitive_work
from memcore.privacy import Redaction, redaction_policy

EXAMPLES = int(os.environ.get("MEMCORE_LONG_TESTS") or 0) or 80
SECRET = b"0123456789abcdef"
PLAIN = Redaction(redaction_policy("strict"), secret=SECRET).for_place("a", "u", "s")
NAMED = Redaction(
    redaction_policy({"preset": "strict", "names": ["张三", "Ann", "E", "13"]}), secret=SECRET
).for_place("a", "u", None)
EVERY = (1 << 13) - 1
PIECES = [
    "a", "B", "1", "86", "138", "0013", "8000", "13800138000", "11010519491231002X", "-", " ", ".",
    "+", "(", ")", "@", "%40", ":", "//", "://", "=", '"', "'", "\\", "\\n", "\n", "[", "]", "_",
    "[EMAIL_7K2M9Q]", "[", "EMAIL_", "a@b.com", "学号", "卡号", "card ", "phone", "密码", "：",
    "password", "token", "sk-a1B2c3D4e5F6g7H8i9J0k", "AKIAIOSFODNN7EXAMPLE", "eyJhbGciOiJI.",
    "Bearer ",
    "4111111111111111", "4111 1111 1111 1111", "20230001", "１３８", "，", "汉", "🎉", "\u200b",
    "\ud800", "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "{", "}", "1.2.3.4",
    "fe80::1", "张三", "\\u0040", "%40", "&#64;", "&amp;", "\\_", "\ufeff", " is ", "是", "hunter2",
    "验证码",
    "482913", "client_secret", "sk-a1B2c3D4", "\\u200b",
]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES), max_size=14).map("".join) | st.text(max_size=30)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            texts | st.sampled_from(["phone", "id", "card_no", "type"]), inner, max_size=3
        )
        | inner.map(json.dumps)
    ),
    max_leaves=10,
)


@settings(deadline=None, max_examples=EXAMPLES)
@given(texts)
def test_redacting_twice_is_redacting_once(text):
    for redactor in (PLAIN, NAMED):
        made, found = redactor.counted(text)
        assert bool(found) == (made is not text)
        assert redactor.text(made) is made


@settings(deadline=None, max_examples=EXAMPLES)
@given(values)
@example('["[]"]')  # JSON in JSON is met twice, and is the same object each time
@example('{"13000000000":1000000}')  # a placeholder's name is no context
def test_values_keep_their_shape(value):
    for redactor in (PLAIN, NAMED):
        made, found = redactor.value(value)
        assert bool(found) == (made is not value)
        again, more = redactor.value(made)
        assert again is made
        assert not more
        if isinstance(value, dict | list):
            assert type(made) is type(value)
            assert len(made) == len(value)
        if isinstance(value, str) and value[:1] in {"{", "["}:
            try:
                parsed = json.loads(value)
            except ValueError:
                return
            assert type(json.loads(made)) is type(parsed)


@settings(deadline=None, max_examples=EXAMPLES)
@given(values)
def test_what_is_not_walked_holds_nothing(value):
    if not holds_sensitive(value, EVERY):
        found: Counter[str] = Counter()
        assert PLAIN._walk.value(value, found) is value
        assert not found


@settings(deadline=None, max_examples=EXAMPLES)
@given(texts)
def test_spans_are_in_order_and_in_the_text(text):
    at = 0
    for start, stop, number in find_sensitive(text, EVERY):
        assert at <= start < stop <= len(text)
        assert 0 <= number < 13
        at = stop


@settings(deadline=None, max_examples=EXAMPLES)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join))
@example("password://1")  # each digit is in a word without an end
@example("password=a1b2&a&")
@example("password=a1b2;a==")
@example("password=a1b2&b2=    ")
@example("password=a1b2&b2    ")
@example("password=a1b2&\\\\\\\\u00")
@example('password=a1b2&b2=\\\\\\"')
def test_the_steps_grow_with_the_text_and_no_faster(fragment):
    short, long = fragment * 200, fragment * 3_200
    assert sensitive_work(long, EVERY) <= 20 * sensitive_work(short, EVERY) + 2_000


@settings(deadline=None, max_examples=EXAMPLES)
@given(st.integers(0, 2**32), st.sampled_from(sorted(planted.MAKERS)), texts, texts)
def test_what_is_planted_is_found_between_any_others(seed, sort, before, after):
    one = planted.MAKERS[sort](Random(seed))
    text = f"{before}\n{one.before}{one.value}\n{after}"
    assert f"\n{one.before}{one.value}\n" not in PLAIN.text(text)
