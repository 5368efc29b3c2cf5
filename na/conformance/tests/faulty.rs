//! With faults that the contract allows, a plugin still passes; with dropped connections, every
//! accepted operation still completes exactly once.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use hg_na::{Address, Completion, Context, Error, Message, Op, OpId, OpenOptions, Plugin};
use hg_na_conformance::{Faults, Faulty, Mem};

fn refusals_and_delays() -> Faulty {
    let faults = Faults {
        seed: 1,
        refuse_one_in: 5,
        delay_one_in: 20,
        delay: Duration::from_micros(300),
        ..Faults::default()
    };
    Faulty::new(Mem::default(), faults)
}

hg_na_conformance::suite!(refusals_and_delays(), "mem://", in_process_only);

fn context(plugin: &dyn Plugin) -> Box<dyn Context> {
    let url = Address::new("mem://").expect("an address");
    let domain = plugin.open(&url, &OpenOptions::listening()).expect("it opens");
    domain.context(0).expect("its first context")
}

#[test]
fn with_dropped_connections_every_accepted_operation_completes_exactly_once() {
    let mut drops = 0;
    for seed in 0..50 {
        let faults = Faults {
            seed,
            refuse_one_in: 7,
            delay_one_in: 5,
            delay: Duration::from_micros(100),
            drop_one_in: 20,
        };
        let plugin = Faulty::new(Mem::default(), faults);
        let (mut a, mut b) = (context(&plugin), context(&plugin));
        let mut open: HashMap<OpId, u64> = HashMap::new();
        let mut batch = Vec::new();
        let mut peer = a.lookup(b.address()).unwrap();
        for token in 0..400 {
            let message = Message::copied(b"into an uncertain world");
            let op = match token % 3 {
                0 => Op::SendUnexpected { to: peer, message },
                1 => Op::SendExpected { to: peer, tag: token, message },
                _ => Op::RecvExpected { from: peer, tag: token },
            };
            match a.post(token, op) {
                Ok(id) => assert!(open.insert(id, token).is_none(), "{id:?} was used twice"),
                Err(rejected) => match rejected.error {
                    Error::Again => {}
                    Error::PeerGone(_) | Error::UnknownPeer => {
                        drops += 1;
                        peer = a.lookup(b.address()).unwrap();
                    }
                    error => panic!("refused with {error}"),
                },
            }
            step(&mut a, &mut b, &mut batch, &mut open);
        }
        for id in open.keys() {
            a.cancel(*id);
        }
        let started = Instant::now();
        while !open.is_empty() {
            step(&mut a, &mut b, &mut batch, &mut open);
            assert!(started.elapsed() < Duration::from_secs(60), "{open:?} never completed");
        }
    }
    assert!(drops > 100, "only {drops} connections were dropped");
}

fn step(
    a: &mut Box<dyn Context>,
    b: &mut Box<dyn Context>,
    batch: &mut Vec<Completion>,
    open: &mut HashMap<OpId, u64>,
) {
    b.progress(Instant::now(), batch).expect("progress works");
    batch.clear();
    a.progress(Instant::now(), batch).expect("progress works");
    for completion in batch.drain(..) {
        if let Completion::Done(done) = completion {
            assert_eq!(open.remove(&done.id), Some(done.token), "{done:?} came twice or unasked");
        }
    }
}
