"""What every part of an open database asks before it does what is the administrator's."""

from __future__ import annotations

from typing import Any

from memcore.session import Backing

__all__ = ["Permitted"]


class Permitted:
    """A part of ``Database``."""

    _backing: Backing

    def _need(
        self, action: str, *, app: str | None = None, user: str | None = None, name: Any = None
    ) -> None:
        """Ask the authorizer, if there is one, for what is the administrator's.

        Raises:
            AccessDeniedError: it refused.
        """
        if self._backing.access is not None:
            self._backing.access.need(action, app=app, user=user, name=name)
