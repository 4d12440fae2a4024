"""How commands reach their server: the one that is named, else the one of this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from legation.cli.flags import PlaceFlags, settings_of
from legation.errors import ConfigInvalid
from legation.settings import Settings, variable

if TYPE_CHECKING:
    from pathlib import Path

    from legation.client import Legation


def server_path(path: Path) -> str:
    """As the server takes it: absolute, and without `..`. Whether it is there, and where links lead, is for it to say."""
    return os.path.abspath(path)  # noqa: PTH100 - resolve() would follow links, here


def connect(flags: PlaceFlags | None) -> Legation:
    return connect_to(settings_of(flags), flags.workspace if flags else None)


def connect_to(settings: Settings, workspace: str | None = None) -> Legation:
    from legation.client import Legation

    if settings.url is None:
        return Legation.find(settings.data_dir, workspace=workspace)
    if settings.token is None:
        raise ConfigInvalid(f"cannot talk to {settings.url} without a token; set {variable('token')}")
    return Legation.connect(settings.url, settings.token, workspace=workspace)
