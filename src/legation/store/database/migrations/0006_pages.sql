-- A page costs what it shows, however long the record is: what it is asked for stands together in an index, in the order
-- of the page. `status` stands before `id`: where every status is wanted, each is looked up.
drop index approval_by_tool;
create index approval_by_tool on approval (workspace_id, tool, status, id);
create index approval_by_agent on approval (workspace_id, agent, status, id);
create index approval_by_agent_tool on approval (workspace_id, agent, tool, status, id);
create index trace_call_by_agent_tool on trace_step (workspace_id, agent, tool, at, trace_id) where step = 'proposed';

-- What is open or pending now is found among that alone. SQLite, which has no statistics at first, takes the index that
-- has the most of what a query names, and in the order that it wants: so these have more of it than those of the record.
create index approval_open_asker on approval (workspace_id, requester_kind, requester, agent, requester_version)
where status in ('pending', 'approved') and consumed_at is null;
drop index approval_pending_agent;
create index approval_pending_agent on approval (workspace_id, agent, status, session_id) where status = 'pending';
drop index approval_pending_group;
create index approval_pending_group on approval (workspace_id, group_key, id) where status = 'pending';

-- What counts in one session, or in all of them: other sessions have many of their own, and those that ran out stay on
-- record.
create index approval_grant_of_session on approval_grant (workspace_id, session_id, expires_at)
where revoked_at is null;
