//! A story is run: engines are opened, its events happen, then everything comes to its end and is judged.

use std::{
    rc::Rc,
    sync::{Arc, Mutex},
};

use hg_engine::interrupts::Hooks;
use hg_na::Address;

use crate::{
    events::{open, perform},
    interrupts, judge,
    net::Net,
    state::{self, Checks, Judged, Process, Run, lock, with},
    story::{Event, Story},
    trace::{Trace, Tracing},
    world::{self, HARNESS},
};

/// How a story went.
#[derive(Debug)]
pub struct Report {
    /// Why it has failed, if it has: the name of what was broken, a colon, and what happened.
    pub failure: Option<String>,
    /// What happened.
    pub trace: Trace,
    /// What was judged.
    pub judged: Judged,
}

/// Runs a story.
#[must_use]
pub fn run(story: &Story, checks: Checks, tracing: Tracing) -> Report {
    let net = Arc::new(Mutex::new(Net::new(story.rules.clone(), story.order)));
    hg_engine::interrupts::set(Hooks {
        before: world::pass,
        after: world::pass_with_lock,
        held: world::wait_for_lock,
    });
    interrupts::begin(story.interrupts, story.order, state::is_free);
    world::begin(story.order, Trace::new(tracing));
    let run = Run {
        story: Rc::new(story.clone()),
        checks,
        net: Arc::clone(&net),
        processes: Vec::new(),
        calls: Vec::with_capacity(2 * story.events.len()),
        records: Vec::with_capacity(2 * story.events.len()),
        is_over: false,
        forgotten: Vec::new(),
        judged: Judged::new(),
    };
    state::begin(run);
    world::spawn(HARNESS, Box::new(play));
    world::run(|number| lock(&net).happen_now(number));
    let (trace, failure) = world::end();
    let mut run = state::end();
    let judged = run.as_mut().map(|run| std::mem::take(&mut run.judged)).unwrap_or_default();
    if run.as_ref().is_some_and(|run| run.processes.iter().any(|it| it.handle.is_some())) {
        // Its engines cannot be closed any more.
        std::mem::forget(run);
    }
    Report { failure, trace, judged }
}

/// The thread that has everything happen.
fn play() {
    let story = with(|run| Rc::clone(&run.story));
    add_processes(&story);
    for (process, settings) in (1..).zip(&story.processes) {
        open(process, settings);
    }
    for Event { at, what } in &story.events {
        let now = world::now();
        if *at > now {
            world::sleep(at - now);
        }
        perform(&story, what);
    }
    judge::finish();
}

fn add_processes(story: &Story) {
    for number in 0..=story.processes.len() + story.hung {
        let id = if number == 0 { HARNESS } else { world::add_process() };
        let text = format!("sim://p{number}/0");
        let address = Address::new(&text).expect("it is an address");
        let hangs = story.hangs(number);
        if hangs {
            with(|run| run.net().add_hung(id, &address));
        }
        let process = Process {
            id,
            handle: None,
            address,
            lives: false,
            drains: false,
            has_drained: false,
            was_restarted: false,
            hangs,
            stopped_until: 0,
            disturbed_until: 0,
            disturbed: Vec::new(),
            died: None,
            waiting: Vec::new(),
            bytes_to_hung: 0,
        };
        with(|run| run.processes.push(process));
    }
}
