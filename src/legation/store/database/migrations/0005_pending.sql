-- How much one agent has pending, by whatever credentials, or one session of it: there is a limit to it.
drop index approval_pending_asker;
create index approval_pending_agent on approval (workspace_id, agent, session_id) where status = 'pending';
