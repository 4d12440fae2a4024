"""What the contract of the host leaves to its implementation, and every diagnostic: each with its tests.

agentId / requestId format: `agent-<n>`, never used again; permissions have the ids of approvals, time-sortable
    host/test_agents: test_agent_ids_count_up_and_are_never_used_again
    host/test_permissions: test_two_permissions_at_once_are_answered_each_by_its_own_decision
cwd default: the host's own, and absolute before it reaches the agent
    host/test_options: test_a_definition_works_in_the_hosts_folder_unless_it_says_otherwise
    host/test_agents: test_a_session_works_where_its_agent_does_and_paths_reach_the_agent_absolute
kill timeout: 5 s unless given; first its input is closed, then it is killed
    host/test_agents: test_a_stubborn_agent_is_killed_after_the_kill_timeout_and_that_is_told
    host/test_agents: test_an_agent_that_ends_with_its_input_is_not_killed
    host/test_misbehaviour: test_a_deaf_agent_is_gone_soon_after_its_grace
auth errors: handed on, with the agent's ways to sign in as it announced them; it can be signed in and out
    host/test_agents: test_an_agent_that_wants_a_sign_in_says_how_and_takes_it
prompt protocol-error event shape: the error beside a placeholder, in the result and in the event; a crash raises
    host/test_agents: test_an_error_of_the_agent_is_a_placeholder_with_the_error_beside_it
    host/test_agents: test_a_result_without_an_error_raises_nothing_and_a_crash_raises
    host/test_session: test_an_error_of_the_agent_is_a_result_and_the_session_goes_on
normalization key-omission rule: null of an optional key is left out, but where null says something
    wire/test_normalize: test_null_of_an_optional_key_is_omitted
    wire/test_normalize: test_null_that_clears_session_info_is_kept
    wire/test_normalize: test_null_input_and_output_of_a_tool_are_passed_through
    wire/test_normalize: test_meta_and_unknown_keys_are_extensions
    wire/test_normalize: test_an_unrecognized_update_is_kept_whole
load/resume lifecycle: staged, seen by nobody until the commit
    host/test_load: test_an_unknown_session_is_invisible_until_the_agent_has_agreed
    host/test_load: test_an_unknown_session_that_is_refused_leaves_no_trace
    host/test_load: test_a_known_session_shows_resuming_and_loses_nothing_before_the_commit
    host/test_load: test_a_load_that_fails_leaves_a_known_session_as_it_was
    host/test_load: test_a_session_that_is_closed_while_it_is_loaded_stays_closed
    host/test_load: test_a_closed_session_is_reopened_by_a_load_and_not_by_a_resume
    host/test_load: test_a_session_closed_in_an_earlier_host_is_reopened_by_a_load_only
    host/test_load: test_a_deleted_session_stays_rejected
    host/test_takeup: test_a_resume_keeps_state_before_its_answer_and_all_that_follows_in_order
    host/test_takeup: test_an_agent_that_dies_while_it_replays_leaves_the_history_as_it_was
pre-ready failure inside a restart cycle: uses up the budget; the first start is not tried again
    host/test_restart: test_failures_before_ready_use_up_the_budget_with_growing_pauses
    host/test_restart: test_a_first_start_that_fails_is_not_tried_again
    host/test_restart: test_a_program_that_vanished_uses_up_the_budget_too
    host/test_restart: test_any_ready_resets_the_counter
    host/test_restart: test_a_clean_exit_is_not_restarted_nor_any_under_never
capability gating: what was not declared is not asked for; close and delete work here always
    host/test_agents: test_what_an_agent_did_not_declare_is_refused_before_it_is_asked
    host/test_agents: test_what_an_agent_declared_is_served
    host/test_end_of_sessions: test_an_agent_that_can_neither_close_nor_delete_hears_nothing_of_it
    host/test_end_of_sessions: test_an_agent_that_refuses_or_is_silent_keeps_no_session_open
    host/test_load: test_a_session_is_deleted_at_the_agent_that_the_caller_names
storage semantics: writes are queued and their failure told; tombstones are strict; what is restored
    host/test_storage: test_inv_5_a_failing_disk_is_told_once_and_disturbs_no_live_stream
    host/test_storage: test_an_end_that_cannot_be_written_is_refused_and_not_published
    host/test_storage: test_a_close_that_fails_at_the_last_moment_takes_its_word_back
    host/test_storage: test_only_open_sessions_that_can_be_read_are_restored
    store/test_jsonl: test_malformed_lines_are_skipped_and_reported
    store/test_jsonl: test_a_replace_that_fails_leaves_a_closed_stream_closed
dispose semantics: agents disposed, sessions disconnected, permissions superseded
    host/test_agents: test_dispose_ends_agents_sessions_and_permissions_and_tells_all_of_it
    host/test_end: test_dispose_ends_a_running_turn_and_its_question_and_disconnects_the_session
    host/test_end: test_dispose_stops_an_agent_that_is_still_starting
    host/test_end: test_a_cancelled_caller_does_not_stop_dispose
disposeAgent semantics: one agent, idempotent, removed and told; unlike one that ended by itself
    host/test_agents: test_a_disposed_agent_is_removed_and_its_sessions_keep_their_history
    host/test_agents: test_an_agent_that_ended_by_itself_stays_listed_with_its_exit
    host/test_restart: test_an_agent_is_disposed_of_in_its_pause
clientInfo: name and version
    host/test_agents: test_who_we_are_is_said_in_the_handshake
subscription shape: replay and live in one; a callback that fails disturbs nobody, without recursion
    host/test_host_stream: test_inv_2_a_callback_gets_the_exact_suffix_and_then_what_comes
    host/test_host_stream: test_a_callback_that_fails_is_told_and_disturbs_nobody
    host/test_host_stream: test_a_callback_that_always_fails_on_the_hosts_stream_does_not_go_round_for_ever
    host/test_host_stream: test_subscriptions_to_nothing_are_refused_at_once
unserializable-payload rejection: told without the payload; of itself it is dropped
    host/test_host_stream: test_an_event_that_is_no_json_is_rejected_without_its_payload
    host/test_host_stream: test_a_rejection_that_is_itself_no_json_is_dropped
    host/test_host_stream: test_a_prompt_that_is_no_json_is_refused_and_the_session_goes_on
initialize-failure exit backfill: told first, the exit added when there is one
    host/test_agents: test_another_protocol_version_is_killed_and_its_exit_added_later
AgentDefinition.meta: a frozen shallow copy
    host/test_options: test_a_definitions_meta_is_a_frozen_shallow_copy
protocol version negotiation: another version is killed
    host/test_agents: test_another_protocol_version_is_killed_and_its_exit_added_later
storage write-failure retries: stronger than none
    host/test_storage: test_inv_5_a_failing_disk_is_told_once_and_disturbs_no_live_stream
    store/test_failing_disk: test_a_full_disk_pauses_the_agent_and_loses_nothing
envelope endpoint: errors, permissions pushed back
    host/test_endpoint: test_an_error_of_ours_keeps_its_code
    host/test_endpoint: test_an_agents_own_error_is_agent_error_with_the_original_in_its_data
    host/test_endpoint: test_an_unknown_method_is_config_invalid
    host/test_endpoint: test_missing_parameters_are_all_named_in_one_config_invalid
terminal capability boundary: off unless injected; nothing outlives its session
    host/test_terminal_owners: test_terminals_are_off_unless_injected
    host/test_terminal_owners: test_a_command_runs_in_a_terminal_of_the_host
    host/test_terminal_owners: test_no_command_outlives_its_session_or_its_agent
    host/test_terminal_owners: test_a_handler_that_fails_to_clean_up_is_told_and_keeps_nothing_open
    host/test_handlers: test_inv_6_a_terminal_handler_without_one_of_its_methods_is_not_offered
terminal-session ownership: checked before the handler runs
    host/test_ownership: test_terminal_session_ownership_is_enforced_before_the_handler_runs
    host/test_terminal_owners: test_a_terminal_of_another_session_is_refused_before_the_handler
SessionMeta persistence: enough to restore, no secret, strict
    host/test_storage: test_no_secret_of_an_mcp_server_is_stored_or_told
    host/test_storage: test_a_session_that_cannot_be_stored_is_not_there
    host/test_storage: test_a_load_that_cannot_be_stored_changes_nothing
    host/test_storage: test_dispose_waits_for_what_is_queued
    host/test_storage: test_only_open_sessions_that_can_be_read_are_restored
configuration pipeline: all problems at once, frozen
    host/test_options: test_every_problem_of_the_options_is_named_at_once
    host/test_options: test_every_problem_of_a_definition_is_named_at_once_and_no_value_is_quoted
    host/test_options: test_options_are_frozen_and_have_the_documented_defaults
stronger than the original: what it leaves to chance
    host/test_order: test_updates_before_the_session_is_known_are_kept
    host/test_order: test_what_follows_the_answer_is_recorded_after_the_end_of_the_turn
    host/test_order: test_prompt_returns_only_when_its_last_update_is_on_the_disk
    host/test_end: test_an_agent_that_never_answers_initialize_is_stopped_and_its_stderr_shown
    host/test_session: test_an_idle_agent_is_cancelled_and_the_client_told
    host/test_permissions: test_silence_is_a_refusal
    host/test_session: test_a_cancel_between_the_answer_and_the_return_of_prompt_is_not_sent
    host/test_stray: test_stray_lines_are_reported_and_skipped
    host/test_load: test_a_known_session_shows_resuming_and_loses_nothing_before_the_commit
    host/test_restart: test_a_crashed_session_is_resumed_and_its_history_stays
    host/test_restart: test_an_agent_that_cannot_resume_has_its_session_loaded
    host/test_restart: test_a_resume_that_is_refused_is_followed_by_a_load
    host/test_restart: test_a_session_that_cannot_be_recovered_is_told_and_stays_disconnected
    host/test_restart: test_a_cancel_that_is_not_obeyed_ends_in_a_kill_and_the_session_goes_on
    host/test_misbehaviour: test_an_agent_behind_a_wrapper_is_gone_after_dispose
    host/test_router: test_a_hostile_agent_gets_nothing_from_outside
    host/test_takeup: test_what_a_killed_host_left_open_is_closed_when_its_session_is_taken_up

agent/spawn: started, with the names of its variables
    host/test_invariants: test_inv_7_a_start_tells_the_names_of_variables_and_no_value
agent/spawn-failed: no such program
    host/test_agents: test_a_program_that_cannot_be_started_stays_listed_with_its_reason
agent/initialized: it answered the handshake
    host/test_decisions: test_an_agents_life_is_told
agent/initialize-failed: it did not
    host/test_agents: test_another_protocol_version_is_killed_and_its_exit_added_later
agent/exit: with code or signal
    host/test_decisions: test_an_agents_life_is_told
agent/process-error: it could not be told
    host/test_end_of_sessions: test_an_agent_that_refuses_or_is_silent_keeps_no_session_open
agent/stderr: what it wrote there
    host/test_decisions: test_an_agents_life_is_told
agent/restart-scheduled: after a pause
    host/test_restart: test_failures_before_ready_use_up_the_budget_with_growing_pauses
agent/restart-suppressed: the policy says no
    host/test_restart: test_a_clean_exit_is_not_restarted_nor_any_under_never
agent/restart-exhausted: too often in a row
    host/test_restart: test_failures_before_ready_use_up_the_budget_with_growing_pauses
agent/kill: it did not end
    host/test_agents: test_a_stubborn_agent_is_killed_after_the_kill_timeout_and_that_is_told
agent/stray-line: no message
    host/test_stray: test_stray_lines_are_reported_and_skipped
agent/line-too-long: beyond the cap
    host/test_stray: test_a_line_over_the_cap_is_skipped_with_its_size
agent/unknown-session: an update that nobody wants
    host/test_order: test_updates_of_sessions_that_nobody_opens_are_dropped_beyond_the_bound
agent/unreadable-permission: nobody could be asked
    host/test_router: test_a_permission_that_cannot_be_read_is_told_in_the_session
agent/late-response: an answer that nobody waits for
    host/test_stray: test_an_answer_that_nobody_waits_for_is_reported
session/recovery-skipped: not taken up after a restart
    host/test_restart: test_a_session_that_cannot_be_recovered_is_told_and_stays_disconnected
session/load-failed: the agent would not
    host/test_load: test_an_unknown_session_that_is_refused_leaves_no_trace
session/replay-shorter: it told less than is recorded
    host/test_generations: test_an_agent_that_tells_less_than_is_recorded_does_not_replace_it
session/held-elsewhere: another server of the database has the id; it stays readable here
    server/peers/test_passed_once: test_an_id_that_two_servers_had_goes_to_the_first_to_claim
storage/write-failed: shown from memory
    host/test_storage: test_inv_5_a_failing_disk_is_told_once_and_disturbs_no_live_stream
storage/recovered: stored at last
    host/test_storage: test_inv_5_a_failing_disk_is_told_once_and_disturbs_no_live_stream
storage/malformed-line: skipped
    store/test_jsonl: test_malformed_lines_are_skipped_and_reported
clock/jumped: by more than an hour
    server/test_steadyclock: test_a_jump_of_more_than_an_hour_is_told_once
event/unserializable: no JSON
    host/test_host_stream: test_an_event_that_is_no_json_is_rejected_without_its_payload
subscriber/error: a callback failed
    host/test_host_stream: test_a_callback_that_fails_is_told_and_disturbs_nobody
"""

from pathlib import Path

from tests.host.docstring_lists import listed, missing
from tests.host.host_events import codes, told, until_code
from tests.host.rig import play, rig

from legation.wire.event_types import Diagnostic, DiagnosticCode

DECISIONS = 25  # of the contract, its configuration and what is stronger included


def test_every_decision_and_every_diagnostic_is_listed_with_tests_that_exist() -> None:
    found = listed(__doc__)
    assert missing(found) == []
    assert {head for head in found if "/" in head and " " not in head} - {"load/resume lifecycle"} == {
        *DiagnosticCode
    }
    assert len(found) == DECISIONS + len(DiagnosticCode)


async def test_an_agents_life_is_told(tmp_path: Path) -> None:
    """agent/initialized, agent/stderr, agent/exit; and nothing that went wrong."""
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        await play(session, "stderr 100")
        said = await until_code(made.host, "agent/stderr")
        assert said.message.startswith("the rehearsal agent has something to say")
        await made.host.dispose_agent("agent-1")
        life = ["agent/spawn", "agent/initialized", "agent/stderr", "agent/exit"]
        assert list(dict.fromkeys(await codes(made.host))) == life
        assert {each.agent_id for each in await told(made.host, Diagnostic)} == {"agent-1"}
