-- name: add_event
insert into run_event (workspace_id, run_id, seq, attempt, report, type, bytes, at, blob)
values (:workspace, :run, :seq, :attempt, :report, :type, :bytes, :at, :blob);

-- name: add_usage
-- What an attempt has cost so far is told again and again: the last one stands.
insert into usage_ledger (workspace_id, run_id, source, kind, user_id, amount, at)
values (:workspace, :run, :source, :kind, :user, :amount, :now)
on conflict (workspace_id, run_id, source, kind) do update set amount = excluded.amount, at = excluded.at;

-- name: events
select seq, attempt, type, bytes, at from run_event
where workspace_id = :workspace and run_id = :run and seq > :after order by seq limit :limit;

-- name: last_events
-- And when the run was last changed: what waited for an answer, or is resumed, has not been silent for as long as its last event is old.
select seq, type, at,
(select changed_at from run where run.workspace_id = run_event.workspace_id and run.id = run_event.run_id) as changed_at
from run_event where workspace_id = :workspace and run_id = :run order by seq desc limit :limit;

-- name: blobs_of
-- Those of a page whose lines are too long for it.
select seq, blob from run_event
where workspace_id = :workspace and run_id = :run and seq >= :first and seq <= :last and blob is not null;

-- name: usage
select kind, sum(amount) as amount from usage_ledger where workspace_id = :workspace and run_id = :run group by kind;

-- name: heads [sqlite]
-- Where each of these runs is: [{"workspace", "id"}].
select run.workspace_id, run.id, run.state, events.last_seq as head
from json_each(:runs) as wanted
join run on run.workspace_id = wanted.value ->> 'workspace' and run.id = wanted.value ->> 'id'
left join content_stream events
on events.workspace_id = run.workspace_id and events.owner = run.id and events.stream = 'events';

-- name: heads [postgres]
select run.workspace_id, run.id, run.state, events.last_seq as head
from jsonb_to_recordset(cast(:runs as jsonb)) as wanted (workspace text, id text)
join run on run.workspace_id = wanted.workspace and run.id = wanted.id
left join content_stream events
on events.workspace_id = run.workspace_id and events.owner = run.id and events.stream = 'events';

-- name: source
-- Which run and attempt a runner is of, and who submitted it.
select run.id, run.creator_user, runner.attempt from runner
join run on run.workspace_id = runner.workspace_id and run.id = runner.run_id
where runner.workspace_id = :workspace and runner.id = :runner;

-- name: unheard
-- How many messages an attempt was told that it never came to.
select count(*) as many from runner_command
where workspace_id = :workspace and runner_id = :runner and kind = 'message' and id > :after;
