-- name: give
-- A grant; why it was given is sealed, in the content of its id.
insert into approval_grant (
  id, workspace_id, agent, tools, kinds, created_at, expires_at, granted_kind, granted_by, granted_user, session_id
) values (
  :id, :workspace, :agent, :tools, :kinds, :now, :expires_at, :granted_kind, :granted_by, :granted_user, :session
) returning *;

-- name: live
-- What counts now, the first given first.
select * from approval_grant
where workspace_id = :workspace and revoked_at is null and expires_at > :now order by id;

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
