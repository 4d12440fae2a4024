"""Every surface of the server. A new one is a module with its `routes`, and a name in this list."""

from typing import Final

from legation.server.surfaces.acp import routes as acp_routes
from legation.server.surfaces.agents import routes as agents_routes
from legation.server.surfaces.approvals import routes as approvals_routes
from legation.server.surfaces.audit import routes as audit_routes
from legation.server.surfaces.backup import routes as backup_routes
from legation.server.surfaces.files import routes as files_routes
from legation.server.surfaces.fs import routes as fs_routes
from legation.server.surfaces.grants import routes as grants_routes
from legation.server.surfaces.health import routes as health_routes
from legation.server.surfaces.home import routes as home_routes
from legation.server.surfaces.keys import routes as keys_routes
from legation.server.surfaces.left_out import routes as left_out_routes
from legation.server.surfaces.me import routes as me_routes
from legation.server.surfaces.policy import routes as policy_routes
from legation.server.surfaces.processes import routes as processes_routes
from legation.server.surfaces.session_events import routes as session_events_routes
from legation.server.surfaces.sessions import routes as sessions_routes
from legation.server.surfaces.sign_in import routes as sign_in_routes
from legation.server.surfaces.streams import routes as streams_routes
from legation.server.surfaces.tokens import routes as tokens_routes
from legation.server.surfaces.tools import routes as tools_routes
from legation.server.surfaces.traces import routes as traces_routes
from legation.server.surfaces.trust import routes as trust_routes
from legation.server.surfaces.users import routes as users_routes
from legation.server.surfaces.workspaces import routes as workspaces_routes

SURFACES: Final = (
    home_routes,
    health_routes,
    me_routes,
    sign_in_routes,
    users_routes,
    workspaces_routes,
    tokens_routes,
    audit_routes,
    streams_routes,
    files_routes,
    keys_routes,
    backup_routes,
    approvals_routes,
    grants_routes,
    traces_routes,
    policy_routes,
    tools_routes,
    trust_routes,
    agents_routes,
    sessions_routes,
    session_events_routes,
    fs_routes,
    processes_routes,
    acp_routes,
    left_out_routes,
)

# What the mesh port serves.
MESH: Final = (approvals_routes, grants_routes, traces_routes)
