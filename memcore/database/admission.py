"""What ``redact`` and ``guard`` of ``memcore.open`` come to: the border of one open file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from memcore.privacy import Redaction, RedactionPolicy, redaction_policy
from memcore.privacy.border import Border
from memcore.privacy.guard import WriteGuard, checked_guard
from memcore.privacy.secret import Secret
from memcore.store import LmdbStore

__all__ = ["Admission", "Guards", "Redact", "admission"]

Redact: TypeAlias = RedactionPolicy | str | Mapping[str, Any] | bool | None
Guards: TypeAlias = WriteGuard | Sequence[WriteGuard] | None


class Admission(NamedTuple):
    """Checked options."""

    policy: RedactionPolicy | None
    guards: tuple[WriteGuard, ...]

    def border(self, store: LmdbStore, secret: Secret) -> Border | None:
        """The border of an open file; None if everything may be stored as it is.

        Raises:
            StorageError: there is no secret, and none can be made.
        """
        policy = self.policy
        if store.read_only or (policy is None and not self.guards):
            return None
        return Border(
            None if policy is None else Redaction(policy, secret=secret.value()),
            self.guards,
            reserve=_reserve(secret),
            verdicts=policy.verdict if policy is not None and policy.verdicts else None,
            allow_opaque=getattr(policy, "allow_opaque", False),
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
