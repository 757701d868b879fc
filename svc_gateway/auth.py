"""The front desk: whom a token speaks for, and whether the node takes one more session.

Must not keep tokens. Step 10 of one notification (`architecture.md` §3).
"""

from __future__ import annotations

from collections.abc import Callable

from mesh.backoff import dither
from mesh.clock import Clock, Stamper, require_agreement
from mesh.errors import Unauthenticated
from mesh.ids import join_key
from mesh.tokens import TokenVerifier
from svc_gateway import answers
from svc_gateway.decisions import Admission, Identity
from svc_gateway.sessions import Sessions

_AGE_SPREAD = 0.2
_DELAY_SPREAD = 0.2


class FrontDesk:
    """Implements `decisions.Desk`.

    Attributes:
        draining: nobody is taken any more.
    """

    def __init__(
        self,
        *,
        tokens: TokenVerifier,
        sessions: Sessions,
        clock: Clock,
        random: Callable[[], float],
        node_id: str,
        session_limit: int,
        session_age: float,
        retry_delay: float,
    ) -> None:
        """Opens the desk.

        Args:
            tokens: checks tokens.
            sessions: those that are here.
            clock: tells the time.
            random: numbers in [0, 1).
            node_id: begins each session's id.
            session_limit: so many are taken.
            session_age: seconds after which a session is recycled, dithered.
            retry_delay: seconds a client waits that found no room, dithered.
        """
        self.draining = False
        self._tokens = tokens
        self._sessions = sessions
        self._clock = clock
        self._random = random
        self._node_id = node_id
        self._session_limit = session_limit
        self._session_age = session_age
        self._retry_delay = retry_delay
        self._stamper = Stamper(clock)

    def verify(self, token: str) -> Identity:
        """See `decisions.Desk`."""
        try:
            claims = self._tokens.verify(token)
        except Unauthenticated:
            # By a time that may be wrong nobody is told that a token is no good.
            require_agreement(self._clock)
            raise
        if claims.role != "recipient":
            raise answers.no_recipient()
        return Identity(
            recipient_key=join_key(claims.tenant, claims.subject),
            expire_time=claims.expire_time,
            seconds_left=claims.expire_time - self._clock.wall(),
        )

    def admit(self) -> Admission:
        """See `decisions.Desk`."""
        if self.draining:
            raise answers.node_draining(self._delay())
        if self._sessions.count >= self._session_limit:
            raise answers.too_many_sessions(self._sessions.count, self._delay())
        require_agreement(self._clock)
        number = self._stamper.next()
        return Admission(
            connect_number=number,
            session_id=f"{self._node_id}-{number}",
            wall=self._clock.wall(),
            age=dither(self._session_age, spread=_AGE_SPREAD, random=self._random()),
            random=self._random(),
        )

    def _delay(self) -> float:
        return dither(self._retry_delay, spread=_DELAY_SPREAD, random=self._random())
