"""Asks Envoy whether it would take the rendered files, before anything is started."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from mesh.envoy.process import envoy_binary
from mesh.errors import StartError

_LIMIT_S = 20.0
_COMPLAINT = re.compile(r"error initializing (?:configuration|config) '[^']*': *(.*)", re.DOTALL)
_LONGEST_COMPLAINT = 400


class _LogLine(msgspec.Struct):
    msg: str


async def validate(files: Iterable[Path]) -> None:
    """Has Envoy check each file. Certificates are not looked at by it: see `certs.check`.

    Raises:
        StartError: one line: the file and Envoy's own words.
    """
    binary = envoy_binary()
    # Two at a time: each is one busy process.
    gate = asyncio.Semaphore(2)

    async def check(file: Path) -> str:
        async with gate:
            return await _complaint(binary, file)

    for complaint in await asyncio.gather(*(check(file) for file in files)):
        if complaint:
            raise StartError(complaint)


async def _complaint(binary: Path, file: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        str(binary), "--mode", "validate", "-l", "error", "-c", str(file),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_LIMIT_S):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return f"envoy file {file}: not checked within {_LIMIT_S:g} s; try again"
    if process.returncode == 0:
        return ""
    words = _words(output.decode(errors="replace")) or f"exit code {process.returncode}"
    return f"envoy file {file}: {words[:_LONGEST_COMPLAINT]}; correct the topology or make the certificates"


def _words(output: str) -> str:
    """Returns what Envoy complains of, without its log around it: JSON lines, or plain ones when it read no format."""
    lines = [_message(line) for line in output.splitlines()]
    text = "\n".join(lines)
    found = _COMPLAINT.search(text)
    return " ".join((found[1] if found else text).split())


def _message(line: str) -> str:
    try:
        return msgspec.json.decode(line, type=_LogLine).msg
    except msgspec.MsgspecError:
        return line
