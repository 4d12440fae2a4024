-- name: put
-- As it is now: a session has one, whatever it was before.
insert into inbox_item (workspace_id, id, kind, section, state, session_id, server, since, expires_at)
values (:workspace, :id, :kind, :section, :state, :session, :server, :since, :expires_at)
on conflict (workspace_id, id) do update set kind = excluded.kind, section = excluded.section, state = excluded.state,
  session_id = excluded.session_id, server = excluded.server, since = excluded.since, expires_at = excluded.expires_at;

-- name: gone
delete from inbox_item where workspace_id = :workspace and id = :id returning id;

-- name: gone_with_session
-- What a session that is deleted had.
delete from inbox_item where workspace_id = :workspace and session_id = :session returning id;

-- name: questions_of_server
-- Questions end with the process that they were asked in.
delete from inbox_item where server = :server and kind = 'question';

-- name: get
select * from inbox_item where workspace_id = :workspace and id = :id;

-- name: questions
-- What is asked, the oldest first.
select * from inbox_item where workspace_id = :workspace and section = 'you' order by since, id limit :limit;

-- name: unseen
-- What went wrong, or is ready, and the person has not looked at since, the newest first: among the newest, so that what
-- everybody has looked at costs no more than that.
select * from (
  select * from inbox_item where workspace_id = :workspace and section = :section
  order by since desc, id desc limit :newest
) as item where not exists (
  select 1 from inbox_look where inbox_look.workspace_id = item.workspace_id and inbox_look.person = :person
  and inbox_look.item = item.id and inbox_look.since >= item.since
) order by since desc, id desc limit :limit;

-- name: look
-- By a person, at what it was then.
insert into inbox_look (workspace_id, person, item, since) values (:workspace, :person, :item, :since)
on conflict (workspace_id, person, item) do update set since = excluded.since where inbox_look.since < excluded.since;

-- name: forget
-- What is old: it is among the sessions.
delete from inbox_item where (workspace_id, id) in (
  select workspace_id, id from inbox_item where since < :before order by since limit :limit
) returning id;

-- name: advance
-- Of one server, in the transaction that changes something.
insert into inbox_head (workspace_id, server, seq) values (:workspace, :server, 1)
on conflict (workspace_id, server) do update set seq = inbox_head.seq + 1;

-- name: heads
-- Of the other servers.
select workspace_id, server, seq from inbox_head where server <> :server;
