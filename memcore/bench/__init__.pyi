# Written by scripts/make_faces from __init__.py.
from memcore.bench.measure import BenchRow as BenchRow
from memcore.bench.measure import QUESTIONS as QUESTIONS
from memcore.bench.measure import measured as measured
from memcore.bench.plot import Bar as Bar
from memcore.bench.plot import bar_chart as bar_chart
from memcore.bench.plot import line_chart as line_chart
from memcore.bench.plot import page as page
from memcore.bench.workload import SampleConversation as SampleConversation
from memcore.bench.workload import Workload as Workload
from memcore.bench.workload import generated as generated
from memcore.bench.workload import read_workload as read_workload

__all__ = [
    "QUESTIONS",
    "Bar",
    "BenchRow",
    "SampleConversation",
    "Workload",
    "bar_chart",
    "generated",
    "line_chart",
    "measured",
    "page",
    "read_workload",
]
