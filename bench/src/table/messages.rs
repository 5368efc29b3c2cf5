//! The lines about messages from every rank to every other: `shuffle-runner` with four ranks and 32-byte payloads.

use super::claim::{Claim, Figures, Judged, Plain, Quantity, Run};
use crate::stats::Better::Larger;

/// The lines.
pub(super) fn runs() -> Vec<Run> {
    vec![
        shuffle("shuffle/sm", "shuffle --no-mpi", [(15e6, 40e6), (1e6, 3e6)]),
        shuffle("shuffle/tcp", "shuffle --no-mpi --nodes 2x2", [(8e6, 20e6), (0.15e6, 0.25e6)]),
    ]
}

fn shuffle(name: &str, command: &str, [batched, unbatched]: [(f64, f64); 2]) -> Run {
    let claim = |way: &str, (must, aim): (f64, f64)| {
        let figure = format!("shuffle_{way}");
        let judge = move |figures: &Figures| {
            let line = figures.of(&figure)?;
            let limit = Quantity::of(line, "limit_median")?;
            let judged = Judged::figure(Quantity::median(line)?, "for itself", Larger, must, aim);
            Some(judged.beside(line["limit"].as_str()?, limit))
        };
        Claim::new(format!("{name}/{way}"), format!("messages a second of 4 ranks, {way}"), judge)
    };
    Run {
        commands: vec![Plain::repeated(command, REPETITIONS)],
        claims: vec![claim("batched", batched), claim("unbatched", unbatched)],
    }
}

/// Each takes as long as it is told to.
const REPETITIONS: u32 = 5;
