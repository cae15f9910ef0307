//! Mount options: what `-o` takes, in `tensorfs mount`, `mount.tensorfs` and /etc/fstab.

use std::path::PathBuf;
use std::time::Duration;

use nix::mount::MsFlags;
use tensorfs_fs::{Durability, LatencyMode, PassthroughMode};

use crate::size;

/// How to mount a pool. `None` means: the filesystem's default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MountOptions {
    pub read_only: bool,
    pub noexec: bool,
    pub noatime: bool,
    pub nodiratime: bool,
    pub nosymfollow: bool,
    pub allow_other: bool,
    pub create: bool,
    pub remount: bool,
    pub size: Option<u64>,
    pub layout: Option<String>,
    pub durability: Option<Durability>,
    pub commit: Option<Duration>,
    pub replace: Option<Duration>,
    pub passthrough: Option<PassthroughMode>,
    pub latency: Option<LatencyMode>,
    pub threads: Option<usize>,
    pub log: Option<PathBuf>,
}

impl MountOptions {
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
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        let Some(value) = value else {
            return self.apply_flag(name);
        };
        let invalid = |reason: String| format!("option {word:?}: {reason}");
        match name {
            "size" => self.size = Some(size::parse(value).map_err(invalid)?),
            "layout" => self.layout = Some(value.to_owned()),
            "durability" => self.durability = Some(parse_durability(value).map_err(invalid)?),
            "commit" => self.commit = Some(parse_seconds(value).map_err(invalid)?),
            "replace" => self.replace = Some(parse_seconds(value).map_err(invalid)?),
            "passthrough" => self.passthrough = Some(parse_passthrough(value).map_err(invalid)?),
            "latency" => self.latency = Some(parse_latency(value).map_err(invalid)?),
            "threads" => self.threads = Some(parse_threads(value).map_err(invalid)?),
            "log" => self.log = Some(value.into()),
            // for mount(8), systemd and people
            "comment" | "uhelper" | "helper" | "user" => {}
            // the kernel's, which mount(8) reads back from it for a remount
            "user_id" | "group_id" | "max_read" | "blksize" => {}
            _ => return Ok(is_private(name)),
        }
        Ok(true)
    }

    fn apply_flag(&mut self, name: &str) -> Result<bool, String> {
        match name {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "noexec" => self.noexec = true,
            "exec" => self.noexec = false,
            "noatime" => self.noatime = true,
            "atime" => self.noatime = false,
            "nodiratime" => self.nodiratime = true,
            "diratime" => self.nodiratime = false,
            "nosymfollow" => self.nosymfollow = true,
            "symfollow" => self.nosymfollow = false,
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
            // for mount(8), systemd and the kernel's own defaults
            "" | "defaults" | "auto" | "noauto" | "user" | "nouser" | "users" | "group" | "owner" | "_netdev"
            | "nofail" | "async" | "relatime" | "norelatime" | "strictatime" | "nostrictatime" | "lazytime"
            | "nolazytime" | "iversion" | "noiversion" | "silent" | "loud" | "mand" | "nomand" => {}
            "size" | "layout" | "durability" | "commit" | "replace" | "passthrough" | "latency" | "threads" | "log" => {
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
            (self.read_only, "ro"),
            (self.noexec, "noexec"),
            (self.noatime, "noatime"),
            (self.nodiratime, "nodiratime"),
            (self.nosymfollow, "nosymfollow"),
            (self.allow_other, "allow_other"),
        ] {
            if set {
                words.push(name.to_owned());
            }
        }
        if let Some(layout) = &self.layout {
            words.push(format!("layout=\"{layout}\""));
        }
        if let Some(durability) = self.durability {
            words.push(format!("durability={durability}"));
        }
        if let Some(commit) = self.commit {
            words.push(format!("commit={}", commit.as_secs_f64()));
        }
        if let Some(replace) = self.replace {
            words.push(format!("replace={}", replace.as_secs_f64()));
        }
        if let Some(passthrough) = self.passthrough {
            words.push(format!("passthrough={passthrough}"));
        }
        if let Some(latency) = self.latency {
            words.push(format!("latency={latency}"));
        }
        if let Some(threads) = self.threads {
            words.push(format!("threads={threads}"));
        }
        words.join(",")
    }

    /// The names of those given that only a server which is being started heeds.
    pub fn of_the_server(&self) -> Vec<&'static str> {
        let given = [
            (self.create, "create"),
            (self.noatime, "noatime"),
            (self.nodiratime, "nodiratime"),
            (self.size.is_some(), "size"),
            (self.layout.is_some(), "layout"),
            (self.durability.is_some(), "durability"),
            (self.commit.is_some(), "commit"),
            (self.replace.is_some(), "replace"),
            (self.passthrough.is_some(), "passthrough"),
            (self.latency.is_some(), "latency"),
            (self.threads.is_some(), "threads"),
            (self.log.is_some(), "log"),
        ];
        given.into_iter().filter_map(|(given, name)| given.then_some(name)).collect()
    }

    /// The flags for mount(2).
    pub fn flags(&self) -> MsFlags {
        let mut flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        flags.set(MsFlags::MS_RDONLY, self.read_only);
        flags.set(MsFlags::MS_NOEXEC, self.noexec);
        flags.set(MsFlags::MS_NOATIME, self.noatime);
        flags.set(MsFlags::MS_NODIRATIME, self.nodiratime);
        flags.set(MsFlags::from_bits_retain(libc::MS_NOSYMFOLLOW), self.nosymfollow);
        flags
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

/// A value of `--threads`.
pub fn parse_threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(threads) if (1..=64).contains(&threads) => Ok(threads),
        _ => Err("must be a number from 1 to 64".to_owned()),
    }
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
        let list = "rw,auto,noauto,_netdev,nofail,user,exec,defaults,x-systemd.automount,x-a=b,relatime,nosuid,nodev,,comment=hm";
        assert_eq!(parse(list), Ok(MountOptions::default()));
    }

    #[test]
    fn reads_its_own() {
        let options = parse("ro,noexec,noatime,allow_other,create,size=10G,layout=\"a,b\",durability=close,commit=0.5,passthrough=off,latency=off,threads=2,log=/var/log/t").unwrap();
        assert!(options.read_only && options.noexec && options.noatime && options.allow_other);
        assert!(options.create);
        assert_eq!(options.size, Some(10 << 30));
        assert_eq!(options.layout.as_deref(), Some("a,b"));
        assert_eq!(options.durability, Some(Durability::Close));
        assert_eq!(options.commit, Some(Duration::from_millis(500)));
        assert_eq!(options.passthrough, Some(PassthroughMode::Off));
        assert_eq!(options.latency, Some(LatencyMode::Off));
        assert_eq!(options.threads, Some(2));
        assert_eq!(options.log, Some("/var/log/t".into()));
    }

    #[test]
    fn later_words_win() {
        let options = parse("ro,rw,noexec,exec,commit=1,commit=2").unwrap();
        assert!(!options.read_only && !options.noexec);
        assert_eq!(options.commit, Some(Duration::from_secs(2)));
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
        ] {
            assert!(parse(list).is_err(), "{list}");
        }
        let mut options = MountOptions::default();
        assert_eq!(options.apply("frob,a=b,ro", true), Ok(()));
        assert!(options.read_only);
    }

    #[test]
    fn a_server_is_told_everything() {
        let mut options = parse("ro,noexec,noatime,nodiratime,nosymfollow,allow_other,layout=\"a,b\",durability=write,commit=0.25,replace=7.5,passthrough=on,latency=auto,threads=3").unwrap();
        assert_eq!(parse(&options.to_list()).as_ref(), Ok(&options));
        options = MountOptions::default();
        assert_eq!(parse(&options.to_list()), Ok(options));
    }

    #[test]
    fn is_always_nosuid_nodev() {
        let flags = MountOptions::default().flags();
        assert_eq!(flags, MsFlags::MS_NOSUID | MsFlags::MS_NODEV);
        assert!(parse("ro").unwrap().flags().contains(MsFlags::MS_RDONLY));
    }
}
