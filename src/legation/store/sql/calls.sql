-- name: add_call
-- One under a key of its caller's.
insert into keyed_call (
  id, workspace_id, requester_kind, requester, key, digest, waiter, holder, tool, trace_id, status, created_at, forget_at
) values (
  :id, :workspace, :requester_kind, :requester, :key, :digest, :waiter, :holder, :tool, :trace_id, :status, :now, :forget_at
);

-- name: call_by_key
-- As whoever made it finds it again: other callers' keys are theirs alone.
select * from keyed_call
where workspace_id = :workspace and requester_kind = :requester_kind and requester = :requester and key = :key;

-- name: call_by_id
-- By its id, of the one who made it.
select * from keyed_call
where workspace_id = :workspace and id = :id and requester_kind = :requester_kind and requester = :requester;

-- name: begin_call
-- It passes: once, by the process that holds it.
update keyed_call set status = :status, trace_id = :trace_id
where workspace_id = :workspace and id = :id and holder = :holder and status = 'waiting' returning id;

-- name: end_call
-- How it ended, for whoever comes back.
update keyed_call set status = :status, result = :result, forget_at = cast(:forget_at as bigint)
where workspace_id = :workspace and id = :id and holder = :holder and status = :former returning id;

-- name: use_call
-- The one use of an ask that passed.
update keyed_call set status = 'used', used_key = :used_key
where workspace_id = :workspace and id = :id and status in ('waiting', 'passed') returning id;

-- name: drop_call
-- It is taken back.
update keyed_call set status = 'refused'
where workspace_id = :workspace and id = :id and status in ('waiting', 'passed', 'refused') returning id;

-- name: stray_calls
-- Those that wait, and whose holder is gone or is this process itself, in every workspace, from one id on; asks are not
-- among them, which nobody but their asker acts on. The first condition is that of the index, which is not used without it.
select * from keyed_call as stray where status in ('waiting', 'begun') and status = 'waiting' and id > :after
and substr(waiter, 1, 5) = 'call:' and (
  holder = :id or not exists (
    select 1 from holder, pulse where holder.id = stray.holder and (holder.server is null or holder.server <> :server)
    and holder.seen + :dead > pulse.ms
  )
) order by id limit :limit;

-- name: adopt_call
-- The holder changes only if the old one is gone, and once.
update keyed_call set holder = :id where workspace_id = :workspace and keyed_call.id = :call and holder = :former
and status = 'waiting' and substr(waiter, 1, 5) = 'call:' and (
  holder = :id or not exists (
    select 1 from holder, pulse where holder.id = :former and (holder.server is null or holder.server <> :server)
    and holder.seen + :dead > pulse.ms
  )
) returning *;

-- name: adopt_approvals
-- What it waits for goes with it.
update approval set holder = :id where workspace_id = :workspace and waiter = :waiter and holder = :former
and status in ('pending', 'approved') and consumed_at is null;

-- name: forget_calls
-- Those that nobody came back for in time, in every workspace.
delete from keyed_call where id in (
  select id from keyed_call where forget_at <= :now order by forget_at limit :limit
) returning id;
