//! What a call lends its target, until that has taken it.

use hg_bulk::Local;
use hg_na::Frozen;

/// Memory that a target takes before it runs the handler of a call.
#[derive(Debug, Default)]
pub struct Lent {
    /// The encoded arguments, where they do not fit in a message.
    pub arguments: Option<Local>,
    /// What they hold of frozen memory, which stays registered as long as there is a clone.
    pub frozen: Vec<Frozen>,
}

/// What keeping one piece of frozen memory costs beside its bytes, which are its user's.
const FROZEN_COST: u64 = 256;

impl Lent {
    /// Bytes that are kept for the target.
    #[must_use]
    pub fn cost(&self) -> u64 {
        let arguments = self.arguments.as_ref().map_or(0, Local::len);
        arguments + FROZEN_COST * self.frozen.len() as u64
    }
}
