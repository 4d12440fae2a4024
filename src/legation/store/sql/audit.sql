-- name: record
-- One change, in the transaction that makes it.
insert into audit (id, workspace_id, at, actor_kind, actor, action, target, details)
values (:id, :workspace, :at, :actor_kind, :actor, :action, :target, :details);

-- name: record_once
-- The same of a change that is brought to its end twice, where a server was killed in between.
insert into audit (id, workspace_id, at, actor_kind, actor, action, target, details)
values (:id, :workspace, :at, :actor_kind, :actor, :action, :target, :details) on conflict (id) do nothing;

-- name: newest
-- The first page: ids sort by time.
select id, at, actor_kind, actor, action, target, details from audit
where workspace_id = :workspace order by id desc limit :limit;

-- name: older
-- A later page: what comes before the last id of the page before.
select id, at, actor_kind, actor, action, target, details from audit
where workspace_id = :workspace and id < :after order by id desc limit :limit;

-- name: names_of [sqlite]
select id, name from app_user where id in (select value from json_each(:users))
union all
select api_token.id, case api_token.kind when 'supervisor' then 'supervisor:' || label else name end
from api_token join app_user on app_user.id = api_token.user_id
where api_token.id in (select value from json_each(:users));

-- name: names_of [postgres]
select id, name from app_user where id = any (array(select json_array_elements_text(cast(:users as json))))
union all
select api_token.id, case api_token.kind when 'supervisor' then 'supervisor:' || label else name end
from api_token join app_user on app_user.id = api_token.user_id
where api_token.id = any (array(select json_array_elements_text(cast(:users as json))));
