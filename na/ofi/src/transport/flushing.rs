//! How what was handed to libfabric is seen off: by a flush, and before a context is closed.
//!
//! libfabric says when it is done with a frame, and nothing of what was injected. So a frame is lent behind that, a header alone: when it is done
//! with the frame, all before it has gone (`sends`). Gone means what libfabric's completion means: over tcp the kernel has the bytes, over shm they lie
//! in memory that the peer maps. A peer that takes nothing is waited for: a flush ends with its poster's patience, [`close`] after [`CLOSE_WAITS`], and
//! libfabric then drops what it still has.

use std::{
    mem,
    time::{Duration, Instant},
};

use hg_na_frames::FramedContext;
use hg_na_link::exchange::{self, Step};
use rustc_hash::FxHashMap;

use super::{OfiContext, flight_landed};
use crate::fabric::{Event, Fault};

/// How long closing waits for what libfabric still has.
const CLOSE_WAITS: Duration = Duration::from_secs(1);

/// Messages that a flush waits for: of each address the last one's number.
pub(super) type Awaited = FxHashMap<u64, u64>;

/// Whether everything that was posted before the first question has gone.
pub(super) fn flush(context: &mut OfiContext) -> bool {
    let (mut flush, mut broken) = (mem::take(&mut context.transport.flush), Vec::new());
    let is_over = flush.ask(context.links.serial(), |to| {
        let is_in_flight = context.transport.carries_up_to(to);
        let is_left = context.links.iter().any(|link| !link.queues.has_passed_on(to));
        !is_in_flight && !is_left && has_gone(context, &mut broken)
    });
    context.transport.flush = flush;
    broken.into_iter().for_each(|(place, fault)| context.way_broke(place, fault));
    is_over
}

/// Whether all has gone that was handed over when this was asked first. Those whose connections have ended are not waited for, nor those to whom the way is
/// found to be broken.
fn has_gone(context: &mut OfiContext, broken: &mut Vec<(u32, Fault)>) -> bool {
    let FramedContext { links, transport, .. } = context;
    let awaited = transport.awaited.take();
    let mut awaited: Awaited =
        awaited.unwrap_or_else(|| transport.endpoint().sends().unknown().collect());
    let places: Vec<u32> = match awaited.is_empty() {
        true => Vec::new(),
        false => links.iter().map(|link| link.peer.index()).collect(),
    };
    let mut is_over = true;
    for place in places {
        let Some(link) = links.at(place).filter(|link| link.way.own.is_open()) else { continue };
        let Some(address) = link.way.own.route.address() else { continue };
        let Some(number) = awaited.get(&address).copied() else { continue };
        let sends = transport.endpoint().sends();
        if sends.has_gone(address, number) {
            awaited.remove(&address);
            continue;
        }
        if !sends.is_told(address, number) {
            transport.asks = true;
            let asked = exchange::acknowledge(link, transport);
            transport.asks = false;
            match asked {
                Step::Broken(fault) => {
                    broken.push((place, fault));
                    awaited.remove(&address);
                    continue;
                }
                // It is asked again at a later time; where its own frames are out, when one of them comes back.
                Step::Stalled => _ = transport.starves(address, Instant::now()),
                Step::Left | Step::Idle => {}
            }
        }
        is_over = false;
    }
    transport.awaited = (!is_over).then_some(awaited);
    is_over
}

/// Sees off what libfabric still has, for a bounded time, and says goodbye to everybody.
pub(super) fn close(context: &mut OfiContext) {
    see_off(context, Instant::now() + CLOSE_WAITS);
    let all: Vec<_> = context.links.iter().map(|link| link.peer.index()).collect();
    all.into_iter().for_each(|place| context.say_goodbye(place));
    drop(context.transport.endpoint.take());
}

/// Waits for what libfabric still has; says how often it has looked.
pub(crate) fn see_off(context: &mut OfiContext, end: Instant) -> u32 {
    let (mut events, mut broken, mut looks) = (Vec::new(), Vec::new(), 0);
    // Another flush has perhaps begun.
    context.transport.awaited = None;
    while !context.is_broken() {
        let has_gone = has_gone(context, &mut broken);
        looks += 1;
        if context.transport.endpoint().poll(&mut events).is_err() {
            break;
        }
        let found = !events.is_empty();
        for event in events.drain(..) {
            match event {
                Event::Arrived(it) => context.transport.endpoint().was_seen(it),
                Event::Sent(note) => flight_landed(context, note, None),
                Event::Near(_)
                | Event::Moved(..)
                | Event::Unsent(..)
                | Event::Lost(..)
                | Event::Failed(_) => {}
            }
        }
        let is_out = context.transport.endpoint().sends().out() > 0;
        let now = Instant::now();
        // Others may go on sending.
        if (!found && !is_out && has_gone) || now >= end {
            break;
        }
        if !found && !has_gone {
            hear_awaited(context, now);
        }
    }
    looks
}

/// Hears whether those that are waited for have gone themselves.
fn hear_awaited(context: &mut OfiContext, now: Instant) {
    let FramedContext { links, transport, .. } = context;
    let Some(awaited) = &transport.awaited else { return };
    let is_awaited = |address: Option<u64>| address.is_some_and(|it| awaited.contains_key(&it));
    let of = links.iter().filter(|link| is_awaited(link.way.own.route.address()));
    let places: Vec<u32> = of.map(|link| link.peer.index()).collect();
    places.into_iter().for_each(|place| context.attend(place, now));
}
