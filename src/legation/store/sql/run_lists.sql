-- name: by_keys [sqlite]
-- Runs that the keys of a group of submissions name already.
select id, idempotency_key, request_hash from run
where workspace_id = :workspace and idempotency_key in (select value from json_each(:keys));

-- name: by_keys [postgres]
select id, idempotency_key, request_hash from run
where workspace_id = :workspace
and idempotency_key = any (array(select json_array_elements_text(cast(:keys as json))));

-- name: page
-- The newest first. Whatever is null is not asked for; `search` is the beginning of an id, an agent or a template's hash.
select id, workspace_id, creator_kind, creator, creator_user, template_id, template_hash, agent, provider, caps, priority,
created_at, next_check_at, woken, cancel_requested_at, delete_requested_at, lease_owner, lease_token, lease_expires_at, state, outcome,
cleanup, error_class, error_code, error_reason, machine, attempt, has_slot, secret_id, waits_for, resume_at, watermark, tries,
started_at, deadline_at, ended_at
from run where workspace_id = :workspace and id < :after
and (cast(:state as text) is null or state = :state)
and (cast(:agent as text) is null or agent = :agent)
and (cast(:template as text) is null or template_id = :template or template_hash = :template)
and (cast(:creator as text) is null or creator = :creator or creator_user = :creator)
and (cast(:active as text) is null or (ended_at is null) = (cast(:active as text) = 'yes'))
and (cast(:search as text) is null or id like :search or agent like :search or template_hash like :search)
order by id desc limit :limit;

-- name: worker_seen
-- Whether anybody is there to work.
select max(seen_at) as at from worker;

-- name: runner_heard
select heard_at, seen_at from runner where workspace_id = :workspace and id = :id;

-- name: asked
-- Who is to answer the approval that a run waits for.
select needs from approval where workspace_id = :workspace and id = :id;

-- name: template
-- By its id or its hash, each by its index; no text is both.
select id, name, hash, bytes, created_at, created_by from run_template where workspace_id = :workspace and id = :name
union all
select id, name, hash, bytes, created_at, created_by from run_template where workspace_id = :workspace and hash = :name;

-- name: templates
select id, name, hash, bytes, created_at, created_by from run_template
where workspace_id = :workspace and id > :after order by id limit :limit;

-- name: add_template
insert into run_template (id, workspace_id, name, hash, bytes, created_at, created_kind, created_by, created_user)
values (:id, :workspace, :name, :hash, :bytes, :now, :kind, :by, :user);

-- name: resume
-- Nobody else writes a failed run, but whoever packs its events: that one loses its lease. It is as it was when it was submitted, with
-- secrets of its own and its attempts.
update run set state = :state, outcome = null, cleanup = 'not_started', error_class = null, error_code = null, error_reason = null,
machine = '', secret_id = :secret_id, waits_for = null, resume_at = null, tries = 0, started_at = null, deadline_at = null,
ended_at = null, cancel_requested_at = null, next_check_at = :now, woken = woken + 1, changed_at = :now,
lease_owner = null, lease_token = null, lease_expires_at = null
where workspace_id = :workspace and id = :id and state = 'failed' and delete_requested_at is null
returning id;

-- name: changed
-- What changed lately, of all workspaces.
select workspace_id, id, state, cleanup, waits_for, cancel_requested_at, changed_at from run
where changed_at > 0 and (changed_at, id) > (:since, :after) order by changed_at, id limit :limit;

-- name: under_way
-- Runs that somebody works on, the one changed last first: as many as there are slots.
select id, agent, state, changed_at from run
where workspace_id = :workspace and state in ('preparing', 'starting', 'running', 'paused', 'suspended', 'cancelling')
order by changed_at desc, id limit :limit;

-- name: at_work
-- Runs of all workspaces whose agents work, with the number and time of the last event of each, the one changed last first. Who has no
-- slot taken has none: so nothing is read of what has ended.
select run.workspace_id, run.id, run.changed_at,
(select max(seq) from run_event where run_event.workspace_id = run.workspace_id and run_event.run_id = run.id) as head,
(select at from run_event where run_event.workspace_id = run.workspace_id and run_event.run_id = run.id
  order by seq desc limit 1) as heard_at
from run_slots cross join run -- in this order, for SQLite: by the slots to the runs
where run_slots.taken > 0 and run.workspace_id = run_slots.workspace_id and run.state = 'running' order by run.changed_at desc, run.id limit :limit;

-- name: ended [sqlite]
-- How runs of a list ended: ids in JSON.
select id, agent, state, cleanup, error_class, error_reason from run
where workspace_id = :workspace and id in (select value from json_each(:ids));

-- name: ended [postgres]
select id, agent, state, cleanup, error_class, error_reason from run
where workspace_id = :workspace and id = any (array(select json_array_elements_text(cast(:ids as json))));

-- name: bound
-- To a machine, of any workspace: what is under way there.
select workspace_id, id, outcome from run where machine = :machine and machine <> '' and next_check_at is not null;
