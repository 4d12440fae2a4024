-- name: add_link
insert into sign_in_link (hash, user_id, workspace_id, created_at, expires_at)
values (:hash, :user, :workspace, :created_at, :expires_at);

-- name: use_link
-- The one place where a link is used up: whoever gets the row is the one who came first.
update sign_in_link set used_at = :now
where hash = :hash and used_at is null and expires_at > :now
returning user_id, workspace_id;

-- name: drop_links_of
delete from sign_in_link where user_id = :user and used_at is null;

-- name: drop_old_links
delete from sign_in_link where expires_at < :before;

-- name: home_of_user
-- Where a link signs somebody in: the preferred workspace, else the oldest of their memberships; else null.
select membership.workspace_id from app_user left join membership on membership.user_id = app_user.id
where app_user.id = :user
order by case when membership.workspace_id = :preferred then 0 else 1 end, membership.created_at,
  membership.workspace_id
limit 1;

-- name: elsewhere
-- Whether somebody is a member of another workspace than this.
select workspace_id from membership where user_id = :user and workspace_id <> :workspace limit 1;

-- name: user_of_mail
select id from app_user where email = :email and disabled_at is null;
