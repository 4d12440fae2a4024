"""`python -m legation.agents.rehearsal.mock`: the agent that programs written for sandbox-agent know as `mock`.

It repeats what it is told, and asks for one permission where the prompt speaks of one. Scripts are played as by the rehearsal
agent, whose sessions and protocol these are.
"""

import sys
from collections.abc import Mapping

from legation.agents.rehearsal import protocol
from legation.agents.rehearsal.__main__ import run
from legation.agents.rehearsal.agent import RehearsalAgent, Scenario, Turns
from legation.agents.rehearsal.protocol import Connection, Json, inner
from legation.agents.rehearsal.script import FIRST_LINE
from legation.agents.rehearsal.turn import (
    PromptTurn,
    RehearsalSession,
    TurnCancelledError,
    new_id,
)

MODELS: Mapping[str, str] = {"mock": "Mock", "mock-fast": "Mock Fast"}
MODES: Mapping[str, str] = {"normal": "Normal", "plan": "Plan"}
LEVELS: Mapping[str, str] = {"low": "Low", "medium": "Medium", "high": "High"}
# By the id of an option, which is its category too; the first of each is chosen at first.
OPTIONS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "model": ("Model", MODELS),
    "mode": ("Mode", MODES),
    "thought_level": ("Thought Level", LEVELS),
}
ASKS = "permission"  # the word in a prompt
FILE = "mock.txt"  # of the session's folder; it is named, and never touched
CHOICES: list[Json] = [
    {"optionId": "allow-once", "name": "Allow once", "kind": "allow_once"},
    {"optionId": "allow-always", "name": "Always allow", "kind": "allow_always"},
    {"optionId": "reject-once", "name": "Reject", "kind": "reject_once"},
]


class MockTurns(Turns):
    def play(self, turn: PromptTurn) -> str:
        first = next((str(block["text"]) for block in turn.blocks if block["type"] == "text"), "")
        if first.split("\n")[0].strip() == FIRST_LINE:
            return super().play(turn)
        turn.message(f"mock: {first}")
        if ASKS in first:
            turn.message(_asked(turn))
        return "end_turn"


def _asked(turn: PromptTurn) -> str:
    path = str(turn.session.cwd / FILE)
    call = {
        "toolCallId": new_id("tool-call"),
        "title": f"Write {FILE}",
        "kind": "edit",
        "status": "pending",
        "locations": [{"path": path}],
        "rawInput": {"path": path, "content": "hello"},
    }
    reply = turn.ask_client("session/request_permission", {"toolCall": call, "options": CHOICES})
    if inner(reply.fields, "outcome", "outcome") == "cancelled":
        turn.cancel()
        raise TurnCancelledError
    option = inner(reply.fields, "outcome", "optionId")
    allowed = option in ("allow-once", "allow-always")
    return f"mock permission {'approved' if allowed else 'rejected'}: {option or reply.complaint}"


class MockAgent(RehearsalAgent):
    name, title = "mock", "Mock agent"

    def make_turns(self, connection: Connection, scenario: Scenario) -> Turns:
        return MockTurns(connection, scenario)

    def set_mode(self, fields: Json) -> Json:
        session = self._session(fields)
        self._choose(session, "mode", fields.get("modeId"), "modeId")
        self._update(
            session.record.id,
            {"sessionUpdate": "config_option_update", "configOptions": self._options(session)},
        )
        return {}

    def set_config_option(self, fields: Json) -> Json:
        session, option = self._session(fields), protocol.text(fields, "configId")
        if option not in OPTIONS:
            protocol.refuse("configId", "one of " + ", ".join(OPTIONS))
        self._choose(session, option, fields.get("value"), "value")
        if option == "mode":
            now = {"sessionUpdate": "current_mode_update", "currentModeId": _chosen(session, "mode")}
            self._update(session.record.id, now)
        return {"configOptions": self._options(session)}

    def _choose(self, session: RehearsalSession, option: str, value: object, field: str) -> None:
        choices = OPTIONS[option][1]
        if value not in choices:
            protocol.refuse(field, "one of " + ", ".join(choices))
        session.record.chosen[option] = str(value)
        session.save()

    def _state(self, session: RehearsalSession) -> Json:
        modes = [{"id": value, "name": name} for value, name in MODES.items()]
        return {
            "modes": {"currentModeId": _chosen(session, "mode"), "availableModes": modes},
            "configOptions": self._options(session),
        }

    def _options(self, session: RehearsalSession) -> list[Json]:
        return [
            {
                "id": option,
                "name": name,
                "category": option,
                "type": "select",
                "currentValue": _chosen(session, option),
                "options": [{"value": value, "name": words} for value, words in choices.items()],
            }
            for option, (name, choices) in OPTIONS.items()
        ]


def _chosen(session: RehearsalSession, option: str) -> str:
    return session.record.chosen.get(option) or next(iter(OPTIONS[option][1]))


if __name__ == "__main__":
    sys.exit(run(MockAgent))
