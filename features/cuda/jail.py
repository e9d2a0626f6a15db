"""Become a program with limits, or a compiler that sees its toolkit and its own folder alone.

usage: jail.py POLICY PROGRAM [ARGUMENT ...]       (POLICY is JSON, from ``isolation``)
       jail.py --ready DESCRIPTOR                  (of a socket, from ``isolation``)

Runs as a script in a process of its own, with the standard library only. It lowers its limits, sees
to it that it ends with whoever started it, then becomes PROGRAM. Where it stands ready it forks for
each message, and what it forked starts a PROGRAM: with limits alone, or, where
POLICY says ``isolated``, in user, mount, pid, network and IPC namespaces, where the
files that may be read are bound read-only into an empty root, with a seccomp filter on top.

A PROGRAM that is a Python script is loaded before the doors close: its ``prepare(arguments)``
returns what is called after. Sources: user_namespaces(7), pivot_root(2), mount_setattr(2),
seccomp(2).
"""

from __future__ import annotations

import _socket
import contextlib
import ctypes
import errno
import json
import os
import resource
import runpy
import signal
import struct
import sys
from collections.abc import Callable
from typing import Any, NoReturn

FAILED = 125
"""Exit code where the isolation cannot be set up; the program has not run then."""

NOBODY = 65534
"""Who the compiler is inside its user namespace: nobody, so that exec leaves no capability."""

# include/uapi/linux/sched.h
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
NAMESPACES = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS

# include/uapi/linux/mount.h
MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 4096, 16384, 1 << 18, 2
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC = 1, 2, 4, 8
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
SYS_MOUNT_SETATTR = 442  # on every architecture, as all calls since Linux 5.0

# include/uapi/linux/prctl.h, capability.h
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
LINUX_CAPABILITY_VERSION_3 = 0x20080522

# include/uapi/linux/seccomp.h, filter.h; struct seccomp_data holds nr, arch, ip and 6 arguments
SECCOMP_SET_MODE_FILTER = 1
KILL, ERRNO, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
LOAD, EQUAL, ABOVE, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
X32_BIT = 0x40000000

MOST_BYTES = 1 << 20
"""Of a message: what a command and an environment may be (ARG_MAX, execve(2)), and some."""

Policy = dict[str, Any]
_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def _system(number: int, what: str, *arguments: Any) -> int:
    """A system call without a wrapper in every libc. Raises OSError."""
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *wide), what)


# --- namespaces ---------------------------------------------------------------------------------


def in_namespaces(policy: Policy, run: Callable[[], int]) -> int:
    """Run in new namespaces over a root of our own; the exit code. Raises OSError."""
    user, group = os.getuid(), os.getgid()
    _checked(_libc.unshare(NAMESPACES), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("gid_map", f"{NOBODY} {group} 1"),
        ("uid_map", f"{NOBODY} {user} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)

    def confined() -> int:
        _new_root(policy)
        header = struct.pack("=Ii", LINUX_CAPABILITY_VERSION_3, 0)
        _checked(_libc.capset(header, bytes(24)), "capset")
        _no_new_privileges()
        _install_filter(policy)
        return run()

    return _waited(_child(confined), policy)


def _new_root(policy: Policy) -> None:
    """Make an empty root with what may be read, and enter it."""
    folder = policy["folder"]
    root = os.path.join(folder, ".root")
    os.makedirs(root, 0o700, exist_ok=True)
    _mount(None, "/", None, MS_REC | MS_PRIVATE, None)
    _mount("tmpfs", root, "tmpfs", 0, "mode=755,size=1m")
    for path in policy["readable"]:
        target = _place(root, path)
        _mount(os.path.realpath(path), target, None, MS_BIND | MS_REC, None)
        attributes = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV
        _mount_attributes(target, attributes, AT_RECURSIVE)
    _mount("/dev/null", _place(root, "/dev/null"), None, MS_BIND, None)
    own = _place(root, folder)
    _mount(folder, own, None, MS_BIND, None)
    _mount_attributes(own, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC, 0)
    _mount_attributes(root, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, 0)
    # The old root ends up over the new one and is taken off: pivot_root(2), 'pivot_root(".", ".")'.
    os.chdir(root)
    _system(policy["pivot_root"], "pivot_root", b".", b".")
    _checked(_libc.umount2(b".", MNT_DETACH), "umount2")
    os.chdir(folder)


def _place(root: str, path: str) -> str:
    """Where the file or folder ``path`` is bound: made, with the symbolic links that lead to it."""
    real = os.path.realpath(path)
    at = "/"
    for part in os.path.relpath(path, "/").split("/"):
        at = os.path.join(os.path.realpath(at), part)
        if os.path.islink(at):
            target = root + at
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.symlink(os.readlink(at), target)
            _place(root, os.path.join(os.path.dirname(at), os.readlink(at)))
    target = root + real
    if os.path.isdir(real):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    return target


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None) -> None:
    text = [None if word is None else os.fsencode(word) for word in (source, target, kind, data)]
    result = _libc.mount(text[0], text[1], text[2], ctypes.c_ulong(flags), text[3])
    _checked(result, "mount")


def _mount_attributes(target: str, attributes: int, flags: int) -> None:
    asked = struct.pack("=4Q", attributes, 0, 0, 0)
    _system(
        SYS_MOUNT_SETATTR, "mount_setattr", AT_FDCWD, os.fsencode(target), flags, asked, len(asked)
    )


def _install_filter(policy: Policy) -> None:
    """Put the seccomp filter in force."""

    def refuse(number: int, answer: int) -> list[tuple[int, int, int, int]]:
        return [(EQUAL, 0, 1, number), (RETURN, 0, 0, answer)]

    steps = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, policy["architecture"]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
        (ABOVE, 0, 1, X32_BIT),
        (RETURN, 0, 0, ERRNO | errno.ENOSYS),
    ]
    for number in policy["denied"]:
        steps += refuse(number, ERRNO | errno.EPERM)
    for number in policy["unknown"]:
        steps += refuse(number, ERRNO | errno.ENOSYS)
    # clone() with a new namespace; limits of another process.
    for number, test in (
        (policy["clone"], (ANY_BIT, 0, 1, NAMESPACES | CLONE_NEWCGROUP)),
        (policy["prlimit"], (EQUAL, 1, 0, 0)),
    ):
        refused = (RETURN, 0, 0, ERRNO | errno.EPERM)
        steps += [(EQUAL, 0, 4, number), (LOAD, 0, 0, FIRST_ARGUMENT), test, refused]
        steps += [(RETURN, 0, 0, ALLOW)]
    steps.append((RETURN, 0, 0, ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    _system(policy["seccomp"], "seccomp", SECCOMP_SET_MODE_FILTER, 0, program)


# --- the process --------------------------------------------------------------------------------


def _no_new_privileges() -> None:
    _checked(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def _child(confined: Callable[[], int]) -> int:
    """Fork a child that dies with us and calls ``confined``; its process id."""
    child = os.fork()
    if child:
        return child
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return _ended(confined)


def _ended(run: Callable[[], int], told: int | None = None) -> NoReturn:
    """End this process as ``run`` says; with all of its group once that is ``told``, if anyone."""
    code = FAILED
    try:
        code = run()
    except Exception as error:  # whatever it is, the program must not run
        print(f"the compiler cannot be isolated: {error!r}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if told is not None:
            os.write(told, b"%d\n" % code)
            os.killpg(0, signal.SIGKILL)
        os._exit(code)


def _waited(child: int, policy: Policy) -> int:
    """Wait for its end, or for the end of whoever started us, which must not be missed between two
    calls: sigwait(3) loses neither."""
    ends = {signal.SIGCHLD, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    while True:
        ended, status, used = os.wait4(child, os.WNOHANG)
        if ended:
            break
        if signal.sigwait(ends) == signal.SIGTERM:
            os.killpg(0, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(status)
    spent = used.ru_utime + used.ru_stime
    # The first process of a namespace does not hear SIGXCPU, only what follows.
    if code == -signal.SIGKILL and spent >= policy.get("seconds", float("inf")):
        code = -signal.SIGXCPU
    return code if code >= 0 else 128 - code


def _limit(policy: Policy) -> None:
    for name, most in (
        (resource.RLIMIT_CPU, policy.get("seconds")),
        (resource.RLIMIT_AS, policy.get("memory_bytes")),
        (resource.RLIMIT_FSIZE, policy.get("output_bytes")),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(name)
        if most is not None:
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            # At both limits of CPU time at once it would be SIGKILL, which others send too.
            beyond = name == resource.RLIMIT_CPU and most != hard
            resource.setrlimit(name, (most, most + beyond))
    # It outlives exec; 0: none.
    signal.alarm(policy.get("clock_seconds") or policy.get("seconds") or 0)
    os.nice(policy.get("niceness", 0))


def _end_with(parent: int) -> None:
    """End, with all of this process group, when the thread that started this process does."""
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))  # not beyond exec
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it ended meanwhile
        os.killpg(0, signal.SIGKILL)


def main(policy: Policy, command: list[str], told: int | None = None) -> NoReturn:
    """Limit this process, then become ``command``; or start it, isolated where ``policy`` says so,
    and write our process id and its exit code, a line each, where they are ``told``."""
    _end_with(policy["parent"])
    _limit(policy)

    def become() -> int:
        os.execv(command[0], command)  # noqa: S606 - this is the launcher's purpose

    if told is None:
        _ended(become)
    os.write(told, b"%d\n" % os.getpid())

    def started() -> int:
        run: Callable[[], int] = become
        if command[0].endswith(".py"):
            try:
                run = runpy.run_path(command[0])["prepare"](command[1:])
            except Exception as error:  # as a program that ends with an error of its own
                print(repr(error), file=sys.stderr)
                return 1
        return in_namespaces(policy, run) if policy["isolated"] else _waited(_child(run), policy)

    _ended(started, told)


def stand_ready(door: _socket.socket) -> NoReturn:
    """Fork for every message until nobody holds the other end. A message is JSON (policy, command,
    environment), with where to print, where to print errors, and where it is told how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    parent = os.getpid()
    while True:
        said, (*sent,), *_ = door.recvmsg(MOST_BYTES, _socket.CMSG_SPACE(12))
        if not said:
            sys.exit()
        out, error, told = struct.unpack("=3i", sent[0][2])
        if not os.fork():
            door.close()
            os.setsid()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(out, 1)
            os.dup2(error, 2)
            policy, command, environment = json.loads(said)
            os.chdir(policy["folder"])
            os.environ.clear()
            os.environ.update(environment)
            main({**policy, "parent": parent}, command, told)
        for each in (out, error, told):
            os.close(each)


if __name__ == "__main__":
    if sys.argv[1] == "--ready":
        stand_ready(_socket.socket(fileno=int(sys.argv[2])))
    main(json.loads(sys.argv[1]), sys.argv[2:])
