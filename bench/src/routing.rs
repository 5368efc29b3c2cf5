//! `hg-perf routing`: what an address of two ways adds to a call, and how much of that is the measurement's own.
//!
//! | figure              | what it is                                                                        |
//! |---------------------|-----------------------------------------------------------------------------------|
//! | `call`              | the routed call (`via` says which way it went), and the same call without routing |
//! | `routed_to_direct`  | the first in proportion to the second                                             |
//! | `control_to_direct` | another target without routing in proportion to the second: 1, but for noise      |
//!
//! Two processes that do the same differ: in where their memory lies, in their ports, in when they were started. So
//! the three targets and their callers are made anew for every set, and each set gives one value, the median of its
//! rounds; the figure is the median over sets. Rounds take the three in turns, in every order equally often, and so
//! does the start of the processes: the control is measured exactly as the routed one, and what is found of it is
//! what a difference of nothing looks like here and now.

use std::rc::Rc;

use crate::error::Error;
use crate::measure::{Measure as _, Subject, Unit, Wait};
use crate::pair::Cores;
use crate::product::call::{Caller, Shape, WORD};
use crate::product::target::{Node, Target};
use crate::progress::Progress;
use crate::report::{self, Figure};
use crate::turns::derived;

/// `hg-perf routing`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// An address of two ways.
    #[arg(long, default_value = "sm+tcp://127.0.0.1:0")]
    url: String,
    /// Looks the routed target up as it is, or as a process on another node would.
    #[arg(long, value_enum, default_value = "same")]
    node: Node,
    /// How both sides wait.
    #[arg(long, value_enum, default_value = "spin")]
    wait: Wait,
    /// Calls in flight.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    inflight: u32,
    /// Rounds of each set.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Sets of processes, one after the other.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<(), Error> {
    let Some(plan) = Plan::of(arguments)? else {
        let why = format!("`{}` names one way only: give two, as in `sm+tcp://`", arguments.url);
        return Err(Error::Impossible(why));
    };
    let mut progress = Progress::new();
    let mut taken = Taken::default();
    for (set, order) in (0..arguments.repetitions).zip(orders()) {
        progress.round(set, arguments.repetitions);
        plan.take_set(order, &mut taken)?;
    }
    progress.clear();
    let subjects = taken.subjects.iter().zip(&taken.calls);
    let mut figures: Vec<Figure> = subjects
        .map(|(subject, values)| derived(subject.clone(), values.iter().copied()))
        .collect();
    for (name, values) in ["routed_to_direct", "control_to_direct"].into_iter().zip(taken.ratios) {
        figures.push(derived(Subject::new(name, Unit::Ratio), values.into_iter()));
    }
    report::print(json, &figures)
}

/// The three that are measured, by their places.
const ROUTED: usize = 0;
const DIRECT: usize = 1;
const CONTROL: usize = 2;

/// Every order of three, again and again.
fn orders() -> impl Iterator<Item = [usize; 3]> {
    [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1], [2, 0, 1], [1, 0, 2]].into_iter().cycle()
}

/// What every set does.
struct Plan {
    shape: Shape,
    node: Node,
    rounds: u32,
    /// The way that is to be taken, and its URL.
    way: String,
    direct: String,
    cores: Cores,
}

/// What all sets have come to.
#[derive(Default)]
struct Taken {
    /// Of the routed call and the direct one.
    subjects: Vec<Subject>,
    /// All their rounds.
    calls: [Vec<f64>; 2],
    /// Routed to direct and control to direct: one value for each set.
    ratios: [Vec<f64>; 2],
}

impl Plan {
    /// `None` where the URL leaves no choice.
    fn of(arguments: &Arguments) -> Result<Option<Plan>, Error> {
        let Arguments { url, node, wait, inflight, rounds, .. } = arguments;
        let Some((way, direct)) = way_of(url, *node) else { return Ok(None) };
        let cores = Cores::choose()?;
        cores.pin_origin()?;
        let (url, inflight, wait) = (url.clone(), *inflight, *wait);
        let shape = Shape { url, size: WORD, inflight, wait, peers: 1 };
        Ok(Some(Plan { shape, node: *node, rounds: *rounds, way, direct, cores }))
    }

    /// One set of processes, started in this order.
    fn take_set(&self, order: [usize; 3], taken: &mut Taken) -> Result<(), Error> {
        let mut callers = [None, None, None];
        for place in order {
            callers[place] = Some(self.caller(place)?);
        }
        let mut callers = callers.map(|caller| caller.expect("an order has every place"));
        taken.subjects = [ROUTED, DIRECT].map(|place| callers[place].subject()).into();
        for caller in &mut callers {
            caller.measure()?;
        }
        let mut ratios = [Vec::new(), Vec::new()];
        for (_, order) in (0..self.rounds).zip(orders()) {
            let mut round = [0.0; 3];
            for place in order {
                round[place] = callers[place].measure()?;
            }
            ratios[0].push(round[ROUTED] / round[DIRECT]);
            ratios[1].push(round[CONTROL] / round[DIRECT]);
            taken.calls[0].push(round[ROUTED]);
            taken.calls[1].push(round[DIRECT]);
        }
        for (all, rounds) in taken.ratios.iter_mut().zip(&ratios) {
            all.push(middle(rounds));
        }
        Ok(())
    }

    /// A target of its own, and who calls it.
    fn caller(&self, place: usize) -> Result<Caller, Error> {
        let url = if place == ROUTED { &self.shape.url } else { &self.direct };
        let target = Target::start(url, self.shape.wait, self.cores)?.seen_from(self.node);
        let shape = Shape { url: url.clone(), ..self.shape.clone() };
        let caller = Caller::connect(shape, &Rc::new(target))?;
        if caller.via().name() != self.way {
            let (went, way) = (caller.via().name(), &self.way);
            return Err(Error::Failed(format!("a call to {url} went by {went}, not by {way}")));
        }
        Ok(caller)
    }
}

/// The median; of an even number, between the two in the middle: the worse one would make of noise a difference.
fn middle(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    let below = if sorted.len().is_multiple_of(2) { half - 1 } else { half };
    f64::midpoint(sorted[below], sorted[half])
}

/// The way that a routed URL takes to a node, and the URL of that way alone: the local one needs no place.
fn way_of(url: &str, node: Node) -> Option<(String, String)> {
    let (schemes, place) = url.split_once("://")?;
    let (local, network) = schemes.split_once('+').filter(|(local, _)| *local == "sm")?;
    Some(match node {
        Node::Same => (local.to_owned(), format!("{local}://")),
        Node::Other => (network.to_owned(), format!("{network}://{place}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn six_rounds_take_the_three_in_every_order_once() {
        let six: BTreeSet<[usize; 3]> = orders().take(6).collect();
        assert_eq!(six.len(), 6);
        for order in six {
            assert_eq!(BTreeSet::from(order), BTreeSet::from([ROUTED, DIRECT, CONTROL]));
        }
    }

    #[test]
    fn the_middle_of_an_even_number_of_rounds_is_between_two() {
        assert_eq!(
            (middle(&[3.0]), middle(&[4.0, 1.0]), middle(&[9.0, 1.0, 2.0])),
            (3.0, 2.5, 2.0)
        );
    }

    #[test]
    fn the_way_alone_has_a_url_of_its_own() {
        let way = |url, node| way_of(url, node).map(|(way, url)| format!("{way} {url}"));
        let both = "sm+tcp://127.0.0.1:0";
        assert_eq!(way(both, Node::Same).as_deref(), Some("sm sm://"));
        assert_eq!(way(both, Node::Other).as_deref(), Some("tcp tcp://127.0.0.1:0"));
        let fabric = way("sm+ofi+tcp://", Node::Other);
        assert_eq!(fabric.as_deref(), Some("ofi+tcp ofi+tcp://"));
        assert!(way("tcp://127.0.0.1:0", Node::Same).is_none());
        assert!(way("ofi+tcp://", Node::Same).is_none());
    }
}
