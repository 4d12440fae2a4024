"""A session from its creation to its end, with a real rehearsal agent."""

import pytest
from tests.server.sessions.session_client import SessionClient

from legation.host.options import SessionMeta
from legation.server.routes import sessions as routes
from legation.server.sessions.record import Details, SessionRecord
from legation.wire.api.sessions import SessionInfo
from legation.wire.universal.shapes import Metadata

pytestmark = pytest.mark.heavy


async def test_a_session_is_made_spoken_to_listed_and_ended(talk: SessionClient) -> None:
    made = await talk.created("first", title="The first")
    assert made["healthy"] is True
    assert made["nativeSessionId"].startswith("reh-")
    ended = await talk.played("first", "say hello")
    assert ended["stopReason"] == "end_turn"
    assert await talk.heard("first") == "hello"
    [listed] = (await talk.call("GET", "/v1/sessions")).json()["sessions"]
    assert listed == await talk.info("first")
    expected = {
        "sessionId": "first",
        "agent": "rehearsal",
        "title": "The first",
        "ended": False,
        "status": "active",
    }
    assert expected.items() <= listed.items()
    for _ in range(2):  # twice is as once
        assert (await talk.call("POST", "/v1/sessions/first/terminate")).status_code == 204
    assert (await talk.info("first"))["ended"] is True
    refused = await talk.call("POST", "/v1/sessions/first/messages", {"message": "go on"})
    assert refused.status_code == 410


async def test_the_list_comes_in_pages_where_that_is_asked_for(talk: SessionClient) -> None:
    """Also beside sessions that come and go: one that is there all the time is on one page, once."""
    names = [f"n{number}" for number in range(7)]
    for name in names:
        await put_on_record(talk, name, int(name[1:]) // 2)  # some began at the same moment
    wanted = [name for _, name in sorted((-(int(name[1:]) // 2), name) for name in names)]
    whole = (await talk.call("GET", "/v1/sessions")).json()
    assert ([each["sessionId"] for each in whole["sessions"]], set(whole)) == (wanted, {"sessions"})
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        query = f"limit=2&cursor={cursor}" if cursor else "limit=2"
        page = (await talk.call("GET", f"/v1/sessions?{query}")).json()
        found += [each["sessionId"] for each in page["sessions"]]
        assert len(page["sessions"]) <= 2
        cursor = page["next"]
        if len(found) == 2:
            await put_on_record(talk, "newer", 100)
            # where the last page ended, and one that is still to come
            for gone in (found[-1], wanted[3]):
                assert (await talk.call("DELETE", f"/v1/sessions/{gone}")).status_code == 204
    assert found == [name for name in wanted if name != wanted[3]]
    rest = (await talk.call("GET", "/v1/sessions?limit=500")).json()
    assert (len(rest["sessions"]), rest["next"]) == (6, None)
    first = (await talk.call("GET", "/v1/sessions?limit=1")).json()
    behind = (await talk.call("GET", f"/v1/sessions?cursor={first['next']}")).json()
    assert (len(behind["sessions"]), behind["next"]) == (5, None)


async def test_the_list_is_searched_page_by_page_and_a_search_has_an_end(
    talk: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "PAGE", 2)
    monkeypatch.setattr(routes, "LOOKED_THROUGH", 4)
    for number in range(9):
        await put_on_record(talk, f"{'odd' if number % 2 else 'even'}-{number}", number)

    async def page(query: str) -> tuple[list[str], str | None]:
        told = (await talk.call("GET", f"/v1/sessions?{query}")).json()
        return [each["sessionId"] for each in told["sessions"]], told["next"]

    found: list[str] = []
    query = "limit=3&search=ODD"
    names, behind = await page(query)
    while behind is not None:
        found += names
        names, behind = await page(f"{query}&cursor={behind}")
    assert found + names == ["odd-7", "odd-5", "odd-3", "odd-1"]
    # What is rare is not looked for through the whole record at once, and the page says where to go on.
    names, behind = await page("search=even-0")
    assert (names, behind is not None) == ([], True)
    assert (await page("search=even en-8"))[0] == ["even-8"]
    assert (await page("agent=nobody"))[0] == []
    assert (await page("state=ended&limit=500"))[0] == []
    assert (await page("state=idle&limit=1"))[0] == ["even-8"]
    assert (await page("since=99999999999999"))[0] == []
    theirs = await talk.rig.bearer(talk.rig.people["stranger"], workspace=talk.rig.other)
    assert (await talk.call("GET", "/v1/sessions?search=odd", headers=theirs)).json() == {
        "sessions": [],
        "next": None,
    }


async def test_a_session_is_found_by_the_one_word_that_its_row_says(talk: SessionClient) -> None:
    for name in ("quiet", "asks", "fails", "over"):
        await talk.created(name)
    await talk.played("quiet", "say done")
    await talk.send("asks", "ask write a.txt x")
    await talk.until("asks", "permission-asked")
    await talk.played("fails", "error -32000 no")
    await talk.call("POST", "/v1/sessions/over/terminate")

    async def found(state: str) -> list[str]:
        told = (await talk.call("GET", f"/v1/sessions?state={state}")).json()
        return sorted(each["sessionId"] for each in told["sessions"])

    assert [await found(state) for state in ("waiting", "working", "wrong", "idle", "ended")] == [
        ["asks"],
        [],
        ["fails"],
        ["quiet"],
        ["over"],
    ]


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=501",
        "limit=-1",
        "limit=x",
        "cursor=",
        "cursor=x",
        "cursor=MS4",
        "cursor=%FF",
        "cursor=YS5i",
    ],
)
async def test_a_page_that_cannot_be_is_refused(talk: SessionClient, query: str) -> None:
    answer = await talk.call("GET", f"/v1/sessions?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "legation/invalid-params")


async def test_a_page_costs_what_is_on_it(talk: SessionClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many sessions there are."""
    for number in range(200):
        await put_on_record(talk, f"n{number}", number)
    looked_at: list[str] = []
    real = SessionRecord.info

    def looking(record: SessionRecord) -> SessionInfo:
        looked_at.append(record.id)
        return real(record)

    monkeypatch.setattr(SessionRecord, "info", looking)
    shown = SessionRecord.status
    seen: list[str] = []

    def status(record: SessionRecord) -> str:
        seen.append(record.id)
        return shown.__get__(record)  # type: ignore[no-any-return]

    monkeypatch.setattr(SessionRecord, "status", property(status))
    page = (await talk.call("GET", "/v1/sessions?limit=3")).json()
    page = (await talk.call("GET", f"/v1/sessions?limit=3&cursor={page['next']}")).json()
    assert [each["sessionId"] for each in page["sessions"]] == ["n196", "n195", "n194"]
    assert len(looked_at) == 6
    assert len(set(seen)) == 7  # and whether there is one behind


async def put_on_record(talk: SessionClient, name: str, created_at: int) -> None:
    """A session that no agent has."""
    given = Metadata("rehearsal")
    details = Details(agent="rehearsal", given=given, created_at=created_at, updated_at=1)
    meta = SessionMeta(agent_session_id="reh-1", cwd=str(talk.work), details=details.plain())
    await (await talk.rig.services.log.stream(name)).set_meta(meta.encode())
