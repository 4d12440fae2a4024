-- name: find_key
-- The one content key of an owner.
select key_id, wrapped_key from content_key where workspace_id = :workspace and owner = :owner;

-- name: add_key
-- With the owner's first page.
insert into content_key (workspace_id, owner, key_id, wrapped_key, created_at)
values (:workspace, :owner, :key_id, :wrapped_key, :now);

-- name: head
-- The last number that is stored of a stream.
select last_seq from content_stream where workspace_id = :workspace and owner = :owner and stream = :stream;

-- name: advance
-- Only from where it ends.
update content_stream set last_seq = :last_seq
where workspace_id = :workspace and owner = :owner and stream = :stream and last_seq = :head returning last_seq;

-- name: begin
-- With the stream's first page.
insert into content_stream (workspace_id, owner, stream, last_seq)
values (:workspace, :owner, :stream, :last_seq);

-- name: append
-- One sealed page; plain_bytes is what it will be when it is opened.
insert into content_page (workspace_id, owner, stream, first_seq, last_seq, plain_bytes, body)
values (:workspace, :owner, :stream, :first_seq, :last_seq, :plain_bytes, :body);

-- name: sizes
-- How large the next pages are, to know how many to read.
select first_seq, last_seq, plain_bytes from content_page
where workspace_id = :workspace and owner = :owner and stream = :stream and last_seq > :after
order by last_seq limit :limit;

-- name: pages
-- The pages that end after `after` and not after `last`.
select first_seq, last_seq, body from content_page
where workspace_id = :workspace and owner = :owner and stream = :stream
and last_seq > :after and last_seq <= :last order by last_seq;

-- name: move_out
-- Pages that are kept elsewhere by now; the stream goes on behind them.
delete from content_page where workspace_id = :workspace and owner = :owner and stream = :stream
and last_seq >= :first_seq and last_seq <= :last_seq returning plain_bytes;

-- name: delete_key
-- The key, and by the foreign keys every stream and page with it.
delete from content_key where workspace_id = :workspace and owner = :owner returning owner;
