"""Names of OpenTelemetry: metrics, spans and attributes, and those of its GenAI conventions.

The GenAI conventions have a span for operations on memories, and an attribute for the conversation;
they are still in development, so they are used on request alone (``OTEL_SEMCONV_STABILITY_OPT_IN``
holds ``gen_ai_latest_experimental``). The packages of constants know none of them.
"""

from __future__ import annotations

import os
from typing import Final

__all__ = ["GENAI_MEMORY", "METRICS", "SPANS", "genai_wanted"]

METRICS: Final = {
    "duration": "memcore.operation.duration",
    "messages": "memcore.session.messages",
    "tokens": "memcore.session.tokens",
    "ratio": "memcore.compaction.ratio",
    "retries": "memcore.txn.retries",
    "redactions": "memcore.redactions",
    "size": "memcore.store.size",
    "free_pages": "memcore.store.free_pages",
}

OPERATION: Final = "operation"
BACKEND: Final = "backend"
ERROR_TYPE: Final = "error.type"
REDACTION_TYPE: Final = "type"

ITEMS: Final = "memcore.message.count"
BYTES: Final = "memcore.bytes"
TOKENS: Final = "memcore.tokens"
CUT: Final = "memcore.cut.index"
SPAN_BACKEND: Final = "memcore.backend"
DURABILITY: Final = "memcore.durability"
RETRIES: Final = "memcore.txn.retries"
REVISION: Final = "memcore.session.revision"
RATIO: Final = "memcore.compaction.ratio"
SESSION: Final = "memcore.session.id"
USER: Final = "memcore.user"
APP: Final = "memcore.app"
ACTOR: Final = "memcore.actor"
REQUEST: Final = "memcore.request.id"
ADAPTER: Final = "memcore.adapter"

SPANS: Final = {
    "append": "memcore.session.append",
    "extend": "memcore.session.append",
    "record": "memcore.session.append",
    "batch": "memcore.session.append",
    "load": "memcore.session.load",
    "compact": "memcore.session.compact",
    "checkpoint": "memcore.checkpoint.put",
    "graph.put": "memcore.checkpoint.put",
    "get_checkpoint": "memcore.checkpoint.get",
    "graph.get": "memcore.checkpoint.get",
    "fork": "memcore.checkpoint.fork",
    "graph.fork": "memcore.checkpoint.fork",
}
"""Operations whose spans have a name of their own; others are ``memcore.<operation>``."""
RETRY_SPAN: Final = "memcore.txn.retry"

GENAI_MEMORY: Final = {
    "memory.create": "create_memory",
    "memory.put": "upsert_memory",
    "memory.update": "update_memory",
    "memory.search": "search_memory",
    "memory.delete": "delete_memory",
    "memory.open": "create_memory_store",
    "memory.drop": "delete_memory_store",
}
GENAI_OPERATION: Final = "gen_ai.operation.name"
GENAI_STORE: Final = "gen_ai.memory.store.id"
GENAI_COUNT: Final = "gen_ai.memory.record.count"
GENAI_CONVERSATION: Final = "gen_ai.conversation.id"


def genai_wanted() -> bool:
    """Whether the environment asks for the conventions that are in development."""
    chosen = os.environ.get("OTEL_SEMCONV_STABILITY_OPT_IN", "")
    return "gen_ai_latest_experimental" in {name.strip() for name in chosen.split(",")}
