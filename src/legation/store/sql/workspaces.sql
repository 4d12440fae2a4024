-- name: add_workspace
insert into workspace (id, name, created_at) values (:id, :name, :created_at);

-- name: claim_workspace
-- Only the first of several that start at once gets a row back.
insert into workspace (id, name, created_at) values (:id, :name, :created_at)
on conflict (id) do nothing returning id;

-- name: workspace_of_member
select workspace.id, workspace.name, workspace.status, workspace.created_at, membership.role
from workspace join membership on membership.workspace_id = workspace.id
where workspace.id = :workspace and membership.user_id = :user;

-- name: workspaces_of_member
select workspace.id, workspace.name, workspace.status, workspace.created_at, membership.role
from workspace join membership on membership.workspace_id = workspace.id
where membership.user_id = :user and workspace.id > :after
order by workspace.id limit :most;
