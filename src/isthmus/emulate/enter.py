"""Put this process into a node, lower its priority, tie its life to its parent's, and become the program asked for.

Run as a script with no site and no package (`python -I -S enter.py`), because it starts before every rank:

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


def main(argv: list[str]) -> int:
    """Enter and exec; 127 with a line on stderr where that fails."""
    parent, user, net, policy, _, *program = argv
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        if user != "-":
            _check(libc.setns(int(user), _NEWUSER))
            os.close(int(user))
        _check(libc.setns(int(net), _NEWNET))
        os.close(int(net))
        # After setns: entering a user namespace clears the signal.
        _check(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
        if os.getppid() != int(parent):
            return 127
        if policy == "idle":
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        elif policy == "fifo":
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
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
