"""The gateway: holds the live sessions of recipients' devices, and nothing that a restart may not forget."""
