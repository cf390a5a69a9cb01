"""Beginning a session: the first row of its log says when that was, and its initial state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.platform import time as platform_time

from memcore import names
from memcore.adapters.adk.events import BEGIN, TEMPORARY, json_state
from memcore.adapters.adk.rewinding import is_own
from memcore.database import Scope
from memcore.model import Receipt
from memcore.session import Session
from memcore.session.changes import Closure
from memcore.store.base import Txn

__all__ = ["creation"]


def creation(
    scope: Scope, name: str, state: Mapping[str, Any]
) -> tuple[Session, Closure[Receipt]]:
    """A new session's handle, and what stores it.

    Raises (when it runs):
        AlreadyExistsError: there is a session of this name.
    """
    session = scope.session(name, policy="gemini", orphans="keep")
    values = {
        key: value for key, value in json_state(state).items() if not key.startswith(TEMPORARY)
    }
    own = {key: value for key, value in values.items() if is_own(key)}
    batch = session.plan_batch(None)
    batch.record(BEGIN, {"timestamp": platform_time.get_time(), "state": own})
    batch.update_state(values)
    create = batch.closure()

    def closure(txn: Txn) -> Receipt:
        place = names.scope_of(txn, scope.app, scope.user)
        if place is not None and names.session_of(txn, place, name) is not None:
            msg = f"Session with id {name} already exists."
            raise AlreadyExistsError(msg)
        return create(txn)

    return session, closure
