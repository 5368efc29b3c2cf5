//! Which of several cards a process takes.
//!
//! Of cards of one fabric the one that is nearest to the cores on which the process may run; of equally near ones the processes
//! of a node take one each, by their local ranks. What a launcher or `taskset(1)` binds to a socket so uses that socket's cards.

use std::{env, fmt, fs, path::Path};

/// Where a card is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pci {
    pub(crate) domain: u16,
    pub(crate) bus: u8,
    pub(crate) device: u8,
    pub(crate) function: u8,
}

impl fmt::Display for Pci {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(out, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// Variables in which launchers give the number of a process among those of its node: Open MPI, PMIx, Slurm, MPICH and Intel
/// MPI, PALS, Flux, jsrun.
const LOCAL_RANKS: [&str; 8] = [
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "PMIX_LOCAL_RANK",
    "SLURM_LOCALID",
    "MPI_LOCALRANKID",
    "PMI_LOCAL_RANK",
    "PALS_LOCAL_RANKID",
    "FLUX_TASK_LOCAL_ID",
    "JSM_NAMESPACE_LOCAL_RANK",
];

/// Where a process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Here<'a> {
    /// Cores on which it may run; none where the kernel does not tell.
    pub(crate) cores: Vec<u32>,
    /// Its number among the processes of its node.
    pub(crate) local_rank: usize,
    /// What the kernel tells of PCI devices.
    pub(crate) devices: &'a Path,
}

impl Here<'_> {
    /// This process.
    pub(crate) fn new() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        Self {
            cores: list(cores.unwrap_or_default()),
            local_rank: local_rank(|name| env::var(name).ok()),
            devices: Path::new("/sys/bus/pci/devices"),
        }
    }

    /// How many of its cores have another card nearer. None, where nothing is known.
    fn distance(&self, card: Pci) -> usize {
        let file = self.devices.join(card.to_string()).join("local_cpulist");
        let near = list(&fs::read_to_string(file).unwrap_or_default());
        if near.is_empty() {
            return 0;
        }
        self.cores.iter().filter(|core| !near.contains(core)).count()
    }

    /// The place of the one to be taken, of cards of which each is as good as the others but for where it is. The first one, if that is
    /// not known.
    pub(crate) fn choose(&self, cards: &[Option<Pci>]) -> usize {
        let known = cards.iter().map(|card| card.map(|card| self.distance(card)));
        let Some(distances) = known.collect::<Option<Vec<usize>>>() else { return 0 };
        let Some(least) = distances.iter().min() else { return 0 };
        let nearest = distances.iter().enumerate().filter(|(_, it)| *it == least);
        let nearest: Vec<usize> = nearest.map(|(place, _)| place).collect();
        nearest[spread(self.local_rank, nearest.len(), cards.len())]
    }
}

/// Which of its `near` cards a process takes, of `all` of the node.
///
/// Ranks of one place are not known, but that launchers deal them out to the places one after the other, or go round them. Ranks that
/// follow one another take cards that do; and so that those take different cards whose distance is a multiple of `near`, the digits, to this
/// base, of what stands above are added up.
fn spread(local_rank: usize, near: usize, all: usize) -> usize {
    let places = (all / near).max(1);
    let lap = (1..=places).map(|it| it * near).find(|lap| lap % places == 0).unwrap_or(near);
    let (mut sum, mut above) = (local_rank % near, local_rank / lap);
    while above > 0 && near > 1 {
        (sum, above) = (sum + above % near, above / near);
    }
    sum % near
}

/// The number of this process among those of its node; 0 where nobody tells.
fn local_rank(variable: impl Fn(&str) -> Option<String>) -> usize {
    // All ranks of a runner with this descriptor are on one machine; what is around the runner has numbered something else. Without it
    // they are of all machines.
    let own = || variable("HG_JOB_RANK")?.parse().ok();
    let by_launcher = || LOCAL_RANKS.iter().find_map(|name| variable(name)?.parse().ok());
    let rank = match variable("HG_JOB_FD") {
        Some(_) => own().or_else(by_launcher),
        None => by_launcher().or_else(own),
    };
    rank.unwrap_or(0)
}

/// Numbers as the kernel lists them: `0-3,8,10-11`.
fn list(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn card(bus: u8) -> Pci {
        Pci { domain: 0, bus, device: 0, function: 0 }
    }

    /// A machine of two sockets of four cores with two cards each, as the kernel shows them.
    struct Machine(PathBuf);

    impl Machine {
        fn new(name: &str) -> Self {
            let root = env::temp_dir().join(format!("hg-ofi-{name}-{}", std::process::id()));
            for (bus, cores) in [(1, "0-3"), (2, "0-3"), (0x81, "4-7"), (0x82, "4-7")] {
                let folder = root.join(card(bus).to_string());
                fs::create_dir_all(&folder).unwrap();
                fs::write(folder.join("local_cpulist"), format!("{cores}\n")).unwrap();
            }
            Self(root)
        }

        fn choose(&self, cores: &str, local_rank: usize, buses: &[u8]) -> u8 {
            let here = Here { cores: list(cores), local_rank, devices: &self.0 };
            let cards: Vec<_> = buses.iter().map(|bus| Some(card(*bus))).collect();
            buses[here.choose(&cards)]
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_process_takes_a_card_of_its_socket_and_its_neighbours_take_the_others() {
        const ALL: [u8; 4] = [1, 2, 0x81, 0x82];
        let machine = Machine::new("sockets");
        // Bound to a socket, or to one of its cores.
        assert_eq!(
            [4, 5, 6, 7].map(|it| machine.choose("4-7", it, &ALL)),
            [0x82, 0x81, 0x81, 0x82]
        );
        assert_eq!([0, 2, 4, 6].map(|it| machine.choose("0-3", it, &ALL)), [1, 2, 2, 1]);
        assert_eq!(machine.choose("6", 0, &ALL), 0x81);
        assert_eq!([0, 1].map(|rank| machine.choose("1,3", rank, &ALL)), [1, 2]);
        // Bound to nothing.
        assert_eq!([0, 1, 2, 3].map(|rank| machine.choose("0-7", rank, &ALL)), [1, 2, 0x81, 0x82]);
        // Most of its cores are of the second one.
        assert_eq!(machine.choose("3-7", 0, &ALL), 0x81);
        assert_eq!(machine.choose("4-7", 5, &[1]), 1, "there is no other");
    }

    /// How many of the processes with these local ranks, all of one place, take each of its cards, of so many of the node.
    fn loads(ranks: impl Iterator<Item = usize>, near: usize, all: usize) -> Vec<usize> {
        let mut loads = vec![0; near];
        ranks.for_each(|rank| loads[spread(rank, near, all)] += 1);
        loads
    }

    fn uneven(loads: &[usize]) -> usize {
        loads.iter().max().unwrap() - loads.iter().min().unwrap()
    }

    #[test]
    fn processes_of_a_place_take_its_cards_evenly_however_ranks_go_round_the_places() {
        for (near, places) in (1..9).flat_map(|near| (1..9).map(move |places| (near, places))) {
            let all = near * places;
            for (place, count) in (0..places).flat_map(|it| (1..40).map(move |count| (it, count))) {
                let cyclic = loads((0..count).map(|it| place + it * places), near, all);
                assert!(uneven(&cyclic) <= 1, "{near} {places} from {place}: {cyclic:?}");
            }
            // As many of each place as it has cards, or twice as many: 0 to 3 here, 4 to 7 there.
            for (times, place) in
                [1, 2].into_iter().flat_map(|it| (0..places).map(move |p| (it, p)))
            {
                let count = near * times;
                let contiguous = loads(place * count..(place + 1) * count, near, all);
                assert_eq!(uneven(&contiguous), 0, "{near} {places} at {place}: {contiguous:?}");
            }
        }
    }

    #[test]
    fn odd_numbers_of_processes_leave_no_card_idle() {
        // Any number of each place, one place after the other.
        for (first, count) in (0..40).flat_map(|first| (1..12).map(move |count| (first, count))) {
            for near in 1..5 {
                let loads = loads(first..first + count, near, 2 * near);
                assert!(uneven(&loads) <= 2, "{first} {count} {near}: {loads:?}");
            }
        }
        // Round four places, two of which have the cards; two at a time.
        assert_eq!(loads([0, 4, 8, 12].into_iter(), 2, 4), [2, 2]);
        assert_eq!(loads([0, 1, 4, 5, 8, 9, 12, 13].into_iter(), 2, 4), [4, 4]);
        // Round eight places, four of which have a card each: those without one take all of them.
        assert_eq!(loads([1, 3, 5, 7].into_iter(), 4, 4), [1; 4]);
        // Whatever a launcher says.
        let greatest = loads(usize::MAX - 5..=usize::MAX, 3, 6);
        assert_eq!(greatest.iter().sum::<usize>(), 6);
    }

    #[test]
    fn launchers_tell_the_local_rank_and_the_nearest_launcher_is_asked_first() {
        let told = |all: &[(&str, &str)]| {
            local_rank(|name| {
                let (_, value) = all.iter().find(|(known, _)| *known == name)?;
                Some((*value).to_owned())
            })
        };
        assert_eq!(told(&[]), 0);
        assert_eq!(told(&[("SLURM_LOCALID", "3")]), 3);
        assert_eq!(told(&[("OMPI_COMM_WORLD_LOCAL_RANK", "x"), ("PMI_LOCAL_RANK", "2")]), 2);
        // A runner of `hg_job` on one machine, perhaps inside one process of a launcher's.
        let runner = ("HG_JOB_FD", "5");
        assert_eq!(told(&[runner, ("HG_JOB_RANK", "4"), ("SLURM_LOCALID", "0")]), 4);
        // Ranks of all nodes that somebody has numbered: better than none.
        assert_eq!(told(&[("HG_JOB_RANK", "6")]), 6);
        assert_eq!(told(&[("HG_JOB_RANK", "6"), ("SLURM_LOCALID", "2")]), 2);
    }

    #[test]
    fn the_first_card_is_taken_where_nothing_is_known() {
        let machine = Machine::new("unknown");
        assert_eq!(machine.choose("0-7", 1, &[0x11, 0x12]), 0x12, "by rank alone");
        let here = Here { cores: list("0-7"), local_rank: 3, devices: &machine.0 };
        assert_eq!(here.choose(&[Some(card(1)), None]), 0, "one that is no PCI device");
        assert_eq!(here.choose(&[]), 0);
    }

    #[test]
    fn the_kernel_s_lists_of_numbers_are_read() {
        assert_eq!(list("0-2,5,7-8\n"), [0, 1, 2, 5, 7, 8]);
        assert_eq!(list("\t3"), [3]);
        assert!(list("").is_empty() && list("x,-").is_empty());
        assert!(!Here::new().cores.is_empty());
    }
}
