"""Claude Code: the messages of its stream, as the types of its Agent SDK declare them.

The program prints no schema of its own: its `--json-schema` takes one, for the answer of the model. The SDK's types
are not free to copy; names, types and values are facts, and no more of them is kept here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from legation.errors import AgentError
from tools.schemas.expression import Type, reached
from tools.schemas.inventory import Inventory, inventory
from tools.schemas.places import Places, package_of
from tools.schemas.typescript import types_of

PACKAGE: Final = "@anthropic-ai/claude-agent-sdk"
_MESSAGES: Final = "sdk.d.ts"
_TOOLS: Final = "sdk-tools.d.ts"
# All that the program writes and reads, and the answers that a driver gives.
_ROOTS: Final = (
    "StdoutMessage",
    "SDKUserMessage",
    "SDKControlInitializeResponse",
    "SDKControlInterruptResponse",
    "PermissionResult",
    "PermissionMode",
)
_INPUTS: Final = "ToolInputSchemas"
_OUTPUTS: Final = "ToolOutputSchemas"
# The user's settings file, reports on usage, tools of Anthropic's own services: long, and nothing that is acted on.
_LEFT_OUT: Final = (
    "Settings",
    "SDKUsageReport",
    "SDKContextUsage",
    "ArtifactInput",
    "ClaudeDesignInput",
    "ProjectsInput",
    "RemoteTriggerInput",
    "ReportFindingsInput",
    "SendFeedbackInput",
)


def find(places: Places) -> Path | None:
    return places.package(PACKAGE)


async def extract(package: Path) -> Inventory:
    about = package_of(package)
    try:
        types = types_of((package / _MESSAGES).read_text())
        tools = types_of((package / _TOOLS).read_text())
    except (ValueError, OSError) as error:
        raise AgentError(
            f"cannot read the types of {PACKAGE}: {error}; typescript.py is to be changed"
        ) from None
    version = f"{about.version} (Claude Code {about.claude_code_version})"
    return inventory("claude", version, f"{PACKAGE}: {_MESSAGES}, {_TOOLS}", select(types, tools))


def select(types: dict[str, Type], tools: dict[str, Type]) -> dict[str, Type]:
    for root in (*_ROOTS, _INPUTS):
        if root not in types and root not in tools:
            raise AgentError(f"cannot find {root} in the types of {PACKAGE}; claude.py is to be changed")
    messages = reached(types, _ROOTS, without=_LEFT_OUT)
    inputs = reached(tools, [_INPUTS], without=(*_LEFT_OUT, _OUTPUTS))
    return {**inputs, **messages}
