"""Redaction: placeholders in the place of what a policy looks for.

One ``Redaction`` serves a database; ``for_place`` binds it to a session. What is found is replaced
until nothing more is found, so that redacting what was redacted changes nothing.
"""

from __future__ import annotations

import logging
import secrets
import traceback
from collections import Counter
from dataclasses import replace
from typing import Any, Final, TypeAlias

from memcore._fast import Literals, find_sensitive, holds_sensitive
from memcore.errors import InvalidOptionError
from memcore.privacy.cipher import uncopied
from memcore.privacy.classes import CLASS_NAMES, ID_CONTEXT, NUMBERS, canonical, mask_of
from memcore.privacy.content import redact_bytes
from memcore.privacy.embedded import redact_text
from memcore.privacy.placeholders import key_of_place, placeholder, recognised
from memcore.privacy.policy import RedactionPolicy, compiled_patterns, redaction_policy
from memcore.privacy.spans import NAME_CLASS, RedactionContext, Span, spans_of, united
from memcore.privacy.walking import Walk

__all__ = ["PlacedRedaction", "RedactingFilter", "Redaction"]

Content: TypeAlias = bytes
"""A name that the method ``bytes`` does not hide."""
_PASSES_MAX: Final = 16
"""A placeholder may bring a word nearer to a number: what is found then takes a pass more."""
_SECRET_BYTES_MIN: Final = 16


class Redaction:
    """A policy with the secret of a database.

    Args:
        policy: what is looked for.
        secret: at least 16 bytes that are not in the file; without them nobody can find out which
            value a placeholder stands for by trying values.
    """

    __reduce_ex__ = uncopied

    def __init__(self, policy: RedactionPolicy, *, secret: bytes) -> None:
        if not isinstance(secret, bytes) or len(secret) < _SECRET_BYTES_MIN:
            msg = f"secret: expected at least {_SECRET_BYTES_MIN} bytes"
            raise InvalidOptionError(msg)
        self.policy = policy
        self.policy_id = policy.policy_id
        self._secret = secret
        self._mask = mask_of(policy.sought)
        self._patterns = compiled_patterns(policy)
        names = list(policy.names)
        self._names = Literals(names, ignore_case=policy.names_ignore_case) if names else None
        self._placeholders = recognised(policy.templates)
        self._extended = bool(
            self._patterns or policy.names or policy.redactors or policy.templates
        )

    def extended_spans(
        self, text: str, hits: list[tuple[int, int, int]], context: RedactionContext
    ) -> list[Span]:
        """The spans of the scanner with those of names, patterns and redactors."""
        spans = [Span(start, stop, CLASS_NAMES[number]) for start, stop, number in hits]
        if self._names is not None:
            spans += [Span(start, stop, NAME_CLASS) for start, stop in self._names.find(text)]
        for kind, pattern in self._patterns:
            spans += [Span(m.start(), m.end(), kind) for m in pattern.finditer(text)]
        for redactor in self.policy.redactors:
            spans += spans_of(redactor, text, context)
        return united(spans, text, self._placeholders)

    def for_place(self, app: str, user: str, session: str | None) -> PlacedRedaction:
        """The redaction of one session; ``session`` None: of what a user's sessions share."""
        key = key_of_place(self._secret, app, user, session)
        return PlacedRedaction(self, RedactionContext(app, user, session), key)


class PlacedRedaction:
    """Redacts texts and values of one session; made by ``Redaction.for_place``. Has no state."""

    __slots__ = ("_context", "_extended", "_id_mask", "_key", "_mask", "_redaction", "_walk")
    __reduce_ex__ = uncopied

    def __init__(self, redaction: Redaction, context: RedactionContext, key: bytes) -> None:
        self._redaction = redaction
        self._context = context
        self._key = key
        self._mask = redaction._mask  # noqa: SLF001 - made by it
        self._id_mask = self._mask & ~mask_of(NUMBERS)
        self._extended = redaction._extended  # noqa: SLF001 - made by it
        self._walk = Walk(self._redact, self._suspects, own=self._extended)

    @property
    def policy_id(self) -> str:
        """Of the policy: see ``RedactionPolicy.policy_id``."""
        return self._redaction.policy_id

    def text(self, text: str) -> str:
        """The text with placeholders; the same object if nothing was found. JSON stays JSON."""
        if not self._extended and not holds_sensitive(text, self._mask):
            return text
        return redact_text(self._walk, text, Counter())

    def counted(self, text: str) -> tuple[str, Counter[str]]:
        """``(text, found)``: as ``text``, and how often each class was found."""
        found: Counter[str] = Counter()
        return redact_text(self._walk, text, found), found

    def value(self, value: Any) -> tuple[Any, Counter[str]]:
        """``(value, found)`` of a JSON value: an item, a message, arguments, an entry of a state.

        Only the leaves change, and keys that are values themselves; never ids or what frameworks
        pair by. What was given is not changed; it is handed back itself if nothing was found.

        Raises:
            InvalidItemError: the value is nested deeper than 512 levels, or circular.
        """
        found: Counter[str] = Counter()
        if not self._extended and not holds_sensitive(value, self._mask):
            return value, found
        return self._walk.value(value, found), found

    def bytes(self, content: Content) -> Content:
        """Content with placeholders: texts and JSON in any encoding that extends ASCII, and UTF-16.

        The same object if nothing was found. Binary content, with NUL bytes, stays as it is.
        """
        return self.counted_bytes(content)[0]

    def counted_bytes(self, content: Content) -> tuple[Content, Counter[str]]:
        """``(content, found)``: as ``bytes``, and how often each class was found."""
        found: Counter[str] = Counter()
        return redact_bytes(self._walk, content, found), found

    def spans(self, text: str) -> list[Span]:
        """What would be redacted in a text, in order; for reports."""
        return self._spans(text, 0, None)

    # --- one text ---------------------------------------------------------------------------------

    def _redact(self, text: str, context: int, key: str | None, found: Counter[str]) -> str:
        """``context``: the classes whose context the JSON key ``key`` gives."""
        if type(text) is not str:
            made = self._redact(str.__str__(text), context, key, found)
            return text if made == text else made
        for _ in range(_PASSES_MAX):
            spans = self._spans(text, context, key)
            if not spans:
                break
            text = self._replaced(text, spans, found)
        return text

    def _suspects(self, text: str) -> bool:
        return self._extended or bool(find_sensitive(text, self._mask))

    def _replaced(self, text: str, spans: list[Span], found: Counter[str]) -> str:
        parts, at = [], 0
        templates = self._redaction.policy.templates
        for start, stop, kind in spans:
            parts.append(text[at:start])
            value = canonical(kind, text[start:stop])
            template = templates.get(kind, templates.get("*"))
            parts.append(placeholder(kind.upper(), value, self._key, template))
            found[kind] += 1
            at = stop
        parts.append(text[at:])
        return "".join(parts)

    def _spans(self, text: str, context: int, key: str | None) -> list[Span]:
        if context == ID_CONTEXT:
            hits = find_sensitive(text, self._id_mask, 0)
        else:
            hits = find_sensitive(text, self._mask, context)
            if self._extended:
                return self._redaction.extended_spans(text, hits, replace(self._context, key=key))
        return [Span(start, stop, CLASS_NAMES[number]) for start, stop, number in hits]


_RECORD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
"""What every record has: all else was given as ``extra``."""


class RedactingFilter(logging.Filter):
    """Puts placeholders into log records: messages, tracebacks and what is given as ``extra``.

    Add it to handlers: a logger's filters see nothing of what its children log. A record that
    cannot be redacted passes without its text, which would be worse than a line that says so.

    Args:
        redact: the policy: as ``memcore.open`` takes it.
        secret: what placeholders are made with; None: one of this filter's own, so that they are
            the same for the same value in this process. ``Database.log_filter`` has the file's.

    Raises:
        InvalidOptionError: ``redact`` is no policy.
    """

    def __init__(self, redact: Any = "default", *, secret: bytes | None = None) -> None:
        super().__init__()
        policy = redaction_policy(redact)
        if policy is None:
            msg = "redact: expected a policy that looks for something"
            raise InvalidOptionError(msg)
        made = Redaction(policy, secret=secrets.token_bytes(32) if secret is None else secret)
        self._redacts = made.for_place("", "", None)

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact the record in its place; always True: none is left out."""
        try:
            self._redact(record)
        except Exception as exc:  # noqa: BLE001 - a filter that raises would end whoever logs
            record.msg = f"[a log record could not be redacted: {type(exc).__name__}]"
            record.exc_text = record.stack_info = None
            for name in vars(record).keys() - _RECORD:
                delattr(record, name)
        record.args = record.exc_info = None
        return True

    def _redact(self, record: logging.LogRecord) -> None:
        redacts = self._redacts
        record.msg = redacts.text(record.getMessage())
        if record.exc_info and not record.exc_text:
            record.exc_text = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
        if record.exc_text:
            record.exc_text = redacts.text(record.exc_text)
        if record.stack_info:
            record.stack_info = redacts.text(record.stack_info)
        for name in vars(record).keys() - _RECORD:
            value = getattr(record, name)
            plain = isinstance(value, str | int | float | bool | dict | list | tuple | None)
            told = value if plain else str(value)
            setattr(record, name, redacts.value({name: told})[0][name])
