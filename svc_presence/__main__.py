"""Runs the service: `python -m svc_presence`."""

from svc_presence.main import main

if __name__ == "__main__":
    main()
