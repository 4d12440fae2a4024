import pytest

from legation.agents.rehearsal.script import RepeatedSteps, ScriptError, ScriptStep, parse
from legation.agents.rehearsal.steps import STEPS


def args(line: str) -> dict[str, str]:
    (step,) = parse([line], STEPS)
    assert isinstance(step, ScriptStep)
    return dict(step.args)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (r"say a\nb\\n", {"TEXT": "a\nb\\n"}),
        (r"run printf 'a\n'", {"COMMAND": r"printf 'a\n'"}),
        ("edit a.py x => y", {"PATH": "a.py", "OLD": "x", "NEW": "y"}),
        ("edit a.py x y =>", {"PATH": "a.py", "OLD": "x y", "NEW": ""}),
        ('ask edit "my file" a b => c d', {"PATH": "my file", "OLD": "a b", "NEW": "c d"}),
        ("write a.txt", {"PATH": "a.txt"}),
        ("read! /etc/hosts", {"!": "!", "PATH": "/etc/hosts"}),
        ("usage 1 2", {"USED": "1", "SIZE": "2"}),
        ("error -32000 no luck", {"CODE": "-32000", "MESSAGE": "no luck"}),
        ("stall .5", {"SECONDS": ".5"}),
        ("echo", {}),
    ],
)
def test_arguments_are_bound_by_name(line: str, expected: dict[str, str]) -> None:
    assert args(line) == expected


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("shout hi", "there is no step `shout`"),
        ("say! hi", "there is no step `say!`; the nearest is `say`"),
        ("say", "TEXT is missing; write `say TEXT`"),
        ("flood many", "N must be a whole number"),
        ("stall soon", "SECONDS must be a number"),
        ("stop tired", "REASON must be one of end_turn"),
        ("edit a.py x", "`=>` is missing"),
        ("usage 1 2 3 4", "`4` is too much"),
        ("crash 1 2", "`2` is too much"),
        ("}", "`}` closes nothing"),
        ("repeat 3 {", "a `repeat` is not closed"),
        ("repeat 3", "there is no step `repeat`"),
    ],
)
def test_a_bad_line_says_its_number_and_what_is_wrong(line: str, problem: str) -> None:
    with pytest.raises(ScriptError) as caught:
        parse(["# comment", "", line], STEPS, first=2)
    assert str(caught.value).startswith("cannot play line 4: ")
    assert problem in str(caught.value)


def test_repeats_nest() -> None:
    (outer,) = parse(["repeat 2 {", "say a", "repeat 3 {", "say b", "}", "}"], STEPS)
    assert isinstance(outer, RepeatedSteps)
    inner = outer.body[1]
    assert isinstance(inner, RepeatedSteps)
    assert (outer.times, inner.times, len(inner.body)) == (2, 3, 1)
