"""Flags that several commands share."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from legation.settings import FIELDS, Settings, load

Json = Annotated[bool, Parameter(negative="", help="One JSON object a line.")]
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
    """For commands that only need to find the data."""

    data_dir: Annotated[Path | None, Parameter(help=_HELP["data_dir"])] = None


@Parameter(name="*", group="Settings")
@dataclass(frozen=True)
class PlaceFlags:
    """Which server, and which workspace there. Without any of it: the one of this machine."""

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
    given = (
        {field.name: getattr(flags, field.name) for field in fields(flags) if field.name in _HELP}
        if flags
        else {}
    )
    return load(given, os.environ)
