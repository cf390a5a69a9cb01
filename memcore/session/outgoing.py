"""Redaction on the way out: what is handed on of a session that holds clear text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from memcore.errors import InvalidOptionError
from memcore.model import Context, Item
from memcore.privacy import Redaction, RedactionPolicy, redaction_policy
from memcore.privacy.border import Redacts
from memcore.session.address import Address
from memcore.session.backing import Backing

__all__ = ["Redact", "redacts_at", "shown_context", "shown_items"]

Redact: TypeAlias = RedactionPolicy | str | Mapping[str, Any] | bool | None
"""A policy, what stands for one, or None and False: show what is stored."""


def redacts_at(backing: Backing, redact: Redact, place: tuple[str, str, str | None]) -> Redacts:
    """What redacts at a place: its placeholders are those that are stored there under a policy.

    Raises:
        InvalidOptionError: ``redact`` is no policy.
        NotFoundError: there is no secret yet, and the database is open read-only.
    """
    policy = redaction_policy(redact)
    if policy is None:
        msg = "redact: expected a policy that looks for something"
        raise InvalidOptionError(msg)
    return Redaction(policy, secret=backing.store.secret.value()).for_place(*place)


def shown_items(address: Address, found: Iterable[Item], redact: Redact) -> Iterator[Item]:
    """Items as they may be handed on; raises what ``redacts_at`` raises."""
    place = address.app, address.user, address.name
    redacts = redacts_at(address.backing, redact, place)
    return (_shown(redacts, item) for item in found)


def _shown(redacts: Redacts, item: Item) -> Item:
    message = redacts.value(item.message)[0]
    meta = item.meta if item.meta is None else redacts.value(item.meta)[0]
    return item._replace(message=message, meta=meta)


def shown_context(address: Address, found: Context, redact: Redact) -> Context:
    """A context as it may be handed on; raises what ``redacts_at`` raises.

    Its tokens stay those of what is stored: a placeholder may count a few more or less.
    """
    place = address.app, address.user, address.name
    redacts = redacts_at(address.backing, redact, place)
    summary = None if found.summary is None else redacts.value(found.summary)[0]
    return replace(found, messages=redacts.value(found.messages)[0], summary=summary)
