//! Pages of an arena where they are asked for before they are touched ([`crate::os::room`]): as its lanes grow into it.

use std::{fmt, ops::Range};

use hg_na::Error;

use crate::{
    arena::{LANE_BYTES, LANES},
    segment::ArenaBytes,
};

/// Bytes that a lane grows by, at least.
const STEP: u32 = 64 * 1024;

type MakePages = dyn FnMut(&ArenaBytes, Range<u32>) -> Result<(), Error> + Send;

/// The pages that an arena certainly has.
pub(crate) struct Backing {
    /// Of each lane, from its start on.
    made: [u32; LANES],
    make: Box<MakePages>,
    /// The last wish was refused.
    pub(crate) is_refused: bool,
}

impl Backing {
    /// Of an arena of which nothing was touched.
    pub(crate) fn new() -> Self {
        Self::with(ArenaBytes::make_pages)
    }

    /// The same, where something else makes the pages.
    pub(crate) fn with(
        make: impl FnMut(&ArenaBytes, Range<u32>) -> Result<(), Error> + Send + 'static,
    ) -> Self {
        Self { made: [0; LANES], make: Box::new(make), is_refused: false }
    }

    /// Whether a lane has all pages before `end`, counted from the start of the arena; makes those that it lacks.
    pub(crate) fn reaches(&mut self, arena: &ArenaBytes, lane: usize, end: u32) -> bool {
        let base = if lane == 0 { 0 } else { LANE_BYTES };
        let (have, needed) = (self.made[lane], end - base);
        if needed <= have {
            return true;
        }
        let wanted = needed.next_multiple_of(STEP).min(LANE_BYTES);
        self.is_refused = (self.make)(arena, base + have..base + wanted).is_err();
        if !self.is_refused {
            self.made[lane] = wanted;
        }
        !self.is_refused
    }

    /// The pages of a lane were given back.
    pub(crate) fn given_back(&mut self, lane: usize) {
        self.made[lane] = 0;
    }
}

impl fmt::Debug for Backing {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Backing({:?} bytes)", self.made)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc, Mutex,
            atomic::{AtomicBool, Ordering},
        },
        time::Instant,
    };

    use hg_na::{
        Address, Completion, Context, Done, Message, Op, OpenOptions, Peer, Reached, Returned,
    };
    use watchdog::in_time;

    use super::*;
    use crate::{context::SmContext, domain::Shared, os::room, segment::Rings};

    #[test]
    fn a_lane_grows_in_steps_and_begins_anew_once_its_pages_were_given_back() {
        let (rings, _fd) = Rings::create().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        let mut backing = Backing::with(move |arena, range| {
            log.lock().unwrap().push(range.clone());
            arena.make_pages(range)
        });
        let (arena, ends) = (rings.arena(), [1, STEP, STEP + 1, LANE_BYTES, LANE_BYTES]);
        assert!(ends.iter().all(|end| backing.reaches(&arena, 0, *end)));
        assert!(backing.reaches(&arena, 1, LANE_BYTES + 5));
        backing.given_back(0);
        assert!(backing.reaches(&arena, 0, 5));
        let second = LANE_BYTES..LANE_BYTES + STEP;
        let expected = [0..STEP, STEP..2 * STEP, 2 * STEP..LANE_BYTES, second, 0..STEP];
        assert_eq!(*asked.lock().unwrap(), expected);
    }

    fn open() -> (Arc<Shared>, SmContext) {
        let shared = Shared::open(&Address::new("sm://").unwrap(), &OpenOptions::listening());
        let shared = shared.unwrap();
        let context = SmContext::open(&shared, 0, None).unwrap();
        (shared, context)
    }

    struct Pair {
        origin: SmContext,
        target: SmContext,
        to: Peer,
        done: Vec<Completion>,
        arrived: Vec<usize>,
        _domains: [Arc<Shared>; 2],
    }

    impl Pair {
        fn until(&mut self, mut holds: impl FnMut(&Self) -> bool) {
            let start = Instant::now();
            while !holds(self) {
                in_time!(start, "it never happened");
                let mut arrived = Vec::new();
                for (context, into) in
                    [(&mut self.origin, &mut self.done), (&mut self.target, &mut arrived)]
                {
                    context.waiter.poll().unwrap();
                    context.progress(Instant::now(), into).unwrap();
                }
                self.arrived.extend(arrived.into_iter().filter_map(|it| match it {
                    Completion::Unexpected { message, .. } => Some(message.len()),
                    _ => None,
                }));
            }
        }

        fn send(&mut self, len: usize) {
            let mut message = self.origin.message(self.to, len).unwrap();
            message.as_mut_slice().fill(7);
            self.origin.post(1, Op::SendUnexpected { to: self.to, message }).unwrap();
        }
    }

    #[test]
    fn where_memory_is_counted_and_used_up_long_messages_are_refused_by_name_and_short_ones_flow() {
        let ((origin_domain, mut origin), (target_domain, target)) = (open(), open());
        let to = origin.lookup(target.address()).unwrap();
        let (done, arrived) = (Vec::new(), Vec::new());
        let _domains = [origin_domain, target_domain];
        let mut pair = Pair { origin, target, to, done, arrived, _domains };
        pair.send(5);
        pair.until(|pair| pair.arrived == [5] && !pair.done.is_empty());
        let has_memory = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&has_memory);
        let link = pair.origin.peers.find(to).and_then(|it| it.link.as_mut()).unwrap();
        link.own.backing = Some(Backing::with(move |arena, range| {
            if flag.load(Ordering::Relaxed) {
                arena.make_pages(range)
            } else {
                Err(room::no_memory())
            }
        }));
        assert!(pair.origin.message(to, 5000).unwrap().body().is_none(), "private memory");
        pair.done.clear();
        for len in [5000, 6, 200_000, 200] {
            pair.send(len);
        }
        pair.until(|pair| pair.done.len() == 4 && pair.arrived.len() == 3);
        assert_eq!(pair.arrived, [5, 6, 200]);
        let refused: Vec<_> = pair
            .done
            .drain(..)
            .filter_map(|it| match it {
                Completion::Done(Done { result: Err(failure), returned, .. }) => {
                    Some((failure, returned))
                }
                _ => None,
            })
            .collect();
        assert_eq!(refused.len(), 2);
        for (failure, returned) in refused {
            assert!(matches!(failure.error, Error::Limit { .. }), "{failure:?}");
            assert!(matches!(failure.reached, Reached::Never));
            let Returned::Message(message) = returned else { panic!("{returned:?} came back") };
            assert!([5000, 200_000].contains(&Message::len(&message)));
        }
        has_memory.store(true, Ordering::Relaxed);
        for len in [7000, 200_000] {
            pair.send(len);
        }
        pair.until(|pair| pair.arrived == [5, 6, 200, 7000, 200_000]);
    }
}
