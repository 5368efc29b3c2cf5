//! The region tables of peers: one mapping for all connections with a domain.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use hg_na::Error;
use nix::{errno::Errno, sys::stat::fstat};
use rustc_hash::FxHashMap;

use super::table::PeerTable;
use crate::os::misbehaved;

/// The tables that are mapped, by their domains.
#[derive(Debug, Default)]
pub(crate) struct PeerTables(Mutex<FxHashMap<[u8; 16], Known>>);

/// A table, and the number of its memfd, which no other has while it is mapped.
#[derive(Debug)]
struct Known {
    inode: u64,
    table: Weak<PeerTable>,
}

impl PeerTables {
    /// The table that a peer of `domain` has sent. What a domain is called is a claim: who sends another memfd than its
    /// others have sent gets a mapping of his own.
    ///
    /// # Errors
    /// `PeerGone(Misbehaved)`, [`Error::Limit`].
    pub(crate) fn open(
        &self,
        domain: [u8; 16],
        fd: OwnedFd,
        announced_len: u64,
    ) -> Result<Arc<PeerTable>, Error> {
        let stat = fstat(&fd).map_err(|_: Errno| misbehaved("it sent a descriptor of nothing"))?;
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let live = known.get(&domain).and_then(|it| Some((it.inode, it.table.upgrade()?)));
        if let Some((inode, table)) = &live
            && *inode == stat.st_ino
        {
            return Ok(Arc::clone(table));
        }
        let table = Arc::new(PeerTable::open(domain, fd, announced_len)?);
        if live.is_none() {
            if known.len() == known.capacity() {
                known.retain(|_, it| it.table.strong_count() > 0);
            }
            known.insert(domain, Known { inode: stat.st_ino, table: Arc::downgrade(&table) });
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::table::{OwnedTable, TABLE_LEN};

    #[test]
    fn connections_with_a_domain_share_its_table_and_a_liar_has_its_own() {
        let tables = PeerTables::default();
        let open = |owned: &OwnedTable, domain| {
            let fd = owned.fd().try_clone_to_owned().unwrap();
            tables.open(domain, fd, TABLE_LEN as u64).unwrap()
        };
        let honest = OwnedTable::create([7; 16]).unwrap();
        let liar = OwnedTable::create([7; 16]).unwrap();
        let first = open(&honest, [7; 16]);
        assert!(Arc::ptr_eq(&first, &open(&honest, [7; 16])));
        assert!(!Arc::ptr_eq(&first, &open(&liar, [7; 16])));
        assert!(
            Arc::ptr_eq(&first, &open(&honest, [7; 16])),
            "whoever lies changes nothing for others"
        );
        assert_eq!(Arc::strong_count(&first), 1);
        drop(first);
        let next = open(&liar, [7; 16]);
        assert!(Arc::ptr_eq(&next, &open(&liar, [7; 16])), "nobody has the other any more");
    }

    #[test]
    fn domains_that_are_gone_leave_nothing() {
        let tables = PeerTables::default();
        for number in 0..100 {
            let owned = OwnedTable::create([number; 16]).unwrap();
            let fd = owned.fd().try_clone_to_owned().unwrap();
            tables.open([number; 16], fd, TABLE_LEN as u64).unwrap();
        }
        assert!(tables.0.lock().unwrap().len() < 10);
    }
}
