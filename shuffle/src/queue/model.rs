//! What latency and skew do to throughput: the model of `shuffle/ARCHITECTURE.md` against the real queues, with a round trip for
//! each acknowledgement, and a relay between a sender and two receivers, one of which is slow.

use std::{collections::BTreeMap, rc::Rc};

use proptest::prelude::*;

use super::*;
use crate::message::{HEAD, Messages};

/// Bytes of a message's payload; one is a batch.
const MESSAGE: usize = 100;

fn now() -> Instant {
    static BEGIN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    *BEGIN
}

fn message(to: u32) -> Message<'static> {
    Message { kind: 0, source: 0, to, bytes: &[7; MESSAGE] }
}

/// A queue whose batches are acknowledged a round trip after they were sent, `service` after one another at least.
struct Way {
    queue: Queue<Rc<u64>>,
    round_trip: u64,
    service: u64,
    /// When which batch is acknowledged.
    due: BTreeMap<u64, u64>,
    last: u64,
    done: u64,
}

impl Way {
    fn new(mut queue: Queue<Rc<u64>>, round_trip: u64, service: u64) -> Self {
        // A batch is of its target, and no longer.
        queue.gathered = queue.target;
        Self { queue, round_trip, service, due: BTreeMap::new(), last: 0, done: 0 }
    }

    fn send(&mut self, clock: u64) {
        while let Some(batch) = self.queue.poll_batch(now) {
            self.last = (clock + self.round_trip).max(self.last + self.service);
            self.due.insert(batch.number, self.last);
        }
    }

    fn acknowledge(&mut self, clock: u64) {
        while let Some((number, due)) = self.due.first_key_value().map(|(n, due)| (*n, *due))
            && due <= clock
        {
            self.due.remove(&number);
            self.queue.acknowledge(number);
            self.done += 1;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_queue_carries_its_window_each_round_trip_or_what_its_receiver_takes_in(
        maxrpc in 1_u32..40, bytes_max in 1_u64..6_000, round_trip in 1_u64..200, service in 0_u64..20,
    ) {
        let queue = Queue::new(maxrpc, 1).with_bytes_max(bytes_max);
        let mut way = Way::new(queue, round_trip, service);
        let ticks = 20_000;
        for clock in 0..ticks {
            way.acknowledge(clock);
            way.send(clock);
            while !way.queue.would_wait() {
                way.queue.push(&message(1), now);
                way.send(clock);
            }
        }
        // A batch leaves while fewer bytes than that are under way.
        let by_bytes = bytes_max.div_ceil((MESSAGE + HEAD) as u64);
        let window = u64::from(maxrpc).min(by_bytes);
        let by_window = window * ticks / round_trip;
        let model = by_window.min(ticks.checked_div(service).unwrap_or(u64::MAX));
        // What is under way at the end, and the first round trip.
        let slack = window + 2 + model / 50;
        prop_assert!(way.done.abs_diff(model) <= slack, "{} batches, the model says {model}", way.done);
    }

    /// Messages to a slow rank and to a quick one come in the same batches: those to the quick one wait behind.
    #[test]
    fn a_slow_rank_slows_its_relay_down_to_its_own_rate_by_its_share(
        share in 2_u64..10, service in 4_u64..20, batch in 1_usize..8,
    ) {
        let target = batch * MESSAGE;
        let mut into = Queue::<Rc<u64>>::new(4, target);
        into.gathered = target;
        let (slow, quick) = (Queue::new(2, 1), Queue::new(2, 1));
        let mut onward = [Way::new(slow, 1, service), Way::new(quick, 1, 0)];
        let mut pending: BTreeMap<u64, Rc<u64>> = BTreeMap::new();
        let (mut sent, ticks) = (0, 40_000);
        for clock in 0..ticks {
            for way in &mut onward {
                way.acknowledge(clock);
                way.send(clock);
                way.queue.released.clear();
            }
            // A batch is acknowledged when none of its messages waits at the relay.
            let free = |pending: &BTreeMap<u64, Rc<u64>>| {
                pending.iter().find(|(_, parent)| Rc::strong_count(parent) == 1).map(|(number, _)| *number)
            };
            while let Some(number) = free(&pending) {
                pending.remove(&number);
                into.acknowledge(number);
            }
            loop {
                while let Some(batch) = into.poll_batch(now) {
                    let parent = Rc::new(batch.number);
                    for message in Messages::of(&batch.bytes).map(Result::unwrap) {
                        let way = &mut onward[message.to as usize];
                        way.queue.push_from(&message, &parent);
                        way.send(clock);
                    }
                    pending.insert(batch.number, parent);
                }
                if into.would_wait() {
                    break;
                }
                into.push(&message(u32::from(sent % share != 0)), now);
                sent += 1;
            }
        }
        let [slow, quick] = onward.map(|way| way.done);
        // The slow one takes in one message each `service`, and gets each `share`-th.
        let model = (ticks / service) * share;
        let total = slow + quick;
        prop_assert!(total.abs_diff(model) <= model / 20 + 100, "{total} messages, the model says {model}");
    }
}
