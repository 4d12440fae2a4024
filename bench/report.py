"""Outcomes as text for people and as JSON for programs."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence

from bench.harness import Benchmark, Outcome, Target


def machine() -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
    }


def tell(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def text(outcomes: Sequence[Outcome]) -> str:
    return "\n".join(line for outcome in outcomes for line in _lines(outcome))


def listing(benchmarks: Sequence[Benchmark]) -> str:
    return "\n".join(
        f"{each.name:14}{each.summary}{' (only by name)' if each.only_by_name else ''}" for each in benchmarks
    )


def _lines(outcome: Outcome) -> Iterator[str]:
    yield ""
    yield f"{outcome.benchmark.name}: {outcome.benchmark.summary}"
    for name, reason in outcome.failures.items():
        yield f"  {name} failed: {reason}"
    if not outcome.rounds:
        yield "  not measured"
        return
    yield from _table(outcome)
    for target in outcome.benchmark.targets:
        yield f"  {target.what}: {_verdict(target, outcome.value(target))}"


def _table(outcome: Outcome) -> Iterator[str]:
    medians = {each.name: outcome.median(each) for each in outcome.benchmark.candidates}
    metrics = list(dict.fromkeys(metric for sample in medians.values() for metric in sample))
    width = max(24, *(len(name) + 2 for name in medians))
    yield f"  {'':{width}}" + "".join(f"{metric:>16}" for metric in metrics)
    for name, sample in medians.items():
        values = [number(sample[metric]) if metric in sample else "" for metric in metrics]
        yield f"  {name:{width}}" + "".join(f"{value:>16}" for value in values)


def _verdict(target: Target, value: float) -> str:
    if target.bound is None:
        return number(value)
    word = "reached" if target.is_reached(value) else "NOT REACHED"
    return f"{number(value)} (target: {target.sense} {number(target.bound)}) {word}"


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def as_json(outcomes: Sequence[Outcome], found: dict[str, object]) -> str:
    return json.dumps({"machine": found, "benchmarks": [_record(each) for each in outcomes]}, indent=2)


def _record(outcome: Outcome) -> dict[str, object]:
    benchmark = outcome.benchmark
    measured = bool(outcome.rounds)
    return {
        "name": benchmark.name,
        "rounds": len(outcome.rounds),
        "failures": dict(outcome.failures),
        "candidates": {each.name: outcome.median(each) for each in benchmark.candidates} if measured else {},
        "each": {each.name: [found[each.name] for found in outcome.rounds] for each in benchmark.candidates},
        "targets": [_judged(each, outcome.value(each)) for each in benchmark.targets] if measured else [],
    }


def _judged(target: Target, value: float) -> dict[str, object]:
    judged: dict[str, object] = {"what": target.what, "value": value}
    if target.bound is not None:
        judged |= {"sense": target.sense, "bound": target.bound, "reached": target.is_reached(value)}
    return judged
