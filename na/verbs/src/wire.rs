//! What each end of a connection tells the other of its queue pair. The other side's numbers are claims until they are checked here.
//!
//! # Layout (little-endian)
//! | offset | size | field |
//! |---:|---:|---|
//! | 0 | 8 | magic and version |
//! | 8 | 4 | queue pair |
//! | 12 | 4 | its first packet |
//! | 16 | 16 | GID |
//! | 32 | 2 | LID |
//! | 34 | 1 | longest packet: codes of 256 to 4,096 bytes |
//! | 35 | 1 | reads that it answers at a time |

use hg_na_link::{Greeting, frame::Reader};

use crate::card::Side;

const MAGIC: [u8; 8] = *b"hg-vrb\x00\x02";

impl Greeting for Side {
    fn encode(&self, into: &mut Vec<u8>) {
        into.extend(MAGIC);
        into.extend(self.number.to_le_bytes());
        into.extend(self.first_packet.to_le_bytes());
        into.extend(self.gid);
        into.extend(self.lid.to_le_bytes());
        into.extend([self.mtu, self.reads]);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.array::<8>()? != MAGIC {
            return None;
        }
        let (number, first_packet, gid) = (reader.u32()?, reader.u32()?, reader.array()?);
        let lid = u16::from_le_bytes(reader.array()?);
        let [mtu, reads] = reader.array()?;
        let is_possible = reader.0.is_empty() && (1..=5).contains(&mtu);
        is_possible.then_some(Self { number, first_packet, gid, lid, mtu, reads })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_survive_their_wire_form_and_impossible_ones_are_refused() {
        let side = Side { number: 17, first_packet: 5, gid: [7; 16], lid: 3, mtu: 5, reads: 16 };
        let encoded = |side: &Side| {
            let mut bytes = Vec::new();
            side.encode(&mut bytes);
            bytes
        };
        let bytes = encoded(&side);
        assert_eq!(Side::decode(&bytes), Some(side));
        assert_eq!(Side::decode(&bytes[1..]), None);
        assert_eq!(Side::decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(Side::decode(&[&bytes[..], b"x"].concat()), None);
        assert_eq!(Side::decode(&encoded(&Side { mtu: 6, ..side })), None);
    }
}
