//! Stories with real processes hold, over shared memory and over sockets.

use std::{
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use sim::real::{self, Transport};

/// Stories that are run over each transport with every test command.
const SEEDS: u64 = 200;

/// Of them run at a time: they mostly wait.
const THREADS: usize = 3;

fn hold(transport: Transport) {
    let program = Path::new(env!("CARGO_BIN_EXE_sim"));
    let next = AtomicU64::new(0);
    // Relaxed: nothing else hangs on it.
    let first_failure = || {
        std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)))
            .take_while(|seed| *seed < SEEDS)
            .find_map(|seed| {
                let failure = real::run(seed, transport, program).err()?;
                Some(real::describe(seed, transport, &failure))
            })
    };
    thread::scope(|scope| {
        let runs = [(); THREADS].map(|()| scope.spawn(first_failure));
        for failure in runs.map(|run| run.join().expect("a run does not panic")) {
            assert!(failure.is_none(), "{}", failure.unwrap_or_default());
        }
    });
}

#[test]
fn processes_that_share_memory_keep_every_promise_while_others_stop_die_and_return() {
    hold(Transport::Sm);
}

#[test]
fn processes_with_sockets_keep_every_promise_while_others_stop_die_and_return() {
    hold(Transport::Tcp);
}
