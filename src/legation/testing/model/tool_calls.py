"""Tool calls of a script, in the names and the arguments that the very request declares for them.

INV-M4  A call is only ever made of a tool that the request declares; where none fits there is no call.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from legation.testing.model.request import DeclaredTool, ModelRequest, Object, as_object, declared_tools
from legation.testing.model.script import (
    AskUser,
    EditFile,
    ExitPlan,
    Mcp,
    ReadFile,
    Reply,
    RunShell,
    SubAgent,
    Text,
    Todo,
    Tool,
    ToolCall,
    WriteFile,
)

# Arguments that fit a declared schema, made of what a script means to say.
#
# Agents name the same thing differently (`file_path`, `filePath`, `path`). Each value stands here under all its names; the
# first that the schema declares gets it, and whatever else the schema requires gets the smallest value that fits.

PATH = ("file_path", "filePath", "absolute_path", "path")
CONTENT = ("content", "contents", "text")
COMMAND = ("command", "cmd")
OLD = ("old_string", "oldString", "old_str", "old")
NEW = ("new_string", "newString", "new_str", "new")
DESCRIPTION = ("description",)

Meant = Mapping[tuple[str, ...], object]


def fitting(schema: Object, meant: Meant) -> dict[str, object]:
    properties = as_object(schema.get("properties"))
    found: dict[str, object] = {}
    for names, value in meant.items():
        name = next((name for name in names if name in properties), None)
        if name is not None:
            found[name] = value
        elif not properties:  # a schema that says nothing takes the usual name
            found[names[0]] = value
    return {**_owed(schema, found), **found}


def items_schema(schema: Object, name: str) -> Object:
    """The schema of the members of the array `name`."""
    return as_object(as_object(as_object(schema.get("properties")).get(name)).get("items"))


def _owed(schema: Object, found: Mapping[str, object]) -> dict[str, object]:
    required = schema.get("required")
    properties = as_object(schema.get("properties"))
    names = [str(name) for name in required] if isinstance(required, list) else []
    return {name: sample(as_object(properties.get(name))) for name in names if name not in found}


# The smallest value that fits a JSON schema: what is said where a structure is asked for and its content is not.

PLAIN = "Scripted"


def sample_text(schema: Mapping[str, object] | None) -> str:
    return PLAIN if schema is None else json.dumps(sample(schema))


def sample(schema: Mapping[str, object]) -> object:
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return choices[0]
    if "const" in schema:
        return schema["const"]
    match str(schema.get("type", "")).lower():  # Gemini's own schemas shout
        case "object":
            properties = schema.get("properties")
            known = properties if isinstance(properties, dict) else {}
            return {name: sample(each) for name, each in known.items() if isinstance(each, dict)}
        case "array":
            return []
        case "integer" | "number":
            least = schema.get("minimum")
            return least if isinstance(least, int | float) else 0
        case "boolean":
            return False
        case "null":
            return None
        case _:
            return PLAIN


# Changes of files in the patch language of Codex's `apply_patch`, which knows whole lines only.


def added_file(path: str, content: str) -> str:
    return _as_patch(f"*** Add File: {path}", _lines("+", content))


def updated_file(path: str, old: str, new: str) -> str:
    return _as_patch(f"*** Update File: {path}", ["@@", *_lines("-", old), *_lines("+", new)])


def _as_patch(head: str, lines: list[str]) -> str:
    return "\n".join(["*** Begin Patch", head, *lines, "*** End Patch", ""])


def _lines(sign: str, text: str) -> list[str]:
    return [sign + line for line in text.removesuffix("\n").split("\n")] if text else []


# Where the agent works, as it tells the model: tools that want whole paths are given them.

# How Claude Code, OpenCode, Codex and the Gemini CLI put it.
_SAID = re.compile(
    r"(?:working directory|working directory is|<cwd>|workspace root folder|workspace director(?:y|ies)"
    r"|currently working in the directory)\W{0,6}?(/[^\s<>\"'`]*)",
    re.IGNORECASE,
)


def completed(path: str, request: ModelRequest) -> str:
    """Complete a path; it stays as it is where the request names no working directory."""
    if path.startswith("/"):
        return path
    said = next(
        filter(None, map(_SAID.search, (request.system, *(each.text for each in request.messages)))), None
    )
    return f"{said[1].rstrip('/.')}/{path}" if said else path


Tools = Mapping[str, DeclaredTool]

_WRITERS = ("Write", "write", "write_file", "create_file")
_READERS = ("Read", "read", "read_file")
_EDITORS = ("Edit", "edit", "replace", "edit_file")
_SHELLS = ("Bash", "bash", "run_shell_command", "exec_command", "shell_command", "shell")
_ASKERS = ("AskUserQuestion", "question", "ask_user", "request_user_input")
_PLANNERS = ("ExitPlanMode", "plan_exit", "exit_plan_mode")
_LISTERS = ("TodoWrite", "todowrite", "write_todos", "update_plan")
_DELEGATORS = ("Agent", "Task", "task", "invoke_agent", "spawn_agent")
_PATCHER = "apply_patch"
_JAVASCRIPT = "exec"  # Codex's "code mode": one freeform tool, whose text calls the others
_PLAN_MARK = "<proposed_plan>"  # Codex: told in its instructions, taken from the answer's text


class NoSuchTool(Exception):
    """The request declares nothing that does what the script wants."""


def in_its_words(reply: Reply, request: ModelRequest) -> Reply:
    """The reply with every `Tool` put into the request's words; raises `NoSuchTool`."""
    if not any(isinstance(part, Tool) for part in reply.parts):
        return reply
    tools = declared_tools(request.body)
    parts = tuple(
        _translate(part, tools, request) if isinstance(part, Tool) else part for part in reply.parts
    )
    return replace(reply, parts=parts)


def _translate(tool: Tool, tools: Tools, request: ModelRequest) -> ToolCall | Text:
    if isinstance(tool, ExitPlan) and not _named(tools, _PLANNERS) and _takes_plans_as_text(request):
        return Text(f"{_PLAN_MARK}\n{tool.plan}\n</proposed_plan>\n")
    for name, arguments in _ways(tool, tools, request):
        return ToolCall(name, arguments, tool.id)
    kind = type(tool).__name__
    known = ", ".join(sorted(tools)) or "none at all"
    raise NoSuchTool(f"{kind} fits none of the tools that the request declares ({known})")


Way = tuple[str, Mapping[str, object]]


def _ways(tool: Tool, tools: Tools, request: ModelRequest) -> Iterator[Way]:
    """All of them, the most natural first."""
    match tool:
        case WriteFile(path=path, content=content):
            at = completed(path, request)
            yield from _called(tools, _WRITERS, lambda _: {PATH: at, CONTENT: content})
            yield from _patch(tools, added_file(path, content))
            yield from _shell(tools, RunShell(f"printf %s {shlex.quote(content)} > {shlex.quote(path)}"))
        case ReadFile(path=path):
            at = completed(path, request)
            yield from _called(tools, _READERS, lambda _: {PATH: at})
            yield from _shell(tools, RunShell(f"cat {shlex.quote(path)}"))
        case EditFile(path=path, old=old, new=new):
            at = completed(path, request)
            yield from _called(tools, _EDITORS, lambda _: {PATH: at, OLD: old, NEW: new})
            yield from _patch(tools, updated_file(path, old, new))
        case RunShell():
            yield from _shell(tools, tool)
        case AskUser():
            yield from _called(tools, _ASKERS, lambda found: {("questions",): [_question(tool, found)]})
        case ExitPlan(plan=plan):
            for found in _named(tools, _PLANNERS):
                more = {"plan": plan} if found.name == "ExitPlanMode" else {}  # which takes it undeclared
                yield found.name, {**fitting(found.schema, {("plan",): plan}), **more}
        case Todo():
            yield from _called(tools, _LISTERS, lambda found: {("todos", "plan"): _list(tool, found)})
        case SubAgent(prompt=prompt):
            yield from _delegated(tools, prompt)
        case Mcp(server=server, tool=name, args=args):
            wanted = _plain(server + name)
            yield from ((each, args) for each in tools if _plain(each).removeprefix("mcp") == wanted)


def _called(
    tools: Tools,
    names: tuple[str, ...],
    meant: Callable[[DeclaredTool], Mapping[tuple[str, ...], object]],
) -> Iterator[Way]:
    return ((found.name, fitting(found.schema, meant(found))) for found in _named(tools, names))


def _named(tools: Tools, names: tuple[str, ...]) -> list[DeclaredTool]:
    return [tools[name] for name in names if name in tools]


def _patch(tools: Tools, patch: str) -> Iterator[Way]:
    if patcher := tools.get(_PATCHER):
        if patcher.freeform:
            yield _PATCHER, {"input": patch}
        else:
            yield _PATCHER, fitting(patcher.schema, {("input", "patch", "patchText"): patch})
    elif _is_javascript(tools):
        yield _JAVASCRIPT, {"input": f"const r = await tools.apply_patch({json.dumps(patch)}); text(r);"}


def _shell(tools: Tools, run: RunShell) -> Iterator[Way]:
    for found in _named(tools, _SHELLS):
        declared = as_object(found.properties.get("command"))
        as_words = declared.get("type") == "array"
        command: object = ["bash", "-lc", run.command] if as_words else run.command
        arguments = fitting(found.schema, {COMMAND: command, DESCRIPTION: "Run a command"})
        yield found.name, {**arguments, **(_unconfined() if run.unconfined and _can_ask(found) else {})}
    if _is_javascript(tools):
        arguments = {"cmd": run.command, **(_unconfined() if run.unconfined else {})}
        text = f"const r = await tools.exec_command({json.dumps(arguments)}); text(JSON.stringify(r));"
        yield _JAVASCRIPT, {"input": text}


def _is_javascript(tools: Tools) -> bool:
    return _JAVASCRIPT in tools and tools[_JAVASCRIPT].freeform


def _can_ask(shell: DeclaredTool) -> bool:
    return "sandbox_permissions" in shell.properties


def _unconfined() -> dict[str, object]:
    return {
        "sandbox_permissions": "require_escalated",
        "justification": "May I run this outside the sandbox?",
    }


def _question(ask: AskUser, tool: DeclaredTool) -> dict[str, object]:
    schema = items_schema(tool.schema, "questions")
    meant: dict[tuple[str, ...], object] = {
        ("question",): ask.question,
        ("header",): ask.header,
        ("options",): [{"label": each, "description": each} for each in ask.options],
        ("id",): "question",
        ("type",): "choice",
        ("multiSelect", "multiple"): ask.multiple,
    }
    if not schema:  # nothing is said of a question: what all of them have
        meant = {
            names: value for names, value in meant.items() if names[0] in ("question", "header", "options")
        }
    return fitting(schema, meant)


def _list(todo: Todo, tool: DeclaredTool) -> list[dict[str, object]]:
    schema = items_schema(tool.schema, "plan" if "plan" in tool.properties else "todos")
    return [
        fitting(
            schema,
            {
                ("content", "description", "step"): text,
                ("status",): status,
                ("activeForm",): text,
                ("priority",): "medium",
                ("id",): str(number),
            },
        )
        for number, (text, status) in enumerate(todo.items, 1)
    ]


def _delegated(tools: Tools, prompt: str) -> Iterator[Way]:
    spawners = tuple(name for name in tools if name.endswith(".spawn_agent"))
    for found in _named(tools, (*_DELEGATORS, *spawners)):
        meant: dict[tuple[str, ...], object] = {
            ("prompt", "message"): prompt,
            ("subagent_type",): "general" if found.name == "task" else "general-purpose",
            ("agent_name",): "generalist",
            DESCRIPTION: "Sub task",
        }
        if "task_name" in found.required:
            meant[("task_name",)] = "sub_task"
        yield found.name, fitting(found.schema, meant)


def _takes_plans_as_text(request: ModelRequest) -> bool:
    return _PLAN_MARK in request.system or any(_PLAN_MARK in message.text for message in request.messages)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
