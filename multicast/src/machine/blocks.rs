//! Which blocks of an object are here.

/// A set of blocks, of so many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlockSet {
    words: Vec<u64>,
    blocks: u64,
    held: u64,
}

impl BlockSet {
    pub(crate) fn none(blocks: u64) -> Self {
        let words = vec![0; usize::try_from(blocks.div_ceil(64)).expect("blocks fit in memory")];
        Self { words, blocks, held: 0 }
    }

    pub(crate) fn all(blocks: u64) -> Self {
        let mut set = Self::none(blocks);
        set.words.fill(u64::MAX);
        set.held = blocks;
        set
    }

    fn place(block: u64) -> (usize, u64) {
        (usize::try_from(block / 64).unwrap_or(usize::MAX), 1 << (block % 64))
    }

    pub(crate) fn has(&self, block: u64) -> bool {
        let (word, bit) = Self::place(block);
        block < self.blocks && self.words.get(word).is_some_and(|it| it & bit != 0)
    }

    /// Says whether it was not here before.
    pub(crate) fn insert(&mut self, block: u64) -> bool {
        let is_new = block < self.blocks && !self.has(block);
        if is_new {
            let (word, bit) = Self::place(block);
            self.words[word] |= bit;
            self.held += 1;
        }
        is_new
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.held == self.blocks
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> {
        (0..self.blocks).filter(|block| self.has(*block))
    }
}
