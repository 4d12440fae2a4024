-- name: add_token
insert into api_token (id, workspace_id, user_id, label, kind, scopes, hash, hint, created_at, expires_at)
values (:id, :workspace, :user, :label, :kind, :scopes, :hash, :hint, :created_at, :expires_at);

-- name: token_by_id
select * from api_token where workspace_id = :workspace and id = :id;

-- name: tokens_after
select * from api_token where workspace_id = :workspace and id > :after order by id limit :most;

-- name: revoke_token
update api_token set revoked_at = :now
where workspace_id = :workspace and id = :id and revoked_at is null
returning id;

-- name: revoke_tokens_of
-- All that somebody made in a workspace: they would come back to life with a new membership.
update api_token set revoked_at = :now
where workspace_id = :workspace and user_id = :user and revoked_at is null
returning id;

-- name: token_by_hash
-- With what its maker is at this moment. The one query that names no workspace: the token says which.
select api_token.id, api_token.workspace_id, api_token.label, api_token.kind, api_token.scopes, api_token.expires_at,
  api_token.revoked_at, app_user.id as user_id, app_user.disabled_at, app_user.admin_since,
  app_user.token_version, membership.role
from api_token
join app_user on app_user.id = api_token.user_id
left join membership
  on membership.workspace_id = api_token.workspace_id and membership.user_id = api_token.user_id
where api_token.hash = :hash;

-- name: token_standing
-- The same by its id, for what it asked before.
select api_token.id, api_token.workspace_id, api_token.label, api_token.kind, api_token.scopes, api_token.expires_at,
  api_token.revoked_at, app_user.id as user_id, app_user.disabled_at, app_user.admin_since,
  app_user.token_version, membership.role
from api_token
join app_user on app_user.id = api_token.user_id
left join membership
  on membership.workspace_id = api_token.workspace_id and membership.user_id = api_token.user_id
where api_token.workspace_id = :workspace and api_token.id = :id;

-- name: note_use
update api_token set last_used_at = :at where id = :id and (last_used_at is null or last_used_at < :at);
