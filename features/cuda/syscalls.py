"""System calls that a compiler never needs, and those that name a path.

Numbers for x86_64 (arch/x86/entry/syscalls/syscall_64.tbl) and aarch64 (include/uapi/asm-generic/
unistd.h), both of Linux 6.1; ``None`` where the architecture lacks the call.
"""

from __future__ import annotations

import platform

_Numbers = tuple[int | None, int | None]

AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""How seccomp names the architectures whose calls are listed (include/uapi/linux/audit.h)."""

DENIED: dict[str, _Numbers] = {
    # network and messages
    "socket": (41, 198), "socketpair": (53, 199), "msgget": (68, 186), "semget": (64, 190),
    "shmget": (29, 194), "mq_open": (240, 180),
    # other processes
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "process_madvise": (440, 440), "kcmp": (312, 272),
    "process_mrelease": (448, 448), "migrate_pages": (256, 238), "move_pages": (279, 239),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274),
    # namespaces, mounts and the rest of the kernel
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "mount_setattr": (442, 442),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "bpf": (321, 280),
    "perf_event_open": (298, 241), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "acct": (163, 89), "swapon": (167, 224), "quotactl": (179, 60), "init_module": (175, 105),
    "finit_module": (313, 273), "kexec_load": (246, 104), "uselib": (134, None),
    # paths that neither Landlock nor ``NAMING`` looks at
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "truncate": (76, 45),
    "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276), "link": (86, None),
    "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36), "mknod": (133, None),
    "mknodat": (259, 33), "chmod": (90, None), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None),
    "utimes": (235, None), "utimensat": (280, 88), "futimesat": (261, None),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "getxattr": (191, 8), "lgetxattr": (192, 9),
    "listxattr": (194, 11), "llistxattr": (195, 12), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "statfs": (137, 43), "inotify_init": (253, None),
    "inotify_init1": (294, 26), "inotify_add_watch": (254, 27), "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
}  # fmt: skip
"""Answered ``EPERM``."""

UNKNOWN: dict[str, _Numbers] = {"openat2": (437, 437), "clone3": (435, 435)}
"""Answered ``ENOSYS``, so that libraries take the older call, whose arguments a filter can see."""

NAMING: dict[str, tuple[_Numbers, int | None, int]] = {
    "open": ((2, None), None, 0), "creat": ((85, None), None, 0), "openat": ((257, 56), 0, 1),
    "stat": ((4, None), None, 0), "lstat": ((6, None), None, 0), "newfstatat": ((262, 79), 0, 1),
    "statx": ((332, 291), 0, 1), "access": ((21, None), None, 0), "faccessat": ((269, 48), 0, 1),
    "faccessat2": ((439, 439), 0, 1), "readlink": ((89, None), None, 0),
    "readlinkat": ((267, 78), 0, 1), "execve": ((59, 221), None, 0),
    "execveat": ((322, 281), 0, 1), "chdir": ((80, 49), None, 0), "unlink": ((87, None), None, 0),
    "unlinkat": ((263, 35), 0, 1), "mkdir": ((83, None), None, 0), "mkdirat": ((258, 34), 0, 1),
    "rmdir": ((84, None), None, 0),
}  # fmt: skip
"""Calls that name a path: which argument is the folder it starts from, and which the path."""

CLONE: _Numbers = (56, 220)
PRLIMIT: _Numbers = (302, 261)
PIVOT_ROOT: _Numbers = (155, 41)
SECCOMP: _Numbers = (317, 277)


def filter_tables() -> dict[str, object] | None:
    """What ``jail.py`` needs of these tables here; ``None`` on another architecture."""
    machine = platform.machine()
    if machine not in AUDIT_ARCHITECTURES:
        return None
    here = list(AUDIT_ARCHITECTURES).index(machine)
    return {
        "architecture": AUDIT_ARCHITECTURES[machine],
        "denied": [numbers[here] for numbers in DENIED.values() if numbers[here] is not None],
        "unknown": [numbers[here] for numbers in UNKNOWN.values() if numbers[here] is not None],
        "naming": [
            (numbers[here], folder, path)
            for numbers, folder, path in NAMING.values()
            if numbers[here] is not None
        ],
        "clone": CLONE[here],
        "prlimit": PRLIMIT[here],
        "pivot_root": PIVOT_ROOT[here],
        "seccomp": SECCOMP[here],
    }
