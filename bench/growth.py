"""`python -m bench growth [SIZE ...]`: what the same work costs as the record grows, and the slope of each curve.

Every row of `growth_rows.py` is measured at several sizes, each on a copy of a record that `growth_fill.py` made, by a server
started on it: processor time of the server's process for each call over HTTP. The slope is that of the two largest sizes with
both axes logarithmic: 0 is flat, 1 is in proportion. A target that is missed does not change the exit code, which is 1 only
if a row could not be measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench import report
from bench.growth_fill import copy
from bench.growth_plot import plot
from bench.growth_rows import ROWS, Curve, Row, slope
from bench.growth_server import Home, Tree
from bench.harness import ROOT, SCRATCH

FILLING: Final = 3600.0  # seconds: a million steps, each as the product writes it, take some minutes
BEGIN, END = "<!-- growth -->", "<!-- /growth -->"

Curves = dict[str, Curve]  # metric -> curve


@dataclass(slots=True)
class Growth:
    """Where the records are, and whose they are."""

    tree: Tree
    stores: Path
    scratch: Path
    failures: dict[str, str] = field(default_factory=dict)

    def measure(self, row: Row, sizes: Sequence[int]) -> Curves:
        """What was measured, as far as it could be."""
        found: Curves = {metric.name: {} for metric in row.metrics}
        try:
            if row.store is not None:
                self.fill(row.store, [row.stored(size) for size in sizes])
            for size in sorted(sizes):
                report.tell(f"{row.name}: {size:,} {row.sizes_of}")
                with self.home(row, size) as home:
                    for name, value in row.measure(home, size).items():
                        found[name][size] = value
        except (RuntimeError, OSError, AssertionError, subprocess.SubprocessError) as error:
            self.failures[row.name] = f"{type(error).__name__}: {error}"
        return found

    def fill(self, kind: str, sizes: Sequence[int]) -> None:
        missing = [str(size) for size in sizes if not (self.stores / f"{kind}-{size}").exists()]
        if missing:
            report.tell(f"filling {kind}: {', '.join(missing)}")
            argv = [self.tree.python, "-m", "bench.growth_fill", kind, str(self.stores), *missing]
            environment = self.tree.environment() | {"HOME": str(self.stores)}
            subprocess.run(
                argv, cwd=ROOT, env=environment, check=True, timeout=FILLING, stdin=subprocess.DEVNULL
            )

    @contextmanager
    def home(self, row: Row, size: int) -> Iterator[Home]:
        with tempfile.TemporaryDirectory(
            prefix="home-", dir=self.scratch, ignore_cleanup_errors=True
        ) as made:
            folder = Path(made) / "home"
            if row.store is None:
                folder.mkdir()
            else:
                copy(self.stores / f"{row.store}-{row.stored(size)}", folder)
            yield Home(folder, self.tree)


# As a table, and as JSON.


def table(row: Row, curves: Curves, before: Curves | None, labels: tuple[str, str]) -> Iterator[str]:
    """Of one row; with a `before`, each figure's line stands below what it was."""
    every = [*curves.values(), *(before or {}).values()]
    sizes = sorted({size for curve in every for size in curve})
    yield (
        f"| `{row.name}`: {row.sizes_of} | "
        + "".join(f"{size:,} | " for size in sizes)
        + "slope | target | |"
    )
    yield "|---|" + "---:|" * len(sizes) + "---:|---|---|"
    for metric in row.metrics:
        name = f"{metric.name}, {metric.unit}"
        if before is not None:
            yield _line(f"{name}, {labels[0]}", before.get(metric.name, {}), sizes) + " | |"
            name = labels[1]
        curve = curves.get(metric.name, {})
        words, verdict = "", ""
        if metric.bound is not None:
            words, holds = metric.bound.words, metric.bound.holds(curve)
            verdict = "" if holds is None else "reached" if holds else "NOT REACHED"
        yield f"{_line(name, curve, sizes)} {words} | {verdict} |"


def _line(name: str, curve: Curve, sizes: Sequence[int]) -> str:
    figures = "".join(f"{report.number(curve[size]) if size in curve else ''} | " for size in sizes)
    found = slope(curve)
    return f"| {name} | {figures}{'' if found is None else f'{found:.2f}'} |"


def text(found: dict[str, Curves], before: dict[str, Curves] | None, labels: tuple[str, str]) -> str:
    lines: list[str] = []
    for row in ROWS:
        if row.name in found:
            former = None if before is None else before.get(row.name, {})
            lines += [*table(row, found[row.name], former, labels), ""]
    return "\n".join(lines)


def as_json(found: dict[str, Curves], growth: Growth, machine: dict[str, object], label: str) -> str:
    rows = {
        row.name: {
            metric.name: {
                "unit": metric.unit,
                "curve": found[row.name].get(metric.name, {}),
                "slope": slope(found[row.name].get(metric.name, {})),
                "target": metric.bound.words if metric.bound else None,
                "holds": metric.bound.holds(found[row.name].get(metric.name, {})) if metric.bound else None,
            }
            for metric in row.metrics
        }
        for row in ROWS
        if row.name in found
    }
    whole = {"label": label, "machine": machine, "rows": rows, "failures": growth.failures}
    return json.dumps(whole, indent=2)


def read(path: Path) -> tuple[str, dict[str, Curves]]:
    """The label and the curves of an earlier `--json`."""
    told: dict[str, Any] = json.loads(path.read_text())
    rows = {
        row: {
            name: {int(size): value for size, value in each["curve"].items()}
            for name, each in metrics.items()
        }
        for row, metrics in told["rows"].items()
    }
    return told["label"], rows


def write_into(page: Path, words: str) -> None:
    """Between the two marks of a page."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"cannot write into {page}: it has no {BEGIN} ... {END}")
    page.write_text(f"{before}{BEGIN}\n{words}{END}{after}")


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="./dev bench growth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = found.add_argument
    names = [row.name for row in ROWS]
    add("sizes", nargs="*", type=int, metavar="SIZE", help="sizes of the rows that --row names")
    add(
        "--row",
        action="append",
        choices=names,
        metavar="NAME",
        help=f"only this one, of {', '.join(names)}; again for more",
    )
    add("--full", action="store_true", help="the sizes of bench/README.md, up to a million: an hour")
    add("--keep", type=Path, metavar="FOLDER", help="filled records are kept there, and used again")
    add("--tree", type=Path, default=ROOT, metavar="PATH", help="measure the package of this tree")
    add("--label", default="now", help="what these figures are called in the table and the plot")
    add("--beside", type=Path, metavar="FILE.json", help="an earlier --json, to be shown with them")
    add("--json", action="store_true", help="print the curves as JSON")
    add("--plot", type=Path, metavar="FILE.svg", help="draw them")
    add(
        "--page",
        type=Path,
        action="append",
        default=[],
        metavar="FILE.md",
        help=f"put the table between {BEGIN} and {END}",
    )
    add("--scratch", type=Path, default=SCRATCH, help=f"where records are copied to ({SCRATCH})")
    return found


def main(argv: Sequence[str]) -> None:
    options = parser().parse_args(argv)
    if options.sizes and not options.row:
        parser().error("sizes are those of a row: name it with --row")
    rows = [row for row in ROWS if not options.row or row.name in options.row]
    machine = report.machine()
    with tempfile.TemporaryDirectory(prefix="legation-growth-", dir=options.scratch) as made:
        stores = (options.keep or Path(made) / "stores").resolve()
        stores.mkdir(parents=True, exist_ok=True)
        growth = Growth(Tree(options.tree.resolve()), stores, Path(made))
        found = {
            row.name: growth.measure(row, options.sizes or (row.full if options.full else row.small))
            for row in rows
        }
    label, before = read(options.beside) if options.beside else ("", None)
    labels = label, options.label
    words = text(found, before, labels)
    if options.plot:
        options.plot.write_text(plot(found, before, labels))
    for page in options.page:
        write_into(page, words)
    print(as_json(found, growth, machine, options.label) if options.json else words)
    for name, why in growth.failures.items():
        print(f"{name} failed: {why}", file=sys.stderr)
    sys.stdout.flush()
    if growth.failures:
        sys.exit(1)
