"""The shapes a scenario runs in: each body is written once. Must not start anything."""

from __future__ import annotations

from typing import Final

import pytest

# True: the services alone. False: behind their sidecars and the edge, with mTLS.
DIRECT: Final = pytest.param(True, id="direct", marks=pytest.mark.processes)
MESH: Final = pytest.param(False, id="mesh", marks=pytest.mark.mesh)
BOTH: Final = (DIRECT, MESH)
