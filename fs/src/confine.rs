//! Locking a server in: from then on it is the pool's owner, without a capability, and reaches the pool, its tiers and
//! what the kernel tells of processes and disks, nothing else. What takes more, its keeper does (`privileged.rs`).
//!
//! Identity and capabilities are what most of it rests on. Landlock (landlock(7)) is for a pool that belongs to root,
//! whose files are not all the pool's. The seccomp filter is an allow list of what the server, the C library and the
//! start of a reader call; whatever else is asked for fails with `EPERM`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, Scope,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};

use crate::rights::{become_user, drop_capabilities, empty_bounding_set, no_new_privileges};

/// What a server keeps.
#[derive(Clone, Copy, Debug)]
pub struct Confinement<'a> {
    /// Whose the pool is: user and group.
    pub owner: (u32, u32),
    /// The directories of the pool and of its tiers.
    pub directories: &'a [OwnedFd],
}

/// What it reads beside the pool: of processes that ask and of the program's own descriptors; how often a disk failed,
/// and what memory there is; random numbers; and what the loader of a reader looks at.
const READ: [&str; 11] = [
    "/proc",
    "/sys/block",
    "/sys/class/bdi",
    "/sys/dev",
    "/sys/devices",
    "/sys/fs/cgroup",
    "/sys/fs/ext4",
    "/sys/fs/xfs",
    "/dev/urandom",
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
];
/// So long a thread may take that is ending.
const ENDING: Duration = Duration::from_secs(5);
/// Of `include/uapi/linux/ioprio.h`.
const IOPRIO_WHO_PROCESS: u64 = 1;
/// Of `include/uapi/asm-generic/ioctls.h`.
const TIOCLINUX: u64 = 0x541c;
/// What programs that are started have for standard output.
const NULL: &str = "/dev/null";

/// Locks this process in, which has one thread. Returns what of that was not to be had; an error says that nothing of
/// it was done.
pub fn confine(what: Confinement<'_>) -> Result<Vec<String>, String> {
    alone()?;
    let mut missing = Vec::new();
    let mut try_to = |what: &str, done: Result<(), String>| {
        if let Err(why) = done {
            missing.push(format!("{what}: {why}"));
        }
    };
    empty_bounding_set();
    let rules = rules();
    try_to("the owner's identity", become_user(what.owner.0, what.owner.1));
    try_to("capabilities", drop_capabilities());
    try_to("privileges", no_new_privileges());
    try_to("Landlock", rules.and_then(|rules| landlock(rules, &what)));
    try_to("seccomp", seccomp());
    Ok(missing)
}

/// What is done here is done for the thread that does it, and for those that it starts: there must be no other. One
/// that has ended, and whose end was waited for, is seen for a moment more.
fn alone() -> Result<(), String> {
    let until = Instant::now() + ENDING;
    loop {
        match fs::read_dir("/proc/self/task").map_err(|error| error.to_string())?.count() {
            1 => return Ok(()),
            threads if Instant::now() > until => return Err(format!("it has {threads} threads already")),
            _ => thread::sleep(Duration::from_millis(1)),
        }
    }
}

type Rules = Vec<PathBeneath<PathFd>>;

/// Of what is beside the pool. Whatever is not there needs none.
fn rules() -> Result<Rules, String> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let run = AccessFs::ReadFile | AccessFs::Execute;
    let mut rules = Rules::new();
    let mut allow = |path: &Path, access: BitFlags<AccessFs>| {
        let is_dir = path.is_dir();
        let access = if is_dir { access } else { access & AccessFs::from_file(ABI::V6) };
        if let Ok(opened) = PathFd::new(path) {
            rules.push(PathBeneath::new(opened, access));
        }
    };
    READ.iter().for_each(|path| allow(path.as_ref(), read));
    allow(NULL.as_ref(), AccessFs::ReadFile | AccessFs::WriteFile);
    // A reader is this same program, with the same libraries.
    allow("/proc/self/exe".as_ref(), run);
    mapped()?.iter().for_each(|path| allow(path, run));
    Ok(rules)
}

/// The files that this process has mapped: its program, the loader, libraries.
fn mapped() -> Result<BTreeSet<PathBuf>, String> {
    let text = fs::read_to_string("/proc/self/maps").map_err(|error| error.to_string())?;
    // Six fields in columns (proc_pid_maps(5)), the last of which is a path or in brackets.
    let paths =
        text.lines().filter(|line| line.contains(" r-xp ")).filter_map(|line| line.find('/').map(|at| &line[at..]));
    Ok(paths.map(PathBuf::from).collect())
}

/// Files: the pool's, and those of the rules. No TCP port. No signal to anybody but readers, and no
/// socket of others with an abstract name.
fn landlock(rules: Rules, what: &Confinement<'_>) -> Result<(), String> {
    let abi = ABI::V6;
    let pool = AccessFs::ReadFile
        | AccessFs::ReadDir
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir
        | AccessFs::Refer;
    let made = Ruleset::default()
        .handle_access(AccessFs::from_all(abi))
        .and_then(|made| made.handle_access(AccessNet::from_all(abi)))
        .and_then(|made| made.scope(Scope::from_all(abi)))
        .and_then(Ruleset::create);
    let of_pool = what.directories.iter().map(|directory| Ok(PathBeneath::new(directory, pool)));
    let of_others = rules.into_iter().map(Ok::<_, landlock::RulesetError>);
    let restricted = made
        .and_then(|made| made.add_rules(of_others))
        .and_then(|made| made.add_rules(of_pool))
        .and_then(|made| made.restrict_self());
    match restricted.map_err(|error| error.to_string())?.ruleset {
        RulesetStatus::NotEnforced => Err("the kernel has none".to_owned()),
        RulesetStatus::PartiallyEnforced => Err("the kernel has a part of it".to_owned()),
        RulesetStatus::FullyEnforced => Ok(()),
    }
}

/// What is called by the server, by the C library for it, and by a reader until it is locked in further.
const CALLS: &[libc::c_long] = &[
    // memory
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_msync,
    libc::SYS_membarrier,
    libc::SYS_memfd_create,
    // threads, and the processes of readers
    libc::SYS_futex,
    libc::SYS_clone3,
    libc::SYS_execve,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_kill,
    libc::SYS_tgkill,
    libc::SYS_pidfd_open,
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getgroups,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setsid,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_getrusage,
    libc::SYS_prctl,
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_seccomp,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_restrict_self,
    // signals
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigpending,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    // time, and the machine
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    // descriptors
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_lseek,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    // files
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_getdents64,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getcwd,
    libc::SYS_chdir,
    libc::SYS_fchdir,
    libc::SYS_umask,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_fchown,
    libc::SYS_ftruncate,
    libc::SYS_truncate,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_readahead,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_syncfs,
    // sockets that are there: the keeper's, readers', the log's
    libc::SYS_connect,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
];

/// What C libraries call on this machine for some of the above.
#[cfg(target_arch = "x86_64")]
const OLDER: &[libc::c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_wait,
    libc::SYS_pipe,
    libc::SYS_dup2,
    libc::SYS_vfork,
    libc::SYS_getrlimit,
    libc::SYS_setrlimit,
    libc::SYS_arch_prctl,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[libc::c_long] = &[];

/// Landlock says nothing of modes, owners, times and attributes of a file that has a name, nor of processes of the same
/// user but for signals: such calls are let through for what is open, and for this process.
fn seccomp() -> Result<(), String> {
    let is = |argument, value| SeccompCondition::new(argument, Len::Dword, Op::Eq, value);
    let has = |argument, mask, value| SeccompCondition::new(argument, Len::Dword, Op::MaskedEq(mask), value);
    let is_not = |argument, value| SeccompCondition::new(argument, Len::Dword, Op::Ne, value);
    let no_path = || SeccompCondition::new(1, Len::Qword, Op::Eq, 0);
    let (unix, datagram) = (libc::AF_UNIX as u64, libc::SOCK_DGRAM as u64);
    // The type of a socket, without the flags that are beside it.
    let kind = 0xf;
    let namespaces = (libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP) as u64;
    let filter = || -> Result<BpfProgram, seccompiler::BackendError> {
        let plain = CALLS.iter().chain(OLDER);
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> = plain.map(|call| (*call, Vec::new())).collect();
        let mut only_if = |call, conditions| -> Result<(), seccompiler::BackendError> {
            rules.insert(call, vec![SeccompRule::new(conditions)?]);
            Ok(())
        };
        // The log's; those who serve something listen on streams.
        only_if(libc::SYS_socket, vec![is(0, unix)?, has(1, kind, datagram)?])?;
        only_if(libc::SYS_socketpair, vec![is(0, unix)?])?;
        only_if(libc::SYS_clone, vec![has(0, namespaces, 0)?])?;
        // Standard error may be the terminal of whoever mounted: nothing is typed there for him.
        only_if(libc::SYS_ioctl, vec![is_not(1, libc::TIOCSTI)?, is_not(1, TIOCLINUX)?])?;
        only_if(libc::SYS_utimensat, vec![no_path()?])?;
        only_if(libc::SYS_prlimit64, vec![is(0, 0)?])?;
        only_if(libc::SYS_setpriority, vec![is(0, 0)?, is(1, 0)?])?;
        only_if(libc::SYS_ioprio_set, vec![is(0, IOPRIO_WHO_PROCESS)?, is(1, 0)?])?;
        let refused = SeccompAction::Errno(libc::EPERM as u32);
        SeccompFilter::new(rules, refused, SeccompAction::Allow, std::env::consts::ARCH.try_into()?)?.try_into()
    };
    // Its flags lie in memory, which no filter sees. The C library makes do with `clone`.
    let no_clone3 = || -> Result<BpfProgram, seccompiler::BackendError> {
        let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
        let missing = SeccompAction::Errno(libc::ENOSYS as u32);
        SeccompFilter::new(rules, SeccompAction::Allow, missing, std::env::consts::ARCH.try_into()?)?.try_into()
    };
    for program in [filter(), no_clone3()] {
        apply_filter(&program.map_err(|error| error.to_string())?).map_err(|error| error.to_string())?;
    }
    Ok(())
}
