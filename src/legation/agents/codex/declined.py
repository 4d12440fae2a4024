"""The answer to a request of the server's that nobody can decide: no, in the form that it understands."""

from __future__ import annotations

from typing import Final

from legation.agents.codex.peer import Asked
from legation.wire.acp.rpc import ErrorCode, RpcError

DECLINE: Final = {"decision": "decline"}
NOBODY: Final = "Nobody can be asked here: decide by yourself, or go on without."

ANSWERS: Final[dict[str, object]] = {
    "item/commandExecution/requestApproval": DECLINE,
    "item/fileChange/requestApproval": DECLINE,
    "item/permissions/requestApproval": {"permissions": {}, "scope": "turn"},
    "item/tool/requestUserInput": {"answers": {}},
    "item/tool/call": {"contentItems": [{"type": "inputText", "text": NOBODY}], "success": False},
    "mcpServer/elicitation/request": {"action": "decline", "content": None},
    # As they were called before threads had items.
    "applyPatchApproval": {"decision": "denied"},
    "execCommandApproval": {"decision": "denied"},
}


def declined(asked: Asked) -> object:
    unknown = RpcError(ErrorCode.METHOD_NOT_FOUND, f"{asked.method} is not offered")
    return ANSWERS.get(asked.method, unknown)
