-- Rows carry their state; a table by rowid with one unique index costs half of one kept in key order.
create table inbox (
  recipient text not null,               -- escaped "tenant/recipient"
  high integer not null,                 -- last bit of the id
  id blob not null,
  revision integer not null,             -- 0: only marks came so far
  stamp integer not null,                -- of the latest write or visible mark, µs
  mark_stamp integer not null default 0, -- of the latest visible mark
  expire_us integer not null,
  ack integer not null default 0,
  read integer not null default 0,
  hidden integer not null default 0,
  category text not null,
  content blob not null,                 -- last: reads of the state stop before it
  unique (recipient, high, id)
);

create table recipient (
  key text primary key,
  head integer not null,                 -- largest stamp of its rows
  high_floor blob not null default x'',  -- rows below were trimmed and stay away
  rest_floor blob not null default x''
) without rowid;

create table follow_ups (
  record_id integer primary key autoincrement,
  due_us integer not null,
  record blob not null
);
create index follow_ups_due on follow_ups (due_us, record_id);

create table parked (
  record_id integer primary key,
  record blob not null,
  reason text not null,
  park_us integer not null
);

create table decisions (
  number integer primary key,
  tenant text not null,
  event_id blob not null,
  reason integer not null,
  recipients text not null,              -- ids, one a line
  page blob not null,                    -- hash of the recipients
  decide_us integer not null,
  unique (tenant, event_id, reason, page)
);

create table meta (name text primary key, value blob not null) without rowid;
insert into meta values ('epoch', lower(hex(randomblob(8))));
insert into meta values ('floor', x'');
