"""What does redaction cost a KB: clean texts, texts with findings, evil ones, whole items?

Rivals are the same classes as regular expressions: google-re2 (one alternation, all that is found
looked at again in Python) and Python's re. They check no Luhn, no date and no context.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

from harness import Effort, Figure, Race, Row, Target, absent, at_most, compare, race, settle

DOCUMENTS = 40
ROUNDS = 20
EVIL_CHARS = 100_000
PATTERNS = (
    r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9.-]{1,253}\.[A-Za-z]{2,24}",
    r"(?:\+?86[- ]?)?1[3-9][0-9]{9}",
    r"[1-9][0-9]{16}[0-9Xx]",
    r"[0-9](?:[ -]?[0-9]){12,18}",
    r"(?:学号|[Ss]tudent (?:id|no))\W{0,4}[0-9]{8,12}",
    r"sk-[A-Za-z0-9_-]{20,}",
    r"(?:AKIA|ASIA)[A-Z0-9]{16}",
    r"gh[pousr]_[A-Za-z0-9]{36}",
    r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    r"xox[abeoprs]-[A-Za-z0-9-]{10,}",
    r"AIza[A-Za-z0-9_-]{35}",
    r"(?:password|密码)[=:：][^\s]{4,}",
)
ENGLISH = (
    "The agent asked the search tool for a report on the sales of the last three quarters and got "
    "twelve rows back; status: ok. It then compares each region with the plan - see section [3] - "
    "and says which of them fell short, by how much, and why that may be. "
)
CHINESE = (
    "用户想知道今年的销售数据，助手调用了查询工具，得到了十二行结果；随后它总结了主要趋势：华东地区增长"
    "最快，共计三千五百单，其次是华南地区。最后它给出了下一步的建议，并请用户确认是否继续。"
)
FINDINGS = (
    "write to bob.smith@example.com, ",
    "手机13800138000，",
    "key AKIAIOSFODNN7EXAMPLE; ",
    "身份证11010519491231002X。",
    "学号：20230001 ",
    "card 4111 1111 1111 1111 ",
)


def documents(*, findings: int) -> list[str]:
    """Forty texts of 1 KB, half of them Chinese, with so many findings in each."""
    random, made = Random(11), []
    for number in range(DOCUMENTS):
        body = (ENGLISH * 6)[:1024] if number % 2 else (CHINESE * 6)[:341]
        for _ in range(findings):
            at = random.randrange(len(body))
            body = f"{body[:at]} {random.choice(FINDINGS)}{body[at:]}"
        made.append(body)
    return made


def rows(effort: Effort) -> Iterator[Row]:
    """Clean texts, texts with three findings, evil texts, items of a conversation."""
    from memcore._fast import find_sensitive
    from memcore.privacy import Redaction, RedactionPolicy

    redactor = Redaction(RedactionPolicy(), secret=b"s" * 32).for_place("app", "user", "session")
    scan = partial(_each, lambda text: find_sensitive(text, (1 << 11) - 1))
    rivals = list(_rivals())
    for name, texts, target in (
        ("scan 1 KB of clean text", documents(findings=0), at_most(10, "ours")),
        ("scan 1 KB with three findings", documents(findings=3), None),
    ):
        yield from _against(name, effort, partial(scan, texts), rivals, texts, target)
    for name, texts in (
        ("clean", documents(findings=0)),
        ("three findings", documents(findings=3)),
    ):
        action = partial(_each, redactor.text, texts)
        yield _alone(f"redact a text of 1 KB, {name}", effort, action, DOCUMENTS)
    items = [_item(text) for text in documents(findings=0)]
    action = partial(_each, redactor.value, items)
    yield _alone("redact an item of 1 KB with a call, clean", effort, action, DOCUMENTS)
    for name, fragment in (
        ("one letter", "a"), ("digits and blanks", "1 "), ("@", "a@"), ("password=", "x_password="),
    ):  # fmt: skip
        text = (fragment * EVIL_CHARS)[:EVIL_CHARS]
        action = partial(_each, redactor.text, [text])
        yield _alone(f"100 KB of {name}, per KB", effort, action, EVIL_CHARS // 1024)


def _item(text: str) -> dict[str, Any]:
    arguments = '{"query": "sales by region", "limit": 12, "filters": {"year": 2023}}'
    function = {"name": "search", "arguments": arguments}
    call = {"id": "call_8f3a", "type": "function", "function": function}
    return {"role": "assistant", "content": text, "tool_calls": [call]}


def _each(action: Callable[[Any], Any], values: list[Any]) -> None:
    for value in values:
        action(value)


def _rivals() -> Iterator[tuple[str, Callable[[str], Any] | str]]:
    alternation = "|".join(f"({pattern})" for pattern in PATTERNS)
    try:
        re2 = importlib.import_module("re2")
    except ImportError as exc:
        yield "google-re2", str(exc)
    else:
        compiled = re2.compile(alternation)
        yield "google-re2", lambda text: [found.span() for found in compiled.finditer(text)]
    separate = [re.compile(pattern) for pattern in PATTERNS]
    yield (
        "re, each pattern",
        lambda text: [found.span() for one in separate for found in one.finditer(text)],
    )
    joined = re.compile(alternation)
    yield "re, one alternation", lambda text: [found.span() for found in joined.finditer(text)]


def _against(  # noqa: PLR0917 - a table row's columns
    question: str,
    effort: Effort,
    ours: Callable[[], Any],
    rivals: list[tuple[str, Callable[[str], Any] | str]],
    texts: list[str],
    target: Target | None,
) -> Iterator[Row]:
    for name, rival in rivals:
        if isinstance(rival, str):
            yield absent(question, name, rival)
            continue
        found = race(
            ours, partial(_each, rival, texts), rounds=effort.rounds(ROUNDS), ops=len(texts)
        )
        yield compare(question, found, name, target=target)


def _alone(question: str, effort: Effort, ours: Callable[[], Any], ops: int) -> Row:
    settle()
    found: Race = race(ours, lambda: None, rounds=effort.rounds(ROUNDS), ops=ops)
    return Row(question, "µs", Figure.of(found.ours).scaled(1e-3), len(found.ours))
