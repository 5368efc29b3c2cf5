//! A forked child, where a thread that it lacks has held the state's lock at that moment.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use hg_macros::rpc;
use hg_na_conformance::Mem;
use watchdog::in_time;

use crate::{Builder, Progress, lock::Mutex, pool::tests::Refusing};

mod hg {
    pub(crate) mod __private {
        pub(crate) use hg_core::rpc::*;
    }
}

#[rpc(crate = crate::port::tests::hg)]
fn late() -> Vec<u8>;

#[test]
fn answers_that_a_forked_child_gives_wait_for_no_lock_of_a_thread_that_it_lacks() {
    let (plugin, platform) = (Mem::default(), Arc::new(Refusing::default()));
    let builder = || Builder::new().plugin(plugin.clone()).progress(Progress::Own).listen(true);
    let target = builder().platform(Arc::clone(&platform) as _).open("mem://").expect("a target");
    let origin = builder().open("mem://").expect("an origin");
    let answers = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&answers);
    let keep = move |_: &_, (), answer| kept.lock().push(answer);
    target.serve_later(late, keep).expect("a fresh registry");
    let peer = origin.lookup(target.address()).expect("an address");
    let calls: Vec<_> = (0..4).map(|_| origin.call(late, &peer, ())).collect();
    let start = Instant::now();
    while answers.lock().len() < calls.len() {
        origin.progress(Duration::ZERO);
        target.progress(Duration::ZERO);
        in_time!(start, "the calls never come");
    }
    let port = Arc::clone(&target.port);
    let held = port.state.lock();
    platform.process.store(1, Ordering::SeqCst);
    let mut answers = std::mem::take(&mut *answers.lock());
    drop(answers.pop());
    // In the message, in memory of the transport's, and by bulk.
    for (answer, len) in answers.into_iter().zip([8, 4_000, 1 << 20]) {
        answer.send(Ok(vec![7; len]));
    }
    drop(held);
    platform.process.store(0, Ordering::SeqCst);
    drop(calls);
}
