//! NUMA nodes: which there are for this process, and threads that are bound to one of them.
//!
//! Memory lies on the node of the thread that touches it first (set_mempolicy(2), the default policy). So whatever is to lie on a node is made by a
//! thread that runs there. What the system says of nodes: `/sys/devices/system/node` (sysfs-devices-node).

use std::{fs, io, path::Path};

use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

/// A node, with those of its cores on which this process may run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) number: u32,
    cores: Vec<usize>,
}

/// Where Linux tells of nodes.
const NODES: &str = "/sys/devices/system/node";

/// The nodes on which the calling thread may run, in their order. None where the system tells of none.
pub(crate) fn nodes() -> Vec<Node> {
    let allowed = sched_getaffinity(Pid::from_raw(0));
    let is_allowed = |core: &usize| allowed.is_ok_and(|it| it.is_set(*core).unwrap_or(false));
    nodes_in(Path::new(NODES), is_allowed)
}

fn nodes_in(folder: &Path, is_allowed: impl Fn(&usize) -> bool) -> Vec<Node> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let mut nodes: Vec<Node> = entries
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            let cores = list(&fs::read_to_string(entry.path().join("cpulist")).ok()?)?;
            Some(Node { number, cores: cores.into_iter().filter(&is_allowed).collect() })
        })
        .filter(|node| !node.cores.is_empty())
        .collect();
    nodes.sort_by_key(|node| node.number);
    nodes
}

/// `0-3,8` is 0, 1, 2, 3, 8.
fn list(text: &str) -> Option<Vec<usize>> {
    let ranges = text.trim().split(',').filter(|it| !it.is_empty()).map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<usize>().ok()?..=last.parse().ok()?)
    });
    Some(ranges.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect())
}

/// Those to which threads are dealt out: all that there are where it was asked for; where nobody has said anything, if there is a choice,
/// and the system lets a thread be bound.
pub(crate) fn chosen(
    asked: Option<bool>,
    nodes: impl FnOnce() -> Vec<Node>,
    may_bind: impl FnOnce(&Node) -> bool,
) -> Vec<Node> {
    match asked {
        Some(false) => Vec::new(),
        Some(true) => nodes(),
        None => Some(nodes()).filter(|it| it.len() > 1 && may_bind(&it[0])).unwrap_or_default(),
    }
}

/// The node of each of so many threads: neighbours share one.
pub(crate) fn dealt(nodes: &[Node], threads: usize) -> impl Iterator<Item = Option<&Node>> {
    (0..threads).map(move |thread| nodes.get(thread * nodes.len() / threads))
}

impl Node {
    /// Binds the calling thread.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn bind(&self) -> io::Result<()> {
        let mut cores = CpuSet::new();
        for core in &self.cores {
            cores.set(*core)?;
        }
        Ok(sched_setaffinity(Pid::from_raw(0), &cores)?)
    }

    /// Runs something on this node. Afterwards the calling thread may run where it might before.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn run<T>(&self, run: impl FnOnce() -> T) -> io::Result<T> {
        let _before = Before(sched_getaffinity(Pid::from_raw(0))?);
        self.bind()?;
        Ok(run())
    }
}

/// The cores on which the calling thread might run.
struct Before(CpuSet);

impl Drop for Before {
    fn drop(&mut self) {
        // Refused only where these cores are there no more.
        let _ = sched_setaffinity(Pid::from_raw(0), &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_read_as_linux_writes_them() {
        assert_eq!(list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(list("5\n"), Some(vec![5]));
        // A node with memory alone.
        assert_eq!(list("\n"), Some(Vec::new()));
        assert_eq!(list("0-x"), None);
    }

    #[test]
    fn nodes_are_those_with_cores_that_are_allowed() {
        let folder = std::env::temp_dir().join(format!("hg-invoke-nodes-{}", std::process::id()));
        for (name, cores) in
            [("node10", "8-11"), ("node2", "0-3,6"), ("node3", "4,5"), ("node4", "")]
        {
            fs::create_dir_all(folder.join(name)).unwrap();
            fs::write(folder.join(name).join("cpulist"), cores).unwrap();
        }
        fs::write(folder.join("online"), "2-4,10").unwrap();
        let found = nodes_in(&folder, |core| !(4..=5).contains(core) && *core != 8);
        fs::remove_dir_all(&folder).unwrap();
        let node = |number, cores: &[usize]| Node { number, cores: cores.to_vec() };
        assert_eq!(found, [node(2, &[0, 1, 2, 3, 6]), node(10, &[9, 10, 11])]);
        let numbers = |threads| -> Vec<u32> {
            dealt(&found, threads).map(|node| node.unwrap().number).collect()
        };
        assert_eq!(numbers(1), [2]);
        assert_eq!(numbers(5), [2, 2, 2, 10, 10]);
        assert!(dealt(&[], 3).all(|it| it.is_none()));
    }

    #[test]
    fn threads_are_dealt_out_where_there_is_more_than_one_node_or_it_was_asked_for() {
        let nodes = |count| (0..count).map(|number| Node { number, cores: vec![0] }).collect();
        let chosen = |asked, count| super::chosen(asked, || nodes(count), |_| true).len();
        assert_eq!([0, 1, 2].map(|count| chosen(None, count)), [0, 0, 2]);
        assert_eq!([0, 1, 2].map(|count| chosen(Some(true), count)), [0, 1, 2]);
        assert_eq!([0, 1, 2].map(|count| chosen(Some(false), count)), [0, 0, 0]);
        assert!(super::chosen(None, || nodes(2), |_| false).is_empty(), "nobody has asked");
    }

    #[test]
    fn a_thread_runs_on_a_node_and_then_where_it_might_before() {
        let of_this_thread = || sched_getaffinity(Pid::from_raw(0)).unwrap();
        let before = of_this_thread();
        for node in nodes() {
            let inside = node.run(of_this_thread).unwrap();
            let cores: Vec<usize> =
                (0..CpuSet::count()).filter(|core| inside.is_set(*core).unwrap()).collect();
            assert_eq!(cores, node.cores);
            assert_eq!(of_this_thread(), before);
        }
    }
}
