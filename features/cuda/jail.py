"""Become a program with limits, or a compiler that sees its toolkit and its own folder alone.

usage: jail.py POLICY PROGRAM [ARGUMENT ...]       (POLICY is JSON, from ``isolation.start``)

Runs as a script in a process of its own, with the standard library only. It lowers its limits, sees
to it that it ends with whoever started it, then starts PROGRAM in one of these ways:

    namespaces   user, mount, pid, network and IPC namespaces: the files that may be read are bound
                 read-only into an empty root; a seccomp filter on top
    landlock     Landlock rules for what is read and written, and a seccomp filter that refuses
                 network, signals and tracing. Landlock leaves stat() and the error of open() alone,
                 so paths elsewhere would still be told apart; this process therefore answers
                 every call that names one: "no such file"
    none         limits alone

A PROGRAM that is a Python script is loaded before the doors close: its ``prepare(arguments)``
returns what is called after. Sources: user_namespaces(7), pivot_root(2), mount_setattr(2),
landlock(7), seccomp(2), seccomp_unotify(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import runpy
import select
import signal
import socket
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
SYS_MOUNT_SETATTR = 442  # on every architecture, as all calls since Linux 5.0; so are Landlock's

# include/uapi/linux/prctl.h, capability.h
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
LINUX_CAPABILITY_VERSION_3 = 0x20080522

# include/uapi/linux/landlock.h: rights on files, by the ABI that brought them
SYS_LANDLOCK_CREATE_RULESET, SYS_LANDLOCK_ADD_RULE, SYS_LANDLOCK_RESTRICT_SELF = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << bit for bit in range(6))
MAKE_DIR, MAKE_REG = 1 << 7, 1 << 8
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
OWN_FOLDER = (
    READ_FILE | READ_DIR | WRITE_FILE | TRUNCATE | MAKE_DIR | MAKE_REG | REMOVE_DIR | REMOVE_FILE
)

# include/uapi/linux/seccomp.h, filter.h; struct seccomp_data holds nr, arch, ip and 6 arguments
SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER = 1, 8
KILL, ERRNO, NOTIFY, ALLOW = 0x80000000, 0x00050000, 0x7FC00000, 0x7FFF0000
LOAD, EQUAL, ABOVE, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
X32_BIT = 0x40000000
NOTIF_RECV, NOTIF_SEND, NOTIF_CONTINUE = 0xC0502100, 0xC0182101, 1
NOTIFICATION = struct.Struct("=QIIiIQ6Q")
REPLY = struct.Struct("=QqiI")

LOOK_MILLISECONDS = 1000
"""Between two looks at whether we were told to end while nobody asks for a path."""

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
        _install_filter(policy, listen=False)
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


# --- Landlock and seccomp -----------------------------------------------------------------------


def in_landlock(policy: Policy, run: Callable[[], int]) -> int:
    """Run under Landlock and seccomp, answering for paths; the exit code. Raises OSError."""
    ours, theirs = socket.socketpair()

    def confined() -> int:
        ours.close()
        _no_new_privileges()
        _landlock(policy)
        listener = _install_filter(policy, listen=True)
        socket.send_fds(theirs, [b"x"], [listener])
        os.close(listener)
        theirs.close()
        return run()

    child = _child(confined)
    theirs.close()
    _, listeners, _, _ = socket.recv_fds(ours, 1, 1)
    if listeners:
        _answer_paths(listeners[0], policy)
    return _waited(child, policy)


def _landlock(policy: Policy) -> None:
    abi = _system(SYS_LANDLOCK_CREATE_RULESET, "landlock", None, 0, 1)
    handled = (1 << (13 + (abi > 1) + (abi > 2) + (abi > 4))) - 1
    network = 3 if abi > 3 else 0  # bind and connect over TCP
    scoped = 3 if abi > 5 else 0  # abstract Unix sockets and signals
    attributes = struct.pack("=3Q", handled, network, scoped)[: 8 + 8 * (abi > 3) + 8 * (abi > 5)]
    rules = _system(SYS_LANDLOCK_CREATE_RULESET, "landlock", attributes, len(attributes), 0)
    reading = EXECUTE | READ_FILE | READ_DIR
    allowed = [(path, reading) for path in policy["readable"]]
    allowed += [(policy["folder"], OWN_FOLDER), ("/dev/null", READ_FILE | WRITE_FILE)]
    for path, rights in allowed:
        at = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if not os.path.isdir(path):
            rights &= FILE_RIGHTS
        rule = struct.pack("=Qi", rights & handled, at)
        _system(SYS_LANDLOCK_ADD_RULE, "landlock", rules, 1, rule, 0)
        os.close(at)
    _system(SYS_LANDLOCK_RESTRICT_SELF, "landlock", rules, 0)
    os.close(rules)


def _install_filter(policy: Policy, *, listen: bool) -> int:
    """Put the seccomp filter in force; ``listen``: calls that name paths are asked about."""

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
    if listen:
        for number, _, _ in policy["naming"]:
            steps += refuse(number, NOTIFY)
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
    flags = SECCOMP_FILTER_FLAG_NEW_LISTENER if listen else 0
    return _system(policy["seccomp"], "seccomp", SECCOMP_SET_MODE_FILTER, flags, program)


def _answer_paths(listener: int, policy: Policy) -> None:
    """Answer calls that name a path until nobody is left to make any (seccomp_unotify(2)).

    This hides what exists; what may be read is Landlock's to say, so that a caller who changes the
    path meanwhile wins nothing but the knowledge that a file is there.
    """
    naming = {number: (folder, path) for number, folder, path in policy["naming"]}
    places = [*policy["readable"], policy["folder"], "/dev/null"]
    inside = tuple({os.path.realpath(place) for place in places})
    above = {"/"}
    for place in (*places, *inside):
        while (place := os.path.dirname(place)) != "/":
            above |= {place, os.path.realpath(place)}
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while True:
        ready = poll.poll(LOOK_MILLISECONDS)  # a signal just before it would wait for its end
        if not ready:
            continue
        if not ready[0][1] & select.POLLIN:
            return
        asked = bytearray(NOTIFICATION.size)
        try:
            fcntl.ioctl(listener, NOTIF_RECV, asked)
            ident, pid, _, number, _, _, *arguments = NOTIFICATION.unpack(asked)
            answer = (-errno.ENOENT, 0)
            with contextlib.suppress(OSError):  # a folder that is not open, a caller that is gone
                path = _named_path(pid, arguments, *naming[number])
                if path in above or any(path == p or path.startswith(p + "/") for p in inside):
                    answer = (0, NOTIF_CONTINUE)
            fcntl.ioctl(listener, NOTIF_SEND, REPLY.pack(ident, 0, *answer))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINTR):  # the caller died meanwhile
                raise


def _named_path(pid: int, arguments: list[int], folder: int | None, path: int) -> str:
    """The path that a call of ``pid`` names, without symbolic links."""
    at = arguments[path]
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(at)
        text = memory.read(4096 - at % 4096)
        if b"\0" not in text:
            with contextlib.suppress(OSError):
                text += memory.read(4096)
    name = os.fsdecode(text.partition(b"\0")[0])
    start = "cwd"
    if folder is not None:
        number = ctypes.c_int(arguments[folder] & 0xFFFFFFFF).value
        start = "cwd" if number == AT_FDCWD else f"fd/{number}"
    base = os.readlink(f"/proc/{pid}/{start}")
    # Without a name it is a file that is open already.
    return os.path.realpath(os.path.join(base, name)) if name else "/"


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


def _ended(run: Callable[[], int]) -> NoReturn:
    """End this process as ``run`` says."""
    code = FAILED
    try:
        code = run()
    except Exception as error:  # whatever it is, the program must not run
        print(f"the compiler cannot be isolated: {error!r}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
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


def main(policy: Policy, command: list[str]) -> NoReturn:
    """Limit this process, then become ``command`` in the mode that ``policy`` names."""
    _end_with(policy["parent"])
    _limit(policy)

    def become() -> int:
        os.execv(command[0], command)  # noqa: S606 - this is the launcher's purpose

    run: Callable[[], int] = become
    if command[0].endswith(".py"):
        run = runpy.run_path(command[0])["prepare"](command[1:])
    modes = {"namespaces": in_namespaces, "landlock": in_landlock}
    mode = policy["mode"]
    _ended(run if mode == "none" else lambda: modes[mode](policy, run))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
