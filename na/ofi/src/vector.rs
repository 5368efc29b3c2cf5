//! Endpoints' addresses in libfabric's vector: each is inserted once, however many connections use it, and removed when none does any more and
//! nothing is under way to it, or [`RETIRE_AFTER`] later. Until then a connection that comes anew finds it.

use std::time::{Duration, Instant};

use hg_na::Error;
use rustc_hash::FxHashMap;

/// How long what libfabric never gives back keeps its target's address.
const RETIRE_AFTER: Duration = Duration::from_secs(1);

/// One that connections use.
#[derive(Debug)]
struct Known {
    address: u64,
    users: usize,
}

/// One that no connection uses any more.
#[derive(Debug)]
struct Retiring {
    name: Vec<u8>,
    address: u64,
    /// When it is removed at the latest.
    by: Instant,
}

/// What is in the vector.
#[derive(Debug, Default)]
pub(crate) struct Vector {
    known: FxHashMap<Vec<u8>, Known>,
    retiring: Vec<Retiring>,
}

impl Vector {
    /// One more connection uses an endpoint: its address, which `insert` inserts if it is not there.
    ///
    /// # Errors
    /// Of `insert`.
    pub(crate) fn know(
        &mut self,
        name: &[u8],
        insert: impl FnOnce() -> Result<u64, Error>,
    ) -> Result<u64, Error> {
        if let Some(known) = self.known.get_mut(name) {
            known.users += 1;
            return Ok(known.address);
        }
        let retiring = self.retiring.iter().position(|it| it.name == name);
        let address = match retiring {
            Some(place) => self.retiring.swap_remove(place).address,
            None => insert()?,
        };
        self.known.insert(name.to_vec(), Known { address, users: 1 });
        Ok(address)
    }

    /// A connection uses it no more.
    pub(crate) fn unknow(&mut self, name: Vec<u8>, now: Instant) {
        let Some(known) = self.known.get_mut(&name) else { return };
        known.users -= 1;
        if known.users == 0 {
            let (address, by) = (known.address, now + RETIRE_AFTER);
            self.known.remove(&name);
            self.retiring.push(Retiring { name, address, by });
        }
    }

    /// Whether some wait to be removed.
    pub(crate) fn retires(&self) -> bool {
        !self.retiring.is_empty()
    }

    /// When one is to be removed at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.retiring.iter().map(|it| it.by).min()
    }

    /// Takes one out that is to be removed: nothing is under way to it (`is_idle`), or its time has come.
    pub(crate) fn retired(
        &mut self,
        is_idle: impl Fn(u64) -> bool,
        now: Option<Instant>,
    ) -> Option<u64> {
        let is_due = |it: &Retiring| now.is_some_and(|now| it.by <= now);
        let place = self.retiring.iter().position(|it| is_idle(it.address) || is_due(it))?;
        Some(self.retiring.swap_remove(place).address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_inserted_once_and_removed_when_nobody_uses_it_and_nothing_is_under_way() {
        let (mut vector, now) = (Vector::default(), Instant::now());
        assert_eq!(vector.know(b"a", || Ok(7)).unwrap(), 7);
        assert_eq!(vector.know(b"a", || panic!("it is there")).unwrap(), 7);
        vector.unknow(b"a".to_vec(), now);
        assert!(!vector.retires(), "somebody uses it");
        vector.unknow(b"a".to_vec(), now);
        assert_eq!(vector.deadline(), Some(now + RETIRE_AFTER));
        assert_eq!(vector.retired(|_| false, Some(now)), None, "something is under way");
        assert_eq!(vector.know(b"a", || panic!("it is still there")).unwrap(), 7);
        assert!(!vector.retires());
        vector.unknow(b"a".to_vec(), now);
        assert_eq!(vector.retired(|address| address == 7, None), Some(7));
        assert_eq!(vector.know(b"a", || Ok(8)).unwrap(), 8);
        vector.unknow(b"a".to_vec(), now);
        assert_eq!(vector.retired(|_| false, Some(now + RETIRE_AFTER)), Some(8));
        assert_eq!(vector.deadline(), None);
    }

    #[test]
    fn an_address_that_is_not_taken_leaves_nothing() {
        let mut vector = Vector::default();
        assert!(vector.know(b"a", || Err(Error::Again)).is_err());
        vector.unknow(b"a".to_vec(), Instant::now());
        assert!(vector.known.is_empty() && !vector.retires());
    }
}
