"""Typed profile of a user: fields of a schema, each the value of a slot of the user's memory.

A field is a memory with the subject ``profile`` and the field's name as its slot. Its value is in
its attributes and spelled in its text. So trust, quarantine, history, expiry, removal, export and
search of a profile are those of memories, and no row is added.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, InitVar, fields, is_dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Union

from memcore.codec.values import encode_json
from memcore.errors import BlockedError, InvalidItemError, InvalidOptionError, NotFoundError
from memcore.log import SessionTxns
from memcore.memory.rows import (
    TIMELINE,
    Book,
    MemoryVersion,
    entries,
    memory_of,
    read_entry,
    with_slot,
    write_entry,
    write_head,
)
from memcore.memory.statement import (
    Statement,
    begin_change,
    cite,
    next_version,
    remember,
    revise,
)
from memcore.memory.trust import KINDS, checked_attributes, checked_labels, checked_name, is_weaker
from memcore.model import Memory
from memcore.options import checked_choice, checked_int, refuse_copies
from memcore.records import record
from memcore.store.interface import ReadTxn, Txn

if TYPE_CHECKING:
    from memcore.memory.statement import Sources
    from memcore.memory.tools import ToolHandle

__all__ = [
    "PROFILE_SUBJECT",
    "MemoryWindow",
    "Profile",
    "field_rules",
]


PROFILE_SUBJECT: Final = "profile"
"""Subject of the memories that are fields of a profile."""
FIELDS_MAX: Final = 256
_DAY_MS: Final = 86_400_000
_DAYS_END: Final = 100_000
_TYPES: Final = {
    "string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "null",
    "array": "list",
}  # fmt: skip
"""Names of types by those in a JSON schema."""
_NOTES: Final = frozenset(("title", "description", "default", "examples", "$comment"))
"""Keys of a JSON schema that say nothing about what a value is."""
_OBJECT_KEYS: Final = frozenset(
    ("type", "properties", "required", "additionalProperties", "$schema", "$id")
)


class Shape(NamedTuple):
    """Values that a field may have."""

    types: frozenset[str]
    """``str``, ``int``, ``float``, ``bool``, ``null``, ``list``."""
    choices: tuple[Any, ...] | None = None
    """Only these values."""
    items: Shape | None = None
    """Shape of the items of a list."""
    enum: type[Enum] | None = None
    """Class of which the choices are the values."""


class FieldRule(NamedTuple):
    """One field of a schema."""

    shape: Shape
    needs_consent: bool = False
    needs_value: bool = False
    """True if an instance cannot be made without it."""


@record(frozen=True, slots=True)
class MemoryWindow:
    """Memories of the last days, counted."""

    count: int
    memories: tuple[Memory, ...]
    """The newest of them, the newest first."""
    since: float
    """Begin of the window, seconds since 1970."""


# --- Schemas --------------------------------------------------------------------------------------


def field_rules(schema: object) -> dict[str, FieldRule]:
    """Return the fields of a schema.

    Args:
        schema: a dataclass, a TypedDict, or a JSON schema of the type ``object``.

    Raises:
        InvalidOptionError: it is none of these, holds a construct that is not known here, or has no
            field or more than 256.
        InvalidItemError: the name of a field holds hidden characters.
    """
    if isinstance(schema, Mapping):
        found = _json_rules(schema)
    elif isinstance(schema, type) and is_dataclass(schema):
        hints = _hints(schema)
        odd = [each.name for each in fields(schema) if not each.init]
        odd += [name for name, hint in hints.items() if isinstance(hint, InitVar)]
        if odd:
            msg = f"schema: {odd[0]!r:.80} is not both a field and an argument of the dataclass"
            raise InvalidOptionError(msg)
        found = {
            each.name: FieldRule(
                _shape_of(hints[each.name], each.name),
                _needs_consent(each.metadata.get("consent", False), each.name),
                each.default is MISSING and each.default_factory is MISSING,
            )
            for each in fields(schema)
        }
    elif typing.is_typeddict(schema):
        found = {name: FieldRule(_shape_of(hint, name)) for name, hint in _hints(schema).items()}
    else:
        msg = f"schema: expected a dataclass, a TypedDict or a JSON schema, got {schema!r:.80}"
        raise InvalidOptionError(msg)
    if not 0 < len(found) <= FIELDS_MAX:
        msg = f"schema: expected 1 to {FIELDS_MAX} fields, got {len(found)}"
        raise InvalidOptionError(msg)
    for name in found:
        checked_name("schema", name)
    return found


def _needs_consent(mark: object, name: str) -> bool:
    """Return the mark of a field that needs consent.

    Raises:
        InvalidOptionError: it is neither True nor False, so nobody knows.
    """
    if not isinstance(mark, bool):
        msg = f"schema: field {name!r:.80}: consent: expected True or False, got {mark!r:.80}"
        raise InvalidOptionError(msg)
    return mark


def _hints(schema: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(schema)
    except (NameError, TypeError, SyntaxError, AttributeError) as exc:
        msg = f"schema: its annotations cannot be read: {exc}"
        raise InvalidOptionError(msg) from exc


_SCALARS: Final = {str: "str", int: "int", float: "float", bool: "bool", type(None): "null"}


def _shape_of(hint: Any, name: str, *, within: bool = False) -> Shape:
    """Return the shape of an annotation.

    Raises:
        InvalidOptionError: it is not one of those that a profile knows.
    """
    if isinstance(hint, type) and hint in _SCALARS:  # in this order: not all hints have a hash
        return Shape(frozenset((_SCALARS[hint],)))
    if isinstance(hint, type) and issubclass(hint, Enum):
        shape = _of_choices([each.value for each in hint], name)
        if "null" not in shape.types:
            return shape._replace(enum=hint)
    origin, given = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return _of_choices(given, name)
    if origin is list and len(given) == 1 and not within:
        return Shape(frozenset(("list",)), items=_shape_of(given[0], name, within=True))
    if origin in (Union, types.UnionType) and type(None) in given and len(given) == 2:  # noqa: PLR2004 - X | None
        (other,) = (each for each in given if each is not type(None))
        return _or_null(_shape_of(other, name, within=within))
    msg = (
        f"schema: field {name!r:.80}: expected str, int, float, bool, a list of these, a Literal, "
        f"an Enum, or one of these or None; got {hint!r:.80}"
    )
    raise InvalidOptionError(msg)


def _or_null(shape: Shape) -> Shape:
    return shape._replace(types=shape.types | {"null"})


def _of_choices(values: Any, name: str) -> Shape:
    """Return the shape of a field that has one of some values.

    Raises:
        InvalidOptionError: there is none, or one is no str, int, bool or None.
    """
    found = {type(each): _SCALARS.get(type(each)) for each in values}
    if not found or not set(found.values()) <= {"str", "int", "bool", "null"}:
        msg = f"schema: field {name!r:.80}: expected choices of str, int, bool or None"
        raise InvalidOptionError(msg)
    return Shape(frozenset(str(each) for each in found.values()), tuple(values))


def _json_rules(schema: Mapping[str, Any]) -> dict[str, FieldRule]:
    unknown = schema.keys() - _OBJECT_KEYS - _NOTES
    inside, required = schema.get("properties"), schema.get("required", [])
    if schema.get("type") != "object" or unknown or not isinstance(inside, Mapping):
        what = f"unknown: {', '.join(sorted(map(repr, unknown)))}" if unknown else "this is not one"
        msg = f"schema: expected a JSON schema of type object with properties; {what:.80}"
        raise InvalidOptionError(msg)
    if schema.get("additionalProperties", False) is not False:
        msg = "schema: additionalProperties: a profile has the fields of its schema alone"
        raise InvalidOptionError(msg)
    if not isinstance(required, list | tuple) or not all(
        isinstance(each, str) and each in inside for each in required
    ):
        msg = "schema: required: expected a list of properties"
        raise InvalidOptionError(msg)
    found: dict[str, FieldRule] = {}
    for name, each in inside.items():
        shape = _json_shape(each, checked_name("schema", name))
        found[name] = FieldRule(shape, _needs_consent(each.get("x-consent", False), name))
    return found


def _json_shape(said: Any, name: str, *, within: bool = False) -> Shape:
    """Return the shape of a property of a JSON schema.

    Raises:
        InvalidOptionError: it holds a construct that is not known here.
    """
    known = {"type", "enum", "items"} | _NOTES | (set() if within else {"x-consent"})
    if not isinstance(said, Mapping) or said.keys() - known:
        odd = sorted(map(repr, said.keys() - known)) if isinstance(said, Mapping) else said
        msg = f"schema: property {name!r:.80}: expected type, enum and items; got {odd!r:.80}"
        raise InvalidOptionError(msg)
    told = said.get("type")
    listed = [told] if isinstance(told, str) else told
    if listed is None and "enum" in said:
        listed = []
    if not isinstance(listed, list | tuple) or not all(
        isinstance(each, str) and each in _TYPES for each in listed
    ):
        msg = f"schema: property {name!r:.80}: type: expected one of {', '.join(_TYPES)}"
        raise InvalidOptionError(msg)
    kinds = frozenset(_TYPES[each] for each in listed)
    if ("list" in kinds) != ("items" in said) or (within and "list" in kinds):
        msg = f"schema: property {name!r:.80}: a list has items that are no lists"
        raise InvalidOptionError(msg)
    items = _json_shape(said["items"], name, within=True) if "items" in said else None
    if "enum" in said:
        values = said["enum"]
        shape = _of_choices(values if isinstance(values, list | tuple) else (), name)
        if items is not None or (kinds and not shape.types <= kinds):
            msg = f"schema: property {name!r:.80}: the choices are not of its type"
            raise InvalidOptionError(msg)
        return shape
    if not kinds:
        msg = f"schema: property {name!r:.80}: type: expected one of {', '.join(_TYPES)}"
        raise InvalidOptionError(msg)
    return Shape(kinds, items=items)


# --- Values ---------------------------------------------------------------------------------------


def fits(shape: Shape, value: Any) -> bool:
    """Return True if a JSON value has a shape; a bool is no number, an int is a float as well."""
    if value is None:
        return "null" in shape.types
    if isinstance(value, list):
        return shape.items is not None and all(fits(shape.items, each) for each in value)
    kind = _SCALARS.get(type(value))
    if kind == "float" and not math.isfinite(value):
        return False
    if shape.choices is not None:
        return any(type(each) is type(value) and each == value for each in shape.choices)
    return kind in shape.types or (kind == "int" and "float" in shape.types)


def _stored(shape: Shape, value: Any) -> Any:
    """Return a value as it is stored: members of an Enum by their values, tuples as lists."""
    if isinstance(value, list | tuple) and shape.items is not None:
        return [_stored(shape.items, each) for each in value]
    return value.value if shape.enum is not None and isinstance(value, shape.enum) else value


def _shown(shape: Shape, value: Any) -> Any:
    """Return a stored value as the schema has it."""
    if isinstance(value, list) and shape.items is not None:
        return [_shown(shape.items, each) for each in value]
    return value if shape.enum is None or value is None else shape.enum(value)


def spelt(field: str, value: Any) -> str:
    """Return the text of a field's memory: the name and the value in JSON, each value another."""
    return f"{field}: {json.dumps(value, ensure_ascii=False)}"


def put_value(book: Book, drafts: SessionTxns, said: Statement, now_ms: int) -> MemoryVersion:
    """Store the value of a field; return the entry.

    Memories are of the same wording whatever their case and spacing; values are not. So a value
    that only differs in these is a new version of the known one, unless it is weaker.

    Raises:
        NotFoundError, InvalidOptionError, OptedOutError
    """
    found = remember(book, drafts, said, now_ms)
    told = said.values["attributes"]
    same = found.text == said.text and encode_json(found.attributes) == encode_json(told)
    if found.is_gone or same:
        return found
    by = said.by or cite(book, drafts, said.sources, said.text or "").by
    if by is None or is_weaker(by, found.by):
        return found
    kept = ("attributes", "confidence", "expires_ms", "observed_ms")
    anew = {name: said.values[name] for name in kept if name in said.values}
    if anew.get("observed_ms") is None:
        anew.pop("observed_ms", None)  # then it is the time of the cited items
    made = revise(book, drafts, found.id, replace(said, values=anew), now_ms, expected=None)
    if encode_json(made.attributes) == encode_json(told):
        return made
    # Python holds 1, 1.0 and True to be equal, so that was no change to ``revise``
    write_head(book.txn, book.scope, begin_change(book, now_ms))
    return write_entry(book, next_version(made, now_ms, attributes=told), made)


# --- The profile ----------------------------------------------------------------------------------


class Profile:
    """Typed profile of a user: ``memory.profile(schema)``.

    Args:
        handle: operations of the memory.
        state: makes a checked statement.
        schema: a dataclass, a TypedDict, or a JSON schema of the type ``object``.
        consent: fields that the user consented to (True) or did not (False).

    Raises:
        InvalidOptionError: the schema holds an unknown construct, or consent names no field.
    """

    __reduce__ = refuse_copies

    def __init__(
        self,
        handle: ToolHandle,
        state: Callable[..., Statement],
        schema: type | Mapping[str, Any],
        consent: Mapping[str, bool],
    ) -> None:
        self._handle = handle
        self._state = state
        self._schema = schema
        self._rules = field_rules(schema)
        if not isinstance(consent, Mapping) or not all(
            name in self._rules and isinstance(given, bool) for name, given in consent.items()
        ):
            msg = f"consent: expected a bool by field of the schema, got {consent!r:.80}"
            raise InvalidOptionError(msg)
        self._consent = dict(consent)

    def __repr__(self) -> str:
        return f"Profile(of {', '.join(self._rules)})"

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields."""
        return tuple(self._rules)

    def set(
        self,
        field: str,
        value: Any,
        *,
        source: Sources = None,
        by: str | None = None,
        confidence: float | None = None,
        observed_at: float | None = None,
        valid_from: float | None = None,
        valid_to: float | None = None,
        expires_at: float | None = None,
        idempotency_key: str | None = None,
    ) -> Memory:
        """Store the value of a field; return its memory as it is then known.

        Trust follows from the sources: what a model or a tool says waits in quarantine, and is not
        part of the profile until it is promoted. A value that was forgotten stays so: its tombstone
        is returned, unless an operator says it again.

        Args:
            field: the field.
            value: its value; the member or the value of an Enum.
            source: as for ``remember``, like all that follow.
            by: who says it, to lower the trust; ``operator`` and ``import`` need no source.
            confidence: of the extractor, 0 to 1.
            observed_at: time of the observation, seconds since 1970.
            valid_from: time from which it is true; None: from now on.
            valid_to: time until which it is true.
            expires_at: time from which it is hidden.
            idempotency_key: a repeat with the same content changes nothing.

        Raises:
            InvalidItemError: the value does not fit the schema, or would not once it is redacted.
            InvalidOptionError: there is no such field, or as for ``remember``.
            BlockedError: the user did not consent to this field; or a guard or the redaction policy
                refuses it.
            NotFoundError, OptedOutError, DuplicateRequestError, ReadOnlyError, StorageError
        """
        shape = self._rule(field).shape
        if not self._has_consent(field):
            msg = f"field {field!r:.80} needs the user's consent: profile(consent={{field: True}})"
            raise BlockedError(msg, verdict="block", reason="no consent")
        stored = _stored(shape, value)
        self._need_fit(field, stored, "a value")
        attributes = checked_attributes({field: stored})
        said = self._state(
            spelt(field, stored), kind="fact", subject=PROFILE_SUBJECT, slot=field,
            attributes=attributes, source=source, by=by, confidence=confidence,
            observed_at=observed_at, valid_from=valid_from, valid_to=valid_to,
            expires_at=expires_at,
        )  # fmt: skip
        left = said.values["attributes"].get(field, stored)
        self._need_fit(field, left, "what the redaction policy leaves")
        if said.text != spelt(field, left):
            msg = f"field {field!r:.80}: the redaction policy tears its value apart"
            raise InvalidItemError(msg)
        handle = self._handle
        made: Memory = handle.change(
            lambda book: put_value(book, handle.drafts, said, handle.now_ms()),
            idempotency_key,
            ("profile", said.text, said.sources, said.by, said.values),
            ensure=True,
        )
        return made

    def values(self) -> dict[str, Any]:
        """Return the values that are known by field: in force, trusted, and fitting the schema.

        Fields without consent are left out, and so are those that ``misfits`` lists.

        Raises:
            CorruptValueError
        """
        return {
            name: _shown(self._rules[name].shape, record.attributes[name])
            for name, record in self._current().items()
            if self._holds_fit(name, record)
        }

    def get(self) -> Any:
        """Return the profile: an instance of a dataclass, else a dict of the known values.

        Raises:
            NotFoundError: a field of the dataclass that has no default is not known.
            CorruptValueError
        """
        known = self.values()
        if isinstance(self._schema, Mapping) or not is_dataclass(self._schema):
            return known
        missing = [n for n, rule in self._rules.items() if rule.needs_value and n not in known]
        if missing:
            msg = f"the profile has no value of {', '.join(missing):.200}; values() has the others"
            raise NotFoundError(msg)
        return self._schema(**known)

    def misfits(self) -> list[Memory]:
        """Return the values in force that do not fit the schema, such as those of an older one.

        Raises:
            CorruptValueError
        """
        return [
            memory_of(record)
            for name, record in self._current().items()
            if not self._holds_fit(name, record)
        ]

    def history(self, field: str) -> list[Memory]:
        """Return all values of a field but forgotten ones, the oldest first, whatever their status.

        ``memory.history(id)`` has the versions of each.

        Raises:
            InvalidOptionError: there is no such field.
            CorruptValueError
        """
        self._rule(field)
        now_ms = self._handle.now_ms()

        def look(txn: ReadTxn, scope: int) -> list[MemoryVersion]:
            return [
                each
                for each in entries(txn, scope)
                if (each.subject, each.slot) == (PROFILE_SUBJECT, field)
                and not each.is_gone
                and each.is_visible(now_ms)
            ]

        nothing: list[MemoryVersion] = []
        found: list[MemoryVersion] = self._handle.read(look, nothing)
        return [memory_of(each) for each in sorted(found, key=_began)]

    def window(
        self,
        kind: str = "event",
        *,
        days: float = 30,
        labels: Mapping[str, str] | None = None,
        limit: int = 100,
    ) -> MemoryWindow:
        """Return the active memories of a kind that are dated within the last days.

        The date of a memory is the time from which it is true, else that of its observation, else
        that of its recording. Values of fields without consent are left out. Reads all memories of
        the user.

        Args:
            kind: as of a memory.
            days: length of the window, up to 100,000 days.
            labels: only those with all of these labels, such as ``{"type": "mistake"}``.
            limit: most memories to return; all are counted.

        Raises:
            InvalidOptionError, InvalidItemError, CorruptValueError
        """
        checked_choice("kind", kind, KINDS)
        checked_int("limit", limit)
        wanted = checked_labels({} if labels is None else labels)
        is_number = isinstance(days, int | float) and not isinstance(days, bool)
        if not is_number or not 0 < days <= _DAYS_END:
            msg = f"days: expected a number of days above 0, up to {_DAYS_END}; got {days!r:.40}"
            raise InvalidOptionError(msg)
        now_ms = self._handle.now_ms()
        since_ms = now_ms - round(days * _DAY_MS)

        def look(txn: ReadTxn, scope: int) -> list[MemoryVersion]:
            return [
                each
                for each in entries(txn, scope)
                if (each.kind, each.status) == (kind, "active")
                and each.is_visible(now_ms)
                and since_ms < _began(each)[0] <= now_ms
                and wanted.items() <= dict(each.labels).items()
                and not self._is_withheld(each)
            ]

        nothing: list[MemoryVersion] = []
        found: list[MemoryVersion] = self._handle.read(look, nothing)
        newest = sorted(found, key=_began, reverse=True)[:limit]
        return MemoryWindow(len(found), tuple(map(memory_of, newest)), since_ms / 1000)

    # --- the parts of it --------------------------------------------------------------------------

    def _rule(self, field: str) -> FieldRule:
        rule = self._rules.get(field) if isinstance(field, str) else None
        if rule is None:
            msg = f"field: expected one of {', '.join(self._rules):.200}; got {field!r:.80}"
            raise InvalidOptionError(msg)
        return rule

    def _has_consent(self, field: str) -> bool:
        return self._consent.get(field, not self._rules[field].needs_consent)

    def _is_withheld(self, record: MemoryVersion) -> bool:
        """Return True if a memory is the value of a field without consent."""
        field = record.slot if record.subject == PROFILE_SUBJECT else None
        return field in self._rules and not self._has_consent(str(field))

    def _need_fit(self, field: str, value: Any, what: str) -> None:
        shape = self._rules[field].shape
        if fits(shape, value):
            return
        choices = f" of {shape.choices!r:.80}" if shape.choices is not None else ""
        wanted = " or ".join(sorted(shape.types)) + choices
        msg = f"field {field!r:.80}: {what} does not fit the schema: expected {wanted}"
        raise InvalidItemError(f"{msg}, got {type(value).__name__}")

    def _holds_fit(self, field: str, record: MemoryVersion) -> bool:
        found = record.attributes
        return field in found and fits(self._rules[field].shape, found[field])

    def _current(self) -> dict[str, MemoryVersion]:
        """Return the entries in force by field, of those with consent."""
        now_ms, seed = self._handle.now_ms(), self._handle.seed
        names = [name for name in self._rules if self._has_consent(name)]

        def look(txn: Any, scope: int) -> dict[str, MemoryVersion]:
            found = {name: _in_force(txn, scope, seed, name, now_ms) for name in names}
            return {name: record for name, record in found.items() if record is not None}

        nothing: dict[str, MemoryVersion] = {}
        found: dict[str, MemoryVersion] = self._handle.read(look, nothing)
        return found


def _in_force(txn: Txn, scope: int, seed: bytes, field: str, now_ms: int) -> MemoryVersion | None:
    """Return the value of a field that holds now."""
    book = Book(txn, scope, seed)
    for number in with_slot(book, PROFILE_SUBJECT, field):
        each = read_entry(txn, scope, number)
        if each is None or each.status not in TIMELINE or not each.is_visible(now_ms):
            continue
        if each.holds_at(now_ms):
            return each
    return None


def _began(record: MemoryVersion) -> tuple[int, int]:
    """Return the date of a memory in milliseconds, and its id."""
    dates = (record.valid_from_ms, record.observed_ms, record.recorded_ms)
    return next(each for each in dates if each is not None), record.id
