"""One action that an agent wants to take, in the one form that policies see, and the question about it.

Drivers and the gateway fill it. Everything in it is the agent's word: a policy decides on it, the jail and
the gateway enforce what was decided. Nothing here touches the disk, so a path is canonical as text only:
symlinks are the concern of whoever opens it.

An `Ask` is one question about one action, and has one answer:

INV-W4  Only *once* options are ever chosen: "always" is a Legation grant, so that later calls still meet
        policy and trace. Two exceptions: `reject_always` where an agent offers no `reject_once`; and `allow_always`
        where it offers no `allow_once` and a grant of ours covers the tool, whatever its arguments.
INV-W5  Silence is never consent: without an answer the outcome is `expired`, and that is a refusal.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import shlex
import string
import weakref
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal, get_args
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import UNSET

from legation.errors import InvalidParams
from legation.wire.acp.updates import Diff, ToolCallPatch, ToolKind
from legation.wire.resolved import ResolvedPaths

if TYPE_CHECKING:
    from legation.wire.acp.methods import PermissionOption, PermissionOutcome

MAX_DEPTH = 200
"""Of nested arguments. Text that just fits the decoder's stack must not overflow a deeper caller's later on."""
MAX_PLACES = 500
"""Paths, commands and addresses of one call: each path is looked up on the disk, for every decision."""
MAX_PLACES_LENGTH = 128 * 1024
"""Characters of all of them."""
MAX_PATH = 4096
"""Characters; the kernel opens no longer one."""
MAX_NAMES = 4_000
"""Of arguments, at any depth, maps and lists counted with them: each is looked at, while everybody waits."""

MAX_TOOL = 512
"""Characters of a tool's name: every rule is held against it."""

RuleAction = Literal["allow", "supervisor", "human_approval", "deny"]  # from the mildest to the strictest
EFFECTLESS: Final = frozenset(("read", "search", "think"))
"""Kinds of calls that change nothing."""

Sort = Literal["path", "command", "url", "text"]
SORTS: Final[tuple[Sort, ...]] = get_args(Sort)

# What an argument is by its name, written without case, `_` and `-`; a plural with `s` counts as well. What stands
# under none of these names is told by its looks (`looks_like`). docs/policy.md lists them, and a test holds it to that.
NAMES: Final[Mapping[Sort, tuple[str, ...]]] = {
    "path": (
        *("path", "file", "filepath", "filename", "abspath", "absolutepath", "relpath", "relativepath", "fullpath"),
        *("notebookpath", "oldpath", "newpath", "movepath", "savedpath", "targetpath", "targetfile", "target"),
        *("source", "sourcepath", "src", "srcpath", "destination", "destinationpath", "dest", "destpath", "dst"),
        *("inputpath", "inputfile", "outputpath", "outputfile", "directory", "directories", "dir", "folder"),
        *("root", "rootpath", "rootdir", "grantroot", "cwd", "workdir", "workingdir", "workingdirectory"),
    ),
    "command": ("command", "cmd", "commandline", "cmdline", "shellcommand", "script", "argv"),
    "url": ("url", "uri", "href", "link", "endpoint", "baseurl"),
    "text": (
        *("content", "text", "oldstring", "newstring", "oldstr", "newstr", "oldtext", "newtext", "newsource"),
        *("body", "message", "title", "description", "subject", "comment", "summary", "explanation", "reason"),
        *("prompt", "query", "queries", "searchqueries", "question", "objective", "plan", "diff", "patch", "patchtext"),
        *("pattern", "regex", "activeform"),
    ),
}  # fmt: skip
FILTERS: Final = ("glob", "include", "exclude", "ignore", "filepattern")
"""Patterns of names below a folder. What begins at the root or a home, or leads upwards, is no such thing."""

_SORT_OF: Final[Mapping[str, Sort]] = {name: sort for sort, names in NAMES.items() for name in names}
_FOLDERS: Final = frozenset({"cwd", "workdir", "workingdir", "workingdirectory"})
_ARGUMENTS: Final = frozenset({"args", "arguments"})
_ENVIRONMENTS: Final = frozenset({"env", "environment"})
_GREPS: Final = frozenset({"grep", "ripgrep", "rg", "searchtext", "searchcode", "searchfilecontent"})
_ROOTED: Final = re.compile(r"[/~]|file:|[a-z]:[\\/]|\\\\", re.IGNORECASE)
_TAKES_TEXT: Final = re.compile(r"-[a-z]*[ecm]|--message|--eval", re.ASCII)
_KEYED: Final = frozenset({"changes", "filechanges"})  # whose keys are paths, in some of Codex' forms
_PATCHES: Final = frozenset({"patch", "patchtext", "input"})
# All characters are looked at first, or each `__` of a long name would lead to its end and back.
_MCP_NAME = re.compile(r"mcp__(?=[\w.-]+\Z)(?P<server>[\w-]+?)__(?P<tool>[\w.-]+)", re.ASCII)
# Without a word on blanks at the end: looking for them from each character on would take the square of a line's length.
_PATCHED: Final = re.compile(
    r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)$|^(?:---|\+\+\+) (\S+)", re.MULTILINE
)

_SCHEME: Final = (string.ascii_letters + string.digits + "+.-").encode()
_PATH_LOOKS: Final = re.compile(
    r"[/~\\].*|\.\.?(?:/.*)?|\.\w\S*|[a-z]:[\\/].*|file:.*|[^\s/]*/\S*", re.ASCII | re.IGNORECASE
)
_PROGRAMS: Final = (
    "apt|apt-get|awk|bash|brew|cat|chmod|chown|cp|curl|dash|dd|docker|echo|env|eval|exec|git|kill|killall|kubectl|"
    "ln|ls|mkdir|mkfs|mv|nc|node|npm|npx|perl|pip|pkill|powershell|python|python3|rm|rmdir|rsync|ruby|scp|sed|sh|"
    "shutdown|ssh|su|sudo|systemctl|tar|tee|touch|uv|wget|xargs|zsh"
)
_COMMAND_LOOKS: Final = re.compile(
    rf"#!|(?:\w+=\S*\s+)*(?:/(?:usr/)?(?:local/)?s?bin/)?(?:{_PROGRAMS})(?:\s|$)|[^\n]*(?:&&|\|\||\$\(|`|\s\|\s*\w|\s>>?\s*\S|;\s*(?:{_PROGRAMS})(?:\s|$))",
    re.ASCII,
)


def sort_of(name: str) -> Sort | None:
    """The sort that an argument of that name is taken for, wherever it stands."""
    plain = _plain(name)
    return _SORT_OF.get(plain) or _SORT_OF.get(plain.removesuffix("s"))


def looks_like(text: str) -> Sort | None:
    """The sort that a text under a name that says nothing could be: a path, a command, an address; or None."""
    text = text.strip()  # many a tool does so
    if _is_address(text):
        return "url"
    if _COMMAND_LOOKS.match(text, 0, MAX_PATH):
        return "command"
    if len(text) > MAX_PATH:
        return None
    return "path" if _PATH_LOOKS.fullmatch(text) or ".." in text.split("/") else None


def _is_address(text: str) -> bool:
    """Whether it is one address and nothing else: `[a-z][a-z0-9+.-]*://` or `www.`, and no blank. As one expression that
    takes ten milliseconds for a text of a megabyte."""
    scheme, colon, _ = text.partition("://")
    has_scheme = (
        colon and scheme[:1].isalpha() and scheme.isascii() and not scheme.encode().translate(None, _SCHEME)
    )
    if not has_scheme and (len(text) <= len("www.") or text[:4].lower() != "www."):
        return False
    return not any(blank in text for blank in string.whitespace)


def _plain(name: str) -> str:
    return name[:_LONGEST_NAME].replace("_", "").replace("-", "").lower()


_LONGEST_NAME: Final = 100  # characters: an argument's name is the caller's


class Action(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, weakref=True):
    """`paths` are absolute, `command` is one shell line, `tool` of an MCP server is `server.tool`.

    Of a path that programs read in several ways each is in `paths`; `~/a` is there as it is where no home is known.
    `unclear` names arguments that look like a path, a command or an address, where nobody said whether they are.
    """

    agent: str
    tool: str
    kind: ToolKind = "other"
    params: Mapping[str, object] = {}
    paths: tuple[str, ...] = ()
    command: str | None = None
    urls: tuple[str, ...] = ()
    other_commands: tuple[str, ...] = ()  # where a call brings several
    unclear: tuple[str, ...] = ()

    @classmethod
    def from_tool_call(
        cls,
        agent: str,
        call: ToolCallPatch,
        *,
        cwd: str,
        home: str | None = None,
        declared: Mapping[str, Sort] | None = None,
    ) -> Action:
        """`declared` says of arguments what they are, by name (`edits.path` goes into maps, and through lists).

        Raises InvalidParams where the arguments are nested too deep, or name too many places, to be judged: the caller
        refuses the call.
        """
        params, tool = _params(call), tool_of(call)
        # Without any, `params` are what is shown of the call.
        has_arguments = call.raw_input is not UNSET and call.raw_input is not None
        if has_arguments and _has_too_many_names(params):
            raise _too_many_names(agent)
        if deeper_than(MAX_DEPTH, params):
            raise InvalidParams(
                f"cannot judge a tool call of {agent} whose arguments are nested deeper than {MAX_DEPTH}: refuse it"
            )
        if len(tool) > MAX_TOOL:
            raise InvalidParams(
                f"cannot judge a tool call of {agent} whose tool has a name of more than {MAX_TOOL} characters: refuse it"
            )
        found = _Arguments(agent, cwd, declared or {}, tool)
        for location in call.locations or ():
            found.path(location.path)
        for item in call.content or ():
            if isinstance(item, Diff):
                found.path(item.path)
        if has_arguments:
            found.mapping(params, None, "")
        commands = tuple(dict.fromkeys(found.commands))
        places = (place for path in found.paths for place in _places(path, cwd=cwd, home=home))
        return cls(
            agent=agent,
            tool=tool,
            kind=kind_of(call),
            params=params,
            paths=tuple(dict.fromkeys(places)),
            command=commands[0] if commands else None,
            urls=tuple(dict.fromkeys(found.urls)),
            other_commands=commands[1:],
            unclear=tuple(found.unclear),
        )

    @property
    def commands(self) -> tuple[str, ...]:
        """Every shell line of the call: an allow needs each of them."""
        return () if self.command is None else (self.command, *self.other_commands)

    def digest(self, policy_version: str = "") -> str:
        """The digest that an approval is bound to: who does what with which arguments, under which policy."""
        bound = _bound(self).copy()
        bound.update(f'"policy":{_text(policy_version)},"tool":{_text(self.tool)}}}'.encode())  # as `_encode`
        return bound.hexdigest()


_text: Final = json.encoder.encode_basestring_ascii
_encode: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _bound(action: Action) -> hashlib._Hash:
    """The digest of what does not change with the policy: the first half of an object, up to its comma. One decision asks
    for it some four times, and of long arguments each takes milliseconds."""
    key = id(action)
    if (known := _long_digests.get(key)) is not None:
        return known[1]
    text = _encode({"agent": action.agent, "params": action.params})[:-1].encode() + b","
    found = hashlib.sha256(text)
    if len(text) > _LONG_PARAMS:
        forget = weakref.ref(action, lambda _: _long_digests.pop(key, None))
        _long_digests[key] = forget, found
    return found


_LONG_PARAMS: Final = 64 * 1024  # bytes
_long_digests: Final[
    dict[int, tuple[weakref.ref[Action], hashlib._Hash]]
] = {}  # for as long as the action is there


def kind_of(call: ToolCallPatch) -> ToolKind:
    """The kind of a call; one that shows a change is an edit, however harmless its agent calls it."""
    if call.kind in EFFECTLESS and any(isinstance(item, Diff) for item in call.content or ()):
        return "edit"
    return call.kind or "other"


def mcp_tool(server: str, tool: str) -> str:
    return f"{server}.{tool}"


def tool_name(name: str) -> str:
    """A tool's one name: Claude's `mcp__server__tool` is `server.tool`, any other stays as it is."""
    match = _MCP_NAME.fullmatch(name)
    return mcp_tool(match["server"], match["tool"]) if match else name


def canonical_path(path: str, *, cwd: str, home: str | None = None) -> str:
    """The absolute path that the text names, without `.`, `..`, doubled slashes or a file: scheme."""
    if path.startswith("file://"):
        path = _of_address(path)
    if home is not None and (path == "~" or path.startswith("~/")):
        path = home + path[1:]
    joined = posixpath.normpath(posixpath.join(cwd, path))
    return "/" + joined.lstrip("/")


def _places(path: str, *, cwd: str, home: str | None) -> Iterator[str]:
    """Every place that a program may take the text for: none may be judged by one reading and opened by another."""
    yield canonical_path(path, cwd=cwd, home=home)
    if path != path.strip():
        path = path.strip()
        yield canonical_path(path, cwd=cwd, home=home)
    if _is_file(path):  # some take `file:/a` and `FILE:///a` for addresses too
        path = _of_address(path)
        yield canonical_path(path, cwd=cwd, home=home)
    if path.startswith("~") and (home is None or path.partition("/")[0] != "~"):
        yield path  # of whose home we know nothing
    elif ".." in path.split("/"):
        yield posixpath.join(cwd, path)  # behind a link `..` is the folder above the one that it leads to


def _is_file(text: str) -> bool:
    return text[:5].lower() == "file:"


def _of_address(path: str) -> str:
    try:
        return unquote(urlsplit(path).path)
    except ValueError:
        raise InvalidParams(
            "cannot tell which file a tool call means: its file: address is malformed"
        ) from None


def deeper_than(limit: int, value: object) -> bool:
    level = [value]
    for _ in range(limit):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return False
    return True


def _has_too_many_names(params: Mapping[str, object]) -> bool:
    """Tell by counting alone: to judge them takes ten times as long, while everybody waits."""
    count, level = 0, list[object]([params])
    while level and count <= MAX_NAMES:
        count += len(level) + sum(len(each) for each in level if isinstance(each, dict))
        level = [inner for outer in level for inner in _inside(outer) if isinstance(inner, dict | list)]
    return count > MAX_NAMES


def _too_many_names(agent: str) -> InvalidParams:
    return InvalidParams(
        f"cannot judge a tool call of {agent} with more than {MAX_NAMES} arguments in arguments: split it into "
        "several calls"
    )


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, str | int | float):  # most are, and asking for a Mapping is slow
        return ()
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def tool_of(call: ToolCallPatch) -> str:
    """The one name of the tool that is called."""
    if call.name:
        return tool_name(call.name)
    # A title is free text, and of a shell call it is often the model's own command line: only the
    # unmistakable MCP form counts, and never for a shell call, which could else pass for a harmless tool.
    if call.title and call.kind != "execute" and _MCP_NAME.fullmatch(call.title):
        return tool_name(call.title)
    return call.kind or "other"


def _params(call: ToolCallPatch) -> Mapping[str, object]:
    given = call.raw_input
    if isinstance(given, Mapping):
        return given
    if given is not UNSET and given is not None:
        return {"input": given}
    # Without arguments the visible rest stands in, so that two different actions never share a digest.
    shown = {"title": call.title, "locations": call.locations, "content": call.content}
    built: Mapping[str, object] = msgspec.to_builtins({key: value for key, value in shown.items() if value})
    return built


class _Arguments:
    """The arguments of one call, gone through once. Every recognised name counts, at any depth; a value that holds
    several counts with all of them, and what stands in it under a name that says nothing is what the value is."""

    def __init__(self, agent: str, cwd: str, declared: Mapping[str, Sort], tool: str) -> None:
        self.paths: list[str] = []
        self.commands: list[str] = []
        self.urls: list[str] = []
        self.unclear: dict[str, None] = {}
        self._agent, self._cwd, self._declared = agent, cwd, declared
        self._searches_text = _plain(tool.rpartition(".")[2]) in _GREPS
        self._length = self._looked = self._named = 0
        self._unpacking = False

    def mapping(self, value: Mapping[str, object], above: Sort | None, at: str, keyed: bool = False) -> None:
        self._name(1 + len(value))
        runs = any(sort_of(key) == "command" and isinstance(value[key], str | list) for key in value)
        # A pattern is one of file names, as far as anybody knows.
        filters = FILTERS if self._searches_text else (*FILTERS, "pattern")
        words = " ".join(line for key in value if _plain(key) in _ARGUMENTS and (line := _words(value[key])))
        for key, inner in value.items():
            name, plain = f"{at}.{key}"[-MAX_PATH:] if at else key, _plain(key)
            sort = self._declared.get(name)
            if (
                sort is None and (keyed or above == "path") and sort_of(key) is None and _is_file_name(key)
            ) or (sort is None and self._looks(key) == "path"):
                self.path(key)
            if sort is None and plain in _FOLDERS and self._is_here(inner):
                continue
            if sort is None and (plain in filters or plain.removesuffix("s") in filters):
                self._filter(inner, name)
            elif sort is None and plain in _ARGUMENTS and not isinstance(inner, Mapping) and runs:
                self._further_words(inner, name)
            elif sort is None and plain in _ENVIRONMENTS and inner and runs:
                self._unclear(name)  # it makes another command of any, as `PATH=... ls` does
            else:
                self._value(inner, sort or sort_of(key) or above, name, plain, words)

    def _further_words(self, value: object, at: str) -> None:
        """Judge a list of a command's further words with it, one by one. Whether whoever runs it does so too is not known."""
        if isinstance(value, list | tuple) and any(
            self._is_line(before, word) for before, word in pairwise(("", *value))
        ):
            self._unclear(at)

    def path(self, text: str) -> None:
        self._count(text)
        self.paths.append(text)

    def _value(self, value: object, sort: Sort | None, at: str, plain: str, words: str = "") -> None:
        if isinstance(value, str):
            self._text(value, sort, at, plain, words)
        elif isinstance(value, int | float):
            return
        elif isinstance(value, Mapping):
            # A name says of texts that they are no more than that; of all below it only a declaration does.
            below = None if sort == "text" and at not in self._declared else sort
            self.mapping(value, below, at, plain in _KEYED)
        elif isinstance(value, list | tuple):
            self._name(1)
            line = _words(value) if sort == "command" and plain == plain.removesuffix("s") else None
            if line is not None:
                self._text(line, sort, at, plain, words)
                if any(self._is_line(before, word) for before, word in pairwise(value)):
                    self._unclear(at)  # a list of words, or one of lines
                return
            for item in value:
                if isinstance(item, str) and sort is None and self._looked > _MOST_LOOKED:
                    continue  # it is unclear already
                self._value(item, sort, at, plain)

    def _text(self, text: str, sort: Sort | None, at: str, plain: str, words: str) -> None:
        if not text:
            return
        if plain in _PATCHES and "*** " in text:
            for named in _PATCHED.findall(text):
                self.path(named[0].rstrip() or named[0] or named[1])
        match sort:
            case "command":
                line = f"{text} {words}" if words else text
                self._count(line)
                self.commands.append(line)
            case "url":
                self._count(text)
                self.urls.append(text)
                if _is_file(text):
                    self.path(text)
                elif self._looks(text) == "path":
                    self._unclear(at)
            case "path":
                self._path(text, at)
            case None if self._unpacks(text, at, plain):
                pass
            case None if len(self.unclear) < _MOST_UNCLEAR and self._looks(text) is not None:
                self._unclear(at)

    def _unpacks(self, text: str, at: str, plain: str) -> bool:
        """Arguments that are written as JSON in one: tools read them as any others."""
        if not text.lstrip().startswith(("{", "[")):
            return False
        self._looked += len(text)
        if self._looked > _MOST_LOOKED:
            self._unclear("...")
            return True
        try:
            found: object = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return False
        if self._unpacking or deeper_than(_MOST_PACKED, found):
            self._unclear(at)
        else:
            self._unpacking = True
            self._value(found, None, at, plain)
            self._unpacking = False
        return True

    def _path(self, text: str, at: str) -> None:
        if "\n" in text or len(text) > MAX_PATH:  # whatever it is, nobody opens it
            self._unclear(at)
            return
        self.path(text)
        if not _is_file(text) and _is_address(text):  # `source` may be either
            self._count(text)
            self.urls.append(text)
            self._unclear(at)

    def _filter(self, value: object, at: str) -> None:
        for text in value if isinstance(value, list | tuple) else (value,):
            if isinstance(text, Mapping):
                self.mapping(text, None, at)
            elif isinstance(text, str) and _ROOTED.match(text):
                self.path(re.split(r"[*?\[{]", text, maxsplit=1)[0] or "/")
                self._unclear(at)
            elif isinstance(text, str) and ".." in re.split(r"[/{},]", text):
                self._unclear(at)

    def _is_line(self, before: object, word: object) -> bool:
        """Whether a word is rather a command of its own; behind `bash -c` and `git commit -m` it has its place."""
        if (
            not isinstance(word, str)
            or " " not in word
            or (isinstance(before, str) and _TAKES_TEXT.fullmatch(before))
        ):
            return False
        return self._looks(word) == "command"

    def _looks(self, text: str) -> Sort | None:
        self._looked += min(len(text), MAX_PATH) + _EACH
        if self._looked > _MOST_LOOKED:
            self._unclear("...")
            return None
        return looks_like(text)

    def _is_here(self, value: object) -> bool:
        """The folder where the agent works anyway."""
        return isinstance(value, str) and posixpath.normpath(value) == posixpath.normpath(self._cwd)

    def _unclear(self, at: str) -> None:
        if len(self.unclear) < _MOST_UNCLEAR:
            self.unclear[at[:_LONGEST_NAME]] = None

    def _name(self, count: int) -> None:
        self._named += count
        if self._named > MAX_NAMES:  # with those that were packed in a text
            raise _too_many_names(self._agent)

    def _count(self, text: str) -> None:
        self._length += len(text)
        places = len(self.paths) + len(self.commands) + len(self.urls)
        if places >= MAX_PLACES or self._length > MAX_PLACES_LENGTH:
            raise InvalidParams(
                f"cannot judge a tool call of {self._agent} that names more than {MAX_PLACES} paths, commands and "
                f"addresses, or {MAX_PLACES_LENGTH // 1024} KiB of them: split it into several calls"
            )


_MOST_UNCLEAR: Final = 8  # that are named
# Characters under names that say nothing: of more nobody knows what they are.
_MOST_LOOKED: Final = 256 * 1024
_MOST_PACKED: Final = 20  # levels of arguments that are written as JSON in one; deeper ones, and JSON within, are not gone through
_EACH: Final = 16  # that a text costs besides its own, however short it is


def _words(value: object) -> str | None:
    """The words of a command as one line; None where it is none. A string is one as the shell would read it."""
    if isinstance(value, str):
        return value or None
    if (
        isinstance(value, list | tuple)
        and value
        and all(isinstance(word, str | int | float) for word in value)
    ):
        return shlex.join(str(word) for word in value)
    return None


def _is_file_name(key: str) -> bool:
    return bool(re.search(r"[/.~\\]", key)) and "\n" not in key and len(key) <= MAX_PATH


# Questions, and their answers.

Outcome = Literal["approved", "denied", "expired", "superseded", "cancelled"]

_KINDS_IN_ORDER: dict[Outcome, tuple[str, ...]] = {
    "approved": ("allow_once",),
    "denied": ("reject_once", "reject_always"),
    "expired": ("reject_once", "reject_always"),
    "superseded": (),
    "cancelled": (),
}


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """`id` is the permission's and the approval's id alike. Times are epoch milliseconds."""

    id: str
    session_id: str
    action: Action
    options: tuple[PermissionOption, ...]
    title: str
    asked_at: int
    expires_at: int | None = None
    tool_call_id: str | None = None
    turn: str | None = None
    cwd: str | None = (
        None  # where its session works, and its agent's home; absolute, None where they are not here
    )
    home: str | None = None
    diffs: tuple[Diff, ...] = ()  # what the agent says it would change
    editable: bool = False  # it would act on other arguments, if it is answered with some
    resolved: ResolvedPaths | None = (
        None  # of an agent on another machine: what whoever acts for it found there
    )


class Decision(msgspec.Struct, frozen=True):
    """`by` is who decided, `reason` why, `message` what the agent is told where its protocol can carry it.

    `params` are the arguments that were approved, where they are others than were asked about. `grant` is the one of
    ours that covers the tool, whatever its arguments: without it no agent is told `always`."""

    outcome: Outcome
    by: str
    reason: str
    option_id: str | None = None
    message: str | None = None
    params: Mapping[str, object] | None = None
    grant: str | None = None
    by_name: str | None = None  # of a person or a supervisor, where `by` is an id


def offers_only_always(options: Iterable[PermissionOption]) -> bool:
    """Whether a yes to it is a yes to what comes after, too."""
    kinds = {option.kind for option in options}
    return "allow_always" in kinds and "allow_once" not in kinds


def choose_option(
    options: Iterable[PermissionOption],
    outcome: Outcome,
    preferred: str | None = None,
    *,
    granted: bool = False,
) -> str | None:
    """The option that says `outcome` to the agent; None where it offers none that may be used.

    None for `approved` means that the agent offers only "always", and that none of ours was `granted`: the caller
    denies instead. `preferred` is taken where the agent offers several options of the right kind.
    """
    offered = tuple(options)
    last = ("allow_always",) if granted and outcome == "approved" else ()
    for kind in (*_KINDS_IN_ORDER[outcome], *last):
        fitting = [option.option_id for option in offered if option.kind == kind]
        if fitting:
            return preferred if preferred in fitting else fitting[0]
    return None


def permission_outcome(options: Iterable[PermissionOption], decision: Decision) -> PermissionOutcome:
    """The answer to the agent: an approval that cannot be given once, and that no grant covers, is a refusal."""
    offered = tuple(options)
    granted = decision.grant is not None
    chosen = choose_option(offered, decision.outcome, decision.option_id, granted=granted)
    if chosen is None and decision.outcome == "approved":
        chosen = choose_option(offered, "denied")
    # Late: rules are checked without the protocol of agents.
    from legation.wire.acp.methods import CancelledOutcome, SelectedOutcome

    return CancelledOutcome() if chosen is None else SelectedOutcome(option_id=chosen)
