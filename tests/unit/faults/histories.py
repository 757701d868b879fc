"""Writes small histories by hand: what happened in a run, in a few words, with all the rest as it should be."""

from __future__ import annotations

from collections.abc import Sequence

from tests.faults import history
from tests.faults.history import Device, Event, Line, Log

TENANT = "acme"
ALICE = Device(TENANT, "alice", "phone")
ALICES_LAPTOP = Device(TENANT, "alice", "laptop")
BOB = Device(TENANT, "bob", "phone")


class Story:
    """A run that is told step by step; each step is a second after the one before, unless `wait` says more."""

    def __init__(self) -> None:
        self.now = 100.0
        self.events: list[Event] = []
        self._operations = 0
        self._last: dict[str, str] = {}
        self._sessions: dict[Device, int] = {}
        self._recipients: dict[str, tuple[str, ...]] = {}

    def wait(self, seconds: float) -> Story:
        """Lets time pass."""
        self.now += seconds
        return self

    def add(self, event: Event) -> Story:
        """Adds an event and lets a second pass."""
        self.events.append(event)
        self.now += 1.0
        return self

    # ------------------------------------------------------------ publishers

    def publish(
        self,
        name: str,
        to: Sequence[str] = ("alice",),
        *,
        end: str = "ok",
        notification_id: str = "",
        request_id: str | None = None,
        digest: str = "",
        category: str = "news",
        key: str = "",
        priority: int = 2,
        expire: float | None = None,
        has_time: bool = True,
        repeated: bool = False,
    ) -> Story:
        """Publishes content `name`; its id is `id-<name>` unless told otherwise."""
        self._operations += 1
        operation = self._last[name] = f"p{self._operations}"
        self._recipients[name] = tuple(to)
        self.add(
            history.PublishInvoke(
                at=self.now,
                operation=operation,
                tenant=TENANT,
                producer="demo",
                request_id=f"request-{name}" if request_id is None else request_id,
                has_time=has_time,
                nonce=name,
                digest=digest or f"digest-{name}",
                category=category,
                recipients=tuple(to),
                priority=priority,
                ordering_key=key,
                expire=expire,
            )
        )
        match end:
            case "ok":
                self.add(
                    history.PublishOk(
                        at=self.now,
                        operation=operation,
                        notification_id=notification_id or _id(name),
                        repeated=repeated,
                    )
                )
            case "fail":
                self.add(history.PublishFail(at=self.now, operation=operation, reason="INVALID"))
            case "info":
                self.add(history.PublishInfo(at=self.now, operation=operation, reason="DEADLINE"))
            case _:
                assert end == "nothing"
        return self

    def accepted(self, name: str) -> Story:
        """Ends the latest publish of a content that was told without an end."""
        return self.add(
            history.PublishOk(at=self.now, operation=self._last[name], notification_id=_id(name), repeated=False)
        )

    # ------------------------------------------------------------ devices

    def connect(self, device: Device, *, known: Sequence[str] = (), replayed: bool = True) -> Story:
        """Opens the device's next session; with an answer that it has everything from before."""
        self._sessions[device] = self._sessions.get(device, 0) + 1
        ids = tuple(_id(name) for name in known)
        self.add(history.Connected(at=self.now, device=device, session=self._sessions[device], known=ids))
        return self.replayed(device) if replayed else self

    def replayed(self, device: Device) -> Story:
        """Ends a replay."""
        return self.add(history.Replayed(at=self.now, device=device, session=self._sessions[device]))

    def reloaded(self, device: Device) -> Story:
        """Tells the device to take the list anew."""
        return self.add(history.Reloaded(at=self.now, device=device, session=self._sessions[device]))

    def receive(
        self,
        device: Device,
        name: str,
        *,
        digest: str = "",
        canary: bool = True,
        live: bool = True,
        shown: bool = True,
        revision: int = 1,
        notification_id: str = "",
    ) -> Story:
        """Brings a content to a device, which shows it."""
        id_, session = notification_id or _id(name), self._sessions[device]
        self.add(
            history.Received(
                at=self.now,
                device=device,
                session=session,
                notification_id=id_,
                nonce=name,
                digest=digest or f"digest-{name}",
                canary=canary,
                revision=revision,
                live=live,
            )
        )
        if shown:
            self.add(history.Shown(at=self.now, device=device, session=session, notification_id=id_, revision=revision))
        return self

    def acked(self, device: Device, *names: str) -> Story:
        """Confirms acks."""
        ids = tuple(_id(name) for name in names)
        return self.add(
            history.AckConfirmed(at=self.now, device=device, session=self._sessions[device], notification_ids=ids)
        )

    def marked(self, device: Device, name: str) -> Story:
        """Marks a notification."""
        session = self._sessions[device]
        return self.add(history.Marked(at=self.now, device=device, session=session, notification_id=_id(name)))

    def close(self, device: Device) -> Story:
        """Ends the session."""
        return self.add(history.Closed(at=self.now, device=device, session=self._sessions[device]))

    # ------------------------------------------------------------ wishes and faults

    def mute(self, recipient: str, *, muted: bool = True, stored: bool = True) -> Story:
        """Mutes "news", or takes that back."""
        self._operations += 1
        operation = f"w{self._operations}"
        self.add(
            history.WishInvoke(
                at=self.now, operation=operation, tenant=TENANT, recipient=recipient, category="news", muted=muted
            )
        )
        return self.add(history.WishOk(at=self.now, operation=operation)) if stored else self

    def fault(
        self,
        name: str = "F-61",
        *,
        evidence: str = "pid gone",
        heals: bool = True,
        lasts: float = 1.0,
        device: bool = False,
        crash: bool = False,
    ) -> Story:
        """Lets something break, and heals it."""
        self._operations += 1
        operation = f"f{self._operations}"
        self.add(
            history.FaultBegan(
                at=self.now,
                operation=operation,
                fault=name,
                target="x",
                evidence=evidence,
                device=device,
                crash=crash,
            )
        )
        self.wait(lasts)
        return self.add(history.FaultEnded(at=self.now, operation=operation)) if heals else self

    # ------------------------------------------------------------ the end

    def rows(
        self,
        recipient: str,
        *names: str,
        read: Sequence[str] = (),
        new: Sequence[str] = (),
        unread: int | None = None,
    ) -> Story:
        """Lists an inbox from the top, with the server's count, and what `Explain` says of its rows."""
        for name in names:
            content = name.partition("@")[0]
            self.add(
                history.Row(
                    at=self.now,
                    tenant=TENANT,
                    recipient=recipient,
                    notification_id=_id(name),
                    nonce=content,
                    read=name in read,
                    new=name in new,
                )
            )
            self.terminal(recipient, name, "inboxed")
        number = len(names) - len(read) if unread is None else unread
        return self.add(history.Unread(at=self.now, tenant=TENANT, recipient=recipient, number=number))

    def terminal(self, recipient: str, name: str, state: str, reason: str = "") -> Story:
        """Says what became of one notification of one recipient."""
        return self.add(
            history.Terminal(
                at=self.now, tenant=TENANT, recipient=recipient, notification_id=_id(name), state=state, reason=reason
            )
        )

    def final(self, device: Device, *names: str, unread: int | None = None) -> Story:
        """Lists what a device has."""
        ids = tuple(_id(name) for name in names)
        number = len(names) if unread is None else unread
        return self.add(history.FinalList(at=self.now, device=device, notification_ids=ids, unread=number))

    def letter(
        self,
        name: str,
        *,
        reason: str = "REFUSED",
        size: int = 10,
        channel: int = 0,
        redriven: bool = False,
        redrive: float | None = None,
        left: bool = True,
    ) -> Story:
        """Gives a notification of alice's up."""
        return self.add(
            history.Letter(
                at=self.now,
                tenant=TENANT,
                recipient="alice",
                notification_id=_id(name),
                reason=reason,
                size=size,
                source="normal/7",
                channel=channel,
                redriven=redriven,
                redrive=redrive,
                left=left,
            )
        )

    def channel(self) -> Story:
        """Gives everybody a channel behind live."""
        return self.add(history.ChannelOpened(at=self.now))

    def call(self, name: str, *, outcome: str = "taken", collapse: str = "") -> Story:
        """Calls that channel about a notification of alice's."""
        return self.add(
            history.ChannelCall(
                at=self.now,
                tenant=TENANT,
                recipient="alice",
                notification_id=_id(name),
                attempt_id=f"attempt-{name}",
                collapse_id=collapse or f"step-{name}",
                outcome=outcome,
            )
        )

    def position(self, committed: int, first_unfinished: int | None, lag: int = 0) -> Story:
        """Says how far a lane is."""
        return self.add(
            history.Position(
                at=self.now, lane="normal", committed=committed, first_unfinished=first_unfinished, lag=lag
            )
        )

    def logs(self) -> list[Log]:
        """Returns the history as the log of one actor."""
        return [Log([Line("story", number, event) for number, event in enumerate(self.events, start=1)])]


def _id(name: str) -> str:
    return f"id-{name}"


# ---------------------------------------------------------------- how stories begin and end


def one() -> Story:
    """Alice is connected, gets a notification and acks it."""
    return Story().connect(ALICE).publish("a").receive(ALICE, "a").acked(ALICE, "a")


def ended(story: Story, *names: str) -> Story:
    """All is quiet; alice has these."""
    return story.wait(60).rows("alice", *names).final(ALICE, *names)


def at_once() -> Story:
    """Alice is connected; "a" and "b" of one key are published at the same time."""
    return Story().connect(ALICE).publish("a", key="k", end="nothing").publish("b", key="k").accepted("a")


def one_after_the_other(first: str, second: str) -> Story:
    """Alice is connected; of one key the second is published when the first was accepted."""
    return Story().connect(ALICE).publish(first, key="k").publish(second, key="k")


def away(story: Story) -> Story:
    """Alice's session ends and her next one begins."""
    return story.close(ALICE).wait(10).connect(ALICE, replayed=False)
