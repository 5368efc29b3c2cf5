//! The region tables of peers: one mapping for all connections with a domain.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use hg_na::Error;
use rustc_hash::FxHashMap;

use super::table::PeerTable;
use crate::os::mapping::{TABLE_SEALS, verify};

/// The tables that are mapped, by their domains, and which file the memfd of each is, which no other is while it is mapped.
#[derive(Debug, Default)]
pub(crate) struct PeerTables(Mutex<FxHashMap<[u8; 16], Known>>);

/// One that was mapped, and of which file.
type Known = (File, Weak<PeerTable>);

/// Device and inode: memfds are all of one device, but not everything that a peer can send.
type File = (u64, u64);

impl PeerTables {
    /// The table that a peer of `domain` has sent. What a domain is called is a claim: who sends another memfd than its
    /// others have sent gets a mapping of his own.
    ///
    /// # Errors
    /// `PeerGone(Misbehaved)`, [`Error::Limit`].
    pub(crate) fn open(&self, domain: [u8; 16], fd: &OwnedFd) -> Result<Arc<PeerTable>, Error> {
        let stat = verify(fd, TABLE_SEALS)?;
        let file = (stat.st_dev, stat.st_ino);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let live = known.get(&domain).and_then(|(file, table)| Some((*file, table.upgrade()?)));
        if let Some((known, table)) = &live
            && *known == file
        {
            return Ok(Arc::clone(table));
        }
        let table = Arc::new(PeerTable::open(domain, fd)?);
        if live.is_none() {
            if known.len() == known.capacity() {
                known.retain(|_, (_, table)| table.strong_count() > 0);
            }
            known.insert(domain, (file, Arc::downgrade(&table)));
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::fstat;

    use super::*;
    use crate::region::table::OwnedTable;

    #[test]
    fn connections_with_a_domain_share_its_table_and_a_liar_has_its_own() {
        let tables = PeerTables::default();
        let open = |owned: &OwnedTable, domain| {
            let fd = owned.fd().unwrap().try_clone_to_owned().unwrap();
            tables.open(domain, &fd).unwrap()
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
    fn the_inode_of_another_device_and_what_is_no_memfd_are_not_the_table_that_is_known() {
        let tables = PeerTables::default();
        let open = |fd: OwnedFd| tables.open([7; 16], &fd);
        let honest = OwnedTable::create([7; 16]).unwrap();
        let sent = || honest.fd().unwrap().try_clone_to_owned().unwrap();
        let first = open(sent()).unwrap();
        let stands_for = |file| tables.0.lock().unwrap().get_mut(&[7; 16]).unwrap().0 = file;
        let stat = fstat(sent()).unwrap();
        stands_for((stat.st_dev + 1, stat.st_ino));
        assert!(!Arc::ptr_eq(&first, &open(sent()).unwrap()), "the same inode elsewhere");
        // A file system of the peer's own says of its files what it likes.
        let (pipe, _writer) = std::io::pipe().unwrap();
        let pipe = OwnedFd::from(pipe);
        let stat = fstat(&pipe).unwrap();
        stands_for((stat.st_dev, stat.st_ino));
        let refused = open(pipe).unwrap_err().to_string();
        assert!(refused.contains("no memfd"), "{refused}");
    }

    #[test]
    fn domains_that_are_gone_leave_nothing() {
        let tables = PeerTables::default();
        for number in 0..100 {
            let owned = OwnedTable::create([number; 16]).unwrap();
            let fd = owned.fd().unwrap().try_clone_to_owned().unwrap();
            tables.open([number; 16], &fd).unwrap();
        }
        assert!(tables.0.lock().unwrap().len() < 10);
    }
}
