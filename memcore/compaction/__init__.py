"""Compaction: a pure plan, a summary made outside any transaction, one view record."""

from memcore.compaction.extract import extractive
from memcore.compaction.plan import CompactionRule, fallback_plan, is_due, make_plan
from memcore.compaction.record import applies, record_view

__all__ = [
    "CompactionRule",
    "applies",
    "extractive",
    "fallback_plan",
    "is_due",
    "make_plan",
    "record_view",
]
