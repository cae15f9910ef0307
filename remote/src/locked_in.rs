//! Locking a carrier in: from then on this process reads the pool and its tiers, what it needs to reach its store, and
//! what the C library looks at, and writes the pool's own directory and the store's, if that is one. It starts nothing.
//!
//! It is what speaks with a network, and takes apart what that says. Directories can be listed everywhere, as a pool
//! may be mounted later than this, and anywhere: what is in a file there cannot be read.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, Scope,
};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};
use tensorfs_layout::tree::View;
use url::Url;

use crate::error::{Error, Result};

/// What is read of the system: names, certificates, times, and what the C library loads when a name is looked up.
const READ: [&str; 27] = [
    "/dev/urandom",
    "/etc/ca-certificates",
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/pki",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl",
    "/lib",
    "/lib64",
    "/proc/self",
    "/run/NetworkManager",
    "/run/resolvconf",
    "/run/systemd/resolve",
    "/sys/block",
    "/sys/dev",
    "/sys/devices",
    "/sys/fs/cgroup",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/share/ca-certificates",
    "/usr/share/ca-certificates",
    "/usr/share/zoneinfo",
];
/// Where credentials and certificates may be renewed, beneath the user's own directory.
const OF_USER: [&str; 3] = [".aws", ".azure", ".config/gcloud"];
/// And what the environment says of where they are.
const SAID: [&str; 10] = [
    "AWS_CONFIG_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_FEDERATED_TOKEN_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
];
/// Directories that have much besides: of a file in one of these that one is read alone.
const SHARED: [&str; 13] =
    ["/", "/bin", "/dev", "/etc", "/home", "/mnt", "/opt", "/root", "/run", "/srv", "/tmp", "/var", "/var/run"];

/// What a carrier needs that is locked in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    pool: PathBuf,
    /// The URL of the remote.
    url: String,
    key_file: Option<PathBuf>,
    /// Where the tiers of the pool are.
    tiers: Vec<PathBuf>,
    /// What is there, and what is where the store is if that is a directory: another mount there is another place.
    found: Vec<Option<Identity>>,
}

/// Device, inode and mount.
type Identity = (u32, u32, u64, u64);

/// What this process was locked in with.
static KEPT: OnceLock<Needs> = OnceLock::new();

impl Needs {
    /// To carry a pool there.
    pub fn of(pool: &Path, view: &View, (url, key_file): (&str, Option<&Path>)) -> Self {
        // Files that have left are in no directory.
        let remote = view.remote().map(|(number, _)| number);
        let tiers = view.tiers().filter(|(number, _)| Some(*number) != remote);
        let tiers: Vec<PathBuf> = tiers.map(|(_, tier)| tier.path().to_owned()).collect();
        let (pool, key_file) = (pool.to_owned(), key_file.map(Path::to_owned));
        let needs = Self { pool, url: url.to_owned(), key_file, tiers, found: Vec::new() };
        let found = needs.places().map(|place| identity(&place)).collect();
        Self { found, ..needs }
    }

    /// The directories beside the pool's.
    fn places(&self) -> impl Iterator<Item = PathBuf> {
        self.store().into_iter().chain(self.tiers.clone())
    }

    /// All of it is there for who was locked in with this.
    fn are_in(&self, kept: &Self) -> bool {
        let were: BTreeMap<PathBuf, Option<Identity>> = kept.places().zip(kept.found.iter().copied()).collect();
        // What is not there just now is waited for.
        let is_in = |(place, found): (PathBuf, &Option<Identity>)| {
            were.get(&place).is_some_and(|was| found.is_none() || was == found)
        };
        (&self.url, &self.key_file) == (&kept.url, &kept.key_file) && self.places().zip(&self.found).all(is_in)
    }

    /// The store, if it is a directory.
    fn store(&self) -> Option<PathBuf> {
        Url::parse(&self.url).ok().filter(|url| url.scheme() == "file")?.to_file_path().ok()
    }
}

/// Of whatever is there: a rule is of that, and not of a path.
fn identity(place: &Path) -> Option<Identity> {
    let what = StatxFlags::INO | StatxFlags::MNT_ID;
    let found = statx(CWD, place, AtFlags::empty(), what).ok()?;
    Some((found.stx_dev_major, found.stx_dev_minor, found.stx_ino, found.stx_mnt_id))
}

/// Locks this process in, which has one thread beside those that [`lock_in_thread`] is called by, once and for good.
///
/// # Errors
/// It is locked in already, and needs something else; the store is not there yet.
pub fn lock_in(needs: &Needs) -> Result<()> {
    if KEPT.get().is_some() {
        return check(needs);
    }
    if let Some(store) = needs.store().filter(|store| !store.is_dir()) {
        return Err(Error::NotYet(format!("file://{}: the store is not there", store.display())));
    }
    for missing in restrict(needs) {
        log::debug!("{}: the carrier could not give up all rights: {missing}", needs.pool.display());
    }
    KEPT.get_or_init(|| needs.clone());
    Ok(())
}

/// Locks a thread in that was there before: what [`lock_in`] does is done for its caller, and for threads that it
/// starts.
pub fn lock_in_thread(needs: &Needs) {
    restrict(needs);
}

/// That this process may read all that it needs, if it is locked in.
///
/// # Errors
/// It may not, and another one has to carry the pool.
pub fn check(needs: &Needs) -> Result<()> {
    match KEPT.get() {
        Some(kept) if !needs.are_in(kept) => {
            let what = "it has another remote, or a further tier, than when its carrier began, which is locked in, or \
                        one of these was mounted anew";
            Err(Error::LockedIn(format!("{}: {what}; start it again", needs.pool.display())))
        }
        _ => Ok(()),
    }
}

/// What is done here is done for the thread that does it, and for those that it starts. Returns what was not to be had.
fn restrict(needs: &Needs) -> Vec<String> {
    let done = [
        ("privileges", nix::sys::prctl::set_no_new_privs().map_err(|errno| errno.desc().to_owned())),
        ("Landlock", landlock(needs)),
        ("seccomp", seccomp(needs.store().is_none())),
    ];
    done.into_iter().filter_map(|(what, done)| done.err().map(|why| format!("{what}: {why}"))).collect()
}

/// Where what is renewed is read: the directory of a file, as whoever renews it may make it anew.
fn renewed(path: &Path) -> PathBuf {
    match path.parent() {
        Some(above) if path.is_file() && !is_shared(above) => above.to_owned(),
        _ => path.to_owned(),
    }
}

fn is_shared(directory: &Path) -> bool {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let real = fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    home.is_some_and(|home| real == home || real == fs::canonicalize(&home).unwrap_or(home))
        || SHARED.iter().any(|one| Path::new(one) == real)
}

/// Files: what is above. No TCP port of its own, and no network where the store is a directory. No signal to anybody,
/// and no socket of others with an abstract name.
fn landlock(needs: &Needs) -> std::result::Result<(), String> {
    let store = needs.store();
    let abi = ABI::V6;
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let noted = read | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg | AccessFs::RemoveFile;
    let stored = noted | AccessFs::MakeDir | AccessFs::RemoveDir | AccessFs::Refer;
    let mut rules: Vec<PathBeneath<PathFd>> = Vec::new();
    // Whatever is not there needs none.
    let mut allow = |path: &Path, access: BitFlags<AccessFs>| {
        let access = if path.is_dir() { access } else { access & AccessFs::from_file(abi) };
        if let Ok(opened) = PathFd::new(path) {
            rules.push(PathBeneath::new(opened, access));
        }
    };
    allow(Path::new("/"), AccessFs::ReadDir.into());
    READ.iter().for_each(|path| allow(path.as_ref(), read));
    allow(Path::new("/dev/null"), AccessFs::ReadFile | AccessFs::WriteFile);
    if let Some(home) = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute()) {
        OF_USER.iter().for_each(|name| allow(&home.join(name), read));
    }
    let said = SAID.iter().filter_map(std::env::var_os).map(PathBuf::from);
    said.filter(|path| path.is_absolute()).for_each(|path| allow(&renewed(&path), read));
    if let Some(file) = &needs.key_file {
        allow(file, AccessFs::ReadFile.into());
    }
    needs.tiers.iter().for_each(|tier| allow(tier, read));
    allow(&needs.pool, noted);
    store.iter().for_each(|store| allow(store, stored));
    let net = if store.is_some() { AccessNet::from_all(abi) } else { AccessNet::BindTcp.into() };
    let made = Ruleset::default()
        .handle_access(AccessFs::from_all(abi))
        .and_then(|made| made.handle_access(net))
        .and_then(|made| made.scope(Scope::from_all(abi)))
        .and_then(Ruleset::create);
    let restricted = made
        .and_then(|made| made.add_rules(rules.into_iter().map(Ok::<_, landlock::RulesetError>)))
        .and_then(landlock::RulesetCreated::restrict_self);
    match restricted.map_err(|error| error.to_string())?.ruleset {
        RulesetStatus::NotEnforced => Err("the kernel has none".to_owned()),
        RulesetStatus::PartiallyEnforced => Err("the kernel has a part of it".to_owned()),
        RulesetStatus::FullyEnforced => Ok(()),
    }
}

/// What a carrier never calls, nor the C library for it.
const REFUSED: &[libc::c_long] = &[
    // other programs, and other processes
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_personality,
    // mounts
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_mknodat,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_quotactl,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    // the kernel and its machine
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_setup,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
];
#[cfg(target_arch = "x86_64")]
const OLDER: &[libc::c_long] =
    &[libc::SYS_mknod, libc::SYS_kexec_file_load, libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[libc::c_long] = &[];

/// Of sockets it makes those of a network, if it has one, and what says which addresses this machine has: the program
/// behind another one would do what its owner may not.
const SOCKETS: [libc::c_int; 3] = [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Such calls fail, and so do namespaces.
fn seccomp(has_network: bool) -> std::result::Result<(), String> {
    let namespaces = [
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWCGROUP,
    ];
    let with = |rules, why: i32| -> std::result::Result<BpfProgram, seccompiler::BackendError> {
        let refused = SeccompAction::Errno(why as u32);
        SeccompFilter::new(rules, SeccompAction::Allow, refused, std::env::consts::ARCH.try_into()?)?.try_into()
    };
    let filter = || -> std::result::Result<BpfProgram, seccompiler::BackendError> {
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
            REFUSED.iter().chain(OLDER).map(|call| (*call, Vec::new())).collect();
        let one = |flag: libc::c_int| {
            let flag = flag as u64;
            SeccompRule::new(vec![SeccompCondition::new(0, Len::Dword, Op::MaskedEq(flag), flag)?])
        };
        rules.insert(libc::SYS_clone, namespaces.into_iter().map(one).collect::<std::result::Result<_, _>>()?);
        with(rules, libc::EPERM)
    };
    // As where the kernel has none of that kind: who looks names up asks in another way.
    let sockets = || {
        let other = |kind: &libc::c_int| SeccompCondition::new(0, Len::Dword, Op::Ne, *kind as u64);
        let others = SeccompRule::new(SOCKETS.iter().map(other).collect::<std::result::Result<_, _>>()?)?;
        let rules = if has_network { vec![others] } else { Vec::new() };
        with(BTreeMap::from([(libc::SYS_socket, rules)]), libc::EAFNOSUPPORT)
    };
    // Its flags lie in memory, which no filter sees. The C library makes do with `clone`.
    let no_clone3 = || with(BTreeMap::from([(libc::SYS_clone3, Vec::new())]), libc::ENOSYS);
    for program in [filter(), sockets(), no_clone3()] {
        apply_filter(&program.map_err(|error| error.to_string())?).map_err(|error| error.to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    fn needs(room: &Path) -> Needs {
        let (pool, tier) = (room.join("pool"), room.join("tier"));
        for directory in [&pool, &tier, &room.join("remote")] {
            fs::create_dir_all(directory).unwrap();
            fs::write(directory.join("f"), "text").unwrap();
        }
        fs::write(room.join("key"), "key").unwrap();
        fs::write(room.join("secret"), "secret").unwrap();
        let url = format!("file://{}", room.join("remote").display());
        let needs = Needs { pool, url, key_file: Some(room.join("key")), tiers: vec![tier], found: Vec::new() };
        let found = needs.places().map(|place| identity(&place)).collect();
        Needs { found, ..needs }
    }

    /// A thread alone is locked in, as another one is not that it has not started.
    fn locked_in<T: Send + 'static>(needs: Needs, run: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        std::thread::spawn(move || restrict(&needs).is_empty().then(run)).join().unwrap()
    }

    /// Proves E32.
    #[test]
    fn who_is_locked_in_reads_and_writes_what_it_carries_and_nothing_else() {
        let room = tempfile::tempdir().unwrap();
        let (needs, at) = (needs(room.path()), room.path().to_owned());
        let tried = locked_in(needs, move || {
            let read = |name: &str| fs::read(at.join(name)).map(drop).map_err(|error| error.kind());
            let write = |name: &str| fs::write(at.join(name), "x").map_err(|error| error.kind());
            for name in ["pool/f", "tier/f", "remote/f", "key"] {
                assert_eq!(read(name), Ok(()), "{name}");
            }
            assert_eq!(read("secret"), Err(ErrorKind::PermissionDenied));
            // Whatever leads there.
            std::os::unix::fs::symlink(at.join("secret"), at.join("remote/link")).unwrap_err();
            for name in ["pool/new", "remote/new"] {
                assert_eq!(write(name), Ok(()), "{name}");
            }
            fs::rename(at.join("pool/new"), at.join("pool/f")).unwrap();
            fs::hard_link(at.join("remote/new"), at.join("remote/f2")).unwrap();
            for name in ["tier/new", "new", "secret", "key", "tier/f"] {
                assert_eq!(write(name), Err(ErrorKind::PermissionDenied), "{name}");
            }
            // A mount is opened by whoever asks its server.
            fs::File::open(&at).unwrap();
            // No other program, and no network for a store that is a directory.
            let run = std::process::Command::new("/bin/true").status().unwrap_err();
            assert_eq!(run.kind(), ErrorKind::PermissionDenied);
            let met = std::net::TcpStream::connect("127.0.0.1:1").unwrap_err();
            assert_eq!(met.raw_os_error(), Some(libc::EAFNOSUPPORT));
            let sent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap_err();
            assert_eq!(sent.raw_os_error(), Some(libc::EAFNOSUPPORT));
            let asked = std::os::unix::net::UnixDatagram::unbound().unwrap_err();
            assert_eq!(asked.raw_os_error(), Some(libc::EAFNOSUPPORT));
            // SAFETY: takes integers; refused, whoever asks.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWUSER) }, -1);
            true
        });
        match tried {
            None => tensorfs_skips("this kernel has not all of Landlock"),
            Some(tried) => assert!(tried),
        }
    }

    /// As `tests/run` counts it.
    fn tensorfs_skips(why: &str) {
        println!("SKIPPED: {why}");
        if let Some(log) = std::env::var_os("TENSORFS_SKIP_LOG") {
            use std::io::Write;
            let log = fs::File::options().append(true).create(true).open(log);
            log.and_then(|mut log| writeln!(log, "locked_in: {why}")).unwrap();
        }
    }

    /// Proves E32.
    #[test]
    fn who_has_a_store_in_a_network_has_that_and_no_program_to_ask() {
        let room = tempfile::tempdir().unwrap();
        let needs = Needs { url: "s3://bucket/prefix".into(), found: Vec::new(), ..needs(room.path()) };
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, socket) = (server.local_addr().unwrap(), room.path().join("socket"));
        let _asked = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let tried = locked_in(needs, move || {
            std::net::TcpStream::connect(at).unwrap();
            std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            let asks = std::os::unix::net::UnixStream::connect(&socket).unwrap_err();
            assert_eq!(asks.raw_os_error(), Some(libc::EAFNOSUPPORT));
            let serves = std::net::TcpListener::bind("127.0.0.1:0").unwrap_err();
            assert_eq!(serves.kind(), ErrorKind::PermissionDenied);
            true
        });
        match tried {
            None => tensorfs_skips("this kernel has not all of Landlock"),
            Some(tried) => assert!(tried),
        }
    }

    #[test]
    fn what_has_come_since_needs_another_carrier() {
        let room = tempfile::tempdir().unwrap();
        let kept = needs(room.path());
        let fewer = Needs { tiers: Vec::new(), found: kept.found[..1].to_vec(), ..kept.clone() };
        let moved = Needs { found: vec![kept.found[0], kept.found[0]], ..kept.clone() };
        let not_there = Needs { found: vec![None, None], ..kept.clone() };
        assert!(!moved.are_in(&kept) && not_there.are_in(&kept));
        assert!(kept.are_in(&kept) && fewer.are_in(&kept) && !kept.are_in(&fewer));
        assert!(!Needs { url: "s3://b/p".into(), ..kept.clone() }.are_in(&kept));
        assert!(!Needs { key_file: None, ..kept.clone() }.are_in(&kept));
    }

    #[test]
    fn of_a_directory_that_all_use_one_file_is_read() {
        let room = tempfile::tempdir().unwrap();
        fs::write(room.path().join("token"), "").unwrap();
        assert_eq!(renewed(&room.path().join("token")), room.path());
        assert_eq!(renewed(Path::new("/etc/hosts")), Path::new("/etc/hosts"));
        assert_eq!(renewed(room.path()), room.path());
    }
}
