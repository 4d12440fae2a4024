"""Turns that run: one thread each, owned here, and every one of them answers its prompt."""

import json
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from legation.agents.rehearsal.connection import (
    INTERNAL_ERROR,
    REQUEST_CANCELLED,
    Connection,
    PeerGoneError,
    RequestId,
    RpcError,
)
from legation.agents.rehearsal.script import (
    FIRST_LINE,
    OFF,
    Script,
    ScriptError,
    must_not_execute,
    parse,
    play,
)
from legation.agents.rehearsal.sessions import Session
from legation.agents.rehearsal.steps import STEPS
from legation.agents.rehearsal.turn import Turn, TurnCancelledError, TurnStoppedError

# A scenario file: the same steps as a script, for prompts that are none.


KEYS = ("steps", "turns", "pace", "require_auth", "early")


class ScenarioError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Scenario:
    turns: tuple[Script, ...] = ()
    pace: float = 0.0
    require_auth: bool = False
    early: bool = False

    def script(self, prompt: int) -> Script | None:
        """What the nth prompt of a session plays; the last turn is played ever after."""
        return self.turns[min(prompt, len(self.turns)) - 1] if self.turns else None


def load(path: Path) -> Scenario:
    try:
        fields = _decode(path)
    except (OSError, ValueError) as error:
        raise ScenarioError(f"cannot read scenario {path}: {error}") from error
    if unknown := sorted(set(fields) - set(KEYS)):
        raise ScenarioError(
            f"cannot use scenario {path}: {', '.join(unknown)} unknown; use {', '.join(KEYS)}"
        )
    turns = fields.get("turns", [fields["steps"]] if "steps" in fields else [])
    pace = fields.get("pace", 0.0)
    if not isinstance(turns, list) or not isinstance(pace, (int, float)):
        raise ScenarioError(f"cannot use scenario {path}: steps and turns are lists, pace is a number")
    return Scenario(
        turns=tuple(_turn(path, turn) for turn in turns),
        pace=float(pace),
        require_auth=fields.get("require_auth") is True,
        early=fields.get("early") is True,
    )


def _decode(path: Path) -> Mapping[str, object]:
    text = path.read_text()
    if path.suffix == ".toml":
        import tomllib  # only a scenario in TOML needs it

        return tomllib.loads(text)
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError("the file holds no object")
    return fields


def _turn(path: Path, lines: object) -> Script:
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise ScenarioError(f"cannot use scenario {path}: a turn is a list of lines")
    try:
        return parse(lines, STEPS)
    except ScriptError as error:
        raise ScenarioError(f"cannot use scenario {path}: {error}") from error


# Turns.


TITLE_LENGTH = 60
NO_TESTS = "cannot look for a failing test: that runs the tests of this folder"
END_GRACE = 2.0  # a cancelled turn's time to end its command and answer


@dataclass(frozen=True, slots=True)
class Running:
    request_id: RequestId
    turn: Turn
    thread: threading.Thread


class Turns:
    def __init__(self, connection: Connection, scenario: Scenario) -> None:
        self._connection = connection
        self._scenario = scenario
        self._running: list[Running] = []  # no dict: a client may use an id again

    def start(self, request_id: RequestId, turn: Turn) -> None:
        _remember(turn)
        turn.session.turn = turn
        thread = threading.Thread(target=lambda: self._take(running), daemon=True)
        running = Running(request_id, turn, thread)
        self._running.append(running)
        thread.start()

    def cancel(self, request_id: object) -> None:
        for running in list(self._running):
            if running.request_id == request_id:
                running.turn.cancel(by_request=True)

    def end(self, session: Session | None = None) -> None:
        """Cancels what runs, in one session or in all, and lets it answer first."""
        ending = [running for running in list(self._running) if session in (None, running.turn.session)]
        for running in ending:
            running.turn.cancel()
        for running in ending:
            running.thread.join(END_GRACE)

    def _take(self, running: Running) -> None:
        request_id, turn = running.request_id, running.turn
        try:
            outcome = self._outcome(turn)
            turn.session.turn = None  # before the answer: the next prompt may follow on its heels
            if isinstance(outcome, RpcError):
                self._connection.respond_error(request_id, outcome)
            else:
                self._connection.respond(request_id, {"stopReason": outcome})
            for update in turn.late:
                turn.update(update)
        except PeerGoneError:
            return
        finally:
            self._running.remove(running)

    def _outcome(self, turn: Turn) -> str | RpcError:
        try:
            reason = self._play(turn)
            turn.session.save()
        except TurnCancelledError:
            reason = "cancelled"
        except RpcError as error:
            return error
        except PeerGoneError:
            raise
        except Exception:  # noqa: BLE001 - the edge of this thread: the client must get an answer
            sys.stderr.write(traceback.format_exc())
            return RpcError(INTERNAL_ERROR, "cannot go on: the rehearsal agent has a bug, see its stderr")
        if turn.cancelled_by_request:
            return RpcError(REQUEST_CANCELLED, "the prompt was cancelled by $/cancel_request")
        return "cancelled" if turn.cancelled.is_set() else reason

    def _play(self, turn: Turn) -> str:
        try:
            script = self._script(turn)
            if script is not None and not turn.executes:
                must_not_execute(script)
            if script is None and not turn.executes:
                turn.message(f"{NO_TESTS}, {OFF}.")
                return "refusal"
            if script is None:
                from legation.agents.rehearsal import bugfix  # the scripts start faster without it

                bugfix.fix(turn)
            else:
                play(turn, script)
        except ScriptError as error:
            turn.message(f"{error}.")
            return "refusal"
        except TurnStoppedError as stopped:
            return stopped.reason
        return "end_turn"

    def _script(self, turn: Turn) -> Script | None:
        first, *lines = turn.text.split("\n")
        if first.strip() == FIRST_LINE:
            return parse(lines, STEPS, first=2)
        return self._scenario.script(turn.session.record.prompts)


def _remember(turn: Turn) -> None:
    record = turn.session.record
    record.prompts += 1
    if record.title is None:
        record.title = next((line for line in turn.text.splitlines() if line), "Rehearsal")[:TITLE_LENGTH]
    turn.session.save()
    for block in turn.blocks:
        turn.session.keep({"update": {"sessionUpdate": "user_message_chunk", "content": block}})
