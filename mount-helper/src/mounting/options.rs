//! Mount options: what `-o` takes, in `tensorfs mount`, `mount.tensorfs` and /etc/fstab.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::mount::MsFlags;
use nix::unistd::geteuid;
use tensorfs_fs::{Durability, LatencyMode, Options, PassthroughMode};

use crate::mounting::mountinfo::Mount;
use crate::show::failure::{At, Failure};
use crate::show::size;

/// How to mount a pool. `None` means: the filesystem's default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MountOptions {
    pub(super) flags: Flags,
    pub(super) allow_other: bool,
    pub(super) create: bool,
    remount: bool,
    /// Most bytes that a pool may take which is created.
    pub(super) size: Option<u64>,
    pub(super) layout: Option<String>,
    pub(super) server: ServerOptions,
    pub(super) log: Option<PathBuf>,
    on_damage: Option<PathBuf>,
    carry: Option<Carry>,
}

/// How often it is looked for a newer tree, if nobody says otherwise.
pub const FOLLOW: Duration = Duration::from_secs(10);

/// The pool is carried to its remote while it is mounted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Carry {
    /// Once a day what trees of so many days do not need is removed there; none: nothing is.
    pub keep: Option<u32>,
}

impl Carry {
    /// A value of `--carry`.
    ///
    /// # Errors
    /// It is no number of days.
    pub fn parse(days: &str) -> Result<Self, String> {
        let wrong = || "must be a number of days from which trees are kept in the remote".to_owned();
        Ok(Self { keep: Some(days.parse().map_err(|_| wrong())?) })
    }
}

/// What the kernel decides by itself, on the way to the server.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Flags {
    pub(super) read_only: bool,
    pub(super) noexec: bool,
    pub(super) noatime: bool,
    pub(super) nodiratime: bool,
    pub(super) nosymfollow: bool,
}

impl Flags {
    /// The flags for mount(2).
    pub(super) fn for_mount(self) -> MsFlags {
        let mut flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        flags.set(MsFlags::MS_RDONLY, self.read_only);
        flags.set(MsFlags::MS_NOEXEC, self.noexec);
        flags.set(MsFlags::MS_NOATIME, self.noatime);
        flags.set(MsFlags::MS_NODIRATIME, self.nodiratime);
        flags.set(MsFlags::from_bits_retain(libc::MS_NOSYMFOLLOW), self.nosymfollow);
        flags
    }
}

/// How the server works.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ServerOptions {
    pub(super) durability: Option<Durability>,
    pub(super) commit: Option<Duration>,
    pub(super) replace: Option<Duration>,
    pub(super) passthrough: Option<PassthroughMode>,
    pub(super) latency: Option<LatencyMode>,
    pub(super) threads: Option<usize>,
    /// What names and records of users' files may take of the server's memory.
    pub(super) names: Option<u64>,
    /// Where the mount is fuller than so many per cent, files leave for the remote.
    pub(super) evict_at: Option<u8>,
    /// How often it is looked for a newer tree of the remote that the pool was made from.
    pub(super) follow: Option<Duration>,
    /// Somebody keeps watch, and has another server take over from one that dies.
    pub(super) keeper: bool,
    /// The server keeps the rights that its keeper has.
    pub(super) privileged: bool,
    /// A server that does not answer for so long is replaced.
    pub(super) watchdog: Option<Duration>,
}

/// An option with its value.
#[derive(Debug, Clone, PartialEq)]
pub enum Setting {
    /// Whether to create the pool and the mount point if they are not there.
    Create(bool),
    /// Most bytes that a new pool may take.
    Size(u64),
    /// The layout's name that the pool must have.
    Layout(String),
    /// What is durable when.
    Durability(Durability),
    /// Everything is made durable at least this often.
    Commit(Duration),
    /// How long the old version of a file is kept while it is replaced.
    Replace(Duration),
    /// Whether the kernel moves the bytes.
    Passthrough(PassthroughMode),
    /// Whether processors are kept from sleeping deeply.
    Latency(LatencyMode),
    /// Threads that answer the kernel.
    Threads(usize),
    /// What names and records of users' files may take of the server's memory.
    Names(u64),
    /// From how many per cent on files leave for the remote.
    EvictAt(u8),
    /// Whether nothing can be changed.
    ReadOnly,
    /// How often it is looked for a newer tree.
    Follow(Duration),
    /// For how long a server may not answer.
    Watchdog(Duration),
    /// The file to log to.
    Log(PathBuf),
    /// The program that is told of damage.
    OnDamage(PathBuf),
    /// Somebody carries the pool.
    Carry(Carry),
}

impl Setting {
    /// The setting that a word `name=value` stands for; none if there is none of that name.
    fn parse(name: &str, value: &str) -> Result<Option<Setting>, String> {
        Ok(Some(match name {
            "size" => Setting::Size(size::parse(value)?),
            "layout" => Setting::Layout(parse_layout(value)?),
            "durability" => Setting::Durability(parse_durability(value)?),
            "commit" => Setting::Commit(parse_seconds(value)?),
            "replace" => Setting::Replace(parse_seconds(value)?),
            "passthrough" => Setting::Passthrough(parse_passthrough(value)?),
            "latency" => Setting::Latency(parse_latency(value)?),
            "threads" => Setting::Threads(parse_threads(value)?),
            "names" => Setting::Names(size::parse(value)?),
            "evict-at" => Setting::EvictAt(parse_percent(value)?),
            "follow" => Setting::Follow(parse_seconds(value)?),
            "watchdog" => Setting::Watchdog(parse_seconds(value)?),
            "log" => Setting::Log(value.into()),
            "on-damage" => Setting::OnDamage(parse_program(value)?),
            "carry" => Setting::Carry(Carry::parse(value)?),
            _ => return Ok(None),
        }))
    }
}

impl MountOptions {
    /// Whether a mount that is there is to be changed.
    pub fn is_remount(&self) -> bool {
        self.remount
    }

    /// True if a server with a keeper gives up its rights.
    pub(super) fn is_confined(&self) -> bool {
        self.server.keeper && !self.server.privileged
    }

    /// For how long a server may not answer, if that is watched.
    pub(super) fn watchdog(&self) -> Option<Duration> {
        self.server.watchdog
    }

    /// The file to log to, if one was named.
    pub fn log(&self) -> Option<&Path> {
        self.log.as_deref()
    }

    /// From how many per cent on files leave for the remote, if they do so by themselves.
    pub fn evict_at(&self) -> Option<u8> {
        self.server.evict_at
    }

    /// How often it is looked for a newer tree of the remote, if it is.
    pub fn follow(&self) -> Option<Duration> {
        self.server.follow
    }

    /// What cannot be together.
    ///
    /// # Errors
    /// Says what.
    pub fn check(&self) -> Result<(), String> {
        if self.server.follow.is_some() && !self.flags.read_only {
            return Err("a mount that follows a remote cannot be written: mount it with --read-only (-o ro)".into());
        }
        if self.server.follow.is_some() && self.server.evict_at.is_some() {
            return Err("nothing leaves a mount that follows a remote: mount it without evict-at".into());
        }
        if self.server.follow.is_some() && self.carry.is_some() {
            return Err("a mount that follows a remote has nothing to carry: mount it without carry".into());
        }
        Ok(())
    }

    /// How the pool is carried to its remote, if whoever mounts sees to that.
    pub fn carry(&self) -> Option<Carry> {
        self.carry
    }

    /// The program that is told of damage, if there is to be one.
    pub fn on_damage(&self) -> Option<&Path> {
        self.on_damage.as_deref()
    }

    /// Takes a setting over the one there was.
    pub fn set(&mut self, setting: Setting) {
        match setting {
            Setting::Create(create) => self.create = create,
            Setting::Size(bytes) => self.size = Some(bytes),
            Setting::Layout(name) => self.layout = Some(name),
            Setting::Durability(durability) => self.server.durability = Some(durability),
            Setting::Commit(interval) => self.server.commit = Some(interval),
            Setting::Replace(interval) => self.server.replace = Some(interval),
            Setting::Passthrough(mode) => self.server.passthrough = Some(mode),
            Setting::Latency(mode) => self.server.latency = Some(mode),
            Setting::Threads(threads) => self.server.threads = Some(threads),
            Setting::Names(bytes) => self.server.names = Some(bytes),
            Setting::EvictAt(percent) => self.server.evict_at = Some(percent),
            Setting::ReadOnly => self.flags.read_only = true,
            Setting::Follow(every) => self.server.follow = Some(every),
            Setting::Watchdog(patience) => self.server.watchdog = Some(patience),
            Setting::Log(path) => self.log = Some(path),
            Setting::OnDamage(program) => self.on_damage = Some(program),
            Setting::Carry(carry) => self.carry = Some(carry),
        }
    }

    /// Applies one comma-separated list, later words over earlier ones. With `sloppy`, unknown words are ignored.
    pub fn apply(&mut self, list: &str, sloppy: bool) -> Result<(), String> {
        for word in words(list)? {
            let known = self.apply_word(&word)?;
            if !known && !sloppy {
                return Err(format!("unknown option {word:?}"));
            }
        }
        Ok(())
    }

    fn apply_word(&mut self, word: &str) -> Result<bool, String> {
        let Some((name, value)) = word.split_once('=') else {
            return self.apply_flag(word);
        };
        if let Some(setting) = Setting::parse(name, value).map_err(|reason| format!("option {word:?}: {reason}"))? {
            self.set(setting);
            return Ok(true);
        }
        match name {
            // for mount(8), systemd and people
            "comment" | "uhelper" | "helper" | "user" => Ok(true),
            // the kernel's, which mount(8) reads back from it for a remount
            "user_id" | "group_id" | "max_read" | "blksize" => Ok(true),
            _ => Ok(is_private(name)),
        }
    }

    fn apply_flag(&mut self, name: &str) -> Result<bool, String> {
        match name {
            "ro" => self.flags.read_only = true,
            "rw" => self.flags.read_only = false,
            "noexec" => self.flags.noexec = true,
            "exec" => self.flags.noexec = false,
            "noatime" => self.flags.noatime = true,
            "atime" => self.flags.noatime = false,
            "nodiratime" => self.flags.nodiratime = true,
            "diratime" => self.flags.nodiratime = false,
            "nosymfollow" => self.flags.nosymfollow = true,
            "symfollow" => self.flags.nosymfollow = false,
            "allow_other" => self.allow_other = true,
            "create" => self.create = true,
            // every tensorfs mount is so
            "nosuid" | "nodev" | "default_permissions" => {}
            "suid" | "dev" => {
                return Err(format!("option {name:?}: tensorfs always mounts nosuid,nodev"));
            }
            "sync" | "dirsync" => {
                return Err(format!("option {name:?}: say durability=write (or close) instead"));
            }
            "remount" => self.remount = true,
            "follow" => self.server.follow = Some(FOLLOW),
            "carry" => self.carry = Some(Carry::default()),
            "keeper" => self.server.keeper = true,
            "nokeeper" => self.server.keeper = false,
            "privileged" => self.server.privileged = true,
            "unprivileged" => self.server.privileged = false,
            // for mount(8), systemd and the kernel's own defaults
            "" | "defaults" | "auto" | "noauto" | "user" | "nouser" | "users" | "group" | "owner" | "_netdev"
            | "nofail" | "async" | "relatime" | "norelatime" | "strictatime" | "nostrictatime" | "lazytime"
            | "nolazytime" | "iversion" | "noiversion" | "silent" | "loud" | "mand" | "nomand" => {}
            "size" | "layout" | "durability" | "commit" | "replace" | "passthrough" | "latency" | "threads"
            | "names" | "evict-at" | "watchdog" | "log" | "on-damage" => {
                return Err(format!("option {name:?} needs a value: {name}=..."));
            }
            _ => return Ok(is_private(name)),
        }
        Ok(true)
    }

    /// The list that [`MountOptions::apply`] reads back, without the log (a path of any bytes) and without `create` and
    /// `remount` (which are not the server's).
    pub fn to_list(&self) -> String {
        let mut words: Vec<String> = Vec::new();
        for (set, name) in [
            (self.flags.read_only, "ro"),
            (self.flags.noexec, "noexec"),
            (self.flags.noatime, "noatime"),
            (self.flags.nodiratime, "nodiratime"),
            (self.flags.nosymfollow, "nosymfollow"),
            (self.allow_other, "allow_other"),
            (self.server.keeper, "keeper"),
            (self.server.privileged, "privileged"),
        ] {
            if set {
                words.push(name.to_owned());
            }
        }
        if let Some(layout) = &self.layout {
            words.push(format!("layout=\"{layout}\""));
        }
        if let Some(durability) = self.server.durability {
            words.push(format!("durability={durability}"));
        }
        if let Some(commit) = self.server.commit {
            words.push(format!("commit={}", commit.as_secs_f64()));
        }
        if let Some(replace) = self.server.replace {
            words.push(format!("replace={}", replace.as_secs_f64()));
        }
        if let Some(passthrough) = self.server.passthrough {
            words.push(format!("passthrough={passthrough}"));
        }
        if let Some(latency) = self.server.latency {
            words.push(format!("latency={latency}"));
        }
        if let Some(threads) = self.server.threads {
            words.push(format!("threads={threads}"));
        }
        if let Some(names) = self.server.names {
            words.push(format!("names={names}"));
        }
        if let Some(percent) = self.server.evict_at {
            words.push(format!("evict-at={percent}"));
        }
        if let Some(every) = self.server.follow {
            words.push(format!("follow={}", every.as_secs_f64()));
        }
        if let Some(watchdog) = self.server.watchdog {
            words.push(format!("watchdog={}", watchdog.as_secs_f64()));
        }
        // The server does nothing with these: who asks for a remount finds them in its command line.
        if let Some(Carry { keep }) = self.carry {
            words.push(keep.map_or_else(|| "carry".to_owned(), |days| format!("carry={days}")));
        }
        if let Some(program) = &self.on_damage {
            words.push(format!("on-damage=\"{}\"", program.display()));
        }
        words.join(",")
    }

    /// What the words of `lists` take away of what a server may have been started with: `atime` and the like, which
    /// otherwise say what is so anyway.
    pub fn taken_away(lists: &[String], running: &MountOptions) -> Result<Vec<&'static str>, String> {
        let mut all = MountOptions::default();
        (all.flags.noatime, all.flags.nodiratime) = (true, true);
        (all.server.keeper, all.server.privileged) = (true, true);
        for list in lists {
            all.apply(list, true)?;
        }
        let taken = [
            (running.flags.noatime && !all.flags.noatime, "atime"),
            (running.flags.nodiratime && !all.flags.nodiratime, "diratime"),
            (running.server.keeper && !all.server.keeper, "nokeeper"),
            (running.server.privileged && !all.server.privileged, "unprivileged"),
        ];
        Ok(taken.into_iter().filter_map(|(taken, name)| taken.then_some(name)).collect())
    }

    /// Paths are from the root on: a server has another directory.
    pub fn make_absolute(&mut self) -> Result<(), Failure> {
        if let Some(log) = &mut self.log {
            *log = std::path::absolute(&*log).at(log)?;
        }
        Ok(())
    }

    /// The names of those given that only a server which is being started heeds, and that are not what one was started
    /// with.
    pub fn of_the_server(&self, running: &MountOptions) -> Vec<&'static str> {
        fn changed<T: PartialEq>(new: &Option<T>, old: &Option<T>, default: Option<T>) -> bool {
            new.is_some() && new != old && (old.is_some() || *new != default)
        }
        let (new, old, default) = (&self.server, &running.server, Options::default());
        let given = [
            (self.flags.noatime && !running.flags.noatime, "noatime"),
            (self.flags.nodiratime && !running.flags.nodiratime, "nodiratime"),
            // With `create` it is of a pool that there was none of yet.
            (!self.create && changed(&self.size, &running.size, None), "size"),
            (changed(&self.layout, &running.layout, None), "layout"),
            (changed(&new.durability, &old.durability, default.durability), "durability"),
            (changed(&new.commit, &old.commit, Some(default.commit)), "commit"),
            (changed(&new.replace, &old.replace, Some(default.replace)), "replace"),
            (changed(&new.passthrough, &old.passthrough, Some(default.passthrough)), "passthrough"),
            (changed(&new.latency, &old.latency, Some(default.latency)), "latency"),
            (changed(&new.threads, &old.threads, Some(default.threads)), "threads"),
            (changed(&new.names, &old.names, None), "names"),
            (changed(&new.evict_at, &old.evict_at, None), "evict-at"),
            (changed(&new.follow, &old.follow, None), "follow"),
            (changed(&self.log, &running.log, None), "log"),
            (new.keeper && !old.keeper, "keeper"),
            (new.privileged && !old.privileged, "privileged"),
            (changed(&new.watchdog, &old.watchdog, None), "watchdog"),
            (changed(&self.on_damage, &running.on_damage, None), "on-damage"),
            (changed(&self.carry, &running.carry, None), "carry"),
        ];
        given.into_iter().filter_map(|(given, name)| given.then_some(name)).collect()
    }

    /// What only the kernel decides, and a mount that is there is otherwise.
    pub fn of_the_kernel(&self, mount: &Mount) -> Option<&'static str> {
        let (flags, others) = (self.flags, self.allow_other || geteuid().is_root());
        let wanted = [
            (flags.read_only, mount.has("ro"), "ro"),
            (flags.noexec, mount.has("noexec"), "noexec"),
            (flags.noatime, mount.has("noatime"), "noatime"),
            (flags.nodiratime, mount.has("nodiratime"), "nodiratime"),
            (flags.nosymfollow, mount.has("nosymfollow"), "nosymfollow"),
            (others, mount.lets_others_in(), "allow_other"),
        ];
        wanted.into_iter().find_map(|(wanted, is_so, name)| (wanted != is_so).then_some(name))
    }

    /// These options, with what is `wanted` of those that another server in the place of the one that runs can have:
    /// no others, whoever wants them.
    pub(super) fn exchanged(&self, wanted: &MountOptions) -> MountOptions {
        let (old, new) = (self.server.clone(), wanted.server.clone());
        let server = ServerOptions {
            durability: new.durability.or(old.durability),
            commit: new.commit.or(old.commit),
            replace: new.replace.or(old.replace),
            latency: new.latency.or(old.latency),
            threads: new.threads.or(old.threads),
            names: new.names.or(old.names),
            evict_at: new.evict_at.or(old.evict_at),
            ..old
        };
        MountOptions { server, ..self.clone() }
    }

    /// Those of a server that a keeper is to watch over who knows them from that server alone: what is the server's own
    /// business, and who it logs to as was told otherwise.
    pub(super) fn of_adopted(self, log: Option<PathBuf>) -> MountOptions {
        let server = ServerOptions { keeper: true, privileged: false, ..self.server };
        let MountOptions { flags, allow_other, layout, on_damage, carry, .. } = self;
        MountOptions { flags, allow_other, layout, server, log, on_damage, carry, ..MountOptions::default() }
    }

    /// The options that are in the command line of a server, as far as they are the server's.
    pub fn of_command_line(words: &[String]) -> MountOptions {
        let mut options = MountOptions::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if word == "--" {
                break;
            }
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (word.as_str(), None),
            };
            let list = match name {
                "-o" => words.next().cloned(),
                _ if name.starts_with("-o") => Some(word[2..].to_owned()),
                "--read-only" => Some("ro".to_owned()),
                // It has a value only with a sign of equality.
                "--follow" | "--carry" => {
                    let name = &name[2..];
                    Some(value.map_or_else(|| name.to_owned(), |value| format!("{name}={value}")))
                }
                "--durability" | "--commit" | "--evict-at" | "--passthrough" | "--latency" | "--threads" | "--log"
                | "--layout" => {
                    let value = value.or_else(|| words.next().cloned()).unwrap_or_default();
                    Some(format!("{}=\"{value}\"", &name[2..]))
                }
                _ => None,
            };
            // What the server itself did not understand, it would not have been started with.
            let _ = list.map(|list| options.apply(&list, true));
        }
        options
    }
}

/// `x-systemd.automount` and the like belong to whoever wrote them.
fn is_private(name: &str) -> bool {
    name.starts_with("x-") || name.starts_with("X-")
}

/// Splits at commas outside double quotes, and takes the quotes away: mount(8)'s way to put a comma into a value.
fn words(list: &str) -> Result<Vec<String>, String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for character in list.chars() {
        match character {
            '"' => quoted = !quoted,
            ',' if !quoted => words.push(String::new()),
            _ => words.last_mut().expect("never empty").push(character),
        }
    }
    if quoted {
        return Err(format!("options {list}: a quote is not closed"));
    }
    Ok(words)
}

/// A value of `--durability`.
pub fn parse_durability(text: &str) -> Result<Durability, String> {
    text.parse().map_err(|_| "must be write, close or fsync".to_owned())
}

/// A value of `--passthrough`.
pub fn parse_passthrough(text: &str) -> Result<PassthroughMode, String> {
    text.parse().map_err(|_| "must be auto, on or off".to_owned())
}

/// A value of `--latency`.
pub fn parse_latency(text: &str) -> Result<LatencyMode, String> {
    text.parse().map_err(|_| "must be auto or off".to_owned())
}

/// A value of `--commit`.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("must be a number of seconds from 0.01 to 3600".to_owned()),
    }
}

/// A value of `--evict-at`.
pub fn parse_percent(text: &str) -> Result<u8, String> {
    match text.strip_suffix('%').unwrap_or(text).trim_end().parse() {
        Ok(percent) if (1..=100).contains(&percent) => Ok(percent),
        _ => Err("must be a number of per cent from 1 to 100".to_owned()),
    }
}

/// A value of `--threads`.
pub fn parse_threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(threads) if (1..=64).contains(&threads) => Ok(threads),
        _ => Err("must be a number from 1 to 64".to_owned()),
    }
}

/// A program that is started from wherever: by its path from `/` on. In a list of options it stands in quotes.
pub fn parse_program(text: &str) -> Result<PathBuf, String> {
    if !text.starts_with('/') || text.chars().any(|c| c.is_control() || c == '"') {
        return Err("must be a path that begins with /, without quotes".to_owned());
    }
    Ok(text.into())
}

/// A value of `--layout`.
pub fn parse_layout(text: &str) -> Result<String, String> {
    if text.is_empty() || text.chars().any(|c| c.is_control() || c == '"') {
        return Err("must be a plain name".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<MountOptions, String> {
        let mut options = MountOptions::default();
        options.apply(list, false).map(|()| options)
    }

    #[test]
    fn ignores_what_is_meant_for_others() {
        let list = "rw,auto,noauto,_netdev,nofail,user,exec,defaults,x-systemd.automount,x-a=b,relatime,nosuid,\
                    nodev,,comment=hm";
        assert_eq!(parse(list), Ok(MountOptions::default()));
    }

    #[test]
    fn what_follows_a_remote_is_not_written() {
        assert!(parse("follow").unwrap().check().is_err());
        assert!(parse("ro,follow,evict-at=90").unwrap().check().is_err());
        assert!(parse("ro,follow,carry").unwrap().check().is_err());
        let options = parse("ro,follow").unwrap();
        assert_eq!((options.check(), options.follow()), (Ok(()), Some(FOLLOW)));
        assert_eq!(parse(&options.to_list()), Ok(options));
        let words = ["tensorfs", "mount", "--read-only", "--follow=2.5", "p", "m"].map(str::to_owned);
        assert_eq!(MountOptions::of_command_line(&words), parse("ro,follow=2.5").unwrap());
    }

    #[test]
    fn reads_its_own() {
        let list = "ro,noexec,noatime,allow_other,create,size=10G,layout=\"a,b\",durability=close,commit=0.5,\
                    passthrough=off,latency=off,threads=2,log=/var/log/t,on-damage=/bin/tell";
        let options = parse(list).unwrap();
        assert!(options.flags.read_only && options.flags.noexec && options.flags.noatime && options.allow_other);
        assert!(options.create);
        assert_eq!(options.size, Some(10 << 30));
        assert_eq!(options.layout.as_deref(), Some("a,b"));
        assert_eq!(options.server.durability, Some(Durability::Close));
        assert_eq!(options.server.commit, Some(Duration::from_millis(500)));
        assert_eq!(options.server.passthrough, Some(PassthroughMode::Off));
        assert_eq!(options.server.latency, Some(LatencyMode::Off));
        assert_eq!(options.server.threads, Some(2));
        assert_eq!(options.log, Some("/var/log/t".into()));
        assert_eq!(options.on_damage(), Some(Path::new("/bin/tell")));
    }

    #[test]
    fn what_a_server_says_of_itself_gives_it_nothing() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let said = "tensorfs mount -o keeper,privileged,create,commit=7,log=/etc/shadow,layout=l --log /etc/passwd";
        let told = MountOptions::of_command_line(&words(said));
        assert_eq!(told.clone().of_adopted(None), parse("keeper,commit=7,layout=l").unwrap());
        let log = told.clone().of_adopted(Some("/var/log/t".into())).log;
        assert_eq!(log, Some("/var/log/t".into()));
        let own = parse("keeper,commit=3,log=/var/log/t,passthrough=off").unwrap();
        let expected = parse("keeper,commit=7,log=/var/log/t,passthrough=off").unwrap();
        assert_eq!(own.exchanged(&parse("privileged,commit=7,log=/etc/passwd,nokeeper").unwrap()), expected);
    }

    #[test]
    fn later_words_win() {
        let options = parse("ro,rw,noexec,exec,commit=1,commit=2").unwrap();
        assert!(!options.flags.read_only && !options.flags.noexec);
        assert_eq!(options.server.commit, Some(Duration::from_secs(2)));
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        assert_eq!(parse("rw,frob").unwrap_err(), "unknown option \"frob\"");
        assert_eq!(parse("frob=1").unwrap_err(), "unknown option \"frob=1\"");
        assert_eq!(parse("commit").unwrap_err(), "option \"commit\" needs a value: commit=...");
        for list in [
            "commit=0",
            "commit=x",
            "commit=NaN",
            "commit=-1",
            "threads=0",
            "durability=never",
            "passthrough=yes",
            "latency=on",
            "size=big",
            "suid",
            "dev",
            "sync",
            "layout=\"open",
            "on-damage=tell",
            "on-damage=/bin/tell\n",
            "carry=often",
            "carry=-1",
        ] {
            assert!(parse(list).is_err(), "{list}");
        }
        let mut options = MountOptions::default();
        assert_eq!(options.apply("frob,a=b,ro", true), Ok(()));
        assert!(options.flags.read_only);
    }

    #[test]
    fn a_server_is_told_everything() {
        let list = "ro,noexec,noatime,nodiratime,nosymfollow,allow_other,layout=\"a,b\",durability=write,\
                    commit=0.25,replace=7.5,passthrough=on,latency=auto,threads=3,on-damage=\"/bin/a,ro\"";
        let mut options = parse(list).unwrap();
        assert_eq!(parse(&options.to_list()).as_ref(), Ok(&options));
        for (word, keep) in [("carry", None), ("carry=7", Some(7))] {
            options = parse(word).unwrap();
            assert_eq!((options.carry(), options.to_list().as_str()), (Some(Carry { keep }), word));
            let words =
                ["tensorfs".to_owned(), "mount".to_owned(), format!("--{word}"), "p".to_owned(), "m".to_owned()];
            assert_eq!(MountOptions::of_command_line(&words), options);
        }
        options = MountOptions::default();
        assert_eq!(parse(&options.to_list()), Ok(options));
    }

    #[test]
    fn only_what_differs_is_not_changed() {
        let words =
            ["tensorfs", "mount", "-f", "-o", "commit=5,threads=2", "--durability=close", "--log", "/l", "p", "m"];
        let mut running = MountOptions::of_command_line(&words.map(str::to_owned));
        running.size = Some(1 << 30);
        let differs = |list: &str| parse(list).unwrap().of_the_server(&running);
        let same =
            "ro,commit=5,threads=2,durability=close,log=/l,size=1G,create,passthrough=auto,latency=auto,replace=120";
        assert_eq!(differs(same), [""; 0]);
        assert_eq!(differs("commit=1,threads=4,passthrough=off"), ["commit", "passthrough", "threads"]);
        assert_eq!(differs("size=2G,layout=x,noatime,replace=3"), ["noatime", "size", "layout", "replace"]);
        assert_eq!(differs("create,size=2G"), [""; 0]);
        let taken = |lists: &[&str], running: &str| {
            let lists: Vec<String> = lists.iter().map(|list| (*list).to_owned()).collect();
            MountOptions::taken_away(&lists, &parse(running).unwrap()).unwrap()
        };
        assert_eq!(taken(&["noatime,keeper", "atime,nokeeper"], "noatime,keeper"), ["atime", "nokeeper"]);
        assert_eq!(taken(&["atime,nokeeper,unprivileged"], "commit=1"), [""; 0]);
        assert_eq!(taken(&["ro,frob"], "noatime,keeper,privileged"), [""; 0]);
    }

    #[test]
    fn is_always_nosuid_nodev() {
        let flags = Flags::default().for_mount();
        assert_eq!(flags, MsFlags::MS_NOSUID | MsFlags::MS_NODEV);
        assert!(parse("ro").unwrap().flags.for_mount().contains(MsFlags::MS_RDONLY));
    }
}
