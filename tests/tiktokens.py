"""tiktoken's encodings built from the shipped vocabularies: what our counts are held to."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from typing import Any

import tiktoken
from tiktoken_ext import openai_public

from memcore import vocab
from memcore._fast import Encoding

NAMES = ("o200k_base", "cl100k_base")


@cache
def definition(name: str) -> dict[str, Any]:
    """What tiktoken says of an encoding; for the ranks, the sha256 that their file must have.

    tiktoken fetches the file in the same breath, so its loader is replaced for that moment.
    """
    fetch = openai_public.load_tiktoken_bpe
    openai_public.load_tiktoken_bpe = lambda url, expected_hash: expected_hash
    try:
        return dict(getattr(openai_public, name)())
    finally:
        openai_public.load_tiktoken_bpe = fetch


@cache
def tokens(name: str) -> list[bytes]:
    """The bytes of every token, in the order of the ids."""
    ours = vocab.load(name)
    return [ours.token(at) for at in range(ours.n_tokens)]


def digest(name: str) -> str:
    """sha256 of the ``.tiktoken`` file made again from the shipped tokens."""
    lines = (b"%s %d\n" % (base64.b64encode(token), at) for at, token in enumerate(tokens(name)))
    return hashlib.sha256(b"".join(lines)).hexdigest()


@cache
def reference(name: str) -> tiktoken.Encoding:
    """tiktoken's own encoder with its own pattern and the shipped tokens."""
    ranks = {token: at for at, token in enumerate(tokens(name))}
    pattern = definition(name)["pat_str"]
    return tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


def disagreement(name: str, text: str) -> str | None:
    """What differs between our reading of a text and tiktoken's; None: nothing."""
    ours: Encoding = vocab.load(name)
    expected = reference(name).encode_ordinary(text)
    got, count = ours.encode(text), ours.count(text)
    if got != expected:
        at = next((i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), 0)
        theirs, mine = ([(i, ours.token(i)) for i in ids[at : at + 4]] for ids in (expected, got))
        return f"{name} token {at}: expected {theirs}, got {mine}"
    if count != len(expected):
        return f"{name} count: expected {len(expected)}, got {count}"
    return None


def agree(name: str, text: str) -> None:
    """Our ids and count are tiktoken's.

    Raises:
        AssertionError: they are not; with the shortest text around that shows it.
    """
    found = disagreement(name, text)
    if found is not None:
        text = shortened(name, text)
        raise AssertionError(f"{disagreement(name, text)}\nin {text[:2000]!r}")


def shortened(name: str, text: str) -> str:
    """A text that still differs, with as many slices left out as can be."""
    step = len(text) // 2
    while step:
        at = 0
        while at < len(text):
            rest = text[:at] + text[at + step :]
            if disagreement(name, rest) is None:
                at += step
            else:
                text = rest
        step //= 2
    return text


def unused_by(name: str, text: str, budget: int, keep: str, marker: str | None) -> int:
    """Tokens that one cut left unused, after it was held to its contract."""
    ours, theirs = vocab.load(name), reference(name)
    found, kept, total = ours.truncate(text, budget, keep=keep, marker=marker)
    assert total == len(theirs.encode_ordinary(text))
    assert kept == len(theirs.encode_ordinary(found)) <= budget
    if total <= budget:
        assert found is text
        return 0
    mark = marker or ""
    rest = len(found) - len(mark)
    assert 0 <= rest < len(text)
    if keep == "head":
        assert found == text[:rest] + mark
    elif keep == "tail":
        assert found == mark + text[len(text) - rest :]
    else:
        assert any(
            found == text[:head] + mark + text[len(text) - (rest - head) :]
            for head in range(rest + 1)
        )
    return budget - kept
