-- What was given up. The letter is a message without the record's bytes, which are seldom read.
create table dead_letters (
  letter_id blob primary key,
  reason integer not null,
  tenant text not null,                  -- empty: could not be read
  recipient text not null,               -- escaped "tenant/recipient"; empty: could not be read
  notification_id blob not null,
  bury_us integer not null,
  letter blob not null,
  original blob not null
);
create index dead_letters_age on dead_letters (bury_us, letter_id);
create index dead_letters_tenant on dead_letters (tenant, bury_us, letter_id);
create index dead_letters_recipient on dead_letters (recipient, notification_id);

-- Records that could not be read become letters with their place: field 7 of the message, tag and length in one byte each.
insert into dead_letters
select randomblob(16), 1, '', '', x'', park_us,
  cast(char(58, length('follow_ups/' || record_id)) || 'follow_ups/' || record_id as blob), record
from parked;
drop table parked;

-- The cells of a row's steps beyond inbox and live: one an attempt. They go with their row.
create table steps (
  recipient text not null,
  id blob not null,
  step integer not null,
  attempt integer not null,
  time_us integer not null,
  outcome text not null,                 -- empty: begun, nobody answered
  detail text not null,
  due_us integer not null,
  primary key (recipient, id, step, attempt)
) without rowid;
create trigger steps_go_with_their_row after delete on inbox begin
  delete from steps where recipient = old.recipient and id = old.id;
end;

-- Records that were worked on one at a time after the process had died, and how often it died with each of them.
create table suspects (record_id integer primary key, named_count integer not null);
-- 1 while a process has the file open.
insert into meta values ('running', 0);
