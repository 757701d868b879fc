"""Runs the service: `python -m svc_gateway`."""

from svc_gateway.main import main

if __name__ == "__main__":
    main()
