import json

from legation.server.acp.connection import last_words
from legation.server.acp.log import MESSAGE, Taken
from legation.server.acp.messages import notification_line, request_line, result_line
from legation.store.codec import MemoryBackend
from legation.store.log import EventLog
from legation.wire.events import Draft


async def words(taken: list[Taken], *lines: bytes) -> list[dict[str, object]]:
    async with EventLog(MemoryBackend()) as log:
        stream = await log.stream("acp:mine")
        await stream.append([Draft(MESSAGE, line) for line in lines])
        return [json.loads(line) for line in await last_words(stream, taken)]


async def test_what_has_its_answer_is_owed_nothing() -> None:
    assert (
        await words([Taken(id='"a"', after=0)], request_line("req_1", "x", {}), result_line(b'"a"', {})) == []
    )


async def test_what_has_none_is_told_and_what_was_asked_meanwhile_is_withdrawn() -> None:
    lines = (request_line("req_0", "x", {}), notification_line("n", {}), request_line("req_1", "x", {}))
    withdrawn, refused = await words([Taken(id="7", after=1)], *lines)
    assert withdrawn["params"] == {"requestId": "req_1"}
    assert (refused["id"], "error" in refused) == (7, True)


async def test_the_answer_to_an_older_request_of_the_same_id_is_not_its_own() -> None:
    taken = [Taken(id="1", after=0), Taken(id="2", after=1)]
    told = await words(taken, result_line(b"2", {}), result_line(b"1", {}))
    assert [each["id"] for each in told] == [2]
