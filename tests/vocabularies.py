"""Small vocabularies, legal and not, and what must hold when one is taken."""

from __future__ import annotations

from importlib import resources
from struct import Struct

from memcore._fast import Encoding

HEADER = Struct("<8sIIIIQ")
FILES = resources.files("memcore.vocab")
CLASSES = (FILES / "classes.bin").read_bytes()
REAL = (FILES / "cl100k_base.bin").read_bytes()
MERGES = (b"th", b"in", b"he", b"the", b"  ", b"    ", b"ing", b"\xe4\xb8", b"\xe4\xb8\xad", b"aa",
          b"aaaa", b"aaaaaaaa", b"thing", b"a" * 16, b"a" * 32, b"a" * 64, b"a" * 128)  # fmt: skip
SPLITS = (1, 1, 1, 2, 1, 2, 2, 1, 2, 1, 2, 4, 2, 8, 16, 32, 64)


def small(
    tokens: list[bytes] | None = None, splits: list[int] | None = None, pattern: int = 2
) -> bytes:
    """A vocabulary of single bytes and a few merges."""
    tokens = tokens or [*(bytes([byte]) for byte in range(256)), *MERGES]
    splits = splits or [0] * 256 + list(SPLITS)
    blob = b"".join(tokens)
    head = HEADER.pack(b"mc-vocab", 2, pattern, len(tokens), len(blob), 0)
    return head + bytes(map(len, tokens)) + bytes(splits) + blob + bytes(16)


def use(vocabulary: bytes, classes: bytes, texts: list[str]) -> bool:
    """Whether they are taken; if so, everything is tried, and errors are typed."""
    try:
        found = Encoding(vocabulary, classes)
    except ValueError as error:
        assert str(error)
        return False
    for text in texts:
        try:
            counted = found.count(text)
            assert counted == len(found.encode(text)) == found.measure(text)[0]
            assert 0 <= counted <= 4 * len(text)
            for keep in ("head", "tail", "middle"):
                assert found.truncate(text, 3, keep=keep, marker="x")[1] <= 3
        except RuntimeError as error:
            assert "vocabulary" in str(error)
    assert len(b"".join(map(found.token, range(found.n_tokens)))) > 0
    return True
