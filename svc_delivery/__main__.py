"""Runs the service: `python -m svc_delivery`."""

from svc_delivery.main import main

if __name__ == "__main__":
    main()
