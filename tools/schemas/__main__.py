"""`python -m tools.schemas extract|check [agent]`: for whoever changes Legation.

`extract` writes the inventories anew from the programs that are here, `check` says what has changed since.
Ends with 0 where nothing has, with 1 where something has.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from legation.errors import LegationError
from legation.settings import load
from tools.schemas.command import EXTRACTORS, check, extract
from tools.schemas.inventory import FOLDER
from tools.schemas.places import Places


def main(args: Sequence[str], environ: Mapping[str, str]) -> int:
    options = _parser().parse_args(args)
    try:
        places = Places.of(load({}, environ).data_dir, options.folders, environ)
        if options.do == "extract":
            options.out.mkdir(parents=True, exist_ok=True)
            reports = asyncio.run(extract(options.agent, places, options.out))
        else:
            reports = asyncio.run(check(options.agent, places))
    except LegationError as error:
        sys.stderr.write(f"{error}\n")
        return error.status.exit
    for report in reports:
        sys.stdout.write("".join(f"{line}\n" for line in report.lines))
    return int(any(report.drifted for report in reports))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.schemas", description="What agents publish about their protocols."
    )
    parser.add_argument("do", choices=["extract", "check"])
    parser.add_argument("agent", nargs="?", metavar="AGENT", help=f"one of {', '.join(EXTRACTORS)}; else all")
    parser.add_argument(
        "--in",
        dest="folders",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="where npm has installed it (the folder with node_modules); may be repeated",
    )
    here = Path(__file__).parent / FOLDER
    parser.add_argument("--out", type=Path, default=here, metavar="FOLDER", help="where to write")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
