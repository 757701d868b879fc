"""What ingest can be told. Each description is the documentation of its setting."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from mesh.settings import ServiceSettings


class IngestSettings(ServiceSettings):
    """Settings of ingest: where its stores are, and who may publish what."""

    service: ClassVar[str] = "ingest"

    lanes_url: str = Field(
        "sqlite:///lanes", description="event lanes: sqlite:///FOLDER, below data_dir unless absolute"
    )
    request_log_url: str = Field(
        "sqlite:///requests.db", description="request log: sqlite:///FILE, below data_dir unless absolute"
    )
    categories_file: Path = Field(
        Path("deploy/categories.toml"), description="TOML file with the registry of categories"
    )
    producers_file: Path = Field(
        Path("deploy/producers.example.toml"), description="TOML file with the producers and what each may publish"
    )
