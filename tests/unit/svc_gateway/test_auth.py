"""Whom the front desk lets in, and what it says while the machine's clock is doubtful."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.clock import ManualClock, SteadyClock
from mesh.errors import Unauthenticated, Unavailable
from mesh.tokens import TokenSigner, TokenVerifier, create_signing_key
from svc_gateway import answers
from svc_gateway.auth import FrontDesk
from svc_gateway.decisions import CloseCode
from svc_gateway.sessions import Sessions


class _Desk:
    """A desk on a machine whose clock a test sets."""

    def __init__(self, folder: Path) -> None:
        create_signing_key(folder / "key.pem", folder / "keys.jwks")
        self.machine = ManualClock()
        clock = SteadyClock(self.machine)
        self.signer = TokenSigner(folder / "key.pem")
        self.desk = FrontDesk(
            tokens=TokenVerifier(folder / "keys.jwks", clock=clock),
            sessions=Sessions(),
            clock=clock,
            random=lambda: 0.5,
            node_id="gw-1",
            session_limit=10,
            session_age=3_600.0,
            retry_delay=1.0,
        )

    def token(self, lifetime: float) -> str:
        """A token of Alice's that was signed just now, by the time before any step."""
        return self.signer.sign(
            subject="alice", tenant="acme", role="recipient", lifetime_s=lifetime, now=ManualClock().wall()
        )


@pytest.fixture
def desk(tmp_path: Path) -> _Desk:
    """A desk with a key of its own."""
    return _Desk(tmp_path)


@pytest.mark.parametrize("step", [3_600.0, -3_600.0])
def test_nobody_is_let_in_while_the_clock_is_doubtful(desk: _Desk, step: float) -> None:
    """A session that is open may extend; a new one is sent elsewhere, and let in once the clock is right."""
    desk.machine.step_wall(step)
    assert desk.desk.verify(desk.token(60.0)).seconds_left == pytest.approx(60.0)
    with pytest.raises(Unavailable) as caught:
        desk.desk.admit()
    assert answers.close_code(caught.value) is CloseCode.DRAINING
    assert answers.turned_away(caught.value) is not None
    desk.machine.step_wall(-step)
    assert desk.desk.admit().session_id.startswith("gw-1-")


def test_no_token_is_called_bad_by_a_doubtful_clock(desk: _Desk) -> None:
    """Its bearer comes again instead of asking for another one."""
    desk.machine.advance(120.0)
    desk.machine.step_wall(60.0)
    with pytest.raises(Unavailable) as caught:
        desk.desk.verify(desk.token(60.0))
    assert caught.value.reason == "CLOCK_SET"
    desk.machine.step_wall(-60.0)
    with pytest.raises(Unauthenticated) as refused:
        desk.desk.verify(desk.token(60.0))
    assert refused.value.reason == "TOKEN_EXPIRED"
