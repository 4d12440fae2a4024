"""One action that an agent wants to take, in the one form that policies see.

Drivers and the gateway fill it. Everything in it is the agent's word: a policy decides on it, the jail and
the gateway enforce what was decided. Nothing here touches the disk, so a path is canonical as text only:
symlinks are the concern of whoever opens it.
"""

import hashlib
import json
import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import UNSET

from legation.errors import InvalidParams
from legation.wire.acp.toolcall import AnyToolCall, Diff, ToolKind

MAX_DEPTH = 200
"""Of nested arguments. Text that just fits the decoder's stack must not overflow a deeper caller's later on."""

_PATH_KEYS = (
    "path",
    "file_path",
    "filePath",
    "abs_path",
    "notebook_path",
    "source",
    "destination",
    "old_path",
    "new_path",
    "directory",
    "paths",
    "files",
)
_COMMAND_KEYS = ("command", "cmd")
_URL_KEYS = ("url", "uri", "urls")
_MCP_NAME = re.compile(r"mcp__(?P<server>[\w-]+?)__(?P<tool>[\w.-]+)", re.ASCII)


class Action(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`paths` are absolute, `command` is one shell line, `tool` of an MCP server is `server.tool`.

    Of a path that programs read in several ways each is in `paths`; `~/a` is there as it is where no home is known.
    """

    agent: str
    tool: str
    kind: ToolKind = "other"
    params: Mapping[str, object] = {}
    paths: tuple[str, ...] = ()
    command: str | None = None
    urls: tuple[str, ...] = ()

    @classmethod
    def from_tool_call(cls, agent: str, call: AnyToolCall, *, cwd: str, home: str | None = None) -> "Action":
        """Raises InvalidParams where the arguments are nested too deep to be judged: the caller refuses the call."""
        params = _params(call)
        if deeper_than(MAX_DEPTH, params):
            raise InvalidParams(
                f"cannot judge a tool call of {agent} whose arguments are nested deeper than {MAX_DEPTH}: refuse it"
            )
        urls = tuple(_strings(params, _URL_KEYS))
        named = (*_located_paths(call), *_strings(params, _PATH_KEYS), *filter(_is_file, urls))
        return cls(
            agent=agent,
            tool=_tool(call),
            kind=call.kind or "other",
            params=params,
            paths=_unique(place for path in named for place in _places(path, cwd=cwd, home=home)),
            command=_command(params),
            urls=_unique(iter(urls)),
        )

    def digest(self, policy_version: str = "") -> str:
        """What an approval is bound to: who does what with which arguments, under which policy."""
        bound = {"agent": self.agent, "tool": self.tool, "params": self.params, "policy": policy_version}
        text = json.dumps(bound, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


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


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _tool(call: AnyToolCall) -> str:
    if call.name:
        return tool_name(call.name)
    # A title is free text, and of a shell call it is often the model's own command line: only the
    # unmistakable MCP form counts, and never for a shell call, which could else pass for a harmless tool.
    if call.title and call.kind != "execute" and _MCP_NAME.fullmatch(call.title):
        return tool_name(call.title)
    return call.kind or "other"


def _params(call: AnyToolCall) -> Mapping[str, object]:
    given = call.raw_input
    if isinstance(given, Mapping):
        return given
    if given is not UNSET and given is not None:
        return {"input": given}
    # Without arguments the visible rest stands in, so that two different actions never share a digest.
    shown = {"title": call.title, "locations": call.locations, "content": call.content}
    built: Mapping[str, object] = msgspec.to_builtins({key: value for key, value in shown.items() if value})
    return built


def _located_paths(call: AnyToolCall) -> Iterator[str]:
    yield from (location.path for location in call.locations or ())
    yield from (item.path for item in call.content or () if isinstance(item, Diff))


def _command(params: Mapping[str, object]) -> str | None:
    for key in _COMMAND_KEYS:
        command = _shell_line(params.get(key))
        if command is not None:
            arguments = _shell_line(params.get("args")) if isinstance(params.get("args"), list) else None
            return f"{command} {arguments}" if arguments else command
    return None


def _shell_line(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and value:
        return shlex.join(str(word) for word in value)
    return None


def _strings(params: Mapping[str, object], keys: tuple[str, ...]) -> Iterator[str]:
    for key in keys:
        value = params.get(key)
        found = value if isinstance(value, list | tuple) else (value,)
        yield from (item for item in found if isinstance(item, str) and item)


def _unique(values: Iterator[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))
