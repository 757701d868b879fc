"""Runs the service: `python -m svc_fanout`."""

from svc_fanout.main import main

if __name__ == "__main__":
    main()
