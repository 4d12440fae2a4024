"""Flags, tools, threads and trust, each by itself."""

import json
from pathlib import Path

import pytest
from tests.agents.amp.stand_in_agent import HELP

from legation.agents.amp import options as flags
from legation.agents.amp.launch import refuse_untrusted, write_settings
from legation.agents.amp.options import read_flags, refused_option
from legation.agents.amp.session import Threads
from legation.agents.amp.tools import described, is_local
from legation.agents.amp.translate import AmpTranslator
from legation.errors import AgentError, Forbidden, Unavailable
from legation.wire.acp.updates import Content, Diff, Text
from legation.wire.action import Action
from tools import schemas

PATCH = """*** Begin Patch
*** Add File: new.txt
+one
+two
*** Update File: old.txt
*** Move to: newer.txt
@@
-a
+b
*** Delete File: gone.txt
*** End Patch"""


def test_flags_are_read_from_the_help() -> None:
    found = read_flags(HELP)
    assert found.modes == ("low", "medium", "high")
    assert {"-x", "--execute", "-m", "--mode", "--stream-json-input"} <= found.options
    assert {"threads", "continue", "plugins", "permissions"} <= found.commands
    assert not found.without("--settings-file").has_permissions


def test_what_the_driver_uses_is_in_the_published_inventory(tmp_path: Path) -> None:
    """A renewed inventory that lacks one of these tells that Amp has changed."""
    published = json.loads((Path(schemas.__file__).parent / "published" / "amp.json").read_text())
    told = published["definitions"]
    options = {name for names in told["options"] for name in names.split(", ")}
    assert {"-x", flags.STREAM, flags.THINKING, flags.INPUT, flags.SETTINGS, flags.PLUGIN_WAIT} <= options
    assert {flags.MODE, flags.EXECUTOR, *flags.QUIET} <= options
    assert {"plugins", "permissions", "threads continue"} <= told["commands"].keys()
    assert "'AMP_REMOTE_CONTROL_TERMINAL'" in told["variables"]
    settings = json.loads(write_settings(tmp_path, tmp_path, ()).read_text())
    assert [name for name in settings if f"'{name}'" not in told["settings"]] == []


def test_a_program_that_is_no_amp_is_refused() -> None:
    with pytest.raises(AgentError, match="names no --execute"):
        read_flags("Usage: another [options]\n\n  --help\n")


@pytest.mark.parametrize(
    ("said", "option"),
    [
        ("Error: error: unknown option '--stream-json-thinking'\n", "--stream-json-thinking"),
        ("error: unknown option '-m'", "-m"),
        ("Error: out of credits", None),
    ],
)
def test_an_option_that_it_does_not_take_is_read_from_its_complaint(said: str, option: str | None) -> None:
    assert refused_option(said) == option


@pytest.mark.parametrize(
    ("name", "given", "kind", "paths", "command"),
    [
        ("shell_command", {"command": "rm -r x"}, "execute", (), "rm -r x"),
        ("Bash", {"cmd": "ls", "cwd": "/w"}, "execute", (), "ls"),
        ("edit_file", {"path": "/w/a", "old_str": "1", "new_str": "2"}, "edit", ("/w/a",), None),
        ("delete_file", {"path": "/w/a"}, "delete", ("/w/a",), None),
        (
            "apply_patch",
            {"patchText": PATCH},
            "delete",
            ("/w/new.txt", "/w/old.txt", "/w/newer.txt", "/w/gone.txt"),
            None,
        ),
        ("mcp__files__read", {"path": "/x"}, "other", ("/x",), None),
        ("Read", None, "read", (), None),
    ],
)
def test_a_policy_sees_what_a_call_touches(
    name: str, given: object, kind: str, paths: tuple[str, ...], command: str | None
) -> None:
    action = Action.from_tool_call("amp", described("t1", name, given), cwd="/w")
    assert (action.kind, action.paths, action.command) == (kind, paths, command)


def test_a_patch_shows_what_it_adds_and_how_it_changes() -> None:
    added, changed = described("t1", "apply_patch", {"patchText": PATCH}).content or ()
    assert added == Diff(path="new.txt", new_text="one\ntwo\n")
    assert changed == Content(content=Text(text=PATCH))


def test_a_patch_that_deletes_is_no_mere_edit() -> None:
    assert described("t", "apply_patch", {"patchText": PATCH}).kind == "delete"
    edits = PATCH.replace("*** Delete File: gone.txt\n", "")
    assert described("t", "apply_patch", {"patchText": edits}).kind == "edit"
    assert described("t", "shell_command", {"command": PATCH}).kind == "execute"


def test_what_acts_on_this_machine_is_known() -> None:
    assert [is_local(name) for name in ("shell_command", "apply_patch", "mcp__a__b")] == [True] * 3
    assert [is_local(name) for name in ("web_search", "Read", "oracle", "")] == [False] * 4


def test_a_result_that_failed_says_why() -> None:
    line = b'{"type":"result","subtype":"error_during_execution","is_error":true,"error":"no credits"}'
    message = AmpTranslator().take(line).message
    assert getattr(message, "result", None) == "no credits"


def test_a_thread_is_found_again(tmp_path: Path) -> None:
    threads = Threads(tmp_path)
    session = threads.begin()
    assert threads.find(session) == ""
    threads.keep(session, "T-1")
    assert Threads(tmp_path).find(session) == "T-1"
    assert threads.find("T-5928a90d") == "T-5928a90d"
    assert threads.find("amp_other") is None
    assert threads.find("../" + session) is None


def test_a_home_that_takes_nothing_is_told(tmp_path: Path) -> None:
    (tmp_path / ".config").write_text("")
    with pytest.raises(Unavailable, match="cannot keep the thread"):
        Threads(tmp_path).begin()


@pytest.mark.parametrize("name", ["settings.json", "settings.jsonc", "plugins"])
def test_a_repositorys_configuration_is_refused_from_its_root_down(name: str, tmp_path: Path) -> None:
    root = tmp_path / "repository"
    inner = root / "a" / "b"
    inner.mkdir(parents=True)
    (root / ".git").mkdir()
    refuse_untrusted(inner)
    (root / ".amp" / name).mkdir(parents=True)
    with pytest.raises(Forbidden, match="legation trust"):
        refuse_untrusted(inner)
    (root / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    for part in ("objects", "refs"):
        (root / ".git" / part).mkdir()
    (inner / ".git").mkdir()  # which git takes for none
    with pytest.raises(Forbidden, match="legation trust"):
        refuse_untrusted(inner)
    (root / "a" / ".git").write_text("gitdir: elsewhere")
    refuse_untrusted(inner)


def test_other_files_of_amps_are_text_and_may_stay(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".amp").mkdir()
    (tmp_path / ".amp" / "notes.md").write_text("")
    refuse_untrusted(tmp_path)
