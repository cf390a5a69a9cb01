"""Roots of sessions: forks of one session are not independent, also after an export and an import.

A fork in the file leads to its parent. An import stores each fork as a session of its own, so it
notes here which ones have one root: an entry of the namespace ``ROOTS``, from a session's number
in hex to the number of another one, always a smaller one, that stands for all of them. The numbers
of sessions are never given out again, so a note may outlive them; it goes with the scope.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from memcore.codec import keys
from memcore.codec.values import open_value
from memcore.errors import CorruptValueError
from memcore.kv.rows import KvEntry, encoded, entry_of, packed_key, write_entry
from memcore.log import Head
from memcore.rows import names
from memcore.rows.head import head_key
from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "ROOTS",
    "check_roots",
    "note_roots",
    "root_after",
    "root_of",
]


ROOTS: Final = "\x00roots"
"""The namespace of the notes."""


def root_of(txn: ReadTxn, scope: int, session: int, *, parent: int | None = None) -> int:
    """Return the number of the session that stands for all forks of a session's root.

    ``parent`` is what the session's head says if it was read, 0 if it is no fork.

    Raises:
        CorruptValueError: a head or a note is damaged.
    """
    root = session if parent == 0 else _first_of(txn, scope, parent or session)
    namespace = names.namespace_of(txn, scope, ROOTS)
    while namespace is not None:
        key = _note_at(scope, namespace, root)
        value = txn.get(key)
        if value is None:
            break
        root = _noted(key, value, root)
    return root


def _noted(key: bytes, value: bytes, session: int) -> int:
    """Return the number that a note has for a session.

    Raises:
        CorruptValueError: it is damaged; the numbers shrink, so that whoever follows them ends.
    """
    noted = entry_of(key, value).value()
    if type(noted) is not int or not 0 < noted < session:
        raise CorruptValueError("the root of an imported session is damaged", key=key)
    return noted


def _first_of(txn: ReadTxn, scope: int, session: int) -> int:
    """Return the number of the session that a session was forked from in the end, in this file."""
    root, above = session, session
    while above:
        root, key = above, head_key(scope, above)
        value = txn.get(key)
        above = 0 if value is None else Head.unpack(key, value).parent_session
    return root


def note_roots(txn: Txn, scope: int, sessions: Iterable[int], now_ms: int) -> None:
    """Note that sessions have one root; those noted before keep theirs, which becomes one of all.

    Raises:
        CorruptValueError: a head or a note is damaged.
    """
    roots = sorted({root_of(txn, scope, session) for session in sessions})
    if len(roots) < 2:  # noqa: PLR2004 - they have one already
        return
    namespace = names.ensure_namespace(txn, scope, ROOTS)
    for root in roots[1:]:
        flags, payload = encoded(roots[0])
        key = _note_at(scope, namespace, root)
        write_entry(txn, key, KvEntry(flags, payload, None), now_ms, [])


def check_roots(txn: ReadTxn, scope: int) -> Iterator[str]:
    """Verify the notes of a scope; yield findings as text.

    Rows that fail their checksum are reported elsewhere.
    """
    namespace = names.namespace_of(txn, scope, ROOTS)
    if namespace is None:
        return
    rows = keys.kv_prefix(scope, namespace)
    for key, value in txn.scan(rows, keys.after(rows)):
        try:
            open_value(key, value)
        except CorruptValueError:
            continue
        named = keys.unpack_text(key[len(rows) :])
        try:
            session = int(named, 16)
            is_sound = _noted(key, value, session) > 0 and f"{session:016x}" == named
        except (ValueError, CorruptValueError):
            is_sound = False
        if not is_sound:
            yield f"the note {named!r:.40} of the root of an imported session is damaged"


def root_after(txn: Txn, scope: int, session: int, to: int, now_ms: int) -> int:
    """Return the root of what had a session as its root, once another one has replaced this.

    It is the one that replaces it, since later forks are forks of that; or, if roots were noted
    here, which others may refer to, the root as before.

    Raises:
        CorruptValueError: a head or a note is damaged.
    """
    if names.namespace_of(txn, scope, ROOTS) is None:
        return to
    note_roots(txn, scope, (session, to), now_ms)
    return root_of(txn, scope, to)


def _note_at(scope: int, namespace: int, session: int) -> bytes:
    return keys.kv_prefix(scope, namespace) + packed_key(f"{session:016x}")
