"""Runs candidates, each in a fresh process, in turn, several rounds; what counts is the median of the rounds.

A ratio is taken within each round, between neighbours in time, before the median: what else the machine does
then bears on both sides.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.measure import Sample

ROOT = Path(__file__).resolve().parent.parent
# On a disk nearly everywhere, where /tmp often is memory and would flatter every store.
SCRATCH = Path("/var/tmp")
ROUNDS = 3
CANDIDATE_LIMIT = 600.0  # seconds; the installation over a slow network takes longest
SAID = 400  # characters of a failed candidate's last words that are shown


@dataclass(frozen=True, slots=True)
class Candidate:
    """`python -m MODULE ARGS SCRATCH`, which prints a sample. The same candidate in two benchmarks runs once.

    A `counterpart` is what Legation is measured against: it does not change with it."""

    name: str
    module: str
    args: tuple[str, ...] = ()
    counterpart: bool = False


Round = Mapping[str, Sample]  # candidate's name -> what it measured


@dataclass(frozen=True, slots=True)
class Target:
    """`bound` None: shown, with nothing to reach."""

    what: str
    value: Callable[[Round], float]
    sense: Literal["at least", "at most"] = "at least"
    bound: float | None = None

    def is_reached(self, value: float) -> bool:
        if self.bound is None:
            return True
        return value >= self.bound if self.sense == "at least" else value <= self.bound


@dataclass(frozen=True, slots=True)
class Benchmark:
    name: str
    summary: str
    candidates: tuple[Candidate, ...]
    targets: tuple[Target, ...] = ()
    only_by_name: bool = False
    rounds: int = ROUNDS


@dataclass(frozen=True, slots=True)
class Outcome:
    """`rounds` holds only those in which every candidate of the benchmark succeeded."""

    benchmark: Benchmark
    rounds: tuple[Round, ...]
    failures: Mapping[str, str]

    def median(self, candidate: Candidate) -> Sample:
        samples = [each[candidate.name] for each in self.rounds]
        return {metric: statistics.median(sample[metric] for sample in samples) for metric in samples[0]}

    def value(self, target: Target) -> float:
        return statistics.median(map(target.value, self.rounds))


class CandidateFailed(Exception):
    pass


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="legation-bench-", dir=parent) as made:
        folder = Path(made)
        folder.chmod(0o755)  # started by root, Postgres runs as another user
        yield folder


def metric(candidate: Candidate, name: str) -> Callable[[Round], float]:
    return lambda found: found[candidate.name][name]


def times(candidate: Candidate, other: Candidate, name: str) -> Callable[[Round], float]:
    return lambda found: found[candidate.name][name] / found[other.name][name]


def over(candidate: Candidate, other: Candidate, name: str) -> Callable[[Round], float]:
    return lambda found: found[candidate.name][name] - found[other.name][name]


def run(benchmarks: Sequence[Benchmark], scratch: Path, tell: Callable[[str], None]) -> list[Outcome]:
    rounds: list[dict[str, Sample]] = []
    failures: dict[str, str] = {}
    for number in range(max(each.rounds for each in benchmarks)):
        due = distinct(each for each in benchmarks if number < each.rounds)
        rounds.append({})
        for candidate in due:
            if candidate.name in failures:
                continue
            tell(f"round {number + 1}: {candidate.name}")
            try:
                rounds[-1][candidate.name] = measure(candidate, scratch)
            except CandidateFailed as error:
                failures[candidate.name] = str(error)
    return [_outcome(each, rounds, failures) for each in benchmarks]


def distinct(benchmarks: Iterable[Benchmark]) -> list[Candidate]:
    return list(dict.fromkeys(candidate for each in benchmarks for candidate in each.candidates))


def _outcome(benchmark: Benchmark, rounds: Sequence[Round], failures: Mapping[str, str]) -> Outcome:
    names = [candidate.name for candidate in benchmark.candidates]
    complete = tuple(found for found in rounds if all(name in found for name in names))
    return Outcome(benchmark, complete, {name: failures[name] for name in names if name in failures})


def measure(
    candidate: Candidate, scratch: Path, *, tree: Path = ROOT, python: str = sys.executable
) -> Sample:
    argv = [python, "-m", candidate.module, *candidate.args, str(scratch)]
    try:
        done = subprocess.run(argv, cwd=tree, capture_output=True, text=True, timeout=CANDIDATE_LIMIT)
    except subprocess.TimeoutExpired:
        raise CandidateFailed(f"no result within {CANDIDATE_LIMIT:g} s") from None
    if done.returncode:
        raise CandidateFailed(f"exit {done.returncode}: {done.stderr.strip()[-SAID:]}")
    return {name: float(value) for name, value in json.loads(done.stdout.splitlines()[-1]).items()}
