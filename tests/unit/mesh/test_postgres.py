"""URLs of PostgreSQL, and what each of its refusals means to a caller."""

from __future__ import annotations

import subprocess
import sys

import asyncpg
import pytest

from mesh.errors import StartError
from mesh.postgres import PostgresError, failure_of, parse_place

WHERE = "postgresql://db:5432/notices"


def test_a_place_has_defaults() -> None:
    """Host and database are enough."""
    place = parse_place("store_url", "postgresql://db/notices")
    assert (place.schema, place.role, place.connections) == ("heliograph", "postgres", 8)
    assert [(host.name, host.port) for host in place.url.hosts] == [("db", 5432)]


def test_a_place_may_say_more() -> None:
    """Several hosts, the schema, who we are, and how many connections."""
    place = parse_place("store_url", "postgresql://a:1,b/notices?schema=blue&role=prefs&connections=3")
    assert (place.schema, place.role, place.connections) == ("blue", "prefs", 3)
    assert [(host.name, host.port) for host in place.url.hosts] == [("a", 1), ("b", 5432)]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://db", "names no database"),
        ("postgresql://db/a/b", "names no database"),
        ("postgresql:///notices", "names no host"),
        ("postgres://db/notices", "is no known store"),
        ("postgresql://db/notices?schema=Blue", "schema=Blue: must be small letters"),
        ("postgresql://db/notices?schema=pg_blue", "schema=pg_blue: must be small letters"),
        ('postgresql://db/notices?schema=a";drop', "must be small letters"),
        ("postgresql://db/notices?connections=0", "connections=0: must be 1 to 100"),
        ("postgresql://db/notices?connections=many", "connections=many: must be 1 to 100"),
        ("postgresql://db/notices?shema=blue", "unknown option 'shema'"),
        ("postgresql://ann:secret@db/notices", "put name:password into a file"),
    ],
)
def test_a_wrong_url_is_one_line(url: str, said: str) -> None:
    """It names the setting and what is wrong, and never a password."""
    with pytest.raises(StartError) as caught:
        parse_place("store_url", url)
    assert str(caught.value).startswith("store_url: ")
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "unknown", "said"),
    [
        (asyncpg.AdminShutdownError("terminating connection"), True, "it goes on when the server is back"),
        (asyncpg.CannotConnectNowError("the database system is starting up"), False, "it goes on when"),
        (asyncpg.QueryCanceledError("canceling statement due to statement timeout"), False, "overloaded"),
        (asyncpg.TooManyConnectionsError("sorry, too many clients already"), False, "raise the server's max_conn"),
        (asyncpg.DiskFullError("could not extend file: No space left on device"), False, "make room on the server's"),
        (asyncpg.ReadOnlySQLTransactionError("cannot execute INSERT"), False, "name the primary, or switch"),
        (asyncpg.InvalidPasswordError("password authentication failed"), False, "correct name and password"),
        (asyncpg.UndefinedTableError('relation "x" does not exist'), False, "look with `heliograph stores check`"),
        (asyncpg.InsufficientPrivilegeError("permission denied"), False, "grant what is missing"),
        (asyncpg.DataCorruptedError("invalid page in block 7\nof relation"), True, "look into the server's log"),
        (asyncpg.ConnectionDoesNotExistError("connection was closed"), True, "it goes on when the server is back"),
        (asyncpg.InterfaceError("connection is closed"), True, "it goes on when the server is back"),
        (ConnectionRefusedError(111, "Connect call failed"), True, "it goes on when the server is back"),
        (TimeoutError(), True, "no answer in time"),
    ],
)
def test_what_is_not_the_statements_fault_is_unavailable(error: Exception, unknown: bool, said: str) -> None:
    """One line with the place and what to do; and whether it may have happened all the same."""
    failure = failure_of(WHERE, error)
    assert isinstance(failure, PostgresError)
    assert (failure.reason, failure.unknown) == ("STORE_UNAVAILABLE", unknown)
    assert failure.message.startswith(f"{WHERE}: ")
    assert said in failure.message
    assert "\n" not in failure.message


def test_what_was_never_sent_surely_did_not_happen() -> None:
    """A call that found no connection may be repeated without a look."""
    for error in (TimeoutError(), ConnectionRefusedError(111, "refused"), asyncpg.AdminShutdownError("bye")):
        failure = failure_of(WHERE, error, sent=False)
        assert isinstance(failure, PostgresError)
        assert not failure.unknown


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.PostgresSyntaxError("syntax error"),
        asyncpg.UniqueViolationError("duplicate key"),
        asyncpg.DataError("invalid input for query argument $1"),
        asyncpg.CharacterNotInRepertoireError("invalid byte sequence"),
        KeyError("x"),
    ],
)
def test_a_wrong_statement_stays_what_it_is(error: Exception) -> None:
    """It is a fault of ours, to be seen with its traceback, and no outage."""
    assert failure_of(WHERE, error) is error


def test_a_missing_package_is_one_line() -> None:
    """It says what to install."""
    program = """
import sys
sys.modules["asyncpg"] = None
from mesh.errors import StartError
try:
    import mesh.postgres
except StartError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=25)
    assert "pip install 'heliograph[engines]'" in done.stdout
