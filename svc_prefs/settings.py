"""Settings of svc_prefs."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from mesh.settings import ServiceSettings


class PrefsSettings(ServiceSettings):
    """What svc_prefs can be told."""

    service: ClassVar[str] = "prefs"

    store_url: str = Field(
        "sqlite:///prefs.db",
        description="where preferences are kept: sqlite:///path, relative to data_dir, or "
        "postgresql://host:port,host:port/DATABASE?schema=NAME&credentials=FILE&ca=FILE",
    )
    categories_file: Path = Field(
        Path("deploy/categories.toml"), description="TOML file with the registry of categories"
    )
