"""The command's entry: its subcommands, and how a failure ends it.

Imports lazily: asking for help must not load settings, logs or gRPC.
"""

from __future__ import annotations

import sys

import typer

from heliograph_cli.commands import (
    dead_letters,
    events,
    installation,
    operators,
    parked,
    recipients,
    run,
    stores,
    topics,
)
from heliograph_cli.failures import CommandFailed, of_call
from mesh.errors import Failure

app = typer.Typer(
    name="heliograph",
    help="Heliograph: notifications as a gRPC service mesh.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage or start, 3 refused by a service, 4 not available.",
)
for part in (run, events, recipients, topics, operators, dead_letters, parked, stores, installation):
    part.register(app)


def main() -> None:
    """Runs the command and exits."""
    try:
        app()
    except (CommandFailed, Failure) as error:
        failure = error if isinstance(error, CommandFailed) else of_call(error)
        print(f"heliograph: {failure}", file=sys.stderr, flush=True)
        sys.exit(failure.code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output has enough.
        sys.stderr.close()
        sys.exit(0)
