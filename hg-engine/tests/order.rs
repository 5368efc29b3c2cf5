//! What a target builds on: the requests of an origin come in the order of their ids. Over the in-process reference
//! transport, whose other end is not an engine.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use hg_core::{header::Header, operations::OperationId};
use hg_engine::{Builder, Progress};
use hg_macros::rpc;
use hg_na::{Address, Completion, Context, OpenOptions, Plugin};
use hg_na_conformance::Mem;

mod hg;

/// What does not fit in a message of this transport.
const LARGE: usize = 300_000;

#[rpc(crate = crate::hg)]
fn call(bytes: &[u8]);

/// The ids of the requests that have come since the last look, in their order.
fn ids(context: &mut dyn Context) -> Vec<OperationId> {
    let mut done = Vec::new();
    context.progress(Instant::now(), &mut done).unwrap();
    let id = |completion| match completion {
        Completion::Unexpected { message, .. } => {
            Some(OperationId::from_bits(Header::decode(message.as_slice()).unwrap().0.id))
        }
        _ => None,
    };
    done.into_iter().filter_map(id).collect()
}

#[test]
fn requests_to_one_target_leave_in_the_order_of_their_ids() {
    let plugin = Mem::default();
    let domain = plugin.open(&Address::new("mem://").unwrap(), &OpenOptions::listening()).unwrap();
    let mut target = domain.context(0).unwrap();
    let builder = Builder::new().plugin(plugin).progress(Progress::Own);
    let origin = builder.open("mem://").unwrap();
    let peer = origin.lookup(target.address().as_str()).unwrap();
    let lens = [0, 40, 300, 5_000, 0, 60, 8, 100, 8, LARGE];
    let (mut came, mut calls) = (Vec::new(), Vec::new());
    let mut has_waited = false;
    for round in 0..8 {
        // While some wait for room, others are made.
        target.set_admission(round % 3 == 2);
        for (len, count) in lens.into_iter().cycle().zip(0..97) {
            let bytes = vec![1; len];
            let call_it = || origin.call(call, &peer, (&bytes,));
            match count % 4 {
                0 => drop(origin.notify(call, &peer, (&bytes,))),
                // Taken back: how far it has come by then decides whether it is sent.
                1 => drop(call_it()),
                _ => calls.push(call_it()),
            }
            if count % 7 == 0 {
                origin.progress(Duration::ZERO);
            }
        }
        came.extend(ids(target.as_mut()));
        has_waited |= came.len() < calls.len();
    }
    target.set_admission(true);
    loop {
        while origin.progress(Duration::ZERO) {}
        let more = ids(target.as_mut());
        if more.is_empty() {
            break;
        }
        came.extend(more);
    }
    assert!(has_waited && came.len() >= calls.len(), "{} came", came.len());
    for pair in came.windows(2) {
        assert!(pair[1].is_after(pair[0]), "{pair:?}");
    }
}
