-- Of a call that was asked for in a browser: the user's number at that moment. It moves on when the user is signed out
-- everywhere, and what that browser had asked for is over then. Null: asked by any other credential.
alter table approval add column requester_version {int};

-- How much one that asks has pending: there is a limit to it.
create index approval_pending_asker on approval (workspace_id, requester, agent) where status = 'pending';

-- The latest time that any server has seen, so that a clock that is set back prolongs nothing. One row.
create table clock_mark (
  id {int} primary key check (id = 1),
  ms {int} not null
) {options};
