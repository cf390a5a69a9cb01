"""What expires: verbs, as in ``verbs``. One lane alone sweeps a file: what is due is so for all."""

from __future__ import annotations

import time

from .verbs import GONE, Place, State, Step, content, verb

_HOUR = 3600.0
_LENT = "lent"
"""How the keys begin that are put for a time."""


def _expired(state: State, step: Step) -> None:
    name, keep = step.arguments
    tags = state[f"s/{name}"]
    gone = max(len(tags) - keep, 0)
    for other, found in list(state.items()):
        if other.startswith("s/"):  # forks share what they have of them
            state[other] = tuple(GONE if tag in tags[:gone] else tag for tag in found)


@verb(_expired)
def expire(place: Place, step: Step) -> None:
    """``expire name keep``: of all items but the last ``keep`` only their place stays."""
    name, keep = step.arguments
    where = {"user": place.lane, "app": "default", "session": name}
    place.db.retention.set([{"what": "items", "keep_last": keep}], **where)
    place.db.sweep()
    place.db.retention.set(None, **where)


def _lent(state: State, step: Step) -> None:
    for key, tag in zip(step.arguments[::2], step.tags(step.arguments[1::2]), strict=True):
        state[f"k/{_LENT}{key}"] = tag


@verb(_lent)
def lend(place: Place, step: Step) -> None:
    """``lend key size ...``: values that stay for an hour, in one transaction."""
    pairs = list(zip(step.arguments[::2], step.tags(step.arguments[1::2]), strict=True))
    place.kv.transact(
        lambda txn: [txn.put(_LENT + key, content(tag), ttl_seconds=_HOUR) for key, tag in pairs]
    )


def _lapsed(state: State, _: Step) -> None:
    for key in [key for key in state if key.startswith(f"k/{_LENT}")]:
        del state[key]


@verb(_lapsed)
def lapse(place: Place, step: Step) -> None:
    """``lapse``: the time of what was lent has come."""
    place.db.sweep(now=time.time() + 2 * _HOUR)


def _outlived(state: State, step: Step) -> None:
    name = step.arguments[0]
    for kind in "svpucnm":
        state.pop(f"{kind}/{name}", None)


@verb(_outlived)
def outlive(place: Place, step: Step) -> None:
    """``outlive name``: the time of a session has come; nothing else is lent so shortly."""
    name = step.arguments[0]
    place.db.retention.expire_session(name, 1.0, user=place.lane)
    place.db.sweep(now=time.time() + 60)
