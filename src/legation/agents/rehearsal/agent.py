"""The methods of the protocol, and the turns that run. A turn has a thread of its own; all else is answered in order."""

import base64
import json
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from legation.agents.rehearsal import protocol
from legation.agents.rehearsal.protocol import (
    AUTH_REQUIRED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NOT_FOUND,
    REQUEST_CANCELLED,
    Connection,
    Json,
    MethodError,
    PeerGoneError,
    RequestId,
)
from legation.agents.rehearsal.script import (
    FIRST_LINE,
    Script,
    ScriptError,
    must_not_execute,
    parse,
    play,
)
from legation.agents.rehearsal.steps import STEPS
from legation.agents.rehearsal.turn import (
    MODELS,
    MODES,
    PromptTurn,
    RehearsalSession,
    SessionStore,
    TurnCancelledError,
    TurnStoppedError,
    chunk,
    flood_lines,
)

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
        """The script that the nth prompt of a session plays; the last one is played ever after."""
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


# Turns that run: one thread each, owned here, and every one of them answers its prompt.


TITLE_LENGTH = 60
END_GRACE = 2.0  # a cancelled turn's time to end its command and answer


@dataclass(frozen=True, slots=True)
class RunningTurn:
    request_id: RequestId
    turn: PromptTurn
    thread: threading.Thread


class Turns:
    def __init__(self, connection: Connection, scenario: Scenario) -> None:
        self._connection = connection
        self._scenario = scenario
        self._running: list[RunningTurn] = []  # no dict: a client may use an id again

    def start(self, request_id: RequestId, turn: PromptTurn) -> None:
        _remember(turn)
        turn.session.turn = turn
        thread = threading.Thread(target=lambda: self._take(running), daemon=True)
        running = RunningTurn(request_id, turn, thread)
        self._running.append(running)
        thread.start()

    def cancel(self, request_id: object) -> None:
        for running in list(self._running):
            if running.request_id == request_id:
                running.turn.cancel(by_request=True)

    def end(self, session: RehearsalSession | None = None) -> None:
        """Cancels what runs, in one session or in all, and lets it answer first."""
        ending = [running for running in list(self._running) if session in (None, running.turn.session)]
        for running in ending:
            running.turn.cancel()
        for running in ending:
            running.thread.join(END_GRACE)

    def _take(self, running: RunningTurn) -> None:
        request_id, turn = running.request_id, running.turn
        try:
            outcome = self._outcome(turn)
            turn.session.turn = None  # before the answer: the next prompt may follow on its heels
            if isinstance(outcome, MethodError):
                self._connection.respond_error(request_id, outcome)
            else:
                self._connection.respond(request_id, {"stopReason": outcome})
            for update in turn.late:
                turn.update(update)
        except PeerGoneError:
            return
        finally:
            self._running.remove(running)

    def _outcome(self, turn: PromptTurn) -> str | MethodError:
        try:
            reason = self.play(turn)
            turn.session.save()
        except TurnCancelledError:
            reason = "cancelled"
        except MethodError as error:
            return error
        except PeerGoneError:
            raise
        except Exception:  # noqa: BLE001 - the edge of this thread: the client must get an answer
            sys.stderr.write(traceback.format_exc())
            return MethodError(INTERNAL_ERROR, "cannot go on: the rehearsal agent has a bug, see its stderr")
        if turn.cancelled_by_request:
            return MethodError(REQUEST_CANCELLED, "the prompt was cancelled by $/cancel_request")
        return "cancelled" if turn.cancelled.is_set() else reason

    def play(self, turn: PromptTurn) -> str:
        """Answer a prompt; returns why the turn ends."""
        try:
            script = self._script(turn)
            if script is not None and not turn.executes:
                must_not_execute(script)
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

    def _script(self, turn: PromptTurn) -> Script | None:
        first, *lines = turn.text.split("\n")
        if first.strip() == FIRST_LINE:
            return parse(lines, STEPS, first=2)
        return self._scenario.script(turn.session.record.prompts)


def _remember(turn: PromptTurn) -> None:
    record = turn.session.record
    record.prompts += 1
    if record.title is None:
        record.title = next((line for line in turn.text.splitlines() if line), "Rehearsal")[:TITLE_LENGTH]
    turn.session.save()
    for block in turn.blocks:
        turn.session.keep({"update": {"sessionUpdate": "user_message_chunk", "content": block}})


# Methods.

VERSION = 1
LOGIN = "rehearsal-login"
PAGE_SIZE = 20
BEFORE_SESSIONS = ("initialize", "authenticate", "logout")

CAPABILITIES: Json = {
    "loadSession": True,
    "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
    "mcpCapabilities": {"http": True, "sse": False},
    "sessionCapabilities": {"list": {}, "resume": {}, "close": {}, "delete": {}},
    "auth": {"logout": {}},
}


class RehearsalAgent:
    name, title = "rehearsal", "Rehearsal agent"

    def __init__(self, store: SessionStore, scenario: Scenario, *, executes: bool) -> None:
        """Make the agent. Without `executes` it runs no program, and touches files only through its client: whoever may prompt it is
        no stronger for that than the client lets them be."""
        self.connection = Connection(self.on_request, self.on_notification)
        self.ignores_eof = threading.Event()
        self._store = store
        self._executes = executes
        self._scenario = scenario
        self._client: Json | None = None
        self._authenticated = not scenario.require_auth
        self._sessions: dict[str, RehearsalSession] = {}
        self._turns = self.make_turns(self.connection, scenario)
        self._methods: Mapping[str, Callable[[Json], Json]] = {
            "initialize": self.initialize,
            "authenticate": self.authenticate,
            "logout": self.logout,
            "session/new": self.new_session,
            "session/load": self.load_session,
            "session/resume": self.resume_session,
            "session/list": self.list_sessions,
            "session/close": self.close_session,
            "session/delete": self.delete_session,
            "session/set_mode": self.set_mode,
            "session/set_config_option": self.set_config_option,
        }

    def make_turns(self, connection: Connection, scenario: Scenario) -> Turns:
        return Turns(connection, scenario)

    def on_request(self, request_id: RequestId, method: str, fields: Json) -> None:
        try:
            self._admit(method)
            if method == "session/prompt":
                self.prompt(request_id, fields)
            else:
                self.connection.respond(request_id, self._methods[method](fields))
        except MethodError as error:
            self.connection.respond_error(request_id, error)
        except OSError as error:
            failure = MethodError(
                INTERNAL_ERROR, f"cannot keep the session: {error}; give a writable --state"
            )
            self.connection.respond_error(request_id, failure)

    def on_notification(self, method: str, fields: Json) -> None:
        if method == "session/cancel":
            session = self._sessions.get(str(fields.get("sessionId")))
            if session and session.turn:
                session.turn.cancel()
        elif method == "$/cancel_request":
            self._turns.cancel(fields.get("requestId"))

    def stop(self) -> None:
        self._turns.end()

    def _admit(self, method: str) -> None:
        if method not in self._methods and method != "session/prompt":
            raise MethodError(METHOD_NOT_FOUND, f"cannot find method {method}")
        if method != "initialize" and self._client is None:
            raise MethodError(INVALID_REQUEST, f"cannot do {method} yet: send initialize first")
        if method not in BEFORE_SESSIONS and not self._authenticated:
            raise MethodError(AUTH_REQUIRED, f"cannot do {method}: authenticate with {LOGIN} first")

    def initialize(self, fields: Json) -> Json:
        protocol.whole_number(fields, "protocolVersion")
        client = fields.get("clientCapabilities")
        self._client = client if isinstance(client, Mapping) else {}
        login = {"id": LOGIN, "name": "Rehearsal login", "description": "Signs in at once; nothing is asked"}
        return {
            "protocolVersion": VERSION,
            "agentCapabilities": CAPABILITIES,
            "agentInfo": {"name": self.name, "title": self.title, "version": "1"},
            "authMethods": [login],
        }

    def authenticate(self, fields: Json) -> Json:
        if protocol.text(fields, "methodId") != LOGIN:
            protocol.refuse("methodId", LOGIN)
        self._authenticated = True
        return {}

    def logout(self, _: Json) -> Json:
        self._authenticated = not self._scenario.require_auth
        return {}

    def new_session(self, fields: Json) -> Json:
        cwd = protocol.folder(fields)
        protocol.mcp_servers(fields)
        session = self._store.create(cwd)
        self._sessions[session.record.id] = session
        if self._scenario.early:
            self._speak_early(session)
        return {"sessionId": session.record.id, **self._state(session)}

    def load_session(self, fields: Json) -> Json:
        session = self._reopen(fields, servers_required=True)
        session_id = session.record.id
        for entry in self._store.history(session_id):
            flood = entry.get("flood")
            if isinstance(flood, list):
                for batch in flood_lines(session_id, *flood):
                    self.connection.write(batch)
            else:
                self._update(session_id, entry["update"])
        return self._state(session)

    def resume_session(self, fields: Json) -> Json:
        return self._state(self._reopen(fields, servers_required=False))

    def list_sessions(self, fields: Json) -> Json:
        cwd = protocol.optional_text(fields, "cwd")
        records = [record for record in self._store.records() if cwd in (None, record.cwd)]
        if cursor := protocol.optional_text(fields, "cursor"):
            after = _position(cursor)
            records = [record for record in records if (-record.updated_ns, record.id) > after]
        shown = records[:PAGE_SIZE]
        result: dict[str, object] = {"sessions": [record.info() for record in shown]}
        if len(records) > PAGE_SIZE:
            result["nextCursor"] = _cursor(-shown[-1].updated_ns, shown[-1].id)
        return result

    def close_session(self, fields: Json) -> Json:
        session = self._session(fields)
        self._turns.end(session)
        del self._sessions[session.record.id]
        return {}

    def delete_session(self, fields: Json) -> Json:
        session_id = protocol.session_id(fields)
        if session := self._sessions.pop(session_id, None):
            self._turns.end(session)
        self._store.delete(session_id)
        return {}

    def set_mode(self, fields: Json) -> Json:
        session, mode = self._session(fields), protocol.text(fields, "modeId")
        if mode not in MODES:
            protocol.refuse("modeId", "one of " + ", ".join(MODES))
        session.record.mode = mode
        session.save()
        return {}

    def set_config_option(self, fields: Json) -> Json:
        session, option, value = self._session(fields), protocol.text(fields, "configId"), fields.get("value")
        if option == "model":
            if value not in MODELS:
                protocol.refuse("value", "one of " + ", ".join(MODELS))
            session.record.model = str(value)
        elif option == "thoughts" and self._takes_booleans():
            if not isinstance(value, bool):
                protocol.refuse("value", "true or false")
            session.record.thoughts = value
        else:
            protocol.refuse("configId", "one of the options that were offered")
        session.save()
        return {"configOptions": session.record.options(boolean=self._takes_booleans())}

    def prompt(self, request_id: RequestId, fields: Json) -> None:
        session, blocks = self._session(fields), protocol.prompt(fields)
        if session.turn:
            raise MethodError(
                INVALID_REQUEST, "cannot take a second prompt: wait for the first, or cancel it"
            )
        turn = PromptTurn(
            session,
            self.connection,
            self._client or {},
            blocks,
            self._scenario.pace,
            ignores_eof=self.ignores_eof,
            executes=self._executes,
        )
        self._turns.start(request_id, turn)

    def _session(self, fields: Json) -> RehearsalSession:
        session_id = protocol.session_id(fields)
        if session_id not in self._sessions:
            raise MethodError(NOT_FOUND, f"cannot find an open session {session_id}: load or resume it first")
        return self._sessions[session_id]

    def _reopen(self, fields: Json, *, servers_required: bool) -> RehearsalSession:
        session_id, cwd = protocol.session_id(fields), protocol.folder(fields)
        protocol.mcp_servers(fields, required=servers_required)
        known = self._sessions.get(session_id)
        if known and known.turn:
            raise MethodError(INVALID_REQUEST, "cannot open the session again while its prompt runs")
        session = self._store.open(session_id)
        session.record.cwd = str(cwd)
        self._sessions[session_id] = session
        return session

    def _state(self, session: RehearsalSession) -> Json:
        options = session.record.options(boolean=self._takes_booleans())
        return {"modes": session.record.modes(), "configOptions": options}

    def _takes_booleans(self) -> bool:
        return protocol.inner(self._client, "session", "configOptions", "boolean") is not None

    def _speak_early(self, session: RehearsalSession) -> None:
        command = {"name": "early", "description": "Was offered before the session was known"}
        update = {"sessionUpdate": "available_commands_update", "availableCommands": [command]}
        self._update(session.record.id, update)
        self._update(session.record.id, chunk("agent_message_chunk", "I was early."))

    def _update(self, session_id: str, update: object) -> None:
        self.connection.notify("session/update", {"sessionId": session_id, "update": update})


def _cursor(*position: object) -> str:
    return base64.urlsafe_b64encode(":".join(map(str, position)).encode()).decode()


def _position(cursor: str) -> tuple[int, str]:
    try:
        updated, session_id = base64.urlsafe_b64decode(cursor).decode().split(":")
        return int(updated), session_id
    except ValueError:
        protocol.refuse("cursor", "one that session/list gave out")
