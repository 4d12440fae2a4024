"""A script: one step a line, read whole before the first of them is played.

`repeat N {` and a line with `}` enclose steps that are played N times. Blank lines and lines
that start with `#` are skipped. In texts, `\\n`, `\\t` and `\\\\` stand for themselves.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NoReturn, TypeAlias

from legation.agents.rehearsal.turn import PromptTurn

FIRST_LINE = "#!rehearse"
WHOLE = frozenset({"N", "BYTES", "USED", "SIZE", "CODE"})
DECIMAL = frozenset({"SECONDS", "COST"})
REST = frozenset({"TEXT", "TITLE", "QUESTION", "COMMAND", "MESSAGE", "OLD", "NEW", "ITEMS", "NAMES"})
VERBATIM = frozenset({"COMMAND"})
WORD = re.compile(r'\s*(?:"([^"]*)"|(\S+))')
ESCAPES: Mapping[str, str] = {"n": "\n", "t": "\t", "\\": "\\"}

MOST_BYTES = 65_536  # of one line, where nothing is executed
OFF = "which is off here: the owner turns it on, by the server's setting `rehearsal_executes` or the agent's `--execute`"

Args: TypeAlias = Mapping[str, str]


class ScriptError(Exception):
    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"cannot play line {line}: {problem}")


@dataclass(frozen=True, slots=True)
class StepSpec:
    """A kind of step. `usage` names its arguments; `forced` says what a `!` after the name does. One that `executes`, or
    does so when it is forced, is played only where that is turned on."""

    name: str
    usage: str
    meaning: str
    play: Callable[[PromptTurn, Args], None]
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    forced: str = ""
    executes: Literal["always", "forced", "never"] = "never"


@dataclass(frozen=True, slots=True)
class ScriptStep:
    line: int
    spec: StepSpec
    args: Args


@dataclass(frozen=True, slots=True)
class RepeatedSteps:
    times: int
    body: "tuple[ScriptStep | RepeatedSteps, ...]"


Script: TypeAlias = tuple[ScriptStep | RepeatedSteps, ...]


def must_not_execute(script: Script) -> None:
    """Raises ScriptError for a step that runs a program, leaves the folder, or takes much of the machine's memory."""
    for item in script:
        if isinstance(item, RepeatedSteps):
            must_not_execute(item.body)
            continue
        name = f"{item.spec.name}!" if "!" in item.args else item.spec.name
        if item.spec.executes == "always" or (item.spec.executes == "forced" and "!" in item.args):
            raise ScriptError(item.line, f"`{name}` acts on this machine by itself, {OFF}")
        if int(item.args.get("BYTES", "0")) > MOST_BYTES:
            raise ScriptError(item.line, f"`{name}` takes more than {MOST_BYTES} bytes, {OFF}")


def play(turn: PromptTurn, script: Script) -> None:
    for item in script:
        turn.check()
        if isinstance(item, RepeatedSteps):
            for _ in range(item.times):
                play(turn, item.body)
        else:
            asks = {"ask": "ask"} if item.spec.name.startswith("ask ") else {}  # `edit`, but `ask edit` first
            item.spec.play(turn, {**item.args, **asks})


def parse(lines: Sequence[str], specs: Mapping[str, StepSpec], first: int = 1) -> Script:
    """`first` is the number of the first line in the text that its author sees."""
    stack: list[tuple[int, list[ScriptStep | RepeatedSteps]]] = [(1, [])]
    for number, raw in enumerate(lines, first):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line == "}":
            _close(stack, number)
        elif opening := re.fullmatch(r"repeat\s+(\d+)\s*\{", line):
            stack.append((int(opening[1]), []))
        else:
            stack[-1][1].append(_step(number, line, specs))
    if len(stack) > 1:
        raise ScriptError(first + len(lines) - 1, "a `repeat` is not closed; end it with a line `}`")
    return tuple(stack[0][1])


def _close(stack: list[tuple[int, list[ScriptStep | RepeatedSteps]]], number: int) -> None:
    if len(stack) == 1:
        raise ScriptError(number, "`}` closes nothing; open with `repeat N {`")
    times, body = stack.pop()
    stack[-1][1].append(RepeatedSteps(times, tuple(body)))


def _step(number: int, line: str, specs: Mapping[str, StepSpec]) -> ScriptStep:
    words = line.split()
    length = 2 if " ".join(words[:2]).removesuffix("!") in specs else 1
    word = " ".join(words[:length])
    spec = specs.get(word.removesuffix("!"))
    if spec is None or (word.endswith("!") and not spec.forced):
        raise ScriptError(number, _unknown(word, specs))
    rest = line.split(maxsplit=length)[length] if len(words) > length else ""
    args = _bind(number, spec, rest, forced=word.endswith("!"))
    return ScriptStep(number, spec, args)


def _unknown(word: str, specs: Mapping[str, StepSpec]) -> str:
    import difflib  # only a mistake needs it

    names = [*specs, *(f"{name}!" for name, spec in specs.items() if spec.forced), "repeat"]
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.0)
    return f"there is no step `{word}`; the nearest is `{near[0]}`"


def _bind(number: int, spec: StepSpec, rest: str, *, forced: bool) -> Args:
    def refuse(problem: str) -> NoReturn:
        raise ScriptError(number, f"{problem}; write `{f'{spec.name} {spec.usage}'.strip()}`")

    args: dict[str, str] = {"!": "!"} if forced else {}
    names = spec.usage.split()
    if "=>" in names:
        rest, arrow, new = f"{rest} ".partition(" => ")
        args["NEW"] = _unescape(new.strip() or "") if arrow else refuse("`=>` is missing")
        names = names[: names.index("=>")]
    for name in names:
        bare = name.strip("[].")
        value, rest = (rest.strip(), "") if bare in REST else _word(rest)
        if value:
            args[bare] = _checked(bare, value, spec, forced=forced, refuse=refuse)
        elif not name.startswith("["):
            refuse(f"{bare} is missing")
    if rest.strip():
        refuse(f"`{rest.strip()}` is too much")
    return args


def _word(rest: str) -> tuple[str, str]:
    found = WORD.match(rest)
    return (found[1] or found[2] or "", rest[found.end() :]) if found else ("", "")


def _checked(
    name: str, value: str, spec: StepSpec, *, forced: bool, refuse: Callable[[str], NoReturn]
) -> str:
    if name in WHOLE and not re.fullmatch(r"-?\d+", value):
        refuse(f"{name} must be a whole number")
    if name in DECIMAL and not re.fullmatch(r"\d+(\.\d+)?|\.\d+", value):
        refuse(f"{name} must be a number")
    choices = spec.choices.get(name)
    if choices and value not in choices and not forced:
        refuse(f"{name} must be one of {', '.join(choices)}")
    return _unescape(value) if name in REST and name not in VERBATIM else value


def _unescape(text: str) -> str:
    return re.sub(r"\\([nt\\])", lambda match: ESCAPES[match[1]], text)
