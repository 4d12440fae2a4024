import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.host.json_endpoint import Client, Heard, Message, client
from tests.host.rig import LIMIT

from legation.errors import AlreadyAnswered, ConfigInvalid, InvalidParams, NotFound
from legation.host.endpoint import create_host_endpoint
from legation.store.codec import MemoryBackend
from legation.store.log import EventLog
from legation.wire import event_types
from legation.wire.event_types import PermissionUpdated, draft

ALLOW = {"outcome": "selected", "optionId": "allow_once"}
"""Spelt as the scripted agent spells it."""

ASKS = "hello(); session(); prompt = prompted(); permission(1, title='Dig'); answer(1); done(prompt); stay()"

SECOND_ASKS = ASKS.replace("session()", "session('s2')").replace("title='Dig'", "session='s2', title='Fill'")


def is_payload(message: Message) -> bool:
    return "payload" in message


def is_settled(message: Message) -> bool:
    return "settled" in message


async def asked(made: Client, source: str = ASKS) -> "tuple[asyncio.Task[Message], Message]":
    """A turn that waits for a permission, and the message about it."""
    unsubscribe = made.endpoint.on_inbound(heard := Heard())
    session_id = await made.script(source)
    prompting = asyncio.create_task(made.play(session_id))
    message = await heard.until(is_payload)
    unsubscribe()
    return prompting, message


async def test_a_permission_is_pushed_answered_and_settled(tmp_path: Path) -> None:
    async with client(tmp_path) as made:
        made.endpoint.on_inbound(heard := Heard())
        prompting, message = await asked(made)
        assert (message["kind"], message["payload"]["id"]) == ("permission", message["id"])
        assert (message["payload"]["state"], message["payload"]["sessionId"]) == ("pending", "s1")
        ask = message["payload"]["ask"]
        assert ask["title"] == "Dig"
        assert "allow_once" in [option["optionId"] for option in ask["options"]]
        assert made.endpoint.outstanding == [message]
        made.endpoint.respond_inbound(message["id"], ALLOW)
        assert await prompting == {"stopReason": "end_turn"}
        settled = await heard.until(is_settled)
        assert settled["id"] == message["id"]
        assert (settled["settled"]["state"], settled["settled"]["outcome"]) == ("answered", "approved")
        assert settled["settled"]["by"] == "client"
        assert made.endpoint.outstanding == []
        assert heard.messages == [message, settled]


async def test_with_the_rehearsal_agent_a_no_is_heard(tmp_path: Path) -> None:
    async with client(tmp_path) as made:
        made.endpoint.on_inbound(heard := Heard())
        session_id = await made.open(await made.spawn())
        made.endpoint.subscribe(session_id, 0, events := Heard())
        prompting = asyncio.create_task(made.play(session_id, "ask write a.txt hello"))
        message = await heard.until(is_payload)
        options = {each["kind"]: each["optionId"] for each in message["payload"]["ask"]["options"]}
        made.endpoint.respond_inbound(
            message["id"], {"outcome": "selected", "optionId": options["reject_once"]}
        )
        assert (await prompting)["stopReason"] == "end_turn"
        answered = await events.until_type("permission-answered")
        assert answered["payload"]["outcome"] == "denied"
        assert not (tmp_path / "a.txt").exists()


async def test_the_second_answer_is_already_answered(tmp_path: Path) -> None:
    """INV-8."""
    async with client(tmp_path) as made:
        prompting, message = await asked(made)
        made.endpoint.respond_inbound(message["id"], {"outcome": "cancelled"})
        with pytest.raises(AlreadyAnswered):
            made.endpoint.respond_inbound(message["id"], ALLOW)
        await prompting
        with pytest.raises(AlreadyAnswered):
            made.endpoint.respond_inbound(message["id"], ALLOW)


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        ({"outcome": "maybe"}, ConfigInvalid),
        ({"outcome": "selected"}, ConfigInvalid),
        ({}, ConfigInvalid),
        ("selected", ConfigInvalid),
        (None, ConfigInvalid),
        ({"outcome": "selected", "optionId": "unheard_of"}, InvalidParams),
    ],
)
async def test_a_malformed_answer_is_refused_and_the_permission_still_waits(
    tmp_path: Path, outcome: object, error: type[Exception]
) -> None:
    async with client(tmp_path) as made:
        prompting, message = await asked(made)
        with pytest.raises(error):
            made.endpoint.respond_inbound(message["id"], outcome)
        assert made.endpoint.outstanding == [message]
        made.endpoint.respond_inbound(message["id"], ALLOW)
        await prompting


async def test_an_answer_to_nothing_is_not_found(tmp_path: Path) -> None:
    async with client(tmp_path) as made:
        with pytest.raises(NotFound):
            made.endpoint.respond_inbound("apr_1", ALLOW)
        with pytest.raises(ConfigInvalid):
            made.endpoint.respond_inbound(["apr_1"], ALLOW)  # type: ignore[arg-type]


async def test_what_waits_already_is_told_when_a_handler_is_added(tmp_path: Path) -> None:
    async with client(tmp_path) as made:
        prompting, message = await asked(made)
        made.endpoint.on_inbound(late := Heard())
        assert late.messages == [message]
        another = create_host_endpoint(made.host)
        another.on_inbound(elsewhere := Heard())
        assert await elsewhere.until(is_payload) == message
        another.respond_inbound(message["id"], ALLOW)
        await prompting
        for heard in (late, elsewhere):
            await heard.until(is_settled)
            assert len(heard.messages) == 2
        await another.close()


async def test_what_was_settled_before_is_not_told_again(tmp_path: Path) -> None:
    async with client(tmp_path) as made:
        prompting, message = await asked(made)
        made.endpoint.respond_inbound(message["id"], ALLOW)
        await prompting
        later = create_host_endpoint(made.host)
        later.on_inbound(heard := Heard())
        prompting, fresh = await asked(made, SECOND_ASKS)
        assert await heard.until(is_payload) == fresh
        later.respond_inbound(fresh["id"], ALLOW)
        await prompting
        await heard.until(is_settled)
        assert [each["id"] for each in heard.messages] == [fresh["id"], fresh["id"]]
        await later.close()


async def test_a_question_that_a_killed_host_left_behind_is_not_pushed(tmp_path: Path) -> None:
    left = PermissionUpdated(id="apr_left", session_id="gone", state="pending")
    async with asyncio.timeout(LIMIT), EventLog(MemoryBackend()) as log:
        await (await log.stream("host")).append([event_types.draft(left)])
        async with client(tmp_path, log=log) as made:
            made.endpoint.on_inbound(heard := Heard())
            prompting, message = await asked(made)
            assert heard.messages == [message]
            made.endpoint.respond_inbound(message["id"], ALLOW)
            await prompting


async def test_a_question_of_a_turn_that_is_over_is_not_pushed(tmp_path: Path) -> None:
    """Left by a killed host, in a session that was resumed since."""
    async with client(tmp_path) as made:
        prompting, message = await asked(made)
        made.endpoint.respond_inbound(message["id"], ALLOW)
        await prompting
        left = {**message["payload"], "id": "apr_left"}
        made.host.stream.stream.append([draft(msgspec.convert(left, PermissionUpdated))])
        later = create_host_endpoint(made.host)
        later.on_inbound(heard := Heard())
        prompting, fresh = await asked(Client(later, made.host, tmp_path), SECOND_ASKS)
        assert [each["id"] for each in heard.messages] == [fresh["id"]]
        assert later.outstanding == [fresh]
        later.respond_inbound(fresh["id"], ALLOW)
        await prompting
        await later.close()


async def test_a_withdrawn_permission_is_settled_as_superseded(tmp_path: Path) -> None:
    source = ASKS.replace("answer(1)", "send(method='$/cancel_request', params={'requestId': 1}); answer(1)")
    async with client(tmp_path) as made:
        made.endpoint.on_inbound(heard := Heard())
        await made.play(await made.script(source))
        settled = await heard.until(is_settled)
        assert settled["settled"]["state"] == "superseded"
        assert made.endpoint.outstanding == []


async def test_a_cancelled_turn_settles_its_permission(tmp_path: Path) -> None:
    async with client(tmp_path) as made:
        made.endpoint.on_inbound(heard := Heard())
        prompting, message = await asked(made)
        await made.call("sessions/cancel", sessionId="s1")
        await prompting
        settled = await heard.until(is_settled)
        assert (settled["id"], settled["settled"]["outcome"]) == (message["id"], "cancelled")
        with pytest.raises(AlreadyAnswered):
            made.endpoint.respond_inbound(message["id"], ALLOW)


async def test_a_failing_handler_is_reported_and_disturbs_no_other(tmp_path: Path) -> None:
    def fail(message: Message) -> None:
        message.clear()  # nor may it spoil what the others get
        raise ZeroDivisionError("the text of it")

    async with client(tmp_path) as made:
        made.endpoint.subscribe(None, 0, events := Heard())
        made.endpoint.on_inbound(fail)
        prompting, message = await asked(made)
        assert message["kind"] == "permission"
        reported = await events.until_code("subscriber/error")
        assert message["id"] in reported["payload"]["message"]
        assert "the text" not in reported["payload"]["message"]
        made.endpoint.respond_inbound(message["id"], ALLOW)
        await prompting


async def test_a_handler_that_fails_on_what_waits_already_is_reported_too(tmp_path: Path) -> None:
    def fail(_: Message) -> None:
        raise ZeroDivisionError

    async with client(tmp_path) as made:
        made.endpoint.subscribe(None, 0, events := Heard())
        prompting, message = await asked(made)
        made.endpoint.on_inbound(fail)
        await events.until_code("subscriber/error")
        made.endpoint.respond_inbound(message["id"], ALLOW)
        await prompting


async def test_a_handler_that_was_removed_hears_nothing_more(tmp_path: Path) -> None:
    async with client(tmp_path) as made:
        remove = made.endpoint.on_inbound(removed := Heard())
        made.endpoint.on_inbound(lambda _: remove())
        made.endpoint.on_inbound(stays := Heard())
        prompting, message = await asked(made)
        made.endpoint.respond_inbound(message["id"], ALLOW)
        await prompting
        await stays.until(is_settled)
        assert removed.messages == [message]
        remove()


async def test_a_closed_endpoint_tells_nothing_and_the_permission_waits_on(tmp_path: Path) -> None:
    async with client(tmp_path) as made:
        made.endpoint.on_inbound(heard := Heard())
        prompting, message = await asked(made)
        await made.endpoint.close()
        assert made.endpoint.outstanding == []
        another = create_host_endpoint(made.host)
        another.on_inbound(elsewhere := Heard())
        await elsewhere.until(is_payload)
        another.respond_inbound(message["id"], ALLOW)
        await prompting
        await elsewhere.until(is_settled)
        assert heard.messages == [message]
        await another.close()
