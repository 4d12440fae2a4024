"""Flags that commands share, and the connection to the server that they name."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter

from legation.cli.output import line
from legation.errors import ConfigInvalid, LegationError, NotFound
from legation.settings import FIELDS, Settings, load, variable

if TYPE_CHECKING:
    from legation.client import AsyncLegation, Legation
    from legation.client.request import Outages
    from legation.secret import Secret


Json = Annotated[bool, Parameter(negative="", help="One JSON object a line.")]
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

    host: Annotated[str | None, Parameter(help=_HELP["host"])] = None
    port: Annotated[int | None, Parameter(help=_HELP["port"])] = None
    token: Annotated[str | None, Parameter(help=_HELP["token"])] = None
    public_url: Annotated[str | None, Parameter(help=_HELP["public_url"])] = None
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


def server_path(path: Path) -> str:
    """Write a path as the server takes it: absolute, without `..`. Whether it is there, and where links lead, is for it to
    say."""
    return os.path.abspath(path)  # noqa: PTH100 - resolve() would follow links, here


def connect(flags: PlaceFlags | None) -> Legation:
    """Connect to the server that is named, else to the one of this machine."""
    return connect_to(settings_of(flags), flags.workspace if flags else None)


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
