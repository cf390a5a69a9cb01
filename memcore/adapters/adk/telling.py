"""Whom telemetry is told of: application, user and session of a call, as ADK names them."""

from __future__ import annotations

from typing import Any

from memcore.telemetry.observer import Place

__all__ = ["place_of"]


def place_of(args: tuple[Any, ...], options: dict[str, Any]) -> Place:
    """From the names among the arguments, or from the Session that is one of them."""
    session = options.get("session", args[0] if args else None)
    app = options.get("app_name", getattr(session, "app_name", None))
    user = options.get("user_id", getattr(session, "user_id", None))
    return app, user, options.get("session_id", getattr(session, "id", None))
