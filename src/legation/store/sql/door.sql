-- name: enroll
-- A process that waits, or a sign of its life.
insert into waiter (id, server, seen_at) values (:id, :server, :now)
on conflict (id) do update set seen_at = excluded.seen_at;

-- name: dead_waiters
-- Former processes of this server, whose folder is ours now, and any that were not seen for long.
select id from waiter where id <> :id and (server = :server or seen_at < :before) order by id;

-- name: forget_waiter
-- Nothing waits for it any more.
delete from waiter where id = :id;

-- name: attend
-- A supervisor looks at the approvals of some tools.
insert into attendance (workspace_id, supervisor, tools, seen_at) values (:workspace, :supervisor, :tools, :now)
on conflict (workspace_id, supervisor, tools) do update set seen_at = excluded.seen_at;

-- name: attend_to_few
-- Of what a supervisor looked at, only the newest patterns count.
delete from attendance where workspace_id = :workspace and supervisor = :supervisor and tools not in (
  select tools from attendance where workspace_id = :workspace and supervisor = :supervisor
  order by seen_at desc, tools limit :most
);

-- name: attending
-- Which tools supervisors looked at, and when last.
select tools, max(seen_at) as seen_at from attendance where workspace_id = :workspace and seen_at >= :since
group by tools;

-- name: forget_attendance
-- Of supervisors that were not seen for long, in every workspace.
delete from attendance where seen_at < :before;

-- name: begin_effect
-- It is written down before it begins.
insert into acting (
  workspace_id, trace_id, waiter, agent, tool, approval_id, session_id, turn_id, tool_call_id, since
) values (
  :workspace, :trace_id, :waiter, :agent, :tool, :approval_id, :session_id, :turn_id, :tool_call_id, :now
);

-- name: end_effect
-- Its end is known.
delete from acting where workspace_id = :workspace and trace_id = :trace_id returning trace_id;

-- name: effects_of [sqlite]
-- What some waiters had begun, in every workspace.
select * from acting where waiter in (select value from json_each(:waiters)) limit :limit;

-- name: effects_of [postgres]
-- What some waiters had begun, in every workspace.
select * from acting where waiter = any (array(select json_array_elements_text(cast(:waiters as json)))) limit :limit;

-- name: heads
-- Where the chains of all workspaces end: what other servers have written since.
select workspace_id, server, seq from trace_head where server <> :server;

-- name: steps_after
-- What another server wrote about approvals.
select seq, step, approval_id, reason from trace_step
where workspace_id = :workspace and server = :server and seq > :after and seq <= :last and approval_id is not null
order by seq;

-- name: workspaces
-- All of them: each has its stream of changes.
select id from workspace order by id;
