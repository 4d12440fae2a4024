-- name: tick [sqlite]
-- The database answered until now. By a little at a time: what passed while it did not is not counted.
update pulse set ms = ms + min(:now - at, :most), at = :now where id = 1 and at < :now;

-- name: tick [postgres]
-- The database answered until now. By a little at a time: what passed while it did not is not counted.
update pulse set ms = ms + least(:now - at, cast(:most as bigint)), at = :now where id = 1 and at < :now;

-- name: sign
-- A sign of life, of everything that it holds.
insert into holder (id, server, grace, seen) select :id, cast(:server as text), cast(:grace as bigint), ms from pulse where id = 1
on conflict (id) do update set seen = excluded.seen, grace = excluded.grace;

-- name: sign_off
-- It holds nothing any more, or is gone.
delete from holder where id = :id;

-- name: lost_holders
-- Of what is open or under way and does not outlive them, the holders that are gone: former processes of this server,
-- whose folder is ours now, those that signed off, and those that were silent for long.
select kept.holder from (
  select holder from approval where status in ('pending', 'approved') and consumed_at is null and outlives = 0
  union select holder from acting
) as kept
where kept.holder <> :id and not exists (
  select 1 from holder, pulse where holder.id = kept.holder and (holder.server is null or holder.server <> :server)
  and holder.seen + :dead > pulse.ms
) order by kept.holder;

-- name: forget_holders
-- Those that are gone: nothing that they held is left.
delete from holder where id <> :id and (server = :server or seen + :dead <= (select ms from pulse where id = 1))
and not exists (
  select 1 from approval where approval.holder = holder.id and status in ('pending', 'approved')
  and consumed_at is null and outlives = 0
) and not exists (select 1 from acting where acting.holder = holder.id);

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
  workspace_id, trace_id, holder, agent, tool, approval_id, session_id, turn_id, tool_call_id, since
) values (
  :workspace, :trace_id, :holder, :agent, :tool, :approval_id, :session_id, :turn_id, :tool_call_id, :now
);

-- name: end_effect
-- Its end is known.
delete from acting where workspace_id = :workspace and trace_id = :trace_id returning trace_id;

-- name: call_unknown
-- What became of a call under a key is not known.
update keyed_call set status = 'unknown', forget_at = :forget_at
where workspace_id = :workspace and trace_id = :trace_id and status = 'begun';

-- name: effects_of [sqlite]
-- What some holders had begun, in every workspace.
select * from acting where holder in (select value from json_each(:holders)) limit :limit;

-- name: effects_of [postgres]
-- What some holders had begun, in every workspace.
select * from acting where holder = any (array(select json_array_elements_text(cast(:holders as json)))) limit :limit;

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
