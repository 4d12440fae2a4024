import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.samples import json_values

from legation.errors import InvalidParams
from legation.wire import action as actions
from legation.wire.acp.updates import Diff, ToolCall, ToolCallLocation, ToolCallPatch
from legation.wire.action import (
    FILTERS,
    MAX_DEPTH,
    MAX_NAMES,
    MAX_PLACES,
    NAMES,
    Action,
    _long_digests,
    canonical_path,
    looks_like,
    mcp_tool,
    tool_name,
)

CWD = "/srv/repo"


def action(raw_input: object = msgspec.UNSET, **fields: object) -> Action:
    call = msgspec.structs.replace(ToolCallPatch(tool_call_id="c", raw_input=raw_input), **fields)
    return Action.from_tool_call("claude", call, cwd=CWD, home="/home/me")


def test_an_edit_shows_its_paths_once_and_absolute() -> None:
    call = ToolCall(
        tool_call_id="c",
        title="Edit",
        name="Write",
        kind="edit",
        locations=(ToolCallLocation(path="/srv/repo/a.py"),),
        content=(Diff(path="b.py", new_text=""),),
        raw_input={"file_path": "./sub/../a.py", "content": "x"},
    )
    assert Action.from_tool_call("claude", call, cwd=CWD) == Action(
        agent="claude",
        tool="Write",
        kind="edit",
        params={"file_path": "./sub/../a.py", "content": "x"},
        paths=("/srv/repo/a.py", "/srv/repo/b.py", "/srv/repo/./sub/../a.py"),
    )


@pytest.mark.parametrize(
    ("written", "places"),
    [
        ("a/b", ("/srv/repo/a/b",)),
        ("link/../b", ("/srv/repo/b", "/srv/repo/link/../b")),
        ("~root/b", ("/srv/repo/~root/b", "~root/b")),
        ("file:/etc/b", ("/srv/repo/file:/etc/b", "/etc/b")),
        ("FILE:///etc/b", ("/srv/repo/FILE:/etc/b", "/etc/b")),
        ("file:///srv/link/../b", ("/srv/b", "/srv/link/../b")),
        (" /etc/b", ("/srv/repo/ /etc/b", "/etc/b")),
        ("\tfile:/etc/b ", ("/srv/repo/\tfile:/etc/b ", "/srv/repo/file:/etc/b", "/etc/b")),
    ],
)
def test_a_path_that_programs_read_in_several_ways_is_each_of_them(
    written: str, places: tuple[str, ...]
) -> None:
    assert action({"path": written}).paths == places


def test_a_home_that_is_not_known_stays_so() -> None:
    call = ToolCall(tool_call_id="c", title="Read", kind="read", raw_input={"path": "~/b"})
    assert Action.from_tool_call("claude", call, cwd=CWD).paths == ("/srv/repo/~/b", "~/b")


@pytest.mark.parametrize(
    ("written", "absolute"),
    [
        ("a", "/srv/repo/a"),
        ("../../etc/passwd", "/etc/passwd"),
        ("/../../etc//passwd/", "/etc/passwd"),
        ("//etc/passwd", "/etc/passwd"),
        (".", "/srv/repo"),
        ("~/.ssh/id", "/home/me/.ssh/id"),
        ("~other", "/srv/repo/~other"),
        ("file:///etc/my%20file", "/etc/my file"),
        ("a\udc80", "/srv/repo/a\udc80"),
    ],
)
def test_a_path_is_canonical_without_the_disk(written: str, absolute: str) -> None:
    assert canonical_path(written, cwd=CWD, home="/home/me") == absolute


@pytest.mark.parametrize(
    ("raw_input", "command"),
    [
        ({"command": "ls -l"}, "ls -l"),
        ({"command": ["rm", "-rf", "a b"]}, "rm -rf 'a b'"),
        ({"command": "rm", "args": ["-rf", "/"]}, "rm -rf /"),
        ({"cmd": "ls"}, "ls"),
        ({"command": []}, None),
        ({"command": 7}, None),
        ("ls", None),
    ],
)
def test_a_command_is_one_shell_line(raw_input: object, command: str | None) -> None:
    assert action(raw_input, kind="execute").command == command


def test_what_is_written_as_json_in_one_counts_by_its_names() -> None:
    found = action({"path": "a", "arguments": '{"path": "/etc/p", "command": "rm -rf /"}'})
    assert found.paths == ("/srv/repo/a", "/etc/p")
    assert found.commands == ("rm -rf /",)
    assert found.params["arguments"] == '{"path": "/etc/p", "command": "rm -rf /"}'


def test_what_shows_a_change_is_an_edit() -> None:
    shown = (Diff(path="/srv/repo/a", new_text="new"),)
    for kind in ("read", "search", "think"):
        call = ToolCall(tool_call_id="c", title="Look", kind=kind, content=shown)
        assert Action.from_tool_call("claude", call, cwd=CWD).kind == "edit"


def test_urls_are_collected_and_those_of_files_are_paths_too() -> None:
    found = action(
        {"url": "https://a.test", "urls": ["https://b.test", "https://a.test"], "uri": "file:///x"}
    )
    assert found.urls == ("https://a.test", "https://b.test", "file:///x")
    assert found.paths == ("/x",)


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("mcp__github__create_issue", "github.create_issue"),
        ("mcp__my-files__read__deep", "my-files.read__deep"),
        ("github.create_issue", "github.create_issue"),
        ("mcp__github", "mcp__github"),
        ("Bash", "Bash"),
    ],
)
def test_an_mcp_tool_is_always_server_dot_tool(name: str, tool: str) -> None:
    assert tool_name(name) == tool
    assert mcp_tool("github", "create_issue") == "github.create_issue"


def test_without_a_name_the_kind_stands_in() -> None:
    assert action(title="Write a.py", kind="edit").tool == "edit"
    assert action(title="mcp__github__get", kind="fetch").tool == "github.get"
    assert action().tool == "other"


def test_a_command_line_cannot_pass_for_a_tool() -> None:
    assert action(title="mcp__github__get", kind="execute").tool == "execute"


def test_the_digest_ignores_the_order_of_keys_and_binds_everything_else() -> None:
    base = Action(agent="a", tool="t", params={"x": 1, "y": [1, 2]})
    same = Action(agent="a", tool="t", params={"y": [1, 2], "x": 1})
    others = [
        Action(agent="b", tool="t", params=base.params),
        Action(agent="a", tool="u", params=base.params),
        Action(agent="a", tool="t", params={"x": 1, "y": [2, 1]}),
        Action(agent="a", tool="t", params={"x": "1", "y": [1, 2]}),
    ]
    assert base.digest("v1") == same.digest("v1")
    digests = {base.digest("v1"), base.digest("v2"), *(other.digest("v1") for other in others)}
    assert len(digests) == 2 + len(others)


def test_the_digest_is_the_same_in_every_version_of_legation() -> None:
    canonical = rb'{"agent":"a","params":{"x":"\u00fc"},"policy":"v1","tool":"t"}'
    assert (
        Action(agent="a", tool="t", params={"x": "ü"}).digest("v1") == hashlib.sha256(canonical).hexdigest()
    )


def test_long_arguments_are_gone_through_once_for_any_number_of_digests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One decision takes some four of them."""
    written: list[int] = []
    encode = actions._encode

    def counted(value: object) -> str:
        text = encode(value)
        written.append(len(text))
        return text

    monkeypatch.setattr(actions, "_encode", counted)
    params = {"x": "ü" * 100_000}
    long = Action(agent="a", tool="t", params=params)
    found = [long.digest(version) for version in ("", "v1", "v2", "v1")]
    assert [size for size in written if size > 1000] == [max(written)]
    plain = [
        json.dumps({"agent": "a", "params": params, "policy": version, "tool": "t"}, separators=(",", ":"))
        for version in ("", "v1", "v2", "v1")
    ]
    assert found == [hashlib.sha256(text.encode()).hexdigest() for text in plain]
    assert Action(agent="a", tool="t", params={"x": "ü" * 100_001}).digest() != found[0]
    del long
    assert not _long_digests


def test_actions_without_arguments_do_not_share_a_digest() -> None:
    assert action(title="Write a.py").digest() != action(title="Write b.py").digest()
    one, two = (action(content=(Diff(path="/a", new_text=text),)) for text in "xy")
    assert one.digest() != two.digest()


def test_an_action_survives_the_wire() -> None:
    wanted = action({"command": "ls", "url": "https://a.test"}, kind="execute")
    assert msgspec.json.decode(msgspec.json.encode(wanted), type=Action) == wanted


def nested(depth: int) -> object:
    value: object = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_arguments_nested_too_deep_are_refused() -> None:
    assert action({"a": nested(MAX_DEPTH - 2)}).digest()
    with pytest.raises(InvalidParams, match=r"^cannot judge a tool call of claude"):
        action({"a": nested(MAX_DEPTH)})


@given(json_values)
def test_any_input_gives_an_action_with_a_digest(raw_input: object) -> None:
    made = action(raw_input)
    assert len(made.digest()) == 64
    assert all(path.startswith(("/", "~")) for path in made.paths)  # `~` where no home is known
    assert isinstance(made.params, Mapping)
    if raw_input is not None:
        assert json.dumps(made.params) == json.dumps(
            raw_input if isinstance(raw_input, dict) else {"input": raw_input}
        )


def test_a_malformed_file_address_is_refused() -> None:
    with pytest.raises(InvalidParams, match="malformed"):
        canonical_path("file://[x", cwd="/srv")


# Every recognised name counts, at any depth, and what only looks like one makes the call unclear.


@pytest.mark.parametrize(
    ("params", "paths"),
    [
        ({"paths": ["ok", {"p": "/etc/p"}]}, ("/srv/repo/ok", "/etc/p")),
        ({"path": "ok", "filename": "/etc/p"}, ("/srv/repo/ok", "/etc/p")),
        ({"path": "ok", "target": "/etc/p"}, ("/srv/repo/ok", "/etc/p")),
        ({"path": "ok", "File-Path": "/etc/p"}, ("/srv/repo/ok", "/etc/p")),
        ({"path": "ok", "edits": [{"path": "/etc/p", "newText": "x"}]}, ("/srv/repo/ok", "/etc/p")),
        ({"a": {"b": [{"c": {"filePath": "/etc/p"}}]}}, ("/etc/p",)),
        ({"files": {"/etc/p": "what it holds"}}, ("/etc/p", "/srv/repo/what it holds")),
        ({"changes": {"README.md": {"type": "delete"}, "/etc/p": {}}}, ("/srv/repo/README.md", "/etc/p")),
        (
            {"changes": [{"path": "a", "kind": {"move_path": "/etc/p"}, "diff": "-/x"}]},
            ("/srv/repo/a", "/etc/p"),
        ),
        ({"command": "ls", "cwd": "/srv/repo/"}, ()),
        ({"command": "ls", "cwd": "/etc"}, ("/etc",)),
        ({"patchText": "*** Begin Patch\n*** Update File: /etc/p\n*** End Patch"}, ("/etc/p",)),
        ({"content": "/etc/p", "old_string": "/a", "newString": "/b"}, ()),
    ],
)
def test_a_path_counts_under_every_name_that_means_one(
    params: dict[str, object], paths: tuple[str, ...]
) -> None:
    found = action(params, name="t", kind="edit")
    assert found.paths == paths
    assert not found.unclear


def test_the_pattern_of_a_search_for_names_is_a_path_where_it_leaves_its_folder() -> None:
    assert action({"pattern": "**/*.py", "path": "src"}, name="Glob").paths == ("/srv/repo/src",)
    outside = action({"pattern": "/etc/**/p*", "path": "src"}, name="Glob")
    assert outside.paths == ("/etc", "/srv/repo/src")
    assert outside.unclear == ("pattern",)
    assert action({"pattern": "../../*", "path": "src"}, name="Glob").unclear == ("pattern",)
    assert action({"pattern": "/etc/*", "path": "src"}, name="files.find").unclear == ("pattern",)
    assert not action({"pattern": "/api/v1", "path": "src", "glob": "src/**/*.ts"}, name="Grep").unclear


@pytest.mark.parametrize(
    ("params", "commands"),
    [
        ({"command": "ls", "cmd": "rm -rf /"}, ("ls", "rm -rf /")),
        ({"cmd": "rm -rf /", "command": "ls"}, ("rm -rf /", "ls")),
        ({"command": "ls", "options": {"script": "rm -rf /"}}, ("ls", "rm -rf /")),
        ({"commands": ["ls", "rm -rf /"]}, ("ls", "rm -rf /")),
        ({"commands": [{"run": "rm -rf /"}]}, ("rm -rf /",)),
        ({"command": ["ls", {"then": "rm -rf /"}]}, ("ls", "rm -rf /")),
        ({"command": "git", "args": "push --force"}, ("git push --force",)),
        ({"command": "git", "arguments": ["push", "a b"]}, ("git push 'a b'",)),
        ({"argv": ["rm", "-rf", "/"]}, ("rm -rf /",)),
    ],
)
def test_every_command_of_a_call_counts(params: dict[str, object], commands: tuple[str, ...]) -> None:
    found = action(params, kind="execute")
    assert found.commands == commands
    assert (found.command, *found.other_commands) == commands


@pytest.mark.parametrize(
    ("params", "unclear"),
    [
        ({"path": "a", "whither": "/etc/p"}, ("whither",)),
        ({"whither": "~/.ssh/id"}, ("whither",)),
        ({"whither": "../p"}, ("whither",)),
        ({"whither": "src/p"}, ("whither",)),
        ({"whither": ".env"}, ("whither",)),
        ({"whither": "C:\\p"}, ("whither",)),
        ({"a": {"b": ["x", "/etc/p"]}}, ("a.b",)),
        ({"whither": " /etc/p"}, ("whither",)),
        ({"whither": "a b/../../p"}, ("whither",)),
        ({"where": "\nhttps://evil.test/x"}, ("where",)),
        ({"run": "\n rm -rf /"}, ("run",)),
        ({"run": "A=1 rm -rf /"}, ("run",)),
        ({"packed": '{"whither": "/etc/p", "n": 1}'}, ("packed.whither",)),
        ({"packed": '["[ \\"/etc/p\\" ]"]'}, ("packed",)),
        ({"packed": "[" * 30 + "1" + "]" * 30}, ("packed",)),
        ({"packed": '{"title": "/etc/p", "n": [1, 2]}'}, ()),
        ({"command": "ls", "env": {"LD_PRELOAD": "x.so"}}, ("env",)),
        ({"command": "ls", "env": {}}, ()),
        ({"command": "ls", "args": ["-l", "; rm -rf /"]}, ("args",)),
        ({"command": "git", "args": ["commit", "-m", "git is fun"]}, ()),
        ({"run": "rm -rf /"}, ("run",)),
        ({"run": "true && false"}, ("run",)),
        ({"command": ["ls", "rm -rf /"]}, ("command",)),
        ({"command": ["bash", "-lc", "rm -rf /"]}, ()),
        ({"command": ["git", "commit", "-m", "git is fun"]}, ()),
        ({"run": "#!/bin/sh\nreboot"}, ("run",)),
        ({"where": "https://evil.test/x"}, ("where",)),
        ({"path": "https://evil.test/x"}, ("path",)),
        ({"url": "/etc/p"}, ("url",)),
        ({"file": "two\nlines"}, ("file",)),
        ({"content": {"place": "/etc/p"}}, ("content.place",)),
        ("/etc/p", ("input",)),
        ({"name": "claude", "count": 3, "note": "make it so; then rest", "to": ["a@b.test"]}, ()),
        ({"title": "/etc/p", "body": "rm -rf / && ls", "query": "https://a.test"}, ()),
        ({"amount": 5, "ok": True, "nothing": None, "word": "README"}, ()),
    ],
)
def test_what_looks_like_a_place_under_a_name_that_says_nothing_is_unclear(
    params: object, unclear: tuple[str, ...]
) -> None:
    assert action(params).unclear == unclear


@given(
    st.from_regex(
        r"(?is)([a-z0-9+.:/ -]|w|\t|\u212a|\xa0|\u0131){0,12}(://)?[a-z./ \n\x1c-]{0,6}", fullmatch=True
    )
)
def test_an_address_is_what_the_expression_says_at_any_length(text: str) -> None:
    """The expression itself took twelve milliseconds for a text of a megabyte: the loop's."""
    address = re.compile(r"[a-z][a-z0-9+.-]*://\S*|www\.\S+", re.ASCII | re.IGNORECASE)
    assert (looks_like(text) == "url") == bool(address.fullmatch(text.strip()))
    longer = text + "x" * 5000
    assert (looks_like(longer) == "url") == bool(address.fullmatch(longer.strip()))


def test_what_is_declared_is_that_and_nothing_else() -> None:
    call = ToolCall(
        tool_call_id="c",
        title="",
        name="t",
        raw_input={
            "whither": "/etc/p",
            "run": "ls",
            "file": "/not/a/path",
            "a": [{"b": "/b"}],
            "free": {"x": "/y"},
        },
    )
    found = Action.from_tool_call(
        "claude",
        call,
        cwd=CWD,
        declared={"whither": "path", "run": "command", "file": "text", "a.b": "path", "free": "text"},
    )
    assert (found.paths, found.commands, found.unclear) == (("/etc/p", "/b"), ("ls",), ())


@pytest.mark.parametrize(
    "params",
    [
        {"paths": ["/a"] * (MAX_PLACES + 1)},
        {"paths": [f"/{'a' * 4000}"] * 40},
        {"commands": ["ls"] * (MAX_PLACES + 1)},
        {"urls": ["https://a.test"] * (MAX_PLACES + 1)},
        {"files": {f"/{at}": "" for at in range(MAX_PLACES + 1)}},
    ],
)
def test_more_places_than_can_be_judged_are_refused(params: dict[str, object]) -> None:
    with pytest.raises(InvalidParams, match=r"^cannot judge a tool call of claude that names more than"):
        action(params)


def test_more_locations_than_can_be_judged_are_refused() -> None:
    places = tuple(ToolCallLocation(path=f"/{at}") for at in range(MAX_PLACES + 1))
    with pytest.raises(InvalidParams, match=r"^cannot judge a tool call of claude that names more than"):
        action(locations=places)


def test_more_text_than_can_be_looked_at_is_unclear() -> None:
    assert action({str(at): "word " * 800 for at in range(60)}).unclear == ()
    assert action({str(at): "word " * 800 for at in range(80)}).unclear == ("...",)
    assert action({"packed": json.dumps(["two words"] * 30_000)}).unclear == ("...",)


@pytest.mark.parametrize(
    "params",
    [
        {f"k{at}": at for at in range(MAX_NAMES)},
        {"x": [[]] * MAX_NAMES},
        {"glob": [{}] * MAX_NAMES},
    ],
    ids=["names", "lists", "maps"],
)
def test_more_arguments_than_can_be_looked_at_are_refused(params: dict[str, object]) -> None:
    with pytest.raises(InvalidParams, match=r"^cannot judge a tool call of claude with more than"):
        action(params)


def test_too_many_arguments_are_counted_and_not_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("legation.wire.action._Arguments")
    with pytest.raises(InvalidParams, match=r"with more than"):
        action({"x": [{"a": 1}] * MAX_NAMES})


class Counted(dict[str, object]):
    """Says how often it was gone through."""

    walks = 0

    def __iter__(self) -> Iterator[str]:
        self.walks += 1
        return super().__iter__()


def test_arguments_of_many_names_for_one_thing_are_gone_through_once() -> None:
    spelt = ("args" + format(at, "b").replace("0", "_").replace("1", "-") for at in range(500))
    params = Counted(dict.fromkeys(spelt, "x"))
    assert action(params).commands == ()
    assert 0 < params.walks < 10


def test_a_line_of_a_patch_takes_no_longer_than_it_is_long() -> None:
    """A search that looks for its end from each blank anew would be at it when this machine is scrap."""
    patch = f"*** Begin Patch\n*** Update File: a{' ' * 120_000}b\n*** Add File: c.py \t\r\n"
    assert len(action({"patch": patch}).paths) == 2
    assert f"{CWD}/c.py" in action({"patch": patch}).paths


def test_the_names_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "policy.md").read_text()
    rows = {
        cells[1].strip(): {name.strip("` ") for name in cells[2].split(",")}
        for line in page.splitlines()
        if line.startswith("| ") and len(cells := line.split("|")) == 4
    }
    for sort, names in NAMES.items():
        assert rows[sort] == set(names)
    assert rows["filter"] == set(FILTERS)
