//! The lines about TCP and libfabric, and about addresses that are reached by shared memory or by TCP.
//!
//! Calls that travel together are counted where both sides block. A side that spins asks the kernel again and
//! again while nothing has come, and each of these questions is a system call, too; there, only the messages
//! of a segment are counted (`calls_per_segment_and_side`).

use serde_json::json;

use super::claim::{Claim, Figures, Judged, Plain, Quantity, Run};
use crate::stats::Better::{Larger, Smaller};

/// The lines.
pub(super) fn runs() -> Vec<Run> {
    let mut runs = vec![call("spin", 100), call("block", 60), batches()];
    runs.extend(["pull", "push"].map(stream));
    runs.extend(["tcp", "shm"].map(fabric).into_iter().flatten());
    runs.extend([routed("same", "sm"), routed("other", "tcp")]);
    runs
}

fn call(wait: &str, repetitions: u32) -> Run {
    Run::one(
        Plain::repeated(format!("rate --url {TCP} --wait {wait}"), repetitions),
        Claim::new(format!("tcp/{wait}"), format!("8-byte call over TCP, {wait}"), |figures| {
            Judged::rounds(figures, figures.of("call")?, "call_to_limit", Smaller, 1.25, 1.1)
        }),
    )
}

fn batches() -> Run {
    let counted = |name: &'static str, wait: &'static str| {
        move |figures: &Figures| {
            let counted = Quantity::median(figures.with(name, "wait", &json!(wait))?)?;
            Some(Judged::figure(counted, "at least 5", Larger, 5.0, None))
        }
    };
    let per_call = counted("calls_per_syscall_and_side", "block");
    let per_segment = counted("calls_per_segment_and_side", "spin");
    Run {
        commands: vec![Plain::once(format!("syscalls --url {TCP} --calls 100"))],
        claims: vec![
            Claim::new(
                "tcp/16/syscalls",
                "calls per system call, blocking, 16 in flight",
                per_call,
            ),
            Claim::new("tcp/16/segments", "calls per segment, spinning, 16 in flight", per_segment),
        ],
    }
}

fn stream(op: &'static str) -> Run {
    Run::one(
        Plain::repeated(
            format!("bandwidth --url {TCP} --op {op} --size 1048576 --inflight 16"),
            30,
        ),
        Claim::new(
            format!("tcp/{op}"),
            format!("{op} of 1 MiB over TCP, 16 in flight"),
            |figures| {
                let moved = figures.of("bandwidth")?;
                Judged::rounds(figures, moved, "bandwidth_to_limit", Larger, 0.9, 1.0)
            },
        ),
    )
}

/// Over libfabric, beside its own program. Its own processes start anew in each repetition, so there are few.
fn fabric(provider: &'static str) -> [Run; 3] {
    let url = if provider == "tcp" { "ofi+tcp://" } else { "ofi+shm://" };
    let call = Run::one(
        Plain::repeated(format!("rate --url {url} --wait spin"), 7),
        Claim::new(
            format!("ofi/{provider}"),
            format!("8-byte call over ofi+{provider}"),
            |figures| {
                let call = figures.of("call")?;
                let judged = Judged::rounds(figures, call, "call_to_limit", Smaller, 1.3, 1.3)?;
                Some(Judged { aim: None, ..judged })
            },
        ),
    );
    let moved = |op: &str| {
        Run::one(
            Plain::repeated(format!("bandwidth --url {url} --op {op} --size 1048576"), 7),
            Claim::new(
                format!("ofi/{provider}/{op}"),
                format!("{op} of 1 MiB over ofi+{provider}"),
                |figures| {
                    let moved = figures.of("bandwidth")?;
                    let ratio = "bandwidth_to_limit";
                    let judged = Judged::rounds(figures, moved, ratio, Larger, 0.9, 0.9)?;
                    Some(Judged { aim: None, ..judged })
                },
            ),
        )
    };
    [call, moved("pull"), moved("push")]
}

fn routed(node: &str, way: &str) -> Run {
    let judge = |figures: &Figures| {
        let ratio = Quantity::median(figures.of("routed_to_direct")?)?;
        let control = Quantity::median(figures.of("control_to_direct")?)?;
        let judged = Judged::figure(ratio, "routed / direct", Smaller, NOTHING_MEASURABLE, None);
        Some(judged.beside("direct / direct", control))
    };
    Run::one(
        Plain::repeated(format!("routing --node {node} --wait spin"), 15),
        Claim::new(format!("routing/{way}"), format!("8-byte call routed to {way}"), judge),
    )
}

const TCP: &str = "tcp://127.0.0.1:0";

/// Two targets of the same kind differ by this much from run to run; the control beside it says by how much in this one.
const NOTHING_MEASURABLE: f64 = 1.03;
