"""A program made of `mesh.app` alone, to be run as a process by tests of signals and exit codes.

Prints one word a line on standard output for each thing that happens. It must not be imported by a test.
"""

from __future__ import annotations

import asyncio
import os
from typing import ClassVar, Literal

from pydantic import Field

from mesh.app import App, run
from mesh.errors import StartError, Unavailable
from mesh.settings import ServiceSettings


class FrameSettings(ServiceSettings):
    service: ClassVar[str] = "frame"

    fault: Literal["none", "wire", "start", "disk", "loop", "slow_drain", "slow_start", "stuck", "bug"] = Field(
        default="none", description="what goes wrong"
    )


def _say(word: str) -> None:
    os.write(1, f"{word}\n".encode())


async def _fail_start(settings: FrameSettings) -> None:
    match settings.fault:
        case "start":
            raise Unavailable("the store\nis away", reason="STORE_UNAVAILABLE")
        case "disk":
            (settings.data_dir / "absent" / "file").touch()
        case "slow_start":
            await asyncio.Event().wait()
        case "bug":
            raise KeyError("bug")
        case _:
            pass


def _wire(app: App, settings: FrameSettings) -> None:
    async def start() -> None:
        _say("starting")
        await _fail_start(settings)

    async def stop() -> None:
        _say("stopped")

    async def drain() -> None:
        _say("draining")
        if settings.fault == "slow_drain":
            await asyncio.Event().wait()

    async def loop() -> None:
        if settings.fault == "loop":
            raise KeyError("broken")
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if settings.fault != "stuck":
                    raise

    if settings.fault == "wire":
        raise StartError("lane_url nats://x: unknown scheme; known are sqlite")
    app.resource("store", start, stop)
    app.supervise("reader", loop)
    app.on_ready(lambda ready: _say("ready" if ready else "unready"))
    app.on_drain("hand_back", drain)


if __name__ == "__main__":
    run(FrameSettings.service, FrameSettings, _wire)
