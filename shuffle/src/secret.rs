//! What only the ranks of a job know of a shuffle: rank 0 draws it, and the job hands it round.

use blake2::{Blake2s256, Digest as _};

use crate::{Error, Group};

/// Which shuffle, and which two of its ranks.
pub(crate) type Id = [u64; 2];

/// The same on all ranks. Never printed.
pub(crate) struct Secret {
    /// What the ids of pairs are made of. No message has it.
    seed: [u8; SEED],
    /// Of the network.
    pub(crate) key: [u8; KEY],
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
        let Some((seed, key)) = drawn.split_first_chunk() else { return Err(other_version()) };
        let key = key.try_into().map_err(|_| other_version())?;
        Ok(Self { seed: *seed, key })
    }

    /// What one rank calls another one with: who has overheard it knows nothing that a third one takes.
    pub(crate) fn id(&self, from: u32, to: u32) -> Id {
        let [from, to] = [from, to].map(u32::to_be_bytes);
        let hash = Blake2s256::new().chain_update(self.seed).chain_update(from).chain_update(to);
        let digest = hash.finalize();
        let (words, _) = digest.as_chunks::<8>();
        [u64::from_be_bytes(words[0]), u64::from_be_bytes(words[1])]
    }
}

fn other_version() -> Error {
    Error::Setup("rank 0 runs another version of the shuffle".to_owned())
}

const SEED: usize = 32;
const KEY: usize = 32;
/// Bytes that rank 0 shares.
pub(crate) const LEN: usize = SEED + KEY;

#[cfg(test)]
mod tests {
    use super::*;

    /// The strangers of `tests/strangers.rs` count on this.
    #[test]
    fn an_id_is_the_hash_of_the_seed_and_of_both_ranks() {
        let id = Secret { seed: [7; SEED], key: [0; KEY] }.id(1, 0);
        assert_eq!(id, [0x5cb9_6261_76aa_dab2, 0xfa49_db53_1aba_efd1]);
    }
}
