"""One full example of every stable ACP v1 session update, and strategies for JSON that agents may send."""

from hypothesis import strategies as st

TEXT = {"type": "text", "text": "hello"}

UPDATES: dict[str, dict[str, object]] = {
    "user_message_chunk": {"content": TEXT, "messageId": "m1"},
    "agent_message_chunk": {"content": {"type": "image", "data": "aGk=", "mimeType": "image/png"}},
    "agent_thought_chunk": {"content": {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}},
    "tool_call": {
        "toolCallId": "c1",
        "title": "Edit a.py",
        "name": "Edit",
        "kind": "edit",
        "status": "pending",
        "content": [
            {"type": "diff", "path": "/w/a.py", "oldText": "a", "newText": "b"},
            {"type": "terminal", "terminalId": "t1"},
            {
                "type": "content",
                "content": {"type": "resource", "resource": {"uri": "file:///x", "text": "x"}},
            },
        ],
        "locations": [{"path": "/w/a.py", "line": 3}],
        "rawInput": {"file_path": "/w/a.py"},
        "rawOutput": None,
    },
    "tool_call_update": {"toolCallId": "c1", "status": "completed", "rawOutput": [1, 2.5, {"big": 2**80}]},
    "plan": {"entries": [{"content": "fix it", "priority": "high", "status": "pending"}]},
    "plan_update": {
        "plan": {
            "type": "items",
            "planId": "p1",
            "entries": [{"content": "fix it", "priority": "high", "status": "completed"}],
        }
    },
    "plan_removed": {"planId": "p1"},
    "available_commands_update": {
        "availableCommands": [{"name": "web", "description": "search", "input": {"hint": "query"}}]
    },
    "current_mode_update": {"currentModeId": "plan"},
    "config_option_update": {
        "configOptions": [
            {"type": "boolean", "id": "b", "name": "B", "currentValue": True},
            {
                "type": "select",
                "id": "model",
                "name": "Model",
                "category": "model",
                "currentValue": "x",
                "options": [
                    {"value": "x", "name": "X"},
                    {"group": "g", "name": "G", "options": [{"value": "y", "name": "Y"}]},
                ],
            },
        ]
    },
    "session_info_update": {"title": None, "updatedAt": "2026-01-01T00:00:00Z"},
    "usage_update": {"used": 10, "size": 200, "cost": {"amount": 0.5, "currency": "USD"}},
    "notice": {"severity": "warning", "title": "slow", "description": "very"},
    "compaction_update": {"compactionId": "k", "status": "completed", "summary": [TEXT]},
    "compaction_summary_chunk": {
        "compactionId": "k",
        "content": {"type": "resource_link", "name": "n", "uri": "file:///n", "size": 3},
    },
}


def tagged(tag: str) -> dict[str, object]:
    return {"sessionUpdate": tag, **UPDATES[tag]}


_any_text = st.text(st.characters(codec=None, categories=None), max_size=8) | st.sampled_from(
    ["\ud800", "\udc80x", "_meta", "title", "content", "rawInput"]
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**90), 2**90)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_any_text, inner, max_size=4),
    max_leaves=12,
)
_field_names = sorted({name for fields in UPDATES.values() for name in fields})
json_updates = st.builds(
    lambda tag, fields: {"sessionUpdate": tag, **fields},
    st.sampled_from(sorted(UPDATES)) | json_values,
    st.dictionaries(st.sampled_from(_field_names) | _any_text, json_values, max_size=6),
)
