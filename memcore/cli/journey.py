"""The conversation of the demo: a travel agent rebooks a cancelled flight."""

from __future__ import annotations

import json
from typing import Any, Final

__all__ = ["CONVERSATION", "LATE_CALL", "ORPHAN", "OTHER_WISH"]


def _calls(*calls: tuple[str, str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for call_id, name, arguments in calls
        ],
    }


def _result(call_id: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": json.dumps(content)}


LATE_CALL: Final = "call_hotel"
"""The hotel answers only after the conversation went on."""

CONVERSATION: Final[tuple[dict[str, Any], ...]] = (
    {
        "role": "system",
        "content": "You are the travel desk's agent. Confirm before you change a booking.",
    },
    {
        "role": "user",
        "content": "My flight LX2084 to Lisbon tomorrow is cancelled. Booking K7QX2M. Help!",
    },
    _calls(
        ("call_booking", "get_booking", {"code": "K7QX2M"}),
        ("call_flights", "search_flights", {"from": "ZRH", "to": "LIS", "date": "2026-03-14"}),
        ("call_rules", "get_fare_rules", {"fare": "Y-FLEX"}),
    ),
    _result("call_flights", {"options": ["TP939 11:55", "LX2088 17:40"], "seats": [4, 19]}),
    _result("call_booking", {"name": "A. Keller", "flight": "LX2084", "hotel": "Alfama 12"}),
    _result("call_rules", {"rebooking": "free within 48 h", "refund": "fare difference"}),
    {
        "role": "assistant",
        "content": "You can fly TP939 at 11:55 or LX2088 at 17:40; both are free of charge.",
    },
    {"role": "user", "content": "LX2088, please. And tell the hotel that I arrive late."},
    _calls(
        ("call_rebook", "rebook", {"code": "K7QX2M", "flight": "LX2088"}),
        (LATE_CALL, "notify_hotel", {"hotel": "Alfama 12", "arrival": "21:30"}),
    ),
    _result("call_rebook", {"status": "confirmed", "seat": "14C"}),
    {"role": "assistant", "content": "You are on LX2088, seat 14C. The hotel has yet to answer."},
    {"role": "user", "content": "Thanks. Do I get the difference in fare back?"},
    _result(LATE_CALL, {"status": "noted", "message": "Reception is open all night."}),
    _calls(("call_refund", "request_refund", {"code": "K7QX2M"})),
    _result("call_refund", {"amount": "38.40 CHF", "days": 5}),
    {
        "role": "assistant",
        "content": "Yes: 38.40 CHF within 5 days. And the hotel expects you, all night long.",
    },
)

ORPHAN: Final = _result("call_nobody_made", {"status": "ok"})
OTHER_WISH: Final = {"role": "user", "content": "Rather TP939: I have to be there at three."}
