//! Processes of several contexts, some of which the kernel does not name.

use std::collections::BTreeMap;

use hg_na::Identity;

use super::{OWNER, QUOTA, Random, World};
use crate::{machine::Quota, wire::YOURS};

/// Processes of a node that the kernel names.
const NAMED: usize = 2;

/// Of a context that comes.
pub(super) fn arrival(random: &mut Random) -> (Identity, Quota) {
    let pid = i32::try_from(random.below(NAMED + 1)).expect("a few");
    let weight = u32::try_from(1 + random.below(5)).expect("a few");
    (Identity::process(pid, OWNER), Quota { weight, ..QUOTA })
}

impl World {
    /// All contexts of a process have no more together than one may have; what is counted is what there is.
    pub(super) fn check_processes(&mut self) {
        for switch in &self.switches {
            let mut counted = BTreeMap::new();
            let mut live = BTreeMap::<_, [u32; 2]>::new();
            for party in switch.parties.values() {
                let (contexts, chosen) = counted.entry(party.process).or_insert((0, [0; 2]));
                *contexts += 1;
                *chosen = [0, 1].map(|by| chosen[by] + party.chosen[by]);
                for (id, (key, side)) in party.ends.iter().filter(|_| !party.is_node()) {
                    let by = usize::from(id & YOURS != 0);
                    let is_live = switch.connections[key].ends[*side].is_live();
                    live.entry(party.process).or_default()[by] += u32::from(is_live);
                }
            }
            assert_eq!(counted.len(), switch.processes.len());
            for (key, (contexts, chosen)) in counted {
                let process = &switch.processes[&key];
                assert_eq!((process.contexts, process.chosen), (contexts, chosen));
                self.full += usize::from(contexts > 1 && chosen[0] >= QUOTA.connections);
            }
            let fits = |it: &u32| *it <= QUOTA.connections;
            assert!(live.values().flatten().all(fits), "more than the quota of a process");
        }
    }
}
