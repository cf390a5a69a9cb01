# Written by scripts/make_faces from __init__.py.
from memcore.telemetry.logs import AccessLog as AccessLog
from memcore.telemetry.logs import LogSink as LogSink
from memcore.telemetry.observer import Observer as Observer
from memcore.telemetry.observer import Telemetry as Telemetry
from memcore.telemetry.observer import adapting as adapting
from memcore.telemetry.observer import adapts as adapts
from memcore.telemetry.observer import adopt as adopt
from memcore.telemetry.observer import bound as bound
from memcore.telemetry.observer import counted as counted
from memcore.telemetry.observer import observe as observe
from memcore.telemetry.observer import observer_of as observer_of
from memcore.telemetry.observer import opening as opening
from memcore.telemetry.observer import plain as plain
from memcore.telemetry.observer import seen_compacting as seen_compacting
from memcore.telemetry.observer import telemetry_of as telemetry_of
from memcore.telemetry.otel import OpenTelemetry as OpenTelemetry
from memcore.telemetry.record import Record as Record
from memcore.telemetry.record import Sink as Sink

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
