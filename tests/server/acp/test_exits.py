"""How agents ended, for whoever's request failed of it: told before the answer, and not of the turn after."""

import pytest
from tests.server.acp.acp_server import Client

pytestmark = pytest.mark.heavy


async def test_a_client_hears_of_the_end_before_its_request_is_answered_with_it(client: Client) -> None:
    await client.initialize()
    client.follow()
    session = await client.new()
    answer = await client.prompting(session, "crash 7")
    assert answer["error"]["data"]["exitCode"] == 7
    await client.hears(lambda: any("error" in each for each in client.messages))
    told = ["agent_exited" in each.get("method", "") for each in client.messages]
    failed = ["error" in each for each in client.messages]
    assert told.index(True) < failed.index(True)


async def test_a_turn_does_not_end_by_what_ended_the_one_before(client: Client) -> None:
    await client.initialize()
    session = await client.new()
    assert "exitCode" in (await client.prompting(session, "crash 7"))["error"]["data"]
    error = (await client.prompting(session, "error -32055 out of paper"))["error"]
    assert error["code"] == -32055
    assert "exitCode" not in error.get("data", {})
