"""URLs of Cassandra and the versions that are taken; what needs a node is in the contract suites."""

from __future__ import annotations

import pytest

from mesh.cassandra import StatementRefused, StoreUnavailable, check_versions, one_line, parse, replicas
from mesh.errors import StartError, Unavailable


def test_a_url_names_hosts_keyspace_and_options() -> None:
    """Each host may have its port; three copies when nothing is said."""
    url = parse("store_url", "cassandra://one,two:9043/inbox_1?datacenter=east")
    assert [str(host) for host in url.hosts] == ["one:9042", "two:9043"]
    assert (url.name, url.options["datacenter"], replicas(url)) == ("inbox_1", "east", 3)
    assert replicas(parse("store_url", "cassandra://one/inbox?replicas=1")) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cassandra://one", "names the keyspace"),
        ("cassandra://one/Inbox", "in lower case"),
        ("cassandra://one/in-box", "names the keyspace"),
        (f"cassandra://one/{'k' * 49}", "48 at most"),
        ("cassandra://one/inbox?replicas=0", "replicas=0"),
        ("cassandra://one/inbox?replicas=10", "replicas=10"),
        ("cassandra://one/inbox?replicas=", "replicas="),
        ("cassandra://one/inbox?copies=3", "unknown option 'copies'"),
        ("cassandra:///inbox", "names no host"),
        ("scylla://one/inbox", "no known store"),
    ],
)
def test_a_wrong_url_is_one_line(text: str, said: str) -> None:
    """It says which setting, and what is right."""
    with pytest.raises(StartError) as caught:
        parse("store_url", text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("version", ["4.1.0", "4.1.3-SNAPSHOT", "5.0.6", "5.1", "10.0"])
def test_newer_nodes_are_taken(version: str) -> None:
    """From 4.1 on."""
    check_versions(parse("s", "cassandra://one/inbox"), {"one:9042": version})


@pytest.mark.parametrize("version", ["4.0.11", "3.11.4", "2.2", "None", ""])
def test_older_nodes_are_refused_by_name(version: str) -> None:
    """One of several is enough: it may be the next coordinator."""
    with pytest.raises(StartError, match=r"two:9042 runs Cassandra .*; 4\.1 or newer is needed"):
        check_versions(parse("s", "cassandra://one/inbox"), {"one:9042": "5.0.6", "two:9042": version})


def test_what_a_node_says_is_one_bounded_line() -> None:
    """Errors of the clients have several, and repeat whole statements."""
    assert one_line("a\n  b\tc") == "a b c"
    assert len(one_line("x" * 5_000)) < 400


def test_a_refused_statement_is_a_store_that_is_not_as_it_must_be() -> None:
    """Whoever does not tell them apart treats it as an outage, and it was never begun."""
    error = StatementRefused("no such\ncolumn")
    assert isinstance(error, StoreUnavailable)
    assert isinstance(error, Unavailable)
    assert not error.outcome_unknown
    assert (error.reason, error.message) == ("STORE_UNAVAILABLE", "no such column")
