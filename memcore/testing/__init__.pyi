# Written by scripts/make_faces from __init__.py.
from memcore.testing.faults import child_env as child_env
from memcore.testing.faults import failing_stores as failing_stores
from memcore.testing.faults import power_cuts as power_cuts
from memcore.testing.faults import restarted as restarted
from memcore.testing.legality import ContextFinding as ContextFinding
from memcore.testing.legality import assert_legal as assert_legal
from memcore.testing.legality import first_finding as first_finding
from memcore.testing.probe import Survey as Survey
from memcore.testing.probe import check_memory as check_memory
from memcore.testing.probe import fuzz as fuzz
from memcore.testing.probe import memory_machine as memory_machine
from memcore.testing.probe import survey as survey
from memcore.testing.probe import trimmer as trimmer
from memcore.testing.script import Faults as Faults
from memcore.testing.script import random_history as random_history
from memcore.testing.strategies import agent_histories as agent_histories
from memcore.testing.strategies import histories as histories
from memcore.testing.strategies import mixed_histories as mixed_histories

__all__ = [
    "ContextFinding",
    "Faults",
    "Survey",
    "agent_histories",
    "assert_legal",
    "check_memory",
    "child_env",
    "failing_stores",
    "first_finding",
    "fuzz",
    "histories",
    "memory_machine",
    "mixed_histories",
    "power_cuts",
    "random_history",
    "restarted",
    "survey",
    "trimmer",
]
