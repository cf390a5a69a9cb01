"""The redo slots blanked: they hold the last commits once more, and what is to be forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcore.errors import OutcomeUnknownError

if TYPE_CHECKING:
    from memcore.store.environment import Environment

__all__ = ["wipe_slots"]


def wipe_slots(env: Environment) -> None:
    """Leave nothing in the redo slots of what was committed; what is stored stays. Needs the lead.

    Raises:
        OutcomeUnknownError: a flush failed; the environment refuses writes from now on.
    """
    lock = env.begin_write()  # no other process may be about to rest on a record
    try:
        if env.redo is not None:
            env.leader.sync()  # nobody needs the last record any more
            env.redo.wipe()
    except OSError as error:
        env.leader.poison_for(error)
        raise OutcomeUnknownError(env.leader.poison) from error
    finally:
        lock.abort()
