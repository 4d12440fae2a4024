"""The laws, for logs that nobody would write."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.wire.samples import UPDATES, json_updates, json_values, tagged
from tests.wire.universal.laws import check, events_of, project, project_messages
from tests.wire.universal.logs import ACTIVE, Entry, asked, call, change, chunk, in_params, log, output, turn

from legation.wire import jsontext
from legation.wire.acp.rpc import RpcError
from legation.wire.event_types import (
    AgentExited,
    Diagnostic,
    DiagnosticCode,
    PermissionAnswered,
    PromptFinished,
    QuestionAnswered,
    QuestionAsked,
    SessionReset,
    SessionStatus,
    TurnState,
)
from legation.wire.events import Draft, update_type

_turns = st.sampled_from(["trn_1", "trn_2", "trn_3"])
_calls = st.sampled_from(["c1", "c2"])
_texts = st.sampled_from(["", "a", "b\n", "\ud83d", "\ude00", "é\u2028", "ab"])
_outputs = st.lists(_texts, max_size=3).map(lambda texts: output(*texts))
_call_fields = st.fixed_dictionaries(
    {},
    optional={
        "status": st.sampled_from(["pending", "in_progress", "completed", "failed", "odd", None]),
        "content": _outputs,
        "title": _texts,
        "kind": st.sampled_from(["edit", "execute"]),
        "rawInput": json_values,
        "rawOutput": json_values,
    },
)
_kinds = st.sampled_from(["agent_message", "agent_thought", "user_message"])


def _update(value: object) -> Draft:
    raw = jsontext.write(value)
    return Draft(update_type(raw), raw)


_statuses = st.builds(
    lambda status, reason: SessionStatus(status=status, reason=reason),
    st.sampled_from(["starting", "active", "resuming", "disconnected", "closed", "deleted"]),
    st.sampled_from([None, "crashed: exit code 3", "ended: exit code 0", "disposed", "stopped: signal 9"]),
)
_turn_states = st.builds(
    lambda turn, state: TurnState(turn=turn, state=state),
    _turns,
    st.sampled_from(["accepted", "running", "requires-action", "idle"]),
)
_entries: st.SearchStrategy[Entry] = st.one_of(
    st.builds(chunk, _texts, st.sampled_from([None, "m1", "m2"]), _kinds).map(_update),
    st.builds(lambda name, fields: _update(call(name, **fields)), _calls, _call_fields),
    st.builds(lambda name, fields: _update(change(name, **fields)), _calls, _call_fields),
    st.sampled_from(sorted(UPDATES)).map(tagged),
    json_updates.map(_update),
    st.binary(max_size=20).map(lambda raw: Draft("unrecognized-update", raw)),
    st.builds(
        lambda type_, value: Draft(type_, jsontext.write(value)),
        st.sampled_from(["x", "turn-state"]),
        json_values,
    ),
    _turns.map(lambda name: turn(name=name)[0]),
    _turns.map(lambda name: PromptFinished(turn=name, stop_reason="end_turn")),
    _turns.map(lambda name: PromptFinished(turn=name, stop_reason="x", error=RpcError(1, "no"))),
    _turn_states,
    _statuses,
    st.sampled_from(
        [ACTIVE, SessionReset(reason="loaded"), AgentExited(code=3, stderr_tail="e"), AgentExited()]
    ),
    st.builds(asked, st.sampled_from(["apr_1", "apr_2"]), st.sampled_from([None, "c1", "c2"])),
    st.sampled_from(
        [
            PermissionAnswered(id="apr_1", outcome="approved", by="me"),
            PermissionAnswered(id="apr_1", outcome="denied", by="me"),
        ]
    ),
    json_values.map(
        lambda schema: QuestionAsked(
            id="q", message="m", mode="form", requested_schema={"properties": schema}
        )
    ),
    st.dictionaries(st.text(max_size=2), json_values).map(
        lambda fields: QuestionAsked(
            id="q",
            message="m",
            mode="form",
            requested_schema={"properties": {"f": fields, "g": {"enum": [fields]}}},
        )
    ),
    st.dictionaries(_texts, json_values, max_size=2).map(
        lambda content: QuestionAnswered(id="q", outcome="accepted", by="me", content=content)
    ),
    st.sampled_from(list(DiagnosticCode)).map(lambda code: Diagnostic(code=code, message="m")),
)


pytestmark = pytest.mark.heavy  # hundreds of logs


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_entries, max_size=16), st.sampled_from([1, 7]))
def test_the_laws_hold(entries: list[Entry], first: int) -> None:
    check(log(*entries, first=first))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_entries, max_size=16))
def test_old_rows_and_params_tell_the_same(entries: list[Entry]) -> None:
    old = log(*entries)
    new = in_params(old)
    check(new)
    assert project(new) == project(old)
    assert project_messages(new) == project_messages(old)
    mixed = [*old[::2], *new[1::2]]
    mixed.sort(key=lambda event: event.seq)
    assert project(mixed) == project(old)


def test_what_an_agent_puts_beside_an_update_is_in_raw_and_nowhere_else() -> None:
    old = log(*turn(chunk("a"), chunk("b")))
    new = in_params(old, b',"_meta":{"trace":1}')
    for before, after in zip(events_of(old), events_of(new), strict=True):
        params = after["raw"].pop("params", None) if after["raw"] else None
        assert before == after
        if after["type"] == "item.delta" and after["raw"]["type"] == "agent-message-chunk":
            update = after["raw"]["payload"]
            assert params == {"sessionId": "native-1", "_meta": {"trace": 1}, "update": update}
        else:
            assert params is None
