"""Settings: read once, from flags, then LEGATION_* variables, then legation.toml, then the defaults.

INV-1  The first of these that names a setting decides it, and `Settings.source` tells which that was.
INV-2  The current folder is never searched: a repository must not configure its own keeper.
INV-3  Either every value is good, or one error lists all that is wrong, each with its place.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, get_args

from legation.errors import ConfigInvalid, InvalidParams
from legation.secret import Secret

LogLevel = Literal["debug", "info", "warning", "error", "critical"]

CONFIG_VARIABLE: Final = "LEGATION_CONFIG"  # names the file, so that it cannot be a setting in it
BIN_VARIABLE: Final = "LEGATION_BIN"  # names the program that the SDK starts: not ours to read
_PREFIX: Final = "LEGATION_"
_QUANTITY: Final = re.compile(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]*)\s*", re.ASCII)
_SECONDS: Final = {"": 1, "ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTES: Final = {"": 1, "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_WEEK: Final = 7 * 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What each means stands in `FIELDS`; durations are seconds."""

    data_dir: Path
    stop_grace: float
    start_timeout: float
    idle_timeout: float
    agent_rest: float
    permission_timeout: float
    max_line_bytes: int
    log_level: LogLevel
    url: str | None
    host: str
    port: int
    token: Secret | None
    public_url: str | None
    tls_cert: Path | None
    tls_key: Path | None
    allowed_hosts: tuple[str, ...]
    cors_origins: tuple[str, ...]
    trusted_proxies: tuple[str, ...]
    max_body_bytes: int
    database_url: Secret | None
    blobs: str | None
    vault_key: Secret | None
    token_pepper: Secret | None
    cookie_key: Secret | None
    policy: Path | None
    tools: Path | None
    expose_content: bool
    supervisor_wait: float
    max_grant: float
    mesh_port: int | None
    mesh_with_agents: bool
    notify_webhook: Secret | None
    notify_webhook_secret: Secret | None
    notify_command: tuple[str, ...]
    notify_smtp: Secret | None
    notify_from: str | None
    notify_to: tuple[str, ...]
    otel_endpoint: str | None
    agents: Path | None
    folders: tuple[Path, ...]
    processes: bool
    sources: Mapping[str, str]

    def source(self, name: str) -> str:
        """Where the value came from, in words for a person."""
        return self.sources[name]


class Unusable(Exception):
    """What is wrong with a value or a file, and what to write instead."""


class Field(NamedTuple):
    name: str
    default: str
    read: Callable[[object], object]
    description: str  # the one text for --help and for the docs
    flag: bool = True  # False: only by variable or file, because everybody can read a command line


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def variable(name: str) -> str:
    return f"{_PREFIX}{name.upper()}"


def _within(least: float, most: float, units: Mapping[str, float], hint: str) -> Callable[[object], float]:
    """A reader of numbers, and of texts with a unit."""

    def read(value: object) -> float:
        if isinstance(value, str) and (text := _QUANTITY.fullmatch(value)) and text[2].lower() in units:
            value = float(text[1]) * units[text[2].lower()]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Unusable(f"is not understood: write {hint}")
        if not least <= value <= most:  # neither infinity nor nan is
            raise Unusable(f"is out of range: write {hint}, at least {least:.15g} and at most {most:.15g}")
        return float(value)

    return read


def _duration(least: float, most: float) -> Callable[[object], float]:
    return _within(least, most, _SECONDS, 'seconds, or a text like "90s", "10m" or "1h"')


def _size(least: int, most: int) -> Callable[[object], int]:
    read = _within(least, most, _BYTES, 'bytes, or a text like "512KiB" or "32MiB"')
    return lambda value: int(read(value))


def _log_level(value: object) -> str:
    if isinstance(value, str) and value.lower() in get_args(LogLevel):
        return value.lower()
    raise Unusable(f"is not understood: write one of {', '.join(get_args(LogLevel))}")


def _folder(value: object) -> Path:
    if isinstance(value, str | Path) and "\0" not in str(value) and Path(value).is_absolute():
        return Path(value)
    raise Unusable('is not understood: write an absolute path, or one that starts with "~/"')


def _folders(value: object) -> tuple[Path, ...]:
    words = value if isinstance(value, list) else [value]
    return tuple(_folder(word) for word in words if word != "")


def _optional(read: Callable[[object], object]) -> Callable[[object], object]:
    """The empty text stands for "none": it is the default, and a variable cannot be unset in every place."""
    return lambda value: None if value == "" else read(value)


def _secret(name: str, pattern: str = r".+", hint: str = "it as text") -> Callable[[object], object]:
    def read(value: object) -> Secret:
        if isinstance(value, str) and re.fullmatch(pattern, value, re.DOTALL):
            with suppress(InvalidParams):  # not Unicode
                return Secret(value, name)
        raise Unusable(f"is not understood: write {hint}")

    return _optional(read)


def _text(pattern: str, hint: str) -> Callable[[object], str]:
    matches = re.compile(pattern).fullmatch

    def read(value: object) -> str:
        if isinstance(value, str) and matches(value):
            return value
        raise Unusable(f"is not understood: write {hint}")

    return read


def _words(pattern: str, hint: str) -> Callable[[object], tuple[str, ...]]:
    """A list in the file; elsewhere a text with commas."""
    word = _text(pattern, hint)

    def read(value: object) -> tuple[str, ...]:
        words = value if isinstance(value, list) else str(value).split(",")
        return tuple(word(each.strip() if isinstance(each, str) else each) for each in words if each != "")

    return read


def _port(value: object) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 65535:
        return value
    raise Unusable("is not understood: write a number from 1 to 65535, or 0 for any free one")


def _truth(value: object) -> bool:
    if isinstance(value, str):
        value = {"true": True, "false": False, "1": True, "0": False}.get(value.lower())
    if isinstance(value, bool):
        return value
    raise Unusable("is not understood: write true or false")


def _command(value: object) -> tuple[str, ...]:
    """A list in the file; elsewhere one text, split as a shell would."""
    try:
        words = value if isinstance(value, list) else shlex.split(str(value))
    except ValueError as error:
        raise Unusable(f"is not understood ({error}): check its quotes") from None
    if not all(isinstance(word, str) and "\0" not in word for word in words):
        raise Unusable("is not understood: write the program and its arguments")
    return tuple(words)


_HTTP: Final = r"https?://[A-Za-z0-9.:\[\]_-]+/?"

FIELDS: Final = (
    Field(
        "data_dir",
        "$XDG_DATA_HOME/legation",
        _folder,
        "Folder that keeps sessions, their events and the agents' homes. Without XDG_DATA_HOME the default is "
        "~/.local/share/legation.",
    ),
    Field(
        "stop_grace", "5s", _duration(0, 300), "How long an agent told to stop may take before it is killed."
    ),
    Field(
        "start_timeout",
        "60s",
        _duration(0.1, 3600),
        "How long an agent may take to start and open a session.",
    ),
    Field(
        "idle_timeout",
        "10m",
        _duration(0.1, _WEEK),
        "How long a prompt may go without a message from its agent before it counts as stuck.",
    ),
    Field(
        "agent_rest",
        "30m",
        _duration(0, _WEEK),
        "How long the agent of a session may have nothing to do before it is stopped until the next message; 0: it never is.",
        flag=False,
    ),
    Field(
        "permission_timeout",
        "10m",
        _duration(0.1, _WEEK),
        "How long a permission waits for an answer; without one it is denied.",
    ),
    Field("max_line_bytes", "32MiB", _size(2**16, 2**29), "The longest line an agent may send."),
    Field(
        "log_level",
        "warning",
        _log_level,
        "The least severe log messages to show; a server without it shows `info` as well.",
    ),
    Field(
        "url",
        "",
        _optional(_text(_HTTP, "an address like https://legation.example.com")),
        "Server that commands talk to, with `token`. Without it they find the one of this machine by its data folder.",
    ),
    Field(
        "host",
        "127.0.0.1",
        _text(r"[A-Za-z0-9.:_-]+", "an address or a host name"),
        "Address that the server listens on. Anything but loopback needs `token`.",
    ),
    Field(
        "port",
        "4517",
        _port,
        "Port that the server listens on; the one it once had is kept, unless this is set. 0 takes any free one.",
    ),
    Field(
        "token",
        "",
        _secret("token"),
        "A token that the server accepts as its owner's, for as long as it runs; better given as a variable: "
        "everybody on the machine can read a command line.",
    ),
    Field(
        "public_url",
        "",
        _optional(_text(_HTTP, "an address like https://legation.example.com")),
        "The address under which others reach the server, for links and cookies; behind a reverse proxy.",
    ),
    Field("tls_cert", "", _optional(_folder), "File with the TLS certificate and its chain (PEM)."),
    Field("tls_key", "", _optional(_folder), "File with the private key of `tls_cert` (PEM)."),
    Field(
        "allowed_hosts",
        "",
        _words(r"[A-Za-z0-9.\[\]:_-]+", "host names, separated by commas"),
        "Host names that requests may be addressed to, besides those of `host` and `public_url`.",
        flag=False,
    ),
    Field(
        "cors_origins",
        "",
        _words(r"https?://[A-Za-z0-9.:\[\]_-]+", "origins like https://app.example.com, separated by commas"),
        "Web pages of these origins may call the server. None by default.",
        flag=False,
    ),
    Field(
        "trusted_proxies",
        "",
        _words(r"[0-9A-Fa-f.:/]+", "addresses or networks, separated by commas"),
        "Reverse proxies whose X-Forwarded- headers are believed. None by default.",
        flag=False,
    ),
    Field("max_body_bytes", "1MiB", _size(2**10, 2**30), "The longest body of a request.", flag=False),
    Field(
        "database_url",
        "",
        _secret("database_url", r"postgres(ql)?://\S+", "postgresql://user:password@host/name"),
        "postgresql://user:password@host/name. Without it the database is a file in the data folder.",
        flag=False,
    ),
    Field(
        "blobs",
        "",
        _optional(_text(r"s3://\S+", "an address like s3://bucket/prefix")),
        "Where files are kept: s3://bucket/prefix?endpoint=...&region=... with the usual AWS_ variables. Without it, "
        "a folder in the data folder.",
        flag=False,
    ),
    Field(
        "vault_key",
        "",
        _secret("vault_key"),
        "Key that seals secrets; after a comma older ones, so that what they sealed opens. `legation keys new` "
        "makes one. With Postgres it is needed; else it is made and kept in the data folder.",
        flag=False,
    ),
    Field(
        "token_pepper",
        "",
        _secret("token_pepper"),
        "Key under which tokens are hashed. As `vault_key`, but it cannot be changed.",
        flag=False,
    ),
    Field(
        "cookie_key",
        "",
        _secret("cookie_key"),
        "Key that signs cookies and links. As `vault_key`.",
        flag=False,
    ),
    Field(
        "policy",
        "",
        _optional(_folder),
        "File or folder with the rules for agents. Without it the starter `careful` holds: see `legation policy`.",
    ),
    Field(
        "tools",
        "",
        _optional(_folder),
        "File that lists the tools that agents can call at `POST /tool/{name}`.",
    ),
    Field(
        "expose_content",
        "true",
        _truth,
        "Whether supervisors see contents. With false they see size, digest and type in their place; people see all.",
        flag=False,
    ),
    Field(
        "supervisor_wait",
        "30s",
        _duration(0, _WEEK),
        "How long an approval waits for a supervisor to be there before it goes to a person.",
        flag=False,
    ),
    Field(
        "max_grant", "24h", _duration(1, 365 * 86400), "The longest time that a grant may last.", flag=False
    ),
    Field(
        "mesh_port",
        "",
        _optional(_port),
        "Port of 127.0.0.1 where whoever is on this machine decides approvals as `agent:supervisor`, without a "
        "credential. Off without it.",
    ),
    Field(
        "mesh_with_agents",
        "false",
        _truth,
        "Serve `mesh_port` also while agents run outside of a jail, who could then approve themselves.",
        flag=False,
    ),
    Field(
        "notify_webhook",
        "",
        _secret("notify_webhook", r"https?://\S+", "an address like https://example.com/hook"),
        "Address that is told, signed, of every approval that reaches a person.",
        flag=False,
    ),
    Field(
        "notify_webhook_secret",
        "",
        _secret("notify_webhook_secret", r"\S{16,}", "at least 16 characters without spaces"),
        "Key that signs what `notify_webhook` is sent. Needed with it.",
        flag=False,
    ),
    Field(
        "notify_command",
        "",
        _command,
        "Program that is run, with the notice as JSON on its standard input, for every approval that reaches a person.",
        flag=False,
    ),
    Field(
        "notify_smtp",
        "",
        _secret("notify_smtp", r"smtps?://\S+", "smtps://user:password@host:port, or smtp:// for STARTTLS"),
        "Mail server for notices of approvals that reach a person.",
        flag=False,
    ),
    Field(
        "notify_from",
        "",
        _optional(_text(r"[^@\s,]+@[^@\s,]+", "a mail address")),
        "Sender of those mails.",
        flag=False,
    ),
    Field(
        "notify_to",
        "",
        _words(r"[^@\s,]+@[^@\s,]+", "mail addresses, separated by commas"),
        "Who gets those mails.",
        flag=False,
    ),
    Field(
        "otel_endpoint",
        "",
        _optional(_text(_HTTP, "an address like http://127.0.0.1:4318")),
        "OpenTelemetry collector (OTLP over HTTP) that gets a span for every decided call; needs `legation[otel]`.",
        flag=False,
    ),
    Field(
        "agents",
        "",
        _optional(_folder),
        "File with agents of your own, a stanza each. Without it, agents.toml in the data folder.",
        flag=False,
    ),
    Field(
        "folders",
        "",
        _folders,
        "Folders in which sessions work, and whose files the file routes read and write; in the file a list, else "
        "separated by colons. Without it, the home folder of the user who runs the server.",
        flag=False,
    ),
    Field(
        "processes",
        "false",
        _truth,
        "Whether operators may run programs on the server's machine through `/v1/processes`.",
        flag=False,
    ),
)
_BY_NAME: Final = {field.name: field for field in FIELDS}


class _Layer(NamedTuple):
    values: Mapping[str, object]  # by field name
    where: str
    spell: Callable[[str], str]  # a field's name as it is written there


def load(flags: Mapping[str, object], environ: Mapping[str, str]) -> Settings:
    """`flags` go by field name; None counts as not given, a relative `Path` starts at the current folder."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    problems: list[str] = []
    for layer in (_flags(flags), _variables(environ), _file(environ, problems), _defaults(environ)):
        for name, raw in layer.values.items():
            place = f"{layer.where} {layer.spell(name)}".strip()
            try:
                field = _field(name, layer.spell)
                if field.read is _folders and isinstance(raw, str):
                    raw = raw.split(":")  # a list in the file; elsewhere a text, as PATH is
                value = field.read(_from_home(raw, environ))
            except Unusable as fault:
                problems.append(f"{place} {fault}")
            else:
                values.setdefault(name, value)
                sources.setdefault(name, place)
    if not problems and "data_dir" not in values:
        problems.append("data_dir has no default without HOME: set HOME or LEGATION_DATA_DIR")
    if problems:
        lines = "".join(f"\n- {problem}" for problem in problems)
        raise ConfigInvalid(f"cannot use the settings; correct this:{lines}", {"problems": problems})
    return Settings(**values, sources=MappingProxyType(sources))


def _flags(flags: Mapping[str, object]) -> _Layer:
    given = {name: value for name, value in flags.items() if value is not None}
    for name, value in given.items():
        if isinstance(value, Path) and value.parts[:1] != ("~",):
            given[name] = value.absolute()
    return _Layer(given, "flag", flag)


def _variables(environ: Mapping[str, str]) -> _Layer:
    others = (CONFIG_VARIABLE, BIN_VARIABLE)
    ours = sorted(name for name in environ if name.startswith(_PREFIX) and name not in others)
    return _Layer({name.removeprefix(_PREFIX).lower(): environ[name] for name in ours}, "env", variable)


def config_file(environ: Mapping[str, str]) -> Path:
    """The one that is read, whether it is there or not; relative where it is not looked for."""
    if chosen := environ.get(CONFIG_VARIABLE):
        return Path(str(_from_home(chosen, environ)))
    return _xdg_folder(environ, "XDG_CONFIG_HOME", ".config") / "legation.toml"


def _file(environ: Mapping[str, str], problems: list[str]) -> _Layer:
    path, chosen = config_file(environ), environ.get(CONFIG_VARIABLE)
    values: Mapping[str, object] = {}
    if path.is_absolute():
        try:
            values = _parsed(path)
        except FileNotFoundError:
            if chosen:
                problems.append(f"{path} does not exist: create it or correct {CONFIG_VARIABLE}")
        except Unusable as fault:
            problems.append(f"{path} {fault}")
    elif chosen:
        problems.append(f"env {CONFIG_VARIABLE} is relative: write an absolute path")
    return _Layer(values, f"{path}:", str)


def _parsed(path: Path) -> Mapping[str, object]:
    import tomllib  # most have no file

    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unusable(f"cannot be read ({error.strerror}): correct or remove it") from error
    except tomllib.TOMLDecodeError as error:  # tells line and column
        raise Unusable(f"is not TOML ({error}): correct it") from error
    except UnicodeDecodeError as error:
        raise Unusable("is not UTF-8: save it as such") from error


def _defaults(environ: Mapping[str, str]) -> _Layer:
    defaults: dict[str, object] = {field.name: field.default for field in FIELDS}
    defaults["data_dir"] = folder = _xdg_folder(environ, "XDG_DATA_HOME", ".local/share")
    if not folder.is_absolute():
        del defaults["data_dir"]
    return _Layer(defaults, "default", lambda _: "")


def _xdg_folder(environ: Mapping[str, str], base: str, below_home: str) -> Path:
    """Relative when neither the variable nor HOME is absolute; the XDG standard wants relative ones ignored."""
    if Path(environ.get(base, "")).is_absolute():
        return Path(environ[base], "legation")
    return Path(environ.get("HOME", ""), below_home, "legation")


def _from_home(value: object, environ: Mapping[str, str]) -> object:
    if isinstance(value, str | Path) and str(value).startswith("~/"):
        return (environ.get("HOME") or "~") + str(value)[1:]
    if isinstance(value, list):
        return [_from_home(each, environ) for each in value]
    return value


def _field(name: str, spell: Callable[[str], str]) -> Field:
    if field := _BY_NAME.get(name):
        return field
    from difflib import get_close_matches

    near = get_close_matches(name, _BY_NAME, n=1)
    known = f"did you mean {spell(near[0])}?" if near else f"known are {', '.join(map(spell, _BY_NAME))}"
    raise Unusable(f"is unknown: {known}")


def reference() -> str:
    """The page docs/reference/settings.md; a test keeps the two equal."""
    rows = [
        f"| `{name}` | {f'`{flag(name)}`' if has_flag else '-'} | `{variable(name)}` | "
        f"{f'`{default}`' if default else 'none'} | {description} |"
        for name, default, _, description, has_flag in FIELDS
    ]
    return "\n".join([_PAGE_HEAD, *rows, ""])


_PAGE_HEAD: Final = """\
# Settings

A setting is taken from the first of these that names it:

1. the flag of the command,
2. the environment variable,
3. the key in `legation.toml`: the file that `LEGATION_CONFIG` names, else
   `$XDG_CONFIG_HOME/legation/legation.toml`, else `~/.config/legation/legation.toml`,
4. the default.

The current folder is never searched for `legation.toml`: a repository must not configure the program that
watches over it. Unknown names and unusable values are refused, all of them in one error, also those that a
stronger source overrules. A command takes the flags that matter to it; `legation doctor` shows every value
and where it came from.

Durations are seconds, or a text with a unit: `"500ms"`, `"90s"`, `"10m"`, `"1h"`, `"2d"`. Sizes are bytes, or a
text with a unit: `"64KiB"`, `"32MiB"`, `"1GiB"` (powers of 1024) or `"64kB"`, `"32MB"`, `"1GB"` (of 1000).
Paths are absolute or start with `~/`; only a flag may be relative to the current folder.

| key | flag | variable | default | meaning |
|---|---|---|---|---|"""
