//! The fields of a frame as bytes.

use super::{CHANNEL_MAX, Garbage};
use crate::node_map::RANKS_MAX;

/// Bytes of most frames: they are written in one piece of memory.
const SHORT: usize = 128;

/// Writes a frame.
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn new() -> Self {
        let mut bytes = Vec::with_capacity(SHORT);
        bytes.extend_from_slice(&[0; 4]);
        Self(bytes)
    }

    pub(super) fn u8(&mut self, number: u8) -> &mut Self {
        self.0.push(number);
        self
    }

    pub(super) fn u32(&mut self, number: u32) -> &mut Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    pub(super) fn u64(&mut self, number: u64) -> &mut Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    pub(super) fn length(&mut self, length: usize) -> &mut Self {
        self.u32(u32::try_from(length).expect("limits keep lengths below 4 GiB"))
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.length(bytes.len());
        self.0.extend_from_slice(bytes);
        self
    }

    /// Which collective call.
    pub(super) fn call(&mut self, channel: &str, number: u64) -> &mut Self {
        self.bytes(channel.as_bytes()).u64(number)
    }

    pub(super) fn values(&mut self, values: &[Vec<u8>]) -> &mut Self {
        self.length(values.len());
        for value in values {
            self.bytes(value);
        }
        self
    }

    pub(super) fn ranks(&mut self, ranks: &[u32]) -> &mut Self {
        self.length(ranks.len());
        for rank in ranks {
            self.u32(*rank);
        }
        self
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len() - 4).expect("limits keep frames below 4 GiB");
        self.0[..4].copy_from_slice(&length.to_le_bytes());
        self.0
    }
}

/// Reads the body of one.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Garbage> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(Garbage)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Garbage> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn u32(&mut self) -> Result<u32, Garbage> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Garbage> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Garbage> {
        let length = self.u32()? as usize;
        let (first, rest) = self.0.split_at_checked(length).ok_or(Garbage)?;
        self.0 = rest;
        Ok(first)
    }

    pub(super) fn text(&mut self) -> Result<String, Garbage> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| Garbage)
    }

    pub(super) fn channel(&mut self) -> Result<String, Garbage> {
        let channel = self.text()?;
        if channel.len() <= CHANNEL_MAX { Ok(channel) } else { Err(Garbage) }
    }

    /// Grows with what is there, not with what is announced.
    pub(super) fn list<T>(
        &mut self,
        mut one: impl FnMut(&mut Self) -> Result<T, Garbage>,
    ) -> Result<Vec<T>, Garbage> {
        let count = self.u32()?;
        let mut list = Vec::new();
        for _ in 0..count {
            list.push(one(self)?);
        }
        Ok(list)
    }

    /// The node of each rank, from runs that are as long as they can be.
    pub(super) fn nodes(&mut self) -> Result<Vec<u32>, Garbage> {
        let mut nodes = Vec::new();
        for _ in 0..self.u32()? {
            let (node, count) = (self.u32()?, self.u32()?);
            let is_new = nodes.last() != Some(&node) && count > 0;
            if !is_new || nodes.len() + count as usize > RANKS_MAX as usize {
                return Err(Garbage);
            }
            nodes.resize(nodes.len() + count as usize, node);
        }
        Ok(nodes)
    }

    pub(super) fn ranks(&mut self) -> Result<Vec<u32>, Garbage> {
        let count = self.u32()? as usize;
        let length = count.checked_mul(4).ok_or(Garbage)?;
        let (first, rest) = self.0.split_at_checked(length).ok_or(Garbage)?;
        self.0 = rest;
        Ok(first
            .chunks_exact(4)
            .map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]))
            .collect())
    }

    pub(super) fn end<T>(&self, frame: T) -> Result<T, Garbage> {
        if self.0.is_empty() { Ok(frame) } else { Err(Garbage) }
    }
}
