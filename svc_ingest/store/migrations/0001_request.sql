-- One row a request. Rows come in the order of time, so the oldest have the lowest numbers and no index by time is needed.
create table request (
  number integer primary key,
  producer_key text not null,     -- escaped "tenant/producer"
  request_id blob not null,
  digest blob not null,
  id_time_ms integer not null,
  begin_micros integer not null,  -- when its lease began, or when it was done without one
  holder blob,                    -- null: done
  event_id blob,
  accept_micros integer,
  unique (producer_key, request_id)
) strict;
