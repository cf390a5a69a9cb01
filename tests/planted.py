"""Sensitive values of every built-in class, valid and made up, and the places to plant them in."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

ALNUM = string.ascii_letters + string.digits
PROVINCES = (11, 31, 44, 51, 65, 71, 81)
FULL_WIDTH = str.maketrans({chr(c): chr(c + 0xFEE0) for c in range(0x21, 0x7F)})


@dataclass(frozen=True)
class Planted:
    """A value, how it is announced, and the class that it is found as."""

    kind: str
    value: str
    before: str = ""
    """The words without which it would be no finding."""
    key: str = "note"
    """A JSON key that announces it."""


def digits(random: Random, count: int) -> str:
    return "".join(random.choices(string.digits, k=count))


def luhn(body: str) -> str:
    """The digits with their check digit."""
    total = 0
    for at, char in enumerate(reversed(body)):
        digit = int(char) * (2 if at % 2 == 0 else 1)
        total += digit - 9 if digit > 9 else digit
    return body + str(-total % 10)


def resident_id(random: Random) -> str:
    date = f"{random.randint(1930, 2020)}{random.randint(1, 12):02}{random.randint(1, 28):02}"
    body = f"{random.choice(PROVINCES)}{digits(random, 4)}{date}{digits(random, 3)}"
    weights = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
    total = sum(int(char) * weight for char, weight in zip(body, weights, strict=True))
    return body + "10X98765432"[total % 11]


def mobile(random: Random) -> str:
    return f"1{random.randint(3, 9)}{digits(random, 9)}"


def _grouped_mobile(random: Random) -> str:
    plain = mobile(random)
    a, b, c = plain[:3], plain[3:7], plain[7:]
    forms = (
        plain, f"{a}-{b}-{c}", f"{a} {b} {c}", f"+86{plain}", f"+86 {plain}", f"+86-{plain}",
        f"86{plain}", f"+86 {a} {b} {c}", f"(+86){plain}", f"0086{plain}",
    )  # fmt: skip
    return random.choice(forms)


def card(random: Random) -> str:
    prefix, size = random.choice(
        (("4", 16), ("53", 16), ("2221", 16), ("37", 15), ("6011", 16), ("622848", 19), ("62", 16))
    )
    plain = luhn(prefix + digits(random, size - 1 - len(prefix)))
    fours = [plain[at : at + 4] for at in range(0, size, 4)]
    if size == 15:
        fours = [plain[:4], plain[4:10], plain[10:]]
    return random.choice((plain, " ".join(fours), "-".join(fours)))


def _email(random: Random) -> str:
    user = "".join(random.choices(string.ascii_lowercase + string.digits, k=6))
    name = random.choice((user, f"{user}.x", f"a_{user}+tag", f"{user}-9", digits(random, 9)))
    return f"{name}@{random.choice(('qq.com', 'mail.example.co.uk', '163.com', 'Example.ORG'))}"


def _phone(random: Random) -> str:
    area, end = random.randint(200, 999), digits(random, 4)
    return random.choice(
        (
            f"+1 ({area}) 555-{end}",
            f"+1-{area}-555-{end}",
            f"+44 20 {digits(random, 4)} {end}",
            f"+49 30 {digits(random, 8)}",
            f"+81 3 {digits(random, 4)} {end}",
        )
    )


def _key(random: Random) -> str:
    def tail(count: int, alphabet: str = ALNUM) -> str:
        return "a1B" + "".join(random.choices(alphabet, k=count - 3))

    return random.choice(
        (
            "sk-" + tail(48),
            "sk-proj-" + tail(64, ALNUM + "_-"),
            "sk-ant-api03-" + tail(80),
            "AKIA" + "".join(random.choices(string.ascii_uppercase + string.digits, k=16)),
            "ASIA" + "".join(random.choices(string.ascii_uppercase + string.digits, k=16)),
            f"gh{random.choice('pousr')}_" + tail(36),
            "github_pat_" + tail(22) + "_" + tail(59),
            f"xox{random.choice('abprs')}-" + digits(random, 12) + "-" + tail(24),
            "AIza" + tail(35, ALNUM + "_-"),
            "sk_live_" + tail(24),
            "rk_live_" + tail(24),
            "hf_" + tail(34),
            "glpat-" + tail(20),
            "npm_" + tail(36),
            "gsk_" + tail(52),
            "LTAI" + tail(20),
            "SG." + tail(22) + "." + tail(43),
        )
    )


def _jwt(random: Random) -> str:
    parts = ("".join(random.choices(ALNUM + "_-", k=size)) for size in (20, 40, 43))
    a, b, c = parts
    return f"eyJ{a}.eyJ{b}.{c}"


def _private_key(random: Random) -> str:
    sort = random.choice(("RSA PRIVATE KEY", "PRIVATE KEY", "OPENSSH PRIVATE KEY"))
    lines = "\n".join("".join(random.choices(ALNUM + "+/", k=64)) for _ in range(3))
    return f"-----BEGIN {sort}-----\n{lines}\n-----END {sort}-----"


def _secret(random: Random) -> str:
    return "Pw" + "".join(random.choices(ALNUM, k=8)) + "7"


MAKERS: dict[str, Callable[[Random], Planted]] = {
    "email": lambda r: Planted("email", _email(r)),
    "cn_mobile": lambda r: Planted("cn_mobile", _grouped_mobile(r)),
    "phone": lambda r: Planted("phone", _phone(r)),
    "labelled phone": lambda r: Planted(
        "phone",
        r.choice((f"010-{digits(r, 8)}", f"(212) 555-{digits(r, 4)}", f"400-{digits(r, 3)}-9876")),
        r.choice(("电话：", "phone: ", "Tel. ", "联系电话是", "call me at ")),
        r.choice(("phone", "contact_number", "电话", "homePhone")),
    ),
    "cn_id": lambda r: Planted("cn_id", resident_id(r)),
    "student_id": lambda r: Planted(
        "student_id",
        digits(r, r.randint(8, 12)),
        r.choice(("学号", "学号：", "学号是", "student id: ", "Student No. ", "student number ")),
        r.choice(("学号", "student_id", "studentId", "student_no")),
    ),
    "card": lambda r: Planted(
        "card",
        card(r),
        r.choice(("卡号", "银行卡：", "信用卡号是 ", "card ", "my credit card is ", "Visa: ")),
        r.choice(("card_number", "cardNo", "卡号", "credit_card")),
    ),
    "api_key": lambda r: Planted("api_key", _key(r)),
    "jwt": lambda r: Planted("jwt", _jwt(r)),
    "private_key": lambda r: Planted("private_key", _private_key(r)),
    "token": lambda r: Planted("token", _secret(r) * 2, "Authorization: Bearer ", "access_token"),
    "password": lambda r: Planted(
        "password",
        _secret(r),
        r.choice(("password=", "password: ", "PGPASSWORD=", "密码：", "口令:", "pwd=")),
        r.choice(("password", "db_password", "密码", "userPassword")),
    ),
}


def sentence(random: Random, planted: Planted) -> str:
    """The value in a text, beside words of either language, blanks, or nothing at all."""
    apart = planted.kind in {"api_key", "jwt", "token", "password", "private_key"}
    before = random.choice(("", "我的是", "see ", "（", '"', "\n", "请记住，"))
    after = random.choice(("", "。", " ok", "）", '"', "\n", "，谢谢", "!"))
    if apart and after == "!":
        after = " "
    return f"{before}{planted.before}{planted.value}{after}"


def places(random: Random, planted: Planted) -> Iterator[tuple[str, Any]]:
    """The name of a form of item and the item, with the value planted in it."""
    text, call = sentence(random, planted), digits(random, 11)
    arguments = {"id": call, "note": [{"deep": {"list": [1, text]}}], planted.key: planted.value}
    ascii_only = random.random() < 0.5
    yield "user", {"role": "user", "content": text}
    yield "blocks", {"role": "user", "content": [{"type": "text", "text": text}]}
    yield (
        "call",
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": call,
                    "type": "function",
                    "function": {
                        "name": "look_up",
                        "arguments": json.dumps(arguments, ensure_ascii=ascii_only),
                    },
                }
            ],
        },
    )
    yield "result", {"role": "tool", "tool_call_id": call, "content": text}
    result = json.dumps({"rows": [arguments]}, ensure_ascii=ascii_only)
    yield "JSON result", {"type": "function_call_output", "call_id": call, "output": result}
    use = {"type": "tool_use", "id": call, "name": "look_up", "input": arguments}
    yield "tool use", {"role": "assistant", "content": [use]}
    part = {"functionCall": {"id": call, "name": "look_up", "args": arguments}}
    yield "Gemini", {"role": "model", "parts": [part, {"text": text, "thoughtSignature": call}]}
    yield "state", {"profile": {planted.key: planted.value}, "notes": [text]}


def ids_of(value: Any) -> list[Any]:
    """Everything in a value that nobody may change, in order."""
    protected = ("id", "tool_call_id", "call_id", "type", "role", "name", "thoughtSignature")
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            value = json.loads(value)
        except ValueError:
            return []
    if isinstance(value, dict):
        own = [(key, value[key]) for key in protected if isinstance(value.get(key), str)]
        return own + [found for entry in value.values() for found in ids_of(entry)]
    if isinstance(value, list):
        return [found for entry in value for found in ids_of(entry)]
    return []
