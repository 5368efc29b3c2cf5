//! Messages on their way out: whether one may leave now, and whether the library takes its bytes at once or is lent a frame. Nothing here calls the library.
//!
//! What is sent to a peer that takes nothing stays with the library, which says of a frame when it is done with it, and of bytes that were
//! injected nothing. So:
//! - Each address may have one frame out whatever others have, and more as [`Shares`] says.
//! - Of messages that may be injected, one is lent behind [`INJECTED_RUN`] others, and all are while [`INJECTED_MAX`] to their address are not known to have gone.
//!   Messages to one address leave in order (`FI_ORDER_SAS`): when the library is done with a frame, it is with all that was handed over before.
//! - An injected message takes a place of the library's own queue, too, until it has gone (rxm: `tx_attr.size` of all addresses together, then `FI_EAGAIN`). So from
//!   half of those on one is injected only where all before it have gone, and whoever has none out and is refused waits for others.
//! - Frames that are out when their address is removed count no more, and are not used again until the library gives them back.
//! - Who has none out, and finds none, waits for others ([`Sends::waits_for_others`]); the blame lies with [`Sends::slowest`].
//!
//! What libfabric allows: fi_cancel(3) ends no send (tcp, rxm, shm: receives alone). fi_av_remove(3) leaves what is under way undefined; rxm and tcp
//! keep the connection, and what waits on it, until the other side's socket is closed. Only `FI_AV_REMOVE_CLEANUP=1` in the environment makes rxm
//! close it, so that its frames come back as cancelled.

use rustc_hash::FxHashMap;

use crate::fabric::shares::Shares;

/// Messages of an address that are not known to have gone, from which on nothing is injected.
pub(super) const INJECTED_MAX: u64 = 128;
/// Messages to an address that are injected before one is lent, which tells of them: its end comes before [`INJECTED_MAX`] are under way.
const INJECTED_RUN: u64 = 32;
/// Frames of all addresses together, but for the first one of each; half of what there is, where that is less.
const SHARED_MAX: usize = 256;

/// How the next message leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Its bytes are taken at once.
    Inject,
    /// In this frame.
    Lend(usize),
    /// Not now.
    Wait,
}

/// A frame that the library has.
#[derive(Debug, Clone, Copy)]
struct Out {
    to: u64,
    /// Its place among the messages to that address.
    number: u64,
    note: u64,
    /// Its address was removed.
    is_lost: bool,
}

/// Messages to one address, in their order.
#[derive(Debug, Clone, Copy, Default)]
struct Line {
    /// How many were handed over.
    handed: u64,
    /// The last one of them that was lent.
    lent: u64,
    /// All up to this one have gone.
    gone: u64,
    /// The frame that came back last has failed: what was before it never tells.
    has_failed: bool,
    /// When it had its first frame out, or one came back: as [`Sends::now`] counts.
    since: u64,
}

/// What an endpoint has handed over.
#[derive(Debug)]
pub(crate) struct Sends {
    frames: Vec<Option<Out>>,
    free: Vec<usize>,
    /// Those that are not lost.
    shares: Shares,
    lines: FxHashMap<u64, Line>,
    /// Messages of all lines that are not known to have gone.
    pending: u64,
    /// Those from which on the library's own queue may be full before long.
    pending_max: u64,
    /// Frames that were lent, or came back.
    now: u64,
}

impl Sends {
    /// Nothing, with so many frames. `queue`: messages that the library takes at a time, of all addresses together.
    pub(super) fn new(frames: usize, queue: Option<usize>) -> Self {
        Self {
            frames: vec![None; frames],
            free: (0..frames).rev().collect(),
            shares: Shares::new(SHARED_MAX.min(frames / 2)),
            lines: FxHashMap::default(),
            pending: 0,
            pending_max: queue.map_or(u64::MAX, |all| all as u64 / 2),
            now: 0,
        }
    }

    /// How the next message to an address leaves; `is_short`: it may be injected.
    pub(super) fn next(&self, to: u64, is_short: bool) -> Next {
        if is_short && self.may_inject(to) {
            return Next::Inject;
        }
        match self.free.last() {
            Some(frame) if self.shares.may_add(to) => Next::Lend(*frame),
            _ => Next::Wait,
        }
    }

    fn may_inject(&self, to: u64) -> bool {
        let line = self.lines.get(&to).copied().unwrap_or_default();
        let (pending, run) = (line.handed - line.gone, line.handed - line.gone.max(line.lent));
        let is_scarce = self.pending >= self.pending_max;
        pending == 0 || (!is_scarce && pending < INJECTED_MAX && run < INJECTED_RUN)
    }

    /// The library has taken a message's bytes.
    pub(super) fn injected(&mut self, to: u64) {
        self.lines.entry(to).or_default().handed += 1;
        self.pending += 1;
    }

    /// The library has the frame that [`Sends::next`] has named.
    pub(super) fn lent(&mut self, to: u64, note: u64) {
        let frame = self.free.pop().expect("named by `next`");
        self.now += 1;
        let line = self.lines.entry(to).or_default();
        line.handed += 1;
        line.lent = line.handed;
        self.pending += 1;
        if self.shares.own(to) == 0 {
            line.since = self.now;
        }
        self.shares.add(to);
        self.frames[frame] = Some(Out { to, number: line.handed, note, is_lost: false });
    }

    /// The library is done with a frame: the note of its message. `None`: its address was removed before.
    pub(super) fn came_back(&mut self, frame: usize, is_sent: bool) -> Option<u64> {
        let out = self.frames.get_mut(frame).and_then(Option::take)?;
        self.free.push(frame);
        self.now += 1;
        if out.is_lost {
            return None;
        }
        self.shares.remove(out.to);
        if let Some(line) = self.lines.get_mut(&out.to) {
            line.since = self.now;
            line.has_failed = !is_sent;
            let gone = if is_sent { line.gone.max(out.number) } else { line.gone };
            self.pending -= gone - line.gone;
            line.gone = gone;
        }
        Some(out.note)
    }

    /// An address is removed.
    pub(super) fn forget(&mut self, to: u64) {
        for lost in self.frames.iter_mut().flatten().filter(|it| it.to == to) {
            lost.is_lost = true;
        }
        self.shares.forget(to);
        self.pending -= self.lines.remove(&to).map_or(0, |line| line.handed - line.gone);
    }

    /// Frames that are out, but for those that are lost.
    pub(crate) fn out(&self) -> usize {
        self.shares.all()
    }

    /// Whether frames to this address are out.
    pub(crate) fn has_out(&self, to: u64) -> bool {
        self.shares.own(to) > 0
    }

    /// Messages that were handed over and may still be here: their addresses, and the last one's number.
    pub(crate) fn unknown(&self) -> impl Iterator<Item = (u64, u64)> {
        let unknown = self.lines.iter().filter(|(_, line)| line.gone < line.handed);
        unknown.map(|(to, line)| (*to, line.handed))
    }

    /// Whether all messages to an address up to this one have gone, or never will.
    pub(crate) fn has_gone(&self, to: u64, number: u64) -> bool {
        self.lines.get(&to).is_none_or(|line| line.has_failed || line.gone >= number)
    }

    /// Whether a frame was lent whose end tells that of all up to this one.
    pub(crate) fn is_told(&self, to: u64, number: u64) -> bool {
        self.lines.get(&to).is_none_or(|line| line.lent >= number)
    }

    /// Whether an address to which nothing is taken waits for others, who have all frames, or the library's own queue.
    pub(crate) fn waits_for_others(&self, to: u64) -> bool {
        (self.free.is_empty() || self.pending >= self.pending_max) && !self.has_out(to)
    }

    /// Frames that were lent, or came back, so far.
    pub(crate) fn count(&self) -> u64 {
        self.now
    }

    /// Of the addresses with frames out the one of which none has come back for longest.
    pub(crate) fn slowest(&self) -> Option<u64> {
        let waiting = self.lines.iter().filter(|(to, _)| self.has_out(**to));
        waiting.min_by_key(|(_, line)| line.since).map(|(to, _)| *to)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A message that is to be lent: whether it was.
    fn lend(sends: &mut Sends, to: u64) -> Option<usize> {
        let Next::Lend(frame) = sends.next(to, false) else { return None };
        sends.lent(to, to);
        Some(frame)
    }

    #[test]
    fn who_takes_nothing_leaves_frames_to_others_and_one_to_each() {
        let mut sends = Sends::new(1024, None);
        let mut taken = Vec::new();
        for deaf in 0..300 {
            let mut own = 0;
            while lend(&mut sends, deaf).is_some() {
                own += 1;
            }
            taken.push(own);
        }
        assert_eq!(taken[..9], [128, 64, 32, 16, 8, 4, 2, 1, 1]);
        assert!(taken[9..].iter().all(|own| *own == 1), "{taken:?}");
        let frame = lend(&mut sends, 1000).expect("there is one for everybody");
        assert_eq!(sends.came_back(frame, true), Some(1000));
    }

    #[test]
    fn frames_of_a_removed_address_are_replaced_and_their_end_is_nobody_s() {
        let mut sends = Sends::new(64, None);
        let mut first = Vec::new();
        while let Some(frame) = lend(&mut sends, 7) {
            first.push(frame);
        }
        sends.forget(7);
        assert!(sends.out() == 0 && !sends.has_out(7));
        // The library may name the next one by the same number.
        let mut second = Vec::new();
        while let Some(frame) = lend(&mut sends, 7) {
            second.push(frame);
        }
        assert_eq!(first.len(), second.len());
        for frame in first {
            assert_eq!(sends.came_back(frame, false), None);
        }
        assert_eq!(sends.out(), second.len());
        for frame in second {
            assert_eq!(sends.came_back(frame, true), Some(7));
        }
        assert_eq!((sends.out(), sends.free.len()), (0, 64));
    }

    #[test]
    fn what_is_injected_is_known_to_have_gone_when_a_frame_behind_it_has() {
        let mut sends = Sends::new(8, None);
        while sends.next(1, true) == Next::Inject {
            sends.injected(1);
        }
        assert_eq!(sends.unknown().collect::<Vec<_>>(), [(1, INJECTED_RUN)]);
        assert!(!sends.is_told(1, INJECTED_RUN));
        let frame = lend(&mut sends, 1).unwrap();
        assert!(sends.is_told(1, INJECTED_RUN) && !sends.has_gone(1, INJECTED_RUN));
        sends.came_back(frame, true);
        assert!(sends.has_gone(1, INJECTED_RUN) && sends.unknown().next().is_none());
        assert_eq!(sends.next(1, true), Next::Inject);
        // A frame that has failed says that nothing is to be waited for, and no more: the next one that has gone is right.
        sends.injected(1);
        let frame = lend(&mut sends, 1).unwrap();
        sends.came_back(frame, false);
        assert!(sends.has_gone(1, INJECTED_RUN + 3) && sends.unknown().next().is_some());
        let frame = lend(&mut sends, 1).unwrap();
        sends.came_back(frame, true);
        assert!(!sends.has_gone(1, INJECTED_RUN + 5) && sends.pending == 0);
    }

    #[test]
    fn who_takes_nothing_has_a_bounded_number_of_injected_messages() {
        let mut sends = Sends::new(8, None);
        loop {
            match sends.next(1, true) {
                Next::Inject => sends.injected(1),
                Next::Lend(_) => sends.lent(1, 1),
                Next::Wait => break,
            }
        }
        assert!(sends.pending < INJECTED_MAX, "{}", sends.pending);
        assert!(!sends.waits_for_others(1), "it is its own fault");
    }

    #[test]
    fn short_messages_that_are_taken_are_injected_but_for_few() {
        /// Frames that one connection sends in a round.
        const BURST: u64 = 64;
        const ROUNDS: u64 = 1000;
        let (mut sends, mut lent, mut out) = (Sends::new(512, None), 0, Vec::new());
        for _ in 0..ROUNDS {
            for _ in 0..BURST {
                match sends.next(1, true) {
                    Next::Inject => sends.injected(1),
                    Next::Lend(frame) => {
                        sends.lent(1, 1);
                        out.push(frame);
                        lent += 1;
                    }
                    Next::Wait => panic!("frames come back in every round"),
                }
            }
            for frame in out.drain(..) {
                sends.came_back(frame, true);
            }
        }
        assert!(lent * 30 < ROUNDS * BURST, "{lent} of {}", ROUNDS * BURST);
    }

    #[test]
    fn who_takes_nothing_leaves_half_of_the_library_s_queue_to_others() {
        const QUEUE: u64 = 1000;
        let mut sends = Sends::new(512, Some(1000));
        for deaf in 0..100 {
            while sends.next(deaf, true) == Next::Inject {
                sends.injected(deaf);
            }
        }
        assert!(sends.pending <= QUEUE / 2 + 100, "{}", sends.pending);
        // One message each, as long as all before it have gone.
        assert_eq!(sends.next(200, true), Next::Inject);
        sends.injected(200);
        let frame = lend(&mut sends, 200).unwrap();
        assert!(sends.waits_for_others(201) && !sends.waits_for_others(200));
        sends.came_back(frame, true);
        assert_eq!(sends.next(200, true), Next::Inject);
        (0..100).for_each(|deaf| sends.forget(deaf));
        assert!(sends.pending == 0 && !sends.waits_for_others(201));
    }

    #[test]
    fn who_finds_no_frame_waits_for_others_and_the_slowest_is_to_blame() {
        let mut sends = Sends::new(4, None);
        let slow = lend(&mut sends, 10).unwrap();
        let frames: Vec<_> = (11..14).map(|to| lend(&mut sends, to).unwrap()).collect();
        assert_eq!(sends.next(20, false), Next::Wait);
        assert!(sends.waits_for_others(20) && !sends.waits_for_others(10));
        assert_eq!(sends.slowest(), Some(10));
        sends.came_back(frames[0], true);
        lend(&mut sends, 11).unwrap();
        sends.came_back(slow, true);
        assert!(!sends.waits_for_others(20));
        assert_eq!(sends.slowest(), Some(12), "of 10 none is out, of 11 one has come back");
    }

    /// One thing that happens.
    #[derive(Debug, Clone)]
    enum Happens {
        Send(u64, bool),
        /// To an address that takes something: of its frames, in order.
        Takes(u64),
        Fails(u64),
        Removed(u64),
        /// A frame that was lost comes back after all.
        Late(usize),
    }

    fn happens() -> impl Strategy<Value = Happens> {
        prop_oneof![
            6 => (0..12u64, any::<bool>()).prop_map(|(to, short)| Happens::Send(to, short)),
            4 => (0..12u64).prop_map(Happens::Takes),
            1 => (0..12u64).prop_map(Happens::Fails),
            1 => (0..12u64).prop_map(Happens::Removed),
            1 => any::<usize>().prop_map(Happens::Late),
        ]
    }

    proptest! {
        #[test]
        fn every_frame_is_free_out_or_lost_and_nobody_takes_what_is_left_to_others(
            (frames, queue) in (1..80usize, proptest::option::of(1..200usize)),
            all in proptest::collection::vec(happens(), 0..600),
        ) {
            let mut sends = Sends::new(frames, queue);
            let most = SHARED_MAX.min(frames / 2);
            let mut out: Vec<(u64, usize)> = Vec::new();
            let mut lost: Vec<usize> = Vec::new();
            for event in all {
                match event {
                    Happens::Send(to, is_short) => {
                        let own = out.iter().filter(|(it, _)| *it == to).count();
                        match sends.next(to, is_short) {
                            Next::Inject => {
                                prop_assert!(is_short);
                                sends.injected(to);
                                let line = sends.lines[&to];
                                let pending = line.handed - line.gone;
                                prop_assert!(pending <= INJECTED_MAX);
                                prop_assert!(pending == 1 || sends.pending <= sends.pending_max);
                            }
                            Next::Lend(frame) => {
                                prop_assert!(own == 0 || own + out.len() < most);
                                prop_assert!(!lost.contains(&frame));
                                prop_assert!(!out.iter().any(|(_, it)| *it == frame));
                                sends.lent(to, to);
                                out.push((to, frame));
                            }
                            Next::Wait => {
                                prop_assert!(own > 0 || out.len() + lost.len() == frames);
                                prop_assert!(own > 0 || sends.waits_for_others(to));
                            }
                        }
                    }
                    Happens::Takes(to) | Happens::Fails(to) => {
                        let Some(at) = out.iter().position(|(it, _)| *it == to) else { continue };
                        let (_, frame) = out.remove(at);
                        let is_sent = matches!(event, Happens::Takes(_));
                        prop_assert_eq!(sends.came_back(frame, is_sent), Some(to));
                    }
                    Happens::Removed(to) => {
                        sends.forget(to);
                        lost.extend(out.extract_if(.., |(it, _)| *it == to).map(|(_, it)| it));
                    }
                    Happens::Late(at) => {
                        if !lost.is_empty() {
                            let frame = lost.swap_remove(at % lost.len());
                            prop_assert_eq!(sends.came_back(frame, true), None);
                        }
                    }
                }
                prop_assert_eq!(sends.out(), out.len());
                prop_assert_eq!(sends.free.len() + out.len() + lost.len(), frames);
                let slowest = sends.slowest();
                prop_assert_eq!(slowest.is_some(), !out.is_empty());
                prop_assert!(slowest.is_none_or(|it| out.iter().any(|(to, _)| *to == it)));
                let mut pending = 0;
                for line in sends.lines.values() {
                    prop_assert!(line.gone <= line.handed && line.lent <= line.handed);
                    pending += line.handed - line.gone;
                }
                prop_assert_eq!(sends.pending, pending);
            }
        }
    }
}
