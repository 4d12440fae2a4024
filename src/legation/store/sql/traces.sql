-- name: head
-- Where a chain ends.
select seq, hash from trace_head where workspace_id = :workspace and server = :server;

-- name: place [sqlite]
-- Where a chain ends, and the content keys of some owners, as far as they are there: a row for each, or one without any;
-- none where there is no such workspace.
select h.seq, h.hash, k.owner, k.key_id, k.wrapped_key from workspace w
left join trace_head h on h.workspace_id = w.id and h.server = :server
left join content_key k on k.workspace_id = w.id and k.owner in (select value from json_each(:owners))
where w.id = :workspace;

-- name: place [postgres]
-- Where a chain ends, and the content keys of some owners, as far as they are there: a row for each, or one without any;
-- none where there is no such workspace.
select h.seq, h.hash, k.owner, k.key_id, k.wrapped_key from workspace w
left join trace_head h on h.workspace_id = w.id and h.server = :server
left join content_key k on k.workspace_id = w.id
  and k.owner = any (array(select json_array_elements_text(cast(:owners as json))))
where w.id = :workspace;

-- name: append
-- One step; `hash` is over all the others.
insert into trace_step (
  workspace_id, server, seq, at, step, trace_id, agent, tool, approval_id, session_id, turn_id, tool_call_id, kind,
  action_digest, policy, policy_rule, policy_version, status, reason, actor_kind, actor, actor_user, actor_level,
  confidence, status_code, latency_ms, replaces, content_owner, digests, prev_hash, cut, hash
) values (
  :workspace_id, :server, :seq, :at, :step, :trace_id, :agent, :tool, :approval_id, :session_id, :turn_id,
  :tool_call_id, :kind, :action_digest, :policy, :policy_rule, :policy_version, :status, :reason, :actor_kind,
  :actor, :actor_user, :actor_level, :confidence, :status_code, :latency_ms, :replaces, :content_owner, :digests,
  :prev_hash, :cut, :hash
);

-- name: advance [sqlite]
-- Only from where it ended; the first time it is made. The steps were written before, one by one: here a statement is no
-- way there and back.
insert into trace_head (workspace_id, server, seq, hash)
select :workspace, :server, :seq, :hash where :steps is null
on conflict (workspace_id, server) do update set seq = excluded.seq, hash = excluded.hash
where trace_head.seq = :former returning seq;

-- name: advance [postgres]
-- Only from where it ended, and all of the append with it, in one statement: or nothing is written. `steps` is a JSON array of
-- rows; `contents` is one of places in `bodies`, which are all sealed values in one piece.
with moved as (
  insert into trace_head (workspace_id, server, seq, hash) values (:workspace, :server, :seq, :hash)
  on conflict (workspace_id, server) do update set seq = excluded.seq, hash = excluded.hash
  where trace_head.seq = :former returning seq
), steps as (
  insert into trace_step (
    workspace_id, server, seq, at, step, trace_id, agent, tool, approval_id, session_id, turn_id, tool_call_id, kind,
    action_digest, policy, policy_rule, policy_version, status, reason, actor_kind, actor, actor_user, actor_level,
    confidence, status_code, latency_ms, replaces, content_owner, digests, prev_hash, cut, hash
  ) select
    workspace_id, server, seq, at, step, trace_id, agent, tool, approval_id, session_id, turn_id, tool_call_id, kind,
    action_digest, policy, policy_rule, policy_version, status, reason, actor_kind, actor, actor_user, actor_level,
    confidence, status_code, latency_ms, replaces, content_owner, digests, prev_hash, cut, hash
  from json_to_recordset(cast(:steps as json)) as r (
    workspace_id text, server text, seq bigint, at bigint, step text, trace_id text, agent text, tool text,
    approval_id text, session_id text, turn_id text, tool_call_id text, kind text, action_digest text, policy
    text, policy_rule text, policy_version text, status text, reason text, actor_kind text, actor text, actor_user
    text, actor_level bigint, confidence double precision, status_code bigint, latency_ms bigint, replaces text,
    content_owner text, digests text, prev_hash text, cut text, hash text
  ) where exists (select 1 from moved)
), contents as (
  insert into trace_content (workspace_id, server, seq, name, trace_id, owner, body)
  select :workspace, :server, r.seq, r.name, r.trace_id, r.owner, substr(cast(:bodies as bytea), r.start, r.size)
  from json_to_recordset(cast(:contents as json))
    as r (seq bigint, name text, trace_id text, owner text, start integer, size integer)
  where exists (select 1 from moved)
) select seq from moved;

-- name: add_key
-- With the owner's first content. Another server may be faster: then there is one, and it is read again.
insert into content_key (workspace_id, owner, key_id, wrapped_key, created_at)
values (:workspace, :owner, :key_id, :wrapped_key, :now)
on conflict (workspace_id, owner) do nothing returning owner;

-- name: add_content
-- One sealed value of a step.
insert into trace_content (workspace_id, server, seq, name, trace_id, owner, body)
values (:workspace, :server, :seq, :name, :trace_id, :owner, :body);

-- name: contents_of [sqlite]
-- What was said in some traces, with the keys it opens with; `names` are the wanted ones. The index is named, or the
-- order would have SQLite walk through all that was ever said in the workspace.
select c.server, c.seq, c.name, c.trace_id, c.owner, c.body, k.key_id, k.wrapped_key
from trace_content c indexed by trace_content_by_trace join content_key k on k.workspace_id = c.workspace_id and k.owner = c.owner
  and k.purged_at is null
where c.workspace_id = :workspace and c.trace_id in (select value from json_each(:traces))
and c.name in (select value from json_each(:names)) order by c.server, c.seq;

-- name: contents_of [postgres]
-- What was said in some traces, with the keys it opens with; `names` are the wanted ones. All that was said in these traces is looked
-- up, then the key of each (`offset` keeps them in that order): or Postgres would go through all of these names, or with each of few keys.
select c.server, c.seq, c.name, c.trace_id, c.owner, c.body, k.key_id, k.wrapped_key
from (
  select server, seq, name, trace_id, workspace_id, owner, body from trace_content
  where workspace_id = :workspace and trace_id = any (array(select json_array_elements_text(cast(:traces as json)))) offset 0
) c cross join lateral (
  select key_id, wrapped_key from content_key
  where workspace_id = c.workspace_id and owner = c.owner and purged_at is null offset 0
) k
where c.name = any (array(select json_array_elements_text(cast(:names as json)))) order by c.server, c.seq;

-- name: ending_step
-- The step that an approval ended with.
select server, seq, reason from trace_step
where workspace_id = :workspace and trace_id = :trace and approval_id = :approval and step = :step
order by at desc, seq desc limit 1;

-- name: endings [sqlite]
-- Why approvals ended without an answer, by their traces.
select approval_id, step, reason from trace_step
where workspace_id = :workspace and trace_id in (select value from json_each(:traces))
and step in ('expired', 'superseded', 'cancelled');

-- name: endings [postgres]
-- Why approvals ended without an answer, by their traces.
select approval_id, step, reason from trace_step
where workspace_id = :workspace
and trace_id = any (array(select json_array_elements_text(cast(:traces as json))))
and step in ('expired', 'superseded', 'cancelled');

-- name: contents_between
-- What was said in a stretch of a chain.
select c.server, c.seq, c.name, c.trace_id, c.owner, c.body, k.key_id, k.wrapped_key
from trace_content c join content_key k on k.workspace_id = c.workspace_id and k.owner = c.owner
  and k.purged_at is null
where c.workspace_id = :workspace and c.server = :server and c.seq > :after and c.seq <= :last order by c.seq;

-- name: steps_of [sqlite]
-- Every step of some traces, in the order of time; steps of one server keep theirs.
select * from trace_step
where workspace_id = :workspace and trace_id in (select value from json_each(:traces))
order by at, server, seq;

-- name: steps_of [postgres]
-- Every step of some traces, in the order of time; steps of one server keep theirs.
select * from trace_step
where workspace_id = :workspace
and trace_id = any (array(select json_array_elements_text(cast(:traces as json))))
order by at, server, seq;

-- name: steps_between
-- A stretch of a chain.
select * from trace_step
where workspace_id = :workspace and server = :server and seq > :after and seq <= :last order by seq limit :limit;

-- name: keys_between
-- Which content keys of a stretch are still there, and since when.
select owner, created_at from content_key
where workspace_id = :workspace and purged_at is null and owner in (
  select content_owner from trace_step
  where workspace_id = :workspace and server = :server and seq > :after and seq <= :last
);

-- name: approvals_of [sqlite]
-- Those of some ids that are there.
select * from approval where workspace_id = :workspace and id in (select value from json_each(:ids));

-- name: approvals_of [postgres]
-- Those of some ids that are there.
select * from approval
where workspace_id = :workspace and id = any (array(select json_array_elements_text(cast(:ids as json))));

-- name: untraced
-- Approvals that no trace tells of.
select id from approval
where workspace_id = :workspace and not exists (
  select 1 from trace_step
  where trace_step.workspace_id = approval.workspace_id and trace_step.trace_id = approval.trace_id
  and trace_step.approval_id = approval.id and trace_step.step = 'proposed'
) order by id limit :limit;

-- name: beyond
-- The last step there is, which must be the one that the head names.
select coalesce(max(seq), 0) as seq from trace_step where workspace_id = :workspace and server = :server;

-- name: chains
-- The servers that have a chain in a workspace, also one whose head was removed: one step through the index for each,
-- however long it is.
with recursive found (server) as (
  select min(server) from trace_step where workspace_id = :workspace
  union all
  select (select min(server) from trace_step where workspace_id = :workspace and server > found.server)
  from found where found.server is not null
) select server from trace_head where workspace_id = :workspace
union select server from found where server is not null order by server;

-- Pages of calls, each by the one index that fits: see the pages of approvals.

-- name: calls
-- The newest calls before a place; a call begins with its proposal.
select trace_id, at from trace_step
where workspace_id = :workspace and step = 'proposed' and at >= :since and (at, trace_id) < (:at, :trace)
order by at desc, trace_id desc limit :limit;

-- name: calls_of_agent
-- The same of one agent.
select trace_id, at from trace_step
where workspace_id = :workspace and step = 'proposed'
and (agent, at, trace_id) < (:agent, :at, :trace) and (agent, at, trace_id) > (:agent, :since, '')
order by agent desc, at desc, trace_id desc limit :limit;

-- name: calls_of_tool
-- The same of one tool.
select trace_id, at from trace_step
where workspace_id = :workspace and step = 'proposed'
and (tool, at, trace_id) < (:tool, :at, :trace) and (tool, at, trace_id) > (:tool, :since, '')
order by tool desc, at desc, trace_id desc limit :limit;

-- name: calls_of_agent_tool
-- The same of one tool that one agent called.
select trace_id, at from trace_step
where workspace_id = :workspace and step = 'proposed'
and (agent, tool, at, trace_id) < (:agent, :tool, :at, :trace)
and (agent, tool, at, trace_id) > (:agent, :tool, :since, '')
order by agent desc, tool desc, at desc, trace_id desc limit :limit;

-- name: calls_of_session
-- The same of one session, whichever agent and tool, or one of each.
select trace_id, at from trace_step
where workspace_id = :workspace and step = 'proposed' and session_id is not null
and (session_id, at, trace_id) < (:session, :at, :trace) and (session_id, at, trace_id) > (:session, :since, '')
and (cast(:agent as text) is null or agent = :agent) and (cast(:tool as text) is null or tool = :tool)
order by session_id desc, at desc, trace_id desc limit :limit;

-- name: hits
-- How often each rule decided, and when it last did; from the index alone.
select policy_rule, count(*) as hits, max(at) as last_at from trace_step
where workspace_id = :workspace and step = 'decided' and at >= :since and policy_rule is not null
group by policy_rule order by policy_rule;

-- name: old_days
-- Days before one whose content is there, but for those that an open approval still needs. `day-` sorts as days do.
select owner from content_key
where workspace_id = :workspace and owner >= 'day-' and owner < :before and not exists (
  select 1 from approval
  where approval.workspace_id = content_key.workspace_id and approval.content_owner = content_key.owner
  and approval.status in ('pending', 'approved') and approval.consumed_at is null
) order by owner;

-- name: purges
-- Content whose purge was begun, in every workspace.
select workspace_id, owner from content_key where purged_at is not null order by workspace_id, owner;

-- name: begin_purge
-- From now on nobody sees what was said under it.
update content_key set purged_at = :now
where workspace_id = :workspace and owner = :owner and purged_at is null returning owner;

-- name: end_purge
-- The key, when nothing is left under it.
delete from content_key
where workspace_id = :workspace and owner = :owner and purged_at is not null and not exists (
  select 1 from trace_content
  where trace_content.workspace_id = content_key.workspace_id and trace_content.owner = content_key.owner
) returning owner;

-- name: content_sizes
-- Some of what is under a key, and how much each is.
select server, seq, length(body) as bytes from trace_content
where workspace_id = :workspace and owner = :owner limit :limit;

-- name: content_of_day
-- How much is under a key.
select count(*) as contents, coalesce(sum(length(body)), 0) as bytes from trace_content
where workspace_id = :workspace and owner = :owner;

-- name: drop_content [sqlite]
-- What some steps of one chain said under a key.
delete from trace_content
where workspace_id = :workspace and server = :server and owner = :owner
and seq in (select value from json_each(:numbers)) returning seq;

-- name: drop_content [postgres]
-- What some steps of one chain said under a key.
delete from trace_content
where workspace_id = :workspace and server = :server and owner = :owner
and seq = any (array(select cast(json_array_elements_text(cast(:numbers as json)) as bigint))) returning seq;

-- name: first_step
-- Where a chain begins, and from a number on its next step.
select seq, at from trace_step
where workspace_id = :workspace and server = :server and seq >= :from_seq order by seq limit 1;

-- name: oldest_steps
-- The first steps of a chain that are there, with how much each said that is still there.
select s.seq, s.at, s.step, s.trace_id, s.approval_id, s.hash, (
  select coalesce(sum(length(c.body)), 0) from trace_content c
  where c.workspace_id = s.workspace_id and c.server = s.server and c.seq = s.seq
) as bytes from trace_step s
where s.workspace_id = :workspace and s.server = :server order by s.seq limit :limit;

-- name: held_traces [sqlite]
-- Of some traces, those that are not over: an approval is open, an effect has no end yet, or another chain began them.
select trace_id from approval
where workspace_id = :workspace and id in (select value from json_each(:approvals))
and status in ('pending', 'approved') and consumed_at is null
union select trace_id from acting
where workspace_id = :workspace and trace_id in (select value from json_each(:traces))
union select trace_id from trace_step
where workspace_id = :workspace and trace_id in (select value from json_each(:traces))
and step = 'proposed' and server <> :server;

-- name: held_traces [postgres]
-- Of some traces, those that are not over: an approval is open, an effect has no end yet, or another chain began them.
select trace_id from approval
where workspace_id = :workspace and id = any (array(select json_array_elements_text(cast(:approvals as json))))
and status in ('pending', 'approved') and consumed_at is null
union select trace_id from acting
where workspace_id = :workspace and trace_id = any (array(select json_array_elements_text(cast(:traces as json))))
union select trace_id from trace_step
where workspace_id = :workspace and trace_id = any (array(select json_array_elements_text(cast(:traces as json))))
and step = 'proposed' and server <> :server;

-- name: cut_contents
-- What the first steps of a chain said.
delete from trace_content where workspace_id = :workspace and server = :server and seq <= :last returning seq;

-- name: cut_approvals [sqlite]
-- Approvals that are over, by the steps that asked for them.
delete from approval
where workspace_id = :workspace and id in (select value from json_each(:approvals))
and not (status in ('pending', 'approved') and consumed_at is null) returning id;

-- name: cut_approvals [postgres]
-- Approvals that are over, by the steps that asked for them.
delete from approval
where workspace_id = :workspace and id = any (array(select json_array_elements_text(cast(:approvals as json))))
and not (status in ('pending', 'approved') and consumed_at is null) returning id;

-- name: cut_steps
-- The first steps of a chain.
delete from trace_step where workspace_id = :workspace and server = :server and seq <= :last returning seq;
