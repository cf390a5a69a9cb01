"""What the check of whole values passes holds nothing that the walk of its leaves would replace."""

from __future__ import annotations

import itertools
import json
import os
import random
from collections import Counter
from typing import Any

import pytest

from memcore._fast import holds_sensitive
from memcore.privacy.policy import POLICY_PRESETS, redaction_policy
from memcore.privacy.redact import Redaction

ITEMS = int(os.environ.get("MEMCORE_LONG_TESTS") or 0) * 100 or 1_500
SECRETS = [
    "13912345678", "a@b.co", "joe.doe@example.com", "4111 1111 1111 1111", "+1 415 555 2671",
    "(415) 555-2671", "110101199003077758", "sk-abcdefghijklmnopqrstuvwxyz123456",
    "AKIAIOSFODNN7EXAMPLE", "192.168.1.23", "DE89370400440532013000", "password: hunter2x",
    "密码：abc123xyz", "手机 13912345678", "学号 20231234", "20231234567", "123-45-6789",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789", "https://u:pw12345@host/x", "2001:db8::1",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----",
]  # fmt: skip
KEYS = [
    "phone_number", "pwd", "card_no", "卡号", "手机", "student_id", "id", "token", "api_key",
    "value", "text", "x", "验证码", "order_id", "Authorization", "arguments", "no", "num",
    "card of the user", "my phone is", "学生 of class", "code", "verify_code", "pin", "cardNumber2",
]  # fmt: skip
AROUND = [
    "%s", "x%s", " %s ", "\t%s", "\n%s", "\\t%s", "\\n%s", "\u2028%s", '"%s"', "(%s)", "中%s中",
    "\x00%s", "\u00a0%s", "id=%s", "password is %s", "card %s", "\u200b%s", "#%s", "%s\\",
]  # fmt: skip
NUMBERS = [13912345678, 4111111111111111, 20231234, 123456, 1.3912345678e10, 4.111e15, True, 9999]


class Maker:
    """Makes values with secrets in any disguise that JSON, texts and keys offer."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def text(self, depth: int) -> str:
        pick = self.random
        if pick.random() < 0.35 and depth < 3:
            value = self.value(depth + 1)
            value = value if isinstance(value, dict | list) else [value]
            form = pick.choice([{}, {"ensure_ascii": False}, {"indent": 1}])
            found = json.dumps(value, **form)
            if pick.random() < 0.2:
                found = found.replace("13912345678", pick.choice(["1.3912345678E10", "139e8"]))
            if pick.random() < 0.2:
                found = pick.choice([" ", "\n", "\ufeff", "\u3000"]) + found
            if pick.random() < 0.1:
                found = found.replace('":', '"\n   \t    :')
            return found.replace("/", "\\/") if pick.random() < 0.1 else found
        secret = pick.choice(SECRETS)
        if pick.random() < 0.3:
            secret = secret[: pick.randint(1, len(secret))]
        if pick.random() < 0.15:
            at = pick.randint(0, len(secret))
            secret = secret[:at] + pick.choice(["\n", "\t", "\\", '"', "-", "\u200b"]) + secret[at:]
        return pick.choice(AROUND).replace("%s", secret)

    def value(self, depth: int) -> Any:
        pick = self.random
        chosen = pick.random()
        if depth > 3 or chosen < 0.45:
            return self.text(depth)
        if chosen < 0.6:
            return pick.choice(NUMBERS)
        if chosen < 0.9:
            return {
                pick.choice(KEYS) if pick.random() < 0.85 else self.text(3): self.value(depth + 1)
                for _ in range(pick.randint(1, 3))
            }
        return [self.value(depth + 1) for _ in range(pick.randint(1, 3))]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("preset", POLICY_PRESETS)
def test_what_passes_the_check_holds_nothing(seed: int, preset: str) -> None:
    redaction = Redaction(redaction_policy(preset), secret=b"s" * 32)
    walk = redaction.for_place("a", "u", "s")._walk
    maker, passed = Maker(seed), 0
    for _ in range(ITEMS):
        item = {"role": "tool", "content": maker.value(0)}
        if not holds_sensitive(item, redaction._mask):
            passed += 1
            found: Counter[str] = Counter()
            assert walk.value(item, found) is item, (found, item)
    assert passed > ITEMS // 10


@pytest.mark.parametrize(
    "content",
    [
        '{"note":"x\\n+1 415 555 2671"}',
        '{"hosts":"web\\n10.20.30.40"}',
        '{"pwd"\n   \t    : 13912345678.0}',
        '{"card of the user":13912345678.0}',
        '{"card of the user":[{"x": 1.39e10}]}',
        '{"验证码":{"value":482913}}',
        '{"my phone is":["中123-45-6789中"]}',
        '["#-----BEGIN RSA PRIVATE KEY"]',
    ],
)
def test_escapes_and_blanks_hide_nothing(content: str) -> None:
    redaction = Redaction(redaction_policy("strict"), secret=b"s" * 32)
    assert holds_sensitive({"role": "tool", "content": content}, redaction._mask)


SHORT = ["1", "123", "1234", "123456", 1, 123, 999, 1000, 9999, "1-2-3", "1.5e5", 1e5, "12 34"]


@pytest.mark.parametrize("preset", POLICY_PRESETS)
def test_few_digits_below_any_key_are_found_as_well(preset: str) -> None:
    redaction = Redaction(redaction_policy(preset), secret=b"s" * 32)
    walk = redaction.for_place("a", "u", "s")._walk
    words = [*KEYS, "cvc", "otp", "student code", "account", "verification code", "call me"]
    for word, value in itertools.product(words, SHORT):
        for shape in (
            {word: value}, {word: {"x": value}}, {"a": {word: [value]}},
            {f"my {word} is": value}, {f"my {word} is": {"x": [value]}}, {f"{word}_x": value},
        ):  # fmt: skip
            for text in (json.dumps(shape), json.dumps([json.dumps(shape, ensure_ascii=False)])):
                item = {"role": "tool", "content": text}
                if not holds_sensitive(item, redaction._mask):
                    found: Counter[str] = Counter()
                    assert walk.value(item, found) is item, (found, item)
