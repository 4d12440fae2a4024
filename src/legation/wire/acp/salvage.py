"""Second reading of an update with an unknown part: the part is wrapped, so that the rest can be typed."""

from collections.abc import Callable

import msgspec

from legation.wire.acp.config import ConfigOption
from legation.wire.acp.content import UNREAD_TAG, ContentBlock
from legation.wire.acp.plan import PlanContent
from legation.wire.acp.toolcall import ToolCallContent

Wrap = Callable[[object], object]


def salvaged(update: object) -> object:
    """The update with every part that cannot be typed replaced by an `Unread` that holds it."""
    if not isinstance(update, dict):
        return update
    return {key: _WRAPS[key](value) if key in _WRAPS else value for key, value in update.items()}


def _block(value: object) -> object:
    return value if _reads_as(value, ContentBlock) else _unread(value)


def _tool_content(value: object) -> object:
    if isinstance(value, dict) and value.get("type") == "content":
        value = {**value, "content": _block(value.get("content"))}
    return value if _reads_as(value, ToolCallContent) else _unread(value)


def _config_option(value: object) -> object:
    return value if _reads_as(value, ConfigOption) else _unread(value)


def _plan(value: object) -> object:
    return value if _reads_as(value, PlanContent) else _unread(value)


def _content(value: object) -> object:
    # One block in a message chunk, a list of parts in a tool call.
    return [_tool_content(item) for item in value] if isinstance(value, list) else _block(value)


def _each(wrap: Wrap) -> Wrap:
    return lambda value: [wrap(item) for item in value] if isinstance(value, list) else value


def _unread(value: object) -> object:
    return {"type": UNREAD_TAG, "value": value}


def _reads_as(value: object, kind: object) -> bool:
    try:
        msgspec.convert(value, kind)
    except (ValueError, RecursionError):
        return False
    return True


_WRAPS: dict[str, Wrap] = {
    "content": _content,
    "summary": _each(_block),
    "configOptions": _each(_config_option),
    "plan": _plan,
}
