"""Telemetry: records of operations, sent to logs, metrics and spans; never content.

Names are imported on first use: OpenTelemetry and the access log cost nothing until then.
"""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "logs": "AccessLog LogSink",
        "observer": (
            "Observer Telemetry adapting adapts adopt bound counted observe observer_of "
            "opening plain seen_compacting telemetry_of"
        ),
        "otel": "OpenTelemetry",
        "record": "Record Sink",
    },
)
