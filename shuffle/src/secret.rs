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
    /// Rank 0 draws it; all get it. Collective.
    pub(crate) fn share(group: &impl Group) -> Result<Self, Error> {
        let mut own = [0; LEN];
        if group.rank() == 0 {
            let failed = |error| Error::Setup(format!("no random numbers: {error}"));
            getrandom::fill(&mut own).map_err(failed)?;
        }
        let drawn = group.share(&own).map_err(Error::Setup)?;
        let drawn = drawn.as_slice().try_into();
        let drawn = drawn
            .map_err(|_| Error::Setup("rank 0 runs another version of the shuffle".to_owned()))?;
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
