"""Configuration of a runner, as seed 000 has it and a little more: read once, checked as a whole, forgotten by the disk if asked."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args
from urllib.parse import urlsplit, urlunsplit

import msgspec

from legation.agents.catalogue.catalogue import Catalogue
from legation.agents.catalogue.entries import KNOWN, names_key
from legation.agents.driver import AskingModes
from legation.errors import ConfigInvalid, Unavailable
from legation.host.launch import AgentProgram
from legation.host.options import AgentDefinition
from legation.secret import Secret
from legation.wire import jsontext
from legation.wire.acp.methods import McpServer
from legation.wire.acp.updates import ContentBlock, Text
from legation.wire.callbacks import ReportIds
from legation.wire.principal import AGENT_NAME_RULE, is_agent_name

CONFIG_PATH: Final = "FACTORY_SUPERVISOR_CONFIG_PATH"
COMMANDS: Final = ("CODING_AGENT_ACP_COMMAND", "CLAUDE_ACP_COMMAND")  # the first that is set counts
DEFAULT_COMMAND: Final = ("npx", "-y", "@agentclientprotocol/claude-agent-acp")
DEFAULT_AGENT: Final = "claude-acp"  # the same package in the catalogue, locked
MOST_BYTES: Final = 16 * 1024 * 1024  # of a configuration: a prompt may have images
FLUSH_TIMEOUT: Final = 120.0  # seconds for the terminal report: the caller's time to come back
SPOOL_LIMIT: Final = 1024**3  # bytes that wait for the caller
ORPHAN_AFTER: Final = 3600.0  # seconds without the caller: then nobody wants what the agent does
PERMISSION_TIMEOUT: Final = 3600.0  # seconds for an answer: a person's time
LIMIT_SECONDS: Final = 24 * 3600.0  # of all waits for usage limits together: the provider's time
PermissionMode: TypeAlias = Literal["auto", "route"]
_REQUIRED: Final = ("runId", "taskId", "sandboxId", "callbackUrl", "token", "promptId")
_OPTIONAL: Final = ("sessionId", "modelId", "repoDir", "agentName")
# Only where permissions are routed: without a way back there are no commands.
_ROUTED: Final = (
    *("commandsUrl", "permissionTimeout", "idleTimeout", "ruleFolders", "limitWaits", "limitSeconds"),
)
_NUMBERS: Final = ("flushTimeout", "spoolLimit", "orphanAfter", "permissionTimeout", "limitSeconds")
KNOWN_FIELDS: Final = frozenset(
    (
        *_REQUIRED,
        *_OPTIONAL,
        *_ROUTED,
        *_NUMBERS,
        "prompt",
        "mcpServers",
        "permissions",
        "changes",
        "restOnly",
        "env",
        "bundle",
        "hide",
        "agent",
    )
)
_TOKEN: Final = re.compile(r"[!-~]+")  # what a header can carry
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_SECRET_HEADERS: Final = frozenset(("authorization", "proxy-authorization", "cookie"))
PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    """`unknown` are fields that nobody reads."""

    ids: ReportIds
    callback_url: str = field(repr=False)
    token: Secret
    prompt: tuple[ContentBlock, ...] = field(repr=False)
    session_id: str | None = None
    model_id: str | None = None
    mcp_servers: tuple[McpServer, ...] = field(default=(), repr=False)
    repo_dir: Path = field(default_factory=Path.cwd)
    permissions: PermissionMode = "auto"
    commands_url: str = field(default="", repr=False)
    permission_timeout: float = PERMISSION_TIMEOUT
    idle_timeout: float = 0.0
    limit_waits: int = 0
    limit_seconds: float = LIMIT_SECONDS
    rule_folders: tuple[str, ...] = ()
    changes: bool = False
    rest_only: bool = False
    env: tuple[str, ...] = ()
    bundle: Mapping[str, str] | None = field(default=None, repr=False)
    hide: tuple[Secret, ...] = ()
    agent_name: str | None = None
    agent: AgentProgram | None = None
    flush_timeout: float = FLUSH_TIMEOUT
    spool_limit: int = SPOOL_LIMIT
    orphan_after: float = ORPHAN_AFTER
    unknown: tuple[str, ...] = ()

    @property
    def is_routed(self) -> bool:
        return self.permissions == "route"


def read_config_file(path: Path, *, unlink: bool = False) -> bytes:
    """Read it; with `unlink` nobody else can afterwards, whether or not it is good."""
    try:
        with path.open("rb") as file:
            text = _read(file.fileno())
        if unlink:
            path.unlink()
    except OSError as error:
        raise ConfigInvalid(
            f"cannot read the configuration {path}: {error.strerror}; name a file of JSON with --config or"
            f" {CONFIG_PATH}"
        ) from None
    return text


def read_config_fd(fd: int) -> bytes:
    """Read an inherited descriptor to its end, and close it."""
    try:
        os.set_inheritable(fd, False)
        return _read(fd)
    except OSError as error:
        raise ConfigInvalid(
            f"cannot read the configuration from descriptor {fd}: {error.strerror}; open it for the runner"
        ) from None
    finally:
        if fd > 2 and _is_open(fd):
            os.close(fd)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _read(fd: int) -> bytes:
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        raise IsADirectoryError(21, "it is a folder")
    parts = []
    size = 0
    while part := os.read(fd, 1024 * 1024):
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            raise ConfigInvalid(
                f"cannot use a configuration of more than {MOST_BYTES} bytes; make it smaller"
            )
    return b"".join(parts)


def read_config(text: bytes) -> RunnerConfig:
    """Read what was given; everything that is wrong with it in one `ConfigInvalid`. No value of it is ever quoted."""
    try:
        given = jsontext.read(text)
    except jsontext.READ_ERRORS:
        raise ConfigInvalid("cannot use the configuration: it is not JSON; correct it") from None
    if not isinstance(given, dict):
        raise ConfigInvalid("cannot use the configuration: it is no JSON object; write {...}")
    problems = list(_problems(given))
    if problems:
        lines = "".join(f"\n- {problem}" for problem in problems)
        raise ConfigInvalid(f"cannot use the configuration; correct this:{lines}", {"problems": problems})
    permissions: PermissionMode = given.get("permissions") or "auto"
    return RunnerConfig(
        ids=ReportIds(given["runId"], given["taskId"], given["sandboxId"], given["promptId"]),
        callback_url=given["callbackUrl"],
        token=Secret(given["token"], "callback-token"),
        prompt=_blocks(given["prompt"]),
        session_id=given.get("sessionId"),
        model_id=given.get("modelId"),
        mcp_servers=msgspec.convert(given.get("mcpServers") or [], tuple[McpServer, ...]),
        repo_dir=Path(given.get("repoDir") or ".").resolve(),
        permissions=permissions,
        commands_url=given.get("commandsUrl") or _below(given["callbackUrl"], "commands"),
        permission_timeout=float(given.get("permissionTimeout", PERMISSION_TIMEOUT)),
        idle_timeout=float(given.get("idleTimeout", 0)),
        limit_waits=int(given.get("limitWaits", 0)),
        limit_seconds=float(given.get("limitSeconds", LIMIT_SECONDS)),
        rule_folders=tuple(given.get("ruleFolders") or ()),
        changes=bool(given.get("changes", permissions == "route")),
        rest_only=bool(given.get("restOnly", False)),
        env=tuple(given.get("env") or ()),
        bundle=given.get("bundle"),
        hide=tuple(Secret(each, "secret") for each in given.get("hide") or ()),
        agent_name=given.get("agentName"),
        agent=None if given.get("agent") is None else msgspec.convert(given["agent"], AgentProgram),
        flush_timeout=float(given.get("flushTimeout", FLUSH_TIMEOUT)),
        spool_limit=int(given.get("spoolLimit", SPOOL_LIMIT)),
        orphan_after=float(given.get("orphanAfter", ORPHAN_AFTER)),
        unknown=tuple(sorted(given.keys() - KNOWN_FIELDS)),
    )


def _problems(given: dict[str, Any]) -> Iterator[str]:
    for name in _REQUIRED:
        if name not in given:
            yield f"{name}: it is missing"
        elif not _is_text(given[name]):
            yield f"{name}: it is no text, or empty"
    token = given.get("token")
    if isinstance(token, str) and _is_text(token) and not _TOKEN.fullmatch(token):
        yield "token: write visible ASCII characters, without spaces or an end of line"
    for name in _OPTIONAL:
        if given.get(name) is not None and not _is_text(given[name]):
            yield f"{name}: it is no text, or empty; leave it out"
    yield from _place_problems(given)
    if "prompt" not in given:
        yield "prompt: it is missing"
    elif not _is_prompt(given["prompt"]):
        yield "prompt: write a text, or a list of content blocks of ACP"
    servers = given.get("mcpServers")
    if servers is not None and not _fits(servers, tuple[McpServer, ...]):
        yield "mcpServers: write a list of servers as ACP's session/new takes them"
    yield from _routing_problems(given)
    env = given.get("env")
    if env is not None and not (isinstance(env, list) and all(_is_variable(each) for each in env)):
        yield 'env: write names of variables, never values, like ["MY_API_KEY"]'
    bundle = given.get("bundle")
    if bundle is not None and not _is_bundle(bundle):
        yield 'bundle: write variables with their values, like {"MY_API_KEY": "..."}, and no `env` beside it'
    elif bundle is not None and env:
        yield "env: leave it out beside `bundle`, which is all that the agent gets"
    hidden = given.get("hide")
    if hidden is not None and not (isinstance(hidden, list) and all(_is_text(each) for each in hidden)):
        yield "hide: write a list of texts that nobody is to read in a report"
    if given.get("agent") is not None and not _fits(given["agent"], AgentProgram):
        yield "agent: write its `command`, `args` and `driver`, or leave it out"
    agent = given.get("agentName")
    if isinstance(agent, str) and _is_text(agent) and not is_agent_name(agent):
        yield f"agentName: write {AGENT_NAME_RULE}"
    for name in _NUMBERS:
        if not _is_number(given.get(name, 1)) or not given.get(name, 1) > 0:
            yield f"{name}: write a number above 0"


def _routing_problems(given: dict[str, Any]) -> Iterator[str]:
    permissions = given.get("permissions")
    if permissions not in (None, *get_args(PermissionMode)):
        yield 'permissions: write "auto", which approves all, or "route", which asks the caller'
    elif permissions != "route":
        for name in _ROUTED:
            if given.get(name) is not None:
                yield f'{name}: it counts only beside permissions "route"; write that too, or leave it out'
    if not _is_number(given.get("idleTimeout", 0)) or not given.get("idleTimeout", 0) >= 0:
        yield "idleTimeout: write a number of seconds, or 0"
    waits = given.get("limitWaits", 0)
    if isinstance(waits, bool) or not isinstance(waits, int) or not 0 <= waits <= 1000:
        yield "limitWaits: write how often a usage limit is waited for, from 0 to 1000"
    for name in ("changes", "restOnly"):
        if not isinstance(given.get(name, False), bool):
            yield f"{name}: write true or false"
    folders = given.get("ruleFolders")
    if folders is not None and not (isinstance(folders, list) and all(_is_text(each) for each in folders)):
        yield "ruleFolders: write a list of folders, as the caller's rules name them"


def _is_number(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and value < 2**62


def _below(url: str, name: str) -> str:
    """Name the address below another, whose query it keeps."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}", fragment=""))


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0
            and parts.username is None
        )
    except ValueError:
        return False


def _place_problems(given: dict[str, Any]) -> Iterator[str]:
    for name in ("callbackUrl", "commandsUrl"):
        url = given.get(name)
        if url is not None and name == "commandsUrl" and not _is_text(url):
            yield f"{name}: it is no text, or empty; leave it out"
        elif isinstance(url, str) and _is_text(url) and not _is_address(url):
            yield f"{name}: write an address like https://host/path"
    folder = given.get("repoDir")
    if isinstance(folder, str) and _is_text(folder) and not Path(folder).is_dir():
        yield "repoDir: there is no such folder"


def _is_text(value: object) -> bool:
    return (
        isinstance(value, str) and bool(value.strip()) and not any("\ud800" <= c <= "\udfff" for c in value)
    )


def _is_variable(name: object) -> bool:
    return isinstance(name, str) and _VARIABLE.fullmatch(name) is not None


def _is_bundle(bundle: object) -> bool:
    return isinstance(bundle, dict) and all(
        _is_variable(name) and isinstance(value, str) and "\0" not in value for name, value in bundle.items()
    )


def _is_prompt(prompt: object) -> bool:
    if isinstance(prompt, str):
        return _is_text(prompt)
    return isinstance(prompt, list) and bool(prompt) and _fits(prompt, tuple[ContentBlock, ...])


def _fits(value: object, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except (*jsontext.READ_ERRORS, TypeError):
        return False
    return True


def _blocks(prompt: str | list[object]) -> tuple[ContentBlock, ...]:
    if isinstance(prompt, str):
        return (Text(text=prompt),)
    return msgspec.convert(prompt, tuple[ContentBlock, ...])


# The agent.


@dataclass(frozen=True, slots=True)
class AgentChoice:
    """Start of the agent; `word` is what its owner should know of that."""

    definition: AgentDefinition
    secrets: tuple[Secret, ...]
    word: str | None = None
    key_method: str | None = None
    trusted: bool = True  # around a command line that speaks ACP is a sandbox of its owner's


def choose_agent(config: RunnerConfig, environ: Mapping[str, str], data_dir: Path) -> AgentChoice:
    """Take what the configuration gives, the command that the environment names, else the seed's package: locked where it is installed,
    else by npx."""
    passed, secrets = _passed(config, environ)
    secrets += tuple(_server_secrets(config.mcp_servers))
    # With a bundle it gets that alone: its home is one of the runner's folder, too.
    home = Path(environ["HOME"]) if environ.get("HOME") and config.bundle is None else None
    if (given := config.agent) is not None:
        definition = AgentDefinition(
            id=config.agent_name or Path(given.command).name.strip(".") or "agent",
            command=given.command,
            args=given.args,
            cwd=config.repo_dir,
            env=passed,
            driver=given.driver,
            beginning=given.beginning,
            modes=given.modes if config.is_routed else AskingModes(left_alone=True),
            home=home,
        )
        return AgentChoice(definition, secrets, None, given.key_method, given.trusted)
    named = next((name for name in COMMANDS if environ.get(name, "").strip()), None)
    argv: tuple[str, ...] = DEFAULT_COMMAND
    own_env, word = dict[str, str](), None
    if named is not None:
        try:
            argv = tuple(shlex.split(environ[named]))
        except ValueError as error:
            raise ConfigInvalid(f"cannot read {named}: {error}; check its quotes") from None
    else:
        catalogue = Catalogue(data_dir, environ=environ)
        try:
            start = catalogue.start(DEFAULT_AGENT)
            argv, own_env = start.argv, dict(start.env)
        except Unavailable:
            word = (
                f"{DEFAULT_AGENT} is not installed: starting `{' '.join(DEFAULT_COMMAND)}`, whatever version that is;"
                f" `legation agents install {DEFAULT_AGENT}` gets the one that is locked"
            )
    definition = AgentDefinition(
        id=config.agent_name or Path(argv[0]).name.strip(".") or "agent",
        command=argv[0],
        args=argv[1:],
        cwd=config.repo_dir,
        env={**own_env, **passed},
        # Where its owner has put it into a sandbox and allowed all, whatever mode it begins in is theirs.
        modes=AskingModes(left_alone=not config.is_routed),
        home=home,
    )
    return AgentChoice(definition, secrets, word)


def _passed(config: RunnerConfig, environ: Mapping[str, str]) -> tuple[dict[str, str], tuple[Secret, ...]]:
    """Variables that the agent gets: those of the bundle; else keys and addresses that the catalogue knows, proxies, and
    those that are listed."""
    if config.bundle is not None:
        return dict(config.bundle), tuple(
            Secret(value, name) for name, value in sorted(config.bundle.items()) if names_key(name) and value
        )
    keys = {name for entry in KNOWN for name in entry.credentials}
    others = {name for entry in KNOWN for name in entry.passes} - keys
    others |= {each for name in PROXIES for each in (name, name.lower())}
    wanted = keys | others | set(config.env)
    passed = {name: value for name, value in environ.items() if name in wanted and value}
    hidden = keys | {name for name in config.env if names_key(name)}
    return passed, tuple(Secret(passed[name], name) for name in sorted(passed.keys() & hidden))


def _server_secrets(servers: tuple[McpServer, ...]) -> Iterator[Secret]:
    """Secrets that MCP servers are given through the agent, which may say them as it may say its own."""
    for server in servers:
        for each in (*(server.env or ()), *(server.headers or ())):
            if names_key(each.name) or each.name.lower() in _SECRET_HEADERS:
                scheme, _, rest = each.value.strip().partition(" ")
                value = rest.strip() or scheme  # without `Bearer`
                if value:
                    yield Secret(value, re.sub(r"[^A-Za-z0-9_.-]", "_", each.name)[:128])
