"""``memcore.open`` with features on that are off by default.

``MEMCORE_TEST_OPTIONS`` names them, separated by commas: ``key``, ``audit``, ``redact``,
``telemetry``, ``sizes`` or ``all``. What a test asks for itself is left as it is.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import memcore

VARIABLE = "MEMCORE_TEST_OPTIONS"
RECORDS: list[Any] = []
"""What telemetry has told since the process began."""
OPTIONS: dict[str, dict[str, Any]] = {
    "key": {"key": bytes(range(32))},
    "audit": {"audit": memcore.Audit(key=bytes(range(32, 64)))},
    "redact": {"redact": "default"},
    "telemetry": {"telemetry": RECORDS.append},
    "sizes": {"item_bytes": 1 << 20, "oversize": "offload", "access_counts": True},
}
NAMES = [name for name in os.environ.get(VARIABLE, "").split(",") if name]
if NAMES == ["all"]:
    NAMES = list(OPTIONS)
if unknown := set(NAMES) - set(OPTIONS):
    raise SystemExit(f"{VARIABLE}: {sorted(unknown)}; known are {sorted(OPTIONS)} and 'all'")


def changes_bytes() -> bool:
    """Whether an option is on with which other bytes are stored than without it."""
    return bool({"key", "audit", "redact"} & set(NAMES))


def install() -> None:
    """Have ``memcore.open`` turn on what the environment names."""
    if not NAMES:
        return
    plain = memcore.open

    def open_with_options(path: Any, **given: Any) -> memcore.Database:
        for name in NAMES:
            if not given.keys() & OPTIONS[name].keys() and (name != "key" or _may_have_key(path)):
                given |= OPTIONS[name]
        return plain(path, **given)

    memcore.open = open_with_options


def _may_have_key(path: Any) -> bool:
    """Whether a file is a new one, or was made with a key."""
    is_path = isinstance(path, str | os.PathLike)
    return not is_path or not os.path.lexists(path) or Path(f"{os.fsdecode(path)}.keys").exists()
