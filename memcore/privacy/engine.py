"""Redaction: placeholders in the place of what a policy looks for.

One ``Redaction`` serves a database; ``for_place`` binds it to a session. What is found is replaced
until nothing more is found, so that redacting what was redacted changes nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, TypeAlias

from memcore._fast import find_sensitive
from memcore.errors import InvalidOptionError
from memcore.privacy.classes import CLASS_NAMES, canonical, mask_of
from memcore.privacy.content import redact_bytes
from memcore.privacy.placeholders import key_of_place, placeholder
from memcore.privacy.policy import (
    RedactionContext,
    RedactionPolicy,
    Span,
    compiled_patterns,
)
from memcore.privacy.walking import redact_value

__all__ = ["PlacedRedaction", "Redaction"]

Content: TypeAlias = bytes
"""A name that the method ``bytes`` does not hide."""
_PASSES_MAX: Final = 16
"""A placeholder may bring a context word nearer to a number: what is found then takes a pass more."""
_SECRET_BYTES_MIN: Final = 16


class Redaction:
    """A policy with the secret of a database.

    Args:
        policy: what is looked for.
        secret: at least 16 bytes that are not in the file; without them nobody can find out which
            value a placeholder stands for by trying values.
    """

    def __init__(self, policy: RedactionPolicy, *, secret: bytes) -> None:
        if not isinstance(secret, bytes) or len(secret) < _SECRET_BYTES_MIN:
            msg = f"secret: expected at least {_SECRET_BYTES_MIN} bytes"
            raise InvalidOptionError(msg)
        self.policy = policy
        self.policy_id = policy.policy_id
        self._secret = secret
        self._mask = mask_of(policy.sought)
        self._patterns = compiled_patterns(policy)
        self._extended = bool(self._patterns or policy.names or policy.redactors)

    def for_place(self, app: str, user: str, session: str | None) -> PlacedRedaction:
        """The redaction of one session; ``session`` None: of what a user's sessions share."""
        key = key_of_place(self._secret, app, user, session)
        return PlacedRedaction(self, RedactionContext(app, user, session), key)


class PlacedRedaction:
    """Redacts texts and values of one session; made by ``Redaction.for_place``. Has no state."""

    __slots__ = ("_context", "_extended", "_key", "_mask", "_redaction")

    def __init__(self, redaction: Redaction, context: RedactionContext, key: bytes) -> None:
        self._redaction = redaction
        self._context = context
        self._key = key
        self._mask = redaction._mask  # noqa: SLF001 - made by it
        self._extended = redaction._extended  # noqa: SLF001 - made by it

    @property
    def policy_id(self) -> str:
        """Of the policy: see ``RedactionPolicy.policy_id``."""
        return self._redaction.policy_id

    def text(self, text: str) -> str:
        """The text with placeholders; the same object if nothing was found."""
        return self.counted(text)[0]

    def counted(self, text: str) -> tuple[str, Counter[str]]:
        """``(text, found)``: as ``text``, and how often each class was found."""
        found: Counter[str] = Counter()
        return self._redact(text, 0, None, found), found

    def value(self, value: Any) -> tuple[Any, Counter[str]]:
        """``(value, found)`` of a JSON value: an item, a message, arguments, an entry of a state.

        Only the leaves change, never ids or what frameworks pair by. What was given is not changed;
        it is handed back itself if nothing was found.
        """
        found: Counter[str] = Counter()
        return redact_value(value, self._redact, found), found

    def bytes(self, content: Content) -> Content:
        """Content with placeholders: texts and JSON in any encoding that extends ASCII, and UTF-16.

        The same object if nothing was found. Binary content, with NUL bytes, stays as it is.
        """
        return self.counted_bytes(content)[0]

    def counted_bytes(self, content: Content) -> tuple[Content, Counter[str]]:
        """``(content, found)``: as ``bytes``, and how often each class was found."""
        found: Counter[str] = Counter()
        return redact_bytes(content, self._redact, found), found

    def spans(self, text: str) -> list[Span]:
        """What would be redacted in a text, in order; for reports."""
        return self._spans(text, 0, None)

    # --- one text ---------------------------------------------------------------------------------

    def _redact(self, text: str, context: int, key: str | None, found: Counter[str]) -> str:
        """``context``: the classes whose context the JSON key ``key`` gives."""
        for _ in range(_PASSES_MAX):
            spans = self._spans(text, context, key)
            if not spans:
                break
            text = self._replaced(text, spans, found)
        return text

    def _replaced(self, text: str, spans: list[Span], found: Counter[str]) -> str:
        parts, at = [], 0
        for start, stop, kind in spans:
            parts.append(text[at:start])
            parts.append(placeholder(kind.upper(), canonical(kind, text[start:stop]), self._key))
            found[kind] += 1
            at = stop
        parts.append(text[at:])
        return "".join(parts)

    def _spans(self, text: str, context: int, key: str | None) -> list[Span]:
        spans = [
            Span(start, stop, CLASS_NAMES[number])
            for start, stop, number in find_sensitive(text, self._mask, context)
        ]
        return self._joined(text, spans, key) if self._extended else spans

    def _joined(self, text: str, spans: list[Span], key: str | None) -> list[Span]:
        """With what names, patterns and redactors find; what overlaps becomes one."""
        return spans
