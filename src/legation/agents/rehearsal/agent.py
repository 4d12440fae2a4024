"""The methods of the protocol. A turn runs on a thread of its own; all else is answered in order."""

import base64
import threading
from collections.abc import Callable, Mapping

from legation.agents.rehearsal import params
from legation.agents.rehearsal.connection import (
    AUTH_REQUIRED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NOT_FOUND,
    Connection,
    Json,
    RequestId,
    RpcError,
)
from legation.agents.rehearsal.sessions import MODELS, MODES, Session, SessionStore
from legation.agents.rehearsal.turn import Turn, chunk, flood_lines
from legation.agents.rehearsal.turns import Scenario, Turns

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


class Agent:
    def __init__(self, store: SessionStore, scenario: Scenario, *, executes: bool) -> None:
        """Without `executes` it runs no program, and touches files only through its client: whoever may prompt it is
        no stronger for that than the client lets them be."""
        self.connection = Connection(self.on_request, self.on_notification)
        self.ignores_eof = threading.Event()
        self._store = store
        self._executes = executes
        self._scenario = scenario
        self._client: Json | None = None
        self._authenticated = not scenario.require_auth
        self._sessions: dict[str, Session] = {}
        self._turns = Turns(self.connection, scenario)
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

    def on_request(self, request_id: RequestId, method: str, fields: Json) -> None:
        try:
            self._admit(method)
            if method == "session/prompt":
                self.prompt(request_id, fields)
            else:
                self.connection.respond(request_id, self._methods[method](fields))
        except RpcError as error:
            self.connection.respond_error(request_id, error)
        except OSError as error:
            failure = RpcError(INTERNAL_ERROR, f"cannot keep the session: {error}; give a writable --state")
            self.connection.respond_error(request_id, failure)

    def on_notification(self, method: str, fields: Json) -> None:
        if method == "session/cancel":
            session = self._sessions.get(str(fields.get("sessionId")))
            if session and session.turn:
                session.turn.cancel()
        elif method == "$/cancel_request":
            self._turns.cancel(fields.get("requestId"))

    def shut_down(self) -> None:
        self._turns.end()

    def _admit(self, method: str) -> None:
        if method not in self._methods and method != "session/prompt":
            raise RpcError(METHOD_NOT_FOUND, f"cannot find method {method}")
        if method != "initialize" and self._client is None:
            raise RpcError(INVALID_REQUEST, f"cannot do {method} yet: send initialize first")
        if method not in BEFORE_SESSIONS and not self._authenticated:
            raise RpcError(AUTH_REQUIRED, f"cannot do {method}: authenticate with {LOGIN} first")

    def initialize(self, fields: Json) -> Json:
        params.whole_number(fields, "protocolVersion")
        client = fields.get("clientCapabilities")
        self._client = client if isinstance(client, Mapping) else {}
        login = {"id": LOGIN, "name": "Rehearsal login", "description": "Signs in at once; nothing is asked"}
        return {
            "protocolVersion": VERSION,
            "agentCapabilities": CAPABILITIES,
            "agentInfo": {"name": "rehearsal", "title": "Rehearsal agent", "version": "1"},
            "authMethods": [login],
        }

    def authenticate(self, fields: Json) -> Json:
        if params.text(fields, "methodId") != LOGIN:
            params.refuse("methodId", LOGIN)
        self._authenticated = True
        return {}

    def logout(self, _: Json) -> Json:
        self._authenticated = not self._scenario.require_auth
        return {}

    def new_session(self, fields: Json) -> Json:
        cwd = params.folder(fields)
        params.mcp_servers(fields)
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
        cwd = params.optional_text(fields, "cwd")
        records = [record for record in self._store.records() if cwd in (None, record.cwd)]
        if cursor := params.optional_text(fields, "cursor"):
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
        session_id = params.session_id(fields)
        if session := self._sessions.pop(session_id, None):
            self._turns.end(session)
        self._store.delete(session_id)
        return {}

    def set_mode(self, fields: Json) -> Json:
        session, mode = self._session(fields), params.text(fields, "modeId")
        if mode not in MODES:
            params.refuse("modeId", "one of " + ", ".join(MODES))
        session.record.mode = mode
        session.save()
        return {}

    def set_config_option(self, fields: Json) -> Json:
        session, option, value = self._session(fields), params.text(fields, "configId"), fields.get("value")
        if option == "model":
            if value not in MODELS:
                params.refuse("value", "one of " + ", ".join(MODELS))
            session.record.model = str(value)
        elif option == "thoughts" and self._takes_booleans():
            if not isinstance(value, bool):
                params.refuse("value", "true or false")
            session.record.thoughts = value
        else:
            params.refuse("configId", "one of the options that were offered")
        session.save()
        return {"configOptions": session.record.options(boolean=self._takes_booleans())}

    def prompt(self, request_id: RequestId, fields: Json) -> None:
        session, blocks = self._session(fields), params.prompt(fields)
        if session.turn:
            raise RpcError(INVALID_REQUEST, "cannot take a second prompt: wait for the first, or cancel it")
        turn = Turn(
            session,
            self.connection,
            self._client or {},
            blocks,
            self._scenario.pace,
            ignores_eof=self.ignores_eof,
            executes=self._executes,
        )
        self._turns.start(request_id, turn)

    def _session(self, fields: Json) -> Session:
        session_id = params.session_id(fields)
        if session_id not in self._sessions:
            raise RpcError(NOT_FOUND, f"cannot find an open session {session_id}: load or resume it first")
        return self._sessions[session_id]

    def _reopen(self, fields: Json, *, servers_required: bool) -> Session:
        session_id, cwd = params.session_id(fields), params.folder(fields)
        params.mcp_servers(fields, required=servers_required)
        known = self._sessions.get(session_id)
        if known and known.turn:
            raise RpcError(INVALID_REQUEST, "cannot open the session again while its prompt runs")
        session = self._store.open(session_id)
        session.record.cwd = str(cwd)
        self._sessions[session_id] = session
        return session

    def _state(self, session: Session) -> Json:
        options = session.record.options(boolean=self._takes_booleans())
        return {"modes": session.record.modes(), "configOptions": options}

    def _takes_booleans(self) -> bool:
        return params.inner(self._client, "session", "configOptions", "boolean") is not None

    def _speak_early(self, session: Session) -> None:
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
        params.refuse("cursor", "one that session/list gave out")
