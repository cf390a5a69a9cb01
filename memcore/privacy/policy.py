"""Redaction policies: classes to find, actions on them, placeholders."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import field, fields, replace
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from memcore.errors import InvalidOptionError
from memcore.options import checked_bool, checked_several, closest
from memcore.records import record

__all__ = [
    "CLASSES",
    "CLASS_NAMES",
    "CODE_CONTEXT",
    "ID_CONTEXT",
    "KIND",
    "LABEL",
    "NAME_CLASS",
    "NUMBERS",
    "NUMERIC",
    "PLACEHOLDER",
    "POLICY_PRESETS",
    "VERDICTS",
    "RedactionContext",
    "RedactionPolicy",
    "Redactor",
    "Span",
    "canonical",
    "compiled_patterns",
    "key_of_place",
    "mask_of",
    "placeholder",
    "recognised",
    "redaction_policy",
    "spans_of",
    "united",
]


# --- Built-in classes searched for by ``_fast.find_sensitive``, by name and by number -------------

CLASSES: Final = {
    "email": 0,
    "cn_mobile": 1,
    "phone": 2,
    "cn_id": 3,
    "student_id": 4,
    "card": 5,
    "api_key": 6,
    "jwt": 7,
    "private_key": 8,
    "token": 9,
    "password": 10,
    "ipv4": 11,
    "ipv6": 12,
}
"""Numbers of the classes in the scanner, and their bits in its masks."""
CLASS_NAMES: Final = tuple(CLASSES)
NUMERIC: Final = frozenset(("cn_mobile", "phone", "cn_id", "student_id", "card"))
"""Classes whose values are equal however their digits are grouped."""
ID_CONTEXT: Final = 1 << 30
"""Context given by a key that marks an id."""
CODE_CONTEXT: Final = 1 << 21
"""Context given by a key for numeric codes: otp, 验证码."""
NUMBERS: Final = ("cn_mobile", "phone", "student_id", "card")
"""Classes that an id may resemble."""
_MOBILE_DIGITS: Final = 11
_CHECK_LETTERS: Final = "xX\uff58\uff38"


def mask_of(names: tuple[str, ...]) -> int:
    """Return the bits of some classes; classes that are not built in have none."""
    return sum(1 << CLASSES[name] for name in names if name in CLASSES)


def canonical(name: str, text: str) -> str:
    """Normalise a value; texts with equal results get the same placeholder."""
    if name in {"email", "name"}:
        return text.casefold()
    if name not in NUMERIC:
        return text
    digits = "".join(
        str(int(char)) if char.isdecimal() else "X"
        for char in text
        if char.isdecimal() or char in _CHECK_LETTERS
    )
    return digits[-_MOBILE_DIGITS:] if name == "cn_mobile" else digits


# --- Placeholders: ``[EMAIL_7K2M9Q]``, the same for a value throughout a session ------------------
# The six characters are a keyed hash of the value under the secret of the database, the app, the
# user and the session. So a model can still tell two persons apart, values cannot be guessed
# without the secret, and no state is kept: a retry writes the same bytes. Among a thousand
# different values of one class, two share a placeholder with a probability of 0.0005.

LABEL: Final = re.compile(r"[A-Z](?:[A-Z_]{0,30}[A-Z])?")
"""Label of a placeholder, before the hash. It has no digits, so no number can pass for one."""
PLACEHOLDER: Final = re.compile(r"\[[A-Z](?:[A-Z_]{0,30}[A-Z])?_[0-9A-HJKMNP-TV-Z]{6}\]")
_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Crockford's base 32: no letters that look like digits."""
_HASH_CHARS: Final = 6


def key_of_place(secret: bytes, app: str, user: str, session: str | None) -> bytes:
    """Derive the key of a session's placeholders; None: of what a user's sessions share."""
    made = blake2b(key=blake2b(secret, digest_size=32).digest(), person=b"memcore-redact")
    for part in (app, user, session):
        encoded = b"" if part is None else part.encode("utf-8", "surrogatepass")
        made.update(b"%d:" % (-1 if part is None else len(encoded)))
        made.update(encoded)
    return made.digest()


def recognised(templates: Mapping[str, str]) -> re.Pattern[str]:
    """Compile a pattern that matches placeholders: memcore's own and those from templates."""
    own = []
    for template in templates.values():
        text = re.escape(template).replace(r"\{id\}", "[0-9A-HJKMNP-TV-Z]{6}")
        own.append(text.replace(r"\{class\}", "[A-Z](?:[A-Z_]{0,30}[A-Z])?"))
    return re.compile("|".join([PLACEHOLDER.pattern, *own])) if own else PLACEHOLDER


def placeholder(label: str, value: str, key: bytes, template: str | None = None) -> str:
    """Build the placeholder of ``value``, of the class ``label`` (upper case)."""
    said = f"{label}:{value}".encode("utf-8", "surrogatepass")
    number = int.from_bytes(blake2b(said, key=key, digest_size=4).digest(), "big")
    chars = "".join(_ALPHABET[number >> 5 * at & 31] for at in range(_HASH_CHARS))
    if template is None:
        return f"[{label}_{chars}]"
    return template.replace("{id}", chars).replace("{class}", label)


# --- Findings in a text, and merging of overlapping ones ------------------------------------------

KIND: Final = re.compile(r"[a-z](?:[a-z_]{0,30}[a-z])?")
"""The name of a class."""
NAME_CLASS: Final = "name"
_TEXT_CLASS: Final = "text"


class Span(NamedTuple):
    """Finding in a text: offsets ``start`` and ``stop``, and the class in lower case."""

    start: int
    stop: int
    kind: str


@record(frozen=True, slots=True)
class RedactionContext:
    """Origin of a text, for custom redactors."""

    app: str
    user: str
    session: str | None
    """None: not from a single session."""
    key: str | None = None
    """JSON key whose value is the text."""


@runtime_checkable
class Redactor(Protocol):
    """Custom redactor, called for every text after the built-in classes."""

    def redact(self, text: str, context: RedactionContext) -> tuple[str, Iterable[Span]]:
        """Return ``(text, spans)``: what to redact, as offsets into the given text.

        memcore puts its own placeholders there. The returned text is only used without spans: if it
        differs, the changed part counts as a finding. An exception aborts the write: nothing is
        stored.
        """
        ...


def spans_of(redactor: Redactor, text: str, context: RedactionContext) -> list[Span]:
    """Return the findings of a custom redactor in a text.

    Raises:
        InvalidOptionError: the result does not follow ``Redactor.redact``.
    """
    made, given = redactor.redact(text, context)
    found = []
    for entry in given:
        start, stop, kind = entry
        if not (isinstance(kind, str) and KIND.fullmatch(kind.lower())):
            msg = f"{type(redactor).__name__}.redact: expected a class of letters, got {kind!r:.80}"
            raise InvalidOptionError(msg)
        if not 0 <= start <= stop <= len(text):
            msg = f"{type(redactor).__name__}.redact: {start}:{stop} is no part of the text"
            raise InvalidOptionError(msg)
        found.append(Span(start, stop, kind.lower()))
    if not found and made != text:
        found.append(_difference(text, made))
    return found


def _difference(text: str, made: str) -> Span:
    """Return the part of a text that a redactor changed without reporting a span."""
    start, stop, end = 0, len(text), len(made)
    while start < min(stop, end) and text[start] == made[start]:
        start += 1
    while stop > start and end > start and text[stop - 1] == made[end - 1]:
        stop -= 1
        end -= 1
    return Span(start, max(stop, min(start + 1, len(text))), _TEXT_CLASS)


def united(spans: list[Span], text: str, placeholders: re.Pattern[str] = PLACEHOLDER) -> list[Span]:
    """Sort spans, drop placeholders and empty ones, and merge those that overlap.

    A merged span has the class of the span found first: built-in classes come before names, names
    before patterns, patterns before redactors.
    """
    kept = [span for span in spans if span.stop > span.start]
    if not kept:
        return kept
    holes = [found.span() for found in placeholders.finditer(text)]
    if holes:
        kept = [part for span in kept for part in _without(span, holes)]
    ranked = sorted(enumerate(kept), key=lambda entry: (entry[1].start, entry[0]))
    made: list[tuple[int, Span]] = []
    for rank, span in ranked:
        if made and span.start < made[-1][1].stop:
            first, last = made[-1]
            best = last if first < rank else span
            joined = Span(last.start, max(last.stop, span.stop), best.kind)
            made[-1] = (min(first, rank), joined)
        else:
            made.append((rank, span))
    return [span for _, span in made]


def _without(span: Span, holes: list[tuple[int, int]]) -> list[Span]:
    """Return the parts of a span outside placeholders."""
    parts, at = [], span.start
    for start, stop in holes:
        if stop <= at or start >= span.stop:
            continue
        if start > at:
            parts.append(Span(at, start, span.kind))
        at = stop
    if at < span.stop:
        parts.append(Span(at, span.stop, span.kind))
    return parts


# --- Redaction policies: content that may not reach the file --------------------------------------

VERDICTS: Final = ("allow", "redact", "quarantine", "drop", "block")
"""Verdicts on an item in which a class was found, mildest first."""
_SECRETS: Final = ("api_key", "jwt", "private_key", "token", "password")
_PERSONAL: Final = ("email", "cn_mobile", "phone", "cn_id", "student_id", "card")
_ADDRESSES: Final = ("ipv4", "ipv6")
_NAME_CHARS_MAX: Final = 1024
_TEMPLATE_CHARS_MAX: Final = 64
_FIELD: Final = re.compile(r"\{(?:id|class)\}")
_RE2_MEMORY_BYTES: Final = 64 * 1024**2


@record(frozen=True, slots=True, kw_only=True, eq=False)
class RedactionPolicy:
    """Classes, names and patterns to redact, and how; immutable."""

    classes: tuple[str, ...] = _PERSONAL + _SECRETS
    """Built-in classes; IP addresses must be requested."""
    names: tuple[str, ...] = ()
    """Names, matched literally; the longest match wins."""
    names_ignore_case: bool = True
    patterns: Mapping[str, str] = field(default_factory=dict)
    """Custom patterns by class name, compiled by google-re2 only."""
    redactors: tuple[Redactor, ...] = ()
    """Called after everything else, in this order."""
    verdicts: Mapping[str, str] = field(default_factory=dict)
    """By class, a guard's verdict on an item that has it: see ``VERDICTS``; default ``redact``.
    Allowed classes are not searched for."""
    placeholders: Mapping[str, str] | str = field(default_factory=dict)
    """Placeholder templates by class, or (``"*"``, or a single str) for all others: a text with
    ``{id}`` (six characters, the same for the same value in a session) and ``{class}``."""
    allow_opaque: bool = False
    """True: values that cannot be inspected may be stored: pickled ones of graph checkpoints, and
    those encrypted by a custom serializer."""

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "classes", _checked_classes(self.classes))
        set_field(self, "names", _checked_names(self.names))
        checked_bool("names_ignore_case", self.names_ignore_case)
        checked_bool("allow_opaque", self.allow_opaque)
        set_field(self, "patterns", MappingProxyType(_checked_patterns(self.patterns)))
        compiled_patterns(self)
        redactors = _listed("redactors", self.redactors)
        for redactor in redactors:
            if isinstance(redactor, type) or not isinstance(redactor, Redactor):
                msg = f"redactors: expected objects with redact(text, context): {redactor!r:.80}"
                raise InvalidOptionError(msg)
        set_field(self, "redactors", redactors)
        set_field(self, "placeholders", MappingProxyType(_checked_placeholders(self)))
        set_field(self, "verdicts", MappingProxyType(_checked_verdicts(self)))

    @property
    def sought(self) -> tuple[str, ...]:
        """Built-in classes that are searched for."""
        return tuple(name for name in self.classes if self.verdicts.get(name) != "allow")

    def verdict(self, found: Iterable[str]) -> str:
        """Return the strictest verdict on the classes found; ``allow`` for none."""
        verdicts = [self.verdicts.get(name, "redact") for name in found]
        return max(verdicts, key=VERDICTS.index, default="allow")

    @property
    def templates(self) -> Mapping[str, str]:
        """Custom placeholder templates by class; ``*`` covers all other classes."""
        assert not isinstance(self.placeholders, str)  # noqa: S101 - made a mapping above
        return self.placeholders

    @property
    def redactor_ids(self) -> tuple[str, ...]:
        """Identifiers of the redactors, which a file cannot store."""
        return tuple(_identity(redactor) for redactor in self.redactors)

    def mapping(self) -> dict[str, Any]:
        """Return the policy as JSON, without its redactors; ``redaction_policy`` restores it."""
        return {
            "classes": list(self.classes),
            "names": list(self.names),
            "names_ignore_case": self.names_ignore_case,
            "patterns": dict(self.patterns),
            "verdicts": dict(self.verdicts),
            "placeholders": dict(self.templates),
            "allow_opaque": self.allow_opaque,
        }

    @property
    def policy_id(self) -> str:
        """16 hexadecimal digits, equal for equal policies in every process and version."""
        parts = [
            "memcore-redaction-1",
            *sorted(f"class {name}" for name in self.sought),
            *sorted(f"name {name}" for name in self.names),
            f"ignore case {self.names_ignore_case}" if self.names else "",
            *sorted(f"pattern {name} {text}" for name, text in self.patterns.items()),
            *(f"redactor {_identity(redactor)}" for redactor in self.redactors),
            *sorted(f"verdict {name} {verdict}" for name, verdict in self.verdicts.items()),
            *sorted(f"placeholder {name} {text}" for name, text in self.templates.items()),
        ]
        said = b"".join(
            b"%d:%s" % (len(part), part)
            for part in (text.encode("utf-8", "surrogatepass") for text in parts)
        )
        return blake2b(said, digest_size=8).hexdigest()


def _identity(redactor: Redactor) -> str:
    """Return a redactor's own ``redactor_id`` if it has one, else the name of its type."""
    own = getattr(redactor, "redactor_id", None)
    kind = type(redactor)
    return own if isinstance(own, str) else f"{kind.__module__}.{kind.__qualname__}"


def _listed(name: str, given: object) -> tuple[Any, ...]:
    return tuple(checked_several(name, given, "a list"))


def _checked_classes(given: object) -> tuple[str, ...]:
    wanted = _listed("classes", given)
    for name in wanted:
        if not isinstance(name, str) or name not in CLASSES:
            near = closest(str(name), CLASS_NAMES)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            msg = f"classes: unknown class {name!r:.80}{hint}; known are {', '.join(CLASS_NAMES)}"
            raise InvalidOptionError(msg)
    return tuple(name for name in CLASS_NAMES if name in wanted)


def _checked_names(given: object) -> tuple[str, ...]:
    names = _listed("names", given)
    for name in names:
        if not isinstance(name, str) or not name.strip() or len(name) > _NAME_CHARS_MAX:
            msg = f"names: expected non-blank strings of at most {_NAME_CHARS_MAX} characters"
            raise InvalidOptionError(msg)
    return tuple(dict.fromkeys(names))


def _checked_patterns(given: object) -> dict[str, str]:
    if not isinstance(given, Mapping):
        msg = f"patterns: expected a mapping of names to patterns, got {type(given).__name__}"
        raise InvalidOptionError(msg)
    for name, pattern in given.items():
        if not isinstance(name, str) or not KIND.fullmatch(name):
            msg = (
                f"patterns: a name has lower-case letters and inner underscores (32 at most); got "
                f"{name!r:.80}"
            )
            raise InvalidOptionError(msg)
        if name in CLASSES or name == NAME_CLASS:
            msg = f"patterns: {name!r} is a built-in class; give the pattern another name"
            raise InvalidOptionError(msg)
        if not isinstance(pattern, str) or not pattern:
            msg = f"patterns: {name!r} expects a non-empty str, got {pattern!r:.80}"
            raise InvalidOptionError(msg)
    return dict(given)


def _checked_verdicts(policy: RedactionPolicy) -> dict[str, str]:
    given = policy.verdicts
    if not isinstance(given, Mapping):
        msg = f"verdicts: expected a mapping of classes to verdicts, got {type(given).__name__}"
        raise InvalidOptionError(msg)
    for name, verdict in given.items():
        known = name in CLASSES or name == NAME_CLASS or name in policy.patterns
        if not known and not (policy.redactors and isinstance(name, str) and KIND.fullmatch(name)):
            own = ", ".join((*CLASS_NAMES, NAME_CLASS, *policy.patterns))
            msg = f"verdicts: unknown class {name!r:.80}; known are {own}"
            raise InvalidOptionError(msg)
        if verdict not in VERDICTS:
            msg = f"verdicts: {name!r} expects one of {', '.join(VERDICTS)}; got {verdict!r:.80}"
            raise InvalidOptionError(msg)
        if verdict == "allow" and name not in CLASSES:
            msg = f"verdicts: {name!r} is your own: leave it out of the policy to allow it"
            raise InvalidOptionError(msg)
    return dict(given)


def _checked_placeholders(policy: RedactionPolicy) -> dict[str, str]:
    given: object = policy.placeholders
    found = {"*": given} if isinstance(given, str) else given
    if not isinstance(found, Mapping):
        msg = f"placeholders: expected a str or a mapping of classes, got {type(given).__name__}"
        raise InvalidOptionError(msg)
    for name, template in found.items():
        if name != "*" and not (isinstance(name, str) and KIND.fullmatch(name)):
            msg = f"placeholders: expected names of classes or '*', got {name!r:.80}"
            raise InvalidOptionError(msg)
        if not isinstance(template, str) or not 0 < len(template) <= _TEMPLATE_CHARS_MAX:
            msg = (
                f"placeholders: {name!r} expects a text of 1 to {_TEMPLATE_CHARS_MAX} characters, "
                f"got {template!r:.80}"
            )
            raise InvalidOptionError(msg)
        bare = _FIELD.sub("", template)
        if "{" in bare or "}" in bare or not any(char.isprintable() for char in bare.split()):
            msg = (
                f"placeholders: {name!r} expects a text of its own with {{id}} and {{class}} at "
                f"most, got {template!r:.80}"
            )
            raise InvalidOptionError(msg)
    return dict(found)


def compiled_patterns(policy: RedactionPolicy) -> tuple[tuple[str, Any], ...]:
    """Compile a policy's patterns with google-re2, which takes linear time for all of them.

    Raises:
        InvalidOptionError: google-re2 is not installed, or it refuses a pattern.
    """
    if not policy.patterns:
        return ()
    try:
        re2 = importlib.import_module("re2")
    except ImportError as exc:
        msg = (
            "patterns: patterns of your own are compiled by google-re2 alone, which no input can "
            "make slow, and it is not installed: pip install 'memcore-db[pii]'"
        )
        raise InvalidOptionError(msg) from exc
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _RE2_MEMORY_BYTES
    found = []
    for name, pattern in policy.patterns.items():
        try:
            found.append((name, re2.compile(pattern, options=options)))
        except (re2.error, UnicodeError) as exc:
            msg = f"patterns: google-re2 refuses {name!r}: {_said(exc)}"
            raise InvalidOptionError(msg) from exc
    return tuple(found)


def _said(exc: BaseException) -> str:
    said = exc.args[0] if exc.args else exc
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)


POLICY_PRESETS: Final = MappingProxyType(
    {
        "default": _PERSONAL + _SECRETS,
        "strict": _PERSONAL + _SECRETS + _ADDRESSES,
        "secrets": _SECRETS,
        "personal": _PERSONAL,
        "zh": ("email", "cn_mobile", "phone", "cn_id", "student_id", "card"),
    }
)
"""The classes of each preset."""


def redaction_policy(given: object) -> RedactionPolicy | None:
    """Make a policy from a preset's name, a mapping of its fields (and ``preset``) or a policy.

    None and False give None: nothing is redacted. True is ``default``.

    Raises:
        InvalidOptionError: an unknown preset or field, or a bad value.
    """
    if given is None or given is False:
        return None
    if isinstance(given, RedactionPolicy):
        return given
    if given is True:
        return RedactionPolicy()
    if isinstance(given, str):
        return RedactionPolicy(classes=_preset(given))
    if not isinstance(given, Mapping):
        msg = (
            "redaction policy: expected a preset's name, a mapping or a RedactionPolicy; got "
            f"{type(given).__name__}"
        )
        raise InvalidOptionError(msg)
    options = dict(given)
    known = [part.name for part in fields(RedactionPolicy)]
    base = RedactionPolicy()
    if "preset" in options:
        base = replace(base, classes=_preset(options.pop("preset")))
    unknown = [key for key in options if key not in known]
    if unknown:
        msg = f"redaction policy: unknown {unknown[0]!r:.80}; known are preset, {', '.join(known)}"
        raise InvalidOptionError(msg)
    return replace(base, **options)


def _preset(name: object) -> tuple[str, ...]:
    if isinstance(name, str) and name in POLICY_PRESETS:
        return POLICY_PRESETS[name]
    near = closest(str(name), POLICY_PRESETS)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    msg = f"redaction preset: expected one of {', '.join(POLICY_PRESETS)}; got {name!r:.80}{hint}"
    raise InvalidOptionError(msg)
