"""Redaction of messages and values: findings replaced by placeholders.

One ``Redaction`` serves a database; ``for_place`` binds it to a session. Redaction repeats until
nothing more is found, so it is idempotent.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from math import isfinite
from typing import Any, Final, Protocol, TypeAlias

import orjson

from memcore._fast import Literals, find_sensitive, holds_sensitive, key_context
from memcore.errors import InvalidItemError, InvalidOptionError, uncopied
from memcore.privacy.policy import (
    CLASS_NAMES,
    CLASSES,
    CODE_CONTEXT,
    ID_CONTEXT,
    NAME_CLASS,
    NUMBERS,
    PLACEHOLDER,
    RedactionContext,
    RedactionPolicy,
    Span,
    canonical,
    compiled_patterns,
    key_of_place,
    mask_of,
    placeholder,
    recognised,
    redaction_policy,
    spans_of,
    united,
)

__all__ = [
    "ALWAYS_IDS",
    "DATA_KEYS",
    "ID_KEYS",
    "INHERITING_KEYS",
    "Handling",
    "PlacedRedaction",
    "RedactingFilter",
    "Redaction",
    "ValueWalk",
    "decoded_text",
    "encoded_text",
    "inherited",
    "is_envelope",
    "is_media",
    "is_protected",
    "is_structure",
    "looks_like_id",
    "redact_bytes",
    "redact_text",
]


# --- Texts that may be JSON: call arguments, tool results, files ----------------------------------
# JSON is redacted leaf by leaf and never in its serialised form, which would break it and miss
# escaped values. It is serialised again only if something was found.

_INDENT: Final = re.compile(r"[\[{]\r?\n([ \t]+)")
_DATA_URL: Final = re.compile(r"data:[\w.+/=;-]{0,120};base64,[A-Za-z0-9+/=_-]*\s*", re.ASCII)
_PAIRS: Final = {"{": "}", "[": "]"}


class Handling(Protocol):
    """Redaction of texts and values; see ``memcore.privacy.redact``."""

    def plain(self, text: str, context: int, key: str | None, found: Counter[str]) -> str:
        """Redact a plain text."""
        ...

    def value(self, value: Any, found: Counter[str], *, inside: bool = False) -> Any:
        """Redact a JSON value."""
        ...

    def suspects(self, text: str) -> bool:
        """Return True if a text may have findings."""
        ...


def redact_text(
    how: Handling, text: str, found: Counter[str], *, context: int = 0, key: str | None = None
) -> str:
    """Redact a text; return the same object if nothing was found."""
    first = text[:1]
    if first == "d" and text.startswith("data:") and _DATA_URL.fullmatch(text):
        return text
    if first in _PAIRS or first.isspace():
        made = _redacted_json(how, text, found)
        if made is not None:
            return made
    return how.plain(text, context, key, found)


class _Counts(Counter[str]):
    """Counts of findings, and results for the JSON texts that were already walked.

    Each text is walked twice. Without ``known``, nested JSON would be walked twice as often with
    each level of nesting.
    """

    def __init__(self, known: dict[str, tuple[str | None, Counter[str]]]) -> None:
        super().__init__()
        self.known = known


def _redacted_json(how: Handling, text: str, found: Counter[str]) -> str | None:
    """Redact a text that is a JSON object or array, like ``redact_text``; None if it is neither."""
    known = found.known if isinstance(found, _Counts) else {}
    if text in known:
        made, counts = known[text]
        found.update(counts)
        return text if made is None else made  # None: nothing was found
    bare = text.strip()
    if not bare or _PAIRS.get(bare[0]) != bare[-1]:
        return None
    value = _loaded(bare)
    if value is None:
        return _redacted_lines(how, text, found) if "\n" in bare else None
    counts = _Counts(known)
    result = text
    try:
        if how.value(value, _Counts(known), inside=True) is not value or how.suspects(text):
            # Again without loss: big integers are kept exactly, and duplicate keys are refused.
            value = json.loads(bare, object_pairs_hook=_once, parse_float=_finite)
            redacted = how.value(value, counts, inside=True)
            if redacted is not value:
                result = text.replace(bare, _dumped(redacted, bare), 1)
    except (ValueError, RecursionError):
        return None
    known[text] = None if result is text else result, Counter(counts)
    found.update(counts)
    return result


def _redacted_lines(how: Handling, text: str, found: Counter[str]) -> str | None:
    """Redact a text of JSON lines, like ``redact_text``; None if the first line is not JSON."""
    lines = text.splitlines(keepends=True)
    if _loaded(lines[0].strip()) is None:
        return None
    made = [redact_text(how, line, found) for line in lines]
    return text if all(a is b for a, b in zip(made, lines, strict=True)) else "".join(made)


def _loaded(text: str) -> Any:
    """Parse a JSON object or array; return None for anything else."""
    try:
        value = orjson.loads(text)
    except ValueError:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict | list) else None


_ENDLESS: Final = secrets.token_hex(8)
_ENDLESS_IN_JSON: Final = re.compile(rf'"{_ENDLESS}(-?[0-9.eE+-]+)"')


def _finite(text: str) -> float | str:
    """Parse a number; one outside float range becomes a marked text, which ``_dumped`` restores."""
    number = float(text)
    return number if isfinite(number) else _ENDLESS + text


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object; one with duplicate keys hides values, so it is treated as plain text."""
    made = dict(pairs)
    if len(made) < len(pairs):
        msg = "the same key twice"
        raise ValueError(msg)
    return made


def _dumped(value: Any, like: str) -> str:
    """Serialise JSON in the style of ``like``: its spacing, indentation and escapes."""
    indent = _INDENT.match(like)
    spaced = '": ' in like or ('":' not in like and ", " in like)
    made = json.dumps(
        value,
        ensure_ascii=like.isascii(),
        indent=indent[1] if indent else None,
        separators=("," if indent or not spaced else ", ", ": " if spaced else ":"),
    )
    return _ENDLESS_IN_JSON.sub(r"\1", made) if _ENDLESS in made else made


# --- Bytes: texts and JSON in any encoding; binary content is left alone --------------------------

_ENCODINGS: Final = ("utf-8", "gb18030", "latin-1")
"""Tried in this order; any encoding that extends ASCII exposes everything written in ASCII."""
_BOMS: Final = ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))


def redact_bytes(
    how: Handling, content: bytes, found: Counter[str], under: str | None = None
) -> bytes:
    """Redact content in its own encoding; return the same object if nothing was found."""
    decoded = decoded_text(content)
    if decoded is None:
        return content
    if under is None:
        redacted = redact_text(how, decoded[0], found)
    else:
        (redacted,) = how.value({under: decoded[0]}, found).values()
    return content if redacted is decoded[0] else encoded_text(redacted, decoded)


def encoded_text(text: str, decoded: tuple[str, str] | None) -> bytes:
    """Encode a redacted text in the encoding that ``decoded_text`` found.

    Characters of a custom placeholder that the encoding lacks are written as escapes.
    """
    return text.encode("utf-8" if decoded is None else decoded[1], "backslashreplace")


def decoded_text(content: bytes) -> tuple[str, str] | None:
    """Return the text and its encoding, or None for content that is not text."""
    for mark, encoding in _BOMS:
        if content.startswith(mark):
            return _round_trip(content, encoding)
    if b"\x00" in content:
        return None
    for encoding in _ENCODINGS:
        decoded = _round_trip(content, encoding)
        if decoded is not None:
            return decoded
    return None


def _round_trip(content: bytes, encoding: str) -> tuple[str, str] | None:
    try:
        text = content.decode(encoding)
        return (text, encoding) if text.encode(encoding) == content else None
    except UnicodeError:
        return None


# --- Protected entries, by which frameworks and providers pair, route and verify ------------------

ALWAYS_IDS: Final = frozenset(
    ("tool_call_id", "tool_use_id", "call_id", "toolCallId", "toolUseId", "callId")
)
"""Call ids, wherever they occur."""
ID_KEYS: Final = frozenset(("id", "_id", "uuid", "UUID"))
"""Ids in arguments, results and states: a number there is not a phone number."""
_IDS: Final = ALWAYS_IDS | frozenset(
    (
        "id", "response_id", "previous_response_id", "responseId", "item_id", "message_id",
        "request_id", "run_id", "thread_id", "checkpoint_id", "conversation_id", "event_id",
        "invocation_id", "invocationId", "interaction_id", "approval_request_id", "container_id",
        "file_id", "vector_store_id", "parent_id", "trace_id", "span_id", "user_id", "session_id",
        "long_running_tool_ids", "longRunningToolIds", "caller", "uuid", "server_label",
    )
)  # fmt: skip
_STRUCTURE: Final = frozenset(
    (
        "type", "role", "name", "object", "status", "model", "phase", "finish_reason",
        "finishReason", "stop_reason", "media_type", "mime_type", "mimeType", "namespace", "author",
        "branch", "detail", "lc",
    )
)  # fmt: skip
_SEALED: Final = frozenset(
    (
        "signature", "thought_signature", "thoughtSignature", "encrypted_content", "fingerprint",
        "system_fingerprint", "encrypted_index", "encrypted_stdout", "pending_safety_checks",
        "acknowledged_safety_checks",
    )
)  # fmt: skip
_ROLES: Final = frozenset(
    ("user", "assistant", "system", "developer", "tool", "function", "model", "human", "ai")
)
_TYPES: Final = frozenset(
    (
        "text", "message", "function", "human", "ai", "system", "tool", "constructor", "custom",
        "reasoning", "thinking", "redacted_thinking", "refusal", "image", "audio", "video", "file",
        "document", "image_url", "input_audio", "base64", "url", "content", "summary", "compaction",
        "item_reference", "remove", "AIMessageChunk", "HumanMessageChunk", "ToolMessageChunk",
        "chat", "non_standard", "citation", "ephemeral", "search_result", "json", "object",
    )
)  # fmt: skip
_TYPE_ENDS: Final = (
    "_call", "_output", "_result", "_use", "_text", "_image", "_file", "_request", "_response",
    "_chunk", "_block", "_tools", "_location", "_citation", "_screenshot", "_error", "_call_chunk",
)  # fmt: skip
DATA_KEYS: Final = frozenset(
    (
        "arguments", "input", "args", "response", "output", "result", "state_delta", "stateDelta",
        "artifact", "structured_content", "structuredContent",
    )
)  # fmt: skip
"""Keys of messages under which any key may occur."""
INHERITING_KEYS: Final = frozenset(
    ("number", "value", "no", "num", "digits", "raw", "formatted", "text", "default")
)
"""Generic keys: the context of their values is that of the enclosing key."""
_MARKS: Final = frozenset(
    (
        "parts", "tool_calls", "toolCalls", "function", "functionCall", "function_call",
        "functionResponse", "function_response", "tool_call_id", "call_id", "invocation_id",
        "invocationId", "thought_signature", "thoughtSignature", "inline_data", "inlineData",
    )
)  # fmt: skip
_MEDIA_KEYS: Final = frozenset(("data", "result", "b64_json", "image_base64"))
_ID_CHARS_MAX: Final = 512
_MEDIA_CHARS_MIN: Final = 32
_BASE64: Final = re.compile(r"[A-Za-z0-9+/=_\-\s]*", re.ASCII)


def is_envelope(value: Mapping[Any, Any]) -> bool:
    """Return True if a dict is a message, a block of one or a call, with a fixed structure."""
    role, sort = value.get("role"), value.get("type")
    if isinstance(role, str) and role in _ROLES:
        return True
    if isinstance(sort, str) and (sort in _TYPES or sort.endswith(_TYPE_ENDS)):
        return True
    if isinstance(value.get("name"), str) and ("args" in value or "arguments" in value):
        return True
    return not _MARKS.isdisjoint(value)


def is_structure(key: str, entry: Any) -> bool:
    """Return True if an entry of a message or block is structural: only secrets are replaced."""
    return key in _STRUCTURE and looks_like_id(entry)


def is_protected(key: str, entry: Any) -> bool:
    """Return True if an entry of a message or block is never changed."""
    if key in _SEALED:
        return True
    return key in _IDS and not isinstance(entry, dict)


def is_media(block: Mapping[Any, Any], key: str) -> bool:
    """Return True if an entry is base64 media, or was encrypted by a provider."""
    if key not in _MEDIA_KEYS:
        return False
    entry = block[key]
    if not isinstance(entry, str) or len(entry) < _MEDIA_CHARS_MIN or not _BASE64.fullmatch(entry):
        return False
    if key == "data":
        return (
            block.get("type") in ("base64", "redacted_thinking")
            or "mime_type" in block
            or "mimeType" in block
            or isinstance(block.get("format"), str)
        )
    if key == "result":
        return block.get("type") == "image_generation_call"
    return True


def looks_like_id(value: Any) -> bool:
    """Return True if a value may be a call id: an integer, or one short word without an @."""
    if not isinstance(value, str):
        return isinstance(value, int)
    return len(value) <= _ID_CHARS_MAX and "@" not in value and not any(map(str.isspace, value))


# --- JSON values: leaves are redacted, except the ones that frameworks pair by --------------------
# A value is walked without recursion. Parts in which nothing was found are returned as the same
# object. Inside messages and their blocks, ids, types, roles and tool names stay; inside call
# arguments, results and states, where any key may occur, only call ids do.

Redact = Callable[[str, int, str | None, Counter[str]], str]
"""Redacts one text: ``(text, context, key, found)``."""

_DEPTH_MAX: Final = 520
"""Stored values are nested at most 512 levels deep; the rest is for enclosing levels."""
_KEY_CHARS_MAX: Final = 128
_FIELD_CHARS_MAX: Final = 19
_NUMBER_LEAST: Final = 1_000
_ID_LEAST: Final = 10**17
_NUMBERS: Final = CODE_CONTEXT | sum(
    1 << CLASSES[name] for name in ("cn_mobile", "phone", "student_id", "card", "password")
)


@lru_cache(maxsize=2048)
def _context_of(key: str) -> int:
    """Return the context that a key gives; the name of a class in a placeholder gives none."""
    return key_context(PLACEHOLDER.sub(" ", key) if "[" in key else key)


class _Frame:
    """One container on the path being walked."""

    __slots__ = ("changed", "context", "entries", "inside", "key", "place", "sort", "source")

    def __init__(
        self, source: Any, place: Any, key: str | None, context: int, *, inside: bool
    ) -> None:
        self.source = source
        self.place = place
        """Its position in the enclosing container."""
        self.key = key
        self.context = context
        self.inside = inside
        """True where keys are free: arguments, results, states."""
        self.changed: Any = None
        self.sort = 0
        if not isinstance(source, dict):
            self.entries: Iterator[tuple[Any, Any]] = iter(enumerate(source))
            return
        self.sort = _DATA if inside or not is_envelope(source) else _ENVELOPE
        self.entries = iter(source.items())


_DATA: Final = 1
_ENVELOPE: Final = 2


class ValueWalk:
    """Walks values for one redaction.

    Args:
        redact: redacts one plain text.
        suspects: returns True if a text may have findings.
        own: names, patterns or redactors of the caller are in use: then any key may be a value.
    """

    __slots__ = ("_own", "plain", "suspects")

    def __init__(self, redact: Redact, suspects: Callable[[str], bool], *, own: bool) -> None:
        self.plain = redact
        self.suspects = suspects
        self._own = own

    def value(self, value: Any, found: Counter[str], *, inside: bool = False) -> Any:
        """Redact a value; return the same object if nothing was found.

        Raises:
            InvalidItemError: it is nested deeper than 520 levels, or circular.
        """
        if not isinstance(value, dict | list | tuple):
            return self._leaf(value, None, 0, found)
        stack = [_Frame(value, None, None, 0, inside=inside)]
        while True:
            frame = stack[-1]
            below = self._advance(frame, found)
            if below is not None:
                if len(stack) >= _DEPTH_MAX:
                    msg = (
                        f"a value to redact is nested deeper than {_DEPTH_MAX} levels, or circular"
                    )
                    raise InvalidItemError(msg)
                stack.append(below)
                continue
            stack.pop()
            made = frame.source if frame.changed is None else frame.changed
            if frame.sort:
                made = self._with_keys(made, found, own=self._own and frame.sort == _DATA)
            if not stack:
                return made
            if made is not frame.source:
                _put(stack[-1], frame.place, made)

    def _advance(self, frame: _Frame, found: Counter[str]) -> _Frame | None:
        """Redact leaves up to the next container and return it; None at the end."""
        for place, entry in frame.entries:
            key, context = frame.key, frame.context
            inside = frame.inside
            if frame.sort:
                said = _said(frame, place, entry)
                if said is None:
                    continue
                key, context = place, said
                if frame.sort == _ENVELOPE:
                    inside = inside or (place in DATA_KEYS and isinstance(entry, dict))
            if isinstance(entry, dict | list | tuple):
                if entry:
                    return _Frame(entry, place, key, context, inside=inside)
                continue
            made = self._leaf(entry, key, context, found)
            if made is not entry:
                _put(frame, place, made)
        return None

    def _leaf(self, value: Any, key: str | None, context: int, found: Counter[str]) -> Any:
        if isinstance(value, str):
            return redact_text(self, value, found, context=context, key=key) if value else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        if context == ID_CONTEXT or not _NUMBER_LEAST <= value < 10**24:
            return value
        if isinstance(value, float) and not value.is_integer():
            return value
        if context & _NUMBERS or value >= _ID_LEAST:
            scratch: Counter[str] = Counter()
            made = self.plain(str(int(value)), context, key, scratch)
            if PLACEHOLDER.fullmatch(made):
                found.update(scratch)
                return made
        return value

    def _with_keys(self, value: Any, found: Counter[str], *, own: bool) -> Any:
        """Return a dict whose keys are redacted too, in the same order; no entry is lost.

        With ``own`` plain keys are included, since the caller's names and patterns may match them.
        """
        changed: dict[str, str] = {}
        for key in value:
            if isinstance(key, str) and (own or not _is_field(key)):
                made = self.plain(key, 0, None, found)
                if made is not key:
                    changed[key] = made
        if not changed:
            return value
        taken = set(value) - set(changed)
        more: Counter[str] = Counter()  # spellings of one value continue its numbering
        for key, made in changed.items():
            name = made
            while name in taken:
                more[made] += 1
                name = f"{made}_{more[made] + 1}"
            taken.add(name)
            changed[key] = name
        return {changed.get(key, key): entry for key, entry in value.items()}


def _said(frame: _Frame, key: Any, entry: Any) -> int | None:
    """Return the context that a key gives an entry; None: the entry is left unchanged."""
    if not isinstance(key, str):
        return None
    if frame.sort == _ENVELOPE:
        if is_structure(key, entry):
            return ID_CONTEXT
        if is_protected(key, entry) or is_media(frame.source, key):
            return None
    elif key in ALWAYS_IDS and looks_like_id(entry):
        return None
    elif key in ID_KEYS:
        return ID_CONTEXT
    context = _context_of(key) if len(key) <= _KEY_CHARS_MAX else 0
    return frame.context if not context and key in INHERITING_KEYS else context


def inherited(around: str | None, key: str) -> str:
    """Return the key that describes an entry: its own, or if generic, the enclosing one."""
    says_nothing = key in INHERITING_KEYS and not _context_of(key)
    return around if says_nothing and around is not None else key


def _is_field(key: str) -> bool:
    """Return True if a key is too short and plain to be a value of a built-in class."""
    return len(key) <= _FIELD_CHARS_MAX and key.isascii() and key.isidentifier()


def _put(frame: _Frame, place: Any, made: Any) -> None:
    """Replace an entry in a copy of the container, made on the first change."""
    if frame.changed is None:
        frame.changed = dict(frame.source) if frame.sort else list(frame.source)
    frame.changed[place] = made


# --- Redaction: placeholders in place of what a policy matches ------------------------------------

Content: TypeAlias = bytes
"""Alias that is not shadowed by the method ``bytes``."""
_PASSES_MAX: Final = 16
"""A placeholder may bring a word closer to a number; what that exposes takes another pass."""
_SECRET_BYTES_MIN: Final = 16


class Redaction:
    """A policy with the secret of a database.

    Args:
        policy: what to look for.
        secret: at least 16 bytes that are not in the file; without them nobody can find the value
            of a placeholder by trial.
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

    @property
    def scanned(self) -> int | None:
        """Classes that the scanner looks for; None if names, patterns or redactors are sought."""
        return None if self._extended else self._mask

    def extended_spans(
        self, text: str, hits: list[tuple[int, int, int]], context: RedactionContext
    ) -> list[Span]:
        """Merge the scanner's spans with those of names, patterns and redactors."""
        spans = [Span(start, stop, CLASS_NAMES[number]) for start, stop, number in hits]
        if self._names is not None:
            spans += [Span(start, stop, NAME_CLASS) for start, stop in self._names.find(text)]
        for kind, pattern in self._patterns:
            spans += [Span(m.start(), m.end(), kind) for m in pattern.finditer(text)]
        for redactor in self.policy.redactors:
            spans += spans_of(redactor, text, context)
        return united(spans, text, self._placeholders)

    def for_place(self, app: str, user: str, session: str | None) -> PlacedRedaction:
        """Return the redaction of one session; None: of what a user's sessions share."""
        key = key_of_place(self._secret, app, user, session)
        return PlacedRedaction(self, RedactionContext(app, user, session), key)


class PlacedRedaction:
    """Redacts texts and values of one session; made by ``Redaction.for_place``. Stateless."""

    __slots__ = ("_context", "_extended", "_id_mask", "_key", "_mask", "_redaction", "_walk")
    __reduce_ex__ = uncopied

    def __init__(self, redaction: Redaction, context: RedactionContext, key: bytes) -> None:
        self._redaction = redaction
        self._context = context
        self._key = key
        self._mask = redaction._mask  # noqa: SLF001 - made by it
        self._id_mask = self._mask & ~mask_of(NUMBERS)
        self._extended = redaction._extended  # noqa: SLF001 - made by it
        self._walk = ValueWalk(self._redact, self._suspects, own=self._extended)

    @property
    def policy_id(self) -> str:
        """Id of the policy; see ``RedactionPolicy.policy_id``."""
        return self._redaction.policy_id

    def text(self, text: str) -> str:
        """Redact a text; return the same object if nothing was found. JSON stays JSON."""
        if not self._extended and not holds_sensitive(text, self._mask):
            return text
        return redact_text(self._walk, text, Counter())

    def counted(self, text: str) -> tuple[str, Counter[str]]:
        """Redact like ``text``; return the text and the number of findings by class."""
        found: Counter[str] = Counter()
        return redact_text(self._walk, text, found), found

    def value(self, value: Any) -> tuple[Any, Counter[str]]:
        """Redact a JSON value (item, message, arguments, state entry); return ``(value, found)``.

        Only leaves change, and keys that are values themselves; never ids or what frameworks pair
        by. The given value is not modified; it is returned itself if nothing was found.

        Raises:
            InvalidItemError: the value is nested deeper than 520 levels, or circular.
        """
        found: Counter[str] = Counter()
        if not self._extended and not holds_sensitive(value, self._mask):
            return value, found
        return self._walk.value(value, found), found

    def bytes(self, content: Content) -> Content:
        """Redact content: texts and JSON in any encoding that extends ASCII, and UTF-16.

        Returns the same object if nothing was found. Binary content, with NUL bytes, is left alone.
        """
        return self.counted_bytes(content)[0]

    def counted_bytes(
        self, content: Content, under: str | None = None
    ) -> tuple[Content, Counter[str]]:
        """Redact like ``bytes``; return the content and the number of findings by class.

        ``under``: the key that the content is stored under, which hints at what it may be.
        """
        found: Counter[str] = Counter()
        return redact_bytes(self._walk, content, found, under), found

    def spans(self, text: str) -> list[Span]:
        """Return the spans of a text that would be redacted, in order; for reports."""
        return self._spans(text, 0, None)

    # --- one text ---------------------------------------------------------------------------------

    def _redact(self, text: str, context: int, key: str | None, found: Counter[str]) -> str:
        """Redact a text; ``context``: the classes whose context the JSON key ``key`` gives."""
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
"""Attributes of every log record; all others come from ``extra``."""


class RedactingFilter(logging.Filter):
    """Redacts log records: messages, tracebacks and the values of ``extra``.

    Add it to handlers: a logger's filters do not see what its children log. If a record cannot be
    redacted, a line saying so replaces its text.

    Args:
        redact: the policy, as for ``memcore.open``.
        secret: the secret for placeholders; None: one of this filter's own, so that a value has the
            same placeholder throughout this process. ``Database.log_filter`` uses the file's.

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
        """Redact the record in place; always True: none is dropped."""
        try:
            self._redact(record)
        except Exception as exc:  # noqa: BLE001 - a filter that raises would break its caller
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
