"""What a question costs on a short record and on one twenty times as long: the same, unless it asks for all of it.

Counted, not timed: on SQLite the instructions that its machine runs, on Postgres the rows that it looks at and the blocks
that it touches for them. Without statistics, as SQLite always is, for nobody has it analyze, and with those of the record,
which Postgres gathers itself.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.postgres import MIGRATED, Postgres

from legation.approvals import grants, listing
from legation.approvals.listing import ApprovalFilter
from legation.approvals.trace import chain, entries, replay
from legation.approvals.trace.entries import TraceFilter
from legation.approvals.trace.step import contents_of
from legation.store import audit, counters
from legation.store.database import migrations
from legation.store.database.postgres import PostgresDatabase
from legation.store.database.sqlite import _drive
from legation.store.database.transaction import Queries, Statement, Transaction, rows
from legation.store.secrets import vault

SHORT, LONG = 600, 12_000  # calls on record
NOW = 10_000_000  # a moment after all of them
LAST = (2**53, "")

# Call `i`, of which every other one was asked about. What is rare is at the beginning of the record, the farthest away.
_CALLS = """with recursive n (i) as (select 1 union all select i + 1 from n where i < {calls})"""
_TRACE = "'0000000000000000000000000' || (1000000 + i)"
_AGENT = "case when i <= 4 then 'rare' when i % 5 = 0 then 'codex' else 'claude' end"
_TOOL = "case when i <= 4 then 'rare.tool' when i % 5 = 0 then 'mail.send' else 'fs.write' end"
_STEP = "workspace_id, server, seq, at, step, trace_id, agent, tool, session_id, policy_rule, prev_hash, hash"
FILL = (
    "insert into workspace (id, name, created_at) values ('local', 'local', 0)",
    "insert into app_user (id, name, created_at) values ('usr_1', 'Ada', 0)",
    f"""insert into content_key (workspace_id, owner, key_id, wrapped_key, created_at) {_CALLS}
    select 'local', 'grt_' || (1000000 + i), 'key', cast('' as {{bytes}}), 0 from n""",
    f"""insert into vault_bundle (id, workspace_id, owner, key_id, wrapped_key, body, created_at) {_CALLS}
    select 'vlt_' || i, 'local', 'ses_' || i, 'key', cast('' as {{bytes}}), cast('' as {{bytes}}), 0 from n""",
    *(
        f"""insert into trace_step ({_STEP}) {_CALLS}
        select 'local', 'srv', i * 2 - {2 - number}, i, '{step}', {_TRACE}, {_AGENT}, {_TOOL}, 'ses_' || i, 'p:r', '', ''
        from n"""
        for number, step in enumerate(("proposed", "decided"), 1)
    ),
    f"""insert into trace_content (workspace_id, server, seq, name, trace_id, owner, body) {_CALLS}
    select 'local', 'srv', i * 2 - 1, 'params', {_TRACE}, 'grt_' || (1000000 + i), cast('' as {{bytes}}) from n""",
    f"""insert into approval (
      id, workspace_id, trace_id, waiter, session_id, requester_kind, requester, agent, tool, kind, action_digest,
      policy_version, policy_rule, verdict, needs, injection_risk, argument_bytes, argument_names, content_owner,
      holder, group_key, status, created_at, expires_at, resolved_at, consumed_at
    ) {_CALLS}
    select 'apr_' || (1000000 + i), 'local', {_TRACE}, 'prc_1', 'ses_' || i, 'token', 'tok_1', {_AGENT}, {_TOOL}, 'edit',
      'd', 'v', 'p:r', 'supervisor', 'supervisor', 0, 0, '', 'day', 'prc_1', 'g',
      case when i in (2, 6) then 'expired' when i % 8 = 0 then 'denied' else 'approved' end, i, i, i, i
    from n where i % 2 = 0""",
    # Of each session one that ran out, and one that counts.
    *(
        f"""insert into approval_grant (
          id, workspace_id, agent, tools, created_at, expires_at, granted_kind, granted_by, session_id
        ) {_CALLS}
        select 'grt_{name}' || (1000000 + i), 'local', '*', '*', 0, {expires}, 'user', 'usr_1', 'ses_' || i from n"""
        for name, expires in (("a", 1), ("b", NOW * 2))
    ),
    f"""insert into audit (id, workspace_id, at, actor_kind, actor, action, target, details) {_CALLS}
    select 'aud_' || (1000000 + i), 'local', i, 'user', 'usr_1', 'grant.created', 't', '{{{{}}}}' from n""",
    f"""insert into counter (workspace_id, agent, policy, what, value, until) {_CALLS}
    select 'local', 'agent' || i, 'p', 'total', '1', {NOW * 2} from n""",
)

_APPROVALS, _DOOR, _GRANTS = Queries("approvals"), Queries("door"), Queries("grants")
TEN = msgspec.json.encode([f"0000000000000000000000000{1000000 + i}" for i in range(1, 11)]).decode()
HOLDERS = msgspec.json.encode(["prc_1", "prc_2"]).decode()


def _questions() -> Iterator[tuple[str, Callable[[], Transaction[Any]]]]:
    """All that is asked about a record and is answered with a part of it."""
    every: dict[str, tuple[str | None, ...]] = {
        "status": (None, "pending", "approved", "denied", "expired"),
        "agent": (None, "claude", "codex", "rare", "nobody"),
        "tool": (None, "fs.*", "mail.*", "rare.*", "none.*", "*.*"),
    }
    for status in every["status"]:
        for agent in every["agent"]:
            for tool in every["tool"]:
                wanted = ApprovalFilter(status=status, agent=agent, tool=tool)
                yield (
                    f"approvals {status} {agent} {tool}",
                    partial(listing.page, "local", wanted, NOW, 10),
                )
    for agent in every["agent"]:
        for exact in (None, "fs.write", "mail.send", "rare.tool", "none"):
            for session in (None, "ses_7", "none"):
                calls = TraceFilter(agent=agent, tool=exact, session=session)
                yield (
                    f"traces {agent} {exact} {session}",
                    partial(entries._page, "local", calls, 10, LAST),
                )
    yield "replay", lambda: replay._batch("local", TraceFilter(), 10, None)
    yield "hits of late", lambda: rows(Queries("traces").hits(workspace="local", since=NOW))
    yield "detail", lambda: listing._context("local", "apr_1000008", NOW)
    yield "trace", lambda: entries._one("local", f"0000000000000000000000000{1000008}", ["params", "result"])
    yield "contents", lambda: contents_of("local", msgspec.json.decode(TEN), ["params"])
    yield "chains", lambda: chain.chains("local")
    yield "grants", lambda: grants.page("local", 10)
    yield "grants that count", lambda: grants.live_for("local", "ses_7", NOW)
    yield "grants that count outside", lambda: grants.live_for("local", None, NOW)
    yield "audit", lambda: audit.page("local", None, 10)
    yield "counters", lambda: counters.held("local", "agent7")
    yield "keys", vault.keys_named
    by = {"now": NOW, "by": "usr_1"}
    for name, statement in {
        "end of a session": _GRANTS.end_session(workspace="local", session="none", **by),
        "due": _APPROVALS.due(now=NOW, limit=10),
        "askers": _APPROVALS.askers(),
        "of an asker": _APPROVALS.open_of_asker(
            workspace="local", kind="token", requester="tok_1", version=None, agent="claude", limit=10
        ),
        "of holders": _APPROVALS.open_of_holders(holders=HOLDERS, limit=10),
        "of a session": _APPROVALS.open_of_session(workspace="local", session="ses_8", turn=None, limit=10),
        "a group": _APPROVALS.group(workspace="local", group_key="g", limit=10),
        "pending of an agent": _APPROVALS.pending_of_agent(
            workspace="local", agent="claude", requester="tok_1", now=0, most=10
        ),
        "pending in a session": _APPROVALS.pending_in_session(
            workspace="local",
            agent="claude",
            session="ses_8",
            kind="token",
            requester="tok_1",
            now=0,
            most=10,
        ),
        "another's changes": _DOOR.steps_after(workspace="local", server="srv", after=2, last=9),
        "endings": Queries("traces").endings(workspace="local", traces=TEN),
        "counters that are over": Queries("counters").forget(now=NOW, limit=10),
    }.items():
        yield name, partial(rows, statement)


QUESTIONS = dict(_questions())


STATISTICS = pytest.mark.parametrize("analyzed", [False, True], ids=["bare", "analyzed"])


def _sqlite(calls: int, *, analyzed: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.row_factory = sqlite3.Row
    for migration in migrations.chain():
        connection.executescript(migrations.for_dialect(migration.text, "sqlite"))
    for text in FILL:
        connection.execute(text.format(calls=calls, bytes="blob"))
    if analyzed:
        connection.execute("analyze")
    return connection


def _instructions(connection: sqlite3.Connection, work: Callable[[], Transaction[Any]]) -> int:
    ticks = count()
    connection.execute("begin")
    connection.set_progress_handler(lambda: next(ticks) < 0, 1)
    try:
        _drive(work(), connection)
    finally:
        connection.set_progress_handler(None, 0)
        connection.execute("rollback")
    return next(ticks)


@pytest.mark.heavy
@STATISTICS
def test_on_sqlite_no_question_costs_more_on_a_longer_record(analyzed: bool) -> None:
    with (
        closing(_sqlite(SHORT, analyzed=analyzed)) as short,
        closing(_sqlite(LONG, analyzed=analyzed)) as long,
    ):
        cost = {
            name: (_instructions(short, work), _instructions(long, work)) for name, work in QUESTIONS.items()
        }
    assert {name: each for name, each in cost.items() if each[1] > each[0] * 1.1 + 50} == {}


def _looked_at(plan: dict[str, Any]) -> float:
    """Rows that its scans went through, those that they left out as well."""
    own = 0.0
    if "Scan" in plan["Node Type"]:
        own = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
    parts = sum(_looked_at(part) for part in plan.get("Plans", ()))
    return float(own * plan["Actual Loops"] + parts)


class Cost(NamedTuple):
    rows: float
    blocks: int  # of tables, their long values and their indices, in memory or not


async def _cost(connection: Any, work: Callable[[], Transaction[Any]]) -> Cost:
    looked, blocks, transaction = 0.0, 0, work()
    inside = connection.transaction()
    await inside.start()
    try:
        statement: Statement = next(transaction)
        while True:
            query, args = statement.query, [statement.args[name] for name in statement.query.parameters]
            await connection.execute(f"prepare question as {query.postgres}")
            given = f"({', '.join(map(_literal, args))})" if args else ""
            explain = (
                f"explain (analyze, buffers, timing off, summary off, format json) execute question{given}"
            )
            (found,) = msgspec.json.decode(await connection.fetchval(explain))
            assert "JIT" not in found  # compiling takes longer than any of them
            looked += _looked_at(found["Plan"])
            blocks += found["Plan"]["Shared Hit Blocks"] + found["Plan"]["Shared Read Blocks"]
            await connection.execute("deallocate question")
            statement = transaction.send(await connection.fetch(query.postgres, *args))
    except StopIteration:
        return Cost(looked, blocks)
    finally:
        await inside.rollback()


def _literal(value: str | int | float | bytes | None) -> str:
    return "null" if value is None else str(value) if isinstance(value, int) else f"'{value!s}'"


@pytest.mark.heavy
@pytest.mark.parametrize("plan", ["custom", "generic"])  # for these arguments or any: it takes either
async def test_on_postgres_no_question_costs_more_on_a_longer_record(postgres: Postgres, plan: str) -> None:
    cost: dict[str, list[Cost]] = {name: [] for name in QUESTIONS}
    for calls in (SHORT, LONG):
        url = postgres.new_database(MIGRATED)
        async with PostgresDatabase(url) as database, database._connection() as connection:
            await connection.execute(f"set plan_cache_mode = force_{plan}_plan")
            for text in FILL:
                await connection.execute(text.format(calls=calls, bytes="bytea"))
            await connection.execute("vacuum analyze")  # as it does by itself, where tests do not forbid that
            for name, work in QUESTIONS.items():
                cost[name].append(await _cost(connection, work))
    # What is small is read as a whole. Where it is long, each of the ten rows of a page is found by an index of a few levels.
    assert {
        name: (short, long)
        for name, (short, long) in cost.items()
        if long.rows > short.rows * 1.1 + 50 or long.blocks > short.blocks * 1.5 + 60
    } == {}


# The keys of so many days. A column that an upgrade added has no statistics before its table is analyzed, and so small a table
# is not for months: then Postgres takes next to none of its rows to have nothing there.
_DAYS = (
    f"""insert into content_key (workspace_id, owner, key_id, wrapped_key, created_at) {_CALLS}
    select 'local', 'day-' || i, 'key', cast('' as bytea), 0 from n""",
    "update trace_content set owner = 'day-' || (1 + seq % {calls})",
    "delete from content_key where owner not like 'day-%'",
    "vacuum analyze",
    """delete from pg_statistic where starelid = 'content_key'::regclass and staattnum = (
      select attnum from pg_attribute where attrelid = 'content_key'::regclass and attname = 'purged_at')""",
)


@pytest.mark.heavy
async def test_on_postgres_what_was_said_is_not_looked_for_once_for_each_key_before_these_are_analyzed(
    postgres: Postgres,
) -> None:
    url = postgres.new_database(MIGRATED)
    async with PostgresDatabase(url) as database, database._connection() as connection:
        for text in FILL:
            await connection.execute(text.format(calls=LONG, bytes="bytea"))
        for text in _DAYS:
            await connection.execute(text.format(calls=20))
        found = await _cost(connection, QUESTIONS["contents"])
    assert (
        found.rows <= 3 * 10
    )  # what was said in ten calls, and the key of each, which two steps of a plan hand on
