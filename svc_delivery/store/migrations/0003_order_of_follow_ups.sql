-- What is due is taken in the order of its urgency, and what is over before it: see `FollowUps.due`.
alter table follow_ups add column place integer not null default 1;
alter table follow_ups add column expire_us integer;                -- null: never as a whole
drop index follow_ups_due;
create index follow_ups_order on follow_ups (place, due_us, record_id);
create index follow_ups_expiry on follow_ups (expire_us) where expire_us is not null;
