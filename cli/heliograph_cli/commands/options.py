"""Options that several subcommands share. Must stay cheap to import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

StateDir = Annotated[
    Path, typer.Option("--state-dir", help="Folder with stores, certificates and logs.", envvar="HELIOGRAPH_STATE_DIR")
]
Edge = Annotated[str, typer.Option("--edge", help="HOST:PORT of another machine's edge.", envvar="HELIOGRAPH_EDGE")]
Authority = Annotated[Path | None, typer.Option("--ca", help="Roots to trust there, PEM.", envvar="HELIOGRAPH_CA")]
Token = Annotated[str, typer.Option("--token", help="Token to use instead of a fresh one.", envvar="HELIOGRAPH_TOKEN")]
Tenant = Annotated[str, typer.Option("--tenant", help="Tenant of the recipient or producer.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]

TENANT = "acme"
PRODUCER = "demo"
