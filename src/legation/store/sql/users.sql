-- name: add_user
insert into app_user (id, name, email, admin_since, created_at)
values (:id, :name, :email, :admin_since, :created_at);

-- name: user_by_id
select * from app_user where id = :id;

-- name: users_after
select * from app_user where id > :after order by id limit :most;

-- name: put_user
update app_user set name = :name, admin_since = :admin_since, disabled_at = :disabled_at,
  token_version = :token_version
where id = :id;

-- name: another_admin
-- Anybody besides this one who can still look after the installation.
select id from app_user where id <> :id and admin_since is not null and disabled_at is null limit 1;

-- name: standing
-- What a user is, and is in one workspace, at this moment; no role: not a member.
select app_user.id as user_id, app_user.disabled_at, app_user.admin_since, app_user.token_version, membership.role
from app_user left join membership on membership.user_id = app_user.id and membership.workspace_id = :workspace
where app_user.id = :user;
