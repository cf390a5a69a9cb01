"""What ``redact`` and ``guard`` of ``memcore.open`` come to: the border of one open file.

They belong to the file, not to the handle: the first opening with one records it, in the row ``12 |
0 | 07`` and as a feature of the format, and who opens the file without it inherits it. What cannot
be written down, a guard or redactor of the caller's, is demanded: see ``settled``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast

from memcore import keys
from memcore.audit import record_event
from memcore.codec import decode_json, decoding, encode_json, open_value, seal_value
from memcore.errors import CorruptValueError, DemandError, InvalidOptionError, ReadOnlyError
from memcore.keys import Care
from memcore.privacy import Redaction, RedactionPolicy, redaction_policy
from memcore.privacy.border import Border, Passage, Told
from memcore.privacy.guard import WriteGuard, checked_guard
from memcore.privacy.guards import NoWrites, guard_mapping, read_guard
from memcore.privacy.secret import Secret, unveiled, veiled
from memcore.store import LmdbStore
from memcore.store.base import ReadTxn, Txn
from memcore.store.format import DEMANDING, FORMAT_KEY, Format
from memcore.store.txn import WriteTxn, stored

__all__ = [
    "Admission",
    "Demand",
    "Guards",
    "Redact",
    "admission",
    "admitted_fields",
    "admitted_line",
    "check_demand",
    "demand",
    "is_demand",
    "read_demand",
    "settled",
]

Redact: TypeAlias = RedactionPolicy | str | Mapping[str, Any] | bool | None
Guards: TypeAlias = WriteGuard | Sequence[WriteGuard] | None
DEMAND_KEY: Final = keys.care_rows(0, Care.DEMAND)
_CONTENT: Final = {"view": ("summary", "reason", "masks"), "checkpoint": ("name", "meta")}
"""What of the lines of an export is content."""
_KINDS: Final = {"view": "summary", "checkpoint": "checkpoint"}


class Admission(NamedTuple):
    """Checked options."""

    policy: RedactionPolicy | None
    guards: tuple[WriteGuard, ...]

    def border(self, store: LmdbStore, told: Told | None) -> Border | None:
        """The border of an open file; None if everything may be stored as it is.

        ``told`` is called with what was found, by class.

        Raises:
            StorageError: there is no secret, and none can be made.
        """
        policy = self.policy
        if store.read_only or (policy is None and not self.guards):
            return None
        return Border(
            None if policy is None else Redaction(policy, secret=store.secret.value()),
            self.guards,
            reserve=_reserve(store.secret),
            told=told,
            verdicts=policy.verdict if policy is not None and policy.verdicts else None,
            allow_opaque=policy is None or policy.allow_opaque,
        )


def _reserve(secret: Secret) -> Callable[[], Redaction]:
    """What redacts where a guard says so and there is no policy."""
    made: list[Redaction] = []

    def reserve() -> Redaction:
        if not made:
            made.append(Redaction(RedactionPolicy(), secret=secret.value()))
        return made[0]

    return reserve


def admission(redact: Redact, guard: Guards) -> Admission:
    """The options of ``memcore.open``, checked.

    Raises:
        InvalidOptionError: ``redact`` is no policy, or ``guard`` no guard.
    """
    return Admission(redaction_policy(redact), checked_guard(guard))


def admitted_line(passage: Passage, found: Any) -> Any:
    """A line of an export that is no item, as it may be stored: a view, a checkpoint, a state.

    Raises:
        BlockedError: a guard refuses it.
    """
    if not isinstance(found, dict):
        return found
    made = dict(found)
    for name, fields in _CONTENT.items():
        if isinstance(found.get(name), dict):
            made[name] = _told(passage, found[name], fields, _KINDS[name])
    if isinstance(found.get("state"), dict):
        made["state"] = dict(found["state"])
        for name in ("values", "set"):
            if isinstance(made["state"].get(name), dict):
                made["state"][name] = admitted_fields(passage, made["state"][name])
    return made


def admitted_fields(passage: Passage, values: Mapping[str, Any], shown: str = "") -> dict[str, Any]:
    """Values of a state as they may be stored; guards know fields with ``shown`` before them.

    Raises:
        BlockedError: a guard refuses one, or something is found in the name of a field.
    """
    for key in values:
        passage.name(key, "name of a field")
    return {
        key: passage.value(value, "state", name=f"{shown}{key}", under=key, source="import")
        for key, value in values.items()
    }


def _told(
    passage: Passage, found: dict[str, Any], fields: tuple[str, ...], kind: str
) -> dict[str, Any]:
    told = {name: found[name] for name in fields if found.get(name) is not None}
    checked = {name: passage.value(value, kind, source="import") for name, value in told.items()}
    return {**found, **checked}


# --- what a file demands --------------------------------------------------------------------------


class Demand(NamedTuple):
    """What a file records of ``redact`` and ``guard``, as JSON."""

    policy: dict[str, Any] | None
    """The fields of the policy; its names are veiled, and of redactors there is what they are."""
    guards: tuple[dict[str, Any], ...]

    def shown(self) -> dict[str, Any]:
        """What may be shown: how many names there are is not even known without the secret."""
        policy = self.policy
        if policy is not None:
            policy = {**policy, "names": bool(policy["names"])}
        return {"redact": policy, "guards": list(self.guards)}


_NOTHING: Final = Demand(None, ())
_ADVICE: Final = (
    "; db.demand(redact=, guard=) and 'memcore demand' change what a file demands, and "
    "guard=memcore.NoWrites() opens it for whatever stores no content"
)


def read_demand(txn: ReadTxn) -> Demand:
    """What the file demands.

    Raises:
        CorruptValueError: the row is damaged.
    """
    value = txn.get(DEMAND_KEY)
    return _NOTHING if value is None else _demand_of(DEMAND_KEY, value)


def is_demand(key: bytes, value: bytes) -> bool:
    """Whether a row says what a file demands, and can be read."""
    return key == DEMAND_KEY and bool(_demand_of(key, value))


def _demand_of(key: bytes, value: bytes) -> Demand:
    flags, body = open_value(key, value)
    try:
        found = decode_json(body, flags)
        policy, guards = found["policy"], tuple(dict(each) for each in found["guards"])
        if policy is not None:
            policy = {**policy, "names": str(policy["names"]), "redactors": [*policy["redactors"]]}
        if not all(isinstance(name, str) for name in (each["guard"] for each in guards)):
            raise TypeError
        return Demand(policy, guards)
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        msg = (
            "the row that says what the file demands of its writers is malformed: pass redact= and "
            "guard= as they were, which writes it anew"
        )
        raise CorruptValueError(msg, key=key) from exc


def check_demand(txn: ReadTxn, path: str) -> list[str]:
    """Findings about what the file demands; empty means sound."""
    flagged = _is_flagged(txn, path)
    if flagged == (txn.get(DEMAND_KEY) is not None):
        return []
    if flagged:
        return ["the file demands a redaction or a guard, but the row that says which is missing"]
    return ["a row says what the file demands of its writers, but its format record does not"]


def _is_flagged(txn: ReadTxn, path: str) -> bool:
    return bool(Format.unpack(stored(txn).get(FORMAT_KEY), path).features & DEMANDING)


def settled(store: LmdbStore, given: Admission) -> Admission:
    """What holds for a handle that is being opened: what was given, and what the file demands.

    What is given to a file that demands nothing of its sort is recorded; else it has to be the
    same, and where nothing is given, what the file records holds.

    Raises:
        DemandError: the file demands another policy, or a guard or redactor that was not given.
        CorruptValueError: what it demands cannot be read, and nothing was given.
        StorageError: it cannot be recorded.
    """
    if store.read_only or store.path == ":memory:" or store.environment().leader.poison:
        return given  # the first and the last never write, the second is gone at close
    known = store.read(lambda txn: _recorded(txn, store.path, given))
    if not (known.policy or known.guards or given.policy or given.guards):
        return given
    held = _merged(store, known, given)
    if any(isinstance(guard, NoWrites) for guard in held.guards):
        return held
    wanted = _written(store, held)
    if wanted != known or not store.read(lambda txn: _is_flagged(txn, store.path)):
        store.transact(lambda txn: _record(txn, store, wanted, instead_of=known, given=given))
    return held


def _recorded(txn: ReadTxn, path: str, given: Admission) -> Demand:
    """As ``read_demand``; where that is lost, what is given counts."""
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


def _merged(store: LmdbStore, known: Demand, given: Admission) -> Admission:
    if any(isinstance(guard, NoWrites) for guard in given.guards):
        return Admission(_policy_of_care(store, known.policy), given.guards)
    policy, guards = given.policy, given.guards
    if known.policy is not None:
        policy = _policy_for(store, known.policy, policy)
    if known.guards and not guards:
        with decoding(DEMAND_KEY, "demand for a guard"):
            made = [(each, read_guard(each)) for each in known.guards]
        lacking = [str(each["guard"]) for each, guard in made if guard is None]
        if lacking:
            msg = (
                f"{store.path}: demands the guard {', '.join(lacking)}, which no file can hold: "
                f"pass it as guard={_ADVICE}"
            )
            raise DemandError(msg)
        guards = tuple(guard for _, guard in made if guard is not None)
    elif known.guards and _sorted(map(guard_mapping, guards)) != _sorted(known.guards):
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
    store: LmdbStore, recorded: dict[str, Any], given: RedactionPolicy | None
) -> RedactionPolicy:
    """The policy of a handle: the recorded one, if it can be made again, or the same as it."""
    names = recorded["names"]
    told = unveiled(store.secret.value(), names) if names else "[]"
    if given is not None:
        wanted = _policy_written(store, given)
        if told is None:  # another secret: whether they are the same names cannot be known
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
        found = redaction_policy(made)
    assert found is not None  # noqa: S101 - a mapping makes a policy
    return found


def _policy_of_care(store: LmdbStore, recorded: dict[str, Any] | None) -> RedactionPolicy | None:
    """What of a policy can be made again, for the little that NoWrites lets pass: reasons."""
    if recorded is None:
        return None
    told = unveiled(store.secret.value(), recorded["names"]) if recorded["names"] else None
    with decoding(DEMAND_KEY, "demand for a redaction"):
        made = {**recorded, "names": json.loads(told or "[]")}
        del made["redactors"]
        return redaction_policy({**made, "verdicts": {}})


def _written(store: LmdbStore, held: Admission) -> Demand:
    policy = None if held.policy is None else _policy_written(store, held.policy)
    return Demand(policy, tuple(guard_mapping(guard) for guard in held.guards))


def _policy_written(store: LmdbStore, policy: RedactionPolicy) -> dict[str, Any]:
    found = {**policy.mapping(), "redactors": list(policy.redactor_ids)}
    # Names are what the policy keeps out of the file: there they stand under its secret.
    names = json.dumps(sorted(policy.names)) if policy.names else ""
    found["names"] = veiled(store.secret.value(), names) if names else ""
    return found


def _record(
    txn: Txn, store: LmdbStore, wanted: Demand, *, instead_of: Demand, given: Admission
) -> None:
    found = _recorded(txn, store.path, given)
    if found not in (wanted, instead_of):
        msg = f"{store.path}: what it demands was changed meanwhile; open it again{_ADVICE}"
        raise DemandError(msg)
    _write(txn, store, wanted)


def _write(txn: Txn, store: LmdbStore, wanted: Demand) -> None:
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
    record_event(txn, 0, "demand", {"redact": classes, "guards": guards})


def demand(store: LmdbStore, redact: Any, guard: Any) -> None:
    """Change what the file demands; see ``Database.demand``."""
    if store.read_only:
        msg = "the database is open read-only; open it for writing"
        raise ReadOnlyError(msg)
    given = admission(redact or None, guard or None)
    if any(isinstance(each, NoWrites) for each in given.guards):
        msg = "guard: NoWrites is for one handle; a file cannot demand it"
        raise InvalidOptionError(msg)
    made = _written(store, given)

    def closure(txn: Txn) -> None:
        try:
            known = read_demand(txn)
        except CorruptValueError:
            known = _NOTHING
        policy = known.policy if redact is None else made.policy
        guards = known.guards if guard is None else made.guards
        if Demand(policy, guards) != known:
            _write(txn, store, Demand(policy, guards))

    store.transact(closure)
