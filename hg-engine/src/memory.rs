//! How much memory this process may use: what the defaults of limits in bytes go by.

use std::{fs, path::Path};

/// The machine's memory, or what a control group allows, in bytes; as good as without end where nobody says.
pub(crate) fn of_machine() -> u64 {
    let all = read("/proc/meminfo").lines().find_map(total).unwrap_or(u64::MAX);
    // Of the first version of control groups, as a container sees it.
    let first = number(Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
    let groups = read("/proc/self/cgroup");
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    // Each group above allows no more than its own limit.
    let path = Path::new("/sys/fs/cgroup").join(own);
    let second = path.ancestors().map(|group| number(&group.join("memory.max"))).min();
    [all, first, second.unwrap_or(u64::MAX)].into_iter().fold(u64::MAX, u64::min)
}

/// `MemTotal:       24684016 kB`
fn total(line: &str) -> Option<u64> {
    let kib = line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?;
    kib.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn read(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

/// The number that a file consists of; as good as none where it holds no number, as `max`.
fn number(file: &Path) -> u64 {
    fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_some_memory_and_says_how_much_in_kib() {
        assert_eq!(total("MemTotal:       24684016 kB"), Some(24_684_016 * 1024));
        assert_eq!(total("MemFree:        24684016 kB"), None);
        assert!((1 << 20..1 << 60).contains(&of_machine()));
    }
}
