//! Who asks: the process behind a request, and what it may do.

use std::fs;

/// Who asks, and under which number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub unique: u64,
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
}

impl Caller {
    /// The server itself.
    pub const SERVER: Self = Self { unique: 0, uid: 0, gid: 0, pid: 0 };

    /// True of root, and of the user who can change the pool anyway.
    pub fn is_trusted(&self) -> bool {
        self.uid == 0 || self.uid == nix::unistd::geteuid().as_raw()
    }

    /// The groups of the caller: its own, and those its process is in.
    pub fn groups(&self) -> Vec<u32> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let listed = status.lines().find_map(|line| line.strip_prefix("Groups:"));
        let listed = listed.into_iter().flat_map(str::split_whitespace).filter_map(|id| id.parse().ok());
        listed.chain([self.gid]).collect()
    }

    /// True if a signal is killing the process (or thread) that sends a request.
    ///
    /// `/proc/PID/stat` would tell, but it waits for a lock that a process holds while it executes another program, and
    /// one that closes files in doing so waits for our answer. So it is read only of a process that has given up its
    /// memory, which one that executes a program never has; `/proc/PID/status` tells that and waits for nothing.
    pub fn is_dying(&self) -> bool {
        let pid = self.pid;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        if status.is_empty() || has_memory(&status) {
            return false;
        }
        fs::read_to_string(format!("/proc/{pid}/stat")).ok().and_then(|stat| exit_signal(&stat)).is_some()
    }
}

fn has_memory(status: &str) -> bool {
    status.lines().any(|line| line.starts_with("VmSize:"))
}

/// The signal in the exit code, the 52nd field of `/proc/PID/stat`, while its process exits.
fn exit_signal(stat: &str) -> Option<i32> {
    // The second field is the program's name, which may hold blanks and brackets.
    let rest = &stat[stat.rfind(')')? + 1..];
    let code: i32 = rest.split_whitespace().nth(49)?.parse().ok()?;
    Some(code & 0x7f).filter(|signal| *signal != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_signal_of_an_exiting_process() {
        let stat = |code: i32| {
            let mut fields = vec!["0".to_owned(); 49];
            fields[0] = "X".into();
            format!("7 (a) b (c)) {} {code}\n", fields.join(" "))
        };
        assert_eq!(exit_signal(&stat(9)), Some(9));
        assert_eq!(exit_signal(&stat(0x80 | 11)), Some(11));
        assert_eq!(exit_signal(&stat(0)), None);
        assert_eq!(exit_signal(&stat(3 << 8)), None);
        assert_eq!(exit_signal("nonsense"), None);
        assert_eq!(exit_signal("1 (x) R 1"), None);
    }

    #[test]
    fn a_process_that_exits_has_no_memory() {
        assert!(has_memory("Name:\tx\nVmPeak:\t1 kB\nVmSize:\t1 kB\n"));
        assert!(!has_memory("Name:\tVmSize:\nState:\tX (dead)\n"));
    }

    fn this_process() -> Caller {
        Caller { unique: 0, uid: 1, gid: 4_000_000, pid: std::process::id() }
    }

    #[test]
    fn a_living_process_is_not_dying() {
        assert!(!this_process().is_dying());
    }

    #[test]
    fn the_callers_own_group_counts() {
        assert!(this_process().groups().contains(&4_000_000));
    }
}
