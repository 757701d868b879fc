"""Gives processes wall clocks of their own, which a test steps while they run; the machine's clock is not touched.

Python imports `sitecustomize` from the first folder that has one: ours replaces `time.time` before any code of a
service runs, for the one module through which services read it. gRPC compares deadlines with the machine's clock, so
it goes on with that one. Monotonic clocks stay true, as on a machine whose wall clock is set. Must not judge.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_CODE: Final = """
import os, sys, time

def install():
    folder = os.path.dirname(os.path.abspath(__file__))
    name = next((word for word in sys.orig_argv if word.startswith("svc_")), "")
    if not name:
        return
    path, true, steady = os.path.join(folder, name), time.time, time.monotonic
    seen = [0.0, 0.0]

    def wall():
        if steady() - seen[0] > 0.02:
            seen[0] = steady()
            try:
                with open(path, encoding="ascii") as file:
                    seen[1] = float(file.read() or 0.0)
            except OSError:
                seen[1] = 0.0
            own = "%s.%d" % (path, os.getpid())
            with open(own, "w", encoding="ascii") as file:
                file.write(str(seen[1]))
            os.replace(own, path + ".seen")
        return true() + seen[1]

    def shown():
        own = sys._getframe(1).f_globals.get("__name__") == "mesh.clock"
        return wall() if own else true()

    time.time = shown

install()
"""


class Clocks:
    """The wall clocks of a cluster's services.

    Args:
        folder: for this alone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(_CODE, encoding="utf-8")

    @property
    def environ(self) -> dict[str, str]:
        """What processes must be started with."""
        return {"PYTHONPATH": str(self._folder)}

    def step(self, service: str, seconds: float) -> None:
        """Sets a service's wall clock so many seconds from the true one."""
        path = self._folder / f"svc_{service}"
        fresh = path.with_suffix(".new")
        fresh.write_text(str(seconds), encoding="ascii")
        os.replace(fresh, path)

    def seen(self, service: str) -> float:
        """Returns what the service's processes took for the step last."""
        path = self._folder / f"svc_{service}.seen"
        return float(path.read_text(encoding="ascii") or "nan") if path.exists() else 0.0
