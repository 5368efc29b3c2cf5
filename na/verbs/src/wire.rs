//! What each end of a connection tells the other. The other side's numbers are claims until they are checked here.
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
//! | 36 | 8 | its token |
//! | 44 | 4 | the connection's line: 16 or more |
//! | 48 | 1 | 1: others may share its pair |
//! | 49 | 8 each | tokens: 64 at most |

use hg_na_link::{Greeting, frame::Reader};

use crate::{
    card::{Greeted, Side},
    sharing::{FIRST_LINE, TOKENS_MAX},
};

const MAGIC: [u8; 8] = *b"hg-vrb\x00\x03";

impl Greeting for Greeted {
    fn encode(&self, into: &mut Vec<u8>) {
        let side = &self.side;
        into.extend(MAGIC);
        into.extend(side.number.to_le_bytes());
        into.extend(side.first_packet.to_le_bytes());
        into.extend(side.gid);
        into.extend(side.lid.to_le_bytes());
        into.extend([side.mtu, side.reads]);
        into.extend(side.token.to_le_bytes());
        into.extend(self.line.to_le_bytes());
        into.push(self.shares.into());
        self.tokens.iter().for_each(|token| into.extend(token.to_le_bytes()));
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.array::<8>()? != MAGIC {
            return None;
        }
        let (number, first_packet, gid) = (reader.u32()?, reader.u32()?, reader.array()?);
        let lid = u16::from_le_bytes(reader.array()?);
        let [mtu, reads] = reader.array()?;
        let (token, line) = (u64::from_le_bytes(reader.array()?), reader.u32()?);
        let [shares] = reader.array()?;
        let mut tokens = Vec::new();
        while !reader.0.is_empty() {
            tokens.push(u64::from_le_bytes(reader.array()?));
        }
        let is_possible = (1..=5).contains(&mtu)
            && line >= FIRST_LINE
            && shares <= 1
            && tokens.len() <= TOKENS_MAX;
        let side = Side { number, first_packet, gid, lid, mtu, reads, token };
        is_possible.then_some(Self { side, line, shares: shares == 1, tokens })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_survive_their_wire_form_and_impossible_ones_are_refused() {
        let (gid, token) = ([7; 16], 1 << 40);
        let side = Side { number: 17, first_packet: 5, gid, lid: 3, mtu: 5, reads: 16, token };
        let greeted = Greeted { side, line: 16, shares: true, tokens: vec![3; TOKENS_MAX] };
        let encoded = |greeted: &Greeted| {
            let mut bytes = Vec::new();
            greeted.encode(&mut bytes);
            bytes
        };
        let bytes = encoded(&greeted);
        assert_eq!(Greeted::decode(&bytes).as_ref(), Some(&greeted));
        assert_eq!(Greeted::decode(&bytes[1..]), None);
        assert_eq!(Greeted::decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(Greeted::decode(&[&bytes[..], b"x"].concat()), None);
        assert_eq!(Greeted::decode(&[&bytes[..], &[0; 8]].concat()), None, "too many tokens");
        for line in 0..FIRST_LINE {
            let word = Greeted { line, ..greeted.clone() };
            assert_eq!(Greeted::decode(&encoded(&word)), None, "{line} is a word of a pair");
        }
        let wide = Greeted { side: Side { mtu: 6, ..side }, ..greeted };
        assert_eq!(Greeted::decode(&encoded(&wide)), None);
    }
}
