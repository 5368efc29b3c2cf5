//! The simulated transport keeps the contract: without a story, in threads of the machine, where everything happens at once.

hg_na_conformance::suite!(
    sim::Simulation::at_once(sim::net::Rules::plain()),
    "sim://",
    in_process_only
);
