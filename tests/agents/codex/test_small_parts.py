"""Parts that need no server: diffs, command lines, settings, choices, tokens."""

from __future__ import annotations

import json

import pytest

from legation.agents.codex.launch import overrides, thread_settings
from legation.agents.codex.messages import (
    ChangeKind,
    CodexModel,
    Effort,
    FileUpdate,
    TokenCount,
    TokenUsage,
    TurnError,
)
from legation.agents.codex.options import CodexOptions
from legation.agents.codex.tools import change_diffs, change_kind, changed_locations, inner_command
from legation.agents.codex.translate import TokenMeter, failure, user_input
from legation.agents.driver import OpenRequest
from legation.errors import InvalidParams
from legation.wire.acp.methods import McpServer
from legation.wire.acp.updates import (
    EmbeddedResource,
    Image,
    ResourceContents,
    ResourceLink,
    SelectOption,
    Text,
)

HUNKS = "@@ -1,2 +1,2 @@\n a\n-b\n+c\n@@ -9 +9 @@\n-x\n+y\n\\ No newline at end of file\n"


def update(kind: str, diff: str, move: str | None = None) -> FileUpdate:
    return FileUpdate(path="/w/a", kind=ChangeKind(type=kind, move_path=move), diff=diff)


def test_an_update_is_one_diff_a_hunk_and_a_move_names_both_places() -> None:
    moved = update("update", HUNKS + "\n\nMoved to: /w/b", "/w/b")
    shown = [(each.old_text, each.new_text) for each in change_diffs([moved])]
    assert shown == [("a\nb\n", "a\nc\n"), ("x\n", "y\n")]
    assert [each.path for each in changed_locations([moved])] == ["/w/a", "/w/b"]
    assert change_kind((moved,)) == "move"


def test_a_new_file_has_no_old_text_and_a_deleted_one_no_new() -> None:
    new, old = change_diffs([update("add", "a\n"), update("delete", "b\n")])
    assert (new.old_text, new.new_text) == (None, "a\n")
    assert (old.old_text, old.new_text) == ("b\n", "")
    assert change_kind((update("delete", ""),)) == "delete"
    assert change_kind((update("delete", ""), update("add", ""))) == "edit"


@pytest.mark.parametrize(
    ("command", "inner"),
    [
        ("/bin/bash -lc 'make test'", "make test"),
        ("/usr/bin/zsh -c ls", "ls"),
        ("/w/bash -lc ls", "/w/bash -lc ls"),  # who knows what that does
        ("/bin/bash -lc ls more", "/bin/bash -lc ls more"),
        ("/bin/bash -lc 'unfinished", "/bin/bash -lc 'unfinished"),
        ("ls", "ls"),
    ],
)
def test_only_the_systems_own_shell_is_taken_off_a_command(command: str, inner: str) -> None:
    assert inner_command(command) == inner


def test_a_key_is_named_and_never_told() -> None:
    env = {"OPENAI_API_KEY": "the-secret", "OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}
    words = overrides(env)
    assert "the-secret" not in " ".join(words)
    assert 'model_providers.legation.env_key="OPENAI_API_KEY"' in words
    assert 'model_providers.legation.base_url="http://127.0.0.1:1/v1"' in words
    both = overrides({**env, "CODEX_API_KEY": "another"})
    assert 'model_providers.legation.env_key="CODEX_API_KEY"' in both


def test_without_a_key_it_is_as_it_was_signed_in() -> None:
    words = " ".join(overrides({"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}))
    assert "model_providers" not in words
    assert 'openai_base_url="http://127.0.0.1:1/v1"' in words
    assert thread_settings(OpenRequest("/w"), {}, lambda _: False).model_provider == "openai"


def test_every_thread_asks_and_says_whether_its_folder_is_trusted() -> None:
    servers = (
        McpServer.stdio("one", "run", ("x",), {"A": "b"}),
        McpServer.http("two", "http://h", {"K": "v"}),
    )
    told = thread_settings(OpenRequest("/w", servers, ("/more",)), {}, lambda folder: folder == "/w")
    assert (told.approval_policy, told.runtime_workspace_roots) == ("untrusted", ("/w", "/more"))
    config = json.loads(json.dumps(told.config))
    assert config["projects"]["/w"] == {"trust_level": "trusted"}
    assert config["mcp_servers"] == {
        "one": {
            "command": "run",
            "args": ["x"],
            "env": {"A": "b"},
            "default_tools_approval_mode": "prompt",
        },
        "two": {"url": "http://h", "http_headers": {"K": "v"}, "default_tools_approval_mode": "prompt"},
    }
    untrusted = thread_settings(OpenRequest("/w"), {}, lambda _: False).config
    no = {"trust_level": "untrusted"}
    assert untrusted == {
        "projects": {"/w": no, "/": no},
        "mcp_servers": {},
    }  # whatever its home says of those above
    assert config["projects"]["/more"] == no
    assert "features" not in config


def model(name: str, *efforts: str) -> CodexModel:
    return CodexModel(
        model=name,
        display_name=name.upper(),
        description="",
        hidden=False,
        default_reasoning_effort=efforts[0],
        supported_reasoning_efforts=tuple(Effort(reasoning_effort=each, description="") for each in efforts),
    )


MODELS = (model("one", "low", "high"), model("two", "low"))


def test_another_model_keeps_the_effort_only_if_it_has_it() -> None:
    choice = CodexOptions("one").with_option("reasoning_effort", "high", MODELS)
    assert choice.with_option("model", "two", MODELS).effort is None
    assert choice.with_option("model", "one", MODELS).effort == "high"
    shown = [each for each in choice.options(MODELS) if isinstance(each, SelectOption)]
    assert [(each.category, each.current_value) for each in shown] == [
        ("model", "one"),
        ("thought_level", "high"),
    ]


def test_a_model_of_no_list_stays_to_be_chosen_and_has_no_efforts() -> None:
    (shown,) = CodexOptions("mine").options(MODELS)
    assert isinstance(shown, SelectOption)
    assert [each.value for each in shown.options] == ["one", "two", "mine"]


@pytest.mark.parametrize(("option", "value"), [("colour", "x"), ("model", True), ("reasoning_effort", "max")])
def test_what_is_not_offered_is_refused(option: str, value: str | bool) -> None:
    with pytest.raises(InvalidParams):
        CodexOptions("one").with_option(option, value, MODELS)
    with pytest.raises(InvalidParams):
        CodexOptions("one").in_mode("bypass")


def count(total: int) -> TokenCount:
    return TokenCount(
        total_tokens=total * 10,
        input_tokens=total * 7,
        cached_input_tokens=total * 2,
        output_tokens=total * 3,
        reasoning_output_tokens=total,
    )


def test_tokens_of_a_turn_are_those_since_it_began_also_after_a_resume() -> None:
    tokens = TokenMeter()
    tokens.begin_turn()
    assert tokens.of_turn() is None
    shown = tokens.count(TokenUsage(total=count(5), last=count(1), model_context_window=1000))
    assert (shown.used, shown.size) == (10, 1000)
    used = tokens.of_turn()
    assert used is not None
    assert (used.total_tokens, used.input_tokens, used.cached_read_tokens) == (10, 5, 2)
    tokens.begin_turn()
    assert tokens.of_turn() is None
    tokens.count(TokenUsage(total=count(7), last=count(1)))
    second = tokens.of_turn()
    assert second is not None
    assert second.output_tokens == 6


def test_a_failure_says_its_kind_and_status() -> None:
    info = {"responseTooManyFailedAttempts": {"httpStatusCode": 429}}
    limited = failure(TurnError(message="no", additional_details="more", codex_error_info=info)).error
    assert (limited.message, limited.data) == (
        "no: more",
        {"kind": "responseTooManyFailedAttempts", "httpStatus": 429},
    )
    refused: dict[str, object] = {"httpConnectionFailed": {"httpStatusCode": 401}}
    for kind in ("unauthorized", refused):
        signed_out = failure(TurnError(message="no", codex_error_info=kind)).error
        assert signed_out.code == -32000
        assert "legation agents login codex" in signed_out.message
    assert "did not say" in failure(None).error.message


def test_a_prompt_is_sent_with_its_pictures_and_papers() -> None:
    blocks = (
        Text(text="look"),
        Image(data="AAAA", mime_type="image/png"),
        ResourceLink(name="a", uri="file:///a"),
        EmbeddedResource(resource=ResourceContents(uri="file:///b", text="bee")),
    )
    text, image, link, paper = user_input(blocks)
    assert text["text"] == "look"
    assert image == {"type": "image", "url": "data:image/png;base64,AAAA"}
    assert link["text"] == "[a](file:///a)"
    assert paper["text"] == "file:///b\n\nbee"
