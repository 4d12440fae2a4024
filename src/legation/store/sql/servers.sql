-- name: address
select server, url, certificate, mac, adopted_at, swept_to from server_address where server = :server;

-- name: set_address
-- At every start: the port, or the machine, may be another.
insert into server_address (server, url, certificate, mac, swept_to) values (:server, :url, :certificate, :mac, :now)
on conflict (server) do update set url = excluded.url, certificate = excluded.certificate, mac = excluded.mac;

-- name: same_address
-- Servers that say that they are where another is.
select server from server_address where url = :url and server <> :server order by server limit 1;

-- name: note_adopted
update server_address set adopted_at = :now where server = :server;

-- name: note_swept
update server_address set swept_to = :upto where server = :server and swept_to < :upto;

-- name: take
-- One conditional insert: a row comes back to whoever has the name then, also where it had it before.
insert into stream_claim (workspace_id, name, server, agent, began, claimed_at)
values (:workspace, :name, :server, :agent, :began, :now)
on conflict (workspace_id, name) do update
set agent = excluded.agent, began = excluded.began, claimed_at = excluded.claimed_at
where stream_claim.server = excluded.server
returning server;

-- name: take_all [postgres]
-- Those that nobody has, of a list in JSON: [{"name", "agent", "began"}].
insert into stream_claim (workspace_id, name, server, agent, began, claimed_at)
select :workspace, item ->> 'name', :server, item ->> 'agent', cast(item ->> 'began' as bigint), :now
from jsonb_array_elements(cast(:items as jsonb)) as item
on conflict (workspace_id, name) do nothing;

-- name: take_all [sqlite]
insert into stream_claim (workspace_id, name, server, agent, began, claimed_at)
select :workspace, value ->> 'name', :server, value ->> 'agent', value ->> 'began', :now
from json_each(:items) where true
on conflict (workspace_id, name) do nothing;

-- name: holders [postgres]
-- Who has these, of a list in JSON: ["name"].
select claim.name, address.server, address.url, address.certificate, address.mac
from stream_claim claim join server_address address on address.server = claim.server
where claim.workspace_id = :workspace
and claim.name in (select value from jsonb_array_elements_text(cast(:names as jsonb)) as value);

-- name: holders [sqlite]
select claim.name, address.server, address.url, address.certificate, address.mac
from stream_claim claim join server_address address on address.server = claim.server
where claim.workspace_id = :workspace and claim.name in (select value from json_each(:names));

-- name: holder
-- Who has that one.
select claim.name, address.server, address.url, address.certificate, address.mac
from stream_claim claim join server_address address on address.server = claim.server
where claim.workspace_id = :workspace and claim.name = :name;

-- name: free
delete from stream_claim where workspace_id = :workspace and name = :name and server = :server;

-- name: free_left
-- One that was found without its stream, unless it was claimed anew meanwhile.
delete from stream_claim
where workspace_id = :workspace and name = :name and server = :server and claimed_at = :claimed_at;

-- name: unswept
-- Claims that may have been left by a crash: those since the last look.
select workspace_id, name, claimed_at from stream_claim where server = :server and claimed_at >= :since;

-- name: own_connections
-- Those of a server's own claims that are of connections; there are few.
select workspace_id, name, claimed_at from stream_claim
where workspace_id = :workspace and server = :server and began is null;

-- name: newest_claims
-- Sessions of all servers, the newest first, then by id.
select claim.name, claim.agent, claim.began, address.server, address.url, address.certificate, address.mac
from stream_claim claim join server_address address on address.server = claim.server
where claim.workspace_id = :workspace and claim.began <= :began and (claim.began < :began or claim.name > :name)
order by claim.began desc, claim.name limit :count;

-- name: connections_elsewhere
-- Those whose names begin with `acp:`.
select name, agent, claimed_at from stream_claim
where workspace_id = :workspace and name > 'acp:' and name < 'acp;' and server <> :server order by name;
