"""Bundle: a minimal, redacted reproduction of what went wrong in a session.

Equal histories give equal bytes. It names no user, session, application or file, and no owner; of
its texts, personal data and secrets are replaced, whatever the database was opened with.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from memcore.errors import NotFoundError
from memcore.log import CachedSession
from memcore.log.history import TailLedger
from memcore.model import FAILED, Item, ItemKind
from memcore.options import checked_int, checked_optional_int
from memcore.privacy import PlacedRedaction, Redaction, RedactionPolicy
from memcore.session.engine import SessionRef
from memcore.session.read import Found, collect, decoded, head_of, read_log
from memcore.store.interface import ReadTxn

__all__ = [
    "make_bundle",
]


BUNDLE_FORMAT: Final = 1
BUNDLE_BYTES_LEAST: Final = 2048
_ITEMS_MAX: Final = 64
"""So many items around the failure are shown at most, whole groups."""
_TAIL_TYPES: Final = 32
_LOOK_ITEMS: Final = 256
"""So far from the end a failure is looked for."""
_CLIPS: Final = (4000, 1000, 250, 60, 16)
"""How much of a text is left, from the first that fits the limit."""
_NAME_CHARS_LEAST: Final = 3
"""Shorter names of users and sessions are parts of words."""
_PLACES: Final = re.compile(
    r"(?<![\w/])(?:~|/(?:home|Users|root|tmp|var|opt|etc|mnt|srv|usr|private|data|work|app))"
    r"(?:/[^\s/'\"<>:|*?,;()]+)+|\b[A-Za-z]:\\[^\s'\"<>|*?]+"
)
_PLACE: Final = "[PATH]"
_NAME: Final = "[NAME]"
_IDS: Final = frozenset(
    ("id", "call_id", "tool_call_id", "tool_use_id", "approval_request_id", "type", "role", "name")
)
_ID_CHARS: Final = 128
_MEDIA: Final = frozenset(
    (
        *("data", "file_data", "image_url", "url", "signature", "thought_signature"),
        *("thoughtSignature", "encrypted_content"),
    )
)
"""What is large, or says where something lies, and helps nobody to understand a failure."""


def make_bundle(
    ref: SessionRef,
    *,
    seq: int | None,
    most_bytes: int,
    policy: RedactionPolicy | None,
) -> bytes:
    """The bundle of a session as JSON.

    Raises:
        NotFoundError: there is no session, or no live item ``seq``.
        InvalidOptionError: ``most_bytes`` is below 2,048.
        CorruptValueError: an item of it is damaged.
    """
    checked_optional_int("seq", seq, least=1)
    checked_int("most_bytes", most_bytes, least=BUNDLE_BYTES_LEAST)

    found = read_log(ref, _collect, None, seq)
    if found is None:
        msg = f"there is no session {ref.name!r}"
        raise NotFoundError(msg)
    facts, rows, tail, failed = found
    items = decoded(rows)
    last = decoded(tail, skip_corrupt=True)[-_TAIL_TYPES:]
    types = [item.type for item in last]
    clean = _Clean(ref, policy)
    base = {
        "bundle": BUNDLE_FORMAT,
        "versions": {
            "memcore": sys.modules["memcore"].__version__,
            "python": platform.python_version(),
        },
        "session": facts,
        "failed": failed,
        "redaction": clean.policy_id,
        "types": [clean.text(each) for each in types],
    }
    return _fitted(base, items, failed, clean, most_bytes)


def _collect(
    log: CachedSession, txn: ReadTxn, seq: int | None
) -> tuple[dict[str, Any], list[Found], list[Found], int]:
    """Collect the facts of a session, the slice, the last items, and where the failure is."""
    count = log.history.count
    tail = collect(log, txn, max(count - _LOOK_ITEMS, 0), count)
    at = _failure(decoded(tail, skip_corrupt=True), seq, log)
    head = head_of(log)
    start, stop = _slice(log.full(txn, head), at, count)
    facts = {
        "policy": head.policy,
        "counter": head.counter,
        "items": count,
        "tokens": head.tokens,
        "open_calls": head.open_calls,
        "views": head.next_view - 1,
    }
    return facts, collect(log, txn, start, stop), tail, at - start


def _failure(tail: list[Item], seq: int | None, log: CachedSession) -> int:
    """The position of the item that the bundle is about: the last failure, else the last item."""
    history = log.history
    if seq is not None:
        position = history.position_of(seq)
        if position is None:
            msg = f"the session has no live item {seq}"
            raise NotFoundError(msg)
        return position
    for item in reversed(tail):
        told = item.envelope
        failed = told is not None and told.status in FAILED
        if failed or item.type in ("error", "hitl"):
            return history.position_of(item.seq) or 0
    return max(history.count - 1, 0)


def _slice(recent: TailLedger, at: int, count: int) -> tuple[int, int]:
    """``start, stop`` around a position: between two safe cuts, at a place a context may start."""
    ledger = recent.ledger
    cuts = [*ledger.safe_cuts(), count]
    stop = cuts[bisect_right(cuts, at)] if count else 0
    starts = ledger.safe_cuts(starts=True)
    before = bisect_right(starts, at)
    start = starts[before - 1] if before else 0
    if stop - start > _ITEMS_MAX:
        inner = bisect_right(cuts, at)
        start = cuts[inner - 1] if inner else 0
    return start, stop


class _Clean:
    """Takes out of values what a bundle must not hold."""

    def __init__(self, ref: SessionRef, policy: RedactionPolicy | None) -> None:
        names = (ref.user, ref.name, ref.app, ref.engine.store.path)
        own = {name for name in names if len(name) >= _NAME_CHARS_LEAST and name != "default"}
        given = policy or RedactionPolicy()
        self._own = sorted(own, key=lambda name: (-len(name), name))
        store = ref.engine.store
        secret = store.secret.found() or store.seed
        placed = Redaction(given, secret=secret).for_place(ref.app, ref.user, ref.name)
        self._placed: PlacedRedaction = placed
        self.policy_id = placed.policy_id

    def text(self, text: str) -> str:
        """A text without personal data, names and paths."""
        return self._nameless(self._placed.text(text))

    def value(self, value: Any, clip: int) -> Any:
        """A JSON value with texts of at most so many characters; ids stay, so pairs stay pairs."""
        return self._walk(self._placed.value(value)[0], "", clip)

    def _nameless(self, text: str) -> str:
        for name in self._own:
            if name in text:
                text = text.replace(name, _NAME)
        return _PLACES.sub(_PLACE, text)

    def _walk(self, value: Any, key: str, clip: int) -> Any:
        if isinstance(value, str):
            return self._leaf(value, key, clip)
        if isinstance(value, list | tuple):
            return [self._walk(entry, key, clip) for entry in value]
        if not isinstance(value, Mapping):
            return value
        found = {
            str(self._leaf(self._placed.text(name), "", clip)): self._walk(entry, name, clip)
            for name, entry in value.items()
        }
        if found.get("role") == "user" and isinstance(found.get("name"), str):
            found["name"] = _NAME
        return found

    def _leaf(self, text: str, key: str, clip: int) -> str:
        if key in _MEDIA or text.startswith("data:"):
            return f"[{len(text):,} characters left out]"
        if key == "arguments":
            with suppress(ValueError, RecursionError):
                inner = json.loads(text)
                if isinstance(inner, dict | list):
                    return json.dumps(self._walk(inner, "", clip), ensure_ascii=False)
        most = max(clip, _ID_CHARS) if key in _IDS else clip
        return _clipped(self._nameless(text), most)


def _clipped(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}[…{len(text) - most // 2 * 2:,}…]{text[-(most // 2) :]}"


def _fitted(
    base: dict[str, Any], items: list[Item], failed: int, clean: _Clean, most_bytes: int
) -> bytes:
    """The bundle with as much text as the limit allows."""
    for clip in _CLIPS:
        shown = [_shown(item, clean, clip) for item in items]
        packed = _packed({**base, "slice": shown})
        if len(packed) <= most_bytes:
            return packed
    # Not even so: say of which types they are, and show the one that failed.
    shown = [{"seq": item.seq, "type": clean.text(item.type)} for item in items]
    for kept in (shown, shown[failed : failed + 1], []):
        packed = _packed({**base, "slice": kept, "left_out": len(items) - len(kept)})
        if len(packed) <= most_bytes:
            return packed
    return _packed({**base, "types": [], "slice": [], "left_out": len(items)})


def _shown(item: Item, clean: _Clean, clip: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "seq": item.seq,
        "kind": ItemKind(item.kind).name.lower(),
        "type": clean.text(item.type),
        "tokens": item.tokens,
        "item": clean.value(item.message, clip),
    }
    if item.envelope is not None:
        told = item.envelope.mapping()
        told.pop("owner", None)
        found["envelope"] = clean.value(told, clip)
    if item.meta is not None:
        found["meta"] = clean.value(dict(item.meta), clip)
    return found


def _packed(value: dict[str, Any]) -> bytes:
    text = json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return text.encode("ascii")
