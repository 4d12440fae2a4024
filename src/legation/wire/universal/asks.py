"""Permissions and questions: asked, and answered by the same id."""

from typing import Final

import msgspec

from legation.wire.api.sessions import ALWAYS
from legation.wire.lifecycle import PermissionAnswered, PermissionAsked, QuestionAnswered, QuestionAsked
from legation.wire.universal import questions, shapes
from legation.wire.universal.embedded import embedded
from legation.wire.universal.outbox import Outbox

_GRANT: Final = "grant:"  # what a grant's own approvals are decided by


class _Permission(msgspec.Struct, frozen=True):
    """What its answer must say again, and which options would allow it for ever."""

    tool: str
    for_ever: tuple[str, ...] = ()


_UNSEEN: Final = _Permission("other")


class Asks:
    __slots__ = ("_permissions", "_questions")

    def __init__(self) -> None:
        self._permissions: dict[str, _Permission] = {}
        self._questions: dict[str, shapes.Question] = {}

    def copy(self) -> "Asks":
        other = Asks()
        other._permissions, other._questions = dict(self._permissions), dict(self._questions)
        return other

    def permission_asked(self, out: Outbox, asked: PermissionAsked) -> None:
        for_ever = tuple(each.option_id for each in asked.options if each.kind == "allow_always")
        self._permissions[asked.id] = _Permission(asked.action.tool, for_ever)
        data = shapes.Permission(asked.id, asked.action.tool, "requested", embedded(out.cause.payload))
        out.emit("permission.requested", data, raw=True)

    def permission_answered(self, out: Outbox, answer: PermissionAnswered) -> None:
        asked = self._permissions.pop(answer.id, _UNSEEN)
        data = shapes.Permission(answer.id, asked.tool, _status(answer, asked), embedded(out.cause.payload))
        out.emit("permission.resolved", data, synthetic=True, raw=True)

    def question_asked(self, out: Outbox, asked: QuestionAsked) -> None:
        data = self._questions[asked.id] = questions.asked(asked)
        out.emit("question.requested", data, raw=True)

    def question_answered(self, out: Outbox, answer: QuestionAnswered) -> None:
        data = questions.answered(self._questions.pop(answer.id, None), answer)
        out.emit("question.resolved", data, synthetic=True, raw=True)


def _status(answer: PermissionAnswered, asked: _Permission) -> shapes.PermissionStatus:
    """A refusal is any end that is no yes: silence, a cancelled turn."""
    if answer.outcome != "approved":
        return "reject"
    for_ever = answer.option_id in asked.for_ever or answer.by.startswith(_GRANT) or answer.message == ALWAYS
    return "accept_for_session" if for_ever else "accept"
