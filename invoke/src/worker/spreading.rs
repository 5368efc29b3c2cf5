//! Broadcasts of buffers: with the broadcast, or read by each from the one that tells it.

use std::sync::Arc;

use hg_core::{
    codec::{self, Codec as _},
    rpc::Rpc,
};
use hg_na::{Memory, Rights};

use super::{
    Then, Worker,
    reading::{LEN, Source},
    running::{BROADCAST, GROUP, Malformed, READ, UNKNOWN, UNREADABLE},
};
use crate::{EndsWith, Error, FrontOf, How, Part, Refused, broadcasts::Name};

impl Worker {
    /// Runs a function whose last argument is `&[u8]` at every worker, with these bytes, which travel with the broadcast. As
    /// `broadcast_with(function, (args.., bytes), how)`.
    ///
    /// # Errors
    /// As [`Worker::broadcast_with`]. [`Error::TooLong`]: bytes for [`Worker::broadcast_buffer_read`].
    pub fn broadcast_buffer<'a, F: Rpc>(
        &self,
        function: F,
        args: FrontOf<'a, F, &'a [u8]>,
        bytes: &'a [u8],
        how: How<'_>,
    ) -> Result<(), Refused<FrontOf<'a, F, &'a [u8]>>>
    where
        F::Args<'a>: EndsWith<&'a [u8]>,
    {
        let begun = self.broadcast_with(function, EndsWith::join(args, bytes), how);
        begun.map_err(|Refused { args, error }| Refused { args: args.front(), error })
    }

    /// Runs a function whose last argument is `&[u8]` at every worker, once that has read a part of a buffer: from the one that tells it, which
    /// keeps what it has read until all below it have run the function. So no worker sends the bytes more than eight times.
    ///
    /// The part is not to be changed until the broadcast has run everywhere, which is when it counts as sent, too. Whoever cannot read
    /// the bytes does not run the function, nor do those behind it: [`How::when_run`] tells [`Error::Gone`] and its number.
    ///
    /// # Errors
    /// As [`Worker::broadcast_with`]; [`Error::Memory`], [`Error::BufferTooLong`] as [`Worker::call_buffer_read`]. [`Error::Full`]: the bytes count as
    /// those of the broadcast do, and one broadcast is always let in.
    pub fn broadcast_buffer_read<'a, F: Rpc>(
        &self,
        function: F,
        args: FrontOf<'a, F, &'a [u8]>,
        from: Part<'_>,
        how: How<'_>,
    ) -> Result<(), Refused<FrontOf<'a, F, &'a [u8]>>>
    where
        F::Args<'a>: EndsWith<&'a [u8]>,
    {
        let _: F = function;
        let wire = F::pack(<F::Args<'a> as EndsWith<&'a [u8]>>::join(args, &[]));
        let begun = self.begin_of_buffer::<F>(&wire, &from, how);
        begun.map_err(|error| Refused { args: F::unpack(wire).front(), error })
    }

    fn begin_of_buffer<F: Rpc>(
        &self,
        wire: &F::WireArgs<'_>,
        from: &Part<'_>,
        how: How<'_>,
    ) -> Result<(), Error> {
        let (lent, source) = self.lend(from)?;
        let (tag, number, bytes) = self.encode_broadcast::<F>(wire, how, (READ, &source))?;
        // Descriptors of workers differ; what a broadcast counts does not.
        let args = codec::Default::size(wire).map_err(Error::Unencodable)?;
        let len = args.saturating_add(usize::try_from(lent.len()).unwrap_or(usize::MAX));
        self.wait_for_broadcasts(len, how.room)?;
        self.begin_broadcast(tag, number, &bytes, Some((lent, len)), how)
    }

    /// The bytes were read behind the arguments, or were not.
    pub(super) fn run_broadcast_of_buffer(
        &self,
        from: u32,
        number: u32,
        name: Name,
        bytes: Option<&[u8]>,
        args: usize,
    ) -> Result<(), Malformed> {
        let Some(bytes) = bytes else {
            self.end_unread(name);
            return Ok(());
        };
        let run = self.common.functions.run_and_pass_on(number).ok_or(UNKNOWN)?;
        self.then.set(Then::Reading(name));
        self.caller.set(name.root);
        let ran = run(self, bytes, &|| {
            self.then.set(Then::Ran(name));
            if name.root != self.me {
                self.pass_bytes_on(number, name, bytes, args);
            }
        });
        self.caller.set(from);
        self.end_of_call();
        ran.map_err(|_| UNREADABLE)
    }

    /// Those below read what was read here, from memory that nobody changes any more.
    fn pass_bytes_on(&self, number: u32, name: Name, bytes: &[u8], args: usize) {
        let below = self.tree(name.root).below(self.me).count();
        if below == 0 {
            return;
        }
        let memory = Memory::from(Arc::<[u8]>::from(bytes));
        let len = (bytes.len() - args) as u64;
        let lent = self.register(memory, Rights::READ).and_then(|region| {
            let slice = region.slice(args as u64, len).map_err(Error::of_memory)?;
            Ok((region.descriptor(), slice))
        });
        let Ok((descriptor, slice)) = lent else {
            for place in (0..).take(below) {
                self.end_broadcast(name, place, Some(self.cannot_read()));
            }
            return;
        };
        let group = self.group.get();
        let mut record = Vec::new();
        record.extend(group.iter().flat_map(|group| group.to_le_bytes()));
        record.extend_from_slice(&name.root.to_le_bytes());
        record.extend_from_slice(&name.number.to_le_bytes());
        record.extend(Source { descriptor, offset: args as u64, len }.encode());
        record.extend_from_slice(&bytes[..args - LEN]);
        record.extend_from_slice(&[0; LEN]);
        let flags = BROADCAST | READ | if group.is_some() { GROUP } else { 0 };
        self.broadcasts.borrow_mut().lend(name, slice);
        self.pass_on(name, number | flags, group, &record);
    }
}
