//! Who of this node is here, when the launcher's barrier does not tell.
//!
//! Each rank binds a datagram socket to an abstract name made of the job's and its own. The kernel takes the
//! name back when the process ends, so a name that answers is a rank that lives. Nothing is ever sent.

use std::{
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram},
    },
    time::Duration,
};

use crate::{Error, error::Ranks};

#[derive(Debug)]
pub(crate) struct RollCall {
    job: String,
    rank: u32,
    size: u32,
    /// Bound: this rank is here.
    name: Option<UnixDatagram>,
}

impl RollCall {
    /// Says that this rank is here.
    pub(crate) fn answer(job: &str, rank: u32, size: u32) -> Self {
        let job = format!("hg-job/{:016x}", hash(job.as_bytes()));
        // Without a name others report this rank as unseen, if they report at all.
        let name = address(&job, rank).and_then(|name| UnixDatagram::bind_addr(&name).ok());
        Self { job, rank, size, name }
    }

    fn is_here(&self, rank: u32) -> bool {
        if rank == self.rank {
            return true;
        }
        let Some(name) = address(&self.job, rank) else { return false };
        UnixDatagram::unbound().is_ok_and(|socket| socket.connect_addr(&name).is_ok())
    }

    /// Looks for everybody, and tells those who are here.
    fn look(&self) -> Vec<u32> {
        let (here, unseen): (Vec<u32>, Vec<u32>) =
            (0..self.size).partition(|rank| self.is_here(*rank));
        // Who is told nothing looks for itself; who were told a part would take the rest for here.
        let text = to_text(&unseen);
        let fits = |_: &&u32| text.len() <= TOLD_MAX;
        for rank in here.iter().filter(fits).filter(|rank| **rank != self.rank) {
            if let (Some(name), Ok(socket)) = (address(&self.job, *rank), UnixDatagram::unbound()) {
                // Who does not hear it looks for itself. Without this, a full queue would make this one wait.
                let _ = socket.set_nonblocking(true);
                let _ = socket.send_to_addr(text.as_bytes(), &name);
            }
        }
        unseen
    }

    /// Whom somebody else missed, who gave up before.
    fn told(&self) -> Option<Vec<u32>> {
        let socket = self.name.as_ref()?;
        socket.set_nonblocking(true).ok()?;
        let mut text = [0; TOLD_MAX];
        let length = socket.recv(&mut text).ok()?;
        from_text(std::str::from_utf8(&text[..length]).ok()?, self.size)
    }

    /// What can be said about who is missing. `nodes`: the node of each rank, if the launcher tells.
    pub(crate) fn missing(&self, nodes: Option<&[u32]>, within: Duration) -> Error {
        let size = self.size;
        let unseen = self.told().unwrap_or_else(|| {
            let unseen = self.look();
            // One that gave up and ended meanwhile has told before.
            self.told().unwrap_or(unseen)
        });
        let here: Vec<u32> = (0..size).filter(|rank| unseen.binary_search(rank).is_err()).collect();
        let node = |rank: u32| nodes.and_then(|nodes| nodes.get(rank as usize));
        let is_mate = |rank: &u32| node(*rank).is_some() && node(*rank) == node(self.rank);
        if unseen.iter().all(is_mate) && !unseen.is_empty() {
            return Error::Missing { missing: Ranks(unseen), size, within };
        }
        let (missing, unknown): (Vec<u32>, Vec<u32>) = unseen.into_iter().partition(is_mate);
        let elsewhere = match (missing.is_empty(), unknown.is_empty()) {
            (true, true) => "the launcher still waits".into(),
            (true, false) => format!("{} cannot be seen from here", Ranks(unknown)),
            (false, _) => {
                format!("{} missing here; {} cannot be seen", Ranks(missing), Ranks(unknown))
            }
        };
        Error::MissingElsewhere { here: Ranks(here), size, within, elsewhere }
    }
}

/// The longest list of missing ranks that is told to others, in bytes.
const TOLD_MAX: usize = 1024;

/// Ascending ranks as runs: `3 5-9`.
fn to_text(ranks: &[u32]) -> String {
    let word = |run: &[u32]| match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run[0].to_string(),
    };
    ranks.chunk_by(|a, b| a + 1 == *b).map(word).collect::<Vec<_>>().join(" ")
}

/// What somebody else wrote: ascending ranks below `size`, at least one.
fn from_text(text: &str, size: u32) -> Option<Vec<u32>> {
    let mut ranks: Vec<u32> = Vec::new();
    for word in text.split(' ') {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= size || ranks.last().is_some_and(|before| *before >= first) {
            return None;
        }
        ranks.extend(first..=last);
    }
    Some(ranks)
}

fn address(job: &str, rank: u32) -> Option<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{job}/{rank}")).ok()
}

/// FNV-1a: a name of fixed length; two jobs of one machine at the same time do not collide by chance.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str) -> String {
        format!("{name}-{}", std::process::id())
    }

    const WITHIN: Duration = Duration::from_secs(3);

    #[test]
    fn ranks_that_live_are_seen_and_those_that_ended_are_missing() {
        let job = job("seen");
        let me = RollCall::answer(&job, 0, 4);
        let gone = RollCall::answer(&job, 1, 4);
        let _here = RollCall::answer(&job, 3, 4);
        drop(gone);
        let said = me.missing(Some(&[0; 4]), WITHIN).to_string();
        assert_eq!(said, "ranks 1 and 2 of 4 did not join within 3s");
    }

    #[test]
    fn who_gives_up_first_tells_the_others_and_nonsense_is_not_believed() {
        let job = job("told");
        let ranks: Vec<_> =
            [0, 2, 3].into_iter().map(|rank| RollCall::answer(&job, rank, 4)).collect();
        let said = |at: usize| ranks[at].missing(Some(&[0; 4]), WITHIN).to_string();
        assert_eq!(said(0), "rank 1 of 4 did not join within 3s");
        let late = RollCall::answer(&job, 1, 4);
        assert_eq!(said(1), "rank 1 of 4 did not join within 3s");
        drop(late);
        assert!(ranks[2].told().is_some());
        for nonsense in ["", "4", "1 1", "x", "3 2", "2-1", "1-4", "1-2 2", "1-"] {
            let socket = UnixDatagram::unbound().unwrap();
            let name = address(&ranks[2].job, 3).unwrap();
            socket.send_to_addr(nonsense.as_bytes(), &name).unwrap();
            // Two told it before: their words are the first in the queue.
            while let Some(told) = ranks[2].told() {
                assert_eq!(told, [1]);
            }
        }
    }

    #[test]
    fn who_is_told_takes_nobody_for_here_who_is_not() {
        let job = job("many");
        let nodes: Vec<u32> = (0..600).map(|rank| rank / 32).collect();
        let [first, second] = [0, 1].map(|rank| RollCall::answer(&job, rank, 600));
        let said = first.missing(Some(&nodes), WITHIN).to_string();
        assert_eq!(second.told(), Some((2..600).collect()));
        assert_eq!(second.missing(Some(&nodes), WITHIN).to_string(), said);
        assert!(said.contains("of this node ranks 0 and 1 did, "), "{said}");
    }

    #[test]
    fn a_list_that_is_too_long_is_not_told_at_all() {
        let job = job("odd");
        let ranks: Vec<_> =
            (0..600).step_by(2).map(|rank| RollCall::answer(&job, rank, 600)).collect();
        ranks[0].look();
        assert_eq!(ranks[1].told(), None);
    }

    #[test]
    fn of_other_nodes_nothing_is_claimed() {
        let job = job("far");
        let me = RollCall::answer(&job, 0, 4);
        let _mate = RollCall::answer(&job, 1, 4);
        let said = me.missing(Some(&[0, 0, 1, 1]), WITHIN).to_string();
        assert!(
            said.ends_with(
                "of this node ranks 0 and 1 did, and ranks 2 and 3 cannot be seen from here"
            ),
            "{said}"
        );
        let said = me.missing(None, WITHIN).to_string();
        assert!(said.ends_with("ranks 2 and 3 cannot be seen from here"), "{said}");
    }
}
