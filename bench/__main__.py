"""`python -m bench [NAME ...]`: all benchmarks but those that run only by name, or those named.

`python -m bench compare OLD NEW [NAME ...]`: the same for two trees, in turn; see `bench/compare.py`.
`python -m bench growth`: what the same work costs as the record grows; see `bench/growth.py`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench import compare, growth, harness, report
from bench.catalogue import BENCHMARKS, select
from bench.report import tell


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="./dev bench", description="Legation's benchmarks; see bench/README.md"
    )
    found.add_argument("names", nargs="*", metavar="NAME", help="which to run; --list shows them")
    found.add_argument("--list", action="store_true", help="list the benchmarks")
    found.add_argument("--json", action="store_true", help="print the results as JSON")
    found.add_argument(
        "--scratch", type=Path, default=harness.SCRATCH, help=f"where stores are made ({harness.SCRATCH})"
    )
    return found


def main() -> None:
    if sys.argv[1:2] == ["compare"]:
        compare.main(sys.argv[2:])
        return
    if sys.argv[1:2] == ["growth"]:
        growth.main(sys.argv[2:])
        return
    options = parser().parse_args()
    if options.list:
        print(report.listing(BENCHMARKS))
        return
    chosen = select(options.names, parser())
    machine = report.machine()
    with harness.scratch_folder(options.scratch) as scratch:
        outcomes = harness.run(chosen, scratch, tell)
    if options.json:
        print(report.as_json(outcomes, machine))
    else:
        print(", ".join(f"{name} {value}" for name, value in machine.items()))
        print(report.text(outcomes))
    if any(outcome.failures for outcome in outcomes):
        sys.exit(1)


if __name__ == "__main__":
    main()
