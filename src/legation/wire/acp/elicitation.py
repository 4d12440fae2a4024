"""elicitation/create: an agent asks its user a question, by a form or by a page to visit."""

from collections.abc import Mapping
from typing import TypeAlias

from legation.wire.acp.rpc import RequestId
from legation.wire.acp.shape import Json, Shape

ElicitationMode: TypeAlias = str
ELICITATION_MODES = ("form", "url")
ElicitationAction: TypeAlias = str
ELICITATION_ACTIONS = ("accept", "decline", "cancel")
ElicitationValue: TypeAlias = str | int | float | bool | tuple[str, ...]


class CreateElicitationRequest(Shape):
    """A `form` has `requested_schema`; a `url` has `url` and `elicitation_id`; other modes are not to be shown.

    It belongs to a session (`session_id`, maybe `tool_call_id`) or to a request (`request_id`).
    """

    mode: ElicitationMode
    message: str
    requested_schema: Mapping[str, Json] | None = None
    elicitation_id: str | None = None
    url: str | None = None
    session_id: str | None = None
    tool_call_id: str | None = None
    request_id: RequestId = None


class CreateElicitationResponse(Shape):
    action: ElicitationAction
    content: Mapping[str, ElicitationValue] | None = None


class CompleteElicitationNotification(Shape):
    elicitation_id: str
