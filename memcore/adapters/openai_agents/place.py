"""Where a session of the SDK lies in memcore: which scope, under which name."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from agents.exceptions import UserError

from memcore.database import Scope
from memcore.database.scope import scope_beside
from memcore.limits import NAME_CHARS_MAX

__all__ = [
    "MAIN",
    "MESSAGES_TABLE",
    "SESSIONS_TABLE",
    "ScopeOf",
    "app_of",
    "branch_name_of",
    "digest_of",
    "name_of",
    "routed",
]

SESSIONS_TABLE: Final = "agent_sessions"
MESSAGES_TABLE: Final = "agent_messages"
ScopeOf: TypeAlias = Callable[[Any], Scope | tuple[str, str]]
"""Given the Runner's context wrapper, the scope that a call works in, or its ``(app, user)``."""

MAIN: Final = "main"
"""The branch that a session begins with."""

_TABLED: Final = re.compile(r' \["(?:[^"\\]|\\.)*", "(?:[^"\\]|\\.)*"\]\Z', re.DOTALL)
_ESCAPE: Final = "\0"
_BRANCH: Final = _ESCAPE + "@"


def name_of(session_id: str) -> str:
    """The name in memcore of a session id; different ids have different names.

    An id is its own name but where memcore has no such names: the empty one, and very long ones,
    which are hashed.

    Raises:
        TypeError: the id is no string.
    """
    if not isinstance(session_id, str):
        msg = f"session_id: expected a str, got {type(session_id).__name__}"
        raise TypeError(msg)
    if session_id and session_id[0] != _ESCAPE and len(session_id) <= NAME_CHARS_MAX:
        return session_id
    if len(session_id) < NAME_CHARS_MAX:
        return _ESCAPE + session_id
    return f"{_ESCAPE}#{digest_of(session_id)}"


def branch_name_of(session_id: str, branch_id: str) -> str:
    """The name in memcore of a branch: no session id has it, nor another branch of any session."""
    if branch_id == MAIN:
        return name_of(session_id)
    name = f"{_BRANCH}{len(session_id)}:{session_id}:{branch_id}"
    if len(name) <= NAME_CHARS_MAX:
        return name
    return f"{_BRANCH}#{digest_of(session_id)}{digest_of(branch_id)}"


def digest_of(text: str) -> str:
    """64 hexadecimal digits that stand for a text of any length."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def app_of(app: str, sessions_table: str, messages_table: str) -> str:
    """The application of a pair of tables: another pair is another space, as in SQLite."""
    is_default = (sessions_table, messages_table) == (SESSIONS_TABLE, MESSAGES_TABLE)
    if is_default and not _TABLED.search(app):
        return app  # one that looks as if tables were named gets them named, too
    return f"{app} {json.dumps([sessions_table, messages_table])}"  # no two pairs are written alike


def routed(base: Scope, scope_of: ScopeOf, wrapper: Any) -> Scope:
    """The scope that ``scope_of`` names for a run.

    Raises:
        UserError: the call came without a run context, so it belongs to nobody.
        TypeError: ``scope_of`` returned neither a scope nor an ``(app, user)``.
    """
    if wrapper is None:
        msg = (
            "this MemcoreSession finds its user by scope_of=, so each call needs the run context: "
            "pass wrapper=, or use a session with user= where there is none"
        )
        raise UserError(msg)
    found = scope_of(wrapper)
    if isinstance(found, Scope):
        return found
    if isinstance(found, tuple) and [type(part) for part in found] == [str, str]:
        return scope_beside(base, app=found[0], user=found[1])
    msg = f"scope_of: expected a Scope or (app, user), got {found!r:.80}"
    raise TypeError(msg)
