"""`./dev bench compare`: when the new tree is worse."""

import math

import pytest
from bench.catalogue import BENCHMARKS
from bench.compare import Figure, figures
from bench.harness import distinct


@pytest.mark.parametrize(
    ("metric", "new", "is_worse"),
    [
        ("CPU µs/event", (1.06, 1.2, 1.06), True),
        ("CPU µs/event", (1.06, 1.2, 1.05), False),  # one round as good as before
        ("CPU µs/event", (0.5, 0.5, 0.5), False),
        ("events/s", (0.5, 0.9, 0.9), True),  # of these, less is worse
        ("events/s", (2.0, 2.0, 2.0), False),
    ],
)
def test_a_figure_is_worse_if_it_is_in_every_round(
    metric: str, new: tuple[float, ...], is_worse: bool
) -> None:
    figure = Figure("x", metric, (1.0, 1.0, 1.0), new)
    assert figure.is_worse == is_worse
    assert ("WORSE" in figure.line()) == is_worse


def test_nothing_lost_in_either_is_as_good_and_something_lost_is_worse() -> None:
    assert Figure("x", "lost %", (0.0,), (0.0,)).ratios == [1.0]
    assert Figure("x", "lost %", (0.0,), (0.1,)).ratios == [math.inf]


def test_a_round_is_compared_with_itself_and_only_in_what_both_trees_measure() -> None:
    [found] = figures("x", [({"s": 2.0, "gone": 1.0}, {"s": 4.0, "added": 1.0}), ({"s": 8.0}, {"s": 4.0})])
    assert (found.metric, found.ratios) == ("s", [2.0, 0.5])


def test_what_is_not_legation_is_not_compared() -> None:
    others = {each.name for each in distinct(BENCHMARKS) if each.counterpart}
    assert {"acp-python-sdk", "bare-splitter", "fastapi-http", "python-alone"} <= others
    assert not [name for name in others if name.startswith("legation")]
