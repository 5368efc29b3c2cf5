//! Which blocks have to travel: those that any host lacks, as the sums of what each host has say.

use crate::{
    incoming::by_entry,
    offer::{Held, Offer, Sum, Trouble, What},
};

/// What is sent.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Files that not every host has.
    pub needs: Vec<Need>,
    /// Of each host: entries whose file is there, and is what it should be.
    pub same: Vec<Vec<u32>>,
    /// Entries whose file could not be read here, and why: nothing of them travels.
    pub lost: Vec<(u32, Trouble)>,
    /// Bytes that travel.
    pub bytes: u64,
}

/// A file that is sent, in part or whole.
#[derive(Debug, PartialEq, Eq)]
pub struct Need {
    /// The entry's number.
    pub entry: u32,
    /// Its blocks that travel; `None`: all.
    pub blocks: Option<Vec<u32>>,
    /// The sums of all of its blocks, where they are known already.
    pub sums: Option<Vec<Sum>>,
}

/// `held`: what each host says to have. `sums`: those of a file here, which is read for them; only where somebody has some of it.
pub fn plan(
    offer: &Offer,
    held: &[Vec<Held>],
    mut sums: impl FnMut(u32) -> Result<Vec<Sum>, Trouble>,
) -> Plan {
    let hosts: Vec<_> = held.iter().map(|held| by_entry(held)).collect();
    let mut plan = Plan { same: vec![Vec::new(); hosts.len()], ..Plan::default() };
    for (entry, what) in (0_u32..).zip(offer.entries.iter().map(|entry| &entry.what)) {
        let What::File(size) = *what else { continue };
        let has = |is_target| hosts.iter().any(|host| host.contains_key(&(entry, is_target)));
        if !has(true) && !has(false) {
            plan.bytes += size;
            plan.needs.push(Need { entry, blocks: None, sums: None });
            continue;
        }
        let own = match sums(entry) {
            Ok(own) => own,
            Err(trouble) => {
                plan.lost.push((entry, trouble));
                continue;
            }
        };
        let mut lacks = vec![false; own.len()];
        let mut is_needed = false;
        for (host, same) in hosts.iter().zip(&mut plan.same) {
            if host.get(&(entry, true)).is_some_and(|theirs| **theirs == own) {
                same.push(entry);
                continue;
            }
            is_needed = true;
            let theirs = host.get(&(entry, false)).copied().unwrap_or_default();
            for (number, (lacks, own)) in lacks.iter_mut().zip(&own).enumerate() {
                *lacks |= theirs.get(number) != Some(own);
            }
        }
        if is_needed {
            let blocks: Vec<u32> =
                (0..).zip(lacks).filter(|(_, lacks)| *lacks).map(|(block, _)| block).collect();
            let len = |block| offer.range(size, block).map_or(0, |(_, len)| len as u64);
            plan.bytes += blocks.iter().copied().map(len).sum::<u64>();
            plan.needs.push(Need { entry, blocks: Some(blocks), sums: Some(own) });
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::offer::{BLOCK_MIN, tests::offer};

    fn sum(number: u8) -> Sum {
        Sum([number; 16])
    }

    #[test]
    fn what_nobody_has_travels_whole_and_is_not_read_before() {
        let offer =
            offer(&[("d", What::Folder), ("d/a", What::File(10_000)), ("b", What::File(0))]);
        let planned = plan(&offer, &[vec![], vec![]], |_| panic!("nobody has any of it"));
        let entries: Vec<_> =
            planned.needs.iter().map(|need| (need.entry, need.blocks.clone())).collect();
        assert_eq!((entries, planned.bytes), (vec![(1, None), (2, None)], 10_000));
    }

    proptest! {
        /// After what is planned has travelled, each host has each block.
        #[test]
        fn every_host_lacks_nothing_afterwards_and_nothing_travels_that_all_have(
            own in prop::collection::vec(0_u8..3, 0..8),
            theirs in prop::collection::vec(
                prop::option::of((any::<bool>(), prop::collection::vec(0_u8..3, 0..10))), 1..4),
        ) {
            let size = own.len() as u64 * u64::from(BLOCK_MIN);
            let offer = offer(&[("a", What::File(size))]);
            let sums = |numbers: &[u8]| numbers.iter().copied().map(sum).collect::<Vec<_>>();
            let held: Vec<Vec<Held>> = theirs.iter().map(|it| {
                it.iter().map(|(is_target, it)| Held { entry: 0, is_target: *is_target, sums: sums(it) }).collect()
            }).collect();
            let planned = plan(&offer, &held, |_| Ok(sums(&own)));
            let travels = |block: usize| planned.needs.iter().any(|need| {
                need.blocks.as_ref().is_none_or(|blocks| blocks.contains(&u32::try_from(block).unwrap()))
            });
            for (host, theirs) in theirs.iter().enumerate() {
                let is_same = theirs.as_ref().is_some_and(|(is_target, it)| *is_target && *it == own);
                prop_assert_eq!(is_same, planned.same[host].contains(&0));
                prop_assert!(is_same || !planned.needs.is_empty());
                for (block, sum) in own.iter().enumerate() {
                    let has = is_same || theirs.as_ref().is_some_and(|(is_target, it)| {
                        !is_target && it.get(block) == Some(sum)
                    });
                    prop_assert!(has || travels(block));
                }
            }
            if theirs.iter().all(|it| it.as_ref().is_some_and(|(_, it)| *it == own)) {
                prop_assert_eq!(planned.bytes, 0);
            }
        }
    }
}
