"""Personal data to plant, and a search for it in every byte beside a database."""

import os
import re
from itertools import count

_EN = "Please write to {} before noon."
_ZH = "请尽快联系{}，谢谢。"
_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)


def _email(number):
    return f"p{number}@planted.example"


def _mobile(number):
    return f"1397{number:07}"


def _resident(number):
    body = (
        f"11010519{49 + number % 50:02}{1 + number % 12:02}{1 + number % 28:02}{number % 1000:03}"
    )
    return body + "10X98765432"[sum(int(d) * w for d, w in zip(body, _WEIGHTS, strict=True)) % 11]


def _card(number):
    body = f"622848{number:09}"
    total = 0
    for at, digit in enumerate(reversed(body)):
        doubled = int(digit) * (2 if at % 2 == 0 else 1)
        total += doubled - 9 if doubled > 9 else doubled
    return body + str(-total % 10)


def _key(number):
    return f"sk-proj-PLANTED{number:08}abcdefghijklmnopqrstuvwxyzABCDEFGH"


KINDS = {
    "email": (_email, "{}", "{}"),
    "cn_mobile": (_mobile, "{}", "{}"),
    "cn_id": (_resident, "resident id {}", "身份证号{}"),
    "card": (_card, "card number {}", "银行卡号{}"),
    "api_key": (_key, "{}", "密钥 {}"),
}
_MARKS = (
    rb"p\d+@planted\.example",
    rb"1397\d{7}",
    rb"11010519\d{9}[\dX]",
    rb"622848\d{10}",
    rb"sk-proj-PLANTED\d{8}\w*",
)


class Planted:
    """Gives sentences, each with a value that no other has, in both languages by turns."""

    def __init__(self, kinds=tuple(KINDS)):
        self._kinds = [KINDS[name] for name in kinds]
        self._numbers = count(1)
        self.values = set()

    def __call__(self):
        number = next(self._numbers)
        make, english, chinese = self._kinds[number % len(self._kinds)]
        value = make(number)
        self.values.add(value.encode())
        if number // len(self._kinds) % 2:
            return _ZH.format(chinese.format(value))
        return _EN.format(english.format(value))

    def many(self, size):
        return " ".join(self() for _ in range(size))

    def found_in(self, folder):
        """``{file: values}`` of the planted values that its bytes hold."""
        leaks = {}
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name), "rb") as file:
                content = file.read()
            hits = {hit for mark in _MARKS for hit in re.findall(mark, content)}
            if hits & self.values:
                leaks[name] = sorted(hits & self.values)
        return leaks
