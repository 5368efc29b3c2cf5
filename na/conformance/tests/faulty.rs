//! With faults that the contract allows, a plugin still passes. (Dropped connections are a test of the
//! suite itself.)

use std::time::Duration;

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
