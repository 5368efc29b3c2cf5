//! Contexts of this process, one in the hands of the other: what only shows inside.

mod few_mappings;
mod left_behind;
mod taken_back;
mod told_later;
mod unaccepted;
mod waiting;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use hg_na::{
    Address, Completion, Context, Done, Error, Message, Op, OpenOptions, Peer, Reached, Returned,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use watchdog::in_time;

use crate::{arena::RESERVATIONS, context::SmContext, domain::Shared, link::MakePages, os::room};

/// Whether the system makes pages for the test below.
static HAS_MEMORY: AtomicBool = AtomicBool::new(false);

fn open() -> (Arc<Shared>, SmContext) {
    open_with(&[])
}

fn open_with(settings: &[(&str, &str)]) -> (Arc<Shared>, SmContext) {
    let mut options = OpenOptions::listening();
    options.settings = settings.iter().map(|&(name, value)| (name.into(), value.into())).collect();
    let shared = Shared::open(&Address::new("sm://").unwrap(), &options).unwrap();
    let context = SmContext::open(&shared, 0, None).unwrap();
    (shared, context)
}

struct Pair {
    origin: SmContext,
    target: SmContext,
    to: Peer,
    done: Vec<Completion>,
    arrived: Vec<usize>,
    domains: [Arc<Shared>; 2],
}

impl Pair {
    /// Two that have exchanged a message.
    fn connected() -> Self {
        let mut pair = Self::strangers();
        pair.send(5);
        pair.until(|pair| pair.arrived == [5] && !pair.done.is_empty());
        pair.done.clear();
        pair
    }

    fn strangers() -> Self {
        let ((origin_domain, mut origin), (target_domain, target)) = (open(), open());
        let to = origin.lookup(target.address()).unwrap();
        let domains = [origin_domain, target_domain];
        Self { origin, target, to, done: Vec::new(), arrived: Vec::new(), domains }
    }

    fn until(&mut self, mut holds: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            in_time!(start, "it never happened");
            let mut arrived = Vec::new();
            for (context, into) in
                [(&mut self.origin, &mut self.done), (&mut self.target, &mut arrived)]
            {
                context.waiter.ask(|_| true).unwrap();
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

fn falls_asleep(context: &mut SmContext) {
    let start = Instant::now();
    while !context.may_sleep() {
        in_time!(start, "it never sleeps");
        context.progress(Instant::now(), &mut Vec::new()).unwrap();
    }
}

/// Whether a wait would return at once.
fn ends_a_sleep(context: &SmContext) -> bool {
    let waiter = context.waiter();
    let mut question = [PollFd::new(waiter.fd().unwrap(), PollFlags::POLLIN)];
    poll(&mut question, PollTimeout::ZERO).unwrap() > 0
}

#[test]
fn where_memory_is_counted_and_used_up_long_messages_are_refused_by_name_and_short_ones_flow() {
    let mut pair = Pair::connected();
    let to = pair.to;
    let link = pair.origin.peers.find(to).and_then(|it| it.link.as_mut()).unwrap();
    link.own.make_pages = Some(|arena, range| match HAS_MEMORY.load(Ordering::Relaxed) {
        true => arena.make_pages(range),
        false => Err(room::no_memory()),
    });
    assert!(pair.origin.message(to, 5000).unwrap().body().is_none(), "private memory");
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
    HAS_MEMORY.store(true, Ordering::Relaxed);
    for len in [7000, 200_000] {
        pair.send(len);
    }
    pair.until(|pair| pair.arrived == [5, 6, 200, 7000, 200_000]);
}

#[test]
fn where_memory_is_used_up_what_finds_none_leaves_the_places_behind_a_message_to_others() {
    let mut pair = Pair::connected();
    let to = pair.to;
    let make_pages = |pair: &mut Pair, make: Option<MakePages>| {
        let link = pair.origin.peers.find(to).and_then(|it| it.link.as_mut()).unwrap();
        link.own.make_pages = make;
    };
    let kept = pair.origin.message(to, 5000).unwrap();
    make_pages(&mut pair, Some(|_, _| Err(room::no_memory())));
    for _ in 0..2 * RESERVATIONS {
        assert!(pair.origin.message(to, 5000).unwrap().body().is_none(), "private memory");
    }
    make_pages(&mut pair, None);
    assert!(pair.origin.message(to, 5000).unwrap().body().is_some(), "a place behind {kept:?}");
}
