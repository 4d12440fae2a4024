"""session/request_permission: what an agent asks, and the answers there are."""

from typing import TypeAlias

from legation.wire.acp.shape import Shape
from legation.wire.acp.toolcall import ToolCallPatch

PermissionOptionKind: TypeAlias = str
PERMISSION_OPTION_KINDS = ("allow_once", "allow_always", "reject_once", "reject_always")


class PermissionOption(Shape):
    """One answer the agent offers."""

    option_id: str
    name: str
    kind: PermissionOptionKind


class RequestPermissionRequest(Shape):
    session_id: str
    tool_call: ToolCallPatch
    options: tuple[PermissionOption, ...]


class Selected(Shape, tag="selected", tag_field="outcome"):
    option_id: str


class Cancelled(Shape, tag="cancelled", tag_field="outcome"):
    """The turn was cancelled, or nobody can answer any more; a refusal is a selected reject option."""


PermissionOutcome: TypeAlias = Selected | Cancelled


class RequestPermissionResponse(Shape):
    outcome: PermissionOutcome
