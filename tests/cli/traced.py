"""A program held at every entry to and return from a system call (ptrace of Linux, through ctypes), so that what happens at a
certain moment of its work can be tried at just that moment. The main thread alone is held."""

import ctypes
import os
import signal
import struct
import subprocess

from support import PROGRAM

TRACEME, CONT, SYSCALL, DETACH, SETOPTIONS, GET_SYSCALL_INFO = 0, 7, 24, 17, 0x4200, 0x420E
TRACESYSGOOD, EXITKILL = 1, 1 << 20

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def ptrace(request, pid, address=0, data=0):
    result = libc.ptrace(request, pid, address, data)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"ptrace {request}: {os.strerror(ctypes.get_errno())}")
    return result


def works():
    """A sandbox may forbid it."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if libc.ptrace(TRACEME, 0, 0, 0) == 0 else 1)
    return os.waitpid(pid, 0)[1] == 0


class Traced:
    """with Traced(*arguments) as run: ... while run.step(): ... """

    def __init__(self, *arguments):
        environment = dict(os.environ, ASAN_OPTIONS="detect_leaks=0")  # LeakSanitizer traces too
        self.process = subprocess.Popen([PROGRAM, *map(os.fsencode, arguments)], env=environment,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        preexec_fn=lambda: ptrace(TRACEME, 0))
        self.pid, self.ended = self.process.pid, False
        self.wait()
        ptrace(SETOPTIONS, self.pid, 0, TRACESYSGOOD | EXITKILL)

    def wait(self):
        """The signal that it is held for, None once it has ended."""
        status = os.waitpid(self.pid, 0)[1]
        if os.WIFSTOPPED(status):
            return os.WSTOPSIG(status)
        self.ended = True
        self.process.returncode = os.waitstatus_to_exitcode(status)
        return None

    def step(self):
        """To the next entry or return; False once it has ended."""
        passed = 0
        while True:
            ptrace(SYSCALL, self.pid, 0, passed)
            held = self.wait()
            if held is None or held == signal.SIGTRAP | 0x80:
                return held is not None
            passed = held

    def call(self):
        """The number of the system call that is entered; None at a return."""
        info = ctypes.create_string_buffer(88)
        ptrace(GET_SYSCALL_INFO, self.pid, len(info), ctypes.addressof(info))
        return struct.unpack_from("<Q", info, 24)[0] if info.raw[0] == 1 else None

    def go_on(self, number=0):
        """Lets it run, with a signal; (exit code, stdout, stderr)."""
        if not self.ended:
            ptrace(DETACH, self.pid, 0, number)
        out, err = self.process.communicate(timeout=300)
        return self.process.returncode, out.decode(), err.decode()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if not self.ended and self.process.returncode is None:
            self.process.kill()
            self.process.communicate()
        self.process.stdout.close()
        self.process.stderr.close()
