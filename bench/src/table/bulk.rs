//! The lines about transfers over shared memory.
//!
//! Where the target has no part in a transfer it sleeps meanwhile, as it does while the limit is measured: one that
//! spun would keep other load off its core and on this one.

use serde_json::json;

use super::claim::{Claim, Figures, Judged, Plain, Quantity, Run};
use crate::bandwidth::TO_HANDOVER;
use crate::stats::Better::{Larger, Smaller};

/// The lines.
pub(super) fn runs() -> Vec<Run> {
    let mut runs = Vec::new();
    for kind in [Kind::Heap, Kind::Shared, Kind::Denied] {
        for (size, size_name) in SIZES {
            for op in ["pull", "push"] {
                for caches in ["hot", "cold"] {
                    runs.push(transfer(kind, op, size, size_name, caches));
                }
            }
        }
    }
    runs.push(views());
    runs.extend(["heap", "shared", "eager"].map(with_call));
    runs
}

/// Which memory, and by which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Ordinary memory, by cross-memory attach.
    Heap,
    /// Memory that peers map.
    Shared,
    /// Ordinary memory where the kernel denies cross-memory attach.
    Denied,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Heap => "heap",
            Kind::Shared => "shared",
            Kind::Denied => "denied",
        }
    }

    fn option(self) -> &'static str {
        match self {
            Kind::Heap => "--memory heap --wait adaptive",
            Kind::Shared => "--memory shared --wait adaptive",
            Kind::Denied => "--deny-cma",
        }
    }

    /// Must and aim in proportion to the limit: `cma` for heap memory, else `memcpy`.
    fn promised(self) -> (f64, f64) {
        match self {
            Kind::Heap => (0.96, 0.99),
            Kind::Shared => (0.90, 1.0),
            Kind::Denied => (0.5, 0.7),
        }
    }
}

const SIZES: [(usize, &str); 2] = [(1 << 20, "1MiB"), (16 << 20, "16MiB")];

fn transfer(kind: Kind, op: &str, size: usize, size_name: &str, caches: &str) -> Run {
    let name = format!("{}/{op}/{size_name}/{caches}", kind.name());
    let what = format!("{op} {size_name}, {}, {caches}", kind.name());
    let option = kind.option();
    let command = format!("bandwidth {option} --op {op} --size {size} --caches {caches}");
    let (must, aim) = kind.promised();
    let judge = move |figures: &Figures| Judged::ratio(figures.of("bandwidth")?, Larger, must, aim);
    let mut claims = vec![Claim::new(name.clone(), what.clone(), judge)];
    if kind == Kind::Shared && caches == "hot" {
        let twice = |figures: &Figures| {
            let beside_cma = figures.with("bandwidth", "limit", &json!("cma"))?;
            let judged = Judged::rounds(figures, beside_cma, "bandwidth_to_cma", Larger, 2.0, 2.0);
            judged.map(|judged| Judged { aim: None, ..judged })
        };
        claims.push(Claim::new(format!("{name}/cma"), format!("{what}, beside CMA"), twice));
    }
    Run { commands: vec![Plain::repeated(command, REPETITIONS)], claims }
}

/// A view of 16 times the size: a wish, since nothing is promised of it.
fn views() -> Run {
    let command = |size: usize| {
        let command = format!("bandwidth --memory shared --op view --size {size}");
        Plain::repeated(command, REPETITIONS)
    };
    let ratio = |figures: &Figures| {
        let [small, large] = SIZES.map(|(size, _)| figures.with("view", "size", &json!(size)));
        let (small, large) = (Quantity::median(small?)?, Quantity::median(large?)?);
        let value = large.value / small.value;
        Some(Judged {
            measured: large,
            limit: Some(("view of 1 MiB".to_owned(), small)),
            formula: "16 MiB / 1 MiB".to_owned(),
            value,
            unit: String::new(),
            must: None,
            aim: Some(1.1),
            better: Smaller,
        })
    };
    Run {
        commands: SIZES.map(|(size, _)| command(size)).into(),
        claims: vec![Claim::new("shared/view", "view of 16 MiB, any size costs the same", ratio)],
    }
}

/// 4 KiB that the target of a call pulls before it answers.
fn with_call(memory: &'static str) -> Run {
    let aim = if memory == "heap" { 0.95 } else { 0.7 };
    Run::one(
        Plain::repeated(
            format!("bandwidth --with-call --memory {memory} --size 4096 --inflight 16"),
            REPETITIONS,
        ),
        Claim::new(
            format!("pull-in-call/{memory}"),
            format!("pull of 4 KiB incl. its call, {memory}, 16 in flight"),
            move |figures| {
                let judged = Judged::ratio(figures.of("call_with_pull")?, Larger, aim, aim)?;
                let judged = Judged { must: None, ..judged };
                let Some(bare) = figures.of(TO_HANDOVER).and_then(|it| it["median"].as_f64())
                else {
                    return Some(judged);
                };
                let formula = format!("{}, {bare:.2} x handover_rate", judged.formula);
                Some(Judged { formula, ..judged })
            },
        ),
    )
}

/// Many short ones: other load comes and goes.
const REPETITIONS: u32 = 60;
