"""Put this process into a node, lower its priority, tie its life to its parent's, and become the program asked for.

`enter` alone does that for a process that has forked itself. Run as a script with no site and no package
(`python -I -S enter.py`), because it starts before every rank:

    enter.py PARENT_PID USER_FD|- NET_FD POLICY -- PROGRAM ARGUMENT...

POLICY is `normal`, `idle` (below everything else on the machine) or `fifo` (a measuring program: above the
ranks, below the delay line). The process keeps its pid, so what the parent started is the program itself.
"""

import ctypes
import os
import signal
import sys

_NEWUSER, _NEWNET = 0x10000000, 0x40000000
_PR_SET_PDEATHSIG = 1


def enter(parent: int, user: int | None, net: int, policy: str) -> bool:
    """Become a process of the node with those namespace descriptors, which are closed; False where `parent` is gone.

    Raises:
        OSError: The kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if user is not None:
        _check(libc.setns(user, _NEWUSER))
        os.close(user)
    _check(libc.setns(net, _NEWNET))
    os.close(net)
    # After setns: entering a user namespace clears the signal.
    _check(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    if os.getppid() != parent:
        return False
    if policy == "idle":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    elif policy == "fifo":
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    return True


def main(argv: list[str]) -> int:
    """Enter and exec; 127 with a line on stderr where that fails."""
    parent, user, net, policy, _, *program = argv
    try:
        if enter(int(parent), None if user == "-" else int(user), int(net), policy):
            os.execvp(program[0], program)
    except OSError as error:
        print(f"isthmus: cannot start {program[0]} in its node: {error.strerror}", file=sys.stderr)
    return 127


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
