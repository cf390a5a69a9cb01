"""Leases that change hands while the power fails: verbs, as in ``verbs``.

A lane takes the leases of its own sessions under different names, so that each take fences the
handle before. A state has ``l/name``: the owner and the epoch.
"""

from __future__ import annotations

import memcore
from memcore.rows.lifecycle import read_lease
from memcore.session.session import ref_of, store_of

from .verbs import Place, State, Step, appended, messages, verb

_HOURS = 10 * 3600.0


def _taken(state: State, step: Step) -> None:
    name, owner = step.arguments
    epoch = state.get(f"l/{name}", ("", 0))[1]
    state[f"l/{name}"] = (owner, epoch + 1)
    state.setdefault(f"s/{name}", ())


@verb(_taken)
def take(place: Place, step: Step) -> None:
    """``take name owner``: the lease, whoever holds it, who is fenced from then on."""
    name, owner = step.arguments
    before = place.leased.get(name)
    session = place.session(name)
    lease = session.lease(owner, ttl_seconds=_HOURS, force=True)
    place.leased[name] = session, lease
    if before is not None:
        try:
            before[0].extend(messages(step, [50]))
        except (memcore.FencedError, memcore.LeaseHeldError):
            return
        raise AssertionError(f"{before[1]!r} was fenced, and its handle wrote")


@verb(appended)
def under_lease(place: Place, step: Step) -> None:
    """``under_lease name size...``: items of whoever holds the lease; others are refused."""
    name, *sizes = step.arguments
    try:
        place.session(name).extend(messages(step, sizes))
    except memcore.LeaseHeldError:
        place.leased[name][0].extend(messages(step, sizes))
        return
    raise AssertionError(f"{name}: who holds no lease wrote")


@verb()
def renew(place: Place, step: Step) -> None:
    """``renew name``: hold it for longer."""
    place.leased[step.arguments[0]][1].renew()


def _given_up(state: State, step: Step) -> None:
    name = f"l/{step.arguments[0]}"
    state[name] = ("", state[name][1])


@verb(_given_up)
def give_up(place: Place, step: Step) -> None:
    """``give_up name``: nobody holds it any more."""
    assert place.leased.pop(step.arguments[0])[1].release()


def lease_of(session: memcore.Session) -> tuple[str, int] | None:
    """The owner and the epoch of a session's lease, as a state has them."""
    row = store_of(session).read(lambda txn: read_lease(txn, *ref_of(session).find(txn)))
    return None if row is None else (row.owner, row.epoch)
