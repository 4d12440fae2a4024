"""Settings: each declared once, with its name, type, default, reader and meaning, the one text for `--help` and for the docs;
read once, from flags, then LEGATION_* variables, then legation.toml, then the defaults.

INV-1  The first of these that names a setting decides it, and `Settings.source` tells which that was.
INV-2  The current folder is never searched: a repository must not configure its own keeper.
INV-3  Either every value is good, or one error lists all that is wrong, each with its place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar, cast

from legation.errors import ConfigInvalid
from legation.secret import Secret
from legation.setting_values import (
    ByteSize,
    Duration,
    LogLevel,
    Matching,
    Number,
    Optional,
    SecretText,
    UnlessNever,
    Unusable,
    WebAddress,
    WordList,
    read_command,
    read_folder,
    read_folders,
    read_log_level,
    read_port,
    read_truth,
)

T = TypeVar("T")

PREFIX: Final = "LEGATION_"
_WEEK: Final = 7 * 86400
_AGE: Final = 'a text like "90d", "36h" or "30m"'
# Ages of what is to go: an hour at least as a setting, so that a slip of the pen leaves a moment to look.
Age = Duration(0, 36500 * 86400, _AGE)
_KEPT: Final = Duration(3600, 36500 * 86400, _AGE)
_HTTP: Final = r"https?://[A-Za-z0-9.:\[\]_-]+/?"


MINUTE: Final = 60.0
HOUR: Final = 60 * MINUTE
_PACKED: Final[float | None] = HOUR  # after a run's end
MIB: Final = 2**20
FOUND: Final = cast(Any, dataclasses.MISSING)  # a default that depends on the environment: `load` finds it


class SettingField(NamedTuple):
    name: str
    value: object  # the default
    read: Callable[[object], object]
    description: str
    flag: bool  # False: only by variable or file, because everybody can read a command line

    @property
    def default(self) -> str:
        """The default as it is written; a test holds that it reads as the value."""
        if self.value is FOUND:
            return "$XDG_DATA_HOME/legation"
        if self.value is None or self.value == ():
            return ""
        units: Mapping[str, float] = {}
        read = self.read.read if isinstance(self.read, UnlessNever) else self.read
        if isinstance(read, Duration | ByteSize):
            units = {"MiB": MIB} if isinstance(read, ByteSize) else {"h": HOUR, "m": MINUTE, "s": 1}
        for unit, size in units.items():
            if isinstance(self.value, int | float) and self.value % size == 0:
                return f"{self.value / size:g}{unit}"
        return str(self.value).lower() if isinstance(self.value, bool) else str(self.value)


def setting(default: T, read: Callable[[object], T], description: str, *, flag: bool = True) -> T:
    """Declare a setting."""
    return dataclasses.field(default=default, metadata={SettingField: (default, read, description, flag)})


# Flags that are said once for each value, or as sandbox-agent says them.
_FLAGS: Final = {"folders": "--folder", "cors_origins": "--cors-allow-origin"}


def flag(name: str) -> str:
    return _FLAGS.get(name) or f"--{name.replace('_', '-')}"


def variable(name: str) -> str:
    return f"{PREFIX}{name.upper()}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings as the program uses them; durations are seconds."""

    data_dir: Path = setting(
        FOUND,
        read_folder,
        "Folder that keeps sessions, their events and the agents' homes. Without XDG_DATA_HOME the default is "
        "~/.local/share/legation.",
    )
    stop_grace: float = setting(
        5.0,
        Duration(0, 300),
        "How long an agent told to stop may take before it is killed; a moment where Legation itself is stopped.",
    )
    start_timeout: float = setting(
        MINUTE, Duration(0.1, 3600), "How long an agent may take to start and open a session."
    )
    idle_timeout: float = setting(
        10 * MINUTE,
        Duration(0.1, _WEEK),
        "How long a prompt may go without a message from its agent before it counts as stuck.",
    )
    agent_rest: float = setting(
        30 * MINUTE,
        Duration(0, _WEEK),
        "How long the agent of a session may have nothing to do before it is stopped until the next message; 0: it never is.",
        flag=False,
    )
    permission_timeout: float = setting(
        10 * MINUTE,
        Duration(0.1, _WEEK),
        "How long a permission waits for an answer; without one it is denied.",
    )
    max_line_bytes: int = setting(32 * MIB, ByteSize(2**16, 2**29), "The longest line an agent may send.")
    log_level: LogLevel = setting(
        "warning",
        read_log_level,
        "The least severe log messages to show; a server without it shows `info` as well.",
    )
    url: str | None = setting(
        None,
        Optional(WebAddress(_HTTP, "an address like https://legation.example.com")),
        "Server that commands talk to, with `token`. Without it they find the one of this machine by its data folder.",
    )
    host: str = setting(
        "127.0.0.1",
        Matching(r"[A-Za-z0-9.:_-]+", "an address or a host name"),
        "Address that the server listens on. Anything but loopback needs `token`.",
    )
    port: int = setting(
        4517,
        read_port,
        "Port that the server listens on; the one it once had is kept, unless this is set. 0 takes any free one.",
    )
    token: Secret | None = setting(
        None,
        Optional(SecretText("token")),
        "A token that the server accepts as its owner's, for as long as it runs; better given as a variable: "
        "everybody on the machine can read a command line.",
    )
    public_url: str | None = setting(
        None,
        Optional(WebAddress(_HTTP, "an address like https://legation.example.com")),
        "The address under which others reach the server, for links and cookies; behind a reverse proxy.",
    )
    advertise_url: str | None = setting(
        None,
        Optional(WebAddress(_HTTP, "an address like http://10.0.0.7:4517")),
        "The address under which other servers of the same Postgres reach this one, and no other. Without it, the one that "
        "it listens on; if that is every address of the machine, the machine's name.",
    )
    tls_cert: Path | None = setting(
        None, Optional(read_folder), "File with the TLS certificate and its chain (PEM)."
    )
    tls_key: Path | None = setting(
        None, Optional(read_folder), "File with the private key of `tls_cert` (PEM)."
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        WordList(Matching(r"[A-Za-z0-9.\[\]:_-]+", "host names, separated by commas")),
        "Host names that requests may be addressed to, besides those of `host` and `public_url`.",
        flag=False,
    )
    cors_origins: tuple[str, ...] = setting(
        (),
        WordList(
            Matching(
                r"https?://[A-Za-z0-9.:\[\]_-]+", "origins like https://app.example.com, separated by commas"
            )
        ),
        "Web pages of these origins may call the server. None by default.",
    )
    trusted_proxies: tuple[str, ...] = setting(
        (),
        WordList(Matching(r"[0-9A-Fa-f.:/]+", "addresses or networks, separated by commas")),
        "Reverse proxies whose X-Forwarded- headers are believed. None by default.",
        flag=False,
    )
    reader_timeout: float = setting(
        MINUTE,
        Duration(0.1, 3600),
        "How long a reader may take next to nothing (16 KiB) of what waits for it before its connection is dropped.",
        flag=False,
    )
    max_body_bytes: int = setting(MIB, ByteSize(2**10, 2**30), "The longest body of a request.", flag=False)
    database_url: Secret | None = setting(
        None,
        Optional(SecretText("database_url", r"postgres(ql)?://\S+", "postgresql://user:password@host/name")),
        "postgresql://user:password@host/name. Without it the database is a file in the data folder.",
        flag=False,
    )
    blobs: str | None = setting(
        None,
        Optional(Matching(r"s3://\S+", "an address like s3://bucket/prefix")),
        "Where files are kept: s3://bucket/prefix?endpoint=...&region=... with the usual AWS_ variables. Without it, "
        "a folder in the data folder.",
        flag=False,
    )
    vault_key: Secret | None = setting(
        None,
        Optional(SecretText("vault_key")),
        "Key that seals secrets; after a comma older ones, so that what they sealed opens. `legation keys new` "
        "makes one. With Postgres it is needed; else it is made and kept in the data folder.",
        flag=False,
    )
    token_pepper: Secret | None = setting(
        None,
        Optional(SecretText("token_pepper")),
        "Key under which tokens are hashed. As `vault_key`, but it cannot be changed.",
        flag=False,
    )
    cookie_key: Secret | None = setting(
        None,
        Optional(SecretText("cookie_key")),
        "Key that signs cookies and links. As `vault_key`.",
        flag=False,
    )
    policy: Path | None = setting(
        None,
        Optional(read_folder),
        "File or folder with the rules for agents. Without it the starter `careful` holds: see `legation policy`.",
    )
    tools: Path | None = setting(
        None, Optional(read_folder), "File that lists the tools that agents can call at `POST /tool/{name}`."
    )
    expose_content: bool = setting(
        True,
        read_truth,
        "Whether supervisors see contents. With false they see size, digest and type in their place; people see all.",
        flag=False,
    )
    supervisor_wait: float = setting(
        30.0,
        Duration(0, _WEEK),
        "How long an approval waits for a supervisor to be there before it goes to a person.",
        flag=False,
    )
    waiter_dead: float = setting(
        120.0,
        Duration(1, 86400),
        "How long a server or a runner may be silent before what it waits for is superseded. Only time in which the "
        "database answers counts; the same for all servers of one database.",
        flag=False,
    )
    pending_per_agent: int = setting(
        25,
        Number(1, 1000),
        "How many tool calls of one agent in a workspace, by all its tokens together, may wait for an answer at once, "
        "and how many permissions of each session; further ones are refused until some are answered.",
        flag=False,
    )
    max_grant: float = setting(
        24 * HOUR, Duration(1, 365 * 86400), "The longest time that a grant may last.", flag=False
    )
    worker_id: str | None = setting(
        None,
        Optional(Matching(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "letters, digits, `_`, `.` and `-`")),
        "Name of this worker, the same at every start. With Postgres there is no worker without one.",
        flag=False,
    )
    report_url: str | None = setting(
        None,
        Optional(WebAddress(_HTTP, "an address like https://legation.example.com")),
        "Address of a server that this worker's runners report to. A worker on Postgres needs it.",
        flag=False,
    )
    worker_port: int | None = setting(
        None, Optional(read_port), "Port of `host` for a worker's `/health` and `/metrics`.", flag=False
    )
    worker_concurrency: int = setting(
        20, Number(1, 1000), "Steps of runs that a worker does at once.", flag=False
    )
    worker_lease: float = setting(
        30.0, Duration(1, 3600), "How long a worker that is gone keeps others from its runs.", flag=False
    )
    worker_poll: float = setting(
        1.0, Duration(0.05, 60), "How soon a worker finds what is due without a notice.", flag=False
    )
    machine_lost: float = setting(
        120.0, Duration(1, 86400), "How long a machine without a worker keeps its runs.", flag=False
    )
    mesh_port: int | None = setting(
        None,
        Optional(read_port),
        "Port of 127.0.0.1 where whoever is on this machine decides approvals as `agent:supervisor`, without a "
        "credential. Off without it.",
    )
    mesh_with_agents: bool = setting(
        False,
        read_truth,
        "Serve `mesh_port` also while agents run outside of a jail, who could then approve themselves.",
        flag=False,
    )
    notify_webhook: Secret | None = setting(
        None,
        Optional(SecretText("notify_webhook", r"https?://\S+", "an address like https://example.com/hook")),
        "Address that is told, signed, of every approval that reaches a person.",
        flag=False,
    )
    notify_webhook_secret: Secret | None = setting(
        None,
        Optional(SecretText("notify_webhook_secret", r"\S{16,}", "at least 16 characters without spaces")),
        "Key that signs what `notify_webhook` is sent. Needed with it.",
        flag=False,
    )
    notify_command: tuple[str, ...] = setting(
        (),
        read_command,
        "Program that is run, with the notice as JSON on its standard input, for every approval that reaches a person.",
        flag=False,
    )
    notify_smtp: Secret | None = setting(
        None,
        Optional(
            SecretText(
                "notify_smtp", r"smtps?://\S+", "smtps://user:password@host:port, or smtp:// for STARTTLS"
            )
        ),
        "Mail server for notices of approvals that reach a person; needs `legation[mail]`.",
        flag=False,
    )
    notify_from: str | None = setting(
        None, Optional(Matching(r"[^@\s,]+@[^@\s,]+", "a mail address")), "Sender of those mails.", flag=False
    )
    notify_to: tuple[str, ...] = setting(
        (),
        WordList(Matching(r"[^@\s,]+@[^@\s,]+", "mail addresses, separated by commas")),
        "Who gets those mails.",
        flag=False,
    )
    otel_endpoint: str | None = setting(
        None,
        Optional(Matching(_HTTP, "an address like http://127.0.0.1:4318")),
        "OpenTelemetry collector (OTLP over HTTP) that gets a span for every decided call; needs `legation[otel]`.",
        flag=False,
    )
    agents: Path | None = setting(
        None,
        Optional(read_folder),
        "File with agents of your own, a stanza each. Without it, agents.toml in the data folder.",
        flag=False,
    )
    folders: tuple[Path, ...] = setting(
        (),
        read_folders,
        "Folders in which sessions work, and whose files the file routes read and write; in the file a list, else "
        "separated by colons; the flag is repeated. Without it, the home folder of the user who runs the server, and the "
        "folder that it was started in. Dot-folders of the home (.ssh, .aws) count only where they are named themselves.",
    )
    processes: bool = setting(
        False,
        read_truth,
        "Whether operators may run programs on the server's machine through `/v1/processes`.",
    )
    rehearsal_executes: bool = setting(
        False,
        read_truth,
        "Whether the rehearsal agent runs what the prompts of operators say, unasked and as the server's user: commands, "
        "files anywhere. `legation exec` and the demo need no setting, nor do the tests of a folder, which it asks about.",
        flag=False,
    )
    runs_per_minute: int = setting(
        2000,
        Number(1, 10**6),
        "How many runs a person may submit to a workspace in a minute; more at once are refused.",
        flag=False,
    )
    run_concurrency: int = setting(
        4, Number(1, 10**4), "How many runs of a workspace are under way at once.", flag=False
    )
    run_timeout: float = setting(
        24 * HOUR, Duration(1, 30 * 86400), "The longest that a run may take, its waits included.", flag=False
    )
    run_suspensions: int = setting(
        5,
        Number(0, 1000),
        "How often a run waits for a usage limit of its provider to be over; then it fails.",
        flag=False,
    )
    run_suspended: float = setting(
        24 * HOUR,
        Duration(1, 30 * 86400),
        "How long a run waits, all in all, for usage limits of its provider; then it fails.",
        flag=False,
    )
    run_retain: bool = setting(
        False,
        read_truth,
        "Whether the folder that was made for a run stays when it has ended, where its submission does not say. Its secrets never do.",
        flag=False,
    )
    run_pack_after: float | None = setting(
        _PACKED,
        UnlessNever(Duration(0, 36500 * 86400, 'a time like "90s", "10m" or "1h", or "never"')),
        "When the events of a run that has ended move from the database into files, sealed: so long after its end, or `never`. With Postgres "
        "only where `blobs` is set, since every server must find them.",
        flag=False,
    )
    keep_sessions: float | None = setting(
        None,
        Optional(_KEPT),
        "How long a session that ended, or that nobody used, is kept, with its events and its own folder; then it is "
        "deleted. Without it, for ever.",
        flag=False,
    )
    keep_work: float | None = setting(
        None,
        Optional(_KEPT),
        "How long the work folder of a session that was terminated is kept; the session stays. Without it, as long as the "
        "session.",
        flag=False,
    )
    keep_content: float | None = setting(
        None,
        Optional(_KEPT),
        "How long the trace keeps what was said: arguments, results, reasons. By whole days; the steps stay. Without it, "
        "as long as the steps.",
        flag=False,
    )
    keep_traces: float | None = setting(
        None,
        Optional(_KEPT),
        "How long steps of the trace are kept, with approvals that are over; by whole days. What is left verifies from a "
        "checkpoint on. Without it, for ever.",
        flag=False,
    )
    sources: Mapping[str, str]  # of those that are no defaults

    def source(self, name: str) -> str:
        """Say in words for a person where the value came from."""
        return self.sources.get(name, "default")


FIELDS: Final = tuple(
    SettingField(field.name, *field.metadata[SettingField])
    for field in dataclasses.fields(Settings)
    if field.metadata
)

CONFIG_VARIABLE: Final = "LEGATION_CONFIG"  # names the file, so that it cannot be a setting in it
BIN_VARIABLE: Final = "LEGATION_BIN"  # names the program that the SDK starts: not ours to read
CHILD_VARIABLE: Final = "LEGATION_CHILD"  # marks what Legation has started, a runner too: no setting
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
    for layer in (_flags(flags), _variables(environ), _file(environ, problems)):
        for name, raw in layer.values.items():
            place = f"{layer.where} {layer.spell(name)}"
            try:
                if (field := _BY_NAME.get(name)) is None:
                    raise _unknown(name, layer.spell)
                if field.read is read_folders and isinstance(raw, str):
                    raw = raw.split(":")  # a list in the file; elsewhere a text, as PATH is
                value = field.read(_from_home(raw, environ))
            except Unusable as fault:
                problems.append(f"{place} {fault}")
            else:
                values.setdefault(name, value)
                sources.setdefault(name, place)
    if "data_dir" not in values and (folder := default_data_folder(environ)).is_absolute():
        values["data_dir"] = folder
    if not problems and "data_dir" not in values:
        problems.append("data_dir has no default without HOME: set HOME or LEGATION_DATA_DIR")
    if problems:
        lines = "".join(f"\n- {problem}" for problem in problems)
        raise ConfigInvalid(f"cannot use the settings; correct this:{lines}", {"problems": problems})
    return Settings(**values, sources=MappingProxyType(sources))


def _flags(flags: Mapping[str, object]) -> _Layer:
    given = {name: value for name, value in flags.items() if value is not None}
    for name, value in given.items():
        if isinstance(value, list):
            given[name] = [_absolute(each) for each in value]
        else:
            given[name] = _absolute(value)
    return _Layer(given, "flag", flag)


def _absolute(value: object) -> object:
    return value.absolute() if isinstance(value, Path) and value.parts[:1] != ("~",) else value


def _variables(environ: Mapping[str, str]) -> _Layer:
    others = (CONFIG_VARIABLE, BIN_VARIABLE, CHILD_VARIABLE)
    ours = sorted(name for name in environ if name.startswith(PREFIX) and name not in others)
    return _Layer({name.removeprefix(PREFIX).lower(): environ[name] for name in ours}, "env", variable)


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
            values = _parsed(path.read_text("utf-8"))
        except FileNotFoundError:
            if chosen:
                problems.append(f"{path} does not exist: create it or correct {CONFIG_VARIABLE}")
        except OSError as error:
            problems.append(f"{path} cannot be read ({error.strerror}): correct or remove it")
        except UnicodeDecodeError:
            problems.append(f"{path} is not UTF-8: save it as such")
        except Unusable as fault:
            problems.append(f"{path} {fault}")
    elif chosen:
        problems.append(f"env {CONFIG_VARIABLE} is relative: write an absolute path")
    return _Layer(values, f"{path}:", str)


def _parsed(text: str) -> Mapping[str, object]:
    import tomllib  # most have no file

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:  # tells line and column
        raise Unusable(f"is not TOML ({error}): correct it") from error


def default_data_folder(environ: Mapping[str, str]) -> Path:
    """Find where the data is unless somebody says otherwise; relative where there is no such folder."""
    return _xdg_folder(environ, "XDG_DATA_HOME", ".local/share")


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


def _unknown(name: str, spell: Callable[[str], str]) -> Unusable:
    from difflib import get_close_matches

    near = get_close_matches(name, _BY_NAME, n=1)
    known = f"did you mean {spell(near[0])}?" if near else f"known are {', '.join(map(spell, _BY_NAME))}"
    return Unusable(f"is unknown: {known}")
