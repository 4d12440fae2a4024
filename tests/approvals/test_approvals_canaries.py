"""What an agent or a person said is planted everywhere it can be, then looked for on the disk and in the log."""

import logging

import pytest
from tests.approvals.installation import NO, NOW, PERSON, SUPERVISOR, Installation
from tests.approvals.test_grants import give
from tests.approvals.test_trace import after
from tests.store.canary import checkpoint, logged, new_canary, search, stored

from legation.approvals import listing
from legation.approvals.approval import ApprovalAnswer
from legation.approvals.trace.cut import DAY_MS, purge
from legation.approvals.trace.export import lines
from legation.errors import LegationError
from legation.store.database.sqlite import SqliteDatabase
from legation.wire.action import Action


async def test_nothing_that_was_said_is_in_any_table_log_or_error(
    installation: Installation, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    names = ("argument", "key", "result", "error", "reasoning", "message", "claim", "escalation", "grant")
    said = {name: new_canary(name) for name in names}
    params = {"path": said["argument"], said["key"]: 1, "deep": [{"x": said["argument"]}]}
    approval = await installation.ask(
        Action(agent="claude", tool="t", params=params, command=said["argument"])
    )
    await installation.do(installation.approvals.escalate, SUPERVISOR, approval.id, said["escalation"], NOW)
    answer = ApprovalAnswer(
        approve=True,
        reasoning=said["reasoning"],
        message=said["message"],
        claim=said["claim"],
        confidence=0.5,
    )
    told = []
    try:
        await installation.answer(approval, answer, SUPERVISOR)
    except LegationError as error:
        told.append(f"{error}{error!r}{error.data}")
    await installation.answer(approval, answer, PERSON)
    await installation.consume(approval)
    contents = {"result": {"text": said["result"]}, "error": said["error"]}
    await installation.ledger.append("local", after(approval, contents=contents), NOW + 3)
    await give(installation, reason=said["grant"])
    places = {
        **await stored(installation.database, request),
        "log": logged(caplog),
        "told": "".join(told).encode(),
    }
    assert search(places, said.values()) == []
    (view,) = await listing.views(installation.database, installation.sealer, "local", [approval], NOW)
    assert view.params == params
    exported = b"".join(
        [line async for line in lines(installation.database, installation.sealer, "local", "srv-1")]
    )
    shown = {line.split(" as ")[0] for line in search({"export": exported}, said.values())}
    assert shown == {f"secret {number}" for number in range(len(names) - 1)}  # all but the grant's reason


async def test_of_purged_content_not_even_the_sealed_bytes_are_left(
    installation: Installation, request: pytest.FixtureRequest
) -> None:
    asked = await installation.ask(Action(agent="claude", tool="t", params={"text": "x" * 5000}))
    await installation.answer(asked, NO)  # what is open keeps what it needs
    (row,) = await installation.sql("select body from trace_content")
    remains = [bytes(row["body"][:60]), bytes(row["body"][-60:])]
    assert search(await stored(installation.database, request), remains)
    async for _ in purge(installation.database, "local", NOW + DAY_MS, NOW):
        pass
    await installation.database.scrub()
    if isinstance(installation.database, SqliteDatabase):
        checkpoint(installation.database)
    assert search(await stored(installation.database, request), remains) == []
    assert (await installation.verify()).ok
