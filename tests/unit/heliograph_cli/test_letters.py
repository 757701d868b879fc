"""The commands about dead letters, against a delivery that serves."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Sequence
from hashlib import sha256
from pathlib import Path

import pytest

from heliograph.delivery.v1 import dead_letter_service_pb2 as pb
from heliograph_cli import letters, record
from heliograph_cli.connection import Reach
from heliograph_cli.failures import REFUSED, CommandFailed
from heliograph_cli.letters import Filter
from mesh.errors import NotFound, Unavailable
from mesh.ids import to_text
from svc_delivery import letters as rules
from svc_delivery.ports import FollowUpRecord
from svc_delivery.ports_channels import Refused
from svc_delivery.redrive import Redriver, Refusal
from tests.support.backends import SqlitePoison
from tests.support.retrying import FIRST, Retrying, envelope_of, id_of, plan_of, retrying, serving_operators

ALL = Filter("", 0)


class Site:
    """A delivery with dead letters, and the folder by which commands find it."""

    def __init__(self, delivery: Retrying, reach: Reach) -> None:
        self.delivery = delivery
        self.reach = reach

    async def bury(self, count: int) -> list[str]:
        """Lets a channel refuse events; the ids of the letters, newest first."""
        self.delivery.channel(FIRST, *[Refused("no address")] * count)
        for number in range(count):
            await self.delivery.dispatch(envelope_of(number), plan=plan_of(FIRST))
        await self.delivery.after(10.0)
        listed = await self.delivery.letters.ListDeadLetters(pb.ListDeadLettersRequest(page_size=500), None)  # type: ignore[arg-type]  # not used
        return [letter.dead_letter_id for letter in listed.dead_letters]


def results(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What the command said at its end; the delivery in this process logs to the same place."""
    return [line for line in capsys.readouterr().out.splitlines() if line.endswith(" stay")]


@pytest.fixture
async def site(tmp_path: Path, run_dir: Path) -> AsyncIterator[Site]:
    """What `heliograph up --direct` leaves for other commands, as far as they need it."""
    state_dir = tmp_path / ".heliograph"
    state_dir.mkdir()
    up = record.UpRecord(
        pid=os.getpid(),
        state="serving",
        direct=True,
        start_time=time.time(),
        run_dir=str(run_dir),
        trust_domain="heliograph.local",
        edge="",
        live_urls={},
        inbound={},
        producer_host="",
        processes={},
    )
    record.write(state_dir / "up.json", up)
    async with retrying(tmp_path) as delivery, serving_operators(delivery, run_dir):
        yield Site(delivery, Reach(state_dir=state_dir))


async def test_a_list_shows_a_line_a_letter(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """With reason, recipient, event and id; no more than asked for; JSON one object a line."""
    ids = await site.bury(3)
    await letters.show_list(site.reach, ALL, limit=50, as_json=False)
    head, *lines, last = capsys.readouterr().out.splitlines()
    assert head.split() == ["TIME", "REASON", "RECIPIENT", "CHANNEL", "EVENT", "ID"]
    assert last == "fanout does not answer: what it has put aside is not known"
    assert lines.pop() == "3 listed"
    assert [line.split()[-1] for line in lines] == ids
    assert all(line.split()[2:5] == ["tries-exhausted", "acme/alice", str(FIRST)] for line in lines)
    await letters.show_list(site.reach, ALL, limit=2, as_json=True)
    assert len(capsys.readouterr().out.splitlines()) == 2
    await letters.show_list(site.reach, Filter("nobody", 0), limit=2, as_json=False)
    assert capsys.readouterr().out == "0 listed\n"


async def test_one_letter_is_shown_with_its_history(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """And one that is not there is not found."""
    (letter_id,) = await site.bury(1)
    await letters.show_one(site.reach, letter_id, as_json=False)
    shown = capsys.readouterr().out
    assert id_of(0) in shown
    assert "refused: no address" in shown
    with pytest.raises(NotFound):
        await letters.show_one(site.reach, id_of(0), as_json=False)


async def test_redriving_by_filter_takes_all_that_match(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Over several calls; a dry run moves nothing; what went is gone, so a repetition goes on where it stood."""
    await site.bury(230)
    await letters.redrive_filtered(site.reach, ALL, dry_run=True)
    await letters.redrive_filtered(site.reach, Filter("nobody", 0), dry_run=False)
    await letters.redrive_filtered(site.reach, Filter("acme", pb.DEAD_LETTER_REASON_TRIES_EXHAUSTED), dry_run=False)
    await letters.redrive_filtered(site.reach, ALL, dry_run=False)
    assert results(capsys) == [
        "230 would be redriven, 0 would stay",
        "0 redriven, 0 stay",
        "230 redriven, 0 stay",
        "0 redriven, 0 stay",
    ]
    assert await site.delivery.buried() == []


async def test_redriving_that_was_broken_off_goes_on_where_it_stood(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first hundred the service is gone; the repetition tries the rest, and nothing goes twice."""
    await site.bury(230)
    went = list[bytes]()
    redrive, is_back = Redriver.redrive, False

    async def once(redriver: Redriver, letter_ids: Sequence[bytes], *, validate_only: bool) -> list[Refusal]:
        if len(went) == 100 and not is_back:
            raise Unavailable("the store is down", reason="STORE_UNAVAILABLE")
        went.extend(letter_ids)
        return await redrive(redriver, letter_ids, validate_only=validate_only)

    monkeypatch.setattr(Redriver, "redrive", once)
    with pytest.raises(Unavailable):
        await letters.redrive_filtered(site.reach, ALL, dry_run=False)
    assert len(await site.delivery.buried()) == 130
    is_back = True
    await letters.redrive_filtered(site.reach, ALL, dry_run=False)
    assert results(capsys) == ["130 redriven, 0 stay"]
    assert (len(went), len(set(went))) == (230, 230)
    assert await site.delivery.buried() == []


async def test_a_named_letter_that_stays_fails_the_command(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """The others went."""
    (letter_id,) = await site.bury(1)
    with pytest.raises(CommandFailed) as caught:
        await letters.redrive_these(site.reach, [letter_id, id_of(0)], dry_run=False)
    assert (caught.value.code, id_of(0) in str(caught.value)) == (REFUSED, True)
    assert results(capsys) == ["1 redriven, 1 stay"]


async def test_an_explanation_is_a_table(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """The state first, then what happened."""
    await site.bury(1)
    await letters.explain(site.reach, id_of(0), "acme", "alice", as_json=False)
    first, head, *lines = capsys.readouterr().out.splitlines()
    assert (first, head.split()) == ("in the inbox, new", ["TIME", "DECISION", "DETAIL"])
    assert any("dead letter" in line and "tries_exhausted" in line for line in lines)
    with pytest.raises(NotFound):
        await letters.explain(site.reach, id_of(5), "acme", "alice", as_json=False)


async def test_an_explanation_says_whether_what_is_not_there_is_still_to_come(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """While the retry lane has it, it is being worked on; after the last try it is given up."""
    SqlitePoison(tmp_path / "inbox.db").refuse()
    await site.delivery.dispatch(envelope_of(1, category="poison"))
    for seconds, first in (
        (10.0, "not in the inbox yet: it is being worked on"),
        (60.0, "not in the inbox yet: it is being worked on"),
        (600.0, "not in the inbox: given up"),
    ):
        await site.delivery.after(seconds)
        await letters.explain(site.reach, id_of(1), "acme", "alice", as_json=False)
        assert first in capsys.readouterr().out.splitlines()


async def test_a_letter_without_its_bytes_says_so_everywhere(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line each: in the list, by itself, and when somebody wants it redriven."""
    lost = FollowUpRecord(7, 0, b"\xff" * (2 << 20))
    reason = pb.DEAD_LETTER_REASON_UNDECODABLE
    letter = rules.unreadable(lost, "too large", reason=reason, epoch="e", now_us=site.delivery.now_us())
    await site.delivery.store.dead_letters.bury([letter])
    letter_id = to_text(letter.letter_id)
    wanted = f"its {2 << 20} bytes were too large to be kept (SHA-256 {sha256(lost.record).hexdigest()})"
    await letters.show_list(site.reach, ALL, limit=50, as_json=False)
    assert f"{letter_id}: {wanted}: it cannot be redriven" in capsys.readouterr().out.splitlines()
    await letters.show_one(site.reach, letter_id, as_json=False)
    shown = capsys.readouterr().out.splitlines()
    assert f"{wanted}: it cannot be redriven" in shown
    assert "it lay at follow_ups/7" in shown
    with pytest.raises(CommandFailed):
        await letters.redrive_these(site.reach, [letter_id], dry_run=False)
    assert f"{letter_id}: {wanted}: it cannot be redriven" in capsys.readouterr().err.splitlines()
