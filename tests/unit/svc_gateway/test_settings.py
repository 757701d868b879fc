"""What the gateway can be told."""

from __future__ import annotations

import pytest

from mesh.settings import SettingsError, load
from svc_gateway.settings import GatewaySettings


def _load(*flags: str) -> GatewaySettings:
    return load(GatewaySettings, ["--tokens-file=keys.json", *flags], {})


def test_a_node_is_named_once() -> None:
    """The process has the node's id, and the WebSocket listener too."""
    settings = _load("--node-id=gw-a-3", "--run-dir=/run/h")
    assert (settings.node_id, settings.process) == ("gw-a-3", "gw-a-3")
    assert settings.listen == "unix:/run/h/gw-a-3.ws"
    assert _load("--process=gw-b-1").node_id == "gw-b-1"
    assert _load().node_id.startswith("gw-")


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--node-id=GW_1"], "node_id"),
        (["--node-id=gw-a-3", "--process=gw-b-1"], "process"),
        (["--websocket-listen=0.0.0.0:80"], "websocket_listen"),
        (["--lease-renewal=20"], "lease_renewal"),
        (["--session-limit=0"], "session_limit"),
        (["--allowed-origins=app.example"], "allowed_origins"),
        (["--allowed-origins=https://app.example/"], "allowed_origins"),
        (["--allowed-origins=https://App.example"], "allowed_origins"),
        (["--allowed-origins=https://app.example,null"], "allowed_origins"),
        (["--allowed-origins=*"], "allowed_origins"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(flags: list[str], word: str) -> None:
    """The line names what is wrong."""
    with pytest.raises(SettingsError) as caught:
        _load(*flags)
    assert word in str(caught.value).replace("-", "_")
    assert "\n" not in str(caught.value)


def test_tokens_are_needed() -> None:
    """Nobody could be let in without keys."""
    with pytest.raises(SettingsError, match="is needed"):
        load(GatewaySettings, [], {})


def test_origins_are_given_as_browsers_write_them() -> None:
    """With a port where it is not the scheme's own, and of any host."""
    origins = ("https://app.example", "http://localhost:3000", "http://[::1]:8080", "https://xn--bcher-kva.example")
    assert _load(f"--allowed-origins={','.join(origins)}").allowed_origins == origins
