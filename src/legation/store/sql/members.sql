-- name: put_member
insert into membership (workspace_id, user_id, role, created_at)
values (:workspace, :user, :role, :created_at)
on conflict (workspace_id, user_id) do update set role = excluded.role;

-- name: member
select app_user.id, app_user.name, membership.role, membership.created_at
from membership join app_user on app_user.id = membership.user_id
where membership.workspace_id = :workspace and membership.user_id = :user;

-- name: members_after
select app_user.id, app_user.name, membership.role, membership.created_at
from membership join app_user on app_user.id = membership.user_id
where membership.workspace_id = :workspace and membership.user_id > :after
order by membership.user_id limit :most;

-- name: remove_member
delete from membership where workspace_id = :workspace and user_id = :user;

-- name: another_owner
-- Anybody besides this one who can still look after the workspace: an owner who is disabled cannot.
select app_user.id from membership join app_user on app_user.id = membership.user_id
where membership.workspace_id = :workspace and membership.user_id <> :user
  and membership.role = 'owner' and app_user.disabled_at is null
limit 1;

-- name: first_owner
-- In whose name the server itself acts; one who is not disabled, if there is one.
select membership.user_id from membership join app_user on app_user.id = membership.user_id
where membership.workspace_id = :workspace and membership.role = 'owner'
order by case when app_user.disabled_at is null then 0 else 1 end, membership.created_at, membership.user_id
limit 1;
