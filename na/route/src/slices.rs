//! Local memory of transfers under way: a plugin is given its own part of a region, the poster gets back what
//! it posted.

use std::mem::replace;

use hg_na::{Completion, Error, LocalSlice, Op, RegionState, RemoteSlice, Returned, Token};
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

/// Memory that an operation names: this side's, and a peer's.
pub(crate) type Memory = (Option<LocalSlice>, Option<RemoteSlice>);

/// One plugin's parts of the memory that an operation names.
///
/// # Errors
/// [`Error::Unsupported`] for memory of another plugin; [`Error::OutOfRange`].
pub(crate) fn parts(op: &mut Op, way: Way, scheme: &str) -> Result<Memory, Error> {
    let (local, remote) = memory(op);
    let near = local.map(|slice| {
        region_of(slice.region().as_ref())?.part(way).slice(slice.offset(), slice.len())
    });
    Ok((near.transpose()?, remote.map(|slice| far(slice, scheme)).transpose()?))
}

/// Puts other memory into an operation, and gives what was in it.
pub(crate) fn swap(op: &mut Op, (local, remote): Memory) -> Memory {
    let (own, far) = memory(op);
    (
        own.zip(local).map(|(own, local)| replace(own, local)),
        far.zip(remote).map(|(far, remote)| replace(far, remote)),
    )
}

fn memory(op: &mut Op) -> (Option<&mut LocalSlice>, Option<&mut RemoteSlice>) {
    match op {
        Op::Put { local, remote, .. } | Op::Get { from: _, local, remote } => {
            (Some(local), Some(remote))
        }
        Op::View { remote, .. } => (None, Some(remote)),
        _ => (None, None),
    }
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
fn far(slice: &RemoteSlice, scheme: &str) -> Result<RemoteSlice, Error> {
    match slice.descriptor().part_for(scheme) {
        Some(part) => part.slice(slice.offset(), slice.len()),
        None => Ok(slice.clone()),
    }
}
