-- name: propose
-- A new one, pending.
insert into approval (
  id, workspace_id, trace_id, waiter, holder, outlives, look_at, session_id, turn_id, tool_call_id, requester_kind, requester,
  requester_version, agent, tool, kind, action_digest, policy_version, policy_rule, verdict, needs, injection_risk, editable, reviewers, argument_bytes, argument_names,
  content_owner, group_key, status, created_at, expires_at, replaces
) values (
  :id, :workspace, :trace_id, :waiter, :holder, :outlives, :look_at, :session_id, :turn_id, :tool_call_id, :requester_kind, :requester,
  :requester_version, :agent, :tool, :kind, :action_digest, :policy_version, :policy_rule, :verdict, :needs, :injection_risk, :editable, :reviewers, :argument_bytes,
  :argument_names, :content_owner, :group_key, 'pending', :now, :expires_at, :replaces
) returning *;

-- name: get
-- By its whole id, of this workspace.
select * from approval where workspace_id = :workspace and id = :id;

-- name: person
-- What a person is called.
select id, name, email from app_user where id = :user;

-- name: pending_of_agent
-- What is pending for one agent, whoever asks: but what its sessions ask is each session's own.
select id from approval
where workspace_id = :workspace and agent = :agent and status = 'pending' and expires_at > :now
and (session_id is null or requester_kind <> 'process' or requester = :requester)
limit :most;

-- name: pending_in_session
-- What the agent of one session has pending there; who calls a tool may name any session, and takes none of its room.
select id from approval
where workspace_id = :workspace and agent = :agent and session_id = :session and status = 'pending' and expires_at > :now
and requester_kind = :kind and requester = :requester
limit :most;

-- name: claim
-- Of a pending one that is waited for, and that nobody has claimed any more, or the caller has, or somebody of lower level. The
-- `coalesce`, here and below, has Postgres look for the id alone: where it has no statistics yet it goes through all that is pending.
update approval set claimed_by = :by, claimed_level = :level, claimed_until = :until
where workspace_id = :workspace and id = :id and coalesce(status, '') = 'pending' and expires_at > :now
and (claimed_until is null or claimed_until <= :now or claimed_by = :by or claimed_level < :level)
and (outlives = 1 or exists (
  select 1 from holder, pulse where holder.id = approval.holder and holder.seen + holder.grace > pulse.ms
)) returning *;

-- name: escalate
-- To a person. Whoever held it has given it away.
update approval set needs = 'person', escalated_at = :now, escalated_by = :by, look_at = :now,
  claimed_by = null, claimed_level = null, claimed_until = null
where workspace_id = :workspace and id = :id and coalesce(status, '') = 'pending' and needs = 'supervisor' and expires_at > :now
returning *;

-- name: resolve
-- The first answer wins: only while it is pending, in time, waited for, and needs no more than the caller is; and only as it
-- was read, by whom it may be answered and who has claimed it.
update approval set status = :status, resolved_at = :now, expires_at = :expires_at, confidence = :confidence,
  resolver_kind = :resolver_kind, resolver = :resolver, resolver_user = :resolver_user, resolver_level = :level
where workspace_id = :workspace and id = :id and coalesce(status, '') = 'pending' and expires_at > :now
and (needs = 'supervisor' or cast(:level as integer) >= 2) and policy_version = :policy_version
and coalesce(reviewers, '') = coalesce(cast(:reviewers as text), '')
and coalesce(claimed_by, '') = coalesce(cast(:claimed_by as text), '')
and coalesce(claimed_until, 0) = coalesce(cast(:claimed_until as bigint), 0)
and (outlives = 1 or exists (
  select 1 from holder, pulse where holder.id = approval.holder and holder.seen + holder.grace > pulse.ms
)) returning *;

-- name: lift
-- By a grant that covers it, while it is pending and waited for: whatever it needs, the grant is a person's.
update approval set status = 'approved', resolved_at = :now, expires_at = :expires_at,
  resolver_kind = :resolver_kind, resolver = :resolver, resolver_level = :level
where workspace_id = :workspace and id = :id and coalesce(status, '') = 'pending' and expires_at > :now
and (outlives = 1 or exists (
  select 1 from holder, pulse where holder.id = approval.holder and holder.seen + holder.grace > pulse.ms
)) returning *;

-- name: rebind
-- To another policy's verdict, while it is pending. It may need a person now, who is to hear of it.
update approval set action_digest = :action_digest, policy_version = :policy_version, policy_rule = :policy_rule,
  verdict = :verdict, needs = :needs, reviewers = :reviewers, group_key = :group_key,
  look_at = case when notified_at is null then :now else look_at end
where workspace_id = :workspace and id = :id and coalesce(status, '') = 'pending' and expires_at > :now returning *;

-- name: end_open
-- Without an effect: only while it could still have one.
update approval set status = :status, resolved_at = coalesce(resolved_at, :now), replaced_by = :replaced_by
where workspace_id = :workspace and id = :id and status = :former and consumed_at is null returning *;

-- name: consume
-- Once, by the one that waits, for exactly the action and the policy that were decided on, in time.
update approval set consumed_at = :now
where workspace_id = :workspace and id = :id and status = 'approved' and consumed_at is null and waiter = :waiter
and holder = :holder and action_digest = :action_digest and policy_version = :policy_version and expires_at > :now returning *;

-- name: due
-- Open ones whose time is over, in every workspace.
select * from approval
where status in ('pending', 'approved') and consumed_at is null and expires_at <= :now
order by expires_at limit :limit;

-- name: open_of_holders [sqlite]
-- Open ones that end with their holders, in every workspace.
select * from approval
where status in ('pending', 'approved') and consumed_at is null and outlives = 0
and holder in (select value from json_each(:holders)) limit :limit;

-- name: open_of_holders [postgres]
-- Open ones that end with their holders, in every workspace.
select * from approval
where status in ('pending', 'approved') and consumed_at is null and outlives = 0
and holder = any (array(select json_array_elements_text(cast(:holders as json)))) limit :limit;

-- name: is_waited_for
-- Whether somebody is there who would act on an answer.
select 1 as yes from approval where workspace_id = :workspace and id = :id
and (outlives = 1 or exists (
  select 1 from holder, pulse where holder.id = approval.holder and holder.seen + holder.grace > pulse.ms
));

-- name: to_look_at
-- Pending ones whose time has come to be looked at, in every workspace.
select * from approval where status = 'pending' and needs = :needs and look_at <= :now
order by look_at limit :limit;

-- name: look_later [sqlite]
-- A supervisor is there: look again, and at half of its time at the latest.
update approval set look_at = case when (created_at + expires_at) / 2 > :now
  then min(:next, (created_at + expires_at) / 2) else :next end
where status = 'pending' and needs = 'supervisor' and look_at <= :now
and id in (select value from json_each(:ids));

-- name: look_later [postgres]
-- A supervisor is there: look again, and at half of its time at the latest.
update approval set look_at = case when (created_at + expires_at) / 2 > :now
  then least(cast(:next as bigint), (created_at + expires_at) / 2) else :next end
where status = 'pending' and needs = 'supervisor' and look_at <= :now
and id = any (array(select json_array_elements_text(cast(:ids as json))));

-- name: note_notice
-- That people are notified: one of many servers does it, whoever comes first.
update approval set notified_at = coalesce(notified_at, :now), look_at = cast(:next as bigint)
where workspace_id = :workspace and id = :id and coalesce(status, '') = 'pending' and needs = 'person' and look_at = :look_at
and expires_at > :now returning *;

-- name: next_look
-- When the next one is due: to be looked at, or to expire.
select (select min(look_at) from approval where status = 'pending' and needs = 'supervisor') as supervisor,
  (select min(look_at) from approval where status = 'pending' and needs = 'person') as person,
  (select min(expires_at) from approval where status in ('pending', 'approved') and consumed_at is null) as expiry;

-- name: askers
-- Whoever asked for an open one by a credential that can be revoked, in any workspace.
select distinct workspace_id, requester_kind, requester, requester_version, agent from approval
where status in ('pending', 'approved') and consumed_at is null and requester_kind in ('token', 'user');

-- name: open_of_asker
-- Open ones that one credential asked for, for one agent.
select * from approval
where workspace_id = :workspace and requester_kind = :kind and requester = :requester and agent = :agent
and coalesce(requester_version, 0) = coalesce(cast(:version as bigint), 0)
and status in ('pending', 'approved') and consumed_at is null limit :limit;

-- name: workspace_status
select status from workspace where id = :workspace;

-- name: open_of_session
-- Open ones of a session, of all its turns or of one.
select * from approval
where workspace_id = :workspace and session_id = :session and (cast(:turn as text) is null or turn_id = :turn)
and status in ('pending', 'approved') and consumed_at is null limit :limit;

-- name: open_sessions
-- The sessions of a workspace that have an open one.
select distinct session_id from approval
where workspace_id = :workspace and session_id is not null
and status in ('pending', 'approved') and consumed_at is null;

-- name: group
-- Pending ones that ask for the very same.
select * from approval
where workspace_id = :workspace and group_key = :group_key and status = 'pending' order by id limit :limit;

-- name: next_to_expire
-- Pending ones, what expires next first: as their index has it.
select * from approval
where workspace_id = :workspace and status = 'pending' and expires_at + 0 > :now
order by expires_at + 0, id limit :limit;

-- name: tools
-- The tools that any approval on record is about: one step through the index for each, however many ask for it.
with recursive found (tool) as (
  select min(tool) from approval where workspace_id = :workspace
  union all
  select (select min(tool) from approval where workspace_id = :workspace and approval.tool > found.tool)
  from found where found.tool is not null
) select tool from found where tool is not null;

-- Pages. What they are asked for is compared as one row, and ordered by all of it, although most of it is the same in
-- every row: only the index that has just this then fits. Postgres would else go through the newest of all kinds, and
-- where there are none of that kind among them, through the whole record.

-- name: pending_page [sqlite]
-- The oldest first: they are the most urgent. `tools` is null, or the names to choose from.
select * from approval
where workspace_id = :workspace and status = 'pending' and id > :after and expires_at > :now
and (:agent is null or agent = :agent)
and (:tools is null or tool in (select value from json_each(:tools)))
order by id limit :limit;

-- name: pending_page [postgres]
-- The oldest first: they are the most urgent. `tools` is null, or the names to choose from.
select * from approval
where workspace_id = :workspace and (status, id) > ('pending', :after) and status <= 'pending'
and expires_at > :now and (cast(:agent as text) is null or agent = :agent)
and (cast(:tools as text) is null or tool = any (array(select json_array_elements_text(cast(:tools as json)))))
order by status, id limit :limit;

-- name: status_page
-- Of any other status, the newest first.
select * from approval
where workspace_id = :workspace and (status, id) < (:status, :after) and (status, id) > (:status, '')
order by status desc, id desc limit :limit;

-- name: page
-- Of every status, the newest first.
select * from approval where workspace_id = :workspace and id < :after order by id desc limit :limit;

-- name: page_of_agent [sqlite]
-- One agent's, of some statuses, the newest first: no more than a page of each status is looked at.
select approval.* from json_each(:statuses) as s cross join approval on approval.id in (
  select id from approval
  where workspace_id = :workspace and agent = :agent and status = s.value and id < :after
  order by id desc limit :limit
) order by approval.id desc limit :limit;

-- name: page_of_agent [postgres]
-- One agent's, of some statuses, the newest first: no more than a page of each status is looked at.
select found.* from json_array_elements_text(cast(:statuses as json)) as s (value) cross join lateral (
  select * from approval
  where workspace_id = :workspace
  and (agent, status, id) < (:agent, s.value, :after) and (agent, status, id) > (:agent, s.value, '')
  order by agent desc, status desc, id desc limit :limit
) as found order by found.id desc limit :limit;

-- name: page_of_tools [sqlite]
-- The same of some tools.
select approval.* from json_each(:statuses) as s cross join json_each(:tools) as t cross join approval on approval.id in (
  select id from approval
  where workspace_id = :workspace and tool = t.value and status = s.value and id < :after
  order by id desc limit :limit
) order by approval.id desc limit :limit;

-- name: page_of_tools [postgres]
-- The same of some tools.
select found.* from json_array_elements_text(cast(:statuses as json)) as s (value)
cross join json_array_elements_text(cast(:tools as json)) as t (value) cross join lateral (
  select * from approval
  where workspace_id = :workspace
  and (tool, status, id) < (t.value, s.value, :after) and (tool, status, id) > (t.value, s.value, '')
  order by tool desc, status desc, id desc limit :limit
) as found order by found.id desc limit :limit;

-- name: page_of_agent_tools [sqlite]
-- The same of some tools that one agent called.
select approval.* from json_each(:statuses) as s cross join json_each(:tools) as t cross join approval on approval.id in (
  select id from approval
  where workspace_id = :workspace and agent = :agent and tool = t.value and status = s.value and id < :after
  order by id desc limit :limit
) order by approval.id desc limit :limit;

-- name: page_of_agent_tools [postgres]
-- The same of some tools that one agent called.
select found.* from json_array_elements_text(cast(:statuses as json)) as s (value)
cross join json_array_elements_text(cast(:tools as json)) as t (value) cross join lateral (
  select * from approval
  where workspace_id = :workspace and (agent, tool, status, id) < (:agent, t.value, s.value, :after)
  and (agent, tool, status, id) > (:agent, t.value, s.value, '')
  order by agent desc, tool desc, status desc, id desc limit :limit
) as found order by found.id desc limit :limit;
