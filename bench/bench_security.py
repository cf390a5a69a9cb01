"""What do encryption, the audit and redaction add to an append and to reading?

All databases are open at the same time and take turns; "plain" has none of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from conversation import chat_items
from duels import LEVELS
from harness import (
    Effort,
    NotInstalled,
    Row,
    absent,
    at_most,
    compare,
    measure,
    race,
    race_each,
    scratch,
    slow_flush_place,
)

HISTORY, PAGE, ROUNDS = 1_000, 200, 40
CALLS = {"full": 10, "relaxed": 50, "none": 50}
VALUE_BYTES = 700
SEAL_US = 2.0
KEY = bytes(range(32))
PLAIN = "plain"


def _options() -> dict[str, Callable[[Path], dict[str, Any]]]:
    import memcore

    try:
        import cryptography  # noqa: F401 - the extra is there
    except ImportError as error:
        raise NotInstalled(error) from error

    def audited(_: Path) -> dict[str, Any]:
        return {"audit": memcore.Audit(key=KEY)}

    def anchored(path: Path) -> dict[str, Any]:
        anchor = path.with_suffix(".anchor")
        return {"audit": memcore.Audit(key=KEY, anchor=anchor, every_seconds=1.0)}

    return {
        PLAIN: lambda _: {},
        "encrypted": lambda _: {"key": KEY},
        "audited": audited,
        "audited, anchored every second": anchored,
        "redacted (default policy)": lambda _: {"redact": "default"},
        "all three": lambda path: {"key": KEY, "redact": "default"} | anchored(path),
    }


def rows(effort: Effort) -> Iterator[Row]:
    """Appends at each durability, on this disk and in memory; reads; what one value costs."""
    try:
        options = _options()
    except NotInstalled as error:
        yield absent("append with encryption, audit, redaction", PLAIN, error)
        return
    for level in LEVELS:
        yield from _appends(effort, options, level, None, "")
    if slow_flush_place():
        yield from _appends(effort, options, "full", slow_flush_place(), ", flushes for nothing")
    yield from _reads(effort, options)
    yield _seal(effort)


def _open(path: Path, level: str, chosen: dict[str, Any]) -> Any:
    import memcore

    return memcore.open(path, durability=level, allow_unsafe=level == "none", **chosen)


def _appends(
    effort: Effort, options: Any, level: str, parent: str | None, where: str
) -> Iterator[Row]:
    items = chat_items(effort.items(HISTORY))
    with scratch(parent) as place, ExitStack() as opened:
        sessions = []
        for number, choice in enumerate(options.values()):
            path = place / f"{number}.memcore"
            db = opened.enter_context(_open(path, level, choice(path)))
            sessions.append(db.session("s"))
        calls = CALLS[level]

        def append(session: Any, source: Iterator[Any]) -> None:
            for _ in range(calls):
                session.append(next(source))

        actions = [partial(append, session, cycle(items)) for session in sessions]
        found = race_each(actions, rounds=effort.rounds(ROUNDS), ops=calls)
    for name, side in list(zip(options, found, strict=True))[1:]:
        yield compare(f"append, {name}{where}", side, PLAIN, durability=level)


def _reads(effort: Effort, options: Any) -> Iterator[Row]:
    """Pages of a history, decoded; a context."""
    items = chat_items(effort.items(HISTORY))
    with scratch(slow_flush_place()) as place, ExitStack() as opened:
        sides = []
        chosen = [name for name in options if name in (PLAIN, "encrypted", "all three")]
        for name in chosen:
            path = place / f"{chosen.index(name)}.memcore"
            db = opened.enter_context(_open(path, "none", options[name](path)))
            session = db.session("s")
            session.extend(items)
            sides.append(session)
        for what, read in (
            (f"the last {PAGE} items", lambda session: session.tail(PAGE)),
            ("context of 8,000 tokens", lambda session: session.context(budget_tokens=8_000)),
        ):
            found = race_each([partial(read, side) for side in sides], rounds=effort.rounds(ROUNDS))
            for name, side in list(zip(chosen, found, strict=True))[1:]:
                yield compare(f"{what}, {name}", side, PLAIN, durability="none")


def _seal(effort: Effort) -> Row:
    """One value through the vault, against the cipher alone."""
    from memcore.codec import keys
    from memcore.codec.values import seal_value
    from memcore.privacy.keyring import Cipher, KeyRing, key_provider
    from memcore.store.encryption import RowCipher

    vault, cipher = RowCipher(KeyRing.create(None, key_provider(KEY))), Cipher(KEY)
    row = keys.session_row(1, 1, keys.Row.ITEM, 7)
    value, nonce = seal_value(row, os.urandom(VALUE_BYTES)), bytes(12)
    calls = 1_000

    def ours() -> None:
        for _ in range(calls):
            vault.seal(row, value)

    def theirs() -> None:
        for _ in range(calls):
            cipher.encrypt(nonce, value, row)

    measure(ours, rounds=1, ops=calls)
    return compare(
        f"sealing a value of {VALUE_BYTES} bytes",
        race(ours, theirs, rounds=effort.rounds(ROUNDS), ops=calls),
        "AES-256-GCM alone",
        target=at_most(SEAL_US, "ours"),
        note="an append seals one",
    )
