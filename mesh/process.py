"""What concerns the operating system's process: its own flags, its parent, its event loop, its memory.

Used by `mesh.app.run` once at the start. Must not know what the process serves.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec

import msgspec

from mesh.errors import Failure, StartError
from mesh.settings import FieldDoc

# The defaults (700, 10, 10) begin a young collection for every 700 objects that outlive their making: under load that
# is many collections a second that find nothing, as messages die by reference counting. With 20,000 a young
# collection takes about half a millisecond; an old one comes after 20,000 × 20 × 50 = 20 million survivors.
COLLECTOR_THRESHOLDS = (20_000, 20, 50)

_SET_PARENT_DEATH_SIGNAL = 1
_INIT = 1


class Options(msgspec.Struct, frozen=True):
    """Flags that say how to run, as opposed to settings.

    Attributes:
        help: print what can be set.
        check_config: check the settings only.
        show_config: print the effective settings only.
        parent: None without `--die-with-parent`; the parent's process id, or 0 when it was not given.
        rest: the words that are settings.
    """

    help: bool
    check_config: bool
    show_config: bool
    parent: int | None
    rest: Sequence[str]


def read_options(argv: Sequence[str]) -> Options:
    """Separates the flags of the process from those that are settings.

    Raises:
        StartError: the parent's process id is no number.
    """
    switches = {"--help": False, "--check-config": False, "--show-config": False}
    parent: int | None = None
    rest = []
    for word in argv:
        flag, equals, text = word.partition("=")
        if word in switches:
            switches[word] = True
        elif flag == "--die-with-parent":
            if equals and not (text.isascii() and text.isdigit()):
                raise StartError(f"flag --die-with-parent: {text!r} is no process id; give the parent's or none")
            parent = int(text or 0)
        else:
            rest.append(word)
    return Options(
        help=switches["--help"],
        check_config=switches["--check-config"],
        show_config=switches["--show-config"],
        parent=parent,
        rest=rest,
    )


def describe_flags(service: str, fields: Sequence[FieldDoc]) -> str:
    """Returns the text for `--help`."""
    lines = [
        f"usage: python -m svc_{service} [flags]",
        "",
        "--check-config: check the settings and exit",
        "--show-config: print the effective settings as TOML, secrets masked, and exit",
        "--die-with-parent[=PID]: drain when the parent process is gone",
        "",
        "Settings; a flag beats the environment, which beats the file, which beats the default:",
    ]
    for field in fields:
        lines.append(f"  {field.flag}  ({field.kind}; default: {field.default}; {field.variable})")
        lines.append(f"      {field.description}")
    return "\n".join(lines)


def die_with_parent(parent: int) -> None:
    """Asks the system to send SIGTERM when the parent ends.

    Linux sends it when the *thread* that started this process ends: start children from a thread that stays. Other
    systems have no such signal; there only the check below is made.

    Args:
        parent: the parent's process id, 0 if unknown. Without it a parent that ended before this call cannot be told
            from a parent that is process 1.

    Raises:
        StartError: the parent is gone already.
    """
    if sys.platform.startswith("linux"):
        library = ctypes.CDLL(None, use_errno=True)
        if library.prctl(_SET_PARENT_DEATH_SIGNAL, int(signal.SIGTERM), 0, 0, 0) != 0:
            raise StartError(f"flag --die-with-parent: {os.strerror(ctypes.get_errno())}; start without it")
    # Asked after the request above: a parent that ends from now on is noticed by the system.
    now = os.getppid()
    if now != parent if parent else now == _INIT:
        raise StartError("flag --die-with-parent: the parent process is gone; start it again, it starts this one")


def loop_factory(wanted: bool) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Returns what makes the event loop: uvloop where wanted and installed, else None for the standard one."""
    if not wanted or find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop


def tune_collector() -> None:
    """Takes what was built during the start out of every later collection, and makes collections rarer."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


def leave_at_once(code: int) -> None:
    """Ends the process without any clean-up: for a second signal, and when tasks do not end."""
    os._exit(code)


def explain(error: Failure | OSError) -> str:
    """Returns what went wrong as a person may read it, without a category or a number."""
    if isinstance(error, Failure):
        return error.message
    if error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__
