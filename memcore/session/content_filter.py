"""Redaction and guards of an open file, applied to its sessions; quarantine.

They belong to the file, not to the handle: the first open with them records them, in the row ``12 |
0 | 07`` and as a feature of the format, and later opens without them inherit them. Whatever cannot
be recorded, such as a caller's guard or redactor, has to be passed on every open: see ``settled``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar, cast

from memcore import audit, privacy
from memcore import session as sessions
from memcore._fast import classify, pack_facts
from memcore.codec import keys
from memcore.codec import values as codec
from memcore.codec.keys import Care
from memcore.codec.values import decode_json, decoding, encode_json, open_value, seal_value
from memcore.errors import (
    BlockedError,
    CorruptValueError,
    DemandError,
    InvalidItemError,
    InvalidOptionError,
    NotFoundError,
    ReadOnlyError,
)
from memcore.limits import BLOB_INLINE_COMMIT_BYTES_MAX
from memcore.log import count_message
from memcore.model import Context, Envelope, Item, ItemKind, Mask, Message
from memcore.options import checked_int, checked_optional_text, refuse_copies
from memcore.privacy.write_filter import Redacts, ScopeFilter, Told, WriteFilter
from memcore.rows import names
from memcore.rows.head import SEQ_END
from memcore.rows.lifecycle import drop_held, held_in, read_held
from memcore.session.engine import Engine, SessionRef
from memcore.store import Store
from memcore.store.datafile import DEMANDING, FORMAT_KEY, Format
from memcore.store.interface import ReadTxn, SecretOf, Txn
from memcore.store.transaction import WriteTxn, stored
from memcore.tokens import TokenCounter
from memcore.wire.message import Path, arguments_of, edited, results_of, texts_of

if TYPE_CHECKING:
    from memcore.compaction import PlanOutcome
    from memcore.privacy import Redaction, RedactionPolicy
    from memcore.privacy.guards import WriteGuard

__all__ = [
    "QUARANTINED",
    "Admission",
    "Admitted",
    "FileDemand",
    "Guards",
    "Quarantine",
    "Quarantined",
    "Redact",
    "admission",
    "admitted_event",
    "admitted_fields",
    "admitted_item",
    "admitted_line",
    "admitted_masks",
    "admitted_outcome",
    "admitted_summary",
    "check_demand",
    "demand",
    "is_demand",
    "read_demand",
    "redacts_at",
    "settled",
    "shown_context",
    "shown_items",
    "told",
]


# --- Write filter of an open file: the options ``redact`` and ``guard`` of ``memcore.open`` -------

Redact: TypeAlias = "RedactionPolicy | str | Mapping[str, Any] | bool | None"
Guards: TypeAlias = "WriteGuard | Sequence[WriteGuard] | None"
DEMAND_KEY: Final = keys.care_rows(0, Care.DEMAND)
_CONTENT: Final = {"view": ("summary", "reason", "masks"), "checkpoint": ("name", "meta")}
"""Content fields, by the member of an export line that holds them."""
_KINDS: Final = {"view": "summary", "checkpoint": "checkpoint"}


class Admission(NamedTuple):
    """Checked ``redact`` and ``guard`` options."""

    policy: RedactionPolicy | None
    guards: tuple[WriteGuard, ...]

    def write_filter(self, store: Store, told: Told | None) -> WriteFilter | None:
        """Return the write filter of an open file; None if everything may be stored as it is.

        ``told`` is called with the findings, by class.

        Raises:
            StorageError: there is no secret, and none can be created.
        """
        policy = self.policy
        if store.read_only or (policy is None and not self.guards):
            return None
        return WriteFilter(
            None if policy is None else privacy.Redaction(policy, secret=store.secret.value()),
            self.guards,
            reserve=_reserve(store.secret),
            told=told,
            verdicts=policy.verdict if policy is not None and policy.verdicts else None,
            allow_opaque=policy is None or policy.allow_opaque,
        )


def _reserve(secret: SecretOf) -> Callable[[], Redaction]:
    """Return a lazily made redaction for guards' verdicts when there is no policy."""
    made: list[Redaction] = []

    def reserve() -> Redaction:
        if not made:
            made.append(privacy.Redaction(privacy.RedactionPolicy(), secret=secret.value()))
        return made[0]

    return reserve


def admission(redact: Redact, guard: Guards) -> Admission:
    """Return the options of ``memcore.open``, checked.

    Raises:
        InvalidOptionError: ``redact`` is not a policy, or ``guard`` not a guard.
    """
    policy = None if redact is None else privacy.redaction_policy(redact)
    return Admission(policy, () if guard is None else privacy.checked_guard(guard))


def admitted_line(scope_filter: ScopeFilter, found: Any) -> Any:
    """Filter an export line other than an item for storage: a view, a checkpoint, a state.

    Raises:
        BlockedError: a guard refuses it.
    """
    if not isinstance(found, dict):
        return found
    made = dict(found)
    for name, fields in _CONTENT.items():
        if isinstance(found.get(name), dict):
            made[name] = _told(scope_filter, found[name], fields, _KINDS[name])
    if isinstance(found.get("state"), dict):
        made["state"] = dict(found["state"])
        for name in ("values", "set"):
            if isinstance(made["state"].get(name), dict):
                made["state"][name] = admitted_fields(scope_filter, made["state"][name])
    return made


def admitted_fields(
    scope_filter: ScopeFilter, values: Mapping[str, Any], shown: str = ""
) -> dict[str, Any]:
    """Filter the values of a state for storage; guards see field names prefixed with ``shown``.

    Raises:
        BlockedError: a guard refuses a value, or something is found in a field's name.
    """
    for key in values:
        scope_filter.name(key, "name of a field")
    return {
        key: scope_filter.value(value, "state", name=f"{shown}{key}", under=key, source="import")
        for key, value in values.items()
    }


def _told(
    scope_filter: ScopeFilter, found: dict[str, Any], fields: tuple[str, ...], kind: str
) -> dict[str, Any]:
    told = {name: found[name] for name in fields if found.get(name) is not None}
    checked = {
        name: scope_filter.value(value, kind, source="import") for name, value in told.items()
    }
    return {**found, **checked}


# --- Demands of a file ----------------------------------------------------------------------------


class FileDemand(NamedTuple):
    """The recorded ``redact`` and ``guard`` demands of a file, as JSON."""

    policy: dict[str, Any] | None
    """The policy's fields; names are veiled, and redactors appear only by id."""
    guards: tuple[dict[str, Any], ...]

    def shown(self) -> dict[str, Any]:
        """Return the part that may be shown; even the number of names needs the secret."""
        policy = self.policy
        if policy is not None:
            policy = {**policy, "names": bool(policy["names"])}
        return {"redact": policy, "guards": list(self.guards)}


_NOTHING: Final = FileDemand(None, ())
_ADVICE: Final = (
    "; db.demand(redact=, guard=) and 'memcore demand' change what a file demands, and "
    "guard=memcore.NoWrites() opens it for whatever stores no content"
)


def read_demand(txn: ReadTxn) -> FileDemand:
    """Read a file's demands.

    Raises:
        CorruptValueError: the row is damaged.
    """
    value = txn.get(DEMAND_KEY)
    return _NOTHING if value is None else _demand_of(DEMAND_KEY, value)


def is_demand(key: bytes, value: bytes) -> bool:
    """Return True if a row is a valid record of a file's demands."""
    return key == DEMAND_KEY and bool(_demand_of(key, value))


def _demand_of(key: bytes, value: bytes) -> FileDemand:
    flags, body = open_value(key, value)
    try:
        found = decode_json(body, flags)
        policy, guards = found["policy"], tuple(dict(each) for each in found["guards"])
        if policy is not None:
            policy = {**policy, "names": str(policy["names"]), "redactors": [*policy["redactors"]]}
        if not all(isinstance(name, str) for name in (each["guard"] for each in guards)):
            raise TypeError
        return FileDemand(policy, guards)
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        msg = (
            "the row that says what the file demands of its writers is malformed: pass redact= and "
            "guard= as they were, which writes it anew"
        )
        raise CorruptValueError(msg, key=key) from exc


def check_demand(txn: ReadTxn, path: str) -> list[str]:
    """Return problems with the record of a file's demands; empty if there are none."""
    flagged = _is_flagged(txn, path)
    if flagged == (txn.get(DEMAND_KEY) is not None):
        return []
    if flagged:
        return ["the file demands a redaction or a guard, but the row that says which is missing"]
    return ["a row says what the file demands of its writers, but its format record does not"]


def _is_flagged(txn: ReadTxn, path: str) -> bool:
    return bool(Format.unpack(stored(txn).get(FORMAT_KEY), path).features & DEMANDING)


def settled(store: Store, given: Admission) -> Admission:
    """Combine the options of a handle being opened with the file's demands.

    An option is recorded if the file has no such demand yet; otherwise it has to equal the
    recorded one, which also applies if the option is omitted.

    Raises:
        DemandError: the file demands another policy, or a guard or redactor that was not given.
        CorruptValueError: the demands cannot be read, and nothing was given.
        StorageError: the demands cannot be recorded.
    """
    if store.read_only or store.path == ":memory:" or store.environment().leader.poison:
        return given  # read-only and poisoned files are never written, memory is gone at close
    known = store.read(lambda txn: _recorded(txn, store.path, given))
    if not (known.policy or known.guards or given.policy or given.guards):
        return given
    held = _merged(store, known, given)
    # NoWrites is for one handle, which must not change what the file demands of others.
    if any(isinstance(guard, privacy.NoWrites) for guard in held.guards):
        return held
    wanted = _written(store, held)
    # Also if only the feature bit is missing: an older memcore would write past the row then.
    if wanted != known or not store.read(lambda txn: _is_flagged(txn, store.path)):
        store.transact(lambda txn: _record(txn, store, wanted, instead_of=known, given=given))
    return held


def _recorded(txn: ReadTxn, path: str, given: Admission) -> FileDemand:
    """As ``read_demand``; if the record is lost, the given options replace it."""
    is_given = given.policy is not None or bool(given.guards)
    try:
        found = read_demand(txn)
    except CorruptValueError:
        if not is_given:
            raise
        return _NOTHING
    if found == _NOTHING and _is_flagged(txn, path) and not is_given:
        msg = (
            f"{path}: demands a redaction or a guard, but the row that says which is gone: pass "
            f"redact= and guard= as they were{_ADVICE}"
        )
        raise DemandError(msg)
    return found


def _merged(store: Store, known: FileDemand, given: Admission) -> Admission:
    if any(isinstance(guard, privacy.NoWrites) for guard in given.guards):
        return Admission(_policy_of_care(store, known.policy), given.guards)
    policy, guards = given.policy, given.guards
    if known.policy is not None:
        policy = _policy_for(store, known.policy, policy)
    if known.guards and not guards:
        with decoding(DEMAND_KEY, "demand for a guard"):
            made = [(each, privacy.read_guard(each)) for each in known.guards]
        lacking = [str(each["guard"]) for each, guard in made if guard is None]
        if lacking:
            msg = (
                f"{store.path}: demands the guard {', '.join(lacking)}, which no file can hold: "
                f"pass it as guard={_ADVICE}"
            )
            raise DemandError(msg)
        guards = tuple(guard for _, guard in made if guard is not None)
    elif known.guards and _sorted(map(privacy.guard_mapping, guards)) != _sorted(known.guards):
        told = ", ".join(json.dumps(each) for each in known.guards)
        msg = (
            f"{store.path}: demands other guards than those given, namely {told}: pass them, or "
            f"leave guard= out if they come with memcore{_ADVICE}"
        )
        raise DemandError(msg)
    return Admission(policy, guards)


def _sorted(guards: Iterable[Mapping[str, Any]]) -> list[str]:
    return sorted(json.dumps(guard, sort_keys=True) for guard in guards)


def _policy_for(
    store: Store, recorded: dict[str, Any], given: RedactionPolicy | None
) -> RedactionPolicy:
    """Return a handle's policy: the recorded one if it can be rebuilt, or a given equal one."""
    names = recorded["names"]
    told = privacy.unveiled(store.secret.value(), names) if names else "[]"
    if given is not None:
        wanted = _policy_written(store, given)
        if told is None:  # another secret: the names cannot be compared
            wanted, recorded = {**wanted, "names": bool(given.names)}, {**recorded, "names": True}
        if wanted == recorded:
            return given
        differing = sorted(name for name in wanted if wanted[name] != recorded.get(name))
        msg = (
            f"{store.path}: demands another redaction than the one given; they differ in "
            f"{', '.join(differing)}: leave redact= out to have what the file demands{_ADVICE}"
        )
        raise DemandError(msg)
    if recorded["redactors"]:
        msg = (
            f"{store.path}: demands redactors that no file can hold "
            f"({', '.join(recorded['redactors'])}): pass the whole policy as redact={_ADVICE}"
        )
        raise DemandError(msg)
    if told is None:
        msg = (
            f"{store.path}: demands a redaction of names that only its secret opens, and the one "
            f"beside it is another: put the file {store.path}.secret back, or pass the whole "
            f"policy as redact={_ADVICE}"
        )
        raise DemandError(msg)
    with decoding(DEMAND_KEY, "demand for a redaction"):
        made = {**recorded, "names": json.loads(told)}
        del made["redactors"]
        found = privacy.redaction_policy(made)
    assert found is not None  # noqa: S101 - a mapping makes a policy
    return found


def _policy_of_care(store: Store, recorded: dict[str, Any] | None) -> RedactionPolicy | None:
    """Rebuild what can be rebuilt of a policy, for the texts that NoWrites lets pass: reasons."""
    if recorded is None:
        return None
    told = privacy.unveiled(store.secret.value(), recorded["names"]) if recorded["names"] else None
    with decoding(DEMAND_KEY, "demand for a redaction"):
        made = {**recorded, "names": json.loads(told or "[]")}
        del made["redactors"]
        return privacy.redaction_policy({**made, "verdicts": {}})


def _written(store: Store, held: Admission) -> FileDemand:
    policy = None if held.policy is None else _policy_written(store, held.policy)
    return FileDemand(policy, tuple(privacy.guard_mapping(guard) for guard in held.guards))


def _policy_written(store: Store, policy: RedactionPolicy) -> dict[str, Any]:
    found = {**policy.mapping(), "redactors": list(policy.redactor_ids)}
    # The policy keeps names out of the file, so they are stored encrypted under its secret.
    names = json.dumps(sorted(policy.names)) if policy.names else ""
    found["names"] = privacy.veiled(store.secret.value(), names) if names else ""
    return found


def _record(
    txn: Txn, store: Store, wanted: FileDemand, *, instead_of: FileDemand, given: Admission
) -> None:
    # Somebody else may have recorded other demands since they were read.
    found = _recorded(txn, store.path, given)
    if found not in (wanted, instead_of):
        msg = f"{store.path}: what it demands was changed meanwhile; open it again{_ADVICE}"
        raise DemandError(msg)
    _write(txn, store, wanted)


def _write(txn: Txn, store: Store, wanted: FileDemand) -> None:
    if wanted == _NOTHING:
        txn.delete(DEMAND_KEY)
        record = Format.unpack(stored(txn).get(FORMAT_KEY), store.path)
        record = record._replace(features=record.features & ~DEMANDING)
        cast("WriteTxn", txn).put_own(FORMAT_KEY, record.pack())
    else:
        body = {"policy": wanted.policy, "guards": list(wanted.guards)}
        txn.put(DEMAND_KEY, seal_value(DEMAND_KEY, *encode_json(body)))
        txn.need_feature(DEMANDING)
    guards = [guard["guard"] for guard in wanted.guards]
    classes = None if wanted.policy is None else wanted.policy["classes"]
    audit.record_event(txn, 0, "demand", {"redact": classes, "guards": guards})


def demand(store: Store, redact: Any, guard: Any, *, dry_run: bool = False) -> FileDemand:
    """Change the file's demands, unless it is a dry run; see ``Database.demand``. Return them."""
    if store.read_only and not dry_run:
        msg = "the database is open read-only; open it for writing"
        raise ReadOnlyError(msg)
    if guard is not None and guard is not False and not privacy.checked_guard(guard):
        msg = "guard: expected a guard or a list of some; False takes back what the file demands"
        raise InvalidOptionError(msg)
    given = admission(None if redact is False else redact, None if guard is False else guard)
    if any(isinstance(each, privacy.NoWrites) for each in given.guards):
        msg = "guard: NoWrites is for one handle; a file cannot demand it"
        raise InvalidOptionError(msg)
    made = _written(store, given)

    def wanted(known: FileDemand) -> FileDemand:
        policy = known.policy if redact is None else made.policy
        return FileDemand(policy, known.guards if guard is None else made.guards)

    def closure(txn: Txn) -> FileDemand:
        known = _readable_demand(txn)
        found = wanted(known)
        if found != known:
            _write(txn, store, found)
        return found

    return wanted(store.read(_readable_demand)) if dry_run else store.transact(closure)


def _readable_demand(txn: ReadTxn) -> FileDemand:
    """Read the file's demands; none if they are damaged."""
    try:
        return read_demand(txn)
    # An operator has to be able to replace a record that nobody can read.
    except CorruptValueError:
        return _NOTHING


# --- Incoming items: screened and redacted before they are classified and counted -----------------
# A quarantined item is replaced by a placeholder with the same ids, so that calls and results stay
# paired; the original goes to a quarantine row in the same commit.

QUARANTINED: Final = "[QUARANTINED]"
"""Text stored in the log in place of a quarantined one."""
DROPPED: Final = "[DROPPED]"
"""Text stored in the log in place of a dropped one, of which nothing is kept."""
_CLEAN, _REDACTED = Envelope(redacted=False), Envelope(redacted=True)
_NAMES: Final = ("type", "request_id", "model", "tool", "author", "agent", "owner")
"""Envelope fields by which items are selected."""
_SOURCES: Final = ("other", "system", "user", "model", "model", "tool", "model", "event")
"""Indexed by ItemKind."""
_STRUCTURE: Final = frozenset((
    "id", "type", "role", "name", "call_id", "tool_call_id", "tool_use_id", "toolCallId", "status",
    "object", "model", "index", "lc", "function", "is_error", "thought", "media_type", "mimeType",
    "mime_type", "detail", "author", "invocationId", "invocation_id", "parent_id", "server_label",
))  # fmt: skip
"""Structural members of a message; all other texts of a quarantined one are replaced."""


class Admitted(NamedTuple):
    """An item and its meta, filtered for storage."""

    message: Any
    meta: Mapping[str, Any] | None
    redacted: bool | None
    """True if something in it was replaced; None: it was not examined."""
    held: bytes | None
    original: Any = None
    """The message as it would have been stored, if it is quarantined."""


def admitted_item(
    scope_filter: ScopeFilter,
    item: Any,
    meta: Mapping[str, Any] | None,
    *,
    source: str | None = None,
) -> Admitted:
    """Filter one wire object for storage; without ``source`` it is derived from the item's kind.

    Raises:
        BlockedError: a guard refuses it.
        InvalidItemError: it is not JSON.
    """
    if not isinstance(item, Mapping):
        return Admitted(item, meta, redacted=None, held=None)  # rejected when it is prepared
    message: Message = _plain(dict(item), "item")
    source = source or _SOURCES[classify(message)[0]]
    passed = scope_filter.item(message, "item", source)
    if passed.dropped:
        return Admitted(placeholder(message, DROPPED), None, True, None)
    told, is_told = _meta(scope_filter, meta, source)
    if passed.reason is None:
        return Admitted(passed.value, told, is_told or passed.redacted, None)
    held = _held(passed.value, source, passed.reason)
    return Admitted(placeholder(message), told, True, held, passed.value)


def admitted_event(
    scope_filter: ScopeFilter, event_type: str, payload: Any, meta: Mapping[str, Any] | None
) -> Admitted:
    """Filter an event's payload for storage; raises what ``admitted_item`` raises."""
    scope_filter.name(event_type, "type of an event")
    plain = _plain(payload, "item")
    passed = scope_filter.item({"type": event_type, "payload": plain}, "event", "event")
    if passed.dropped:
        return Admitted(DROPPED, None, True, None)
    told, is_told = _meta(scope_filter, meta, "event")
    if passed.reason is None:
        return Admitted(passed.value["payload"], told, is_told or passed.redacted, None)
    held = _held(passed.value, "event", passed.reason)
    return Admitted(QUARANTINED, told, True, held, passed.value)


def told(
    scope_filter: ScopeFilter,
    envelope: Envelope | None,
    *,
    redacted: bool | None,
    request_id: str | None = None,
) -> Envelope | None:
    """Filter an item's envelope for storage; ``redacted``: something in the item was replaced.

    None: the item was not examined, so the caller's own value stays.
    The status may be any text, and is redacted; author and tool are names, and stay.

    Raises:
        BlockedError: something is found in one of its names, or in ``request_id``.
    """
    scope_filter.name(request_id, "request_id")
    if envelope is not None:
        for name in _NAMES:
            scope_filter.name(getattr(envelope, name), f"{name} of an envelope")
    if envelope is not None and envelope.status is not None:
        status = scope_filter.again(envelope.status)
        if status != envelope.status:
            return replace(envelope, status=status, redacted=True)
    if redacted is None or (envelope is not None and envelope.redacted):
        return envelope
    if envelope is None:
        return _REDACTED if redacted else _CLEAN
    return replace(envelope, redacted=redacted)


def _meta(
    scope_filter: ScopeFilter, meta: Mapping[str, Any] | None, source: str
) -> tuple[Mapping[str, Any] | None, bool]:
    if not meta or not isinstance(meta, Mapping):
        return meta, False
    plain = _plain(dict(meta), "meta")
    told = scope_filter.value(plain, "meta", source=source)
    return told, told is not plain


def _plain(value: Any, what: str) -> Any:
    try:
        return codec.plain_json(value)
    except (TypeError, ValueError, RecursionError) as exc:
        msg = f"{what} cannot be written as JSON: {exc}"
        raise InvalidItemError(msg) from exc


def _held(message: Any, source: str, reason: str) -> bytes:
    said = {"source": source, "reason": reason, "message": message}
    encoded, flags = codec.encode_json(said)
    if len(encoded) > BLOB_INLINE_COMMIT_BYTES_MAX:
        msg = (
            f"an item of {len(encoded)} bytes is to be quarantined ({reason:.100}), which takes at "
            f"most {BLOB_INLINE_COMMIT_BYTES_MAX}: nothing was stored"
        )
        raise BlockedError(msg, verdict="quarantine", reason=reason)
    return bytes((flags,)) + encoded


# --- placeholders ---------------------------------------------------------------------------------


def placeholder(message: Message, said: str = QUARANTINED) -> Message:
    """Return a message with the same calls and results, but with all texts replaced by ``said``.

    Raises:
        BlockedError: it cannot be replaced without breaking a pair.
    """
    # Facts are only compared with each other, so no file's seed is needed.
    seed = bytes(16)
    edits: dict[Path, Any] = {}
    for result in results_of(message):
        edits |= result.cleared(said)
    for text in texts_of(message):
        edits[text.path] = said
    for each in arguments_of(message):
        edits[each.path] = {"json": "{}", "object": {}, "text": said}[each.form]
    made: Message = _silenced(edited(message, edits) if edits else message, said)
    # A placeholder that lost a call or an id would leave its partner without one in the log.
    if pack_facts(made, seed) != pack_facts(message, seed):
        kind = ItemKind(classify(message)[0]).name.lower()
        msg = f"an item ({kind}) cannot be replaced without breaking its pair; nothing was stored"
        raise BlockedError(
            msg, verdict="quarantine" if said == QUARANTINED else "drop", reason="no placeholder"
        )
    return made


def _silenced(value: Any, said: str, name: str = "") -> Any:
    """Return a copy that keeps only the structure of the message."""
    if isinstance(value, dict):
        return {key: _silenced(entry, said, key) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_silenced(entry, said, name) for entry in value]
    if isinstance(value, bool) or value is None or name in _STRUCTURE:
        return value
    if isinstance(value, str):
        return value if value in ("", "{}") else said
    return 0


# --- Incoming views: redact the output of summarizers and reducers as if they were items ----------


def admitted_summary(ref: SessionRef, summary: str) -> str | BlockedError:
    """Filter a summary for storage; return the error if it may not be stored."""
    scope_filter = ref.scope_filter
    if scope_filter is None:
        return summary
    try:
        return scope_filter.text(summary, "summary", source="model")
    except BlockedError as exc:
        return exc


def admitted_outcome(ref: SessionRef, outcome: PlanOutcome) -> PlanOutcome:
    """Filter an outcome for the storage of its view.

    Summaries were screened on arrival; masks show parts of items, which may predate the policy.
    """
    scope_filter = ref.scope_filter
    if scope_filter is None or not scope_filter.redacts:
        return outcome
    # The plan's counter, as for all its figures: the session may have been recounted since.
    counter = ref.engine.counter_named(outcome.counter)
    masks = admitted_masks(scope_filter, outcome.plan.masks, counter)
    return replace(
        outcome,
        plan=outcome.plan if masks == outcome.plan.masks else replace(outcome.plan, masks=masks),
        summary=None if outcome.summary is None else scope_filter.again(outcome.summary),
        reason=None if outcome.reason is None else scope_filter.again(outcome.reason),
    )


def admitted_masks(
    scope_filter: ScopeFilter, masks: tuple[Mask, ...], counter: TokenCounter
) -> tuple[Mask, ...]:
    """Filter masks for storage; those that change are recounted."""
    found = []
    for mask in masks:
        message = mask.message
        shown = message if message is None else scope_filter.again(message)
        if shown is not None and shown is not message:
            mask = mask._replace(message=shown, tokens=count_message(shown, counter))  # noqa: PLW2901
        found.append(mask)
    return tuple(found)


# --- Redaction on output, for sessions that store clear text --------------------------------------


"""A policy, an equivalent of one, or None or False to show what is stored."""


def redacts_at(engine: Engine, redact: Redact, place: tuple[str, str, str | None]) -> Redacts:
    """Return the redaction for a place, with the placeholders that a policy would store there.

    Raises:
        InvalidOptionError: ``redact`` is not a policy.
        NotFoundError: there is no secret yet, and the database is open read-only.
    """
    policy = privacy.redaction_policy(redact)
    if policy is None:
        msg = "redact: expected a policy that looks for something"
        raise InvalidOptionError(msg)
    return privacy.Redaction(policy, secret=engine.store.secret.value()).for_place(*place)


def shown_items(ref: SessionRef, found: Iterable[Item], redact: Redact) -> Iterator[Item]:
    """Redact items for output; raises what ``redacts_at`` raises."""
    place = ref.app, ref.user, ref.name
    redacts = redacts_at(ref.engine, redact, place)
    return (_shown(redacts, item) for item in found)


def _shown(redacts: Redacts, item: Item) -> Item:
    message = redacts.value(item.message)[0]
    meta = item.meta if item.meta is None else redacts.value(item.meta)[0]
    envelope = item.envelope
    if envelope is not None and envelope.status is not None:  # the only field of any text
        envelope = replace(envelope, status=redacts.value(envelope.status)[0])
    return item._replace(message=message, meta=meta, envelope=envelope)


def shown_context(ref: SessionRef, found: Context, redact: Redact) -> Context:
    """Redact a context for output; raises what ``redacts_at`` raises.

    Token counts remain those of the stored items: a placeholder may count slightly differently.
    """
    place = ref.app, ref.user, ref.name
    redacts = redacts_at(ref.engine, redact, place)
    summary = None if found.summary is None else redacts.value(found.summary)[0]
    return replace(found, messages=redacts.value(found.messages)[0], summary=summary)


# --- Quarantine: items held back in one scope, listed, released or dropped by an operator ---------

T = TypeVar("T")


class Quarantined(NamedTuple):
    """A quarantined item; the log holds a placeholder under its seq."""

    session_id: str
    """Empty if the session was deleted and only its forks remain."""
    seq: int
    source: str
    """Source of the item, as given to guards."""
    reason: str
    message: Message


class Quarantine:
    """A scope's quarantine: the handle ``scope.quarantine``."""

    __reduce__ = refuse_copies

    def __init__(self, engine: Engine, find: Callable[[ReadTxn], int | None], label: str) -> None:
        self._engine = engine
        self._find = find
        self._label = label

    def __repr__(self) -> str:
        return f"Quarantine({self._label})"

    def __iter__(self) -> Iterator[Quarantined]:
        return iter(self.list())

    def __len__(self) -> int:
        return len(self.list())

    def __bool__(self) -> bool:
        return True

    def list(self, session_id: str | None = None) -> list[Quarantined]:
        """Return the quarantined items by session and seq, of one session or of all.

        Raises:
            InvalidOptionError: ``session_id`` is no str.
            CorruptValueError: a row is damaged.
        """
        checked_optional_text("session_id", session_id)

        def look(txn: ReadTxn) -> list[Quarantined]:
            scope = self._find(txn)
            if scope is None:
                return []
            named = {number: name for name, number in names.sessions(txn, scope)}
            found = (
                Quarantined(named.get(held.session, ""), *held[1:]) for held in held_in(txn, scope)
            )
            return [each for each in found if session_id in (None, each.session_id)]

        return self._engine.store.read(look)

    def release(self, session_id: str, seq: int) -> None:
        """Replace a placeholder by its original, for everyone who sees the item.

        The token count is unchanged: the placeholder was counted as the original.

        Raises:
            NotFoundError: no such item is quarantined.
            BlockedError: called outside ``memcore.as_operator()``.
            ReadOnlyError, CorruptValueError, StorageError
        """
        self._need_operator("released")
        seq = self._checked_seq(session_id, seq)

        def look(txn: ReadTxn) -> tuple[int, int, Message]:
            scope, session = self._place(txn, session_id)
            held = read_held(txn, scope, session, seq)
            if held is None:
                raise self._missing(session_id, seq)
            return scope, session, held.message

        done = False
        while not done:  # retry if the placeholder was rewritten meanwhile
            scope, session, message = self._engine.store.read(look)
            done = self._put_back(scope, session, seq, message)

    def _put_back(self, scope: int, session: int, seq: int, message: Message) -> bool:
        """Restore an original and drop its quarantine row in one commit; return if it succeeded."""
        done = sessions.rewrite_items(
            self._engine,
            scope,
            session,
            {seq: message},
            # The placeholder was stored with the original's tokens, so the sums stay right.
            may_grow=True,
            along=lambda txn: drop_held(txn, scope, session, seq),
        )
        return bool(done.seqs)

    def drop(self, session_id: str, seq: int) -> None:
        """Delete an original; the placeholder stays. Raises what ``release`` raises."""
        self._need_operator("dropped")
        seq = self._checked_seq(session_id, seq)

        def closure(txn: Txn) -> None:
            if not drop_held(txn, *self._place(txn, session_id), seq):
                raise self._missing(session_id, seq)

        self._engine.store.transact(closure, makes_room=True)

    def _checked_seq(self, session_id: str, seq: object) -> int:
        names.check_name(session_id, "session_id")
        found = checked_int("seq", seq, least=1)
        if found >= SEQ_END:
            raise self._missing(session_id, found)
        return found

    def _place(self, txn: ReadTxn, session_id: str) -> tuple[int, int]:
        scope = self._find(txn)
        session = None if scope is None else names.session_of(txn, scope, session_id)
        if scope is None or session is None:
            msg = f"there is no session {session_id!r} in the scope of {self._label}"
            raise NotFoundError(msg)
        return scope, session

    def _missing(self, session_id: str, seq: int) -> NotFoundError:
        msg = f"item {seq} of session {session_id!r} is not in the quarantine of {self._label}"
        return NotFoundError(msg)

    def _need_operator(self, what: str) -> None:
        if self._engine.store.read_only:
            msg = "the database is open read-only; open it for writing"
            raise ReadOnlyError(msg)
        if not privacy.is_operator():
            msg = (
                f"what is in the quarantine is {what} by an operator alone: call it inside 'with "
                "memcore.as_operator():'"
            )
            raise BlockedError(msg, reason="no operator")
