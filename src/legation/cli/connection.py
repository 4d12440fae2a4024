"""How commands reach their server: the one that is named, else the one of this machine."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from legation.cli.flags import PlaceFlags, settings_of
from legation.cli.terminal import line
from legation.errors import ConfigInvalid, LegationError
from legation.settings import Settings, variable

if TYPE_CHECKING:
    from pathlib import Path

    from legation.client import AsyncLegation, Legation
    from legation.client.request import Outages
    from legation.secret import Secret


def server_path(path: Path) -> str:
    """As the server takes it: absolute, and without `..`. Whether it is there, and where links lead, is for it to say."""
    return os.path.abspath(path)  # noqa: PTH100 - resolve() would follow links, here


def connect(flags: PlaceFlags | None) -> Legation:
    return connect_to(settings_of(flags), flags.workspace if flags else None)


def connect_to(settings: Settings, workspace: str | None = None) -> Legation:
    from legation.client import Legation

    if settings.url is None:
        return Legation.find(settings.data_dir, workspace=workspace, outages=tell_outage)
    return Legation.connect(settings.url, token_of(settings), workspace=workspace, outages=tell_outage)


def connect_async(flags: PlaceFlags | None, outages: Outages | None = None) -> AsyncLegation:
    """As `connect`, awaited. `outages` is told instead of whoever reads standard error."""
    from legation.client import AsyncLegation

    place, workspace = settings_of(flags), flags.workspace if flags else None
    told = outages or tell_outage
    if place.url is None:
        return AsyncLegation.find(place.data_dir, workspace=workspace, outages=told)
    return AsyncLegation.connect(place.url, token_of(place), workspace=workspace, outages=told)


def token_of(settings: Settings) -> Secret:
    if settings.token is None:
        raise ConfigInvalid(f"cannot talk to {settings.url} without a token; set {variable('token')}")
    return settings.token


def tell_outage(error: LegationError | None) -> None:
    """Of a stream that is followed: said once for each outage, whatever it takes to come back."""
    print(f"legation: {outage(error)}", file=sys.stderr, flush=True)


def outage(error: LegationError | None) -> str:
    if error is None:
        return "the server is back"
    return f"the server went away, waiting for it: {line(error.message)}"
