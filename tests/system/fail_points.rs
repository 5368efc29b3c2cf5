//! Death at each step of the protocol that `na/sm/src/fail.rs` names, on either side of a connection.

use std::{collections::BTreeSet, fs, path::Path};

use hg::{
    CallError, Engine, Peer, Started, Wait,
    bulk::TransferError,
    na::{Completion, Descriptor, Memory, Op, OpenOptions, Rights},
};
use nix::libc::SIGKILL;

use crate::{
    bulk::{from_hex, patterned, to_hex},
    common::{Child, Watchdog, Witness, falls_to, process::fds, settled},
    input::Raw,
    roles::{Settings, add, arrived, echo, kind_of},
    transports::open_over,
};

/// Steps that an origin passes, and how often before it dies there.
const ORIGIN: [(&str, &[u32]); 11] = [
    ("hello", &[1]),
    ("open", &[1]),
    ("reserve", &[1, 2, 9]),
    ("publish", &[1, 2, 20, 100]),
    ("part", &[1, 8, 9, 25, 40, 400]),
    ("published", &[1, 2, 20, 100]),
    ("ring", &[1, 2, 5]),
    ("copied", &[1, 2, 20, 100]),
    ("write-back", &[1, 2, 5]),
    ("park", &[1, 2, 5]),
    ("close", &[1]),
];

/// The same of a target.
const TARGET: [(&str, &[u32]); 10] = [
    ("welcome", &[1]),
    ("open", &[1]),
    ("reserve", &[1, 2, 9]),
    ("publish", &[1, 2, 20, 100]),
    ("published", &[1, 2, 20, 100]),
    ("ring", &[1, 2, 5]),
    ("copied", &[1, 2, 20, 100]),
    ("write-back", &[1, 2, 5]),
    ("park", &[1, 2, 5]),
    ("close", &[1]),
];

/// The step of a transfer that a process makes by itself.
const TRANSFER: &str = "pinned";

/// Steps of a transfer where CMA is denied: of the one that asks, and of the one that serves.
const ASKING: [(&str, &[u32]); 2] = [("asked", &[1, 2, 20]), ("taken", &[1, 2, 20])];
const SERVING: [(&str, &[u32]); 1] = [("served", &[1, 2, 20])];
/// CMA is off on both sides.
const DENIED: &str = "denied+sm://";

/// Passes every step: messages of one slot, of several, and long ones both ways, with sleeps between them.
fn work(engine: &Engine, peer: &Peer) -> Result<(), CallError> {
    let (wide, long, longer) = (vec![3; 150], vec![1; 3000], vec![2; 100_000]);
    for round in 0..20 {
        engine.call(add, peer, (1, 2)).wait()?;
        engine.call(echo, peer, (&wide,)).wait()?;
        engine.call(echo, peer, (&long,)).wait()?;
        let calls: Vec<_> = (0..100).map(|number| engine.call(add, peer, (number, 1))).collect();
        drop(engine.notify(add, peer, (1, 2)));
        if round % 4 == 0 {
            engine.call(echo, peer, (&longer,)).wait()?;
        }
        for call in calls {
            call.wait()?;
        }
    }
    Ok(())
}

/// Works, and ends in good order, unless it dies before.
pub(crate) fn worker(settings: &Settings) {
    let engine = settings.builder().wait(Wait::Block).open("sm://").expect("an engine");
    let peer = engine.lookup(settings.target()).expect("an address");
    work(&engine, &peer).expect("the target lives");
}

#[test]
fn origins_that_die_at_any_step_leave_their_target_as_it_was() {
    let _watchdog = Watchdog::start();
    let (target, address) = Child::target("wait=block");
    let witness = Witness::of(&address);
    let calm = settled(|| fds(target.pid()));
    for (label, times) in ORIGIN {
        for time in times {
            let point = format!("{label}:{time}");
            let to = format!("to={address}");
            let mut origin = Child::start_with("worker", &to, &[("HG_FAIL_POINT", &point)]);
            assert_eq!(origin.died_of(), Some(SIGKILL), "{point}: the step was not passed");
            let left = falls_to(calm, || fds(target.pid()));
            assert!(left <= calm, "{point}: {calm} descriptors became {left}");
            witness.is_served_on();
        }
    }
    witness.testifies();
}

#[test]
fn calls_to_targets_that_die_at_any_step_end_with_peer_gone() {
    let _watchdog = Watchdog::start();
    let engine = hg::builder().wait(Wait::Block).open("sm://").unwrap();
    for (label, times) in TARGET {
        for time in times {
            let point = format!("{label}:{time}");
            let environment = [("HG_FAIL_POINT", point.as_str())];
            let mut target = Child::start_with("target", "wait=block", &environment);
            let peer = engine.lookup(target.hear()).unwrap();
            if label == "close" {
                work(&engine, &peer).unwrap();
                target.close_input();
            } else {
                let error = loop {
                    if let Err(error) = work(&engine, &peer) {
                        break error;
                    }
                };
                assert_eq!(kind_of(&error), "PeerGone", "{point}: {error}");
            }
            assert_eq!(target.died_of(), Some(SIGKILL), "{point}: the step was not passed");
            let error = loop {
                // After its last word the peer is certainly gone.
                if let Err(error) = engine.call(arrived, &peer, ()).wait() {
                    break error;
                }
            };
            assert!(matches!(error, CallError::PeerGone { .. }), "{point}: {error}");
            let again = engine.call(add, &peer, (1, 2)).wait().unwrap_err();
            assert!(matches!(again, CallError::PeerGone { started: Started::No, .. }), "{again}");
        }
    }
    assert_eq!(engine.calls_under_way(), 0);
}

/// Gets from memory of the target's; its descriptor is an argument, in hexadecimal.
pub(crate) fn getter(settings: &Settings) {
    let mut raw = Raw::open(&OpenOptions::default());
    let from = raw.lookup(settings.target());
    let text = settings.text("descriptor").expect("this role needs `descriptor=HEX`");
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    let bytes: Vec<u8> = (0..text.len()).step_by(2).map(byte).collect();
    let remote = Descriptor::decode(&bytes).expect("a descriptor");
    let len = remote.len();
    let room = Memory::from(vec![0; usize::try_from(len).expect("it fits")]);
    let region = raw.domain().register(room, Rights::all()).expect("memory of our own");
    let local = region.slice(0, len).expect("all of it");
    let remote = remote.slice(0, len).expect("all of it");
    assert!(raw.transfer(&Op::Get { from, local, remote }));
}

#[test]
fn memory_that_a_dead_process_has_pinned_can_be_unregistered() {
    let _watchdog = Watchdog::start();
    let mut owner = Raw::open(&OpenOptions::listening());
    for time in 1..=3 {
        let memory = Memory::from(vec![7; 1 << 20]);
        let region = owner.domain().register(memory, Rights::READ).unwrap();
        let hex: String =
            region.descriptor().encode().iter().map(|byte| format!("{byte:02x}")).collect();
        let settings = format!("to={} descriptor={hex}", owner.address());
        let environment = [("HG_FAIL_POINT", TRANSFER)];
        let mut getter = Child::start_with("getter", &settings, &environment);
        let is_gone = |completion: &Completion| matches!(completion, Completion::Gone { .. });
        // The owner makes progress while the getter connects, pins and dies.
        while !owner.take().iter().any(is_gone) {}
        assert_eq!(getter.died_of(), Some(SIGKILL), "{time}: the step was not passed");
        let bytes = region.unregister().unwrap().into_vec().unwrap();
        assert_eq!(bytes, vec![7; 1 << 20]);
    }
}

#[test]
fn copies_between_processes_that_die_at_any_step_end_and_leave_memory_free() {
    let _watchdog = Watchdog::start();
    let owner = open_over(hg::builder().listen(true), DENIED).unwrap();
    for (label, times) in ASKING {
        for time in times {
            let point = format!("{label}:{time}");
            let bulk = owner.expose(patterned(8 << 20), Rights::all()).unwrap();
            let what = to_hex(&bulk.bound_descriptor());
            for push in ["", " push=yes"] {
                let arguments = format!("url={DENIED} what={what}{push}");
                let environment = [("HG_FAIL_POINT", point.as_str())];
                let mut puller = Child::start_with("bulk-mover", &arguments, &environment);
                assert_eq!(puller.died_of(), Some(SIGKILL), "{point}: the step was not passed");
            }
            assert_eq!(bulk.into_vec().unwrap().len(), 8 << 20, "{point}");
        }
    }
    for (label, times) in SERVING {
        for time in times {
            let point = format!("{label}:{time}");
            let environment = [("HG_FAIL_POINT", point.as_str())];
            let mut child =
                Child::start_with("bulk-owner", &format!("url={DENIED} memory=heap"), &environment);
            let what = from_hex(&child.hear());
            let peer = owner.owner_of(&what).unwrap();
            let room = vec![0; usize::try_from(what.len()).unwrap()];
            let local = owner.expose(room, Rights::empty()).unwrap();
            let error = owner.pull(&peer, &what, &local).wait().unwrap_err();
            assert!(matches!(error, TransferError::PeerGone { .. }), "{point}: {error}");
            assert_eq!(child.died_of(), Some(SIGKILL), "{point}: the step was not passed");
            assert!(local.into_vec().is_ok(), "{point}");
        }
    }
}

#[test]
fn every_labelled_step_is_tested() {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("na/sm/src")];
    let mut labels = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
                continue;
            }
            let text = fs::read_to_string(entry.path()).unwrap();
            let calls = text.split("fail::point(\"").skip(1);
            labels.extend(calls.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        }
    }
    let steps = ORIGIN.iter().chain(&TARGET).chain(&ASKING).chain(&SERVING);
    let tested = steps.map(|(label, _)| *label).chain([TRANSFER]);
    assert_eq!(tested.map(str::to_owned).collect::<BTreeSet<_>>(), labels);
}
