"""`legation runner`: one prompt, reported home. Also installed as `factory-agent-supervisor`."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final, NoReturn
from urllib.parse import quote

from cyclopts import Parameter

from legation.cli.command import SettingsFlags, settings_of
from legation.errors import ConfigInvalid

LONGEST_NAME: Final = 128  # characters of a caller's name in that of a folder


def runner(
    *,
    config: Annotated[
        Path | None, Parameter(help="The configuration, a file of JSON; else FACTORY_SUPERVISOR_CONFIG_PATH.")
    ] = None,
    config_fd: Annotated[
        int | None, Parameter(help="An inherited descriptor to read the configuration from.")
    ] = None,
    unlink_config: Annotated[
        bool, Parameter(negative="", help="Remove the file once it is read: it holds the token.")
    ] = False,
    folder: Annotated[
        Path | None,
        Parameter(help="Where its log is kept; else a folder of the run's below the data folder."),
    ] = None,
    settings: SettingsFlags | None = None,
) -> int:
    """Run one prompt and report it to the caller, by signed callbacks.

    Exit codes: 0 the prompt is complete and reported; 2 the configuration is wrong, and nothing was started; 4 the caller
    answered 401; 5 another one works in its folder; 6 the prompt failed, and that is reported; 8 the caller took nothing
    for flushTimeout, and the last report is kept; 9 the disk or the spool was full; 10 the caller refused a report; 129,
    130 and 143 it was stopped; 1 a defect. Started again with the same configuration and folder it sends what was not
    accepted.
    """
    from legation.runner.config import (
        CONFIG_PATH,
        choose_agent,
        read_config,
        read_config_fd,
        read_config_file,
    )
    from legation.runner.runner import run

    chosen = settings_of(settings)
    logging.basicConfig(level=chosen.log_level.upper(), format="legation: %(levelname)s: %(message)s")
    named = config or (Path(os.environ[CONFIG_PATH]) if os.environ.get(CONFIG_PATH) else None)
    if config_fd is not None and config is not None:
        raise ConfigInvalid("cannot read two configurations; give --config or --config-fd")
    if config_fd is not None:
        text = read_config_fd(config_fd)
    elif named is not None:
        text = read_config_file(named, unlink=unlink_config)
    else:
        raise ConfigInvalid(f"cannot run without a configuration; give --config, or set {CONFIG_PATH}")
    given = read_config(text)
    if given.unknown:
        print(f"legation: not used of the configuration: {', '.join(given.unknown)}", file=sys.stderr)
    choice = choose_agent(given, os.environ, chosen.data_dir)
    if choice.word is not None:
        print(f"legation: {choice.word}", file=sys.stderr)
    ids = given.ids
    place = folder or chosen.data_dir / "runners" / _folder_name(ids.run_id) / _folder_name(ids.prompt_id)
    return asyncio.run(run(given, choice, place))


def _folder_name(name: str) -> str:
    """Name a folder after what is the caller's: never one that leads elsewhere, or is too long for a disk."""
    quoted = quote(name, safe="")
    if len(quoted) > LONGEST_NAME:
        return f"{quoted[:LONGEST_NAME]}-{sha256(name.encode()).hexdigest()[:16]}"
    return quoted.replace(".", "%2E") if not quoted.strip(".") else quoted


def supervisor() -> NoReturn:
    """`factory-agent-supervisor`."""
    from legation.cli.main import main

    sys.argv[1:1] = ["runner"]
    main()
