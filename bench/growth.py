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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import report
from bench.growth_fill import copy
from bench.growth_plot import plot
from bench.growth_rows import ROWS, Curve, Row, slope
from bench.growth_server import Home, Tree
from bench.harness import ROOT, SCRATCH

if TYPE_CHECKING:
    from tests.postgres import Postgres

    from legation.secret import Secret

FILLING: Final = 3600.0  # seconds: a million steps, each as the product writes it, take some minutes
CALLS: Final = 9
MARKS: Final = {
    False: "growth",
    True: "growth on Postgres",
}  # of a page: `<!-- growth -->` ... `<!-- /growth -->`

Curves = dict[str, Curve]  # metric -> curve


@dataclass(slots=True)
class Growth:
    """Where the records are, which tree fills them and which one is measured."""

    tree: Tree
    filled_by: Tree
    stores: Path
    scratch: Path
    calls: int = CALLS
    rounds: int = 1
    postgres: PostgresRecord | None = None
    failures: dict[str, str] = field(default_factory=dict)

    def measure(self, rows: Sequence[Row], sizes: Callable[[Row], Sequence[int]]) -> dict[str, Curves]:
        """What was measured, as far as it could be: a record's smaller sizes first, for the larger ones grow out of them.
        Of several rounds the least counts, of each figure: what else the machine did is added to it, at one size or at another.
        """
        found: dict[str, Curves] = {row.name: {metric.name: {} for metric in row.metrics} for row in rows}
        work = [(row.store or "", row.stored(size), row, size) for row in rows for size in sizes(row)]
        for store, stored, row, size in sorted(work, key=lambda each: each[:2]) * self.rounds:
            if row.name in self.failures:
                continue
            try:
                if store:
                    self.fill(store, stored)
                report.tell(f"{row.name}: {size:,} {row.sizes_of}")
                with self.home(row, size) as home:
                    for name, value in row.measure(home, size).items():
                        curve = found[row.name][name]
                        curve[size] = min(value, curve.get(size, value))
            except (RuntimeError, OSError, AssertionError, subprocess.SubprocessError) as error:
                self.failures[row.name] = f"{size:,}: {type(error).__name__}: {error}"
        return found

    def fill(self, kind: str, size: int) -> None:
        if (self.stores / f"{kind}-{size}").exists():
            return
        report.tell(f"filling {kind}: {size:,}")
        argv = [self.filled_by.python, "-m", "bench.growth_fill", kind, str(self.stores), str(size)]
        environment = self.filled_by.environment() | {"HOME": str(self.stores)}
        if self.postgres:
            environment |= self.postgres.variables
        subprocess.run(argv, cwd=ROOT, env=environment, check=True, timeout=FILLING, stdin=subprocess.DEVNULL)
        if self.postgres:
            self.postgres.keep(f"{kind}_{size}")

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
            if self.postgres is None:
                yield Home(folder, self.tree, calls=self.calls)
            else:
                with self.postgres.copied(self.tree, f"{row.store}_{row.stored(size)}") as variables:
                    yield Home(folder, self.tree, dict(variables), self.calls, self.postgres.processes)


class PostgresRecord:
    """The database that a record grows in, of the schema of the tree that fills it. What is measured is a copy, brought up to
    date by the tree that is measured."""

    def __init__(self, server: Postgres, filled_by: Tree) -> None:
        from legation.store.secrets.sealer import new_key_text

        self._server = server
        self._url = server.new_database()
        keys = {f"LEGATION_{name}": new_key_text() for name in ("VAULT_KEY", "TOKEN_PEPPER", "COOKIE_KEY")}
        self.variables = {"LEGATION_DATABASE_URL": self._url.reveal(), **keys}
        self._migrate(filled_by, self.variables)

    def _migrate(self, tree: Tree, variables: dict[str, str]) -> None:
        argv = [tree.python, "-m", "legation", "migrate"]
        environment = tree.environment() | {"HOME": str(self._server.folder)} | variables
        subprocess.run(
            argv, env=environment, check=True, timeout=FILLING, stdin=subprocess.DEVNULL, stdout=sys.stderr
        )

    def keep(self, size: str) -> None:
        """Keep it as it is at that size: it grows on. Analysed, as its own upkeep would, which the tests' Postgres has not."""
        folder, name = str(self._server.folder), _name(self._url)
        self._server.run("psql", "-q", "-h", folder, "-U", "legation", name, "-c", "analyze")
        self._server.execute(f"create database {size} template {name} strategy file_copy")

    @contextmanager
    def copied(self, tree: Tree, size: str) -> Iterator[dict[str, str]]:
        url = self._server.new_database(size)
        variables = self.variables | {"LEGATION_DATABASE_URL": url.reveal()}
        self._migrate(tree, variables)
        try:
            yield variables
        finally:
            self._server.execute(f"drop database {_name(url)} with (force)")
            self._server.databases.remove(_name(url))

    def processes(self) -> list[int]:
        """Those of the database: their processor time counts too."""
        leader = (self._server.folder / "data" / "postmaster.pid").read_text().split()[0]
        return [int(leader), *map(int, Path(f"/proc/{leader}/task/{leader}/children").read_text().split())]


def _name(url: Secret) -> str:
    return url.reveal().split("@/")[1].split("?")[0]


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


def write_into(page: Path, words: str, mark: str) -> None:
    """Between the two marks of a page."""
    before, begin, rest = page.read_text().partition(f"<!-- {mark} -->")
    _, end, after = rest.partition(f"<!-- /{mark} -->")
    if not begin or not end:
        raise SystemExit(f"cannot write into {page}: it has no <!-- {mark} --> ... <!-- /{mark} -->")
    page.write_text(f"{before}{begin}\n{words}{end}{after}")


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
    add(
        "--filled-by",
        type=Path,
        metavar="PATH",
        help="fill what is missing by this tree; without it, by --tree",
    )
    add(
        "--postgres",
        action="store_true",
        help="the rows that are SQL, on the tests' Postgres; its processor time is added",
    )
    add("--calls", type=int, default=CALLS, metavar="N", help=f"of which a figure is the median ({CALLS})")
    add("--rounds", type=int, default=1, metavar="N", help="in turn over all sizes; the least counts (1)")
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
        help="put the table between its marks",
    )
    add("--scratch", type=Path, default=SCRATCH, help=f"where records are copied to ({SCRATCH})")
    return found


def main(argv: Sequence[str]) -> None:
    options = parser().parse_args(argv)
    if options.sizes and not options.row:
        parser().error("sizes are those of a row: name it with --row")
    rows = [row for row in ROWS if not options.row or row.name in options.row]
    if options.postgres:
        rows = [row for row in rows if row.in_sql]
        if options.keep:
            parser().error("--keep keeps folders: what is in Postgres ends with it")
    tree = Tree(options.tree.resolve())
    filled_by = Tree(options.filled_by.resolve()) if options.filled_by else tree
    machine = report.machine()
    with ExitStack() as stack:
        made = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="legation-growth-", dir=options.scratch))
        )
        stores = (options.keep or made / "stores").resolve()
        stores.mkdir(parents=True, exist_ok=True)
        growth = Growth(tree, filled_by, stores, made, options.calls, options.rounds)
        if options.postgres:
            from tests.postgres import running_postgres

            growth.postgres = PostgresRecord(stack.enter_context(running_postgres()), filled_by)
        found = growth.measure(rows, lambda row: options.sizes or (row.full if options.full else row.small))
    label, before = read(options.beside) if options.beside else ("", None)
    labels = label, options.label
    words = text(found, before, labels)
    if options.plot:
        options.plot.write_text(plot(found, before, labels))
    for page in options.page:
        write_into(page, words, MARKS[options.postgres])
    print(as_json(found, growth, machine, options.label) if options.json else words)
    for name, why in growth.failures.items():
        print(f"{name} failed: {why}", file=sys.stderr)
    sys.stdout.flush()
    if growth.failures:
        sys.exit(1)
