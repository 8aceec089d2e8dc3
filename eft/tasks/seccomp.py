"""A seccomp filter for candidate programs: no new processes, no exec, no signals, no sockets, nothing written anywhere.

A candidate of an isolated task only computes: it hands its result over an open pipe, so everything that changes the
machine can be refused by the kernel, without privileges, in a microsecond. `apply()` holds for the calling process for
good. Threads, reading files and memory stay allowed (rlimits bound them). Only the standard library is used, since the
sandbox worker runs without site-packages.

A program that is no Python (`prepare(binary=True)`) is started under the filter, so that variant lets execveat pass.

Limits: x86-64 and AArch64 Linux (elsewhere `prepare` returns None and rlimits alone hold); a deny list for the calls
that existed in 2020, everything newer is "not implemented". Numbers: Linux `unistd_64.h`, `asm-generic/unistd.h`.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

# Calls that fail with EPERM.
_DENIED = {
    "x86_64": (
        # fork vfork execve execveat kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_send_signal pidfd_open
        # setpgid setsid
        57, 58, 59, 322, 62, 200, 234, 129, 297, 424, 434, 109, 112,
        # ptrace process_vm_readv process_vm_writev pidfd_getfd unshare setns bpf userfaultfd perf_event_open
        # keyctl add_key request_key
        101, 310, 311, 438, 272, 308, 321, 323, 298, 250, 248, 249,
        # creat rename renameat renameat2 mkdir mkdirat rmdir link linkat unlink unlinkat symlink symlinkat
        # mknod mknodat
        85, 82, 264, 316, 83, 258, 84, 86, 265, 87, 263, 88, 266, 133, 259,
        # chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat truncate ftruncate fallocate utime utimes
        # utimensat setxattr lsetxattr fsetxattr
        90, 91, 268, 452, 92, 93, 94, 260, 76, 77, 285, 132, 235, 280, 188, 189, 190,
        # mount umount2 chroot pivot_root socket socketpair memfd_create shmget msgget semget mq_open fanotify_init
        165, 166, 161, 155, 41, 53, 319, 29, 68, 64, 240, 300,
        # what is there already of these: shmat shmctl semop semctl semtimedop msgsnd msgrcv msgctl; io_setup
        30, 31, 65, 66, 220, 69, 70, 71, 206,
        # setrlimit prlimit64 setpriority ioprio_set sched_setaffinity sched_setparam sched_setscheduler sched_setattr
        160, 302, 141, 251, 203, 142, 144, 314,
        # flock sync syncfs kcmp migrate_pages move_pages personality syslog
        73, 162, 306, 312, 256, 279, 135, 103,
        # setuid setgid setreuid setregid setgroups setresuid setresgid setfsuid setfsgid capset
        105, 106, 113, 114, 116, 117, 119, 122, 123, 126,
        # what only root could do: open_by_handle_at reboot init_module finit_module delete_module kexec_load
        # kexec_file_load settimeofday clock_settime adjtimex swapon swapoff sethostname acct quotactl iopl ioperm
        304, 169, 175, 313, 176, 246, 320, 164, 227, 159, 167, 168, 170, 163, 179, 172, 173,
    ),
    "aarch64": (  # the same calls, as far as this architecture has them
        221, 281, 129, 130, 131, 138, 240, 424, 434, 154, 157,
        117, 270, 271, 438, 97, 268, 280, 282, 241, 219, 217, 218,
        38, 276, 34, 37, 35, 36, 33,
        52, 53, 452, 54, 55, 45, 46, 47, 88, 5, 6, 7,
        40, 39, 51, 41, 198, 199, 279, 194, 186, 190, 180, 262,
        196, 195, 193, 191, 192, 189, 188, 187, 0,
        164, 261, 140, 30, 122, 118, 119, 274,
        32, 81, 267, 272, 238, 239, 92, 116,
        146, 144, 145, 143, 159, 147, 149, 151, 152, 91,
        265, 142, 105, 273, 106, 104, 294, 170, 112, 171, 224, 225, 161, 89, 60,
    ),
}  # fmt: skip
# "Not implemented": calls whose arguments a filter cannot see, so that libc falls back to the older, visible ones, and
# the newer calls to mount. The same numbers on both machines:
# io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen fsconfig fsmount fspick clone3 openat2
_ABSENT = (425, 426, 427, 428, 429, 430, 431, 432, 433, 435, 437)
_NEWEST = 440  # calls from here on are newer than this list: "not implemented", and libc does without
_EXECVEAT = {"x86_64": 322, "aarch64": 281}
_FCNTL = {"x86_64": 72, "aarch64": 25}
_IOCTL = {"x86_64": 16, "aarch64": 29}
# Whom a descriptor's signals go to, and which: a way to kill without `kill`. F_SETOWN F_SETSIG F_SETOWN_EX F_SETLEASE
# F_NOTIFY; then locks, which would stop others (F_SETLK F_SETLKW F_OFD_SETLK F_OFD_SETLKW).
_FCNTL_DENIED = (8, 10, 15, 1024, 1026, 6, 7, 37, 38)
_IOCTL_DENIED = (0x8901, 0x8902, 0x5412)  # FIOSETOWN SIOCSPGRP TIOCSTI
# How it dies, who may look into it, who inherits its orphans: PR_SET_PDEATHSIG PR_SET_DUMPABLE PR_SET_MM
# PR_SET_CHILD_SUBREAPER PR_SET_PTRACER
_PRCTL = {"x86_64": 157, "aarch64": 167}
_PRCTL_DENIED = (1, 4, 35, 36, 0x59616D61)
_CLONE = {"x86_64": 56, "aarch64": 220}
_OPENS = {"x86_64": ((2, 1), (257, 2)), "aarch64": ((56, 2),)}  # (open, position of its flags), (openat, position)
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_CLONE_THREAD = 0x00010000
_WRITING = 0o1 | 0o2 | 0o100 | 0o1000  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_X32 = 0x40000000  # the x32 twin of a call would slip past a comparison of numbers
_NUMBER, _ARCH, _ARGS = 0, 4, 16  # offsets in struct seccomp_data (little endian)

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2


def _program(machine: str, binary: bool) -> bytes:
    """The filter as an array of struct sock_filter (u16 code, u8 jump-true, u8 jump-false, u32 operand)."""

    def op(code: int, operand: int, true: int = 0, false: int = 0) -> bytes:
        return struct.pack("HBBI", code, true, false, operand)

    def fail(error: int) -> bytes:
        return op(_RETURN, _ERRNO | error)

    code = [op(_LOAD, _ARCH), op(_JUMP_EQUAL, _AUDIT_ARCH[machine], 1, 0), op(_RETURN, _KILL)]
    code += [op(_LOAD, _NUMBER), op(_JUMP_AT_LEAST, _X32, 0, 1), fail(errno.EPERM)]
    code += [op(_JUMP_AT_LEAST, _NEWEST, 0, 1), fail(errno.ENOSYS)]
    for number in _DENIED[machine]:
        if binary and number == _EXECVEAT[machine]:
            continue
        code += [op(_JUMP_EQUAL, number, 0, 1), fail(errno.EPERM)]
    for number in _ABSENT:
        code += [op(_JUMP_EQUAL, number, 0, 1), fail(errno.ENOSYS)]
    for table, position, denied in ((_FCNTL, 1, _FCNTL_DENIED), (_IOCTL, 1, _IOCTL_DENIED), (_PRCTL, 0, _PRCTL_DENIED)):
        code += [op(_JUMP_EQUAL, table[machine], 0, 2 * len(denied) + 2), op(_LOAD, _ARGS + 8 * position)]
        for number in denied:
            code += [op(_JUMP_EQUAL, number, 0, 1), fail(errno.EPERM)]
        code += [op(_RETURN, _ALLOW)]
    for number, position in _OPENS[machine]:
        code += [op(_JUMP_EQUAL, number, 0, 4), op(_LOAD, _ARGS + 8 * position), op(_JUMP_SET, _WRITING, 0, 1)]
        code += [fail(errno.EACCES), op(_RETURN, _ALLOW)]
    code += [op(_JUMP_EQUAL, _CLONE[machine], 0, 3), op(_LOAD, _ARGS), op(_JUMP_SET, _CLONE_THREAD, 1, 0)]
    code += [fail(errno.EPERM), op(_RETURN, _ALLOW)]
    return b"".join(code)


class _Fprog(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def prepare(binary: bool = False) -> object | None:
    """What `apply` needs (so that each forked child pays only two system calls), or None where filters can't be had."""
    machine = platform.machine()
    if machine not in _DENIED:
        return None
    code = _program(machine, binary)
    libc = ctypes.CDLL(None, use_errno=True)
    return libc, _Fprog(len(code) // 8, code), code  # `code` is kept alive: the structure only points to it


def apply(prepared: object | None) -> bool:
    """Filter the calling process (all its future threads and children too). False where the kernel refuses."""
    if prepared is None:
        return False
    libc, fprog, _ = prepared
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    return libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(fprog), 0, 0) == 0
