"""Tests of memories: histories of agents, judges of contexts, fuzzing, faults of stores.

``pip install "memcore-db[testing]"`` adds hypothesis and pytest; without them, everything works but
``fuzz``, ``check_memory``, ``memory_machine`` and the strategies.
"""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "legality": "ContextFinding assert_legal first_finding",
        "script": "Faults random_history",
        "strategies": "agent_histories histories mixed_histories",
        "probe": "Survey check_memory fuzz memory_machine survey trimmer",
        "faults": "child_env failing_stores power_cuts restarted",
    },
    extra=("hypothesis", "testing", ("hypothesis", "pytest")),
)
