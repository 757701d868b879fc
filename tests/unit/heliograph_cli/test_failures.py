"""Failures of calls as exit codes and one line."""

from __future__ import annotations

import pytest

from heliograph_cli.failures import FAILED, REFUSED, UNAVAILABLE, CommandFailed, of_call
from mesh import errors
from mesh.errors import Failure, Violation


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (errors.InvalidArgument("bad", reason="FIELD_INVALID"), REFUSED),
        (errors.PermissionDenied("no", reason="CALLER_NOT_ALLOWED"), REFUSED),
        (errors.Unauthenticated("no", reason="TOKEN_EXPIRED"), REFUSED),
        (errors.Unavailable("gone", reason=""), UNAVAILABLE),
        (errors.DeadlineExceeded("late", reason=""), UNAVAILABLE),
        (errors.Internal("bug", reason="INTERNAL"), FAILED),
    ],
)
def test_exit_codes_tell_a_refusal_from_silence_and_from_a_bug(failure: Failure, code: int) -> None:
    """A script can tell whether to correct its input, to wait, or to report."""
    assert of_call(failure).code == code


def test_the_line_has_everything_that_helps() -> None:
    """Reason, text, every violation and the delay stand in one line."""
    failure = errors.InvalidArgument(
        "two\nlines", reason="FIELD_INVALID", violations=[Violation("event.title", "is empty")], retry_delay=1.5
    )
    assert str(of_call(failure)) == ("refused: FIELD_INVALID: two lines (event.title: is empty); try again in 1.5 s")
    assert str(of_call(errors.Unavailable("nobody there", reason=""))) == "unavailable: nobody there"
    assert str(of_call(errors.Internal("", reason=""))) == "failed: Internal"
    assert str(CommandFailed("a\n b")) == "a b"
