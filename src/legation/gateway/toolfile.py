"""The file that lists the tools: all of it is good, or an error lists all that is wrong, each with its line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

from legation.approvals.policy.document import Node, Problems, SourceFile, read_documents, shown
from legation.errors import ConfigInvalid, InvalidParams
from legation.gateway.tools import METHODS, MOST_ANSWER, MOST_TIMEOUT, HttpSpec
from legation.redact import Redactor
from legation.secret import Secret
from legation.wire.acp.updates import TOOL_KINDS
from legation.wire.action import SORTS, Sort, tool_name

# Headers: words from the file, and secrets from the environment, never from the file.

_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", re.ASCII)
_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e\t]*[\x21-\x7e])?", re.ASCII)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)

OURS: Final = frozenset({"idempotency-key", "legation-trace-id", "traceparent"})
_OF_THE_TRANSPORT: Final = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "expect",
        "host",
        "te",
        "transfer-encoding",
    }
)
_SECRET: Final = frozenset({"authorization", "cookie", "proxy-authorization", "x-api-key", "api-key"})


@dataclass(frozen=True, slots=True)
class HeaderReader:
    source: SourceFile
    environ: Mapping[str, str]
    redactor: Redactor  # learns every secret

    def read(self, node: Node) -> dict[str, str | Secret]:
        if not isinstance(node.value, dict):
            self.source.report(node.line, "`headers` is no map; write `Name: value` lines")
            return {}
        found: dict[str, str | Secret] = {}
        for name, inner in node.value.items():
            if name.lower() in {known.lower() for known in found}:
                self.source.report(
                    inner.line, f"the header {shown(name)} is here twice; leave one of them out"
                )
            elif self._may_be_set(name, inner) and (value := self._value(name, inner)) is not None:
                found[name] = value
        return found

    def _may_be_set(self, name: str, node: Node) -> bool:
        if not _HEADER_NAME.fullmatch(name):
            self.source.report(node.line, f"{shown(name)} is no name of a header; write one like `X-Team`")
        elif name.lower() in OURS | _OF_THE_TRANSPORT:
            self.source.report(node.line, f"the header {shown(name)} is set by Legation; leave it out")
        else:
            return True
        return False

    def _value(self, name: str, node: Node) -> str | Secret | None:
        if isinstance(node.value, dict):
            return self._secret(node)
        if name.lower() in _SECRET:
            self.source.report(
                node.line,
                f"the secret of {shown(name)} stands in the file; write {{env: NAME}}, and give it there",
            )
            return None
        text = self.source.text(node, f"the header {shown(name)}")
        if text is not None and not _HEADER_VALUE.fullmatch(text):
            self.source.report(node.line, f"the header {shown(name)} has characters that no header can have")
            return None
        return text

    def _secret(self, node: Node) -> Secret | None:
        variable = self.source.map(node, "a header", ("env",)).get("env", Node(node.line, None))
        name = variable.value
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            self.source.report(variable.line, "`env` is no name of a variable; write {env: NAME}")
            return None
        value = self.environ.get(name, "").strip()
        if not value:
            self.source.report(variable.line, f"the variable {name} is not set; give it to the server")
        elif not _HEADER_VALUE.fullmatch(value):
            self.source.report(variable.line, f"the variable {name} has characters that no header can have")
        else:
            return self._hidden(name, value, variable.line)
        return None

    def _hidden(self, name: str, value: str, line: int) -> Secret | None:
        """`Bearer abc` is a secret as a whole and without its first word: a tool may repeat either."""
        secret = Secret(value, name)
        _, _, rest = value.partition(" ")
        try:
            for each in (secret, *([Secret(rest.strip(), name)] if rest.strip() else [])):
                self.redactor.add(each)
        except InvalidParams as error:
            self.source.report(
                line, f"the variable {name} cannot be used: {error.message.removeprefix('cannot ')}"
            )
            return None
        return secret


MAX_BYTES: Final = 1 << 20
KEYS: Final = ("name", "url", "method", "kind", "timeout", "headers", "max_answer", "folder", "arguments")

_ARGUMENT: Final = re.compile(r"[^\s.]+(?:\.[^\s.]+)*")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)


def read_tools(path: Path, environ: Mapping[str, str], redactor: Redactor) -> list[HttpSpec]:
    """`redactor` learns the secrets of their headers."""
    problems = Problems()
    source = SourceFile(str(path), problems)
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
    source: SourceFile
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
    """Say what is wrong with an address; the words hold nothing of it, there may be a password in it."""
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


def _text(path: Path, source: SourceFile) -> str | None:
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
