//! Locking this process in, for good.

use std::collections::BTreeMap;
use std::fs;

use landlock::{ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetStatus, Scope};
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::setsid;
use seccompiler::{
    SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};
use tensorfs_formats::MEMORY;

use crate::rights::{become_user, drop_capabilities, empty_bounding_set, is_locked_in, no_new_privileges, prctl};

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
    try_to("privileges", no_new_privileges());
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

/// No user of its own, no group, and no capability, whoever runs the server. A server that was locked in itself has no
/// more than its user, and cannot give that up.
fn drop_rights() -> Result<(), String> {
    empty_bounding_set();
    let changed = if is_locked_in() { Ok(()) } else { become_user(NOBODY, NOBODY) };
    drop_capabilities().and(changed)
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
