"""A script's tool calls in each agent's words: INV-M4. The schemas are the agents' own, cut down to what counts."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.testing.model.model_client import ask, send

from legation.testing.model import (
    AskUser,
    EditFile,
    ExitPlan,
    Mcp,
    ModelRequest,
    ReadFile,
    Reply,
    RunShell,
    ScriptedModel,
    ScriptMismatch,
    SubAgent,
    Text,
    Todo,
    Tool,
    ToolCall,
    WriteFile,
)
from legation.testing.model.tool_calls import NoSuchTool, fitting, in_its_words

Schema = dict[str, object]
WORDS: Schema = {"type": "string"}


def schema(*required: str, **properties: object) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


def strings(*names: str) -> Schema:
    return schema(*names, **dict.fromkeys(names, WORDS))


def listed(name: str, item: Schema) -> Schema:
    return schema(name, **{name: {"type": "array", "items": item}})


def anthropic(name: str, given: Schema) -> Schema:
    return {"name": name, "input_schema": given}


def chat(name: str, given: Schema) -> Schema:
    return {"type": "function", "function": {"name": name, "parameters": given}}


def responses(name: str, given: Schema) -> Schema:
    return {"type": "function", "name": name, "parameters": given}


def gemini(name: str, given: Schema) -> Schema:
    return {"functionDeclarations": [{"name": name, "parametersJsonSchema": given}]}


FREEFORM = {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}}
CODE_MODE = {"type": "namespace", "name": "functions", "tools": [{"type": "custom", "name": "exec"}]}
CLAUDE_QUESTION = schema(
    "question", "header", "options", "multiSelect", question={}, header={}, options={}, multiSelect={}
)
OPTIONS = [{"label": "Red", "description": "Red"}, {"label": "Blue", "description": "Blue"}]
ADDED = "*** Begin Patch\n*** Add File: a.txt\n+one\n+two\n*** End Patch\n"
UPDATED = "*** Begin Patch\n*** Update File: a.txt\n@@\n-one\n+1\n*** End Patch\n"

WRITE = WriteFile("a.txt", "one\ntwo\n")
EDIT = EditFile("a.txt", "one", "1")
ASK = AskUser("Which?", ("Red", "Blue"), header="Colour")
TODO = Todo((("Write", "completed"), ("Check", "pending")))


def request(*tools: object, system: str = "", **body: object) -> ModelRequest:
    return ModelRequest("/p", "m", True, (), system, (), None, {}, {"tools": list(tools), **body})


def called(tool: Tool, made: ModelRequest) -> tuple[str, Mapping[str, object]]:
    (part,) = in_its_words(Reply((tool,)), made).parts
    assert isinstance(part, ToolCall)
    assert part.id == tool.id
    return part.name, part.input


@pytest.mark.parametrize(
    ("tool", "declared", "name", "arguments"),
    [
        (WRITE, anthropic("Write", strings("file_path", "content")), "Write", ("file_path", "content")),
        (WRITE, chat("write", strings("content", "filePath")), "write", ("filePath", "content")),
        (
            WRITE,
            gemini("write_file", strings("file_path", "content")),
            "write_file",
            ("file_path", "content"),
        ),
    ],
)
def test_a_file_is_written_by_the_tool_for_it(
    tool: Tool, declared: Schema, name: str, arguments: tuple[str, str]
) -> None:
    path, content = arguments
    assert called(tool, request(declared)) == (name, {path: "a.txt", content: "one\ntwo\n"})


def test_a_file_is_written_by_a_patch_where_there_is_no_tool_for_it() -> None:
    shell = responses("exec_command", strings("cmd"))
    assert called(WRITE, request(shell, FREEFORM)) == ("apply_patch", {"input": ADDED})
    patch = chat("apply_patch", strings("patchText"))
    assert called(WRITE, request(patch)) == ("apply_patch", {"patchText": ADDED})


def test_a_file_is_written_and_read_by_the_shell_where_there_is_nothing_else() -> None:
    made = request(responses("exec_command", strings("cmd")))
    assert called(WRITE, made) == ("exec_command", {"cmd": "printf %s 'one\ntwo\n' > a.txt"})
    assert called(ReadFile("a b.txt"), made) == ("exec_command", {"cmd": "cat 'a b.txt'"})


def test_a_file_is_edited() -> None:
    claude = anthropic("Edit", strings("file_path", "old_string", "new_string"))
    expected = {"file_path": "a.txt", "old_string": "one", "new_string": "1"}
    assert called(EDIT, request(claude)) == ("Edit", expected)
    opencode = chat("edit", strings("filePath", "oldString", "newString"))
    expected = {"filePath": "a.txt", "oldString": "one", "newString": "1"}
    assert called(EDIT, request(opencode)) == ("edit", expected)
    assert called(EDIT, request(FREEFORM)) == ("apply_patch", {"input": UPDATED})


@pytest.mark.parametrize(
    "system",
    [
        " - Primary working directory: /w/place\n - Is a git repository: true",
        "  Working directory: /w/place\n",
        "<environment_context>\n  <cwd>/w/place</cwd>",
        "I'm currently working in the directory: /w/place.\n",
    ],
)
def test_a_relative_path_is_below_the_working_directory_that_the_request_names(system: str) -> None:
    read = anthropic("Read", strings("file_path"))
    assert called(ReadFile("a.txt"), request(read, system=system))[1] == {"file_path": "/w/place/a.txt"}
    assert called(ReadFile("/b.txt"), request(read, system=system))[1] == {"file_path": "/b.txt"}


def test_a_command_is_run() -> None:
    run = RunShell("ls -l")
    claude = anthropic("Bash", schema("command", command=WORDS, description=WORDS))
    assert called(run, request(claude)) == ("Bash", {"command": "ls -l", "description": "Run a command"})
    words = responses("shell", schema("command", command={"type": "array"}))
    assert called(run, request(words)) == ("shell", {"command": ["bash", "-lc", "ls -l"]})


def test_a_command_is_run_outside_the_sandbox_where_that_can_be_asked_for() -> None:
    run = RunShell("ls", unconfined=True)
    codex = responses("exec_command", schema("cmd", cmd=WORDS, sandbox_permissions=WORDS))
    _, arguments = called(run, request(codex))
    assert arguments["sandbox_permissions"] == "require_escalated"
    claude = anthropic("Bash", strings("command"))
    assert called(run, request(claude)) == ("Bash", {"command": "ls"})


def test_codes_of_code_mode_call_the_other_tools() -> None:
    made = request(input=[{"type": "additional_tools", "tools": [CODE_MODE]}])
    name, arguments = called(RunShell("ls"), made)
    assert (name, str(arguments["input"]).count('tools.exec_command({"cmd": "ls"})')) == ("exec", 1)
    assert json.dumps(ADDED) in str(called(WRITE, made)[1]["input"])


def test_a_question_is_asked_in_each_agents_form() -> None:
    claude = anthropic("AskUserQuestion", listed("questions", CLAUDE_QUESTION))
    common = {"question": "Which?", "header": "Colour", "options": OPTIONS}
    assert called(ASK, request(claude))[1] == {"questions": [{**common, "multiSelect": False}]}
    codex = responses(
        "request_user_input", listed("questions", strings("question", "header", "options", "id"))
    )
    assert called(ASK, request(codex))[1] == {"questions": [{**common, "id": "question"}]}
    opencode = chat("question", listed("questions", strings("question", "header", "options")))
    assert called(ASK, request(opencode)) == ("question", {"questions": [common]})


def test_a_plan_is_handed_over() -> None:
    plan = ExitPlan("1. Write")
    assert called(plan, request(anthropic("ExitPlanMode", schema()))) == (
        "ExitPlanMode",
        {"plan": "1. Write"},
    )
    assert called(plan, request(chat("plan_exit", schema(x={})))) == ("plan_exit", {})


def test_a_plan_is_text_for_an_agent_that_reads_it_there() -> None:
    made = request(FREEFORM, system="Put the plan in a `<proposed_plan>` block.")
    (part,) = in_its_words(Reply((ExitPlan("1. Write"),)), made).parts
    assert part == Text("<proposed_plan>\n1. Write\n</proposed_plan>\n")


def test_a_todo_list_is_told_in_each_agents_form() -> None:
    opencode = chat("todowrite", listed("todos", strings("content", "status", "priority")))
    assert called(TODO, request(opencode))[1] == {
        "todos": [
            {"content": "Write", "status": "completed", "priority": "medium"},
            {"content": "Check", "status": "pending", "priority": "medium"},
        ]
    }
    codex = responses("update_plan", listed("plan", strings("step", "status")))
    assert called(Todo((("Write", "pending"),)), request(codex)) == (
        "update_plan",
        {"plan": [{"step": "Write", "status": "pending"}]},
    )


def test_a_sub_agent_is_sent() -> None:
    task = SubAgent("Look")
    opencode = chat("task", strings("description", "prompt", "subagent_type"))
    expected = {"description": "Sub task", "prompt": "Look", "subagent_type": "general"}
    assert called(task, request(opencode)) == ("task", expected)
    spawn = responses("spawn_agent", strings("message", "task_name"))
    codex = {"type": "namespace", "name": "collaboration", "tools": [spawn]}
    expected = {"message": "Look", "task_name": "sub_task"}
    assert called(task, request(codex)) == ("collaboration.spawn_agent", expected)


@pytest.mark.parametrize(
    "declared",
    [
        anthropic("mcp__my-files__read_it", schema()),
        chat("my-files_read_it", schema()),
        gemini("mcp_my-files_read_it", schema()),
        {"type": "namespace", "name": "mcp__my-files", "tools": [responses("read_it", schema())]},
    ],
)
def test_a_tool_of_an_mcp_server_is_found_under_any_name(declared: Schema) -> None:
    name, arguments = called(Mcp("my-files", "read_it", {"x": 1}), request(declared))
    assert name.endswith("read_it")
    assert arguments == {"x": 1}


def test_where_no_tool_fits_there_is_no_call() -> None:
    for tool in (WRITE, EDIT, ASK, TODO, ExitPlan("p"), SubAgent("s"), Mcp("a", "b"), RunShell("ls")):
        with pytest.raises(NoSuchTool, match=f"{type(tool).__name__} fits none .* \\(WebFetch\\)"):
            called(tool, request(anthropic("WebFetch", strings("url"))))


async def test_a_tool_that_the_request_does_not_declare_fails_the_test() -> None:
    model = ScriptedModel()
    model.call(ASK)
    await model.__aenter__()
    assert (await ask(model.url)).status == 402
    with pytest.raises(ScriptMismatch, match="request 1, to /v1/messages: AskUser fits none"):
        await model.__aexit__(None, None, None)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/responses"])
async def test_every_wire_is_spoken_on_one_address(path: str) -> None:
    tools = [{**chat("Write", strings("path", "content")), **responses("Write", strings("path", "content"))}]
    message = {"role": "user", "content": "hi"}
    body = {"model": "m", "messages": [message], "input": [message], "tools": tools}
    async with ScriptedModel() as model:
        call = model.call(WRITE)
        answer = await send(model.url, "POST", path, json.dumps(body).encode())
    assert answer.status == 200
    assert call.id.encode() in answer.body


NAMES = st.sampled_from(["file_path", "filePath", "path", "content", "other", "more"])


@given(properties=st.sets(NAMES, min_size=1), data=st.data())
def test_arguments_are_declared_and_whole(properties: set[str], data: st.DataObject) -> None:
    required = data.draw(st.sets(st.sampled_from(sorted(properties))))
    given_schema = schema(*required, **dict.fromkeys(properties, WORDS))
    found = fitting(given_schema, {("file_path", "filePath", "path"): "a", ("content",): "b"})
    assert required <= found.keys() <= properties
    assert sum(value == "a" for value in found.values()) <= 1
