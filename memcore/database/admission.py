"""What ``redact`` and ``guard`` of ``memcore.open`` come to: the border of one open file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from memcore.privacy import Redaction, RedactionPolicy, redaction_policy
from memcore.privacy.border import Border, Passage, Told
from memcore.privacy.guard import WriteGuard, checked_guard
from memcore.privacy.secret import Secret
from memcore.store import LmdbStore

__all__ = ["Admission", "Guards", "Redact", "admission", "admitted_fields", "admitted_line"]

Redact: TypeAlias = RedactionPolicy | str | Mapping[str, Any] | bool | None
Guards: TypeAlias = WriteGuard | Sequence[WriteGuard] | None
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
        BlockedError: a guard refuses one.
    """
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
