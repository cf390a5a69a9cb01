"""Payload of a request: everything that a model receives, assembled under one budget of tokens."""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "assembly": "AssembledPayload LeftOut PayloadPart SectionUse",
        "payload": "Payload PayloadPlan",
        "units": "PayloadUnit",
    },
)
