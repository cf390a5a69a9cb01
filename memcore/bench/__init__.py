"""Benchmarks of memcore on the user's own conversations and policy, and plots of their figures."""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "measure": "QUESTIONS BenchRow measured",
        "plot": "Bar bar_chart line_chart page",
        "workload": "SampleConversation Workload generated read_workload",
    },
)
