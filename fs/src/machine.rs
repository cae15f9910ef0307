//! What the machine has.

use std::fs;

/// The memory that it has, or what is left to the control group of this process.
pub(crate) fn memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let all = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse().ok());
    let group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = group.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let limit = fs::read_to_string(format!("/sys/fs/cgroup{path}/memory.max")).unwrap_or_default();
    all.map_or(u64::MAX, |kib: u64| kib << 10).min(limit.trim().parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_some() {
        assert!((64 << 20..1 << 50).contains(&memory()), "{}", memory());
    }
}
