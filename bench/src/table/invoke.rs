//! The lines about calls between workers.

use serde_json::json;

use super::claim::{Claim, Figures, Judged, Plain, Quantity, Run};
use crate::stats::Better::{Larger, Smaller};

/// The lines.
pub(super) fn runs() -> Vec<Run> {
    let mut claims: Vec<Claim> =
        [(8, 30e6, 40e6, 80e6), (64, 15e6, 20e6, 35e6), (256, 5e6, 7e6, 10e6)]
            .into_iter()
            .map(|(size, far, near, aim)| {
                let what = format!("packed calls of {size} bytes a second");
                Claim::new(format!("invoke/trad/{size}"), what, move |figures| {
                    let (must, cores) =
                        if are_near(figures)? { (near, "near") } else { (far, "far") };
                    let line = figures.with("invoke_trad", "size", &json!(size))?;
                    let limit = Quantity::of(line, "limit_median")?;
                    let judged = Judged::figure(Quantity::median(line)?, cores, Larger, must, aim);
                    Some(judged.beside(line["limit"].as_str()?, limit))
                })
            })
            .collect();
    let word = || ("size", json!(8));
    let tcp = ("url", json!("tcp://127.0.0.1"));
    claims.extend([
        Claim::new("invoke/blocks", "bytes of calls of 256 beside a stream of blocks", |figures| {
            let line = figures.with("calls_to_blocks", "size", &json!(256))?;
            let ratio = Quantity::median(line)?;
            Some(Judged::figure(ratio, "x block_stream", Larger, 0.5, None))
        }),
        rate("invoke/plain", "calls, a message each", "invoke_plain", word(), (10e6, Some(16e6))),
        beside("invoke/ovfl", "packed only when the way is full", "invoke_ovfl", (Larger, 0.95)),
        rate("invoke/tcp", "packed calls over TCP", "invoke_trad", tcp, (10e6, None)),
        rate("invoke/thread", "calls to a thread beside", "invoke_thread", word(), (20e6, None)),
        beside("invoke/notified", "a call known to have run", "invoke_notified", (Smaller, 1.15)),
    ]);
    vec![Run { commands: vec![Plain::repeated("invoke", 20)], claims }]
}

/// Whether the two cores are near each other in this run.
fn are_near(figures: &Figures) -> Option<bool> {
    let round_trip = Quantity::median(figures.of("cache_line_round_trip")?)?;
    Some(round_trip.value < NEAR_BELOW_US)
}

/// A cache line and back takes less where they are: what is promised there, and what where they are far, lie on both sides of this.
const NEAR_BELOW_US: f64 = 0.25;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_calls_are_promised_where_cores_are_near() {
        let must = |round_trip: f64, size: u64| {
            let line =
                json!({ "figure": "cache_line_round_trip", "median": round_trip, "unit": "us" });
            let calls = json!({
                "figure": "invoke_trad", "size": size, "median": 9e6, "unit": "1/s",
                "limit": "ring_rate", "limit_median": 50e6,
            });
            let (figures, name) = (Figures(vec![line, calls]), format!("invoke/trad/{size}"));
            let runs = runs();
            let claim = runs[0].claims.iter().find(|it| it.name == name).unwrap();
            (claim.judge)(&figures).unwrap().must
        };
        assert_eq!([8, 64, 256].map(|size| must(0.13, size)), [40e6, 20e6, 7e6].map(Some));
        assert_eq!([8, 64, 256].map(|size| must(0.47, size)), [30e6, 15e6, 5e6].map(Some));
    }
}
