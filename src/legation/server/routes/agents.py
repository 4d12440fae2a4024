"""`/v1/agents`: which there are here, installing them, and what they offer. See docs/sessions.md."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final, Self

import msgspec
from starlette.responses import Response

from legation.errors import (
    CapabilityUnsupported,
    InvalidParams,
    LegationError,
    NotFound,
    TimedOut,
    Unavailable,
    problem,
)
from legation.server.http.routes import Alias, Call, Routes, needs
from legation.server.routes.streams import MEDIA
from legation.server.streaming.sse import PING, EventStream
from legation.wire.api.agents import (
    AgentAbilities,
    AgentInfo,
    AgentInstall,
    AgentInstalled,
    AgentList,
    InstalledArtifact,
    ModeInfo,
    ModelInfo,
    ModeList,
    ModelList,
)

if TYPE_CHECKING:
    from legation.agents.catalogue.catalogue import LocalAgent
    from legation.agents.catalogue.options import AgentOptions
    from legation.agents.driver import AskingModes
    from legation.agents.install.lock import OfferedChoice
    from legation.host.launch import AgentLauncher

TOLD_EVERY: Final = 0.25  # seconds between two words on an installation: what a person sees as moving
PING_EVERY: Final = (
    60  # of these without news: a proxy's patience with a body is longer than a quarter of a minute
)
NoCache = Annotated[bool, Alias("no_cache")]

routes = Routes(tag="agents", tolerant=True)

_NO_INSTALL: Final = AgentInstall()
_ALL_ABILITIES: Final = AgentAbilities()
# By driver, where it is otherwise: docs/agents/ says so of each.
_ABILITIES: Final = {
    "codex": AgentAbilities(shared_process=True),
    "opencode": AgentAbilities(shared_process=True),
    "amp": AgentAbilities(plan_mode=False, questions=False, streaming_deltas=False),
}
_ABILITIES_BY_NAME: Final = {"pi": AgentAbilities(permissions=False, plan_mode=False, questions=False)}
_SOURCES: Final = {
    "installed": "registry", "on PATH": "local_path", "custom": "local_path", "built in": "builtin",
}  # fmt: skip


@routes.get("/v1/agents", access=needs("read"))
async def list_agents(call: Call, *, config: bool = False, no_cache: NoCache = False) -> AgentList:
    """Every agent that Legation knows, installed or not, and the owner's own.

    With `config` each says what can be chosen, which starts those that were never asked."""
    agents = await call.services.hosts.launcher.agents()
    return AgentList(agents=[await _info(call, each, config=config, again=no_cache) for each in agents])


@routes.get("/v1/agents/{agent}", access=needs("read"), errors=(NotFound,))
async def read_agent(call: Call, agent: str, *, config: bool = False, no_cache: NoCache = False) -> AgentInfo:
    """One agent, by name or alias."""
    return await _info(call, await call.services.hosts.launcher.agent(agent), config=config, again=no_cache)


@routes.post(
    "/v1/agents/{agent}/install",
    access=needs("operate"),
    errors=(NotFound, CapabilityUnsupported, Unavailable, TimedOut),
)
async def install_agent(call: Call, agent: str, body: AgentInstall = _NO_INSTALL) -> AgentInstalled:
    """Install an agent, in the version that this Legation's lock names; one that is there stays.

    Answers when it is done, which may take minutes."""
    launcher = call.services.hosts.launcher
    there = await _is_there(launcher, agent, body)
    if not there:
        await launcher.install(agent, body.agent_version, again=bool(body.reinstall))
    return _installed(await launcher.agent(agent), already=there)


@routes.post(
    "/v1/agents/{agent}/install/stream",
    access=needs("operate"),
    errors=(NotFound, CapabilityUnsupported),
    media=MEDIA,
)
async def stream_install(call: Call, agent: str, body: AgentInstall = _NO_INSTALL) -> Response:
    """Install an agent and follow how it gets on, as server-sent events: `progress` with `done` and `total` in bytes, then one `installed`
    with what the other route answers, or one `failed` with the problem.

    Who stops reading stops the installation."""
    launcher = call.services.hosts.launcher
    there = await _is_there(launcher, agent, body)
    return EventStream(_InstallBody(launcher, agent, body, there=there))


async def _is_there(launcher: AgentLauncher, agent: str, body: AgentInstall) -> bool:
    """Tell whether nothing is left to be done; what can never be is refused."""
    before = await launcher.agent(agent)
    if before.how in ("built in", "custom") and body.agent_version not in (None, before.version):
        raise InvalidParams(f"cannot install a version of {before.name}: it has none; leave agentVersion out")
    wanted = body.agent_version in (None, before.version)
    return before.ready and not before.outdated and wanted and not body.reinstall


class _InstallBody:
    """One installation, told as it gets on. It ends with its reader."""

    def __init__(self, launcher: AgentLauncher, agent: str, wanted: AgentInstall, *, there: bool) -> None:
        self._launcher, self._agent, self._wanted, self._there = launcher, agent, wanted, there
        self._at: tuple[int, int] | None = None  # bytes received, and all of them
        self._shown: tuple[int, int] | None = None
        self._over = False

    def __enter__(self) -> Self:
        self._work = asyncio.create_task(self._install())
        return self

    def __exit__(self, *_: object) -> None:
        self._work.cancel()

    def leave(self) -> None:
        self._work.cancel()

    async def next(self) -> bytes:
        looks = 0
        while not self._over:
            done, _ = await asyncio.wait([self._work], timeout=TOLD_EVERY)
            if done:
                self._over = True
                return b"" if self._work.cancelled() else self._work.result()
            if self._at != self._shown:
                self._shown = self._at
                return _frame("progress", dict(zip(("done", "total"), self._at or (), strict=False)))
            if (looks := looks + 1) == PING_EVERY:
                return PING
        return b""

    def _tell(self, done: int, total: int) -> None:
        self._at = done, total  # one assignment, in any thread

    async def _install(self) -> bytes:
        wanted = self._wanted
        try:
            if not self._there:
                again = bool(wanted.reinstall)
                await self._launcher.install(self._agent, wanted.agent_version, again=again, told=self._tell)
            return _frame(
                "installed", _installed(await self._launcher.agent(self._agent), already=self._there)
            )
        except LegationError as error:
            return _frame("failed", problem(error))


def _frame(event: str, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event.encode(), msgspec.json.encode(data))


@routes.get("/v1/agents/{agent}/modes", access=needs("read"), errors=(NotFound,))
async def list_agent_modes(call: Call, agent: str) -> ModeList:
    """What `agentMode` may be: `build`, `plan` where the agent can, and the agent's own."""
    launcher = call.services.hosts.launcher
    options = await launcher.options(agent)
    return ModeList(modes=_modes(options, (await launcher.entry(agent)).modes))


@routes.get("/v1/agents/{agent}/models", access=needs("read"), errors=(NotFound,))
async def list_agent_models(call: Call, agent: str) -> ModelList:
    """What `model` may be, and `variant` with the default model; others may have other variants.

    An account may have more of them, or fewer."""
    options = await call.services.hosts.launcher.options(agent)
    models = [_model(each, options) for each in options.models]
    return ModelList(models=models, default_model=options.default_model)


def _model(model: OfferedChoice, options: AgentOptions) -> ModelInfo:
    if model.id != options.default_model or not options.variants:
        return ModelInfo(id=model.id, name=model.name)
    variants = [each.id for each in options.variants]
    return ModelInfo(id=model.id, name=model.name, variants=variants, default_variant=options.default_variant)


async def _info(call: Call, agent: LocalAgent, *, config: bool, again: bool) -> AgentInfo:
    options = await call.services.hosts.launcher.options(agent.name, again=again) if config else None
    from legation.runs.submit import providers_of

    entry = await call.services.hosts.launcher.entry(agent.name)
    known = entry.modes
    return AgentInfo(
        id=agent.name,
        installed=agent.how is not None,
        credentials_available=agent.sign_in in ("not needed", "signed in", "key"),
        capabilities=_ABILITIES_BY_NAME.get(agent.name) or _ABILITIES.get(agent.driver, _ALL_ABILITIES),
        version=agent.version,
        path=agent.path,
        server_status=await call.services.sessions.agents.liveness(call.principal.workspace, agent.name),
        config_options=None if options is None else _config(options, known),
        config_error=None if options is None else options.problem,
        title=agent.title,
        aliases=list(agent.aliases),
        sign_in=agent.sign_in,
        wanted_version=agent.wanted,
        problem=agent.problem,
        key_providers=[*providers_of(entry)],
    )


def _installed(agent: LocalAgent, *, already: bool) -> AgentInstalled:
    source = _SOURCES[agent.how or "installed"]
    artifact = InstalledArtifact(
        kind="agent_process",
        path=agent.path or "",
        source=source,  # type: ignore[arg-type]
        version=agent.version,
    )
    return AgentInstalled(already_installed=already, artifacts=[artifact])


def _modes(options: AgentOptions, known: AskingModes) -> list[ModeInfo]:
    from legation.agents.modes import asks
    from legation.server.sessions.options import BUILD, PLAN

    own = [each for each in options.modes if each.id not in (BUILD, PLAN) and asks(each.id, known)]
    modes = [ModeInfo(id=BUILD, name="Build", description="Works on the task, and asks first")]
    if any(each.id in (PLAN, "read-only") for each in options.modes):
        modes.append(ModeInfo(id=PLAN, name="Plan", description="Says what it would do"))
    return modes + [ModeInfo(id=each.id, name=each.name, description=each.description or "") for each in own]


def _config(options: AgentOptions, known: AskingModes) -> list[Mapping[str, object]]:
    """List the options as ACP has them: as a session with it would say."""
    from legation.agents.modes import asks

    menus = (
        ("mode", "Mode", [each for each in options.modes if asks(each.id, known)], options.default_mode),
        ("model", "Model", list(options.models), options.default_model),
        ("thought_level", "Thought Level", list(options.variants), options.default_variant),
    )
    return [
        {
            "id": name,
            "name": title,
            "category": name,
            "type": "select",
            "currentValue": current or choices[0].id,
            "options": [{"value": each.id, "name": each.name} for each in choices],
        }
        for name, title, choices, current in menus
        if choices
    ]
