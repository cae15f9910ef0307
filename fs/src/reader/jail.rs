//! Locking this process in, for good.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use landlock::{ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetStatus, Scope};
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Gid, Uid, geteuid, setgroups, setresgid, setresuid, setsid};
use seccompiler::{
    SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};
use tensorfs_formats::MEMORY;

/// Nobody.
const NOBODY: u32 = 65_534;
/// What a reader needs beside what recognising a file takes: buffers, tiles of a tensor whose elements lie in strides,
/// a decoder, and what the allocator cannot use.
const ROOM: u64 = 96 << 20;
/// Whoever asks for what is in files does not get in the way of whoever saves some.
const NICENESS: libc::c_int = 5;
/// If memory runs out, it is a reader that goes.
const FIRST_TO_GO: &str = "1000";

/// Locks this process in: from here on it has its memory, a clock, and descriptor 0. Returns what of that was not to be
/// had from this kernel.
pub(crate) fn lock_in() -> Vec<String> {
    let mut missing = Vec::new();
    let mut try_to = |what: &str, done: Result<(), String>| {
        if let Err(why) = done {
            missing.push(format!("{what}: {why}"));
        }
    };
    let taken = address_space();
    // Best effort: that it goes first is for the good of others.
    let _ = fs::write("/proc/self/oom_score_adj", FIRST_TO_GO);
    let _ = setsid();
    // SAFETY: these calls take integers, and nothing in this process has any of the descriptors.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS);
        libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0);
    }
    try_to("capabilities", drop_rights());
    try_to("privileges", prctl(libc::PR_SET_NO_NEW_PRIVS, 1));
    // Behind the change of the user, which takes both back.
    try_to("being looked into", prctl(libc::PR_SET_DUMPABLE, 0));
    try_to("its end", prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong));
    try_to("Landlock", landlock());
    for (resource, most) in [
        (Resource::RLIMIT_AS, taken + MEMORY as u64 + ROOM),
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_FSIZE, 0),
        (Resource::RLIMIT_NPROC, 0),
        (Resource::RLIMIT_NOFILE, 0),
        (Resource::RLIMIT_MEMLOCK, 0),
    ] {
        try_to("limits", setrlimit(resource, most, most).map_err(|errno| errno.desc().to_owned()));
    }
    try_to("seccomp", seccomp());
    missing
}

/// Bytes of address space that the program itself takes.
fn address_space() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    pages.map_or(64 << 20, |pages| pages * 4096)
}

fn prctl(option: libc::c_int, value: libc::c_ulong) -> Result<(), String> {
    // SAFETY: the options used here take integers.
    match unsafe { libc::prctl(option, value, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().to_string()),
    }
}

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: libc::c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// No user of its own, no group, and no capability, whoever runs the server.
fn drop_rights() -> Result<(), String> {
    const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
    const CAPABILITIES: libc::c_ulong = 64;
    for capability in 0..CAPABILITIES {
        // Those that the kernel does not know, and all for whoever has none, are refused.
        let _ = prctl(libc::PR_CAPBSET_DROP, capability);
    }
    let _ = prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong);
    let mut changed = Ok(());
    if geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        // Each for itself: a container may have been forbidden one of them, and then the others go all the same.
        let all = [setgroups(&[]), setresgid(gid, gid, gid), setresuid(uid, uid, uid)];
        changed = all.into_iter().collect::<Result<(), _>>().map_err(|errno| errno.desc().to_owned());
    }
    let header = CapHeader { version: CAPABILITY_VERSION_3, pid: 0 };
    let none = [CapData { effective: 0, permitted: 0, inheritable: 0 }; 2];
    // SAFETY: both have the layout of version 3 and live through the call.
    match unsafe { libc::syscall(libc::SYS_capset, &header, none.as_ptr()) } {
        0 => changed,
        _ => Err(io::Error::last_os_error().to_string()),
    }
}

/// No file, no network, no signal to anybody outside.
fn landlock() -> Result<(), String> {
    let abi = ABI::V6;
    let rules = Ruleset::default()
        .handle_access(AccessFs::from_all(abi))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(abi)))
        .and_then(|rules| rules.scope(Scope::from_all(abi)))
        .and_then(Ruleset::create);
    let status = rules.and_then(|rules| rules.restrict_self()).map_err(|error| error.to_string())?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err("the kernel has none".to_owned()),
        RulesetStatus::PartiallyEnforced => Err("the kernel has a part of it".to_owned()),
        RulesetStatus::FullyEnforced => Ok(()),
    }
}

/// Nothing but memory, the clock, and reading and writing at descriptor 0. Any other call ends the process.
fn seccomp() -> Result<(), String> {
    let is = |argument, value| SeccompCondition::new(argument, Len::Dword, Op::Eq, value);
    let has = |argument, mask, value| SeccompCondition::new(argument, Len::Dword, Op::MaskedEq(mask), value);
    let (exec, anonymous) = (libc::PROT_EXEC as u64, libc::MAP_ANONYMOUS as u64);
    let plain = [
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_brk,
        libc::SYS_futex,
        libc::SYS_clock_gettime,
        libc::SYS_getrandom,
        libc::SYS_restart_syscall,
        libc::SYS_rt_sigreturn,
        libc::SYS_exit,
        libc::SYS_exit_group,
    ];
    let filter = || {
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> = plain.into_iter().map(|call| (call, Vec::new())).collect();
        rules.insert(libc::SYS_read, vec![SeccompRule::new(vec![is(0, 0)?])?]);
        rules.insert(libc::SYS_write, vec![SeccompRule::new(vec![is(0, 0)?])?]);
        // What an allocator gives back. Other advice can take pages away from the whole machine.
        let advice = [libc::MADV_DONTNEED, libc::MADV_FREE].map(|advice| is(2, advice as u64));
        let advice = advice.into_iter().map(|one| SeccompRule::new(vec![one?])).collect::<Result<_, _>>()?;
        rules.insert(libc::SYS_madvise, advice);
        rules.insert(libc::SYS_mprotect, vec![SeccompRule::new(vec![has(2, exec, 0)?])?]);
        let memory = vec![has(2, exec, 0)?, has(3, anonymous, anonymous)?];
        rules.insert(libc::SYS_mmap, vec![SeccompRule::new(memory)?]);
        let arch = std::env::consts::ARCH.try_into()?;
        let filter = SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, arch)?;
        filter.try_into()
    };
    let program: seccompiler::BpfProgram = filter().map_err(|error: seccompiler::BackendError| error.to_string())?;
    apply_filter(&program).map_err(|error| error.to_string())
}
