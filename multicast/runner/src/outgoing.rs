//! The blocks that a plan asks for, read from the sender's files and packed into parts.

use std::{collections::VecDeque, fs::File, os::unix::fs::FileExt as _};

use crate::{
    offer::{Offer, Sum, Trouble, What},
    part::Writer,
    plan::{Need, Plan},
    source::Source,
};

/// Parts, one after the other.
#[derive(Debug)]
pub struct Outgoing<'a> {
    source: &'a Source,
    offer: &'a Offer,
    waiting: VecDeque<Need>,
    current: Option<Current>,
    /// Files that could not be read to their end: no host gets them.
    failed: Vec<Trouble>,
}

/// A file that is read.
#[derive(Debug)]
struct Current {
    entry: u32,
    size: u64,
    file: File,
    blocks: Option<VecDeque<u32>>,
    next: u32,
    sums: Vec<Sum>,
}

impl<'a> Outgoing<'a> {
    /// Of a plan.
    #[must_use]
    pub fn new(source: &'a Source, offer: &'a Offer, plan: Plan) -> Self {
        let failed = plan.lost.into_iter().map(|(_, trouble)| trouble).collect();
        Self { source, offer, waiting: plan.needs.into(), current: None, failed }
    }

    /// A part of about this many bytes; `None`: there is nothing more.
    pub fn next_part(&mut self, len: usize) -> Option<Vec<u8>> {
        let mut writer = Writer::default();
        while writer.len() < len {
            if self.current.is_none() {
                let Some(need) = self.waiting.pop_front() else { break };
                match self.begin(need) {
                    Ok(current) => self.current = Some(current),
                    Err(trouble) => self.failed.push(trouble),
                }
                continue;
            }
            if let Err(trouble) = self.step(&mut writer) {
                self.failed.push(trouble);
                self.current = None;
            }
        }
        (!writer.is_empty()).then(|| writer.finish())
    }

    /// Files that could not be read to their end.
    #[must_use]
    pub fn failed(&self) -> &[Trouble] {
        &self.failed
    }

    fn begin(&self, need: Need) -> Result<Current, Trouble> {
        let Need { entry, blocks, sums } = need;
        let What::File(size) = self.offer.entries[entry as usize].what else {
            unreachable!("a plan has files only")
        };
        let file = self.source.open(entry)?;
        Ok(Current {
            entry,
            size,
            file,
            blocks: blocks.map(Into::into),
            next: 0,
            sums: sums.unwrap_or_default(),
        })
    }

    /// The next block of the current file, or its end.
    fn step(&mut self, writer: &mut Writer) -> Result<(), Trouble> {
        let Some(current) = &mut self.current else { return Ok(()) };
        let block = match &mut current.blocks {
            Some(blocks) => blocks.pop_front(),
            None => Some(current.next),
        };
        let range = block.and_then(|block| Some((block, self.offer.range(current.size, block)?)));
        let Some((block, (from, len))) = range else {
            self.source.check(current.entry, &current.file)?;
            writer.end(current.entry, Sum::of_file(current.size, &current.sums));
            self.current = None;
            return Ok(());
        };
        let read = |bytes: &mut [u8]| current.file.read_exact_at(bytes, from);
        let sum = writer.block((current.entry, block), len, read);
        let sum =
            sum.map_err(|why| Trouble::new(self.source.place(current.entry).display(), why))?;
        if current.blocks.is_none() {
            current.sums.push(sum);
            current.next += 1;
        }
        Ok(())
    }
}
