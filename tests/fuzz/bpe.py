"""Targets for the token counter: any text against tiktoken, any bytes as its vocabulary.

The first bytes of an input choose the encoding, how the rest is read, and one cut of the text.
"""

from __future__ import annotations

from collections.abc import Callable

import adversary
import tiktokens
from vocabularies import CLASSES, use

TEXT_MAX = 1 << 15
KEEPS = ("head", "tail", "middle")
MARKERS = (None, "", "…", "\n[cut]\n", "'s", "\ud83d")


def _utf8(_: str, rest: bytes) -> str:
    return rest.decode("utf-8", "surrogatepass" if rest[:1] == b"\xed" else "replace")


def _escaped(_: str, rest: bytes) -> str:
    return rest.decode("utf-8", "surrogateescape")


def _utf16(_: str, rest: bytes) -> str:
    return rest[: len(rest) // 2 * 2].decode("utf-16-le", "surrogatepass")


def _alphabet(_: str, rest: bytes) -> str:
    """Two bytes a part of the nasty alphabet: which one, and how often."""
    parts = adversary.ALPHABET
    return "".join(
        parts[(one | two << 8) % len(parts)] * (two >> 4 or 1)
        for one, two in zip(rest[::2], rest[1::2], strict=False)
    )


def _soup(name: str, rest: bytes) -> str:
    """Four bytes a token, whole or in part."""
    tokens = tiktokens.tokens(name)
    found = bytearray()
    for at in range(0, len(rest) - 3, 4):
        token = tokens[int.from_bytes(rest[at : at + 3], "little") % len(tokens)]
        cut = rest[at + 3]
        found += token[cut & 31 :] if cut & 64 else token[: -(cut & 7) or None]
    return found.decode("utf-8", "replace")


def _families(name: str, rest: bytes) -> str:
    """Tokens of one family, whole or in part: mostly one long piece."""
    families = list(adversary.families(name).values())
    texts = families[rest[0] % len(families)] if rest else [""]
    found = []
    for at in range(1, len(rest) - 3, 4):
        text = texts[int.from_bytes(rest[at : at + 3], "little") % len(texts)]
        cut = rest[at + 3]
        found.append(text[cut & 15 :] if cut & 64 else text[: -(cut & 3) or None])
    return "".join(found)


READINGS: tuple[Callable[[str, bytes], str], ...] = (
    _utf8, _escaped, _utf16, _alphabet, _soup, _families,
)  # fmt: skip


def bpe(data: bytes) -> None:
    """Ids and counts are tiktoken's, and a cut keeps its contract."""
    how, budget, cut = data[0:1] or b"\0", data[1:4], data[4:5] or b"\0"
    name = tiktokens.NAMES[how[0] & 1]
    try:
        text = READINGS[(how[0] >> 1) % len(READINGS)](name, data[5:])[:TEXT_MAX]
    except UnicodeDecodeError:
        return
    found = tiktokens.disagreement(name, text)
    assert found is None, f"{found}\nin {text!r}"
    ours = tiktokens.vocab.load(name)
    marker = MARKERS[cut[0] % len(MARKERS)]
    least = max(1, ours.count(marker or ""))
    chosen = least + int.from_bytes(budget, "little") % (ours.count(text) + 2)
    tiktokens.unused_by(name, text, chosen, KEEPS[cut[0] // 8 % 3], marker)


def vocabularies(data: bytes) -> None:
    """Any bytes as a vocabulary, one changed place in the classes: refused, or it counts."""
    size = int.from_bytes(data[:2], "little")
    at, changed = int.from_bytes(data[2:5], "little") % len(CLASSES), bytearray(CLASSES)
    changed[at] ^= data[5] if len(data) > 5 else 0
    text = data[6 + size :].decode("utf-8", "replace")
    use(data[6 : 6 + size], bytes(changed), [text, text * 9, "a" * 300])
