//! Many things that end at some time, waited for by one thread: each is looked at when it says so.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, mpsc},
    task::{Context, Poll, Wake, Waker},
    time::Instant,
};

/// Futures in numbered places.
pub(crate) struct Polled<F: Future> {
    futures: Vec<Option<Pin<Box<F>>>>,
    tell: mpsc::Sender<Told>,
    told: mpsc::Receiver<Told>,
    /// What had ended when it was put here.
    ended: VecDeque<Ended<F::Output>>,
}

/// Which one has said that it has ended, and when.
type Told = (usize, Instant);

/// One that has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ended<T> {
    pub(crate) place: usize,
    pub(crate) output: T,
    /// When it said so, whatever the thread that waits for it was doing then. Right for one that wakes whoever waits once, at its end.
    pub(crate) at: Instant,
}

struct Teller {
    place: usize,
    tell: mpsc::Sender<Told>,
}

impl Wake for Teller {
    fn wake(self: Arc<Self>) {
        // Nobody waits any more.
        let _ = self.tell.send((self.place, Instant::now()));
    }
}

impl<F: Future> Polled<F> {
    pub(crate) fn new() -> Self {
        let (tell, told) = mpsc::channel();
        Self { futures: Vec::new(), tell, told, ended: VecDeque::new() }
    }

    /// Puts one into a place, which is free.
    pub(crate) fn put(&mut self, place: usize, future: F) {
        if self.futures.len() <= place {
            self.futures.resize_with(place + 1, || None);
        }
        self.futures[place] = Some(Box::pin(future));
        // From now on it tells when it ends.
        let ended = self.poll(place, Instant::now);
        self.ended.extend(ended);
    }

    /// The next one that ends; its place is free then. `None`: there is none.
    pub(crate) fn next(&mut self) -> Option<Ended<F::Output>> {
        if let Some(ended) = self.ended.pop_front() {
            return Some(ended);
        }
        while self.futures.iter().any(Option::is_some) {
            let (place, at) = self.told.recv().ok()?;
            let ended = self.poll(place, || at);
            if ended.is_some() {
                return ended;
            }
        }
        None
    }

    /// Looks at one, which may have ended, and have said so, before.
    fn poll(&mut self, place: usize, at: impl FnOnce() -> Instant) -> Option<Ended<F::Output>> {
        let future = self.futures.get_mut(place)?.as_mut()?;
        let waker = Waker::from(Arc::new(Teller { place, tell: self.tell.clone() }));
        let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) else {
            return None;
        };
        self.futures[place] = None;
        Some(Ended { place, output, at: at() })
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, thread};

    use super::*;

    #[test]
    fn each_ends_once_in_whatever_order_they_do() {
        let (first, second) = (mpsc::channel::<Waker>(), mpsc::channel::<Waker>());
        let waiting = |tell: mpsc::Sender<Waker>| {
            let mut looks = 0;
            Box::pin(poll_fn(move |context| {
                looks += 1;
                if looks == 2 {
                    return Poll::Ready(looks);
                }
                tell.send(context.waker().clone()).unwrap();
                Poll::Pending
            }))
        };
        let mut polled = Polled::new();
        polled.put(0, waiting(first.0));
        polled.put(7, waiting(second.0));
        let waking = thread::spawn(move || {
            let (first, second) = (first.1.recv().unwrap(), second.1.recv().unwrap());
            second.wake_by_ref();
            second.wake();
            first.wake();
        });
        let mut next = || polled.next().map(|it| (it.place, it.output));
        assert_eq!((next(), next(), next()), (Some((7, 2)), Some((0, 2)), None));
        waking.join().unwrap();
    }

    #[test]
    fn it_has_ended_when_it_said_so_and_not_when_somebody_looks() {
        let (tell, wakers) = mpsc::channel::<Waker>();
        let (mut polled, mut looks) = (Polled::new(), 0);
        polled.put(
            0,
            poll_fn(move |context| {
                looks += 1;
                tell.send(context.waker().clone()).unwrap();
                if looks == 2 { Poll::Ready(()) } else { Poll::Pending }
            }),
        );
        let waker = wakers.try_recv().expect("it is looked at when it is put there");
        let before = Instant::now();
        waker.wake();
        let after = Instant::now();
        // Whoever waits for it is busy.
        while Instant::now() == after {}
        let ended = polled.next().unwrap();
        assert!((before..=after).contains(&ended.at));
        // One that has ended already has ended now.
        let before = Instant::now();
        let mut polled = Polled::new();
        polled.put(3, std::future::ready(()));
        let ended = polled.next().unwrap();
        assert!((ended.place, polled.next().is_none()) == (3, true) && ended.at >= before);
    }
}
