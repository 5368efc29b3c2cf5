//! Many things that end at some time, waited for by one thread: each is looked at when it says so.

use std::{
    pin::Pin,
    sync::{Arc, mpsc},
    task::{Context, Poll, Wake, Waker},
};

/// Futures in numbered places.
pub(crate) struct Polled<F> {
    futures: Vec<Option<Pin<Box<F>>>>,
    tell: mpsc::Sender<usize>,
    told: mpsc::Receiver<usize>,
}

struct Teller {
    place: usize,
    tell: mpsc::Sender<usize>,
}

impl Wake for Teller {
    fn wake(self: Arc<Self>) {
        // Nobody waits any more.
        let _ = self.tell.send(self.place);
    }
}

impl<F: Future> Polled<F> {
    pub(crate) fn new() -> Self {
        let (tell, told) = mpsc::channel();
        Self { futures: Vec::new(), tell, told }
    }

    /// Puts one into a place, which is free.
    pub(crate) fn put(&mut self, place: usize, future: F) {
        if self.futures.len() <= place {
            self.futures.resize_with(place + 1, || None);
        }
        self.futures[place] = Some(Box::pin(future));
        let _ = self.tell.send(place);
    }

    /// The next one that ends, and what came of it; its place is free then. `None`: there is none.
    pub(crate) fn next(&mut self) -> Option<(usize, F::Output)> {
        while self.futures.iter().any(Option::is_some) {
            let place = self.told.recv().ok()?;
            // One that has ended may have said so twice.
            let Some(future) = self.futures.get_mut(place).and_then(Option::as_mut) else {
                continue;
            };
            let waker = Waker::from(Arc::new(Teller { place, tell: self.tell.clone() }));
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                self.futures[place] = None;
                return Some((place, output));
            }
        }
        None
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
        assert_eq!(polled.next(), Some((7, 2)));
        assert_eq!(polled.next(), Some((0, 2)));
        assert_eq!(polled.next(), None);
        waking.join().unwrap();
    }
}
