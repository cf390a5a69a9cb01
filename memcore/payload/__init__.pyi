# Written by scripts/make_faces from __init__.py.
from memcore.payload.assembly import AssembledPayload as AssembledPayload
from memcore.payload.assembly import LeftOut as LeftOut
from memcore.payload.assembly import PayloadPart as PayloadPart
from memcore.payload.assembly import SectionUse as SectionUse
from memcore.payload.payload import Payload as Payload
from memcore.payload.payload import PayloadPlan as PayloadPlan
from memcore.payload.units import PayloadUnit as PayloadUnit

__all__ = [
    "AssembledPayload",
    "LeftOut",
    "Payload",
    "PayloadPart",
    "PayloadPlan",
    "PayloadUnit",
    "SectionUse",
]
