"""What a tool call is called, what it was given and what came of it, as parts of items."""

from collections.abc import Iterator
from typing import Final

from msgspec import UNSET

from legation.wire.acp.content import Text
from legation.wire.acp.toolcall import AnyToolCall, Content, Diff, Terminal
from legation.wire.action import tool_name
from legation.wire.universal import shapes
from legation.wire.universal.diff import unified
from legation.wire.universal.embedded import json_text, json_value
from legation.wire.universal.parts import part_of

_WRITING: Final = frozenset(("edit", "delete", "move"))


def name_of(call: AnyToolCall) -> str:
    """The name that a permission for it has: `Action.tool`."""
    if call.name:
        return tool_name(call.name)
    # Only the unmistakable form of an MCP tool counts; the title of a shell call is the model's own text.
    if call.title and call.kind != "execute" and (named := tool_name(call.title)) != call.title:
        return named
    return call.kind or "other"


def call_parts(call: AnyToolCall) -> tuple[shapes.Part, ...]:
    given = {} if call.raw_input is UNSET or call.raw_input is None else call.raw_input
    part = shapes.ToolCall(name_of(call), json_text(given), call.tool_call_id)
    return (part, shapes.Status(call.title, call.kind)) if call.title else (part,)


def output_of(call: AnyToolCall) -> str:
    """Its text; where it shows none, what the tool gave back."""
    texts = [
        each.content.text
        for each in call.content or ()
        if isinstance(each, Content) and isinstance(each.content, Text)
    ]
    if texts:
        return "\n".join(texts)
    if call.raw_output is UNSET or call.raw_output is None:
        return ""
    return call.raw_output if isinstance(call.raw_output, str) else json_text(call.raw_output)


def result_parts(call: AnyToolCall, output: str) -> tuple[shapes.Part, ...]:
    return (shapes.ToolResult(call.tool_call_id, output), *_shown(call), *_located(call))


def _shown(call: AnyToolCall) -> Iterator[shapes.Part]:
    """All of its content that is no text."""
    for each in call.content or ():
        match each:
            case Diff():
                action: shapes.FileAction = "write" if each.old_text is None else "patch"
                yield shapes.FileRef(each.path, action, unified(each.path, each.old_text, each.new_text))
            case Content(content=Text()):
                continue
            case Content(content=block):
                yield part_of(block)
            case Terminal():
                yield shapes.Json(json_value(each))
            case unread:
                yield shapes.Json(json_value(unread.value))


def _located(call: AnyToolCall) -> Iterator[shapes.FileRef]:
    changed = {each.path for each in call.content or () if isinstance(each, Diff)}
    action: shapes.FileAction = "write" if call.kind in _WRITING else "read"
    for path in dict.fromkeys(location.path for location in call.locations or ()):
        if path not in changed:
            yield shapes.FileRef(path, action)
