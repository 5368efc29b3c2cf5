//! A process that has few mappings left makes no connection and takes none, and says which limit that is.

use std::{sync::atomic::Ordering, time::Instant};

use hg_na::{Completion, Context as _, GoneReason};
use hg_na_parts::limits::number_in;
use watchdog::{alone, in_time};

use super::{Pair, open};
use crate::{
    os::room::MAPPED,
    rendezvous::{
        packet::{PACKET_MAX, Packet},
        socket::{Received, Socket},
    },
};

const NAMED: &str = "vm.max_map_count";

#[test]
fn who_has_few_mappings_left_connects_to_nobody_and_accepts_nobody_and_says_why() {
    // What it pretends to have mapped is of its process.
    alone(few_mappings_left);
}

fn few_mappings_left() {
    let limit = number_in("/proc/sys/vm/max_map_count");
    let mut pair = Pair::strangers();
    let (shared, mut accepting) = open();
    MAPPED.fetch_add(limit, Ordering::Relaxed);
    pair.send(5);
    pair.until(|pair| pair.done.iter().any(|it| matches!(it, Completion::Gone { .. })));
    let Some(Completion::Gone { reason: GoneReason::Exhausted(why), .. }) = pair.done.pop() else {
        panic!("it connects")
    };
    assert!(why.contains(NAMED), "{why}");
    let socket = Socket::connect(&shared.name, 0).unwrap();
    let (start, mut buffer) = (Instant::now(), [0; PACKET_MAX]);
    let words = loop {
        in_time!(start, "nobody answers");
        accepting.waiter.ask(|_| true).unwrap();
        accepting.progress(Instant::now(), &mut Vec::new()).unwrap();
        if let Received::Message { len, .. } = socket.recv(&mut buffer).unwrap() {
            break Packet::decode(&buffer[..len]).unwrap();
        }
    };
    assert!(matches!(&words, Packet::Refuse(why) if why.contains(NAMED)), "{words:?}");
    MAPPED.fetch_sub(limit, Ordering::Relaxed);
    pair.to = pair.origin.lookup(pair.target.address()).unwrap();
    pair.send(7);
    pair.until(|pair| pair.arrived == [7]);
}
