"""Instructions of the user about memory: to remember, to forget, and what they are about. Pure.

A model that calls a tool may have been told to by a page that it read. So what it wants to store
or remove counts as the user's wish only if the user's last message asks for it, in the user's own
words, and names it: pasted parts do not count, and neither do words that the model adds. Rules
that are wrong on the safe side: what they miss waits in quarantine, or is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple
from unicodedata import normalize

from memcore._fast import search_spans
from memcore.codec.values import decoding
from memcore.errors import CorruptValueError
from memcore.log import Head, History
from memcore.log.history import read_rows
from memcore.log.read import opened
from memcore.memory.trust import by_of_item, own_texts, own_words, signs
from memcore.model import ItemKind, Message
from memcore.rows import names
from memcore.rows.head import head_key
from memcore.store.interface import ReadTxn
from memcore.wire.message import body_path, value_at

__all__ = [
    "Turn",
    "asks_to_forget",
    "asks_to_remember",
    "is_named",
    "is_said",
    "read_turn",
]


# --- The turn: the user's last message, and the newest item that a model's word may rest on -------

_ITEMS_MAX: Final = 1024
"""Items from the end of a history among which the user's last one is looked for."""
_PAGE: Final = 32
_OF_MODEL: Final = (ItemKind.USER, ItemKind.ASSISTANT, ItemKind.CALL, ItemKind.REASONING)


class Turn(NamedTuple):
    """End of a session, as far as it says what the user wants."""

    session: str
    user_seq: int | None = None
    """Seq of the user's last item."""
    words: str = ""
    """The user's own words in it, without pasted parts."""
    last_seq: int | None = None
    """Seq of the newest item of the user or the model."""
    number: int = 0
    """Number of the session: another one may get its name."""
    texts: tuple[str, ...] = ()
    """The user's last item: its blocks of plain text."""
    foreign: bool = False
    """True if it holds more than these."""


def read_turn(txn: ReadTxn, scope: int, name: str) -> Turn:
    """Read the last turn of a session; an empty one if the session does not exist.

    A damaged item may have been the user's last one, so nothing before it is.

    Raises:
        CorruptValueError: the head of the session is damaged.
    """
    session = names.session_of(txn, scope, name)
    value = None if session is None else txn.get(head_key(scope, session))
    if session is None or value is None:
        return Turn(name)
    head = Head.unpack(head_key(scope, session), value)
    found = Turn(name, number=session)
    with suppress(CorruptValueError):
        for seq, kind, row in _backward(txn, scope, History(head.all_segments(txn, scope))):
            if found.last_seq is None and kind in _OF_MODEL:
                found = found._replace(last_seq=seq)
            if kind == ItemKind.USER:
                item = opened(txn, scope, row)[0]
                if by_of_item(item) != "user":
                    continue  # what another agent says to this one
                with decoding(head_key(scope, session), "item"):
                    texts, more = own_texts(item.message)
                return found._replace(
                    user_seq=seq, words=own_words(texts), texts=tuple(texts), foreign=more
                )
            if kind == ItemKind.RESULT:
                words = _beside_results(opened(txn, scope, row)[0].message)
                if words:  # a later word of the user, which no statement can rest on
                    return found._replace(words=words)
    return found


def _beside_results(message: Message) -> str:
    """Return the user's own words in a message that holds results of tools as well."""
    body = value_at(message, body_path(message))
    if body.get("role") != "user" or isinstance(body.get("content"), str):
        return ""
    return own_words(own_texts(message)[0])


def _backward(
    txn: ReadTxn, scope: int, history: History
) -> Iterator[tuple[int, int, tuple[int, int, int, bytes]]]:
    """Yield seq, kind and row of the last items of a history, the newest first."""
    stop, least = history.count, max(history.count - _ITEMS_MAX, 0)
    while stop > least:
        start = max(stop - _PAGE, least)
        page: list[tuple[int, int, tuple[int, int, int, bytes]]] = []
        for _, owner, lo, hi in history.spans(start, stop):
            for row in read_rows(txn, scope, owner, position=0, lo=lo, hi=hi):
                if isinstance(row, CorruptValueError):
                    raise row
                page.append((row[1], row[3][0], row))
        yield from reversed(page)
        stop = start


# --- Requests to remember and to forget, in English and Chinese -----------------------------------

_BEGINS: Final = (
    r"(?:(?:^|[.!?;:,\n])\s*|\b(?:please|pls|kindly|and|also|then|so|just|ok|okay|hey|hi|now|always"
    r"|must|should|(?:can|could|would|will)\s+you|(?:want|need|like)\s+you\s+to|help\s+me)\s+)"
)
"""Place of an imperative: the beginning of a clause, or behind a word that asks. It excludes "do
you remember", "I remember" and "don't forget" in the sense of forgetting."""
_STORE: Final = r"(?:memory|memories|notes?|record|profile)"
_REMEMBER: Final = re.compile(
    _BEGINS + r"(?P<wish>"
    r"remember\b(?!\s+(?:what|when|where|which|who|whom|how|why|if|whether)\b)"
    r"|memori[sz]e\b|bear\s+in\s+mind\b|keep\s+in\s+mind\b"
    r"|(?:make|take)\s+(?:a\s+)?note\b|note\s+(?:that|down)\b"
    r"|(?:do\s+not|don't|dont|never)\s+forget\b"
    rf"|(?:save|store|add|write|put)\b[^.!?\n]{{0,80}}\b(?:to|in|into)\s+(?:your\s+|my\s+|the\s+)?{_STORE}\b"
    rf"|(?:update|correct|change|fix)\s+(?:your\s+|my\s+|the\s+)?{_STORE}\b"
    r")|\bfrom\s+now\s+on\b"
    r"|(?<![不别甭勿没你您我还都])(?<!不要)(?:记住|记下|记得|牢记|记一下|记录一下|帮我记|铭记)(?![了吗么过])"
    r"|(?:别|不要|请勿|莫)(?:忘记|忘了|忘)|(?:保存|存|写|加|记)(?:到|进|入)(?:你的|我的)?(?:记忆|备忘)"
    r"|(?:更新|修改|更正)(?:你的|我的|一下)?(?:记忆|备忘)|从现在(?:起|开始)|从今以后",
    re.IGNORECASE,
)
_FORGET: Final = re.compile(
    _BEGINS + r"(?P<wish>"
    r"forget\b(?!\s+to\b)"
    r"|(?:do\s+not|don't|dont|never|stop)\s+remember(?:ing)?\b|unremember\b"
    rf"|(?:delete|remove|erase|drop|clear|wipe)\b[^.!?\n]{{0,80}}\b(?:{_STORE}|you\s+(?:know|remember(?:ed)?))\b"
    r")|(?<![别莫勿没不我你您他她都快])(?<!不要)(?<!不会)(?<!没有)(?:忘记|忘掉|忘了)(?!了)"
    r"|(?:别|不要|不用)(?:再)?(?:记住|记得|记)|(?:删除|删掉|清除|抹掉)[^。!?\n]{0,40}(?:记忆|备忘|记录)",
    re.IGNORECASE,
)


def asks_to_remember(words: str) -> bool:
    """Return True if the user's own words ask to remember something, or to correct a memory."""
    return _asks(_REMEMBER, _plain(words), _CLAUSE, _REFUSED)


def asks_to_forget(words: str) -> bool:
    """Return True if the user's own words ask to forget something; a question does not."""
    return _asks(_FORGET, _plain(words), _SENTENCE, _DOUBTED)


def _asks(wish: re.Pattern[str], words: str, breaks: str, void: re.Pattern[str]) -> bool:
    """Return True if a wish occurs in a text, and nothing before it in its part voids it.

    Args:
        wish: the wish, with its verb as a group.
        words: the text.
        breaks: characters between parts: clauses, or sentences.
        void: words that void a wish behind them, and ``?`` if a question is none.
    """
    for match in wish.finditer(words):
        at = match.start() if match["wish"] is None else match.start("wish")
        least = max(at - _BEFORE_CHARS, 0)
        start = max(least, *(words.rfind(sign, least, at) + 1 for sign in breaks))
        end = _END.search(words, at)
        is_question = void is _DOUBTED and end is not None and end[0] == "?"
        if not is_question and void.search(words, start, at) is None:
            return True
    return False


_BEFORE_CHARS: Final = 400
"""Characters before a wish that are looked at."""
_END: Final = re.compile(r"[.!?\n]")
_SENTENCE: Final = ".!?;\n"
_CLAUSE: Final = _SENTENCE + ":,"
_NEGATION: Final = r"\b(?:not|never|no|nobody|none|cannot|without|dont|wont)\b|n't\b|[不没别勿莫]"
_REFUSED: Final = re.compile(_NEGATION, re.IGNORECASE)
"""Words that void a wish to remember: "I don't want you to remember"."""
_DOUBTED: Final = re.compile(rf"{_NEGATION}|\b(?:why|how|when|who|what|if|unless)\b", re.IGNORECASE)
"""Words that void a wish to forget, as a question does: forgetting is for good."""


def _plain(words: str) -> str:
    """Return words with the apostrophes and signs that the rules know; lengths may change."""
    plain = normalize("NFKC", words[:_CHARS_MAX]).replace("\u2019", "'").replace("\u3002", ".")
    lines = (" ".join(line.split()) for line in plain.splitlines())
    return "\n".join(line for line in lines if line)  # runs of spaces take quadratic time


_CHARS_MAX: Final = 64 * 1024
"""Characters of a message that are looked at."""


# --- Words of a statement, compared with those of the user ----------------------------------------

_KEY: Final = bytes(16)
"""Key of the hashes of stems, which are compared and not stored."""
_CJK_FROM: Final = "\u2e80"
_USER: Final = "user users he she they his her their him them"
_REQUEST: Final = (
    "please pls remember remembered forget forgot delete remove erase drop clear wipe memory "
    "memories note notes record profile store stored save saved know known ok okay thank thanks "
    "everything anything thing things one know now want longer anymore stop"
)
"""Words of a request that name nothing."""
_CJK_USER: Final = frozenset("用户我您你他她它们的是了在这那")
_CJK_REQUEST: Final = frozenset("请把被将记住忘掉别不要删除清除抹忆备录再帮一下事件条些个吧啊了")
_NOT: Final = re.compile(
    r"\b(?:not|no|never|none|nobody|nothing|neither|nor|without|cannot|hardly|barely|rarely|seldom"
    r"|avoid\w*|stop\w*|quit\w*|wrong|false|untrue|longer|formerly|except|unless|instead)\b"
    r"|n't\b|\bused\s+to\b|[不没无非未别]",
    re.IGNORECASE,
)


def is_said(statement: str, words: str) -> bool:
    """Return True if the user said a statement: each of its words, as a stem, is one of theirs.

    "User" and pronouns stand for the user. A statement that negates and words that do not, or the
    other way round, differ.
    """
    told = (_stems(statement) - _USER_STEMS) | signs(statement) | _numbers(statement)
    if not told or bool(_NOT.search(statement)) != bool(_NOT.search(words[:_CHARS_MAX])):
        return False
    return told <= _stems(words) | signs(words[:_CHARS_MAX]) | _numbers(words[:_CHARS_MAX])


def _numbers(text: str) -> set[str]:
    """Return the numbers of a text as they are written, with their signs."""
    return set(_NUMBER.findall(normalize("NFKC", text)))


_NUMBER: Final = re.compile(r"(?<![\w.,])[-+]?\d+(?:[.,:]\d+)*%?")


def is_named(texts: Iterable[str], number: int, words: str) -> bool:
    """Return True if a request to forget is about a memory, by a word of it or by its number.

    A request that names nothing ("forget that") is about whatever the conversation was about.
    """
    asked = _stems(words) - _REQUEST_STEMS
    if not asked:
        return True
    if asked <= _stems(str(number)) or number in _named_numbers(words):
        return True
    return not asked.isdisjoint(_stems(" ".join(texts)) - _USER_STEMS)


def _named_numbers(words: str) -> set[int]:
    """Return the numbers that are said to be those of memories: "memory 3", "#3"."""
    found = (match[1] for match in _NUMBERED.finditer(_plain(words)))
    return {int(each) for numbers in found for each in re.findall(r"\d{1,15}", numbers)}


_NUMBERED: Final = re.compile(
    r"(?:\b(?:memory|memories|numbers?|nos?\.|nr\.|id|entry|item)|#|记忆|备忘|编号|第)\s?[#:]?\s?"
    r"(\d+(?:(?:, ?(?:and )?| and )\d+)*)",
    re.IGNORECASE,
)


def _stems(text: str) -> set[int | str]:
    """Return the stems of a text without stop words; of Chinese, Japanese, Korean the characters.

    Pairs of these characters, as a search has them, would differ wherever a pronoun does.
    """
    plain = normalize("NFKC", normalize("NFKC", text[:_CHARS_MAX]).casefold())
    found: set[int | str] = {char for char in plain if char >= _CJK_FROM and char.isalpha()}
    latin = "".join(" " if char >= _CJK_FROM else char for char in plain)
    found.update(term for term, _, _ in search_spans(latin, _KEY))
    return found


_USER_STEMS: Final = _stems(_USER) | _CJK_USER
_REQUEST_STEMS: Final = _stems(_REQUEST) | _CJK_REQUEST | _USER_STEMS
