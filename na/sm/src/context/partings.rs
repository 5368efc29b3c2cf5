//! What peers that have hung up left behind, to wait for admission: how much it is, and whose is most.

use std::collections::BTreeSet;

use hg_na::{Completion, Peer};

/// Those whose last requests wait, by the bytes that they take in this process's memory.
#[derive(Debug, Default)]
pub(crate) struct Partings {
    kept: BTreeSet<(u64, Peer)>,
    bytes: u64,
}

impl Partings {
    /// So many bytes of a peer's wait.
    pub(crate) fn keep(&mut self, peer: Peer, bytes: u64) {
        self.bytes += if self.kept.insert((bytes, peer)) { bytes } else { 0 };
    }

    /// They do not wait any more, if they did.
    pub(crate) fn let_go(&mut self, peer: Peer, bytes: u64) {
        self.bytes -= if self.kept.remove(&(bytes, peer)) { bytes } else { 0 };
    }

    /// The one whose requests take most, where those of all take more than `most` bytes.
    pub(crate) fn greediest(&self, most: u64) -> Option<Peer> {
        let (_, peer) = self.kept.last().filter(|_| self.bytes > most)?;
        Some(*peer)
    }
}

/// What requests take, their places in lists included.
pub(crate) fn size_of(requests: &[Completion]) -> u64 {
    let len = |it: &Completion| match it {
        Completion::Unexpected { message, .. } => message.len(),
        _ => 0,
    };
    requests.iter().map(|it| (len(it) + std::mem::size_of::<Completion>()) as u64).sum()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use hg_na::Message;

    use super::*;

    #[test]
    fn past_the_most_that_may_wait_the_greediest_is_named_until_it_is_let_go() {
        let mut partings = Partings::default();
        let [one, two, three] = [0, 1, 2].map(|index| Peer::new(index, 7));
        partings.keep(one, 40);
        partings.keep(two, 60);
        assert_eq!(partings.greediest(100), None);
        partings.keep(three, 1);
        assert_eq!(partings.greediest(100), Some(two));
        partings.let_go(two, 60);
        partings.let_go(two, 60);
        assert_eq!((partings.greediest(40), partings.bytes), (Some(one), 41));
        partings.let_go(one, 40);
        partings.let_go(three, 1);
        assert_eq!((partings.greediest(0), partings.bytes), (None, 0));
    }

    #[test]
    fn requests_without_a_byte_take_memory_too() {
        let message = Message::copied(&[]);
        let empty = Completion::Unexpected { from: Peer::new(0, 0), message };
        assert!(size_of(&[empty]) > 0);
    }
}
