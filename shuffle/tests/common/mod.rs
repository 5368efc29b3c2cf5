//! Ranks as threads of one process, each with engines of its own.

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex},
};

use hg_job::NodeMap;
use hg_shuffle::{Delivery, Group, Options, Shuffle};

use watchdog::Watchdog;

/// A rank that is a thread.
pub(crate) struct Thread {
    rank: u32,
    shared: Arc<Shared>,
}

struct Shared {
    map: Arc<NodeMap>,
    gathering: Mutex<Gathering>,
    changed: Condvar,
}

#[derive(Default)]
struct Gathering {
    /// Of the gathering that goes on.
    given: Vec<Option<Vec<u8>>>,
    /// The last one, and how many have ended.
    result: Vec<Vec<u8>>,
    ended: u64,
}

impl Group for Thread {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn map(&self) -> Arc<NodeMap> {
        Arc::clone(&self.shared.map)
    }

    fn share(&self, own: &[u8]) -> Result<Vec<u8>, String> {
        Ok(self.all_gather(own).swap_remove(0))
    }

    fn exchange(&self, peers: &[u32], own: &[u8]) -> Result<BTreeMap<u32, Arc<[u8]>>, String> {
        let all = self.all_gather(own);
        Ok(peers.iter().map(|peer| (*peer, all[*peer as usize].as_slice().into())).collect())
    }

    fn barrier(&self) -> Result<(), String> {
        self.all_gather(&[]);
        Ok(())
    }
}

impl Thread {
    fn all_gather(&self, own: &[u8]) -> Vec<Vec<u8>> {
        let mut gathering = self.shared.gathering.lock().unwrap();
        let round = gathering.ended;
        gathering.given[self.rank as usize] = Some(own.to_vec());
        if gathering.given.iter().all(Option::is_some) {
            gathering.result =
                gathering.given.iter_mut().map(|bytes| bytes.take().unwrap()).collect();
            gathering.ended += 1;
            self.shared.changed.notify_all();
        }
        while gathering.ended == round {
            gathering = self.shared.changed.wait(gathering).unwrap();
        }
        gathering.result.clone()
    }
}

/// Runs every rank of a map, each in a thread; what they return, by rank.
pub(crate) fn run<T: Send>(map: &str, rank: impl Fn(Thread) -> T + Sync) -> Vec<T> {
    let _watchdog = Watchdog::within(2 * watchdog::LIMIT);
    let map: Arc<NodeMap> = Arc::new(map.parse().unwrap());
    let gathering = Gathering { given: vec![None; map.size() as usize], ..Gathering::default() };
    let shared =
        Arc::new(Shared { map, gathering: Mutex::new(gathering), changed: Condvar::new() });
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..shared.map.size())
            .map(|number| {
                let thread = Thread { rank: number, shared: Arc::clone(&shared) };
                scope.spawn(|| rank(thread))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// What a rank was delivered.
pub(crate) type Delivered = Arc<Mutex<Vec<(u32, u32, Vec<u8>)>>>;

/// A shuffle that keeps what it is delivered.
pub(crate) fn keeping(group: &impl Group, options: Options) -> (Shuffle, Delivered) {
    let delivered = Delivered::default();
    let kept = Arc::clone(&delivered);
    let keep = move |delivery: Delivery<'_>| {
        let Delivery { source, kind, bytes, .. } = delivery;
        kept.lock().unwrap().push((source, kind, bytes.to_vec()));
    };
    (Shuffle::new(group, "test", options, keep).unwrap(), delivered)
}
