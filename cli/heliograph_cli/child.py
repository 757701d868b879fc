"""Becomes another program that ends with its parent: `python -I -S child.py PARENT_PID PROGRAM [ARGUMENT...]`.

For programs that cannot ask for it themselves (Envoy). A step between fork and exec would do the same, but it makes
the parent fork with all its gRPC threads instead of the safe and fast way; this costs 20 ms instead. Linux only;
elsewhere the program just runs. Must import nothing but the standard library: it runs without site packages.
"""

import os
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1


def main(argv: list[str]) -> None:
    """Asks for SIGTERM at the parent's end and runs the program."""
    parent, program = int(argv[0]), argv[1:]
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, int(signal.SIGTERM), 0, 0, 0)
    # Asked after the request above: a parent that ends from now on is noticed by the system.
    if os.getppid() != parent:
        sys.exit(f"{program[0]}: the parent process is gone")
    try:
        os.execv(program[0], program)
    except OSError as error:
        print(f"{program[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
