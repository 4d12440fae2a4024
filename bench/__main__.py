"""`python -m bench [NAME ...]`: all benchmarks but those that run only by name, or those named."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import harness, report
from bench.catalogue import BENCHMARKS
from bench.harness import Benchmark

# On a disk nearly everywhere, where /tmp often is memory and would flatter every store.
SCRATCH = Path("/var/tmp")


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="./dev bench", description="Legation's benchmarks; see bench/README.md"
    )
    found.add_argument("names", nargs="*", metavar="NAME", help="which to run; --list shows them")
    found.add_argument("--list", action="store_true", help="list the benchmarks")
    found.add_argument("--json", action="store_true", help="print the results as JSON")
    found.add_argument("--scratch", type=Path, default=SCRATCH, help=f"where stores are made ({SCRATCH})")
    return found


def select(names: Sequence[str]) -> list[Benchmark]:
    if not names:
        return [each for each in BENCHMARKS if not each.only_by_name]
    by_name = {each.name: each for each in BENCHMARKS}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        parser().error(f"cannot find {', '.join(unknown)}; choose from {', '.join(by_name)}")
    return [by_name[name] for name in dict.fromkeys(names)]


def tell(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def main() -> None:
    options = parser().parse_args()
    if options.list:
        print(report.listing(BENCHMARKS))
        return
    chosen = select(options.names)
    machine = report.machine()
    with tempfile.TemporaryDirectory(prefix="legation-bench-", dir=options.scratch) as scratch:
        outcomes = harness.run(chosen, Path(scratch), tell)
    if options.json:
        print(report.as_json(outcomes, machine))
    else:
        print(", ".join(f"{name} {value}" for name, value in machine.items()))
        print(report.text(outcomes))
    if any(outcome.failures for outcome in outcomes):
        sys.exit(1)


if __name__ == "__main__":
    main()
