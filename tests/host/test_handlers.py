from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.host.rig import go, of_type, rig

from legation.host import create_default_fs_handler, create_default_terminal_handler
from legation.host.requests.handlers import (
    FileReader,
    FileWriter,
    OwnedTerminals,
    QuestionHandler,
    TerminalHandler,
    derive_client_capabilities,
    is_complete_terminal,
    question_modes,
    read_method,
    write_method,
)
from legation.proc import ProcessLauncher
from legation.store.forbidden import ForbiddenPlaces
from legation.wire.acp.methods import (
    CreateElicitationRequest,
    CreateElicitationResponse,
    ReadTextFileRequest,
    ReadTextFileResponse,
    WriteTextFileRequest,
)

SIX = ("create", "output", "wait_for_exit", "kill", "release", "cleanup_session")


async def method(*_: object) -> None: ...


def having(**members: object) -> object:
    return type("Handler", (), {name: staticmethod(m) if callable(m) else m for name, m in members.items()})()


class Reader:
    async def read_text_file(self, request: ReadTextFileRequest) -> ReadTextFileResponse:
        return ReadTextFileResponse(content=request.path)


class OnlyReader(Reader):
    write_text_file = None


class Writer:
    async def write_text_file(self, request: WriteTextFileRequest) -> None: ...


class Both(Reader, Writer): ...


class Derived(FileReader, FileWriter):
    """As its author left it: one of the two methods is still the seam's."""

    async def write_text_file(self, request: WriteTextFileRequest) -> None: ...


derived: Any = Derived


@pytest.mark.parametrize(
    ("fs", "readable", "writable"),
    [
        (None, False, False),
        (object(), False, False),
        (Reader(), True, False),
        (OnlyReader(), True, False),
        (Writer(), False, True),
        (Both(), True, True),
        (derived(), False, True),
        (having(read_text_file="yes", write_text_file=method), False, True),
        (create_default_fs_handler(lambda _: None, ForbiddenPlaces()), True, True),
    ],
)
def test_inv_6_files_are_offered_method_by_method(fs: object, readable: bool, writable: bool) -> None:
    offered = derive_client_capabilities(fs, None).fs
    assert (offered.read_text_file, offered.write_text_file) == (readable, writable)
    assert (read_method(fs) is not None, write_method(fs) is not None) == (readable, writable)


@pytest.mark.parametrize("missing", SIX)
@pytest.mark.parametrize("instead", [None, "absent", 1])
def test_inv_6_a_terminal_handler_without_one_of_its_methods_is_not_offered(
    missing: str, instead: object
) -> None:
    members: dict[str, object] = dict.fromkeys(SIX, method) | {missing: instead}
    if instead == "absent":
        del members[missing]
    assert derive_client_capabilities(None, having(**members)).terminal is False


def test_inv_6_a_complete_terminal_handler_is_offered() -> None:
    default = create_default_terminal_handler(ProcessLauncher(), {}, forbidden=ForbiddenPlaces())
    for handler in (having(**dict.fromkeys(SIX, method)), default, OwnedTerminals(default)):
        assert is_complete_terminal(handler)
        assert derive_client_capabilities(None, handler).terminal is True


def test_inv_6_methods_inherited_from_the_seam_are_not_offered() -> None:
    class Unfinished(TerminalHandler):
        async def cleanup_session(self, session_id: str) -> None: ...

    unfinished: Any = Unfinished
    assert derive_client_capabilities(None, unfinished()).terminal is False


class Asker(QuestionHandler):
    def __init__(self, *modes: str) -> None:
        self._modes = frozenset(modes)

    @property
    def modes(self) -> frozenset[str]:
        return self._modes

    async def ask(self, request: CreateElicitationRequest) -> CreateElicitationResponse:
        return CreateElicitationResponse(action="accept" if request.mode in self.modes else "decline")


@pytest.mark.parametrize(
    ("questions", "modes"),
    [
        (None, set()),
        (object(), set()),
        (Asker(), set()),
        (Asker("form"), {"form"}),
        (Asker("url"), {"url"}),
        (Asker("form", "url"), {"form", "url"}),
        (Asker("telepathy"), set()),
        (Asker("telepathy", "url"), {"url"}),
        (having(ask=method), set()),
        (having(ask=method, modes=None), set()),
        (having(ask=None, modes=frozenset({"form"})), set()),
        (having(modes=frozenset({"form"})), set()),
    ],
)
def test_inv_6_questions_are_offered_by_mode(questions: object, modes: set[str]) -> None:
    offered = derive_client_capabilities(None, None, questions).elicitation
    assert question_modes(questions) == modes
    assert (offered is not None) == bool(modes)
    if offered is not None:
        assert {mode for mode in ("form", "url") if getattr(offered, mode) is not None} == modes


def test_what_the_log_keeps_is_offered_always() -> None:
    assert json.loads(msgspec.json.encode(derive_client_capabilities(None, None))) == {
        "fs": {},
        "session": {"compaction": {}, "configOptions": {"boolean": {}}, "notices": {}},
    }


def test_on_the_wire_only_what_is_there_is_named() -> None:
    everything = having(**dict.fromkeys(SIX, method))
    offered = json.loads(msgspec.json.encode(derive_client_capabilities(Reader(), everything, Asker("url"))))
    assert offered["fs"] == {"readTextFile": True}
    assert offered["terminal"] is True
    assert offered["elicitation"] == {"url": {}}
    assert "auth" not in offered


@pytest.mark.heavy
@pytest.mark.parametrize("offered", [True, False])
async def test_fs_is_withheld_from_an_agent_that_cannot_live_with_it(tmp_path: Path, offered: bool) -> None:
    source = """
first = read()
send(id=first["id"], result={"protocolVersion": 1, "agentCapabilities": {}})
session(); prompt = prompted()
update(json.dumps(first["params"]["clientCapabilities"]["fs"])); done(prompt); stay()
"""
    async with rig(tmp_path) as made:
        definition = replace(made.scripted(source), fs=offered)
        session = await made.open((await made.host.spawn_agent(definition)).agent_id)
        await go(session)
        [said] = await of_type(session, "agent-message-chunk")
        told = json.loads(json.loads(said.payload)["content"]["text"])
        assert (told.get("readTextFile", False), told.get("writeTextFile", False)) == (offered, offered)
