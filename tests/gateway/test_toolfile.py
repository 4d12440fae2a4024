from pathlib import Path
from textwrap import dedent

import pytest

from legation.errors import ConfigInvalid, NotFound
from legation.gateway.toolfile import read_tools
from legation.gateway.tools import HttpSpec, Toolbox
from legation.redact import Redactor
from legation.secret import Secret

KEY = "sk-4711-very-secret"


def specs(folder: Path, text: str, **environ: str) -> list[HttpSpec]:
    file = folder / "tools.yaml"
    file.write_text(dedent(text))
    return read_tools(file, environ, Redactor())


def problems(folder: Path, text: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigInvalid, match="cannot use the tools") as caught:
        specs(folder, text, **environ)
    assert caught.value.data is not None
    lines = caught.value.data["problems"]
    assert isinstance(lines, list)
    return [str(line).removeprefix(f"{folder}/") for line in lines]


def test_a_tool_with_all_that_it_can_have(tmp_path: Path) -> None:
    text = """
        tools:
          - name: github.create_issue
            url: https://api.example.com/issues?v=1
            method: PUT
            kind: edit
            timeout: 5s
            headers:
              Authorization: {env: GITHUB}
              X-Team: platform
            max_answer: 2048
            folder: /srv/project
          - {name: clock, url: "http://127.0.0.1:9/now"}
    """
    first, second = specs(tmp_path, text, GITHUB=f"Bearer {KEY}")
    assert first == HttpSpec(
        name="github.create_issue",
        url="https://api.example.com/issues?v=1",
        method="PUT",
        kind="edit",
        timeout=5.0,
        headers={"Authorization": Secret(f"Bearer {KEY}", "GITHUB"), "X-Team": "platform"},
        max_answer=2048,
        folder="/srv/project",
    )
    assert KEY not in repr(first)
    assert second == HttpSpec(name="clock", url="http://127.0.0.1:9/now")
    assert (second.method, second.kind, second.timeout, second.max_answer) == ("POST", "other", 30.0, 1 << 20)


def test_a_tool_says_what_its_arguments_are(tmp_path: Path) -> None:
    text = "tools:\n- {name: a, url: 'http://a', arguments: {file: path, run.line: command, page: url, note: text}}\n"
    [spec] = specs(tmp_path, text)
    assert spec.arguments == {"file": "path", "run.line": "command", "page": "url", "note": "text"}
    told = problems(tmp_path, "tools:\n- {name: a, url: 'http://a', arguments: {file: pth, 'a b': path}}\n")
    assert [each.partition(": ")[2] for each in told] == [
        "unknown sort of argument 'pth'; did you mean 'path'?",
        "'a b' is no argument's name; write it as in the call, nested ones with dots",
    ]


def test_the_folder_of_a_tool_is_the_one_that_its_path_leads_to(tmp_path: Path) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
    [spec] = specs(tmp_path, f"tools:\n- {{name: a, url: 'http://a', folder: {tmp_path}/link/../x//.}}\n")
    assert spec.folder == str(tmp_path / "real" / "x")


def test_every_problem_is_told_at_once_with_its_line(tmp_path: Path) -> None:
    text = """\
        tools:
          - name: a.b
            url: ftp://example.com/
            metod: POST
          - name: a b
            url: https://example.com/
            method: post
          - url: https://example.com/
            timeout: 0s
    """
    assert problems(tmp_path, text) == [
        "tools.yaml:3: `url` is no address of http or https; write one like https://example.com/tool",
        "tools.yaml:4: unknown key of a tool 'metod'; did you mean 'method'?",
        "tools.yaml:5: `name` is no tool's name; write letters, digits, `_`, `-` and `.`, at most 128",
        "tools.yaml:7: unknown method 'post'; did you mean 'POST'?",
        "tools.yaml:8: `name` of the tool is missing; write it",
        'tools.yaml:9: `timeout` is no duration up to 1 days; write one like "30s", "5m" or "2h"',
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("kind: edits", "did you mean 'edit'"),
        ("timeout: 30", "is no duration"),
        ("timeout: 25h", "is no duration"),
        ("max_answer: 0", "no whole number"),
        ("max_answer: 999999999", "is above"),
        ("folder: project", "no absolute path"),
        ("headers: [a]", "is no map"),
        ("headers: {Authorization: Bearer abcdef}", "stands in the file"),
        ("headers: {x-api-key: abcdef}", "stands in the file"),
        ("headers: {Host: example.com}", "set by Legation"),
        ("headers: {Idempotency-Key: same}", "set by Legation"),
        ("headers: {'X Team': a}", "no name of a header"),
        ('headers: {X-Team: "a\\r\\nX-Evil: b"}', "characters that no header can have"),
        ("headers: {X-Team: a, x-team: b}", "is here twice"),
        ("headers: {X-Key: {env: MISSING}}", "MISSING is not set"),
        ("headers: {X-Key: {env: EMPTY}}", "EMPTY is not set"),
        ("headers: {X-Key: {env: BROKEN}}", "no header can have"),
        ("headers: {X-Key: {env: SHORT}}", "shorter than 6 bytes"),
        ("headers: {X-Key: {env: 'a b'}}", "no name of a variable"),
        ("headers: {X-Key: {envv: KEY}}", "did you mean 'env'"),
    ],
)
def test_what_is_wrong_with_one_line_is_said(tmp_path: Path, line: str, says: str) -> None:
    text = f"tools:\n  - name: a.b\n    url: https://example.com/\n    {line}\n"
    found = problems(tmp_path, text, EMPTY=" ", BROKEN="abc\ndefghi", SHORT="abc")
    assert all(each.startswith("tools.yaml:4: ") for each in found)
    assert says in found[0]


@pytest.mark.parametrize(
    "url",
    [
        "example.com/x",
        "https:///x",
        "https://user:hunter22@example.com/",
        "https://example.com/#part",
        "https://example.com:99999/",
        "https://exämple.com/",
        "https://example.com/a b",
        "file:///etc/passwd",
    ],
)
def test_an_address_that_is_none_is_refused_and_not_repeated(tmp_path: Path, url: str) -> None:
    (found,) = problems(tmp_path, f"tools:\n  - {{name: a, url: '{url}'}}\n")
    assert found.startswith("tools.yaml:2: `url` ")
    assert "hunter22" not in found


def test_a_name_is_here_once_and_as_policies_know_it(tmp_path: Path) -> None:
    tool = "{name: %s, url: 'https://example.com/'}"
    (twice,) = problems(tmp_path, f"tools:\n  - {tool % 'a.b'}\n  - {tool % 'a.b'}\n")
    assert twice == "tools.yaml:3: the tool 'a.b' is here twice; leave one of them out"
    (claudes,) = problems(tmp_path, f"tools:\n  - {tool % 'mcp__github__create'}\n")
    assert "write that" in claudes
    assert "'github.create'" in claudes


@pytest.mark.parametrize("text", ["", "tools: []", "tool: []", "- a", "{", "tools: {a: b}"])
def test_a_file_without_tools_is_refused(tmp_path: Path, text: str) -> None:
    assert problems(tmp_path, text)


def test_a_file_that_is_not_there_or_none_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.yaml", tmp_path):
        with pytest.raises(ConfigInvalid, match="is no file"):
            Toolbox.load(path, {})
    (tmp_path / "latin.yaml").write_bytes(b"tools:\n  - name: \xe4\n")
    with pytest.raises(ConfigInvalid, match=r"latin\.yaml:2: not UTF-8"):
        Toolbox.load(tmp_path / "latin.yaml", {})


async def test_without_a_file_there_are_no_tools() -> None:
    async with Toolbox.load(None, {}) as toolbox:
        assert toolbox.names == ()
        assert toolbox.get("a.b") is None
        with pytest.raises(NotFound):
            toolbox.find("a.b")


async def test_a_tool_is_found_by_its_whole_name_only(tmp_path: Path) -> None:
    file = tmp_path / "tools.yaml"
    file.write_text("tools:\n  - {name: a.bc, url: 'https://example.com/', headers: {X-Key: {env: KEY}}}\n")
    async with Toolbox.load(file, {"KEY": KEY}) as toolbox:
        assert toolbox.names == ("a.bc",)
        assert toolbox.secrets == (Secret(KEY, "KEY"),)
        assert toolbox.find("a.bc").name == "a.bc"
        for near in ("a.b", "A.bc", "a.bc ", "", "bc", "a.*"):
            assert toolbox.get(near) is None
