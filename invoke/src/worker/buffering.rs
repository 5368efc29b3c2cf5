//! Calls with buffers: with the call, written first, or read first.

use hg_core::rpc::Rpc;

use super::{
    Worker,
    calling::Head,
    moving::After,
    reading::Source,
    running::{HAS_READ, Malformed, READ, take_u32, take_u64},
};
use crate::{
    EndsWith, Error, FrontOf, How, Part, Place, Refused, Room, Spot, Synchronizer, Written,
    bounds::Account, how::When,
};

impl Worker {
    /// Runs a function whose last argument is `&[u8]`, with these bytes: they travel with the call, and are read where they arrive, without
    /// a copy. As `call_with(to, function, (args.., bytes), how)`, whose errors it has; the bytes are the caller's again at once.
    ///
    /// # Errors
    /// As [`Worker::call_with`]. [`Error::TooLong`]: bytes for [`Worker::call_buffer_read`].
    pub fn call_buffer<'a, F: Rpc>(
        &self,
        to: Place,
        function: F,
        args: FrontOf<'a, F, &'a [u8]>,
        bytes: &'a [u8],
        how: How<'_>,
    ) -> Result<(), Refused<FrontOf<'a, F, &'a [u8]>>>
    where
        F::Args<'a>: EndsWith<&'a [u8]>,
    {
        let called = self.call_with(to, function, EndsWith::join(args, bytes), how);
        called.map_err(|Refused { args, error }| Refused { args: args.front(), error })
    }

    /// Writes a part of a buffer into memory of the receiver's process, without its doing; then runs a function there, whose last argument is
    /// [`Written`] and says where the bytes are.
    ///
    /// The call has its place among this worker's calls to that one, when it is made: those that are made later wait until the bytes are
    /// there. The part is not to be changed until then, which is when the call counts as sent ([`How::when_sent`]).
    /// When the bytes cannot be written, the function does not run, those behind it do, [`Worker::unmoved`] counts it, and whoever is to be told
    /// is told [`Error::Memory`] or [`Error::Gone`].
    ///
    /// # Errors
    /// As [`Worker::call_with`], and [`Error::Memory`]: there is no such part, or no room for it there, or it is of another process.
    pub fn call_buffer_written<'a, F: Rpc>(
        &self,
        to: Place,
        function: F,
        args: FrontOf<'a, F, Written>,
        from: Part<'_>,
        into: Spot<'_>,
        how: How<'_>,
    ) -> Result<(), Refused<FrontOf<'a, F, Written>>>
    where
        F::Args<'a>: EndsWith<Written>,
    {
        let _: F = function;
        let wire = F::pack(EndsWith::join(args, Written::new(into, from.len())));
        let called = self.call_and_put::<F>(to, &wire, &from, into, how);
        called.map_err(|error| Refused { args: F::unpack(wire).front(), error })
    }

    /// Runs a function whose last argument is `&[u8]`, once the receiver has read a part of a buffer, without this worker's doing but its progress.
    ///
    /// It runs in its place among this worker's calls to that one, which wait there until the bytes are read. The part is not to be changed
    /// until then, which is when the call counts as sent ([`How::when_sent`]); the buffer may be dropped, and its memory is kept.
    /// When the bytes cannot be read, it is as with [`Worker::call_buffer_written`].
    ///
    /// # Errors
    /// As [`Worker::call_with`]; [`Error::Memory`]: there is no such part; [`Error::BufferTooLong`]; [`Error::Full`] also when 1,024 parts are
    /// to be read.
    pub fn call_buffer_read<'a, F: Rpc>(
        &self,
        to: Place,
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
        let called = self.call_and_lend::<F>(to, &wire, &from, how);
        called.map_err(|error| Refused { args: F::unpack(wire).front(), error })
    }

    fn call_and_put<F: Rpc>(
        &self,
        to: Place,
        wire: &F::WireArgs<'_>,
        from: &Part<'_>,
        into: Spot<'_>,
        how: How<'_>,
    ) -> Result<(), Error> {
        // Whichever thread of a process it is, the bytes and the call go to the same one.
        let end = self.end_of(to)?;
        let descriptor = into.locator.descriptor()?;
        if into.locator.place().process != self.place_of(end).process {
            return Err(Error::Memory(
                "the bytes would go to another process than the call".into(),
            ));
        }
        let region = from.buffer.region();
        let slices = self.slices(true, region, &from.range, &descriptor, into.offset)?;
        self.wait_for_moves(to, how.room == Room::Wait)?;
        let number = self.moves.borrow_mut().number();
        let told = Told::new(how);
        let head = Head::default().held(number);
        self.write::<F>(self.place_of(end), wire, told.of_call(how), head)?;
        self.start(number, end, slices, After::Release(told.of_bytes(how)));
        Ok(())
    }

    fn call_and_lend<F: Rpc>(
        &self,
        to: Place,
        wire: &F::WireArgs<'_>,
        from: &Part<'_>,
        how: How<'_>,
    ) -> Result<(), Error> {
        let (bytes, source) = self.lend(from)?;
        let is_full = || self.unread.borrow().is_full();
        if is_full() {
            match how.room {
                Room::Wait => self.wait_until(|| (!is_full()).then_some(Ok(())))?,
                Room::Return | Room::Queue => return Err(Error::Full(to)),
            }
        }
        let number = self.moves.borrow_mut().number();
        let told = Told::new(how);
        let head = Head::default().with(READ, &number.to_le_bytes()).before(&source);
        let end = self.write::<F>(to, wire, told.of_call(how), head)?;
        self.unread.borrow_mut().add(number, end, bytes, told.of_bytes(how));
        self.port.borrow_mut().keep(end);
        Ok(())
    }

    /// A part that others are to read, and how they are told of it.
    pub(super) fn lend(&self, from: &Part<'_>) -> Result<(hg_na::LocalSlice, Vec<u8>), Error> {
        let (bytes, max) = (from.slice()?, self.common.settings.buffer_max);
        if bytes.len() > max {
            return Err(Error::BufferTooLong { len: bytes.len(), max });
        }
        let descriptor = from.buffer.region().descriptor();
        Ok((bytes, Source { descriptor, offset: from.range.start, len: from.len() }.encode()))
    }

    /// The receiver is done with a buffer.
    pub(super) fn hear_has_read(&self, from: u32, mut bytes: &[u8]) -> Result<(), Malformed> {
        let number = take_u64(&mut bytes)?;
        let failed = match take_u32(&mut bytes)? {
            0 => None,
            _ => Some(Error::Memory(format!("{} has not read it", self.place_of(from)).into())),
        };
        let buffered = self.unread.borrow_mut().remove(number, from);
        let buffered = buffered.ok_or("it has read what it was not told of")?;
        self.port.borrow_mut().let_go(from);
        self.tell_of_buffer(buffered.told, failed);
        Ok(())
    }

    /// Tells the sender of a buffer that it was read, or was not.
    pub(super) fn say_has_read(&self, to: u32, number: u64, group: Option<u32>, is_read: bool) {
        let head = Head::default().with(HAS_READ, &number.to_le_bytes());
        let head = head.with(0, &u32::from(!is_read).to_le_bytes()).behind(group);
        let mut port = self.port.borrow_mut();
        let Some(owing) = self.may_owe(&port, Account::Reads(to), to, head.len()) else {
            drop(port);
            self.blame(to, "it does not hear what was read");
            return;
        };
        // Who is gone hears nothing.
        if let Ok(room) = port.record(to, head.flags, head.len(), u64::MAX) {
            head.write(room);
            self.owe(&port, owing);
            self.count_made(group);
            self.send_as_packed(&mut port, to);
        }
    }

    /// The bytes of a call were moved, or were not.
    pub(super) fn tell_of_buffer(&self, told: Option<Synchronizer>, failed: Option<Error>) {
        self.unmoved.set(self.unmoved.get() + u64::from(failed.is_some()));
        if let Some(told) = told {
            told.count(failed);
        }
    }
}

/// Whoever is told of a call with a buffer: once, when its bytes were moved, and, if that is asked for, it has run as well.
struct Told(Synchronizer);

impl Told {
    /// The bytes are to be moved.
    fn new(how: How<'_>) -> Self {
        let both = Synchronizer::new();
        if how.notify.is_some() {
            both.expect_one();
        }
        Self(both)
    }

    /// Who is told of the call itself.
    fn of_call<'a>(&'a self, how: How<'a>) -> How<'a> {
        let notify = how.notify.filter(|it| it.0 == When::Consumed);
        How { notify: notify.map(|(when, _)| (when, &self.0)), ..how }
    }

    /// The call was made: who is told of its bytes.
    fn of_bytes(self, how: How<'_>) -> Option<Synchronizer> {
        let (_, told) = how.notify?;
        told.expect_one();
        let told = told.clone();
        self.0.then(move |result| told.count(result.err()));
        Some(self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One call with a buffer: what is told of it, by whom, and whether that fails.
    #[derive(Debug, Clone, Copy)]
    struct Call {
        when: Option<When>,
        /// It has left, or has run, before the caller is told that it was made.
        is_early: bool,
        run_fails: bool,
        move_fails: bool,
    }

    fn calls() -> impl Strategy<Value = Vec<Call>> {
        let when = prop_oneof![Just(None), Just(Some(When::Sent)), Just(Some(When::Consumed))];
        let call =
            (when, any::<[bool; 3]>()).prop_map(|(when, [is_early, run_fails, move_fails])| Call {
                when,
                is_early,
                run_fails,
                move_fails,
            });
        prop::collection::vec(call, 0..8)
    }

    /// What is to come of a call.
    enum Event {
        Ran(Synchronizer, bool),
        Moved(Synchronizer, bool),
    }

    impl Event {
        fn comes(self) {
            let (Self::Ran(told, fails) | Self::Moved(told, fails)) = self;
            told.count(fails.then_some(Error::Inside));
        }
    }

    /// Makes a call as the worker does; who is to be told of what.
    fn make(call: Call, how: How<'_>) -> Vec<Event> {
        let told = Told::new(how);
        let mut events = Vec::new();
        if let Some((when, synchronizer)) = told.of_call(how).notify {
            assert_eq!(when, When::Consumed, "of its leaving the bytes tell");
            synchronizer.expect_one();
            events.push(Event::Ran(synchronizer.clone(), call.run_fails));
        }
        if call.is_early {
            events.drain(..).for_each(Event::comes);
        }
        events.extend(told.of_bytes(how).map(|it| Event::Moved(it, call.move_fails)));
        events
    }

    proptest! {
        #[test]
        fn whoever_waits_is_told_once_when_all_has_come_in_any_order(
            calls in calls(), order in prop::collection::vec(any::<prop::sample::Index>(), 16),
        ) {
            let done = Synchronizer::new();
            let (mut events, mut fails) = (Vec::new(), false);
            for call in &calls {
                let how = match call.when {
                    None => How::default(),
                    Some(When::Sent) => How::default().when_sent(&done),
                    Some(When::Consumed) => How::default().when_run(&done),
                };
                events.extend(make(*call, how));
                let runs = call.when == Some(When::Consumed) && call.run_fails;
                fails |= runs || call.when.is_some() && call.move_fails;
            }
            let waiting = calls.iter().filter(|call| call.when.is_some()).count() as u64;
            prop_assert_eq!(done.left(), waiting, "one each, whatever has come already");
            for at in order {
                if !events.is_empty() {
                    prop_assert!(done.left() > 0, "told before all has come");
                    events.swap_remove(at.index(events.len())).comes();
                }
            }
            prop_assert!(events.is_empty());
            let expected = if fails { Err(Error::Inside) } else { Ok(()) };
            prop_assert_eq!(done.result(), Some(expected));
        }
    }
}
