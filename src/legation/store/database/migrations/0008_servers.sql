-- Which of the servers that share this database has which stream. A server that has a file for itself writes nothing here.

-- Where the others reach a server, by the name in its data folder. The `mac` is made with a key of the installation: who may
-- write here and has no key leads nobody's credential astray. Its claims go with its row.
create table server_address (
  server text primary key,
  url text not null,
  certificate text, -- where it is its own, and no authority's
  mac {bytes} not null,
  adopted_at {int}, -- all that its log had was claimed by then; since then each is claimed before it is there
  swept_to {int} not null -- of its claims that were made before, each has its stream
) {options};

-- The first to claim a name has it. Names are those of streams: a session's id, or `acp:` and the id of a connection.
create table stream_claim (
  workspace_id text not null references workspace (id),
  name text {exact} not null,
  server text not null references server_address (server) on delete cascade,
  agent text not null,
  began {int}, -- of sessions, as they say it themselves: the order of their list
  claimed_at {int} not null,
  primary key (workspace_id, name)
) {options};
create index stream_claim_newest on stream_claim (workspace_id, began desc, name) where began is not null;
create index stream_claim_server on stream_claim (server, claimed_at);
create index stream_claim_connection on stream_claim (workspace_id, server, name) where began is null;
