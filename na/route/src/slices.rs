//! Local memory of transfers under way: a plugin is given its own part of a region, the poster gets back what
//! it posted.

use hg_na::{Completion, Error, LocalSlice, Op, RemoteSlice, Returned, Token};
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
    pub(crate) fn forget(&mut self, key: Token) {
        if let Ok(key) = usize::try_from(key) {
            self.0.try_remove(key);
        }
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

/// The operation as one plugin understands it; `None` for one that concerns no registered memory.
///
/// # Errors
/// [`Error::Unsupported`] for memory of another plugin, [`Error::OutOfRange`].
pub(crate) fn for_plugin(op: &Op, way: Way, scheme: &str) -> Result<Option<Op>, Error> {
    let near = |slice: &LocalSlice| {
        let any: &dyn std::any::Any = slice.region().as_ref();
        let region = any.downcast_ref::<RouteRegion>();
        let region = region.ok_or(Error::Unsupported("local memory of another plugin"))?;
        region.part(way).slice(slice.offset(), slice.len())
    };
    let far = |slice: &RemoteSlice| match slice.descriptor().part_for(scheme) {
        Some(part) => part.slice(slice.offset(), slice.len()),
        // Of an engine without routing, or damaged: the plugin knows.
        None => Ok(slice.clone()),
    };
    Ok(Some(match op {
        Op::Put { to, local, remote } => {
            Op::Put { to: *to, local: near(local)?, remote: far(remote)? }
        }
        Op::Get { from, local, remote } => {
            Op::Get { from: *from, local: near(local)?, remote: far(remote)? }
        }
        Op::View { from, remote } => Op::View { from: *from, remote: far(remote)? },
        _ => return Ok(None),
    }))
}

/// The local memory of a put or get.
pub(crate) fn local_of(op: &Op) -> Option<&LocalSlice> {
    match op {
        Op::Put { local, .. } | Op::Get { local, .. } => Some(local),
        _ => None,
    }
}
