"""Asking the client before something is done, with all four kinds of option."""

from collections.abc import Mapping

from legation.agents.rehearsal.connection import Json, RequestId
from legation.agents.rehearsal.params import inner
from legation.agents.rehearsal.toolcall import ToolCall
from legation.agents.rehearsal.turn import StepFailedError, TurnCancelledError

ALLOWS: Mapping[str, bool] = {
    "allow-once": True,
    "allow-always": True,
    "reject-once": False,
    "reject-always": False,
}
NAMES: Mapping[str, str] = {
    "allow-once": "Allow",
    "allow-always": "Allow for this session",
    "reject-once": "Reject",
    "reject-always": "Reject for this session",
}
OPTIONS: list[Json] = [
    {"optionId": option, "name": name, "kind": option.replace("-", "_")} for option, name in NAMES.items()
]


def ask(call: ToolCall) -> str:
    """The option that allowed it; a refusal is a `StepFailedError`, a cancel ends the turn."""
    remembered = call.turn.session.remembered
    if call.kind in remembered:
        return _obey("allow-always" if remembered[call.kind] else "reject-always")
    reply = call.turn.ask_client("session/request_permission", request(call))
    if reply.error is not None:
        raise StepFailedError(f"permission not given: the client answered {reply.complaint}")
    if inner(reply.fields, "outcome", "outcome") == "cancelled":
        call.turn.cancel()
        raise TurnCancelledError
    option = str(inner(reply.fields, "outcome", "optionId"))
    if option.endswith("-always") and option in ALLOWS:
        remembered[call.kind] = ALLOWS[option]
    return _obey(option)


def ask_and_withdraw(call: ToolCall) -> RequestId:
    """Asks, and takes the question back at once."""
    params = {"sessionId": call.turn.session.record.id, **request(call)}
    pending = call.turn.connection.request("session/request_permission", params)
    call.turn.withdraw(pending)
    return pending.id


def request(call: ToolCall) -> Json:
    return {"toolCall": call.facts, "options": OPTIONS}


def _obey(option: str) -> str:
    if option not in ALLOWS:
        raise StepFailedError("permission not given: the client chose an option that was not offered")
    if not ALLOWS[option]:
        raise StepFailedError(f"permission denied ({option})")
    return option
