//! Giving up rights, for good.

use std::io;

use nix::unistd::{Gid, Uid, geteuid, setgroups, setresgid, setresuid};

/// Sets something of this process that is a number.
pub(crate) fn prctl(option: libc::c_int, value: libc::c_ulong) -> Result<(), String> {
    // SAFETY: the options used here take integers.
    match unsafe { libc::prctl(option, value, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().to_string()),
    }
}

/// True if this process, or one that has started it, was locked in already: it cannot become another user.
pub(crate) fn is_locked_in() -> bool {
    // SAFETY: the option takes no argument.
    unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 }
}

/// No program that this process starts has more rights than it has.
pub(crate) fn no_new_privileges() -> Result<(), String> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1)
}

/// Where this process is root, it becomes that user, with that group alone.
pub(crate) fn become_user(uid: u32, gid: u32) -> Result<(), String> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    // Each for itself: a container may have been forbidden one of them, and then the others go all the same.
    let all = [setgroups(&[]), setresgid(gid, gid, gid), setresuid(uid, uid, uid)];
    all.into_iter().collect::<Result<(), _>>().map_err(|errno| errno.desc().to_owned())
}

/// No capability will be had by any program that this process starts. Before it becomes another user, which takes
/// the right to do this.
pub(crate) fn empty_bounding_set() {
    const CAPABILITIES: libc::c_ulong = 64;
    for capability in 0..CAPABILITIES {
        // Those that the kernel does not know, and all for whoever has none, are refused.
        let _ = prctl(libc::PR_CAPBSET_DROP, capability);
    }
    let _ = prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong);
}

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: libc::c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
/// Two words of each set.
type Capabilities = [CapData; 2];

fn capabilities() -> io::Result<Capabilities> {
    let header = CapHeader { version: CAPABILITY_VERSION_3, pid: 0 };
    let mut capabilities = Capabilities::default();
    // SAFETY: both have the layout of version 3 and live through the call.
    match unsafe { libc::syscall(libc::SYS_capget, &header, capabilities.as_mut_ptr()) } {
        0 => Ok(capabilities),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_capabilities(capabilities: &Capabilities) -> io::Result<()> {
    let header = CapHeader { version: CAPABILITY_VERSION_3, pid: 0 };
    // SAFETY: both have the layout of version 3 and live through the call.
    match unsafe { libc::syscall(libc::SYS_capset, &header, capabilities.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// This thread, and those that it starts, have no capability.
pub(crate) fn drop_capabilities() -> Result<(), String> {
    set_capabilities(&Capabilities::default()).map_err(|error| error.to_string())
}

/// This thread, and those that it starts, are held to the quotas of the host's filesystems, as root is not elsewhere
/// (`CAP_SYS_RESOURCE`): what they write, or have the kernel write, is written for others.
pub fn keep_to_quotas() {
    const SYS_RESOURCE: u32 = 1 << 24;
    let dropped = capabilities().and_then(|mut had| {
        let [low, _] = &mut had;
        if (low.effective | low.permitted) & SYS_RESOURCE == 0 {
            return Ok(());
        }
        low.effective &= !SYS_RESOURCE;
        low.permitted &= !SYS_RESOURCE;
        set_capabilities(&had)
    });
    if let Err(error) = dropped {
        log::warn!("quotas of the host may not hold: {error}");
    }
}
