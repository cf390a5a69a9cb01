"""Telemetry: records of operations to logs, metrics and spans; never content.

Names are imported when they are first used: OpenTelemetry and the access log cost nothing until
then.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memcore.telemetry.logs import AccessLog, LogSink
    from memcore.telemetry.observer import (
        Observer,
        Telemetry,
        adapting,
        adapts,
        adopt,
        bound,
        counted,
        observe,
        observer_of,
        opening,
        plain,
        seen_compacting,
        telemetry_of,
    )
    from memcore.telemetry.otel import OpenTelemetry
    from memcore.telemetry.record import Record, Sink

__all__ = [
    "AccessLog",
    "LogSink",
    "Observer",
    "OpenTelemetry",
    "Record",
    "Sink",
    "Telemetry",
    "adapting",
    "adapts",
    "adopt",
    "bound",
    "counted",
    "observe",
    "observer_of",
    "opening",
    "plain",
    "seen_compacting",
    "telemetry_of",
]


_HOMES = {
    "AccessLog": "logs",
    "LogSink": "logs",
    "Observer": "observer",
    "OpenTelemetry": "otel",
    "Record": "record",
    "Sink": "record",
    "Telemetry": "observer",
    "adapting": "observer",
    "adapts": "observer",
    "adopt": "observer",
    "bound": "observer",
    "counted": "observer",
    "observe": "observer",
    "observer_of": "observer",
    "opening": "observer",
    "plain": "observer",
    "seen_compacting": "observer",
    "telemetry_of": "observer",
}


if not TYPE_CHECKING:  # for a type checker there are the public names above, and no others

    def __getattr__(name: str) -> Any:
        """Import a name from its home on first use."""
        if name not in _HOMES:
            msg = f"module 'memcore.telemetry' has no attribute {name!r}"
            raise AttributeError(msg)
        found = getattr(import_module(f"memcore.telemetry.{_HOMES[name]}"), name)
        globals()[name] = found
        return found
