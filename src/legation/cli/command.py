"""Parts that commands share: flags, the connection to the server that they name, text for terminals, tables, JSON and progress.

Agents' words pass through `plain` before they are shown: a control sequence in them could move the cursor, rewrite what
was asked, or type into the user's shell.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TextIO, TypeVar

from cyclopts import Parameter

from legation.errors import ConfigInvalid, InvalidParams, LegationError, NotFound
from legation.settings import FIELDS, Settings, load, variable

if TYPE_CHECKING:
    from legation.client import AsyncLegation, Legation
    from legation.client.request import Outages
    from legation.secret import Secret

# Flags, and the connection that they name.

Json = Annotated[bool, Parameter(negative="", help="One JSON object a line.")]
SUMMARY: Final = 200  # characters of the prompt that name a session which nobody named
SHOWN: Final = 100  # rows, unless --limit says otherwise
Rows = Annotated[int, Parameter(help="At most so many rows.")]
L = TypeVar("L", "Legation", "AsyncLegation")
_HELP = {field.name: field.description for field in FIELDS}


@Parameter(name="*", group="Settings")
@dataclass(frozen=True)
class SettingsFlags:
    """Each overrules its LEGATION_ variable and legation.toml."""

    data_dir: Annotated[Path | None, Parameter(help=_HELP["data_dir"])] = None
    start_timeout: Annotated[str | None, Parameter(help=_HELP["start_timeout"])] = None
    idle_timeout: Annotated[str | None, Parameter(help=_HELP["idle_timeout"])] = None
    permission_timeout: Annotated[str | None, Parameter(help=_HELP["permission_timeout"])] = None
    stop_grace: Annotated[str | None, Parameter(help=_HELP["stop_grace"])] = None
    max_line_bytes: Annotated[str | None, Parameter(help=_HELP["max_line_bytes"])] = None
    policy: Annotated[Path | None, Parameter(help=_HELP["policy"])] = None
    log_level: Annotated[str | None, Parameter(help=_HELP["log_level"])] = None


@Parameter(name="*", group="Settings")
@dataclass(frozen=True)
class LocalFlags:
    """The flag of commands that only need to find the data."""

    data_dir: Annotated[Path | None, Parameter(help=_HELP["data_dir"])] = None


@Parameter(name="*", group="Settings")
@dataclass(frozen=True)
class PlaceFlags:
    """The server, and the workspace there. Without any of it: the one of this machine."""

    url: Annotated[str | None, Parameter(help=_HELP["url"])] = None
    workspace: Annotated[
        str | None, Parameter(help="Which workspace, by id. Without it, the one of the token; here, `local`.")
    ] = None
    data_dir: Annotated[Path | None, Parameter(help=_HELP["data_dir"])] = None


@Parameter(name="*", group="Settings")
@dataclass(frozen=True)
class ServerFlags:
    """Each overrules its LEGATION_ variable and legation.toml. docs/reference/settings.md lists what has no flag."""

    host: Annotated[str | None, Parameter(name=("--host", "-H"), help=_HELP["host"])] = None
    port: Annotated[int | None, Parameter(name=("--port", "-p"), help=_HELP["port"])] = None
    token: Annotated[str | None, Parameter(name=("--token", "-t"), help=_HELP["token"])] = None
    folders: Annotated[list[Path] | None, Parameter(name="--folder", negative="", help=_HELP["folders"])] = (
        None
    )
    cors_origins: Annotated[
        list[str] | None,
        Parameter(name=("--cors-allow-origin", "-O"), negative="", help=_HELP["cors_origins"]),
    ] = None
    processes: Annotated[bool | None, Parameter(negative="", help=_HELP["processes"])] = None
    public_url: Annotated[str | None, Parameter(help=_HELP["public_url"])] = None
    advertise_url: Annotated[str | None, Parameter(help=_HELP["advertise_url"])] = None
    tls_cert: Annotated[Path | None, Parameter(help=_HELP["tls_cert"])] = None
    tls_key: Annotated[Path | None, Parameter(help=_HELP["tls_key"])] = None
    policy: Annotated[Path | None, Parameter(help=_HELP["policy"])] = None
    tools: Annotated[Path | None, Parameter(help=_HELP["tools"])] = None
    mesh_port: Annotated[int | None, Parameter(help=_HELP["mesh_port"])] = None
    data_dir: Annotated[Path | None, Parameter(help=_HELP["data_dir"])] = None
    log_level: Annotated[str | None, Parameter(help=_HELP["log_level"])] = None


def settings_of(flags: SettingsFlags | LocalFlags | PlaceFlags | ServerFlags | None) -> Settings:
    known = [field.name for field in fields(flags) if field.name in _HELP] if flags else []
    return load({name: getattr(flags, name) for name in known}, os.environ)


def page_size(limit: int) -> int:
    if limit < 1:
        raise InvalidParams("cannot list fewer than one row: give --limit a number from 1")
    return min(limit, SHOWN)


def server_path(path: Path) -> str:
    """Write a path as the server takes it: absolute, without `..`. Whether it is there, and where links lead, is for it to
    say."""
    return os.path.abspath(path)  # noqa: PTH100 - resolve() would follow links, here


def connect(flags: PlaceFlags | None) -> Legation:
    """Connect to the server that is named, else to the one of this machine."""
    from legation.client import Legation

    return _connection(Legation, settings_of(flags), flags.workspace if flags else None, tell_outage)


def connect_to(settings: Settings, workspace: str | None = None) -> Legation:
    from legation.client import Legation

    return _connection(Legation, settings, workspace, tell_outage)


def connect_async(flags: PlaceFlags | None, outages: Outages | None = None) -> AsyncLegation:
    """Connect as `connect` does, awaited. `outages` is told instead of whoever reads standard error."""
    from legation.client import AsyncLegation

    workspace = flags.workspace if flags else None
    return _connection(AsyncLegation, settings_of(flags), workspace, outages or tell_outage)


def _connection(client: type[L], settings: Settings, workspace: str | None, outages: Outages) -> L:
    if settings.url is None:
        return client.find(settings.data_dir, workspace=workspace, outages=outages)
    return client.connect(settings.url, token_of(settings), workspace=workspace, outages=outages)


def token_of(settings: Settings) -> Secret:
    if settings.token is None:
        raise ConfigInvalid(f"cannot talk to {settings.url} without a token; set {variable('token')}")
    return settings.token


def tell_outage(error: LegationError | None) -> None:
    """Say once for each outage of a followed stream that the server is away, or back."""
    print(f"legation: {outage(error)}", file=sys.stderr, flush=True)


@contextmanager
def explained(verb: str, noun: str, id_: str, listing: str) -> Iterator[None]:
    """Say what to do here about an id that is unknown, where the server can only name a route."""
    try:
        yield
    except NotFound:
        raise NotFound(
            f"cannot {verb} {line(id_)}: there is no such {noun} here; give the whole id, as `legation {listing}` lists it"
        ) from None


def outage(error: LegationError | None) -> str:
    if error is None:
        return "the server is back"
    return f"the server went away, waiting for it: {line(error.message)}"


# Text for terminals.

Style = Literal["dim", "bold", "green", "red", "yellow", "cyan"]

_CODES: dict[str, str] = {"dim": "2", "bold": "1", "green": "32", "red": "31", "yellow": "33", "cyan": "36"}
# C0 but newline and tab, DEL, C1, and what turns the direction of text around or hides it.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\u3164"
    "\ufe00-\ufe0f\ufeff\ud800-\udfff\U000e0000-\U000e0fff]"
)


def plain(text: str) -> str:
    """Make every unsafe character visible."""
    return _UNSAFE.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def line(text: str) -> str:
    """Make the text plain, and one line."""
    return " ".join(plain(text).split())


class Console:
    """Writes text, with colour where somebody looks at it."""

    def __init__(self, out: TextIO | None = None, colour: bool | None = None) -> None:
        self._out = out or sys.stdout
        if colour is None:
            colour = self._out.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self.colour = colour

    def write(self, text: str, style: Style | None = None) -> None:
        """Safe text only: what an agent said goes through `plain` first."""
        self._out.write(self.paint(text, style))
        self._out.flush()

    def say(self, text: str = "", style: Style | None = None) -> None:
        self.write(text, style)
        self.write("\n")

    def paint(self, text: str, style: Style | None) -> str:
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if style and self.colour and text else text


def say(text: str = "", style: Style | None = None) -> None:
    """Write a line to standard output."""
    Console().say(text, style)


def paint_diff(terminal: Console, diff: str) -> None:
    for text in plain(diff).splitlines():
        terminal.say(text, _diff_style(text))


def _diff_style(text: str) -> Style | None:
    if text.startswith(("+++", "---", "diff ", "index ", "new file", "deleted file")):
        return "dim"
    styles: dict[str, Style] = {"+": "green", "-": "red", "@": "cyan"}
    return styles.get(text[:1])


T = TypeVar("T")


def show(
    rows: Iterable[T], columns: Mapping[str, Callable[[T], str | None]], *, json: bool, if_empty: str
) -> None:
    """List rows: columns for people, one JSON object a line for programs."""
    if json:
        for row in rows:
            say_json(row)
        return
    out, shown = Console(), [[line(cell(row) or "-") for cell in columns.values()] for row in rows]
    if not shown:
        out.say(if_empty, "dim")
        return
    widths = [max(map(len, column)) for column in zip(columns, *shown, strict=True)]
    out.say(_spread(columns, widths), "dim")
    for cells in shown:
        out.say(_spread(cells, widths))


def _spread(cells: Iterable[str], widths: Iterable[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def tell(value: object, text: str, *, json: bool) -> None:
    """Say the text to people, the value to programs."""
    if json:
        say_json(value)
    else:
        say(text)


def say_verdict(verdict: str, style: Style, text: str, following: str | None) -> None:
    """Say how something is, and the command that helps."""
    out = Console()
    out.write(f"{verdict:<8}", style)
    out.say(text)
    if following:
        out.say(f"        next: {following}", "bold")


def say_json(value: object) -> None:
    import msgspec  # most commands say no JSON

    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


def when(ms: int | None) -> str | None:
    """Write a time as people and scripts read it."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def named(by: str | None, name: str | None) -> str | None:
    """Name who did something: a person by name, with the id that is theirs alone."""
    return by if name is None else f"{name} ({by})"


def byte_size(count: float) -> str:
    """Write a size as people read it."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
