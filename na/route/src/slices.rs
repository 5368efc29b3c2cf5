//! Local memory of transfers under way: a plugin is given its own part of a region, the poster gets back what
//! it posted.

use hg_na::{Completion, Error, LocalSlice, RegionState, RemoteSlice, Returned, Token};
use slab::Slab;

use crate::{Way, region::RouteRegion};

/// What the poster gave, by the token that the plugin is given instead.
#[derive(Debug, Default)]
pub(crate) struct Slices(Slab<(Token, LocalSlice)>);

impl Slices {
    /// Keeps what a completion is to hand back.
    pub(crate) fn keep(&mut self, token: Token, slice: LocalSlice) -> Token {
        self.0.insert((token, slice)) as Token
    }

    /// The plugin has refused it.
    pub(crate) fn give_back(&mut self, key: Token) -> LocalSlice {
        let key = usize::try_from(key).expect("a key of this process's memory");
        self.0.remove(key).1
    }

    /// Whether no transfer is under way.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Gives the poster's token and slice back to the completions of transfers.
    pub(crate) fn restore(&mut self, done: &mut [Completion]) {
        for completion in done {
            if let Completion::Done(done) = completion
                && let Returned::Slice(slice) = &mut done.returned
                && let Ok(key) = usize::try_from(done.token)
                && let Some((token, kept)) = self.0.try_remove(key)
            {
                done.token = token;
                *slice = kept;
            }
        }
    }
}

/// One plugin's part of local memory.
///
/// # Errors
/// [`Error::Unsupported`] for memory of another plugin.
pub(crate) fn near(slice: &LocalSlice, way: Way) -> Result<LocalSlice, Error> {
    region_of(slice.region().as_ref())?.part(way).slice(slice.offset(), slice.len())
}

/// This plugin's own side of local memory.
///
/// # Errors
/// [`Error::Unsupported`] for memory of another plugin.
pub(crate) fn region_of(state: &dyn RegionState) -> Result<&RouteRegion, Error> {
    let any: &dyn std::any::Any = state;
    any.downcast_ref().ok_or(Error::Unsupported("local memory of another plugin"))
}

/// One plugin's part of a peer's memory. What has none is the plugin's to judge: it comes from an engine
/// without routing, or is damaged.
///
/// # Errors
/// [`Error::OutOfRange`].
pub(crate) fn far(slice: &RemoteSlice, scheme: &str) -> Result<RemoteSlice, Error> {
    match slice.descriptor().part_for(scheme) {
        Some(part) => part.slice(slice.offset(), slice.len()),
        None => Ok(slice.clone()),
    }
}
