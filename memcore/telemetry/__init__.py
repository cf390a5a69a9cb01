"""What is done in a database, told to whom it concerns: records, logs, metrics, spans; no content.

Names are imported when they are first used: OpenTelemetry and the access log cost nothing until
then.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memcore.telemetry.access_log import AccessLog
    from memcore.telemetry.logs import LogSink
    from memcore.telemetry.observer import Observer, counted, note_stored
    from memcore.telemetry.observing import (
        adapting,
        adapts,
        adopt,
        bound,
        observe,
        observer_of,
        opening,
        plain,
        seen_compacting,
    )
    from memcore.telemetry.otel import OpenTelemetry
    from memcore.telemetry.record import Record, Sink
    from memcore.telemetry.seam import Telemetry, telemetry_of

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
    "note_stored",
    "observe",
    "observer_of",
    "opening",
    "plain",
    "seen_compacting",
    "telemetry_of",
]

_HOMES = {
    "AccessLog": "access_log",
    "LogSink": "logs",
    "Observer": "observer",
    "OpenTelemetry": "otel",
    "Record": "record",
    "Sink": "record",
    "Telemetry": "seam",
    "adapting": "observing",
    "adapts": "observing",
    "adopt": "observing",
    "bound": "observing",
    "counted": "observer",
    "note_stored": "observer",
    "observe": "observing",
    "observer_of": "observing",
    "opening": "observing",
    "plain": "observing",
    "seen_compacting": "observing",
    "telemetry_of": "seam",
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
