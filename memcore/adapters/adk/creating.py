"""Beginning a session: the first row of its log holds its initial state, and when that was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.platform import time as platform_time

from memcore.adapters.adk.events import TEMPORARY, json_state
from memcore.adapters.adk.labels import fields_of
from memcore.aio.commit import commit
from memcore.database import Scope
from memcore.errors import PolicyMismatchError, RevisionConflict
from memcore.session import Session

__all__ = ["begin"]


async def begin(scope: Scope, name: str, state: Mapping[str, Any]) -> Session:
    """Store a new session; what of its state is temporary is left out.

    Raises:
        AlreadyExistsError: there is a session of this name.
        InvalidItemError: the state holds what neither JSON nor a string can say.
    """
    values = {
        key: value for key, value in json_state(state).items() if not key.startswith(TEMPORARY)
    }
    try:
        session = scope.session(name, policy="gemini", orphans="keep")
        batch = session.plan_batch(None)
        batch.begin_state(fields_of(values), meta={"adk": {"timestamp": platform_time.get_time()}})
        await commit(session, batch.closure())
    except (RevisionConflict, PolicyMismatchError) as exc:
        msg = f"Session with id {name} already exists."
        raise AlreadyExistsError(msg) from exc
    return session
