"""The nodes of shfmt's tree, and which variables of a line may hold anything but a number.

Arithmetic takes the text of a variable for arithmetic again, and expands the subscripts in it: `x='a[$(rm y)]'` and
then `$((x))` runs the rm. So a variable counts as a number only where nothing in the line fills it with anything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from legation.approvals.policy.shell.words import Unreadable

Node: TypeAlias = dict[str, Any]

BEGIN: Final = "\0begin"  # of a node in its text, in bytes
END: Final = "\0end"
INTEGER: Final = re.compile(r"-?[0-9]+", re.ASCII)
DECLARATIONS: Final = frozenset({"declare", "typeset", "local", "export", "readonly"})
LONE: Final = frozenset({"[", "[[", "{", "}"})  # words that look like the beginning of a pattern and are none

_MAX_NODES: Final = 20_000  # of one line; a hundred commands have some thousands
_COMMENTS: Final = frozenset({"Comments", "Last", "CondLast", "ThenLast", "DoLast"})
_RANGE: Final = re.compile(r"\{-?[0-9]+\.\.-?[0-9]+(?:\.\.-?[0-9]+)?\}", re.ASCII)
_FILLS: Final = frozenset({"read", "mapfile", "readarray", "getopts", "printf", "wait"}) | DECLARATIONS
# Filled by the shell itself with what others said, and `$1` by whoever calls.
_ALWAYS_TEXT: Final = frozenset(
    {"REPLY", "MAPFILE", "OPTARG", "FUNCNAME", "DIRSTACK", "PS4", "_", "-", "@", "*"}
)
_PRINT_NUMBERS: Final = (("nproc",), ("date", "+%s"), ("wc", "-l"), ("wc", "-c"), ("wc", "-w"))
_PLACES: Final = frozenset(
    {"Pos", "End", "Position", "Semicolon", "OpPos", "ValuePos", "ValueEnd", "Left", "Right", "Lbrace", "Rbrace",
     "Lparen", "Rparen", "Dollar", "Hash", "ThenPos", "FiPos", "WhilePos", "DoPos", "DonePos", "ForPos", "In",
     "InPos", "Case", "Esac", "Coproc", "Time", "Let"}
)  # fmt: skip


def bare(node: Any, left: int = _MAX_NODES) -> Any:
    """Strip a tree of positions, but for where each node begins and ends."""
    if sum(1 for _ in nodes(node)) > left:
        raise Unreadable("a tree that is too large")
    return _bare(node)


def _bare(node: Any) -> Any:
    if isinstance(node, list):
        return [_bare(each) for each in node]
    if not isinstance(node, dict):
        return node
    found = {name: _bare(inner) for name, inner in node.items() if not (name in _PLACES and _is_place(inner))}
    if "Pos" in node and "End" in node:
        found[BEGIN], found[END] = node["Pos"].get("Offset", 0), node["End"].get("Offset", 0)
    return found


def _is_place(node: object) -> bool:
    return isinstance(node, dict) and node.keys() <= {"Offset", "Line", "Col"}


def nodes(node: object) -> Iterator[Node]:
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            if not _is_place(each):
                yield each
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)


def members(node: Node, *names: str) -> list[Any]:
    """Read those that are known; any other makes the line unreadable."""
    if not isinstance(node, dict):
        raise Unreadable("a tree that is not known")
    if node.keys() - set(names) - _COMMENTS - {"Type", BEGIN, END}:
        raise Unreadable("a form of the shell's that is not looked into")
    return [node.get(name) for name in names]


def one_of(op: str | None, known: frozenset[str] | set[str]) -> None:
    if op not in known:
        raise Unreadable("an operator that is not known")


def value(node: Node | None) -> str:
    found = (node or {}).get("Value")
    return found if isinstance(found, str) else ""


def literal(word: Node | None) -> str | None:
    """Read a word without a quote, an escape, a pattern or anything to fill in."""
    parts = (word or {}).get("Parts") or []
    if len(parts) != 1 or parts[0].get("Type") != "Lit":
        return None
    text = value(parts[0])
    return None if re.search(r"[\\?{\[~]", text) and text not in LONE else text


class Variables:
    """The variables of a line, and of the texts in it that are for another shell: what is exported they see too."""

    def __init__(self) -> None:
        self.has_functions = False
        self._filled: set[str] = set(_ALWAYS_TEXT)
        self._all = False  # something is filled, and nobody knows what

    def hold_text(self, name: str) -> bool:
        return self._all or name in self._filled or name.isdigit() or name.startswith("BASH_")

    def note(self, tree: Node) -> None:
        found = list(nodes(tree))
        self.has_functions = self.has_functions or any(node.get("Type") == "FuncDecl" for node in found)
        for node in found:
            match node.get("Type"):
                case "CallExpr":
                    self._note_assignments(node.get("Assigns") or [])
                    self._note_call([_beginning(arg) for arg in node.get("Args") or []])
                case "DeclClause":
                    args = node.get("Args") or []
                    self._note_assignments([arg for arg in args if not arg.get("Naked")])
                    named = [
                        _beginning(arg["Value"]) for arg in args if arg.get("Naked") and arg.get("Value")
                    ]
                    self._note_call([(value(node.get("Variant")), True), *named])
                case "WordIter":
                    items = node.get("Items")
                    if items is None or not all(self.is_number(item) for item in items):
                        self._filled.add(value(node.get("Name")))
                case "ParamExp":
                    if (node.get("Exp") or {}).get("Op") in ("=", ":="):
                        self._filled.add(value(node.get("Param")))

    def _note_assignments(self, assigns: list[Node]) -> None:
        for assign in assigns:
            array = assign.get("Array")
            values = (
                [each.get("Value") for each in array.get("Elems") or []] if array else [assign.get("Value")]
            )
            if not all(each is None or self.is_number(each) for each in values):
                self._filled.add(value(assign.get("Name")))

    def _note_call(self, words: list[tuple[str, bool]]) -> None:
        """Note what a call fills, by each word's beginning, and whether that is all of it. A builtin may stand behind `command`, or in quotes."""
        called = {text for text, is_whole in words if is_whole} & _FILLS
        if not called:
            return
        for text, is_whole in words:
            name, assigns, _ = text.partition("=")
            if is_whole or assigns:
                self._filled.add(name.removesuffix("+"))
            elif called & DECLARATIONS:
                self._all = True

    def is_number(self, word: Node) -> bool:
        parts = word.get("Parts") or []
        if len(parts) == 1 and parts[0].get("Type") == "DblQuoted":
            parts = parts[0].get("Parts") or []
        if len(parts) != 1:
            return False
        (part,) = parts
        match part.get("Type"):
            case "Lit":
                return bool(INTEGER.fullmatch(value(part)) or _RANGE.fullmatch(value(part)))
            case "ArithmExp":
                return True
            case "CmdSubst":
                return self.prints_number(part.get("Stmts") or [])
            case "ParamExp":
                return bool(part.get("Length")) or value(part.get("Param")) in ("?", "#", "$", "!")
        return False

    def prints_number(self, statements: list[Node]) -> bool:
        if len(statements) != 1 or self.has_functions:
            return False
        command = statements[0].get("Cmd") or {}
        while command.get("Type") == "BinaryCmd" and command.get("Op") == "|":
            command = command["Y"].get("Cmd") or {}
        if command.get("Type") != "CallExpr" or command.get("Assigns"):
            return False
        words = tuple(literal(arg) for arg in command.get("Args") or [])
        return words in _PRINT_NUMBERS or (
            words[:1] == ("seq",) and all(INTEGER.fullmatch(word or "") for word in words[1:])
        )


def _beginning(word: Node) -> tuple[str, bool]:
    """Read what the program gets of it, up to what the shell fills in; tell whether that is all."""
    text = ""
    for part in word.get("Parts") or []:
        inner = [part] if part.get("Type") != "DblQuoted" else part.get("Parts") or []
        for each in inner:
            if each.get("Type") not in ("Lit", "SglQuoted") or each.get("Dollar"):
                return text, False
            plain = value(each)
            text += (
                plain if each.get("Type") == "SglQuoted" else re.sub(r"\\(.)", r"\1", plain, flags=re.DOTALL)
            )
    return text, True
