"""Starts the service: `python -m svc_ingest`, with `--check-config` and `--show-config`."""

from __future__ import annotations

from svc_ingest import main

if __name__ == "__main__":
    main.main()
