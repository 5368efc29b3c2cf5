//! Daemons that are called, and do not answer.

use hg_na::{Address, GoneReason};

use super::{IDLE, Random, Trouble, World};
use crate::machine::PartyKey;

/// Addresses at which nobody answers.
const ADDRESSES: usize = 12;

pub(super) fn address(random: &mut Random) -> Address {
    Address::new(&format!("tcp://silent{}:1", random.below(ADDRESSES))).expect("an address")
}

pub(super) fn is_one(address: &Address) -> bool {
    address.rest().starts_with("silent")
}

impl World {
    /// The network says that one of them is not there.
    pub(super) fn give_up(&mut self, pick: usize) {
        let (at, key) = self.silent.swap_remove(pick);
        self.switches[at].gone(key, &GoneReason::Unreachable("nobody answers".into()));
    }

    /// No application waits for more of them than it may, and nobody waits for one that may be called.
    pub(super) fn check_calls(&self) {
        let waits_for = |app: PartyKey, (at, silent): &(usize, PartyKey)| {
            let mut connections = self.switches[*at].connections.values();
            connections.any(|it| {
                it.ends[0].is_live() && [it.ends[0].party, it.ends[1].party] == [app, *silent]
            })
        };
        for app in &self.apps {
            let calls = self.silent.iter().filter(|it| it.0 == app.node && waits_for(app.key, it));
            let most = self.switches[app.node].unanswered_max;
            assert!(calls.count() <= most, "too many daemons are called for one application");
        }
        // What is to be opened is, before the next effect.
        for switch in self.switches.iter().filter(|it| it.callers.is_empty()) {
            let is_live = |key| switch.connections[key].ends[0].is_live();
            for party in switch.parties.values() {
                let mut waiting = party.waiting.iter().filter(|(key, _)| is_live(key));
                let may = |node| !switch.is_draining && !switch.may_reach(party, node);
                assert!(waiting.all(|(_, target)| may(&target.node)), "what may be opened waits");
                for (silent, wanted) in party.unanswered.iter().filter(|_| !switch.is_draining) {
                    assert!(*wanted > 0 || party.waiting.is_empty(), "it waits for nothing");
                    let ends = party.ends.values().filter_map(|it| switch.connections.get(&it.0));
                    let live =
                        ends.filter(|it| it.ends[0].is_live() && it.ends[1].party == *silent);
                    assert_eq!(usize::try_from(*wanted).unwrap(), live.count());
                }
            }
        }
    }

    /// The network gives up all of them: whoever waits for one is told, and whoever waits for another one has his turn.
    pub(super) fn give_all_up(&mut self) {
        if self.random.below(2) > 0 {
            return;
        }
        while !self.silent.is_empty() {
            self.give_up(0);
            while self.round() {}
        }
        for app in self.apps.iter().filter(|app| app.is_honest) {
            let settled = app.conns.values().all(|conn| conn.is_open || conn.is_closed);
            assert!(settled || app.is_stopped, "a connection was forgotten");
        }
    }

    /// Ways that nobody wants any more are ended, although nobody has answered there.
    pub(super) fn leave_silent(&mut self) {
        for (at, key) in &self.silent {
            let switch = &self.switches[*at];
            let mut ends = switch.connections.values().map(|it| &it.ends[1]);
            assert!(ends.all(|end| end.party != *key || !end.is_live()), "its openers have gone");
        }
        for _ in 0..3 {
            if !self.silent.is_empty() {
                self.pass(IDLE);
                while self.round() {}
            }
        }
        assert!(self.silent.is_empty(), "a way that nobody wants is left open");
    }
}

#[test]
fn daemons_that_do_not_answer_are_called_so_many_at_a_time_and_hold_up_nobody_else() {
    for seed in 0..60 {
        World::new(seed, Trouble { silent: true, ..Trouble::default() }).run(3000);
    }
}
