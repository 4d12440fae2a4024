"""The syntax tree that shfmt makes of a shell line (bash), taken apart into the simple commands that it runs.

It keeps INV-P2 of split.py by a closed list: a kind of node, a member of one or an operator that is not named here
makes the line unreadable. What runs nothing by itself is a part where another shell would run it, or where it changes
what later words mean: `[[ ... ]]`, `((...))`, `name()`, `time`.

Arithmetic on a variable that may hold anything makes a part of which nothing is known, and that fits no allow.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from legation.approvals.policy.shell.nodes import (
    BEGIN,
    DECLARATIONS,
    END,
    INTEGER,
    LONE,
    Node,
    Variables,
    bare,
    literal,
    members,
    nodes,
    one_of,
    value,
)
from legation.approvals.policy.shell.split import Parts, text_of
from legation.approvals.policy.shell.words import Unreadable, Word

_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_OPERAND: Final = re.compile(r"[A-Za-z_]\w*|[0-9][0-9A-Za-z_]*(?:#[0-9A-Za-z_@]+)?", re.ASCII)
_DELIMITER: Final = re.compile(r"[A-Za-z0-9_.:!-]+", re.ASCII)
_UNKNOWN: Final = (None,)

_JOINTS: Final = frozenset({"&&", "||", "|", "|&"})
_CASEENDS: Final = frozenset({";;", ";&", ";;&"})
_REDIRECTIONS: Final = frozenset({">", ">>", "<", "<>", "<&", ">&", ">|", "&>", "&>>", "<<<", "<<", "<<-"})
_NUMERIC_TESTS: Final = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
_BINARY_TESTS: Final = _NUMERIC_TESTS | {"&&", "||", "=", "==", "!=", "=~", "<", ">", "-nt", "-ot", "-ef"}
_UNARY_TESTS: Final = frozenset(f"-{letter}" for letter in "abcdefghkGLnNOprsStuwxz") | {"!"}
_BINARY_SUMS: Final = frozenset(
    {"+", "-", "*", "/", "%", "**", "&", "|", "^", "<<", ">>", "&&", "||", ",", "?", ":"}
    | {"==", "!=", "<", ">", "<=", ">="}
    | {"=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "|=", "^="}
)
_UNARY_SUMS: Final = frozenset({"!", "~", "+", "-", "++", "--"})
_EXPANSIONS: Final = frozenset(
    {"-", ":-", "+", ":+", "?", ":?", "=", ":=", "#", "##", "%", "%%", "^", "^^", ",", ",,"}
)
_SHOWN_AS: Final = frozenset("QULu")  # `@P` would run what is in it
# For these a here-document is text and nothing else. For any other program it may be one: a part of its own.
_READERS: Final = frozenset(
    {"base64", "cat", "column", "cut", "diff", "fold", "grep", "head", "jq", "md5sum", "nl", "od", "rev"}
    | {"sha256sum", "sort", "tac", "tail", "tee", "tr", "uniq", "wc", "xxd"}
)
_READER_PAIRS: Final = frozenset(
    {("git", "commit"), ("git", "tag"), ("git", "notes"), ("gh", "pr"), ("gh", "issue"), ("gh", "release")}
)


class ShellTree:
    """One parsed text; `parts` is given what it runs."""

    def __init__(self, root: Node, source: bytes, parts: Parts, depth: int, variables: Variables) -> None:
        self._root, self._source = bare(root), source
        self._parts, self._depth = parts, depth
        self._variables = variables
        self._commands: dict[str, Callable[[Node], None]] = {
            "CallExpr": self._call,
            "DeclClause": self._declaration,
            "BinaryCmd": self._joined,
            "Block": self._group,
            "Subshell": self._group,
            "IfClause": self._if,
            "WhileClause": self._while,
            "ForClause": self._for,
            "CaseClause": self._case,
            "TestClause": self._test_clause,
            "ArithmCmd": self._sum_clause,
            "FuncDecl": self._function,
            "TimeClause": self._time,
        }

    def read(self) -> None:
        if self._root.get("Type") != "File":
            raise Unreadable("a tree that is not known")
        self._variables.note(self._root)
        (statements,) = members(self._root, "Stmts")
        self._statements(statements)

    def _must_be_number(self, name: str) -> None:
        if self._variables.hold_text(name):
            self._parts.add(_UNKNOWN)

    # Commands.

    def _statements(self, statements: list[Node] | None) -> None:
        for statement in statements or []:
            self._statement(statement)

    def _statement(self, node: Node) -> None:
        command, _, _, redirections = members(node, "Cmd", "Negated", "Background", "Redirs")
        for redirection in redirections or []:
            self._redirection(redirection, command)
        if command is None:
            return
        read = self._commands.get(command.get("Type", ""))
        if read is None:
            raise Unreadable("a compound command that is not looked into")
        read(command)

    def _call(self, node: Node) -> None:
        assigns, args = members(node, "Assigns", "Args")
        words = [self._assignment(assign) for assign in assigns or []]
        words += [self._word(arg) for arg in args or []]
        self._parts.add_command(words, self._depth)

    def _declaration(self, node: Node) -> None:
        variant, args = members(node, "Variant", "Args")
        name = value(variant)
        if name not in DECLARATIONS:
            raise Unreadable("a declaration that is not known")
        words = [_plain(name)]
        for arg in args or []:
            if arg.get("Naked") and arg.get("Value"):
                words.append(self._word(members(arg, "Naked", "Value")[1]))
            elif arg.get("Naked"):
                words.append(_plain(value(members(arg, "Naked", "Name")[1])))
            else:
                words.append(self._assignment(arg))
        self._parts.add_command(words, self._depth)

    def _assignment(self, node: Node) -> Word:
        append, name, index, given, array = members(node, "Append", "Name", "Index", "Value", "Array")
        word = Word()
        word.add(f"{value(name)}{'+' if append else ''}=", bare=True)
        if index is not None:
            self._subscript(index, word)
        if given is not None:
            word.append(self._word(given))
        if array is not None:
            self._array(array, word)
        return word

    def _array(self, node: Node, word: Word) -> None:
        word.add("(")
        for at, element in enumerate(members(node, "Elems")[0] or []):
            index, given = members(element, "Index", "Value")
            word.add(" " if at else "")
            if index is not None:
                self._subscript(index, word)
                word.add("=")
            if given is not None:
                word.append(self._word(given))
        word.add(")")

    def _subscript(self, index: Node, word: Word) -> None:
        # Of an associative array it is a text, and of any other arithmetic: it must do for both.
        self._sum(index)
        word.add("[")
        shown = literal(index) if index.get("Type") == "Word" else None
        if shown is None:
            word.add_hole()
        else:
            word.add(shown)
        word.add("]")

    def _joined(self, node: Node) -> None:
        op, left, right = members(node, "Op", "X", "Y")
        one_of(op, _JOINTS)
        self._statement(left)
        self._statement(right)

    def _group(self, node: Node) -> None:
        self._statements(members(node, "Stmts")[0])

    def _if(self, node: Node) -> None:
        condition, then, other = members(node, "Cond", "Then", "Else")
        self._statements(condition)
        self._statements(then)
        if other is not None:
            self._if(other)

    def _while(self, node: Node) -> None:
        _, condition, body = members(node, "Until", "Cond", "Do")
        self._statements(condition)
        self._statements(body)

    def _for(self, node: Node) -> None:
        loop, body = members(node, "Loop", "Do")
        if loop.get("Type") == "WordIter":
            name, items = members(loop, "Name", "Items")
            for item in items or []:
                self._word(item)
            self._parts.add_variable(_plain(value(name)))
        elif loop.get("Type") == "CStyleLoop":
            for each in members(loop, "Init", "Cond", "Post"):
                if each is not None:
                    self._sum(each)
        else:
            raise Unreadable("a loop that is not known")
        self._statements(body)

    def _case(self, node: Node) -> None:
        word, items = members(node, "Word", "Items")
        self._word(word)
        for item in items or []:
            op, patterns, statements = members(item, "Op", "Patterns", "Stmts")
            one_of(op, _CASEENDS)
            for pattern in patterns or []:
                self._word(pattern)
            self._statements(statements)

    def _function(self, node: Node) -> None:
        # What is in it counts as run, whoever calls it; its definition too, for it may take another's name.
        _, _, name, body = members(node, "RsrvWord", "Parens", "Name", "Body")
        self._parts.add((f"{value(name)}()",))
        self._statement(body)

    def _time(self, node: Node) -> None:
        _, statement = members(node, "PosixFormat", "Stmt")
        self._parts.add(("time",))
        if statement is not None:
            self._statement(statement)

    # Redirections.

    def _redirection(self, node: Node, command: Node | None) -> None:
        op, number, target, body = members(node, "Op", "N", "Word", "Hdoc")
        one_of(op, _REDIRECTIONS)
        if number is not None and not value(number).isdigit():
            raise Unreadable("a descriptor with a name")
        if op in ("<<", "<<-"):
            self._here_document(target, body, command)
            return
        parts = target.get("Parts") or []
        word = self._word(target)
        if len(parts) == 1 and parts[0].get("Type") == "ProcSubst":
            return  # a pipe with another form
        self._parts.add_redirection(op, word)

    def _here_document(self, delimiter: Node, body: Node | None, command: Node | None) -> None:
        end, is_literal = _delimiter(delimiter)
        word = Word()
        word.add("")
        if body is not None:
            self._must_end_there(body, end.encode(), is_literal=is_literal)
            for part in members(body, "Parts")[0] or []:
                if part.get("Type") != "Lit":
                    if is_literal:
                        raise Unreadable("a here-document that is not known")
                    self._part(part, word, quoted=True)
                else:
                    text = members(part, "Type", "Value")[1] or ""
                    word.add(text if is_literal else _unescaped(text, "$`\\"))
        if not _reads_text(command):
            self._parts.add_redirected("<<", word)

    def _must_end_there(self, body: Node, end: bytes, *, is_literal: bool) -> None:
        # Within `$(...)` bash takes `EOF rm y)` for the end too, and runs the rm.
        text = self._text_of(body)
        *lines, last = (line.lstrip(b" \t") for line in text.split(b"\n"))
        if last != end or any(line.startswith(end) for line in lines):
            raise Unreadable("a here-document whose end is not known")
        if not is_literal and b"\\\n" in text:
            raise Unreadable("a here-document with a line that goes on")

    # Tests.

    def _test_clause(self, node: Node) -> None:
        (expression,) = members(node, "X")
        words = [_plain("[["), *self._test(expression), _plain("]]")]
        self._parts.add(text_of(words))

    def _test(self, node: Node) -> list[Word]:
        match node.get("Type"):
            case "Word":
                return [self._word(node)]
            case "ParenTest":
                return [_plain("("), *self._test(members(node, "X")[0]), _plain(")")]
            case "UnaryTest":
                return self._unary_test(node)
            case "BinaryTest":
                return self._binary_test(node)
        raise Unreadable("a test that is not known")

    def _unary_test(self, node: Node) -> list[Word]:
        op, operand = members(node, "Op", "X")
        if op == "-v":
            if not _NAME.fullmatch(literal(operand) or ""):
                raise Unreadable("a test of a variable that may run commands")
        else:
            one_of(op, _UNARY_TESTS)
        return [_plain(op), *self._test(operand)]

    def _binary_test(self, node: Node) -> list[Word]:
        op, left, right = members(node, "Op", "X", "Y")
        one_of(op, _BINARY_TESTS)
        if op in _NUMERIC_TESTS:
            self._sum(left)
            self._sum(right)
        words = self._test(left)
        behind = self._test(right)
        # A shell without `[[` takes these for what they are elsewhere.
        if op in ("<", ">") and behind:
            self._parts.add_redirected(op, behind[0])
        if op == "||":
            self._first_word(right, behind)
        return [*words, _plain(op), *behind]

    def _first_word(self, node: Node, words: list[Word]) -> None:
        while node.get("Type") in ("BinaryTest", "ParenTest"):
            node = node["X"]
        if node.get("Type") != "Word":
            return
        names = {value(inner.get("Param")) for inner in nodes(node) if inner.get("Type") == "ParamExp"}
        if words[0].text is not None:
            self._parts.add(text_of([*words, _plain("]]")]))
        elif any(map(self._variables.hold_text, names)) or any(
            inner.get("Type") == "CmdSubst" for inner in nodes(node)
        ):
            self._parts.add(_UNKNOWN)

    # Arithmetic.

    def _sum_clause(self, node: Node) -> None:
        (expression,) = members(node, "X")
        self._sum(expression)
        self._parts.add(("((", None, "))"))

    def _sum(self, node: Node) -> None:
        match node.get("Type"):
            case "Word":
                self._operand(node)
            case "ParenArithm":
                self._sum(members(node, "X")[0])
            case "UnaryArithm":
                op, _, operand = members(node, "Op", "Post", "X")
                one_of(op, _UNARY_SUMS)
                self._sum(operand)
            case "BinaryArithm":
                op, left, right = members(node, "Op", "X", "Y")
                one_of(op, _BINARY_SUMS)
                self._sum(left)
                self._sum(right)
            case _:
                raise Unreadable("arithmetic that may run commands")

    def _operand(self, node: Node) -> None:
        """Read a word in arithmetic: a number, or what is one when it is filled in."""
        for part in members(node, "Type", "Parts")[1] or []:
            parts = (members(part, "Parts")[0] or []) if part.get("Type") == "DblQuoted" else [part]
            for each in parts:
                self._operand_part(each)

    def _operand_part(self, part: Node) -> None:
        match part.get("Type"):
            case "Lit":
                text = part.get("Value", "")
                if text in ("@", "*"):
                    return  # all of an array
                if not _OPERAND.fullmatch(text):
                    raise Unreadable("arithmetic that may run commands")
                if _NAME.fullmatch(text):
                    self._must_be_number(text)
            case "ParamExp":
                self._parameter(part)
                if not part.get("Length"):
                    self._must_be_number(value(part.get("Param")))
                if not _is_plain_parameter(part):
                    self._parts.add(_UNKNOWN)
            case "ArithmExp":
                self._sum(members(part, "X")[0])
            case "CmdSubst":
                self._substitution(part)
                if not self._variables.prints_number(part.get("Stmts") or []):
                    self._parts.add(_UNKNOWN)
            case _:
                raise Unreadable("arithmetic that may run commands")

    # Words.

    def _word(self, node: Node) -> Word:
        (parts,) = members(node, "Parts")
        word = Word()
        if len(parts or []) == 1 and parts[0].get("Type") == "Lit" and parts[0].get("Value") in LONE:
            word.add(parts[0]["Value"], bare=True)
            return word
        for part in parts or []:
            self._part(part, word, quoted=False)
        return word

    def _part(self, part: Node, word: Word, *, quoted: bool) -> None:
        match part.get("Type"):
            case "Lit":
                text = members(part, "Value")[0] or ""
                if quoted:
                    word.add(_unescaped(text, '$`"\\'))
                else:
                    _add_bare(word, text)
            case "SglQuoted":
                dollar, text = members(part, "Dollar", "Value")
                if dollar:
                    word.add_hole()  # its escapes can spell anything
                else:
                    word.add(text or "")
            case "DblQuoted":
                self._double_quoted(part, word)
            case "ParamExp":
                self._parameter(part)
                name = value(part.get("Param"))
                word.add_hole(splits=not quoted and self._variables.hold_text(name))
            case "ArithmExp":
                self._sum(members(part, "X")[0])
                word.add_hole()
            case "CmdSubst":
                text = self._substitution(part)
                if text is not None and quoted:
                    word.add(text)
                else:
                    word.add_hole(splits=not quoted)
            case "ProcSubst":
                op, statements = members(part, "Op", "Stmts")
                one_of(op, {"<(", ">("})
                self._inside(statements)
                word.add_hole()
            case _:
                raise Unreadable("an extended pattern, or an expansion that is not known")

    def _double_quoted(self, part: Node, word: Word) -> None:
        dollar, parts = members(part, "Dollar", "Parts")
        if dollar:
            word.add_hole()  # another language's words, and in another shell a dollar before them
        word.add("")
        for inner in parts or []:
            self._part(inner, word, quoted=True)

    def _substitution(self, node: Node) -> str | None:
        """Read a substitution; return the text that comes of it, where that is certain."""
        statements, backquotes = members(node, "Stmts", "Backquotes")
        if backquotes and b"\\" in self._text_of(node):
            raise Unreadable("a backslash within backticks")  # shells do not agree when it goes
        self._inside(statements)
        return None if backquotes or self._variables.has_functions else _written_out(statements or [])

    def _inside(self, statements: list[Node] | None) -> None:
        # Bash writes out what it read and reads that again, and with several commands it writes them wrongly.
        documents = sum("Hdoc" in node for node in nodes(statements))
        if documents and (documents > 1 or not _is_one_call(statements or [])):
            raise Unreadable("a here-document among other commands within a substitution")
        self._depth += 1
        self._parts.must_be_shallow(self._depth)
        self._statements(statements)
        self._depth -= 1

    def _text_of(self, node: Node) -> bytes:
        begin, end = node[BEGIN], node[END]
        return self._source[begin:end]

    def _parameter(self, node: Node) -> None:
        _, param, indirect, _, index, piece, replaced, names, expansion = members(
            node, "Short", "Param", "Excl", "Length", "Index", "Slice", "Repl", "Names", "Exp"
        )
        if any(inner.get("Type") == "SglQuoted" for inner in nodes([replaced, expansion])):
            # Within double quotes they are no quotes: `"${x:-'$(rm y)'}"` runs the rm.
            raise Unreadable("single quotes within an expansion")
        everything = index is not None and literal(index) in ("@", "*")
        if not value(param) or (indirect and not (names or everything)):
            raise Unreadable("an expansion that may run commands")
        if index is not None and not everything:
            self._sum(index)
        if piece is not None:
            for bound in members(piece, "Offset", "Length"):
                if bound is not None:
                    self._sum(bound)
        if replaced is not None:
            for word in members(replaced, "All", "Orig", "With")[1:]:
                if word is not None:
                    self._word(word)
        if expansion is not None:
            self._expansion(value(param), expansion)

    def _expansion(self, name: str, node: Node) -> None:
        op, word = members(node, "Op", "Word")
        if op == "@":
            if literal(word) not in _SHOWN_AS:
                raise Unreadable("an expansion that may run commands")
            return
        one_of(op, _EXPANSIONS)
        if op in ("=", ":="):
            self._parts.add((f"{name}=", None))
        if word is not None:
            self._word(word)


def _is_plain_parameter(node: Node) -> bool:
    """Tell whether it is `$x`, `${x}`, `${#x}`, `${a[i]}`, or `${x:-0}`."""
    if node.keys() & {"Excl", "Slice", "Repl", "Names"}:
        return False
    expansion = node.get("Exp")
    return expansion is None or (
        expansion.get("Op") in ("-", ":-")
        and INTEGER.fullmatch(literal(expansion.get("Word")) or "") is not None
    )


def _plain(text: str) -> Word:
    word = Word()
    word.add(text, bare=True)
    return word


def _add_bare(word: Word, text: str) -> None:
    """Add text without quotes: escapes, patterns and braces count."""
    at = 0
    while at < len(text):
        char, after = text[at], text[at + 1 : at + 2]
        if char == "\\":
            if after != "\n":
                word.add(after)
            at += 2
            continue
        if char in "*?[":
            word.add_hole(splits=True)
        elif char == "{" and after == "}":
            word.add("{}", bare=True)
            at += 1
        elif char == "{":
            word.add_hole(to_the_end=True, splits=True)  # {a,b} makes several words of one
        else:
            word.add(char, bare=True)
        at += 1


def _unescaped(text: str, escapable: str) -> str:
    return re.sub(
        r"\\(.)", lambda found: found[1] if found[1] in escapable else found[0], text, flags=re.DOTALL
    )


def _delimiter(word: Node) -> tuple[str, bool]:
    """Find what ends a here-document, and whether the text before it is taken as it is."""
    parts = members(word, "Parts")[0] or []
    if len(parts) != 1:
        raise Unreadable("a here-document whose end is not known")
    (part,) = parts
    match part.get("Type"):
        case "Lit":
            text, quoted = value(part).removeprefix("\\"), value(part).startswith("\\")
        case "SglQuoted" if not part.get("Dollar"):
            text, quoted = value(part), True
        case "DblQuoted" if not part.get("Dollar"):
            text, quoted = literal(part) or "", True
        case _:
            text, quoted = "", True
    if not _DELIMITER.fullmatch(text):
        raise Unreadable("a here-document whose end is not known")
    return text, quoted


def _is_one_call(statements: list[Node]) -> bool:
    return len(statements) == 1 and (statements[0].get("Cmd") or {}).get("Type") == "CallExpr"


def _reads_text(command: Node | None) -> bool:
    if command is None or command.get("Type") != "CallExpr":
        return False
    words = [literal(arg) for arg in command.get("Args") or []]
    return bool(words) and (words[0] in _READERS or tuple(words[:2]) in _READER_PAIRS)


def _written_out(statements: list[Node]) -> str | None:
    """Find the text of `cat <<'EOF'` and nothing else: how agents write a long argument."""
    if len(statements) != 1 or statements[0].keys() - {"Cmd", "Redirs", BEGIN, END}:
        return None
    command, redirections = statements[0].get("Cmd") or {}, statements[0].get("Redirs") or []
    args = command.get("Args") or []
    if (
        command.get("Type") != "CallExpr"
        or command.get("Assigns")
        or [literal(arg) for arg in args] != ["cat"]
    ):
        return None
    if len(redirections) != 1 or redirections[0].get("Op") != "<<" or "N" in redirections[0]:
        return None
    body = redirections[0].get("Hdoc")
    if not _delimiter(redirections[0]["Word"])[1]:
        return None
    texts = [part.get("Value", "") for part in (body or {}).get("Parts") or []]
    return "".join(texts).rstrip("\n")
