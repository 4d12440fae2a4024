-- name: give
-- A grant; why it was given is sealed, in the content of its id.
insert into approval_grant (
  id, workspace_id, agent, tools, kinds, created_at, expires_at, granted_kind, granted_by, granted_user, session_id, folder
) values (
  :id, :workspace, :agent, :tools, :kinds, :now, :expires_at, :granted_kind, :granted_by, :granted_user, :session, :folder
) returning *;

-- name: live
-- What counts now, the first given first.
select * from approval_grant
where workspace_id = :workspace and revoked_at is null and expires_at > :now order by id;

-- name: live_for
-- The same of what may cover a call in a session, or in none: other sessions have many of their own. In no order: for
-- one by id SQLite would go through all that was ever granted.
select * from approval_grant
where workspace_id = :workspace and revoked_at is null and session_id is null and expires_at > :now
union all
select * from approval_grant
where workspace_id = :workspace and revoked_at is null and session_id = cast(:session as text) and expires_at > :now;

-- name: live_ids [sqlite]
-- The same of several workspaces, without what they say.
select workspace_id, id, session_id from approval_grant
where workspace_id in (select value from json_each(:workspaces)) and revoked_at is null and expires_at > :now;

-- name: live_ids [postgres]
-- The same of several workspaces, without what they say.
select workspace_id, id, session_id from approval_grant
where workspace_id = any (array(select json_array_elements_text(cast(:workspaces as json))))
and revoked_at is null and expires_at > :now;

-- name: get
-- By its whole id, of this workspace.
select * from approval_grant where workspace_id = :workspace and id = :id;

-- name: revoke
-- Once; from then on it lifts nothing.
update approval_grant set revoked_at = :now, revoked_by = :by
where workspace_id = :workspace and id = :id and revoked_at is null returning *;

-- name: end_session
-- What was granted to one session alone: the session is over.
update approval_grant set revoked_at = :now, revoked_by = :by
where workspace_id = :workspace and session_id = :session and revoked_at is null returning *;

-- name: page
-- Every one on record, the newest first.
select * from approval_grant
where workspace_id = :workspace and id < :after order by id desc limit :limit;
