"""MemcoreSession: a drop-in for the SDK's SQLiteSession."""

from __future__ import annotations

from memcore.adapters.openai_agents.hooks import stands_for_sqlite
from memcore.adapters.openai_agents.notes import Notes
from memcore.telemetry import adapts

__all__ = ["MemcoreSession"]


@stands_for_sqlite
@adapts(
    get_items="items . count",
    add_items="append . entries",
    pop_item="undo",
    clear_session="delete",
    remove_expired="sweep . number",
    create_branch_from_turn="fork",
    create_branch_from_content="fork",
    switch_to_branch="branch.switch",
    delete_branch="branch.delete",
    list_branches="branches . count",
    get_conversation_turns="items . count",
    find_turns_by_content="items . count",
    get_conversation_by_turns="items . count",
    get_tool_usage="items . count",
    store_run_usage="report_usage",
    get_session_usage="usage",
    get_turn_usage="usage",
    get_title="state.get",
    set_title="state.update",
    get_metadata="state.get",
    set_metadata="state.update",
    save_run_state="state.update",
    load_run_state="state.get",
    _pop_item_with_validation="undo",
    _get_compaction_snapshot="items",
    _replace="batch",
    _atomic_replace_items="batch",
)
class MemcoreSession(Notes):
    """A session of the OpenAI Agents SDK in a memcore file.

    Arguments are those of ``SQLiteSession``, in their order, and by keyword memcore's own. May be
    used from any thread and event loop; many instances may share a file, in one process or several.

    Args:
        session_id: any string.
        db_path: a file, made if it is missing; ``":memory:"`` is a private one that is gone when it
            is closed. Or an open Database, AsyncDatabase or Scope, which stays open.
        sessions_table: with ``messages_table``: other names are another space in the same file.
        messages_table: see ``sessions_table``.
        session_settings: the SDK's SessionSettings, or a dict of its fields.
        user: whose session it is; sessions of different users never meet.
        app: the application, as ``user``.
        durability: of a file that is made here: ``"full"`` (the default), ``"relaxed"`` or
            ``"none"``.
        allow_unsafe: consent to ``durability="none"`` of a file, as in ``memcore.open``.
        scope_of: given the Runner's context wrapper, tells the scope or ``(app, user)`` that a call
            works in.
        encryption_key: a random secret, or several (the first encrypts, all decrypt): items are
            encrypted, but for their type, role and call ids.
        unreadable: ``"raise"`` (the default) or ``"skip"``: what to do with items that the key does
            not open; they are counted in ``skipped_items`` and in a warning in the log then.
        ttl_seconds: items that are older are not returned any more and removed from the file, but
            for a call whose result is not that old yet.
        cache_bytes: items that were read are remembered decoded: so many bytes of JSON, about, and
            at most 64 MiB of all sessions of the process; 0: none.
        compaction: the session compacts itself after a turn of the Runner: True, a policy, the name
            of a preset or a mapping (see ``docs/compaction.md``). Reads without a limit, or with
            that of ``session_settings``, then give what the model may see: the summary and the
            items behind it, legally, and no more than the limit. The log keeps all.
        summarize: a function of a SummaryRequest, or a coroutine function; None: what is folded is
            trimmed.
        summarize_timeout_seconds: how long a summary may take.
        budget_tokens: these reads give a legal window of at most so many tokens.
        create_tables: taken for the sake of ``AdvancedSQLiteSession``; nothing is to be made.
        logger: where warnings go; None: ``memcore.openai_agents``.
    """

    _is_as_stored = True
    """Subclasses whose ``get_items`` and ``add_items`` do not change items may say so again."""
