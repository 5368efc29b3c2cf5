//! How a thread makes its calls: plain ones, with results, with buffers, or to all at once.

use std::collections::VecDeque;

use hg_invoke::{Buffer, Error, Failed, How, Outcome, Place, Returned, Rpc, Worker};

use crate::{
    arguments::Kind,
    payload::{
        LONG, Words, answer_bytes, answer_to, answer_word, filling_of, part_of, table, take_bytes,
        take_word,
    },
};

/// Makes the calls of one thread.
#[derive(Debug)]
pub(crate) struct Writer {
    kind: Kind,
    filling: usize,
    words: Words,
    /// What others read, with the kind for which they do.
    buffer: Option<Buffer>,
    results: VecDeque<ToCome>,
    wrong_results: u64,
}

/// A result that is to come, and the word of its call.
#[derive(Debug)]
enum ToCome {
    OfWord(Returned<answer_word>, u64),
    OfBytes(Returned<answer_bytes>, u64),
}

impl Writer {
    /// `size`: bytes of the arguments.
    pub(crate) fn new(
        worker: &Worker,
        kind: Kind,
        size: usize,
        words: Words,
    ) -> Result<Self, Error> {
        let buffer = if kind == Kind::Read {
            let buffer = worker.allocate(table().len())?;
            buffer.write(0, table())?;
            Some(buffer)
        } else {
            None
        };
        Ok(Self {
            kind,
            filling: size.saturating_sub(LONG),
            words,
            buffer,
            results: VecDeque::new(),
            wrong_results: 0,
        })
    }

    /// Calls that run for each that is made.
    pub(crate) fn each(&self) -> u64 {
        self.words.each()
    }

    /// Calls a thread, or all of them. Whether the call was made: there may be no room.
    #[inline]
    pub(crate) fn call(
        &mut self,
        worker: &Worker,
        to: Place,
        (at, is_timed): (u32, bool),
        how: How<'_>,
    ) -> Result<bool, Error> {
        let word = self.words.next(at, is_timed);
        match self.make(worker, to, word, how) {
            Ok(()) => {
                self.words.made_one(at);
                Ok(true)
            }
            Err(Error::Full(_)) => {
                self.check_results()?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    #[inline]
    fn make(&mut self, worker: &Worker, to: Place, word: u64, how: How<'_>) -> Result<(), Error> {
        let bytes = || filling_of(word, self.filling).unwrap_or_default();
        match (self.kind, self.filling) {
            (Kind::Call, 0) => worker.call_with(to, take_word, (word,), how).map_err(|it| it.error),
            (Kind::Call, _) => {
                worker.call_with(to, take_bytes, (word, bytes()), how).map_err(|it| it.error)
            }
            (Kind::Buffer, _) => {
                let called = worker.call_buffer(to, take_bytes, (word,), bytes(), how);
                called.map_err(|it| it.error)
            }
            (Kind::Read, len) => {
                let Some(buffer) = &self.buffer else { return Ok(()) };
                let part = buffer.part(part_of(word, len));
                let called = worker.call_buffer_read(to, take_bytes, (word,), part, how);
                called.map_err(|it| it.error)
            }
            (Kind::Broadcast, 0) => {
                worker.broadcast_with(take_word, (word,), how).map_err(|it| it.error)
            }
            (Kind::Broadcast, _) => {
                worker.broadcast_with(take_bytes, (word, bytes()), how).map_err(|it| it.error)
            }
            (Kind::Return, 0) => {
                let result = worker.call_return_with(to, answer_word, (word,), how);
                self.results.push_back(ToCome::OfWord(result.map_err(|it| it.error)?, word));
                Ok(())
            }
            (Kind::Return, _) => {
                let args = (word, bytes());
                let result = worker.call_return_with(to, answer_bytes, args, how);
                self.results.push_back(ToCome::OfBytes(result.map_err(|it| it.error)?, word));
                Ok(())
            }
        }
    }

    /// Takes the results that have come, in the order of calls, as far as the first that has not.
    ///
    /// # Errors
    /// What keeps one from coming.
    pub(crate) fn check_results(&mut self) -> Result<(), Error> {
        while let Some(first) = self.results.front_mut() {
            let is_right = match first {
                ToCome::OfWord(result, word) => is_right(result, *word)?,
                ToCome::OfBytes(result, word) => is_right(result, *word)?,
            };
            let Some(is_right) = is_right else { break };
            self.results.pop_front();
            self.wrong_results += u64::from(!is_right);
        }
        Ok(())
    }

    /// After a barrier: results that were wrong, or have not come.
    pub(crate) fn end_results(&mut self) -> Result<u64, Error> {
        self.check_results()?;
        Ok(self.wrong_results + self.results.len() as u64)
    }

    /// Calls made to each thread.
    pub(crate) fn made(&self) -> Vec<u64> {
        self.words.made()
    }
}

/// Whether a result is what it must be; `None`: it is to come.
fn is_right<F: Rpc<Output = u64>>(
    result: &mut Returned<F>,
    word: u64,
) -> Result<Option<bool>, Error> {
    let outcome: Option<Outcome<F>> = result.take();
    match outcome {
        None => Ok(None),
        Some(Ok(answer)) => Ok(Some(answer == answer_to(word))),
        Some(Err(Failed::Call(error))) => Err(error),
        Some(Err(Failed::Function(_))) => Ok(Some(false)),
    }
}
