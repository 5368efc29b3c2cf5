//! The 8-byte call through no daemon, one and two.

use std::rc::Rc;

use super::Measured;
use super::node::{Node, Nodes, origin, target};
use crate::error::Error;
use crate::measure::{Measure, Subject, Wait};
use crate::product::call::{Caller, Shape, WORD};
use crate::turns::Turns;

/// Calls from one node to another.
struct Calls {
    figure: &'static str,
    caller: Caller,
}

impl Calls {
    fn between(
        figure: &'static str,
        near: Option<&Node>,
        far: Option<&Node>,
    ) -> Result<Calls, Error> {
        let (builder, url) = origin(near);
        let engine = builder.progress(hg::Progress::Own).open(url)?;
        let target = Rc::new(target(far, 1)?);
        let shape =
            Shape { url: url.to_owned(), size: WORD, inflight: 1, wait: Wait::Adaptive, peers: 1 };
        Ok(Calls { figure, caller: Caller::over(engine, shape, &target)? })
    }
}

impl Measure for Calls {
    fn subject(&self) -> Subject {
        Subject { figure: self.figure.into(), ..self.caller.subject() }
    }

    fn measure(&mut self) -> Result<f64, Error> {
        self.caller.measure()
    }
}

pub(super) fn measured(nodes: &Nodes, repetitions: u32) -> Result<Measured, Error> {
    let (near, far) = (Some(&nodes.near), Some(&nodes.far));
    let mut turns = Turns::default();
    let direct = turns.add(Calls::between("call_direct", None, None)?);
    let one = turns.add(Calls::between("call_one_daemon", far, far)?);
    let two = turns.add(Calls::between("call_two_daemons", near, far)?);
    for place in [direct, one, two] {
        turns.line(move |taken| taken.figure(place));
    }
    turns.ratio_line("one_daemon_to_direct", one, direct);
    turns.ratio_line("two_daemons_to_direct", two, direct);
    Ok((turns.take(repetitions)?, Vec::new()))
}
