//! How much memory this process may use: what the defaults of limits in bytes go by.

use std::{fs, path::Path};

/// The machine's memory, or what a control group allows, in bytes; as good as without end where nobody says.
pub(crate) fn of_machine() -> u64 {
    let all = read("/proc/meminfo").lines().find_map(total).unwrap_or(u64::MAX);
    let groups = read("/proc/self/cgroup");
    // Of the first version, then of the second: a container sees its own group as the root.
    let first =
        groups.lines().find_map(|line| own(line, |of| of.split(',').any(|it| it == "memory")));
    let second = groups.lines().find_map(|line| own(line, str::is_empty));
    let first = least("/sys/fs/cgroup/memory", first, "memory.limit_in_bytes");
    all.min(first).min(least("/sys/fs/cgroup", second, "memory.max"))
}

/// The group's path in a line of `/proc/self/cgroup`, if the line is of these controllers: `4:memory:/a/b`, `0::/a/b`.
fn own(line: &str, is_of: impl FnOnce(&str) -> bool) -> Option<&str> {
    let mut parts = line.splitn(3, ':').skip(1);
    is_of(parts.next()?).then(|| parts.next())?
}

/// The least limit of a group and those above it, each of which allows no more than its own.
fn least(root: &str, group: Option<&str>, file: &str) -> u64 {
    let path = Path::new(root).join(group.unwrap_or_default().trim_start_matches('/'));
    path.ancestors().map(|it| number(&it.join(file))).fold(u64::MAX, u64::min)
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

    #[test]
    fn the_group_of_a_process_is_read_in_either_version() {
        let is_memory = |of: &str| of.split(',').any(|it| it == "memory");
        assert_eq!(own("4:cpu,memory:/slurm/job_7", is_memory), Some("/slurm/job_7"));
        assert_eq!(own("5:devices:/slurm/job_7", is_memory), None);
        assert_eq!(own("0::/user.slice/a:b", str::is_empty), Some("/user.slice/a:b"));
        assert_eq!(own("", str::is_empty), None);
    }
}
