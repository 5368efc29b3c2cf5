//! The lines about calls over shared memory, and about what peers cost.
//!
//! R is the `cache_line_round_trip` of the same command. How many calls with 16 in flight are promised
//! depends on where the two cores are to each other: [`NEAR`] and [`FAR`], and on the line through both
//! for any R between.

use serde_json::{Value, json};

use super::claim::{Claim, Figures, Judged, Plain, Quantity, Run};
use crate::stats::Better::{Larger, Smaller};

/// The lines.
pub(super) fn runs() -> Vec<Run> {
    let mut runs = vec![
        Run::one(
            Plain::repeated("rate --wait spin", 200),
            Claim::new("call/spin", "8-byte call, spinning, one in flight", spinning),
        ),
        Run::one(
            Plain::once("instructions --repetitions 1"),
            Claim::new("call/instructions", "instructions per 8-byte call and side", instructions),
        ),
        Run::one(
            Plain::repeated("rate --wait spin --inflight 16", 200),
            Claim::new("call/16", "8-byte calls, spinning, 16 in flight", many),
        ),
        Run::one(
            Plain::once("first"),
            Claim::new("call/first", "the first call to a new peer", |figures| {
                let first = Quantity::median(figures.of("first_call")?)?;
                Some(Judged::figure(first, "250 us", Smaller, 250.0, None))
            }),
        ),
    ];
    runs.extend(loaded());
    for (size, name) in [(4096, "4KiB"), (65536, "64KiB")] {
        runs.push(Run::one(
            Plain::repeated(format!("rate --wait spin --size {size}"), 60),
            Claim::new(format!("call/{name}"), format!("call with {name}, spinning"), argument),
        ));
    }
    runs.extend([
        Run::one(
            Plain::repeated("rate --wait block", 100),
            Claim::new("call/block", "8-byte call, both sides blocking", |figures| {
                Judged::rounds(figures, figures.of("call")?, "call_to_limit", Smaller, 1.2, 1.08)
            }),
        ),
        Run::one(
            Plain::repeated("rate --wait adaptive", 100),
            Claim::new("call/adaptive", "8-byte call, adaptive, back to back", |figures| {
                let ratio = Quantity::median(figures.of("adaptive_to_spinning")?)?;
                Some(Judged::figure(ratio, "adaptive / spinning", Smaller, 1.2, 1.05))
            }),
        ),
        system_calls(),
        Run::one(
            Plain::once("idle --seconds 5"),
            Claim::new("peers/idle", "idle engines, the busiest of all", idle),
        ),
        memory(),
        Run::one(
            Plain::repeated("rate --wait spin --peers 999", 60),
            Claim::new("peers/1000", "a call to a target of 1,000 peers", |figures| {
                let ratio = Quantity::median(figures.of("crowded_to_alone")?)?;
                Some(Judged::figure(ratio, "1,000 peers / 1 peer", Smaller, 1.1, None))
            }),
        ),
        soak(),
        faults(),
    ]);
    runs
}

fn spinning(figures: &Figures) -> Option<Judged> {
    let call = figures.of("call")?;
    let limit = Quantity::of(call, "limit_median")?;
    let (must, aim) = (limit.value + 0.14, limit.value + 0.09);
    let formula = "R + 0.14 us; R + 0.09 us";
    Some(Judged::figure(Quantity::median(call)?, formula, Smaller, must, aim).beside("R", limit))
}

fn instructions(figures: &Figures) -> Option<Judged> {
    let counted = Quantity::median(figures.of("instructions_per_call_and_side")?)?;
    Some(Judged::figure(counted, "", Smaller, 700.0, 450.0))
}

fn many(figures: &Figures) -> Option<Judged> {
    let limit = Quantity::median(figures.of("cache_line_round_trip")?)?;
    let (must, aim) = rates_promised(limit.value);
    let formula = "11 M/s near .. 5.5 M/s far; 14 .. 8";
    let rate = Quantity::median(figures.of("call")?)?;
    Some(Judged::figure(rate, formula, Larger, must, aim).beside("R", limit))
}

/// Calls a second with 16 in flight that must be, and are aimed at, where a cache line takes so long.
fn rates_promised(round_trip_us: f64) -> (f64, f64) {
    let (near, far) = (NEAR, FAR);
    let way = (round_trip_us - near.round_trip_us) / (far.round_trip_us - near.round_trip_us);
    let between = |near: f64, far: f64| near + (far - near) * way.clamp(0.0, 1.0);
    (between(near.must, far.must), between(near.aim, far.aim))
}

/// A placement of two cores, and the calls a second that are promised there.
struct Promised {
    round_trip_us: f64,
    must: f64,
    aim: f64,
}

const NEAR: Promised = Promised { round_trip_us: 0.13, must: 11e6, aim: 14e6 };
const FAR: Promised = Promised { round_trip_us: 0.47, must: 5.5e6, aim: 8e6 };

/// Many calls in flight, and many clients.
fn loaded() -> [Run; 3] {
    [
        Run::one(
            Plain::repeated("rate --wait spin --inflight 16 --cancelled 1", 60),
            Claim::new("call/cancelled", "the same after a call that was cancelled", |figures| {
                let ratio = Quantity::median(figures.of("with_cancelled_to_without")?)?;
                Some(Judged::figure(ratio, "with / without", Larger, 0.97, None))
            }),
        ),
        Run::one(
            Plain::repeated("rate --wait spin --inflight 65 --beside 16", 60),
            Claim::new("call/65", "the same with 65 in flight", |figures| {
                let ratio = Quantity::median(figures.of("call_to_other_in_flight")?)?;
                Some(Judged::figure(ratio, "65 / 16 in flight", Larger, 0.97, None))
            }),
        ),
        clients(),
    ]
}

fn clients() -> Run {
    let judged = |name: &'static str, formula: &'static str, must: f64| {
        move |figures: &Figures| {
            let ratio = Quantity::median(figures.of(name)?)?;
            Some(Judged::figure(ratio, formula, Larger, must, None))
        }
    };
    let one = judged("clients_to_one", "eight / one", 0.6);
    let block = judged("adaptive_to_block", "adaptive / blocking", 1.0);
    Run {
        commands: vec![Plain::repeated("clients", 20)],
        claims: vec![
            Claim::new("clients/8", "8 clients of one server, 16 in flight each, adaptive", one),
            Claim::new("clients/block", "the same, beside those that block", block),
        ],
    }
}

/// A call with a larger argument: the 8-byte call and some cold copies of the argument.
fn argument(figures: &Figures) -> Option<Judged> {
    let (small, large) = (figures.with("call", "size", &json!(8))?, figures.of("call")?);
    let copy = figures.of("memcpy")?;
    let (word, rate) = (small["median"].as_f64()?, copy["median"].as_f64()?);
    let mebibytes = copy["size"].as_f64()? / f64::from(1 << 20);
    let copy = Quantity { value: mebibytes / rate * 1e6, unit: "us".to_owned() };
    let after = |copies: f64| word + copies * copy.value;
    let formula = format!("{word:.3} us + 3 memcpy, cold; + 2 memcpy");
    let judged = Judged::figure(Quantity::median(large)?, formula, Smaller, after(3.0), after(2.0));
    Some(judged.beside("memcpy", copy))
}

fn system_calls() -> Run {
    let kind = |kinds: &'static [&'static str]| {
        move |figures: &Figures| {
            let blocking = |name: &&str| figures.with(name, "wait", &json!("block"));
            let counted = kinds.iter().filter_map(blocking).map(|line| line["median"].as_f64());
            let value = counted.sum::<Option<f64>>()?;
            let measured = Quantity { value, unit: "syscalls".to_owned() };
            Some(Judged::figure(measured, "per side and call", Smaller, 1.0, None))
        }
    };
    Run {
        commands: vec![Plain::once("syscalls --calls 1000")],
        claims: vec![
            Claim::new("syscalls/wake-up", "wake-ups, blocking", kind(&["syscalls_write"])),
            Claim::new("syscalls/sleep", "sleeps, blocking", kind(&SLEEPS)),
            Claim::new("syscalls/16", "system calls, 16 in flight", |figures| {
                let name = "syscalls_per_call_and_side";
                let loaded = Quantity::median(figures.with(name, "inflight", &json!(16))?)?;
                Some(Judged::figure(loaded, "per message", Smaller, 0.01, None))
            }),
        ],
    }
}

/// Sleeps of this program and of the engines in it, as strace names them.
const SLEEPS: [&str; 4] =
    ["syscalls_epoll_pwait2", "syscalls_epoll_wait", "syscalls_epoll_pwait", "syscalls_ppoll"];

fn idle(figures: &Figures) -> Option<Judged> {
    let lines = figures.all("idle_origin").chain(figures.all("idle_target"));
    let most = lines.filter_map(|line| line["median"].as_f64()).reduce(f64::max)?;
    let measured = Quantity { value: most, unit: "%".to_owned() };
    Some(Judged::figure(measured, "of a core, over 5 s", Smaller, 0.05, None))
}

fn memory() -> Run {
    let figure = |name: &'static str, formula: &'static str, must: f64, aim: Option<f64>| {
        move |figures: &Figures| {
            let counted = Quantity::median(figures.of(name)?)?;
            Some(Judged::figure(counted, formula, Smaller, must, aim))
        }
    };
    let first = figure("first_peer_rss", "3 MiB over an empty program", 3072.0, Some(1536.0));
    let further = figure("further_peer_rss", "24 KiB", 24.0, None);
    Run {
        commands: vec![Plain::once("memory")],
        claims: vec![
            Claim::new("memory/first", "RSS with one peer", first),
            Claim::new("memory/further", "RSS of each further idle peer", further),
            Claim::new(
                "memory/fds",
                "descriptors of a peer",
                figure("further_peer_fds", "", 4.0, None),
            ),
            Claim::new("memory/large", "of large messages left when idle", |figures| {
                let kept = Quantity::median(figures.of("large_messages_kept_rss")?)?;
                let grown = Quantity::median(figures.of("large_messages_rss")?)?;
                let must = grown.value / 10.0;
                let judged = Judged::figure(kept, "a tenth", Smaller, must, None);
                Some(judged.beside("large_messages_rss", grown))
            }),
        ],
    }
}

fn soak() -> Run {
    let returns = |before: &'static str, after: &'static str, slack: f64| {
        move |figures: &Figures| {
            let before = Quantity::median(figures.of(before)?)?;
            let after = Quantity::median(figures.of(after)?)?;
            let must = before.value + slack;
            let formula =
                if slack == 0.0 { "as before".into() } else { format!("before + {slack}") };
            Some(Judged::figure(after, formula, Smaller, must, None).beside("before", before))
        }
    };
    Run {
        commands: vec![Plain::once("soak --cycles 20000")],
        claims: vec![
            Claim::new("soak/call", "the call after 20,000 peers came and went", |figures| {
                Judged::ratio(figures.of("call_after")?, Smaller, 1.1, 1.0)
            }),
            Claim::new(
                "soak/rss",
                "RSS of the target after them",
                returns("target_rss_before", "target_rss_after", RSS_SLACK_KIB),
            ),
            Claim::new(
                "soak/fds",
                "its descriptors",
                returns("target_fds_before", "target_fds_after", 0.0),
            ),
            Claim::new(
                "soak/mappings",
                "its mappings",
                returns("target_mappings_before", "target_mappings_after", 0.0),
            ),
        ],
    }
}

/// What an allocator may keep more or less of from one moment to the next.
const RSS_SLACK_KIB: f64 = 128.0;

fn faults() -> Run {
    let slowest = |wait: &'static str| {
        Claim::new(
            format!("death/{wait}"),
            format!("death of the target to PeerGone, {wait}, slowest"),
            move |figures: &Figures| {
                let line = figures.with("death_to_error", "wait", &Value::from(wait))?;
                let slowest = Quantity::of(line, "max")?;
                Some(Judged::figure(slowest, "10 ms", Smaller, 10_000.0, None))
            },
        )
    };
    Run {
        commands: vec![Plain::once("faults --kills 50 --deadlines 5")],
        claims: vec![slowest("spin"), slowest("adaptive"), slowest("block")],
    }
}

#[cfg(test)]
mod tests {
    use super::super::claim::Verdict;
    use super::*;

    #[test]
    fn the_rate_promised_falls_with_the_distance_of_the_cores() {
        assert_eq!((rates_promised(0.05), rates_promised(0.13)), ((11e6, 14e6), (11e6, 14e6)));
        let (must, aim) = rates_promised(0.30);
        assert!((must - 8.25e6).abs() < 1.0 && (aim - 11e6).abs() < 1.0, "half way");
        assert_eq!((rates_promised(0.47), rates_promised(0.9)), ((5.5e6, 8e6), (5.5e6, 8e6)));
    }

    #[test]
    fn a_spinning_call_is_held_against_the_cache_line_of_its_own_run() {
        let call = |median: f64| {
            Figures(vec![
                json!({"figure": "call", "unit": "us", "median": median, "limit_median": 0.2}),
            ])
        };
        let verdict = |median| spinning(&call(median)).expect("both figures are there").verdict();
        assert_eq!(verdict(0.35), Verdict::Missed);
        assert_eq!(verdict(0.33), Verdict::Must);
        assert_eq!(verdict(0.28), Verdict::Aim);
    }

    #[test]
    fn an_argument_may_cost_three_cold_copies_of_it() {
        let figures = |median: f64| {
            Figures(vec![
                json!({"figure": "call", "unit": "us", "size": 1 << 20, "median": median}),
                json!({"figure": "call", "unit": "us", "size": 8, "median": 0.5}),
                json!({"figure": "memcpy", "unit": "MiB/s", "size": 1 << 20, "median": 10_000.0}),
            ])
        };
        // A copy takes 100 us.
        let judged = argument(&figures(250.0)).expect("all figures are there");
        assert_eq!((judged.must, judged.aim), (Some(300.5), Some(200.5)));
        assert_eq!(judged.verdict(), Verdict::Must);
    }
}
