"""Pair policies: the rules of each provider. One preset per wire format, plus ``seed``."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from memcore._fast import Ledger, has_long_id
from memcore.errors import InvalidOptionError
from memcore.model import ItemKind, Message
from memcore.records import record

__all__ = [
    "POLICIES",
    "PairPolicy",
    "format_policy",
    "get_policy",
    "policy_name",
]


GLUE_REASONING: Final = 1
GLUE_THINKING_LOOP: Final = 2
ORPHAN_POISON: Final = 1
ORPHAN_UNBOUND: Final = 2


@record(frozen=True, slots=True)
class PairPolicy:
    """The rules that a provider imposes on a message list.

    ``adjacency`` is the place of results: ``any_later`` (anywhere after their call), ``behind``
    (directly after the item with the call) or ``next_message`` (all in the next message).
    """

    name: str
    wire: Literal["chat", "responses", "anthropic", "gemini", "langchain"]
    adjacency: Literal["any_later", "behind", "next_message"]
    starts: frozenset[ItemKind]
    """Kinds of item that a context may start with (after its pins)."""
    must_start: bool = False
    """True if the provider rejects any other start; false if it is only a recommendation."""
    glue: int = 0
    poison: bool = False
    """Forbid cuts at or before an orphan (the plain rule), instead of omitting the orphan."""
    standalone_results: bool = False
    """A result without a call id is legal on its own."""
    repairs: bool = True
    """True if rendering hoists, synthesizes and merges; false if it only omits orphans."""
    unique_ids: bool = False
    id_chars_max: int | None = None
    one_pin: bool = False
    """Pin only the first system item, instead of the leading run of them."""

    def new_ledger(self, open_tokens: int, *, expect_items: int = 0) -> Ledger:
        """Create an empty ledger for this policy's cuts, with room for the expected items.

        A policy without repairs shows no synthetic results, so they cost nothing.
        """
        orphan = ORPHAN_POISON if self.poison else 0
        if not self.standalone_results and not self.poison:
            orphan |= ORPHAN_UNBOUND
        return Ledger(
            start_mask=sum(1 << kind for kind in self.starts),
            glue=self.glue,
            orphan=orphan,
            open_tokens=open_tokens if self.repairs else 0,
            expect_items=expect_items,
            expect_calls=expect_items // 2,
        )

    def takes_ids(self, messages: list[Message]) -> bool:
        """Return whether no call id is too long for the provider."""
        return self.id_chars_max is None or not has_long_id(messages, self.id_chars_max)

    @property
    def mended(self) -> PairPolicy:
        """Policy that renders a repaired view: this one if it repairs, else OpenAI chat's rules."""
        if self.repairs:
            return self
        return replace(self, repairs=True, adjacency="behind", standalone_results=False)

    def pin_count(self, ledger: Ledger) -> int:
        """Count the leading positions that are pinned."""
        found = ledger.leading(ItemKind.SYSTEM)
        if not self.one_pin:
            return found
        while found > 1 and ledger.kind_at(found - 2) != ItemKind.EVENT:
            found -= 1
        return found


_USER = frozenset({ItemKind.USER})

POLICIES: Final = {
    policy.name: policy
    for policy in (
        PairPolicy("openai_chat", "chat", "behind", _USER, id_chars_max=40),
        PairPolicy(
            "openai_responses",
            "responses",
            "any_later",
            _USER,
            glue=GLUE_REASONING,
            standalone_results=True,
            id_chars_max=64,
        ),
        PairPolicy(
            "anthropic",
            "anthropic",
            "next_message",
            _USER,
            must_start=True,
            glue=GLUE_THINKING_LOOP,
            unique_ids=True,
        ),
        PairPolicy("gemini", "gemini", "next_message", _USER, must_start=True),
        PairPolicy("langchain", "langchain", "behind", _USER),
        PairPolicy(
            "seed",
            "chat",
            "any_later",
            frozenset(ItemKind) - {ItemKind.EVENT},
            poison=True,
            standalone_results=True,
            repairs=False,
            one_pin=True,
        ),
    )
}


def get_policy(policy: str | PairPolicy, *, name: str = "policy") -> PairPolicy:
    """Look up a preset by name; a ``PairPolicy`` is returned unchanged.

    ``name`` is that of the argument, in the error.

    Raises:
        InvalidOptionError: there is no such preset.
    """
    if isinstance(policy, PairPolicy):
        return policy
    found = POLICIES.get(policy) if isinstance(policy, str) else None
    if found is None:
        msg = f"{name}: expected one of {', '.join(POLICIES)}; got {policy!r}"
        raise InvalidOptionError(msg)
    return found


def format_policy(given: str | PairPolicy, name: str) -> PairPolicy:
    """Look up the policy of a wire format, for the argument ``name``.

    Raises:
        InvalidOptionError: there is no such format; ``seed`` has none of its own.
    """
    found = POLICIES.get(given) if isinstance(given, str) else given
    if not isinstance(found, PairPolicy) or not found.repairs:
        formats = ", ".join(each.name for each in POLICIES.values() if each.repairs)
        raise InvalidOptionError(f"{name}: expected one of {formats}; got {given!r:.80}")
    return found


def policy_name(policy: object) -> str:
    """Validate the name of a preset, the form in which sessions store it.

    Raises:
        InvalidOptionError: it is not the name of a preset.
    """
    if not isinstance(policy, str):
        msg = f"policy: expected the name of a preset, got {type(policy).__name__}"
        raise InvalidOptionError(msg)
    return get_policy(policy).name
