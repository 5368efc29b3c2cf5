//! The lines about calls between workers.

use serde_json::json;

use super::claim::{Claim, Figures, Judged, Plain, Quantity, Run};
use crate::stats::Better::{Larger, Smaller};

/// The lines.
pub(super) fn runs() -> Vec<Run> {
    let mut claims: Vec<Claim> = [(8, 30e6, 80e6), (64, 15e6, 35e6), (256, 5e6, 10e6)]
        .into_iter()
        .map(|(size, must, aim)| {
            let key = ("size", json!(size));
            let what = format!("packed calls of {size} bytes a second");
            rate(&format!("invoke/trad/{size}"), &what, "invoke_trad", key, (must, Some(aim)))
        })
        .collect();
    let word = || ("size", json!(8));
    let tcp = ("url", json!("tcp://127.0.0.1"));
    claims.extend([
        Claim::new("invoke/blocks", "bytes of calls of 256 beside a stream of blocks", |figures| {
            let line = figures.with("calls_to_blocks", "size", &json!(256))?;
            let ratio = Quantity::median(line)?;
            Some(Judged::figure(ratio, "invoke_blocks", Larger, 0.5, None))
        }),
        rate("invoke/plain", "calls, a message each", "invoke_plain", word(), (10e6, Some(16e6))),
        beside("invoke/ovfl", "packed only when the way is full", "invoke_ovfl", (Larger, 0.95)),
        rate("invoke/tcp", "packed calls over TCP", "invoke_trad", tcp, (10e6, None)),
        rate("invoke/thread", "calls to a thread beside", "invoke_thread", word(), (20e6, None)),
        beside("invoke/notified", "a call known to have run", "invoke_notified", (Smaller, 1.15)),
    ]);
    vec![Run { commands: vec![Plain::repeated("invoke", 20)], claims }]
}

fn rate(
    name: &str,
    what: &str,
    figure: &'static str,
    (key, value): (&'static str, serde_json::Value),
    (must, aim): (f64, Option<f64>),
) -> Claim {
    Claim::new(name, what, move |figures: &Figures| {
        let line = figures.with(figure, key, &value)?;
        let limit = Quantity::of(line, "limit_median")?;
        let judged = Judged::figure(Quantity::median(line)?, "for itself", Larger, must, aim);
        Some(judged.beside(line["limit"].as_str()?, limit))
    })
}

fn beside(
    name: &str,
    what: &str,
    figure: &'static str,
    (better, must): (crate::stats::Better, f64),
) -> Claim {
    Claim::new(name, what, move |figures: &Figures| {
        Judged::ratio(figures.of(figure)?, better, must, must)
    })
}
