"""`python -m bench compare OLD NEW [NAME ...]`: every candidate in two trees, in turn, and how they differ.

Each tree is measured by its own benchmarks, with its own `.venv`. In each round both run one after the other, the one that
was second is first in the next, and a ratio is taken within the round: above 1 the new tree is worse, be it slower or dearer.
A figure is WORSE if the ratios of all rounds exceed 1.05. The exit code is 1 if one is, or if one could not be measured.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import report
from bench.catalogue import select
from bench.harness import SCRATCH, Candidate, CandidateFailed, distinct, measure, scratch_folder
from bench.measure import Sample
from bench.report import tell

ROUNDS = 5
WORSE = 1.05  # a ratio above it, in every round


@dataclass(frozen=True, slots=True)
class Tree:
    name: str
    root: Path
    scratch: Path

    @property
    def python(self) -> Path:
        return self.root / ".venv/bin/python"

    def measure(self, candidate: Candidate) -> Sample:
        return measure(candidate, self.scratch, tree=self.root, python=str(self.python))


Pair = tuple[Sample, Sample]  # of the old tree and the new


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric of one candidate, in every round."""

    candidate: str
    metric: str
    old: tuple[float, ...]
    new: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        pairs = zip(self.old, self.new, strict=True)
        if self.metric.endswith("/s"):  # the more the better
            return [_ratio(old, new) for old, new in pairs]
        return [_ratio(new, old) for old, new in pairs]

    @property
    def is_worse(self) -> bool:
        return all(ratio > WORSE for ratio in self.ratios)

    def line(self) -> str:
        ratios = " ".join(f"{ratio:.2f}" for ratio in self.ratios)
        values = [report.number(statistics.median(each)) for each in (self.old, self.new)]
        word = "WORSE" if self.is_worse else ""
        return f"{self.candidate:34}{self.metric:18}{values[0]:>12}{values[1]:>12}  {ratios}  {word}".rstrip()


def _ratio(one: float, other: float) -> float:
    if one == other:  # both may be 0: nothing was lost
        return 1.0
    return one / other if other else math.inf


def compare(
    candidates: Sequence[Candidate], old: Tree, new: Tree, rounds: int
) -> tuple[list[Figure], dict[str, str]]:
    """What was measured in both, and what could not be in either."""
    found: dict[str, list[Pair]] = {each.name: [] for each in candidates}
    failures: dict[str, str] = {}
    for number in range(rounds):
        for candidate in candidates:
            if candidate.name in failures:
                continue
            samples: dict[str, Sample] = {}
            for tree in (old, new) if number % 2 == 0 else (new, old):
                tell(f"round {number + 1}: {candidate.name}, {tree.name}")
                try:
                    samples[tree.name] = tree.measure(candidate)
                except CandidateFailed as error:
                    failures[candidate.name] = f"{tree.name}: {error}"
                    break
            else:
                found[candidate.name].append((samples[old.name], samples[new.name]))
    return [
        figure for name, pairs in found.items() if name not in failures for figure in figures(name, pairs)
    ], failures


def figures(candidate: str, pairs: Sequence[Pair]) -> list[Figure]:
    return [
        Figure(
            candidate,
            metric,
            tuple(old[metric] for old, _ in pairs),
            tuple(new[metric] for _, new in pairs),
        )
        for metric in pairs[0][0]
        if metric in pairs[0][1]
    ]


def text(found: Sequence[Figure], failures: Mapping[str, str]) -> str:
    head = f"{'candidate':34}{'metric':18}{'old':>12}{'new':>12}  ratios, above 1 where the new tree is worse"
    failed = [f"{name} failed: {why}" for name, why in failures.items()]
    return "\n".join([head, *(each.line() for each in found), *failed])


def as_json(found: Sequence[Figure], failures: Mapping[str, str]) -> str:
    rows = [
        {
            "candidate": each.candidate,
            "metric": each.metric,
            "old": each.old,
            "new": each.new,
            "ratios": each.ratios,
            "worse": each.is_worse,
        }
        for each in found
    ]
    return json.dumps({"machine": report.machine(), "figures": rows, "failures": dict(failures)}, indent=2)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="./dev bench compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("old", type=Path, metavar="OLD", help="the tree to compare with")
    found.add_argument("new", type=Path, metavar="NEW", help="the tree that must not be worse")
    found.add_argument(
        "names", nargs="*", metavar="NAME", help="which benchmarks; without one, as ./dev bench"
    )
    found.add_argument("--rounds", type=int, default=ROUNDS, help=f"how many ({ROUNDS})")
    found.add_argument("--json", action="store_true", help="print the results as JSON")
    found.add_argument("--scratch", type=Path, default=SCRATCH, help=f"where stores are made ({SCRATCH})")
    return found


def main(argv: Sequence[str]) -> None:
    options = parser().parse_args(argv)
    for tree in (options.old, options.new):
        if not (tree / ".venv/bin/python").exists():
            parser().error(f"cannot measure {tree}: it has no .venv; run `./dev bench --list` there")
    chosen = [each for each in distinct(select(options.names, parser())) if not each.counterpart]
    with scratch_folder(options.scratch) as made:
        scratches = [made / name for name in ("old", "new")]
        for scratch in scratches:
            scratch.mkdir()
        old = Tree("old", options.old.resolve(), scratches[0])
        new = Tree("new", options.new.resolve(), scratches[1])
        found, failures = compare(chosen, old, new, options.rounds)
    print(as_json(found, failures) if options.json else text(found, failures))
    if failures or any(each.is_worse for each in found):
        sys.exit(1)
