"""The pages for producers and operators: every example on them runs as it stands, at a mesh."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mesh.ids import from_text
from tests.support.pages import examples, run_python, run_shell
from tests.support.site import IN_A_MESH, Site
from tests.support.wait import until

# The first use builds the tools.
pytestmark = [IN_A_MESH, pytest.mark.timeout(600)]

PRODUCER = "docs/producer.md"
PYTHON, SHELL, OUTPUT = (examples(PRODUCER, language) for language in ("python", "bash", "text"))


async def _has(site: Site, recipient: str, title: str) -> None:
    async def has() -> bool:
        items = (await site.inbox(recipient)).items
        return any(item.notification.content.title == title for item in items)

    await until(has, 10.0, f"{recipient} to have {title}")


async def test_every_example_for_producers_is_tried_here(site: Site) -> None:
    """An example that is added is run by a test of its own, or this one fails."""
    assert (len(PYTHON), len(SHELL), len(OUTPUT)) == (3, 3, 1)
    assert site.mesh


async def test_the_first_event_by_the_sdk(site: Site, tmp_path: Path) -> None:
    """It prints the event's id, and both recipients have it."""
    output = await run_python(site.cluster, tmp_path, PYTHON[0])
    assert len(from_text(output.strip())) == 16
    for recipient in ("ann", "ben"):
        await _has(site, recipient, "Build 4711 has passed")


@pytest.mark.parametrize(("number", "title"), [(0, "By REST"), (1, "By gRPC")])
async def test_the_first_event_by_hand(site: Site, tmp_path: Path, number: int, title: str) -> None:
    """By curl and by grpcurl there is a receipt, and the recipient has it."""
    receipt = json.loads(await run_shell(site.cluster, tmp_path, SHELL[number]))
    assert len(from_text(receipt["eventId"])) == 16
    await _has(site, "ann", title)


async def test_a_prepared_event_is_absorbed(site: Site, tmp_path: Path) -> None:
    """Published twice, it is one event, and the second answer says so."""
    assert await run_python(site.cluster, tmp_path, PYTHON[1]) == "True False True\n"


async def test_refusals_print_what_the_page_shows(site: Site, tmp_path: Path) -> None:
    """The page's output is that of its example."""
    assert await run_python(site.cluster, tmp_path, PYTHON[2]) == OUTPUT[0]


async def test_a_refusal_over_rest_is_a_status(site: Site, tmp_path: Path) -> None:
    """The HTTP status is the one that the page names."""
    text, status = (await run_shell(site.cluster, tmp_path, SHELL[2])).strip().rsplit("\n", 1)
    assert (status, json.loads(text)["details"][0]["reason"]) == ("400", "CATEGORY_UNKNOWN")


async def test_operators_tools_answer_as_the_page_calls_them(site: Site, tmp_path: Path) -> None:
    """Each of the three commands gets its answer; the probe says it by its exit code."""
    (example,) = [block for block in examples("docs/operate.md") if "grpc-health-probe" in block]
    output = await run_shell(site.cluster, tmp_path, example)
    assert '"node_id"' in output
    assert "heliograph.presence.v1.PresenceService/ListNodes" in output
