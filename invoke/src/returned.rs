//! Results of calls: what a caller keeps until one comes, and the calls whose results are still to come.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use hg_core::{
    codec::{self, Codec as _, CodecError},
    rpc::Rpc,
};
use rustc_hash::FxHashMap;

use crate::{Error, Place, Worker, synchronizer::contain};

/// Why a call has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failed<E> {
    /// The function ran, and returned its own error.
    #[error("the function failed: {0}")]
    Function(E),
    /// It did not run to its end, or its result is lost.
    #[error(transparent)]
    Call(Error),
}

/// What a function returns to who has called it.
pub type Outcome<F> = Result<<F as Rpc>::Output, Failed<<F as Rpc>::Error>>;

/// The result of a call, which comes some time: polled, waited for, or awaited. Dropping it drops the result.
///
/// It comes while the worker that has called makes progress, so whoever awaits it has another thread do that, or another future.
pub struct Returned<F: Rpc> {
    shared: Arc<Shared<F>>,
}

struct Shared<F: Rpc> {
    state: Mutex<State<F>>,
}

enum State<F: Rpc> {
    ToCome(Option<Waker>),
    Here(Outcome<F>),
    Taken,
}

impl<F: Rpc> Returned<F> {
    pub(crate) fn new() -> Self {
        Self { shared: Arc::new(Shared { state: Mutex::new(State::ToCome(None)) }) }
    }

    pub(crate) fn awaits(&self) -> Arc<dyn Awaits> {
        Arc::clone(&self.shared) as _
    }

    /// Whether the result is there, or was taken.
    #[must_use]
    pub fn is_here(&self) -> bool {
        !matches!(*self.shared.lock(), State::ToCome(_))
    }

    /// Takes the result, once it is there. Once.
    pub fn take(&mut self) -> Option<Outcome<F>> {
        self.shared.lock().take()
    }

    /// Makes the worker's progress until the result is there.
    ///
    /// # Errors
    /// The function's own error; [`Error::Gone`], [`Error::Panicked`], [`Error::Lost`]; [`Error::Inside`] in a function that was called.
    ///
    /// # Panics
    /// The result was taken before.
    pub fn wait(self, worker: &Worker) -> Outcome<F> {
        worker.wait_until(|| self.is_here().then_some(Ok(()))).map_err(Failed::Call)?;
        self.shared.lock().take().expect("a result is taken once")
    }
}

impl<F: Rpc> State<F> {
    fn take(&mut self) -> Option<Outcome<F>> {
        match std::mem::replace(self, Self::Taken) {
            Self::Here(outcome) => Some(outcome),
            other => {
                *self = other;
                None
            }
        }
    }
}

impl<F: Rpc> Shared<F> {
    fn lock(&self) -> MutexGuard<'_, State<F>> {
        // Whole between any two statements that can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, outcome: Outcome<F>) {
        let mut state = self.lock();
        if let State::ToCome(waker) = &mut *state {
            let waker = waker.take();
            *state = State::Here(outcome);
            drop(state);
            waker.into_iter().for_each(|waker| contain(|| waker.wake()));
        }
    }
}

impl<F: Rpc> Future for Returned<F> {
    type Output = Outcome<F>;

    /// # Panics
    /// The result was taken before.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome<F>> {
        let mut state = self.shared.lock();
        if let State::ToCome(waker) = &mut *state {
            *waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(state.take().expect("a result is taken once"))
    }
}

impl<F: Rpc> fmt::Debug for Returned<F> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_here() { "here" } else { "to come" };
        write!(out, "Returned(of {}, {state})", F::NAME)
    }
}

/// How an answer begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// The result follows.
    Returned = 0,
    /// The function's own error follows.
    Failed = 1,
    /// The rest is empty.
    Panicked = 2,
    TooLong = 3,
    Unwritable = 4,
    NoRoom = 5,
}

impl Status {
    pub(crate) fn read(word: u32) -> Option<Self> {
        let all = [Self::Returned, Self::Failed, Self::Panicked];
        let all = all.into_iter().chain([Self::TooLong, Self::Unwritable, Self::NoRoom]);
        all.into_iter().find(|it| *it as u32 == word)
    }
}

/// Whoever waits for the answer of a call.
pub(crate) trait Awaits: Send + Sync {
    /// It has come from `from`. An error: it is none of this function's.
    fn answer(&self, from: Place, status: Status, bytes: &[u8]) -> Result<(), CodecError>;
    /// It will not come.
    fn fail(&self, error: Error);
}

impl<F: Rpc> Awaits for Shared<F> {
    fn answer(&self, from: Place, status: Status, bytes: &[u8]) -> Result<(), CodecError> {
        let lost = |why| Err(Failed::Call(Error::Lost { from, why }));
        let outcome = match status {
            Status::Returned => codec::Default::decode(bytes).map(|it| Ok(F::unpack_output(it))),
            Status::Failed => codec::Default::decode(bytes).map(|it| Err(Failed::Function(it))),
            Status::Panicked => Ok(Err(Failed::Call(Error::Panicked(from)))),
            Status::TooLong => Ok(lost(
                "it is longer than half of `Limits::window`, or than a message of the transport",
            )),
            Status::Unwritable => Ok(lost("it cannot be written")),
            Status::NoRoom => Ok(lost("too many results wait there to travel")),
        };
        self.set(outcome?);
        Ok(())
    }

    fn fail(&self, error: Error) {
        self.set(Err(Failed::Call(error)));
    }
}

/// The calls of a worker whose results are to come.
pub(crate) struct Answers {
    next: u64,
    of: FxHashMap<u64, (u32, Arc<dyn Awaits>)>,
}

impl Answers {
    pub(crate) fn new() -> Self {
        Self { next: 0, of: FxHashMap::default() }
    }

    /// Whether as many results are to come as may.
    pub(crate) fn is_full(&self) -> bool {
        self.of.len() >= ANSWERS_MAX
    }

    /// The number of the next call.
    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(crate) fn add(&mut self, number: u64, end: u32, awaits: Arc<dyn Awaits>) {
        self.of.insert(number, (end, awaits));
    }

    /// Whoever waits for the answer of this number from this end.
    pub(crate) fn remove(&mut self, number: u64, end: u32) -> Option<Arc<dyn Awaits>> {
        if self.of.get(&number)?.0 != end {
            return None;
        }
        self.of.remove(&number).map(|(_, awaits)| awaits)
    }

    /// Whoever waits for answers of an end that is gone.
    pub(crate) fn remove_all(&mut self, end: u32) -> Vec<Arc<dyn Awaits>> {
        self.of.extract_if(|_, (of, _)| *of == end).map(|(_, (_, awaits))| awaits).collect()
    }

    /// Whoever waits for anything, when nothing will come any more.
    pub(crate) fn close(&mut self) -> impl Iterator<Item = Arc<dyn Awaits>> + use<> {
        std::mem::take(&mut self.of).into_values().map(|(_, awaits)| awaits)
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Answers({} to come)", self.of.len())
    }
}

/// Results that a worker waits for at once.
pub(crate) const ANSWERS_MAX: usize = 64 * 1024;
/// Bytes before a result: the number of its call (8), [`Status`] (4).
pub(crate) const ANSWER_HEAD: usize = 12;
