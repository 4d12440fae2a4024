"""The small pieces: diffs, settings, rules, turns, prompts, and what a folder must not bring."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from legation.agents.native import PendingReply
from legation.agents.opencode import turn as turns
from legation.agents.opencode.launch import (
    CONTENT,
    PASSWORD,
    home_must_bring_no_code,
    must_bring_no_code,
    serve,
    settings,
)
from legation.agents.opencode.messages import (
    CacheTokens,
    OpenCodeTokens,
    PermissionRule,
    Retry,
    StepFinishPart,
)
from legation.agents.opencode.options import asks
from legation.agents.opencode.tools import Names, kind_of, patch_diffs
from legation.agents.opencode.translate import prompt_parts
from legation.agents.opencode.turn import OpenCodeTurn
from legation.errors import ConfigInvalid, Forbidden
from legation.proc import Command
from legation.wire.acp.updates import EmbeddedResource, Image, ResourceContents, ResourceLink, Text

CHANGED = """Index: /w/a.txt
===================================================================
--- /w/a.txt
+++ /w/a.txt
@@ -1,2 +1,2 @@
 same
-old
+new
\\ No newline at end of file
Index: /w/b.txt
===================================================================
--- /w/b.txt
+++ /w/b.txt
@@ -0,0 +1,1 @@
+b
"""


def test_a_unified_diff_tells_old_and_new_of_each_file() -> None:
    told = [(diff.path, diff.old_text, diff.new_text) for diff in patch_diffs(CHANGED)]
    assert told == [("/w/a.txt", "same\nold\n", "same\nnew"), ("/w/b.txt", None, "b\n")]
    assert patch_diffs("no diff at all") == ()


def test_settings_that_were_given_stay_and_the_rules_are_ours() -> None:
    given = json.dumps({"model": "p/m", "permission": "allow", "agent": {"plan": {"model": "p/n"}}})
    made = settings(given, trusted=False)
    assert made["model"] == "p/m"
    assert made["permission"]["*"] == "ask"
    assert made["agent"]["plan"]["model"] == "p/n"
    assert made["agent"]["plan"]["permission"]["edit"]["*"] == "deny"
    assert (made["formatter"], made["lsp"]) == (False, False)
    assert "formatter" not in settings(given, trusted=True)


@pytest.mark.parametrize("given", ["{", "[]", "1"])
def test_settings_that_are_none_are_refused(given: str) -> None:
    with pytest.raises(ConfigInvalid, match="no JSON object"):
        settings(given, trusted=True)


def test_the_server_starts_in_its_home_with_a_password_and_only_what_counts(tmp_path: Path) -> None:
    command = Command(("opencode",), Path("/somewhere"), {"HOME": str(tmp_path)}, "opencode")
    started = serve(command, trusted=False, password="secret")
    assert started.argv == ("opencode", "serve", "--port", "0", "--hostname", "127.0.0.1")
    assert (started.cwd, started.env[PASSWORD]) == (tmp_path, "secret")
    assert started.env["OPENCODE_DISABLE_PROJECT_CONFIG"] == "1"
    assert json.loads(started.env[CONTENT])["share"] == "disabled"
    assert "OPENCODE_DISABLE_PROJECT_CONFIG" not in serve(command, trusted=True, password="x").env


def _rules(*told: str) -> tuple[PermissionRule, ...]:
    read = [each.split() for each in told]
    return tuple(PermissionRule(permission=one, pattern=two, action=three) for one, two, three in read)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (("* * allow",), False),
        (("* * allow", "* * ask"), True),
        (("* * ask", "todowrite * allow"), True),
        (("* * ask", "bash git* allow"), False),
        (("* * ask", "* * allow"), False),
        (("* * deny", "read * ask"), True),
        ((), False),
    ],
)
def test_an_agent_asks_only_if_nothing_that_matters_is_allowed_last(
    rules: tuple[str, ...], expected: bool
) -> None:
    assert asks(_rules(*rules)) is expected


def test_a_tool_of_an_mcp_server_is_named_after_it() -> None:
    names = Names(("my files", "my"))
    assert names.of("my_files_touch") == "mcp__my_files__touch"
    assert names.of("my_touch") == "mcp__my__touch"
    assert names.of("bash") == "bash"


def test_a_prompt_carries_files_images_and_text() -> None:
    made = prompt_parts(
        (
            Text(text="look"),
            Image(data="QQ==", mime_type="image/png"),
            ResourceLink(name="a.txt", uri="file:///w/a.txt"),
            ResourceLink(name="page", uri="https://example.org"),
            EmbeddedResource(resource=ResourceContents(uri="file:///w/b.txt", text="words")),
        )
    )
    assert [part["type"] for part in made] == ["text", "file", "file", "text", "text"]
    assert made[1]["url"] == "data:image/png;base64,QQ=="
    assert (made[2]["url"], made[2]["mime"]) == ("file:///w/a.txt", "text/plain")


async def test_answers_without_an_end_are_counted_until_a_tool_is_called() -> None:
    turn = OpenCodeTurn(PendingReply(), frozenset())
    for number, called in enumerate([False, False, True, False, False]):
        turn.finished_step(_step(number), called=called)
        turn.finished_step(_step(number), called=called)  # told again after a gap
    assert _cut(turn) == ""
    turn.finished_step(_step(9), called=False)
    assert "ended 3 times without its end" in _cut(turn)


async def test_a_retry_is_waited_for_within_reason() -> None:
    turn = OpenCodeTurn(PendingReply(), frozenset())
    soon = int(time.time() * 1000)
    turn.retried(Retry(attempt=turns.RETRY_LIMIT - 1, message="busy", next=soon))
    assert _cut(turn) == ""
    turn.retried(Retry(attempt=turns.RETRY_LIMIT, message="busy", next=soon))
    assert "was stopped" in _cut(turn)
    far = OpenCodeTurn(PendingReply(), frozenset())
    far.retried(Retry(attempt=1, message="busy", next=soon + 3_600_000))
    assert "was stopped" in _cut(far)


def _cut(turn: OpenCodeTurn) -> str:
    return turn.cut.error.message if turn.cut else ""


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (".opencode/plugin/evil.js", ""),
        (".opencode/plugins/evil.ts", ""),
        ("opencode.json", '{"plugin": ["evil"]}'),
        (".opencode/opencode.jsonc", '{"\\u0070lugins" : ["evil"]}'),
    ],
)
def test_a_folder_that_brings_plugins_is_refused(tmp_path: Path, file: str, text: str) -> None:
    inside = tmp_path / "repository" / "deeper"
    inside.mkdir(parents=True)
    must_bring_no_code(str(inside))
    (tmp_path / "repository" / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "repository" / file).write_text(text)
    with pytest.raises(Forbidden, match="brings plugins"):
        must_bring_no_code(str(inside))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (".config/opencode/plugin/evil.js", ""),
        (".config/opencode/opencode.json", '{"plugin": ["evil"]}'),
        (".opencode/plugins/evil.ts", ""),
    ],
)
def test_a_home_that_brings_plugins_is_refused(tmp_path: Path, file: str, text: str) -> None:
    env = {"HOME": str(tmp_path)}
    home_must_bring_no_code(env)
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
    with pytest.raises(Forbidden, match="in its own home"):
        home_must_bring_no_code(env)


def test_a_patch_that_deletes_is_a_deletion() -> None:
    edit = "*** Begin Patch\n*** Update File: a\n@@\n-x\n+y\n"
    assert kind_of("apply_patch", {"patchText": edit}) == "edit"
    assert kind_of("apply_patch", {"patchText": f"{edit}*** Delete File: b\n*** End Patch"}) == "delete"


def _step(number: int) -> StepFinishPart:
    tokens = OpenCodeTokens(input=1, output=1, reasoning=0, cache=CacheTokens(read=0, write=0))
    part = f"p{number}"
    return StepFinishPart(id=part, session_id="s", message_id="m", reason="unknown", cost=0, tokens=tokens)
