//! Who waits for the role, or for what its holder finds: threads that park, and foreign loops that sleep on their descriptors.
//!
//! A plain table: the state's lock guards it, and whoever has unlocked that tells those whom it gives. The unit tests search
//! every order in which threads and loops can come by the role.

use std::{
    sync::Arc,
    task::{Wake, Waker},
};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::platform::{Platform, Thread};

/// Those of one port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Followers<T = Parked, L = Arc<Bell>> {
    /// Loops that sleep on the transport, then loops that follow a holder, then threads; told from the end on.
    waiting: Vec<Follower<T, L>>,
    loops: Vec<Foreign<L>>,
    /// The engine is closed, and the loops know.
    told_of_end: bool,
}

/// A loop, awake or not.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Foreign<L> {
    it: L,
    /// Something was found since it has looked.
    has_news: bool,
    /// It has gone round since the engine was closed.
    has_heard: bool,
}

/// One that waits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Follower<T = Parked, L = Arc<Bell>> {
    /// Sleeps on the transport's descriptor: it need be told only when others have taken what it sleeps for.
    Armed(L),
    /// Sleeps beside whoever has the role.
    Beside(L),
    Thread(T),
}

impl<T, L> Default for Followers<T, L> {
    fn default() -> Self {
        Self { waiting: Vec::new(), loops: Vec::new(), told_of_end: false }
    }
}

impl<T: PartialEq, L: Clone + PartialEq> Followers<T, L> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// A thread is about to park.
    pub(crate) fn push(&mut self, thread: T) {
        self.waiting.push(Follower::Thread(thread));
    }

    /// A thread that looks for itself now need not be told.
    pub(crate) fn unfollow(&mut self, thread: &T) {
        self.waiting.retain(|it| !matches!(it, Follower::Thread(other) if other == thread));
    }

    /// Whom to tell that the role is free: one follows no longer, and looks.
    pub(crate) fn next(&mut self) -> Option<Follower<T, L>> {
        self.waiting.pop()
    }

    /// The same, where a loop has given the role back that goes round once more: it makes the progress of other loops.
    pub(crate) fn next_thread(&mut self) -> Option<Follower<T, L>> {
        self.waiting.pop_if(|last| matches!(last, Follower::Thread(_)))
    }

    /// There is another loop; it is awake.
    pub(crate) fn add_loop(&mut self, it: L) {
        self.loops.push(Foreign { it, has_news: false, has_heard: false });
    }

    /// A loop has ended.
    pub(crate) fn remove_loop(&mut self, it: &L) {
        self.wake_loop(it);
        self.loops.retain(|other| other.it != *it);
    }

    /// A loop looks for itself now, and need not be told of anything before.
    pub(crate) fn look(&mut self, it: &L) {
        self.wake_loop(it);
        self.loop_of(it).into_iter().for_each(|it| it.has_news = false);
    }

    /// Whether something was found for a loop since it has looked.
    pub(crate) fn has_news(&self, it: &L) -> bool {
        self.loops.iter().any(|other| other.it == *it && other.has_news)
    }

    /// A loop is about to sleep beside whoever has the role.
    pub(crate) fn follow(&mut self, it: L) {
        self.wake_loop(&it);
        let armed = |it: &Follower<T, L>| matches!(it, Follower::Armed(_));
        let place = self.waiting.iter().take_while(|it| armed(it)).count();
        self.waiting.insert(place, Follower::Beside(it));
    }

    /// A loop gives the role back, and is about to sleep on the transport; gives whom to tell: nobody who does so, too.
    pub(crate) fn arm(&mut self, it: L) -> Option<Follower<T, L>> {
        self.wake_loop(&it);
        let next = self.waiting.pop_if(|last| !matches!(last, Follower::Armed(_)));
        self.waiting.insert(0, Follower::Armed(it));
        next
    }

    /// Something was found for whoever it is for; gives the loops that sleep: they are to be told.
    pub(crate) fn tell_loops(&mut self) -> Vec<Follower<T, L>> {
        self.loops.iter_mut().for_each(|it| it.has_news = true);
        let threads = self.waiting.iter().position(|it| matches!(it, Follower::Thread(_)));
        self.waiting.drain(..threads.unwrap_or(self.waiting.len())).collect()
    }

    /// The same when the engine is closed, which the loops are told once.
    pub(crate) fn tell_loops_of_end(&mut self) -> Vec<Follower<T, L>> {
        if std::mem::replace(&mut self.told_of_end, true) { Vec::new() } else { self.tell_loops() }
    }

    /// Whether the loops were told that the engine is closed.
    pub(crate) fn know_of_end(&self) -> bool {
        self.told_of_end
    }

    /// A loop that was told is about to sleep; says whether it does for the first time. It may have looked after its own
    /// things before it was told, and looked here afterwards.
    pub(crate) fn hear_of_end(&mut self, it: &L) -> bool {
        self.loop_of(it).is_some_and(|it| !std::mem::replace(&mut it.has_heard, true))
    }

    fn loop_of(&mut self, it: &L) -> Option<&mut Foreign<L>> {
        self.loops.iter_mut().find(|other| other.it == *it)
    }

    fn wake_loop(&mut self, it: &L) {
        self.waiting.retain(|other| match other {
            Follower::Armed(other) | Follower::Beside(other) => other != it,
            Follower::Thread(_) => true,
        });
    }
}

impl Follower {
    /// Tells it. Not under a lock: it comes at once.
    pub(crate) fn come(&self) {
        match self {
            Self::Thread(Parked(thread)) => thread.unpark(),
            Self::Armed(bell) | Self::Beside(bell) => bell.ring(),
        }
    }
}

/// A thread that parks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parked(Thread);

impl Parked {
    pub(crate) fn here(platform: &dyn Platform) -> Self {
        Self(platform.current())
    }

    /// Wakes it when a call has settled.
    pub(crate) fn waker(&self) -> Waker {
        Waker::from(Arc::new(Unpark(self.0.clone())))
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// What a foreign loop is told by: its descriptor is readable from then on until it looks.
#[derive(Debug)]
pub(crate) struct Bell {
    pub(crate) event: EventFd,
    /// Whose it is: a forked child has the same one, and leaves it alone.
    process: u32,
    platform: Arc<dyn Platform>,
}

impl Bell {
    pub(crate) fn new(platform: Arc<dyn Platform>) -> nix::Result<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let event = EventFd::from_value_and_flags(0, flags)?;
        Ok(Self { event, process: platform.process(), platform })
    }

    fn ring(&self) {
        if self.process != self.platform.process() {
            return;
        }
        // Full, it is readable all the same.
        if let Err(error) = self.event.write(1)
            && error != nix::errno::Errno::EAGAIN
        {
            tracing::error!(%error, "a foreign loop cannot be told");
        }
    }

    /// The loop looks.
    pub(crate) fn silence(&self) {
        if self.process == self.platform.process() {
            // Nothing to read: it was woken by something else.
            let _ = self.event.read();
        }
    }
}

impl PartialEq for Bell {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Bell {}

#[cfg(test)]
mod tests;
