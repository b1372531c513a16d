# SPDX-License-Identifier: Apache-2.0
"""Becomes another program, which the kernel kills when the process that started this one dies:

    python -I -S child.py PARENT PROGRAM [ARGUMENT...]

A program of its own, because Popen's preexec_fn would fork a process in which gRPC has threads. gRPC starts its threads
anew in such a child, finds the descriptors closed that Popen closes there, and aborts (grpc/grpc#43157). Without a
preexec_fn Popen uses vfork, which gRPC does not notice. Imports only what Python has, because each child waits for it.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
CANNOT_START = 127  # as a shell's


def main(parent: str, *command: str) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        os._exit(1)  # it died before the kernel was told
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and the program would inherit that
    # It came blocked (processes.py): a Ctrl-C until now waits, and then ends this without a traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]!r} cannot be started: {error.strerror}\n")
        os._exit(CANNOT_START)


if __name__ == "__main__":
    main(*sys.argv[1:])
