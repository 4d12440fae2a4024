-- name: add_run
-- Due at once: whether its workspace has a slot is for the worker that claims it to see, so that no two submissions meet.
insert into run (id, workspace_id, creator_kind, creator, creator_user, template_id, template_hash, agent, provider, caps,
  idempotency_key, request_hash, priority, secret_id, state, created_at, next_check_at, changed_at)
values (:id, :workspace, :creator_kind, :creator, :creator_user, :template_id, :template_hash, :agent, :provider, :caps,
  :idempotency_key, :request_hash, :priority, :secret_id, 'queued', :now, :now, :now);

-- name: run
select id, workspace_id, creator_kind, creator, creator_user, template_id, template_hash, agent, provider, caps, priority,
created_at, next_check_at, woken, cancel_requested_at, delete_requested_at, lease_owner, lease_token, lease_expires_at, state, outcome,
cleanup, error_class, error_code, error_reason, machine, attempt, has_slot, secret_id, waits_for, resume_at, watermark, tries,
started_at, deadline_at, ended_at
from run where workspace_id = :workspace and id = :id;

-- name: run_by_key
select id, request_hash from run where workspace_id = :workspace and idempotency_key = :idempotency_key;

-- name: claim [postgres]
-- What is due, bound to this machine or to none: the more urgent first, then what was begun before what is new, then the longest due.
-- Each of the six is a range of the index, so neither what is not due nor what is bound elsewhere is gone through.
with due as materialized (
  select found.id from (values (2, cast(:machine as text)), (2, cast('' as text)), (1, cast(:machine as text)), (1, cast('' as text)), (0, cast(:machine as text)), (0, cast('' as text))) as band (priority, machine)
  cross join lateral (
    select id from run where run.machine = band.machine and run.priority = band.priority and next_check_at <= :now
    and (lease_expires_at is null or lease_expires_at <= :now)
    order by next_check_at, id limit :limit for update skip locked
  ) as found limit :limit
)
update run set lease_owner = :owner, lease_token = :token, lease_expires_at = :until
from due where run.id = due.id
returning run.id, run.workspace_id, run.creator_kind, run.creator, run.creator_user, run.template_id, run.template_hash, run.agent,
run.provider, run.caps, run.priority, run.created_at, run.next_check_at, run.woken, run.cancel_requested_at,
run.delete_requested_at, run.lease_owner, run.lease_token, run.lease_expires_at, run.state, run.outcome, run.cleanup,
run.error_class, run.error_code, run.error_reason, run.machine, run.attempt, run.has_slot, run.secret_id, run.waits_for,
run.resume_at, run.watermark, run.tries, run.started_at, run.deadline_at, run.ended_at;

-- name: claim [sqlite]
update run set lease_owner = :owner, lease_token = :token, lease_expires_at = :until
where id in (
  select id from (
    select id from run where machine = :machine and priority = 2 and next_check_at <= :now
    and (lease_expires_at is null or lease_expires_at <= :now) order by next_check_at, id limit :limit
  )
  union all
  select id from (
    select id from run where machine = '' and priority = 2 and next_check_at <= :now
    and (lease_expires_at is null or lease_expires_at <= :now) order by next_check_at, id limit :limit
  )
  union all
  select id from (
    select id from run where machine = :machine and priority = 1 and next_check_at <= :now
    and (lease_expires_at is null or lease_expires_at <= :now) order by next_check_at, id limit :limit
  )
  union all
  select id from (
    select id from run where machine = '' and priority = 1 and next_check_at <= :now
    and (lease_expires_at is null or lease_expires_at <= :now) order by next_check_at, id limit :limit
  )
  union all
  select id from (
    select id from run where machine = :machine and priority = 0 and next_check_at <= :now
    and (lease_expires_at is null or lease_expires_at <= :now) order by next_check_at, id limit :limit
  )
  union all
  select id from (
    select id from run where machine = '' and priority = 0 and next_check_at <= :now
    and (lease_expires_at is null or lease_expires_at <= :now) order by next_check_at, id limit :limit
  )
  limit :limit
)
returning id, workspace_id, creator_kind, creator, creator_user, template_id, template_hash, agent, provider, caps, priority,
created_at, next_check_at, woken, cancel_requested_at, delete_requested_at, lease_owner, lease_token, lease_expires_at, state, outcome,
cleanup, error_class, error_code, error_reason, machine, attempt, has_slot, secret_id, waits_for, resume_at, watermark, tries,
started_at, deadline_at, ended_at;

-- name: renew [postgres]
-- All leases of a process, of a list in JSON: [{"id", "token"}]. One that has run out is not taken up again, though nobody has it yet:
-- whoever was away so long is no longer sure of anything.
update run set lease_expires_at = :until
from jsonb_to_recordset(cast(:leases as jsonb)) as held (id text, token text)
where run.id = held.id and run.lease_token = held.token and run.lease_expires_at > :now
returning run.id;

-- name: renew [sqlite]
update run set lease_expires_at = :until
where lease_expires_at > :now
and (id, lease_token) in (select value ->> 'id', value ->> 'token' from json_each(:leases))
returning id;

-- name: release [postgres]
-- Of steps that changed nothing: [{"id", "token", "next", "woken"}]. Woken meanwhile, it is due at once.
update run set lease_owner = null, lease_token = null, lease_expires_at = null,
next_check_at = case when run.woken = held.woken then held.next else cast(:now as bigint) end
from jsonb_to_recordset(cast(:leases as jsonb)) as held (id text, token text, next bigint, woken bigint)
where run.id = held.id and run.lease_token = held.token and run.lease_expires_at > :now
returning run.id;

-- name: release [sqlite]
update run set lease_owner = null, lease_token = null, lease_expires_at = null,
next_check_at = case when woken = held.value ->> 'woken' then held.value ->> 'next' else :now end
from json_each(:leases) as held
where run.id = held.value ->> 'id' and run.lease_token = held.value ->> 'token' and run.lease_expires_at > :now
returning run.id;

-- name: settle [postgres]
-- Of steps that changed the run: all that the holder of a lease writes, [{"id", "token", "next", "woken", ...}], and the lease is released.
update run set state = done.state, outcome = done.outcome, cleanup = done.cleanup, error_class = done.error_class, error_code =
done.error_code, error_reason = done.error_reason, machine = done.machine, attempt = done.attempt, has_slot = done.has_slot,
secret_id = done.secret_id, waits_for = done.waits_for, resume_at = done.resume_at, watermark = done.watermark, tries =
done.tries, started_at = done.started_at, deadline_at = done.deadline_at, ended_at = done.ended_at, changed_at = :now,
lease_owner = null, lease_token = null, lease_expires_at = null,
next_check_at = case when done.ended_at is null and run.woken <> done.woken then cast(:now as bigint) else done.next end
from jsonb_to_recordset(cast(:changes as jsonb)) as done (id text, token text, next bigint, woken bigint,
  state text, outcome text, cleanup text, error_class text, error_code text, error_reason text, machine text,
  attempt bigint, has_slot bigint, secret_id text, waits_for text, resume_at bigint, watermark text, tries bigint, started_at bigint,
  deadline_at bigint, ended_at bigint)
where run.id = done.id and run.lease_token = done.token and run.lease_expires_at > :now
returning run.id;

-- name: settle [sqlite]
update run set state = done.value ->> 'state', outcome = done.value ->> 'outcome', cleanup = done.value ->> 'cleanup', error_class = done.value
->> 'error_class', error_code = done.value ->> 'error_code', error_reason = done.value ->> 'error_reason', machine = done.value
->> 'machine', attempt = done.value ->> 'attempt', has_slot = done.value ->> 'has_slot', secret_id = done.value ->> 'secret_id',
waits_for = done.value ->> 'waits_for', resume_at = done.value ->> 'resume_at', watermark = done.value ->> 'watermark', tries =
done.value ->> 'tries', started_at = done.value ->> 'started_at', deadline_at = done.value ->> 'deadline_at', ended_at =
done.value ->> 'ended_at', changed_at = :now,
lease_owner = null, lease_token = null, lease_expires_at = null,
next_check_at = case when done.value ->> 'ended_at' is null and woken <> done.value ->> 'woken' then :now else done.value ->> 'next' end
from json_each(:changes) as done
where run.id = done.value ->> 'id' and run.lease_token = done.value ->> 'token' and run.lease_expires_at > :now
returning run.id;

-- name: hold [postgres]
-- Whether the lease still holds, and what was asked for meanwhile. For the rest of the transaction nobody else gets it.
select cancel_requested_at, delete_requested_at, woken from run
where workspace_id = :workspace and id = :id and lease_token = :token and lease_expires_at > :now for update;

-- name: hold [sqlite]
select cancel_requested_at, delete_requested_at, woken from run
where workspace_id = :workspace and id = :id and lease_token = :token and lease_expires_at > :now;

-- name: request_cancel
-- Once; of one that has not ended.
update run set cancel_requested_at = :now, next_check_at = :now, woken = woken + 1, changed_at = :now
where workspace_id = :workspace and id = :id and ended_at is null and cancel_requested_at is null
returning id;

-- name: wake
-- Something that it waits for has happened. One that has ended, or waits for a slot, has no use for it.
update run set next_check_at = :now, woken = woken + 1
where workspace_id = :workspace and id = :id and ended_at is null and next_check_at is not null
returning id;

-- name: lock_slots
-- How many are taken; for the rest of the transaction nobody else takes or gives back one.
insert into run_slots (workspace_id, taken) values (:workspace, 0)
on conflict (workspace_id) do update set taken = run_slots.taken returning taken;

-- name: set_slots
update run_slots set taken = :taken where workspace_id = :workspace;

-- name: unpark
-- Slots that were given back go to those that wait the longest: each is due, and has one already.
update run set next_check_at = :now, has_slot = 1
where id in (
  select id from run where workspace_id = :workspace and state = 'queued' and next_check_at is null
  order by priority desc, id limit :limit
)
returning id;

-- name: add_attempt
insert into run_attempt (id, workspace_id, run_id, number, machine, created_at)
values (:id, :workspace, :run, :number, :machine, :now)
on conflict (id) do update set machine = excluded.machine;

-- name: attempt
select id, number, machine, session_id, handed_at, error_class, error_code, created_at, ended_at from run_attempt
where workspace_id = :workspace and run_id = :run and number = :number;

-- name: note_handed
update run_attempt set handed_at = :now where workspace_id = :workspace and id = :id and handed_at is null;

-- name: end_attempt
update run_attempt set ended_at = :now, error_class = :error_class, error_code = :error_code
where workspace_id = :workspace and id = :id and ended_at is null;

-- name: intend
-- Before it is made; one that is there already stays as it is, one that an earlier attempt had is made again.
insert into run_resource (run_id, name, workspace_id, attempt, kind, state, intended_at)
values (:run, :name, :workspace, :attempt, :kind, 'intended', :now)
on conflict (workspace_id, run_id, name) do update set attempt = excluded.attempt, state = 'intended', intended_at = excluded.intended_at,
made_at = null, gone_at = null where run_resource.state in ('gone', 'retained');

-- name: note_made
update run_resource set state = 'made', external_id = :external_id, made_at = :now
where workspace_id = :workspace and run_id = :run and name = :name and state in ('intended', 'made');

-- name: note_gone
update run_resource set state = :state, gone_at = :now
where workspace_id = :workspace and run_id = :run and name = :name and state <> 'gone';

-- name: resources
select name, attempt, kind, state, external_id from run_resource
where workspace_id = :workspace and run_id = :run order by attempt desc, name;

-- name: add_cleanup
-- Numbered over all attempts of the run.
insert into cleanup_attempt (run_id, name, number, workspace_id, status, error_code, error_reason, at)
select cast(:run as text), cast(:name as text), coalesce(max(number), 0) + 1, cast(:workspace as text), cast(:status as text),
cast(:error_code as text), cast(:error_reason as text), cast(:now as bigint)
from cleanup_attempt where workspace_id = :workspace and run_id = :run and name = :name;

-- name: see_worker
insert into worker (id, machine, version, started_at, seen_at) values (:id, :machine, :version, :now, :now)
on conflict (id) do update set seen_at = excluded.seen_at;

-- name: workers
select id, machine, version, started_at, seen_at from worker where seen_at > :since;

-- name: forget_workers
-- Not while something is bound to its machine: nobody else would know that it is lost.
delete from worker where seen_at < :before and not exists (
  select 1 from run where run.machine = worker.machine and run.next_check_at is not null
);

-- name: lost_machines
-- Machines whose workers are all silent.
select machine from worker group by machine having max(seen_at) < :before;

-- name: register_runner
-- Before it is started. Started again, it has another token; what it has reported stays.
insert into runner (id, workspace_id, token_digest, machine, created_at, seen_at, run_id, attempt)
values (:id, :workspace, :token_digest, :machine, :now, :now, :run, :attempt)
on conflict (id) do update set token_digest = excluded.token_digest, seen_at = excluded.seen_at;

-- name: retire_runner
-- Of a run that has ended: one that still lives somewhere is refused from now on, and stops its agent.
update runner set token_digest = :none where workspace_id = :workspace and id = :id;

-- name: runner_state
-- How a runner stands, with the process that was noted for it, what it was told last of pausing, and the oldest approval that it waits for.
select runner.limited_until, (
  select told.kind from runner_command told
  where told.workspace_id = runner.workspace_id and told.runner_id = runner.id and told.kind in ('pause', 'resume')
  order by told.id desc limit 1
) as told, runner.seen_at, runner.heard_at, runner.ended_at, runner.ended_kind, runner.ended_code, made.external_id, (
  select min(asked.id) from keyed_call asked
  where asked.workspace_id = runner.workspace_id and asked.requester_kind = 'runner' and asked.requester = runner.id
  and asked.status = 'waiting' and not exists (
    select 1 from runner_command given where given.workspace_id = runner.workspace_id and given.runner_id = runner.id
    and given.key = asked.id
  )
) as waits_for
from runner left join run_resource made
on made.workspace_id = runner.workspace_id and made.run_id = runner.run_id and made.name = runner.id
where runner.workspace_id = :workspace and runner.id = :id;

-- name: caps
-- What a run was submitted under.
select caps from run where workspace_id = :workspace and id = :id;

-- name: acts [sqlite]
-- Whether an attempt may have done more than look: a call of a kind that is not harmless was let pass, something was done unasked, or its
-- agent was told more than its prompt. What waits for an answer, or was refused, was not done. `id > 0` names the key, for the plan.
select 1 as acted where exists (
  select 1 from keyed_call asked left join trace_step step
  on step.workspace_id = asked.workspace_id and step.trace_id = asked.trace_id and step.step = 'proposed'
  where asked.workspace_id = :workspace and asked.requester_kind = 'runner' and asked.requester = :runner
  and (asked.status not in ('waiting', 'refused') or exists (
    select 1 from approval where approval.workspace_id = asked.workspace_id and approval.id = asked.id and approval.status = 'approved'
  ))
  and coalesce(step.kind, 'other') not in (select value from json_each(:harmless))
) or exists (
  select 1 from run_event where workspace_id = :workspace and run_id = :run and attempt = :attempt and type = 'unasked-effect'
) or exists (
  select 1 from runner_command where workspace_id = :workspace and runner_id = :runner and id > 0 and kind = 'message'
);

-- name: acts [postgres]
select 1 as acted where exists (
  select 1 from keyed_call asked left join trace_step step
  on step.workspace_id = asked.workspace_id and step.trace_id = asked.trace_id and step.step = 'proposed'
  where asked.workspace_id = :workspace and asked.requester_kind = 'runner' and asked.requester = :runner
  and (asked.status not in ('waiting', 'refused') or exists (
    select 1 from approval where approval.workspace_id = asked.workspace_id and approval.id = asked.id and approval.status = 'approved'
  ))
  and coalesce(step.kind, 'other') not in (select json_array_elements_text(cast(:harmless as json)))
) or exists (
  select 1 from run_event where workspace_id = :workspace and run_id = :run and attempt = :attempt and type = 'unasked-effect'
) or exists (
  select 1 from runner_command where workspace_id = :workspace and runner_id = :runner and kind = 'message'
);

-- name: shut_out
-- Nothing of a runner counts any more, whatever it reports or asks.
update runner set ended_at = :now, ended_kind = 'prompt_failed', ended_code = 'runner'
where workspace_id = :workspace and id = :id and ended_at is null;
