"""Headers of an HTTP tool: words from the file, and secrets from the environment, never from the file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from legation.approvals.policy.document import Node
from legation.approvals.policy.problems import shown
from legation.approvals.policy.source import Source
from legation.errors import InvalidParams
from legation.redact import Redactor
from legation.secret import Secret

_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", re.ASCII)
_VALUE: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e\t]*[\x21-\x7e])?", re.ASCII)
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
    source: Source
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
        if not _NAME.fullmatch(name):
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
        if text is not None and not _VALUE.fullmatch(text):
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
        elif not _VALUE.fullmatch(value):
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
