//! Providers whose cards no machine here has: the machine's libfabric tcp stands in for them, and demands what their pages say that they
//! do (`tests/imitation/providers.c`).

use std::{env, process::Command};

use hg_na::{Completion, Memory, Op, Rights, Sleep};
use hg_na_ofi::PATH_VARIABLE;

use super::{
    MARK,
    cards::{imitation, skipped},
    greet, open, said, until,
};

/// Set in a process that opens one of them.
const PROVIDER: &str = "HG_TEST_PROVIDER";

/// Sends messages, and moves memory both ways, in frames and lent; says how an idle context sleeps.
#[test]
#[expect(clippy::print_stdout, reason = "its one word to its parent")]
fn a_process_over_a_provider() {
    let Ok(provider) = env::var(PROVIDER) else { return };
    let opened = open(&format!("ofi+{provider}://"), &[("lifeline", "127.0.0.1")]);
    let domain = match opened {
        Ok(domain) => domain,
        Err(error) => return println!("{MARK}{error}"),
    };
    let (mut one, mut other) = (domain.context(0).unwrap(), domain.context(1).unwrap());
    greet(&mut one, &mut other);
    greet(&mut other, &mut one);
    let to = one.lookup(other.address()).unwrap();
    // Longer than is injected, of one frame and of two.
    for len in [1000, 16_000] {
        let message = vec![7; len].into();
        one.post(1, Op::SendUnexpected { to, message }).unwrap();
        let came = |it: &Completion| matches!(it, Completion::Unexpected { message, .. } if message.len() == len);
        until(&mut [&mut one, &mut other], |seen| seen[1].iter().any(came));
    }
    for len in [1000, 200_000] {
        let far = domain.register(Memory::from(vec![0; len]), Rights::all()).unwrap();
        for (is_put, byte) in [(true, 9), (false, 0)] {
            let near = domain.register(Memory::from(vec![byte; len]), Rights::all()).unwrap();
            let local = near.slice(0, len as u64).unwrap();
            let remote = far.descriptor().slice(0, len as u64).unwrap();
            let op = match is_put {
                true => Op::Put { to, local, remote },
                false => Op::Get { from: to, local, remote },
            };
            one.post(2, op).unwrap();
            until(&mut [&mut one, &mut other], |seen| {
                let done = seen[0].iter().find_map(|it| match it {
                    Completion::Done(done) if done.token == 2 => Some(done.result.clone()),
                    _ => None,
                });
                done.inspect(|result| assert!(result.is_ok(), "{result:?}")).is_some()
            });
            let bytes = near.unregister().unwrap().into_vec().unwrap();
            assert!(bytes.iter().all(|byte| *byte == 9), "{is_put} {len}");
        }
    }
    let sleep = domain.caps().sleep;
    drop((one, other, domain));
    println!("{MARK}{sleep:?}");
}

#[test]
fn providers_get_what_they_demand_and_are_polled_in_steps_where_there_is_nothing_to_wait_on() {
    let Some(library) = imitation("providers") else {
        return skipped(
            "providers_get_what_they_demand_and_are_polled_in_steps_where_there_is_nothing_to_wait_on",
        );
    };
    let sleeps = format!("{:?}", Sleep::Descriptor);
    for (provider, sleep) in
        [("efa", "Steps"), ("psm2", "Steps"), ("psm3", "Steps"), ("opx", "Steps"), ("cxi", &sleeps)]
    {
        let output = Command::new(env::current_exe().unwrap())
            .args(["--exact", "providers::a_process_over_a_provider", "--nocapture"])
            .env(PATH_VARIABLE, &library)
            .env(PROVIDER, provider)
            .output()
            .unwrap();
        let said = said(&output);
        assert!(said.starts_with(sleep) && output.status.success(), "{provider}: {said}");
    }
}
