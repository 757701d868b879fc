create table preferences (
    tenant_id text not null,
    recipient_id text not null,
    version integer not null,
    preferences blob not null,
    primary key (tenant_id, recipient_id)
) without rowid;
