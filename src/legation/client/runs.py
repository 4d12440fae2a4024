"""Runs: submit one, follow what is reported of it, wait for its end, cancel it; lists and templates."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from legation.client.decode import Frame, read_event
from legation.client.follow import Broken, Cursors, Follow, FollowSource
from legation.client.method import ApiMethod, C, Group, P, calls, follows, lists, of, polls
from legation.client.request import (
    LONG_READ,
    PATIENCE,
    ApiRequest,
    AsJson,
    PollRequest,
    Query,
    Reconnects,
    encoded,
    get,
    segment,
    sending,
)
from legation.clock import new_id
from legation.errors import InvalidParams
from legation.secret import Secret
from legation.wire.api.runs import (
    EmptyPlace,
    FolderPlace,
    GitPlace,
    McpSecrets,
    NewTemplate,
    Priority,
    ProviderKey,
    RunBatch,
    RunChanges,
    RunCleanup,
    RunEnvironment,
    RunEventView,
    RunMessage,
    RunResume,
    RunsBatched,
    RunSecrets,
    RunSpec,
    RunSubmission,
    RunTimeouts,
    RunView,
    SkillSecret,
    TemplateView,
)
from legation.wire.api.sessions import LocalMcp, RemoteMcp, Skills
from legation.wire.api.shape import Page
from legation.wire.events import Event

if TYPE_CHECKING:
    from legation.client.async_http import AsyncCaller
    from legation.client.http import Caller

WAIT: Final = 20.0  # seconds that the server may keep one question for the end of a run
ENDED: Final = frozenset(("succeeded", "failed", "timed_out", "cancelled"))

_view = AsJson(RunView)


def secrets_of(
    keys: Mapping[str, str | Secret], mcp: Iterable[McpSecrets] = (), skills: Iterable[SkillSecret] = ()
) -> RunSecrets | None:
    """Make the one carrier of secrets: keys by their provider (`anthropic`, `openai`, `google`, `amp`, `custom`)."""
    shown = {
        name: ProviderKey(api_key=key.reveal() if isinstance(key, Secret) else key)
        for name, key in keys.items()
    }
    servers, texts = tuple(mcp), tuple(skills)
    try:
        return RunSecrets(**shown, mcp_servers=servers, skills=texts) if shown or servers or texts else None
    except TypeError:
        known = "anthropic, openai, google, amp, custom"
        raise InvalidParams(f"cannot send a key for {', '.join(shown)}; choose from {known}") from None


def submit_run(
    agent: str | None = None,
    prompt: str | None = None,
    *,
    prompts: Iterable[str] | None = None,
    template: str | None = None,
    variables: Mapping[str, str] | None = None,
    keys: Mapping[str, str | Secret] | None = None,
    mcp_secrets: Iterable[McpSecrets] = (),
    skill_secrets: Iterable[SkillSecret] = (),
    workspace: EmptyPlace | FolderPlace | GitPlace | None = None,
    model: str | None = None,
    policy: str | None = None,
    timeouts: RunTimeouts | None = None,
    mcp_servers: Mapping[str, LocalMcp | RemoteMcp] | None = None,
    skills: Skills | None = None,
    environment: RunEnvironment | None = None,
    cleanup: RunCleanup | None = None,
    priority: Priority = "normal",
    key: str | None = None,
) -> ApiRequest[str]:
    """Submit a run, of an agent and a prompt or of a template, and give it in hand.

    `keys` has the key of the agent's provider, `{"anthropic": "sk-..."}`: it is sealed for this run alone. With a `key` of yours what is
    submitted again is the same run; without one it has its own, so that a lost answer makes no second run."""
    body = RunSubmission(
        template=template,
        agent=agent,
        prompt=prompt,
        prompts=None if prompts is None else [*prompts],
        model=model,
        workspace=workspace,
        policy=policy,
        timeouts=timeouts,
        mcp_servers=mcp_servers,
        skills=skills,
        environment=environment,
        cleanup=cleanup,
        variables=variables or {},
        secrets=secrets_of(keys or {}, mcp_secrets, skill_secrets),
        priority=priority,
    )
    return ApiRequest(
        "POST", "/v1/runs", lambda answered: _view(answered).id, body=encoded(body), key=key or new_id("key")
    )


def submit_runs(submissions: Iterable[RunSubmission]) -> ApiRequest[RunsBatched]:
    """Submit up to 1,000; each is accepted or refused by itself, and answered in its place."""
    runs = [msgspec.Raw(encoded(each)) for each in submissions]
    return replace(sending("POST", "/v1/runs:batch", RunBatch(runs=runs), RunsBatched), wait=LONG_READ)


def list_runs(
    *,
    state: str | None = None,
    agent: str | None = None,
    template: str | None = None,
    creator: str | None = None,
    active: bool | None = None,
    search: str | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> ApiRequest[Page[RunView]]:
    """List them, the newest first. `search` is the beginning of an id, an agent's name or a template's hash."""
    query = {"state": state, "agent": agent, "template": template, "creator": creator, "search": search}
    shown = None if active is None else "true" if active else "false"
    return get("/v1/runs", Page[RunView], {**query, "active": shown, "after": after, "limit": limit})


def run_path(run: str) -> str:
    return f"/v1/runs/{segment(run)}"


def open_run(run: str) -> ApiRequest[str]:
    """One that there is, by its id."""
    return ApiRequest("GET", run_path(run), lambda answered: _view(answered).id)


def read_run(run: str) -> ApiRequest[RunView]:
    """Read how it is now."""
    return get(run_path(run), RunView)


def wait_run(run: str, timeout: float | None = None) -> PollRequest[RunView]:
    """Wait until it has ended, however it did; `TimedOut` where that takes longer than `timeout` seconds. The run goes on then."""
    if timeout is not None and timeout < 0:
        raise InvalidParams("cannot wait for less than nothing: give seconds, or leave the timeout out")
    asked = get(run_path(run), RunView, {"wait": WAIT if timeout is None else min(WAIT, timeout)})
    late = f"cannot wait for {run} any longer: it has not ended; ask again, or cancel it"
    return PollRequest(replace(asked, wait=LONG_READ), lambda view: view.state in ENDED, timeout, late)


def cancel_run(run: str) -> ApiRequest[RunView]:
    """Ask for its end; `wait` says when that is reached."""
    return ApiRequest("POST", f"{run_path(run)}/cancel", _view)


def send_to_run(run: str, message: str, *, key: str | None = None) -> ApiRequest[RunView]:
    """Say something further to its agent, for its next turn; `Conflict` where none is at work. With a `key` of yours what is sent again is
    said once; without one it has its own, so that a lost answer says nothing twice."""
    body = encoded(RunMessage(message=message))
    return ApiRequest("POST", f"{run_path(run)}/messages", _view, body=body, key=key or new_id("key"))


def pause_run(run: str) -> ApiRequest[RunView]:
    """Have its agent stop where it is, until `resume`."""
    return ApiRequest("POST", f"{run_path(run)}/pause", _view)


def resume_run(
    run: str,
    *,
    keys: Mapping[str, str | Secret] | None = None,
    mcp_secrets: Iterable[McpSecrets] = (),
    skill_secrets: Iterable[SkillSecret] = (),
) -> ApiRequest[RunView]:
    """Have one go on: a paused one, a suspended one before its time, or a failed one, whose secrets went with its end: send them again."""
    body = RunResume(secrets=secrets_of(keys or {}, mcp_secrets, skill_secrets))
    return sending("POST", f"{run_path(run)}/resume", body, RunView)


def list_run_events(
    run: str, after: int = 0, *, limit: int | None = None, content: bool = True
) -> ApiRequest[Page[RunEventView]]:
    """List what was reported above the number `after`; without `content`, what is known of it alone."""
    query = {"after": after, "limit": limit, "content": None if content else "false"}
    return get(f"{run_path(run)}/events", Page[RunEventView], query)


def read_run_changes(run: str) -> ApiRequest[RunChanges]:
    """Read what it changed, as a patch; `Conflict` until that was reported, with its end."""
    return get(f"{run_path(run)}/changes", RunChanges)


class RunEventSource(FollowSource[Event]):
    """Events of a run, as they are stored. Numbers are dense (INV-C4)."""

    def __init__(self, run: str, after: int) -> None:
        if after < 0:
            raise InvalidParams("cannot follow a run from a negative number: 0 is its beginning")
        self.path = f"{run_path(run)}/events/sse"
        self._run = run
        self._cursors = Cursors({run: after})

    def connect(self) -> tuple[Query, dict[str, str]]:
        self._cursors.connect()
        after = str(self._cursors[self._run])
        return (("after", after),), self._again(after)

    def read(self, frame: Frame) -> tuple[Event, ...]:
        try:
            event = read_event(frame.data)
        except ValueError as error:
            raise Broken(f"what is no event: {error}") from error
        return (event,) if self._cursors.take(self._run, event.seq) else ()


def follow_run(run: str, after: int = 0, *, patience: float = PATIENCE) -> Follow[Event]:
    """Every event above the number `after`: all that was reported, then all that is, until the run has ended.

    Connections come and go without a gap or a double. `patience`: seconds without a sign of the server."""
    return Follow(RunEventSource(run, after), Reconnects(patience))


def keep_template(name: str, run: RunSpec) -> ApiRequest[TemplateView]:
    """Keep a template; the same again is the same one, by its hash."""
    return sending("POST", "/v1/templates", NewTemplate(name=name, run=run), TemplateView)


def list_templates(after: str | None = None, limit: int | None = None) -> ApiRequest[Page[TemplateView]]:
    return get("/v1/templates", Page[TemplateView], {"after": after, "limit": limit})


def read_template(template: str) -> ApiRequest[TemplateView]:
    """Read one by its id or its hash, with what it says."""
    return get(f"/v1/templates/{segment(template)}", TemplateView)


# A run in hand, sync or async.


class ClientRun(Group[C]):
    """A run in hand, made by `client.run` and `runs.get`. It holds no connection, and need not be closed."""

    info = of(calls(read_run))
    stream_events = of(follows(follow_run))
    events = of(lists(list_run_events))
    changes = of(calls(read_run_changes))
    wait = of(polls(wait_run))
    cancel = of(calls(cancel_run))
    send = of(calls(send_to_run))
    pause = of(calls(pause_run))
    resume = of(calls(resume_run))

    def __init__(self, caller: C, id_: str) -> None:
        super().__init__(caller, (id_,))
        self.id = id_

    def __repr__(self) -> str:
        return f"<Run {self.id}>"


def opens_run(
    make: Callable[P, ApiRequest[str]],
) -> ApiMethod[P, ClientRun[Caller], Awaitable[ClientRun[AsyncCaller]]]:
    """Declare an operation whose answer is the id of a run, given as the run in hand."""
    return ApiMethod(make, lambda caller: partial(caller.send_for, make=partial(ClientRun, caller)))


class RunsApi(Group[C]):
    list = lists(list_runs)
    get = opens_run(open_run)
    submit = opens_run(submit_run)
    submit_many = calls(submit_runs)


class TemplatesApi(Group[C]):
    list = lists(list_templates)
    get = calls(read_template)
    keep = calls(keep_template)
