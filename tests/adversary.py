"""Texts that are made to be counted wrong: nasty letters, token soups, pieces of every length."""

# ruff: noqa: RUF001 - letters that look like others are the point

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

import tiktokens

LETTERS = (
    *"aAbBeEsStTzZ", "ß", "ẞ", "é", "É", "ı", "İ", "ǅ", "ǆ", "Ǆ", "ᾈ", "ᾀ", "ſ", "\u212a", "ſſ",
    "ο", "Σ", "ς", "Ж", "ж", "Ԁ", "ﬁ", "𝐀", "𝐚", "𐐀", "𐐨", "Ა", "ა", "Ꭰ", "ꭰ", "Ａ", "ａ",
    # modifiers, and letters of no case
    "ʰ", "ʼ", "ᵃ", "ー", "々", "ªº", "ƻ", "ǀ", "א", "ע", "ש", "ا", "ل", "م", "ـ", "ع", "ह", "ि",
    "中", "漢", "か", "ガ", "한", "국", "ᄒ", "ᅡ", "ᆫ", "ก", "ำ", "ไ", "ျ", "ཀ", "ሀ", "𠀀",
)  # fmt: skip
MARKS = (
    "\u0300", "\u0301", "\u0308", "\u0345", "\u05b0", "\u064b", "\u0670", "\u093f", "\u094d",
    "\u0e31", "\u0e48", "\u20dd", "\u20e3", "\u302a", "\u3099", "\ufe0f", "\ufe0e", "\U000e0100",
    "\U0001d165", "\u0488",
)  # fmt: skip
DIGITS = (
    *"0127", "٣", "۴", "९", "๕", "７", "²", "¹", "½", "Ⅳ", "ⅳ", "①", "㊿", "〇", "𝟘", "৴", "𐄇",
)  # fmt: skip
SPACES = (
    " ", "  ", "\t", "\n", "\r", "\r\n", "\n\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x1f", "\x85",
    "\xa0", "\u1680", "\u180e", "\u2000", "\u2009", "\u200a", "\u200b", "\u2028", "\u2029",
    "\u202f", "\u205f", "\u2060", "\u3000", "\ufeff",
)  # fmt: skip
SIGNS = (
    *"/'\"!?.,;:-_=+*#@$%^&()[]{}<>|\\~`", "’", "‘", "´", "′", "＇", "//", "/\n", "€", "№", "™",
    "\0", "\x01", "\x7f", "\x80", "\x9f", "\xad", "\u061c", "\u200d", "\u200e", "\u200f", "\u202e",
    "\u2066", "\ue000", "\uf8ff", "\ufdd0", "\ufffc", "\ufffd", "\uffff", "\U000f0000",
    "\U0010ffff", "\U000e0041", "😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "🇩", "🏽", "☺", "1️⃣", "𓀀",
)  # fmt: skip
WORDS = ("s", "t", "re", "ve", "m", "ll", "d")
CONTRACTIONS = (
    *(
        quote + "".join(letters)
        for quote in "'’"
        for word in WORDS
        for letters in sorted({word, word.upper(), word.title(), word[0] + word[1:].upper()})
    ),
    "'ſ", "'ſt", "'\u212a", "''s", "'", "'l", "'r", "'v", "'sS",
)  # fmt: skip
SPECIALS = (
    "<|endoftext|>", "<|endofprompt|>", "<|fim_prefix|>", "<|im_start|>", "<|endoftext", "|>",
)  # fmt: skip
SURROGATES = (
    "\ud800", "\udbff", "\udc00", "\udfff", "\ud83d", "\ude00", "\ud83d\ude00", "\ude00\ud83d",
)  # fmt: skip
KINDS = (LETTERS, MARKS, DIGITS, SPACES, SIGNS, CONTRACTIONS, SPECIALS, SURROGATES)
ALPHABET = tuple(dict.fromkeys(part for kind in KINDS for part in kind))

EDGES = (
    1, 2, 3, 7, 8, 9, 14, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255,
    256, 257, 1000, 4095, 4096, 4097,
)  # fmt: skip
"""Lengths in bytes around those where some part of a counter changes its ways."""


def nasty(dice: random.Random, parts: int) -> str:
    """So many parts of the alphabet; some texts have few kinds, so that runs come about."""
    kinds = dice.sample(KINDS, dice.choice((1, 2, 2, 3, len(KINDS))))
    found = []
    while len(found) < parts:
        part = dice.choice(dice.choice(kinds))
        found += [part] * dice.choice((1, 1, 1, 1, 2, 3, 9))
    return "".join(found[:parts])


@cache
def families(name: str) -> dict[str, list[str]]:
    """Tokens that are text, by what they are made of: soups of one family are mostly one piece."""
    tests = {
        "lower": lambda text: text.isascii() and text.islower() and text.isalpha(),
        "word": lambda text: text.isascii() and text.isalpha(),
        "upper": lambda text: text.isascii() and text.isupper() and text.isalpha(),
        "sign": lambda text: text.isascii() and not any(c.isalnum() or c.isspace() for c in text),
        "space": str.isspace,
        "letters": lambda text: text.isalpha() and not text.isascii(),
        "wide": lambda text: all("\u3000" < c < "\uac00" for c in text),
        "any": lambda text: True,
    }
    found: dict[str, list[str]] = {kind: [] for kind in tests}
    for token in tiktokens.tokens(name):
        try:
            text = token.decode()
        except UnicodeDecodeError:
            continue
        for kind, test in tests.items():
            if test(text):
                found[kind].append(text)
    return found


def soup(dice: random.Random, name: str, parts: int) -> str:
    """Tokens and parts of tokens in a row: neighbours that would merge, and all but would."""
    family = families(name)[dice.choice(list(families(name)))]
    found = []
    for _ in range(parts):
        text = dice.choice(family)
        cut = dice.randrange(len(text) + 1)
        found.append(dice.choice((text, text, text[:cut], text[cut:], text[:-1], text[1:])))
    return "".join(found)


def byte_soup(dice: random.Random, name: str, parts: int) -> str:
    """The same with cuts inside of characters, where U+FFFD or lone surrogates come about."""
    tokens = tiktokens.tokens(name)
    found = bytearray()
    for _ in range(parts):
        token = dice.choice(tokens)
        found += dice.choice((token, token[: dice.randrange(len(token) + 1)], token[1:]))
    return found.decode("utf-8", dice.choice(("replace", "surrogateescape", "ignore")))


def runs(dice: random.Random, size: int) -> Iterator[str]:
    """Single pieces of about ``size`` bytes, and some that only look like one."""
    yield "a" * size
    yield "".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=size))
    yield "".join(dice.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=size))
    yield "".join(dice.choices("etaoinETAOIN", k=size))
    yield " " * size
    yield "=" * size
    yield "".join(dice.choices("=-*#_/", k=size))
    yield "\n" * size
    yield "\r\n" * (size // 2) + "\r" * (size % 2)
    yield "7" * size
    yield "".join(dice.choices("中文字的一是不了人我", k=-(-size // 3)))
    yield "".join(map(chr, dice.choices(range(0x4E00, 0x9FFF), k=-(-size // 3))))
    yield "e" + "\u0301" * (size // 2)
    yield "😀" * -(-size // 4)
    yield "\t" * (size - 1) + "x"
    yield "\u3000" * -(-size // 3)


def edges(dice: random.Random) -> Iterator[str]:
    """Pieces of every length in ``EDGES`` alone and between neighbours of other kinds."""
    for size in EDGES:
        for run in runs(dice, size):
            yield run
            yield dice.choice((" ", "x", "1", "\n", "'", "é")) + run
            yield run + dice.choice((" ", "x", "1", "\n", "'s", "é", "中"))
