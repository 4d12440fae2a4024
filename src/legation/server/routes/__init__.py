"""Every surface of the server. A new one is a module with its `routes`, and a name in this list."""

from typing import Final

from legation.server.routes.acp import routes as acp_routes
from legation.server.routes.agents import routes as agents_routes
from legation.server.routes.approvals import grants_routes as grants_routes
from legation.server.routes.approvals import routes as approvals_routes
from legation.server.routes.files import blob_routes as files_routes
from legation.server.routes.files import routes as fs_routes
from legation.server.routes.identity import audit_routes as audit_routes
from legation.server.routes.identity import routes as me_routes
from legation.server.routes.identity import tokens_routes as tokens_routes
from legation.server.routes.identity import users_routes as users_routes
from legation.server.routes.identity import workspaces_routes as workspaces_routes
from legation.server.routes.policy import routes as policy_routes
from legation.server.routes.processes import routes as processes_routes
from legation.server.routes.server import backup_routes as backup_routes
from legation.server.routes.server import home_routes as home_routes
from legation.server.routes.server import keys_routes as keys_routes
from legation.server.routes.server import left_out_routes as left_out_routes
from legation.server.routes.server import routes as health_routes
from legation.server.routes.sessions import event_routes as session_events_routes
from legation.server.routes.sessions import routes as sessions_routes
from legation.server.routes.sign_in import routes as sign_in_routes
from legation.server.routes.streams import routes as streams_routes
from legation.server.routes.tools import routes as tools_routes
from legation.server.routes.traces import routes as traces_routes
from legation.server.routes.trust import routes as trust_routes

ROUTES: Final = (
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
MESH_ROUTES: Final = (approvals_routes, grants_routes, traces_routes)
