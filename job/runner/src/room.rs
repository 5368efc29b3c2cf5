//! Whether this machine has room for so many ranks, before any of them is started.

use std::fs;

use nix::{
    sys::resource::{Resource, getrlimit},
    unistd::getuid,
};

/// What the machine has, as far as it tells: what bounds it, and how much that is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Machine {
    /// Processes and threads.
    tasks: Bound,
    /// Descriptors of one process.
    descriptors: Bound,
    /// Bytes.
    memory: Bound,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Bound {
    most: u64,
    of: &'static str,
}

/// What so many ranks need, about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Processes and threads of all ranks.
    pub tasks: u64,
    /// Of the process that needs the most.
    pub descriptors: u64,
    /// Bytes of all ranks.
    pub memory: u64,
}

/// Refuses what this machine cannot hold: says why, and how many ranks it can hold, if `need` tells that of any number.
///
/// # Errors
/// The sentence.
pub fn check(size: u32, need: impl Fn(u64) -> Need, tells: bool) -> Result<(), String> {
    refusal(size, need, tells, &Machine::this()).map_or(Ok(()), Err)
}

fn refusal(
    size: u32,
    need: impl Fn(u64) -> Need,
    tells: bool,
    machine: &Machine,
) -> Option<String> {
    let ranks = u64::from(size);
    let what = need(ranks).shortage(machine)?;
    let fitting = if tells {
        format!(", so about {} ranks fit", largest(ranks, |it| need(it).fits(machine)))
    } else {
        String::new()
    };
    Some(format!("{size} ranks need {what}{fitting}; --force starts them nevertheless"))
}

/// The largest number up to `most` that fits, given that fewer always fit where more do.
fn largest(most: u64, fits: impl Fn(u64) -> bool) -> u64 {
    let (mut fitting, mut not) = (0, most);
    while not - fitting > 1 {
        let middle = fitting + (not - fitting) / 2;
        if fits(middle) { fitting = middle } else { not = middle }
    }
    fitting
}

impl Need {
    fn fits(self, machine: &Machine) -> bool {
        self.shortage(machine).is_none()
    }

    /// What there is too little of, in words.
    fn shortage(self, machine: &Machine) -> Option<String> {
        let Machine { tasks, descriptors, memory } = machine;
        if self.tasks > tasks.most {
            let Bound { most, of } = tasks;
            return Some(format!(
                "{} processes and threads, but there may be {most} ({of})",
                self.tasks
            ));
        }
        if self.descriptors > descriptors.most {
            let (need, Bound { most, of }) = (self.descriptors, descriptors);
            return Some(format!(
                "{need} descriptors in one process, which may have {most} ({of})"
            ));
        }
        if self.memory > memory.most {
            let (need, most) = (self.memory >> 20, memory.most >> 20);
            return Some(format!("{need} MiB of memory, but there are {most} ({})", memory.of));
        }
        None
    }
}

impl Machine {
    fn this() -> Self {
        let hard = |resource| getrlimit(resource).map_or(u64::MAX, |(_, hard)| hard);
        let soft = |resource| getrlimit(resource).map_or(u64::MAX, |(soft, _)| soft);
        // Root may exceed it.
        let own = if getuid().is_root() { u64::MAX } else { soft(Resource::RLIMIT_NPROC) };
        let group = |file: &str| number(&format!("/sys/fs/cgroup{}/{file}", control_group()));
        Self {
            tasks: least([
                (own, "ulimit -u"),
                (number("/proc/sys/kernel/pid_max"), "kernel.pid_max"),
                (number("/proc/sys/kernel/threads-max"), "kernel.threads-max"),
                (group("pids.max"), "pids.max of the control group"),
            ]),
            descriptors: least([(hard(Resource::RLIMIT_NOFILE), "ulimit -Hn")]),
            memory: least([
                (available_memory(), "MemAvailable of /proc/meminfo"),
                (group("memory.max"), "memory.max of the control group"),
            ]),
        }
    }
}

fn least<const N: usize>(bounds: [(u64, &'static str); N]) -> Bound {
    let least = bounds.into_iter().min_by_key(|(most, _)| *most);
    least.map_or(Bound { most: u64::MAX, of: "" }, |(most, of)| Bound { most, of })
}

/// The number that a file consists of; as good as none where it holds no number.
fn number(file: &str) -> u64 {
    fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(u64::MAX)
}

/// The path of this process's control group, of the second version.
fn control_group() -> String {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"));
    path.map(|path| path.trim_end_matches('/').to_owned()).unwrap_or_default()
}

fn available_memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(tasks: u64, descriptors: u64, memory: u64) -> Machine {
        let bound = |most, of| Bound { most, of };
        Machine {
            tasks: bound(tasks, "ulimit -u"),
            descriptors: bound(descriptors, "ulimit -Hn"),
            memory: bound(memory, "MemAvailable"),
        }
    }

    /// 9 threads a rank, 8 descriptors a pair of ranks, 96 KiB of memory each.
    fn need(ranks: u64) -> Need {
        let pairs = ranks.saturating_mul(ranks);
        let memory = pairs.saturating_mul(96 << 10);
        Need { tasks: ranks.saturating_mul(9), descriptors: 32 + ranks.saturating_mul(8), memory }
    }

    #[test]
    fn what_there_is_too_little_of_is_named_and_how_many_ranks_fit() {
        let much = u64::MAX;
        assert_eq!(refusal(1000, need, true, &machine(much, much, much)), None);
        for (machine, expected) in [
            (
                machine(90, much, much),
                "1000 ranks need 9000 processes and threads, but there may be 90 (ulimit -u), so about 10 ranks fit",
            ),
            (
                machine(much, 112, much),
                "1000 ranks need 8032 descriptors in one process, which may have 112 (ulimit -Hn), so about 10 ranks fit",
            ),
            (
                machine(much, much, 96 << 20),
                "1000 ranks need 93750 MiB of memory, but there are 96 (MemAvailable), so about 32 ranks fit",
            ),
        ] {
            let said = refusal(1000, need, true, &machine).unwrap();
            assert_eq!(said, format!("{expected}; --force starts them nevertheless"));
        }
        let said = refusal(1000, need, false, &machine(100, much, much)).unwrap();
        assert!(!said.contains("about") && said.contains("--force"), "{said}");
        assert_eq!(refusal(u32::MAX, need, true, &machine(much, much, much)), None);
    }

    #[test]
    fn this_machine_holds_a_few_ranks_and_not_any_number() {
        assert_eq!(check(2, need, true), Ok(()));
        assert!(check(100_000, need, true).is_err());
    }
}
