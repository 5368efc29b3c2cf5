//! Daemons that are drained by a deadline, and their successors.

use hg_na::{Identity, Message};

use super::{OWNER, QUOTA, Trouble, World, networks, processes};
use crate::{
    machine::PartyKey,
    wire::{Header, Hello, Kind},
};

/// Steps that a daemon which ends gives to what is left.
const FLUSH: usize = 300;

/// A daemon that was told to end.
pub(super) struct Drain {
    /// Whoever has told it so, and what he was told at the end.
    pub(super) by: PartyKey,
    pub(super) report: Option<Message>,
    /// Steps until the deadline, once the daemon has set it; then until the daemon ends, whatever is left.
    pub(super) steps: Option<usize>,
    /// Connections that were left at the deadline.
    pub(super) left: Option<usize>,
    /// Connections that were opened before.
    pub(super) opened: u64,
}

impl World {
    /// Somebody who may has a daemon drained.
    pub(super) fn drain(&mut self, at: usize) {
        if self.drains[at].is_some() {
            return;
        }
        let switch = &mut self.switches[at];
        let by = switch.arrived(Identity::process(1, OWNER), QUOTA);
        let within = self.random.below(400) as u64 + 1;
        let opened = switch.counts.opened;
        switch.handle(by, Header::new(Kind::Drain, 0, within).frame(&[]));
        self.drains[at] = Some(Drain { by, report: None, steps: None, left: None, opened });
    }

    /// Time passes for daemons that are drained.
    pub(super) fn tick(&mut self, at: usize) {
        let switch = &mut self.switches[at];
        let Some(drain) = &mut self.drains[at] else { return };
        assert_eq!(switch.counts.opened, drain.opened, "it takes no connection");
        let Some(steps) = &mut drain.steps else { return };
        *steps = steps.saturating_sub(1);
        let is_over = *steps == 0;
        if drain.left.is_none() && (is_over || switch.is_drained()) {
            (drain.left, *steps) = (Some(switch.connections.len()), FLUSH);
            switch.end();
        } else if drain.left.is_some() && (is_over || switch.bytes() == 0) {
            self.exit(at);
        }
    }

    /// A daemon ends, with what its legs have taken, and the next one comes.
    fn exit(&mut self, at: usize) {
        let drain = self.drains[at].take().expect("it was drained");
        let is_flushed = self.switches[at].bytes() == 0;
        if is_flushed {
            let report = drain.report.expect("whoever wanted it is told");
            let (header, text) = Header::decode(report.as_slice()).expect("a report is a frame");
            let left = drain.left.expect("at the deadline");
            assert_eq!((header.kind, header.word), (Kind::Report, u64::from(left > 0)));
            let said = String::from_utf8_lossy(text);
            assert!(left == 0 || said.contains(&format!(" {left} connections")), "{said}");
        }
        for from in self.legs.keys().copied().filter(|from| from.0 == at).collect::<Vec<_>>() {
            while self.deliver(from) {}
            self.cut(from);
        }
        self.silent.retain(|silent| silent.0 != at);
        for place in 0..self.apps.len() {
            if self.apps[place].node == at {
                self.follow(place, is_flushed);
            }
        }
        self.switches[at] = networks::switch(at, &mut self.random);
        for place in 0..self.apps.len() {
            let app = &mut self.apps[place];
            if app.node == at {
                let (identity, quota) = processes::arrival(&mut self.random);
                app.key = self.switches[at].arrived(identity, quota);
                let hello = Hello { listens: true, name: &app.name };
                self.switches[at].handle(app.key, hello.frame());
            }
        }
    }

    /// An application whose daemon ends takes what that has said, and begins anew.
    fn follow(&mut self, place: usize, is_flushed: bool) {
        self.apps[place].is_stopped = false;
        while self.read(place) {}
        self.excuse(place);
        let app = &mut self.apps[place];
        let is_told = app.conns.values().all(|conn| conn.is_closed);
        assert!(!is_flushed || is_told || !app.is_honest, "an end that was not told");
        app.conns.clear();
        (app.is_welcome, app.is_refused) = (false, false);
        self.serial += 1;
        app.serial = self.serial;
    }
}

#[test]
fn daemons_that_are_drained_tell_every_end_by_their_deadline_and_their_successors_go_on() {
    for seed in 0..60 {
        World::new(seed, Trouble { cuts: seed % 2 == 0, drains: true, silent: seed % 3 == 0 })
            .run(3000);
    }
}
