"""Runs the command as `python -m heliograph_cli`."""

from heliograph_cli.main import main

if __name__ == "__main__":
    main()
