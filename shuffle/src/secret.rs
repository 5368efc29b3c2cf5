//! What only the ranks of a job know of a shuffle: rank 0 draws it, and the job hands it round.

use crate::{Error, Group, rpc::Id};

/// The same on all ranks. Never printed.
pub(crate) struct Secret {
    /// Who calls with it belongs to the shuffle.
    pub(crate) id: Id,
    /// Of the network.
    pub(crate) key: [u8; 32],
}

impl Secret {
    /// Rank 0 draws it; all get it. Each rank gives the shuffle's name, too: it has to be one. Collective.
    pub(crate) fn share(group: &impl Group, name: &str) -> Result<Self, Error> {
        let mut own = Vec::new();
        if group.rank() == 0 {
            own = vec![0; LEN];
            let failed = |error| Error::Setup(format!("no random numbers: {error}"));
            getrandom::fill(&mut own).map_err(failed)?;
        }
        own.extend_from_slice(name.as_bytes());
        let all = group.all_gather(&own).map_err(Error::Setup)?;
        let (drawn, theirs) = all
            .first()
            .and_then(|first| first.split_first_chunk())
            .ok_or_else(|| Error::Setup("rank 0 runs another version of the shuffle".to_owned()))?;
        let names = [theirs].into_iter().chain(all.iter().skip(1).map(Vec::as_slice));
        for (rank, theirs) in names.enumerate() {
            if theirs != name.as_bytes() {
                let theirs = String::from_utf8_lossy(theirs);
                let why =
                    format!("rank {rank} makes the shuffle `{theirs}`, and this one `{name}`");
                return Err(Error::Setup(why));
            }
        }
        Ok(Self::of(drawn))
    }

    fn of(drawn: &[u8; LEN]) -> Self {
        let mut words = drawn
            .chunks_exact(8)
            .map(|word| word.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)));
        let id = [(); 2].map(|()| words.next().unwrap_or_default());
        let mut key = [0; 32];
        key.copy_from_slice(&drawn[ID_LEN..]);
        Self { id, key }
    }
}

const ID_LEN: usize = 16;
const LEN: usize = ID_LEN + 32;
