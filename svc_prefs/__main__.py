"""Runs the service: `python -m svc_prefs`."""

from svc_prefs.main import main

if __name__ == "__main__":
    main()
