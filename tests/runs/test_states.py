"""The table of a run's states: what it must hold whatever is added to it."""

from typing import get_args

import pytest

from legation.errors import Conflict
from legation.runs.states import REFINED, TABLE, TERMINAL, ErrorClass, Fact, RunAct, RunState, move, status_of
from legation.wire.api.runs import RunStatus

# Names that come with outputs and deletion, which the table has no states for yet.
LATER = {"capturing_outputs", "pending_delete", "deleted"}


def test_every_state_is_reached_and_every_one_but_the_last_leads_to_an_end() -> None:
    ways = {state: {to for to in TABLE[state].values() if to} for state in RunState}
    ways[RunState.CLEANING] |= TERMINAL
    reached, ends = {RunState.QUEUED}, set(TERMINAL)
    for _ in RunState:
        reached |= {to for state in reached for to in ways[state]}
        ends |= {state for state in RunState if ways[state] & ends}
    assert reached == ends == set(RunState)


def test_every_act_is_of_use() -> None:
    assert {act for acts in TABLE.values() for act in acts} == set(RunAct)


def test_whatever_is_not_in_the_table_is_refused() -> None:
    for state in RunState:
        for act in RunAct:
            if act not in TABLE[state]:
                with pytest.raises(Conflict, match=rf"cannot {act} a run that is {state}"):
                    move(state, act)
    with pytest.raises(Conflict, match="no outcome"):
        move(RunState.CLEANING, RunAct.CLEAN)
    assert move(RunState.CLEANING, RunAct.CLEAN, RunState.FAILED) is RunState.FAILED


def test_a_run_can_be_cancelled_from_wherever_it_has_no_outcome() -> None:
    for state in set(RunState) - TERMINAL - {RunState.CLEANING, RunState.CANCELLING}:
        assert move(state, RunAct.CANCEL) in (RunState.CLEANING, RunState.CANCELLING)


def test_the_projection_has_every_name_and_no_other() -> None:
    names = {state.status for state in RunState} | set(REFINED.values())
    assert names | LATER == set(get_args(RunStatus))
    assert status_of(RunState.QUEUED, leased=True) == "claiming"
    assert status_of(RunState.RUNNING, leased=True, heard=False) == "dispatched"
    assert status_of(RunState.RUNNING, leased=True) == "provider_running"
    assert status_of(RunState.SUCCEEDED, cleanup="failed_terminal") == "cleanup_failed"
    assert status_of(RunState.CLEANING, cleanup="failed_terminal") == "cleaning_up"
    assert {fact for _, fact in REFINED} == set(Fact)


def test_nothing_is_tried_again_that_may_have_had_an_effect() -> None:
    assert {each for each in ErrorClass if each.retries} == {
        ErrorClass.PROVIDER_TRANSIENT,
        ErrorClass.UNAVAILABLE,
    }
