"""README's first hour, typed word by word at a mesh. `up`, `listen` and `down` are tried in `test_up.py`."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mesh.ids import from_text
from tests.support.pages import examples, run_python, run_shell
from tests.support.site import Site, open_site
from tests.support.wait import until

# The first use builds the tools.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module", params=[pytest.param("mesh", marks=pytest.mark.mesh)])
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    """A site of its own: what is typed here fills inboxes that other tests compare."""
    folder = Path(tempfile.mkdtemp(prefix="hg-"))
    try:
        async with open_site(folder, request.param) as running:
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)


SHELL, PYTHON = examples("README.md", "bash"), examples("README.md", "python")


def block(word: str) -> str:
    """The one block of shell commands that has a word."""
    (found,) = [one for one in SHELL if word in one]
    return found


async def _titles(site: Site, recipient: str) -> set[str]:
    return {item.notification.content.title for item in (await site.inbox(recipient)).items}


async def _has(site: Site, recipient: str, title: str) -> None:
    async def has() -> bool:
        return title in await _titles(site, recipient)

    await until(has, 10.0, f"{recipient} to have {title}")


async def test_every_block_is_tried(site: Site) -> None:
    """A block that is added gets a test here, or this one fails."""
    tried = [
        *("make install", "heliograph listen", "Build 4711", "Build 4712", "Build 4713", "prefs mute"),
        *("dead-letters", "curl --cacert", "grpcurl", "heliograph nodes"),
    ]
    assert [block(word) for word in tried] == SHELL
    assert len(PYTHON) == 1
    assert site.mesh


async def test_publish_and_inbox(site: Site, tmp_path: Path) -> None:
    """What is published is listed, and after `mark --all` nothing is unread."""
    for number, word in enumerate(("Build 4711", "Build 4712")):
        folder = tmp_path / str(number)
        folder.mkdir()
        output = await run_shell(site.cluster, folder, block(word))
        assert len(from_text(output.splitlines()[0])) == 16
    assert output.splitlines()[-1] == "0"
    await _has(site, "alice", "Build 4711 has passed")
    await _has(site, "bob", "Build 4712 has failed")


async def test_topics(site: Site, tmp_path: Path) -> None:
    """The subscriber has it, the one who is excluded does not."""
    output = await run_shell(site.cluster, tmp_path, block("Build 4713"))
    assert any(line.startswith("builds") for line in output.splitlines())
    await _has(site, "alice", "Build 4713 has passed")
    assert "Build 4713 has passed" not in await _titles(site, "bob")


async def test_a_mute_and_why(site: Site, tmp_path: Path) -> None:
    """`explain` says "muted" of alice and "in the inbox" of bob, and the mute is taken back at the end."""
    output = await run_shell(site.cluster, tmp_path, block("prefs mute"))
    assert "not delivered: muted" in output
    assert "in the inbox, new" in output
    assert "MUTED" in output
    assert "MUTED" not in output.rpartition("inboxed")[2]
    assert "Version 12 is out" not in await _titles(site, "alice")
    await _has(site, "bob", "Version 12 is out")


async def test_dead_letters(site: Site, tmp_path: Path) -> None:
    """There are none, and a dry run of none says so."""
    output = await run_shell(site.cluster, tmp_path, block("dead-letters"))
    assert output == "0 listed\n0 would be redriven, 0 would stay\n"


async def test_rest(site: Site, tmp_path: Path) -> None:
    """Each of the three calls answers in JSON: a receipt, the inbox, the subscription."""
    output = await run_shell(site.cluster, tmp_path, block("curl --cacert"))
    decoder, answers = json.JSONDecoder(), []
    while output:
        answer, end = decoder.raw_decode(output)
        answers.append(answer)
        output = output[end:].lstrip()
    assert [next(iter(answer)) for answer in answers] == ["eventId", "items", "subscriptions"]
    await _has(site, "alice", "Hello")


async def test_grpc(site: Site, tmp_path: Path) -> None:
    """The producer gets a receipt, the operator the list of services."""
    output = await run_shell(site.cluster, tmp_path, block("grpcurl"))
    assert "heliograph.delivery.v1.DeadLetterService" in output
    await _has(site, "alice", "By gRPC")


async def test_python(site: Site, tmp_path: Path) -> None:
    """It publishes, and hears itself last."""
    assert (await run_python(site.cluster, tmp_path, PYTHON[0])).splitlines()[-1] == "Hello from Python"


async def test_looking_around(site: Site, tmp_path: Path) -> None:
    """Everything but the last line, which ends what runs: nodes serve and nothing is broken."""
    *lines, last = block("heliograph nodes").splitlines()
    assert last == ".venv/bin/heliograph down"
    output = await run_shell(site.cluster, tmp_path, "\n".join(lines))
    assert "serving" in output
    assert "ok    processes" in output
