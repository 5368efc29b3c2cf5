//! The lines about calls as programs make them: with a deadline, awaited, of several threads, beside pulls, on busy cores.

use serde_json::json;

use super::claim::{Claim, Figures, Judge, Judged, Plain, Quantity, Run};
use crate::stats::Better::{self, Larger, Smaller};

/// The lines.
pub(super) fn runs() -> Vec<Run> {
    let mut runs = vec![instructions(), tracing(), awaited_and_threads(), held(), idle()];
    runs.extend(hung());
    runs.extend(["sm", "tcp"].map(waits));
    runs
}

/// The ratio of a figure to the one beside it.
fn beside(figure: &'static str, better: Better, must: f64) -> impl Fn(&Figures) -> Option<Judged> {
    move |figures| {
        let ratio =
            Quantity { value: figures.of(figure)?["ratio"].as_f64()?, unit: "ratio".into() };
        Some(Judged::figure(ratio, "beside the plain one", better, must, None))
    }
}

/// A figure of so many threads: itself, or another key of its line.
fn of_threads(
    figure: &'static str,
    threads: u32,
    key: &'static str,
    better: Better,
    must: f64,
) -> impl Fn(&Figures) -> Option<Judged> {
    move |figures| {
        let line = figures.with(figure, "inflight", &json!(threads))?;
        let unit = if key == "ratio" { "ratio" } else { line["unit"].as_str()? }.to_owned();
        let measured = Quantity { value: line[key].as_f64()?, unit };
        Some(Judged::figure(measured, format!("{threads} threads"), better, must, None))
    }
}

fn instructions() -> Run {
    Run {
        commands: vec![Plain::once("instructions --repetitions 1")],
        claims: vec![
            Claim::new(
                "ways/deadline",
                "instructions of a call with a deadline",
                beside("instructions_with_deadline", Smaller, 1.08),
            ),
            Claim::new(
                "ways/async-fn",
                "instructions of a call to an `async fn`",
                beside("instructions_to_async_fn", Smaller, 1.15),
            ),
        ],
    }
}

/// Against a build without it, which is to be there (see `hg-perf instructions`).
fn tracing() -> Run {
    let command =
        "instructions --how plain --repetitions 1 --beside target/untraced/release/hg-perf";
    let claim = Claim::new(
        "ways/tracing",
        "instructions with `tracing` compiled in and off, beside a build without",
        beside("instructions_per_call_and_side", Smaller, 1.02),
    );
    Run::one(Plain::once(command), claim)
}

/// Hung peers of the client, and hung clients of its target.
fn hung() -> impl Iterator<Item = Run> {
    let kinds = [("sm", "sm://"), ("tcp", "tcp://127.0.0.1:0")];
    let sides = [("peers", ""), ("clients", " --clients")];
    kinds.into_iter().flat_map(move |(scheme, url)| {
        sides.into_iter().map(move |(side, flag)| {
            let command = Plain::repeated(format!("hung --url {url}{flag}"), 50);
            let name = format!("ways/hung/{scheme}/{side}");
            let what = format!("{scheme}, a call beside 200 hung {side}, to one alone");
            let claim = Claim::new(name, what, |figures| {
                let ratio = Quantity::median(figures.of("hung_to_alone")?)?;
                Some(Judged::figure(ratio, "alone", Smaller, 1.1, None))
            });
            Run::one(command, claim)
        })
    })
}

fn awaited_and_threads() -> Run {
    let mut claims = vec![
        Claim::new(
            "ways/tokio",
            "`.await` on tokio's runtime of one thread beside `wait`",
            beside("call_awaited_tokio", Smaller, 2.0),
        ),
        Claim::new(
            "ways/small",
            "`.await` on a small executor beside `wait`",
            beside("call_awaited_small", Smaller, 2.0),
        ),
        Claim::new(
            "ways/tokio/syscalls",
            "system calls of an awaited call that wait, wake or yield, tokio",
            of_threads("switching_calls_tokio", 1, "median", Smaller, 0.2),
        ),
        Claim::new(
            "ways/small/syscalls",
            "the same on a small executor",
            of_threads("switching_calls_small", 1, "median", Smaller, 0.2),
        ),
    ];
    for threads in [2, 4, 8] {
        let name = |of: &str| format!("ways/threads/{threads}{of}");
        let line = |of, what: &str, judge: Judge| {
            Claim::new(name(of), format!("{threads} threads on one engine: {what}"), judge)
        };
        let rate = of_threads("calls_of_threads", threads, "ratio", Larger, 0.8);
        let slowest = of_threads("slowest_thread_to_mean", threads, "median", Larger, 0.5);
        let switching = of_threads("switching_calls_wait", threads, "median", Smaller, 0.2);
        let getpid = of_threads("getpid_calls_wait", threads, "median", Smaller, 0.001);
        claims.extend([
            line("", "calls per second beside one thread", Box::new(rate)),
            line("/slowest", "the slowest beside the mean", Box::new(slowest)),
            line("/syscalls", "waits, wake-ups and yields per call", Box::new(switching)),
            line("/getpid", "getpid per call", Box::new(getpid)),
        ]);
    }
    for threads in [2, 4, 8] {
        let what = format!("{threads} threads with a context each beside an engine each");
        let ratio = of_threads("calls_of_contexts", threads, "ratio", Larger, 0.9);
        claims.push(Claim::new(format!("ways/contexts/{threads}"), what, ratio));
    }
    Run { commands: vec![Plain::repeated("ways", 20)], claims }
}

fn held() -> Run {
    Run {
        commands: vec![Plain::repeated("held", 20)],
        claims: vec![
            Claim::new("ways/held", "wait for the lock beside pulls of 1 MiB, p99", |figures| {
                let wait = Quantity::median(figures.of("lock_wait_p99")?)?;
                Some(Judged::figure(wait, "5 us", Smaller, 5.0, None))
            }),
            Claim::new(
                "ways/held/pulls",
                "those pulls beside pulls alone",
                beside("pulls_beside_questions", Larger, 0.95),
            ),
        ],
    }
}

fn idle() -> Run {
    let as_before = |figures: &Figures| {
        let sides = ["origin", "target"].map(|side| {
            let threads = |name| figures.of(&format!("{name}_{side}"))?["median"].as_f64();
            Some(threads("threads_later")? - threads("threads_before")?)
        });
        let value = sides.into_iter().try_fold(0.0, |most: f64, side| Some(most.max(side?)))?;
        let more = Quantity { value, unit: "threads".to_owned() };
        Some(Judged::figure(more, "none more than before", Smaller, 0.0, None))
    };
    let wakes = |figures: &Figures| {
        let of = |name| figures.of(name)?["median"].as_f64();
        let value = of("wakes_later_origin")?.max(of("wakes_later_target")?);
        let wakes = Quantity { value, unit: "wakes/s".to_owned() };
        Some(Judged::figure(wakes, "none", Smaller, 0.0, None))
    };
    Run {
        commands: vec![Plain::once("idle --seconds 3 --after 400")],
        claims: vec![
            Claim::new("ways/idle/threads", "threads 15 s after 400 blocking calls", as_before),
            Claim::new("ways/idle/wakes", "their wake-ups, the busier side", wakes),
        ],
    }
}

fn waits(scheme: &'static str) -> Run {
    let url = if scheme == "sm" { "sm://" } else { "tcp://127.0.0.1:0" };
    let placed = ["two_cores", "one_core", "busy"];
    let lines = placed.into_iter().flat_map(|placed| [1, 16].map(|inflight| (placed, inflight)));
    let claims = lines.map(|(placed, inflight)| {
        let what = format!("{scheme}, {placed}, {inflight} in flight: adaptive beside the better");
        Claim::new(format!("waits/{scheme}/{placed}/{inflight}"), what, move |figures| {
            let name = format!("adaptive_to_better_{placed}");
            let ratio = Quantity::median(figures.with(&name, "inflight", &json!(inflight))?)?;
            Some(Judged::figure(ratio, "better of spin and block", Smaller, 1.3, None))
        })
    });
    Run {
        commands: vec![Plain::repeated(format!("waits --url {url}"), 20)],
        claims: claims.collect(),
    }
}
