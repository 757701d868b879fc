"""URLs of engines: what is taken, what is refused in one line, and that no secret is repeated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mesh.errors import StartError
from mesh.stores import Credentials, EngineUrl, Finding, Host, parse_url, require

_KNOWN = "kafka://HOST:PORT/PREFIX"


def _parse(text: str) -> EngineUrl:
    return parse_url("lanes_url", text, schemes=("kafka",), default_port=9092, known=_KNOWN, options=("group",))


def test_several_hosts_a_name_and_options_are_read() -> None:
    """Hosts without a port have the engine's own."""
    url = _parse("kafka://a:1,b,[::1]:3/heliograph?group=g")
    assert url.hosts == (Host("a", 1), Host("b", 9092), Host("::1", 3))
    assert [str(host) for host in url.hosts] == ["a:1", "b:9092", "[::1]:3"]
    assert (url.name, url.options, url.tls(), url.credentials()) == ("heliograph", {"group": "g"}, None, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mysql://a/b", "is no known store"),
        ("kafka:a", "is no known store"),
        ("kafka:///name", "names no host"),
        ("kafka://a:b/name", "'a:b' is no host:port"),
        ("kafka://a:0/name", "'a:0' is no host:port"),
        ("kafka://a/name?x=1", "unknown option 'x'"),
        ("kafka://a/name#x", "has a #fragment"),
    ],
)
def test_what_is_wrong_is_said_with_the_setting_and_the_known_forms(text: str, said: str) -> None:
    """One line tells where, what, and how it should be."""
    with pytest.raises(StartError) as caught:
        _parse(text)
    line = str(caught.value)
    assert line.startswith("lanes_url: ")
    assert said in line
    assert line.endswith(f"known: {_KNOWN}")


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    """It would be in the log from then on."""
    with pytest.raises(StartError, match="credentials=FILE") as caught:
        _parse("kafka://me:hunter2@a/name")
    assert "hunter2" not in str(caught.value)


def test_credentials_come_from_a_file_and_do_not_print_their_password(tmp_path: Path) -> None:
    """A password may hold colons."""
    file = tmp_path / "credentials"
    file.write_text("me:a:b\n")
    found = _parse(f"kafka://a/name?credentials={file}").credentials()
    assert found == Credentials("me", "a:b")
    assert "a:b" not in repr(found)


@pytest.mark.parametrize("content", ["me", ":b", "me:", ""])
def test_a_file_of_another_form_is_refused_without_its_content(tmp_path: Path, content: str) -> None:
    """The line names the file and the form."""
    file = tmp_path / "credentials"
    file.write_text(content)
    with pytest.raises(StartError, match="must hold one line, name:password"):
        _parse(f"kafka://a/name?credentials={file}").credentials()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("ca={missing}", "ca={missing}: No such file"),
        ("ca={text}", "name a PEM file of trusted roots"),
        ("cert={text}", "name both cert=FILE and key=FILE"),
        ("cert={text}&key={text}", "name a PEM chain and its key"),
        ("credentials={missing}", "credentials={missing}: No such file"),
    ],
)
def test_files_that_cannot_be_used_are_named(tmp_path: Path, options: str, said: str) -> None:
    """Whoever starts the service sees which file to mend."""
    names = {"missing": str(tmp_path / "missing"), "text": str(tmp_path / "text")}
    (tmp_path / "text").write_text("no PEM")
    url = _parse("kafka://a/name?" + options.format(**names))
    use = url.credentials if options.startswith("credentials") else url.tls
    with pytest.raises(StartError) as caught:
        use()
    assert said.format(**names) in str(caught.value)


class _Admin:
    what, url = "event lanes", "kafka://a/name"

    def __init__(self, findings: Sequence[Finding]) -> None:
        self._findings = findings

    async def check(self) -> Sequence[Finding]:
        return self._findings

    async def create(self, *, dry_run: bool) -> Sequence[str]:
        return ()

    async def migrate(self, *, dry_run: bool) -> Sequence[str]:
        return ()


@pytest.mark.parametrize(
    ("state", "remedy"), [("missing", "stores create"), ("behind", "stores migrate"), ("wrong", "stores check")]
)
async def test_a_start_is_refused_with_the_remedy(state: str, remedy: str) -> None:
    """What is right is passed over; the first thing that is not is told."""
    wrong = Finding("topic name.high", state, "min.insync.replicas is 1, must be 2")  # type: ignore[arg-type] # parametrised
    with pytest.raises(StartError, match="event lanes at ") as caught:
        await require(_Admin([Finding("version", "ok"), wrong]))
    assert "min.insync.replicas is 1, must be 2" in str(caught.value)
    assert remedy in str(caught.value)


async def test_a_store_that_is_right_lets_the_start_go_on() -> None:
    """Nothing is raised."""
    await require(_Admin([Finding("version", "ok")]))
