"""The file that lists the tools: all of it is good, or an error lists all that is wrong, each with its line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

from legation.approvals.policy.document import Node, read_documents
from legation.approvals.policy.problems import Problems, shown
from legation.approvals.policy.source import Source
from legation.errors import ConfigInvalid
from legation.gateway.http_headers import HeaderReader
from legation.gateway.http_spec import METHODS, MOST_ANSWER, MOST_TIMEOUT, HttpSpec
from legation.redact import Redactor
from legation.wire.acp.toolcall import TOOL_KINDS
from legation.wire.action import SORTS, Sort, tool_name

MAX_BYTES: Final = 1 << 20
KEYS: Final = ("name", "url", "method", "kind", "timeout", "headers", "max_answer", "folder", "arguments")

_ARGUMENT: Final = re.compile(r"[^\s.]+(?:\.[^\s.]+)*")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)


def read_tools(path: Path, environ: Mapping[str, str], redactor: Redactor) -> list[HttpSpec]:
    """`redactor` learns the secrets of their headers."""
    problems = Problems()
    source = Source(str(path), problems)
    text = _text(path, source)
    reader = ToolReader(source, HeaderReader(source, environ, redactor))
    specs = [] if text is None else reader.all(read_documents(text, source.report))
    try:
        problems.raise_if_any()
    except ConfigInvalid as error:  # it speaks of policies
        lines: Any = (error.data or {})["problems"]
        listed = "".join(f"\n- {line}" for line in lines)
        raise ConfigInvalid(f"cannot use the tools; correct this:{listed}", error.data) from None
    return specs


@dataclass(frozen=True, slots=True)
class ToolReader:
    source: Source
    headers: HeaderReader

    def all(self, documents: list[Node]) -> list[HttpSpec]:
        if not documents and not self.source.problems.found:
            self.source.report(1, "no tools in it; write `tools:` and a list")
        specs: dict[str, HttpSpec] = {}
        for document in documents:
            members = self.source.map(document, "a file of tools", ("tools",))
            if "tools" not in members:
                self.source.report(document.line, "`tools` is missing; write `tools:` and a list")
                continue
            for node in self.source.items(members["tools"], "`tools`"):
                spec = self.tool(node)
                if spec is None:
                    continue
                if spec.name in specs:
                    self.source.report(
                        node.line, f"the tool {shown(spec.name)} is here twice; leave one of them out"
                    )
                specs[spec.name] = spec
        return list(specs.values())

    def tool(self, node: Node) -> HttpSpec | None:
        members = self.source.map(node, "a tool", KEYS)
        for needed in ("name", "url"):
            if needed not in members and isinstance(node.value, dict):
                self.source.report(node.line, f"`{needed}` of the tool is missing; write it")
        read = {
            "name": self._name,
            "url": self._url,
            "method": lambda one: self.source.word(one, "method", METHODS),
            "kind": lambda one: self.source.word(one, "kind", TOOL_KINDS),
            "timeout": lambda one: self.source.duration(one, "`timeout`", MOST_TIMEOUT),
            "headers": self.headers.read,
            "max_answer": self._bytes,
            "folder": self._folder,
            "arguments": self._arguments,
        }
        values: dict[str, Any] = {key: read[key](inner) for key, inner in members.items()}
        good = {key: value for key, value in values.items() if value is not None}
        return HttpSpec(**good) if {"name", "url"} <= good.keys() else None

    def _name(self, node: Node) -> str | None:
        name = node.value
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            self.source.report(
                node.line, "`name` is no tool's name; write letters, digits, `_`, `-` and `.`, at most 128"
            )
            return None
        if tool_name(name) != name:
            self.source.report(
                node.line, f"policies know {shown(name)} as {shown(tool_name(name))}; write that"
            )
            return None
        return name

    def _url(self, node: Node) -> str | None:
        fault = _fault(node.value)
        if fault is None:
            return str(node.value)
        self.source.report(node.line, f"`url` {fault}; write one like https://example.com/tool")
        return None

    def _bytes(self, node: Node) -> int | None:
        count = self.source.count(node, "`max_answer`")
        if count is not None and count > MOST_ANSWER:
            self.source.report(node.line, f"`max_answer` is above {MOST_ANSWER} bytes; write less")
            return None
        return count

    def _folder(self, node: Node) -> str | None:
        if isinstance(node.value, str) and node.value.startswith("/") and "\0" not in node.value:
            return os.path.realpath(node.value)
        self.source.report(node.line, "`folder` is no absolute path; write one that starts with `/`")
        return None

    def _arguments(self, node: Node) -> dict[str, Sort] | None:
        if not isinstance(node.value, dict):
            self.source.report(node.line, "`arguments` is no map; write one like {file: path, note: text}")
            return None
        found: dict[str, Sort] = {}
        for name, inner in node.value.items():
            if not _ARGUMENT.fullmatch(name):
                self.source.report(
                    inner.line,
                    f"{shown(name)} is no argument's name; write it as in the call, nested ones with dots",
                )
            elif (sort := self.source.word(inner, "sort of argument", SORTS)) is not None:
                found[name] = cast("Sort", sort)
        return found


def _fault(url: object) -> str | None:
    """What is wrong with an address; the words hold nothing of it, there may be a password in it."""
    if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        return "is no address"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "is no address"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "is no address of http or https"
    if "@" in parts.netloc:
        return "has a user in it, whose password is no matter of a file; put it into a header from the environment"
    return "has a part behind `#`, which is sent to nobody" if "#" in url else None


def _text(path: Path, source: Source) -> str | None:
    try:
        if not path.is_file():  # a pipe would hold us
            source.report(0, "is no file; write one, or take the setting `tools` out")
            return None
        with path.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
    except OSError as error:
        source.report(0, f"cannot be read: {error.strerror}; correct its permissions")
        return None
    if len(content) > MAX_BYTES:
        source.report(0, f"larger than {MAX_BYTES // 1024} KiB; write fewer tools")
        return None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        source.report(content.count(b"\n", 0, error.start) + 1, "not UTF-8 text; save it as such")
        return None
