//! The ranks of a [`Job`] as those of a shuffle.

use std::{collections::BTreeMap, sync::Arc};

use hg_job::{Channel, Job, NodeMap};

use crate::Group;

/// The ranks of a job, on the nodes that they run on or on imitated ones.
#[derive(Debug)]
pub struct Ranks {
    rank: u32,
    map: Arc<NodeMap>,
    channel: Channel,
}

impl Ranks {
    /// For the shuffle of this name: its ranks meet in an order of their own.
    #[must_use]
    pub fn of(job: &Job, name: &str) -> Self {
        let channel = job.channel(&format!("shuffle.{name}"));
        Self { rank: job.rank(), map: Arc::new(job.node_map().clone()), channel }
    }

    /// On other nodes than the job's: to imitate many on one machine.
    ///
    /// # Panics
    /// The map has another number of ranks.
    #[must_use]
    pub fn on(self, map: Arc<NodeMap>) -> Self {
        assert_eq!(map.size(), self.map.size(), "a map of as many ranks as the job has");
        Self { map, ..self }
    }
}

impl Group for Ranks {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn map(&self) -> Arc<NodeMap> {
        Arc::clone(&self.map)
    }

    fn share(&self, own: &[u8]) -> Result<Vec<u8>, String> {
        self.channel.share(own).map_err(|error| error.to_string())
    }

    fn exchange(&self, peers: &[u32], own: &[u8]) -> Result<BTreeMap<u32, Arc<[u8]>>, String> {
        self.channel.exchange(peers, own).map_err(|error| error.to_string())
    }

    fn barrier(&self) -> Result<(), String> {
        self.channel.barrier().map_err(|error| error.to_string())
    }
}
