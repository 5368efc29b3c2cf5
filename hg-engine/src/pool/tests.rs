//! The pool over a machine whose clock and threads the test has in hand.

use std::sync::{
    atomic::{AtomicU32, AtomicU64, AtomicUsize},
    mpsc,
};

use watchdog::{hear, until};

use super::*;
use crate::platform::{Machine, Spawned};

/// The machine, with a clock that can be put forward, threads that can be refused, and a process that can become another one.
#[derive(Debug, Default)]
pub(crate) struct Refusing {
    /// Milliseconds that the clock was put forward.
    ahead: AtomicU64,
    is_refusing: AtomicBool,
    refused: AtomicUsize,
    pub(crate) process: AtomicU32,
    machine: Machine,
}

impl Refusing {
    fn refuse(&self, refuse: bool) {
        self.is_refusing.store(refuse, Ordering::SeqCst);
    }

    fn refused(&self) -> usize {
        self.refused.load(Ordering::SeqCst)
    }

    fn put_forward(&self, by: Duration) {
        let by = u64::try_from(by.as_millis()).expect("a short time");
        self.ahead.fetch_add(by, Ordering::SeqCst);
    }
}

impl Platform for Refusing {
    fn now(&self) -> Instant {
        self.machine.now() + Duration::from_millis(self.ahead.load(Ordering::SeqCst))
    }

    fn process(&self) -> u32 {
        self.process.load(Ordering::SeqCst)
    }

    fn spawn(&self, name: String, job: Job) -> io::Result<Spawned> {
        if self.is_refusing.load(Ordering::SeqCst) {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.machine.spawn(name, job)
    }

    fn current(&self) -> Thread {
        self.machine.current()
    }

    fn park(&self) {
        self.machine.park();
    }

    fn park_timeout(&self, limit: Duration) {
        // Not longer, since the clock may be put forward.
        self.machine.park_timeout(limit.min(Duration::from_millis(1)));
    }
}

fn peer(number: u32) -> Origin {
    Origin::Peer(0, hg_na::Peer::new(number, 0))
}

fn pool(threads_max: usize) -> (Arc<Refusing>, Arc<Pool>) {
    let platform = Arc::new(Refusing::default());
    let kind = ("hg-pool", Duration::ZERO);
    let pool = Pool::new(kind, Arc::clone(&platform) as Arc<dyn Platform>, threads_max);
    (platform, Arc::new(pool))
}

/// Jobs that say that they run, and end when they are told to.
struct Jobs {
    running: mpsc::Receiver<u32>,
    say: mpsc::Sender<u32>,
    gates: Vec<mpsc::Sender<()>>,
}

impl Jobs {
    fn new() -> Self {
        let (say, running) = mpsc::channel();
        Self { running, say, gates: Vec::new() }
    }

    fn add(&mut self, pool: &Arc<Pool>, origin: u32) {
        let (gate, closed) = mpsc::channel::<()>();
        self.gates.push(gate);
        let say = self.say.clone();
        let job = move || {
            let _nobody = say.send(origin);
            let _end = closed.recv();
        };
        pool.add(peer(origin), Box::new(job));
    }

    fn next(&self) -> u32 {
        hear(&self.running)
    }

    fn ends(&mut self, first: usize) {
        self.gates.drain(..first);
    }
}

#[test]
fn threads_are_started_as_jobs_come_and_end_when_they_are_idle() {
    let (platform, pool) = pool(8);
    let mut jobs = Jobs::new();
    assert_eq!(pool.threads(), 0);
    (0..4).for_each(|_| jobs.add(&pool, 1));
    (0..4).for_each(|_| assert_eq!(jobs.next(), 1));
    assert_eq!(pool.threads(), 4);
    jobs.ends(4);
    until("they are idle", || pool.state.lock().idle.len() == 4);
    // One that is there takes the next job.
    jobs.add(&pool, 1);
    assert_eq!((jobs.next(), pool.threads()), (1, 4));
    platform.put_forward(IDLE_MAX);
    until("idle ones end", || pool.threads() == 1);
    jobs.ends(1);
    until("it is idle", || pool.state.lock().idle.len() == 1);
    platform.put_forward(IDLE_MAX);
    until("it ends", || pool.threads() == 0);
}

#[test]
fn a_slow_origin_leaves_threads_to_the_others() {
    let (_, pool) = pool(8);
    let mut jobs = Jobs::new();
    (0..100).for_each(|_| jobs.add(&pool, 1));
    (0..4).for_each(|_| assert_eq!(jobs.next(), 1));
    for origin in 2..5 {
        jobs.add(&pool, origin);
        assert_eq!(jobs.next(), origin);
    }
    assert_eq!(pool.threads(), 7);
    pool.close();
}

#[test]
fn a_job_without_a_thread_waits_and_is_tried_again_by_a_timer_and_by_the_next_job() {
    let (platform, pool) = pool(8);
    let woken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&woken);
    pool.wake_by(move || {
        count.fetch_add(1, Ordering::SeqCst);
    });
    let mut jobs = Jobs::new();
    platform.refuse(true);
    jobs.add(&pool, 1);
    assert_eq!((platform.refused(), woken.load(Ordering::SeqCst), pool.threads()), (1, 1, 0));
    let first = pool.next_try().expect("it is tried again");
    assert!(!pool.is_retry_due(first - Duration::from_millis(1)) && pool.is_retry_due(first));
    jobs.add(&pool, 2);
    assert_eq!(platform.refused(), 2);
    // The interval grows, but not for ever.
    for _ in 0..20 {
        pool.retry();
    }
    let next = pool.next_try().expect("it is tried again");
    assert!(next <= platform.now() + RETRY_MAX && next > platform.now() + RETRY_MAX / 2);
    platform.refuse(false);
    pool.retry();
    assert_eq!([jobs.next(), jobs.next()].iter().sum::<u32>(), 3);
    assert_eq!((pool.next_try(), pool.threads()), (None, 2));
    // Grown again, it starts as many as before.
    (0..2).for_each(|_| jobs.add(&pool, 3));
    assert_eq!([jobs.next(), jobs.next()], [3, 3]);
}

#[test]
fn threads_that_are_there_go_on_where_no_other_is_to_be_had() {
    let (platform, pool) = pool(64);
    let mut jobs = Jobs::new();
    (0..3).for_each(|_| jobs.add(&pool, 1));
    (0..3).for_each(|_| assert_eq!(jobs.next(), 1));
    platform.refuse(true);
    (0..5).for_each(|_| jobs.add(&pool, 2));
    // Each that ends makes room for the next one, and tries to have another thread once.
    jobs.ends(2);
    assert_eq!(jobs.next(), 2);
    until("one waits for others", || pool.state.lock().idle.len() == 1);
    // Whose share it is: one that was held for nobody is not given up while others wait.
    platform.put_forward(2 * IDLE_MAX);
    jobs.add(&pool, 3);
    assert_eq!((jobs.next(), pool.threads()), (3, 3));
    platform.refuse(false);
    pool.retry();
    (0..4).for_each(|_| assert_eq!(jobs.next(), 2));
}

#[test]
fn what_waits_for_its_share_is_not_tried_again_and_again() {
    let (platform, pool) = pool(2);
    let mut jobs = Jobs::new();
    jobs.add(&pool, 1);
    assert_eq!(jobs.next(), 1);
    platform.refuse(true);
    jobs.add(&pool, 2);
    jobs.ends(1);
    assert_eq!(jobs.next(), 2);
    // There may be threads by now, but none for a second job of an origin that has half of them.
    platform.refuse(false);
    jobs.add(&pool, 2);
    for _ in 0..3 {
        let at = pool.next_try().expect("it is tried again");
        platform.put_forward(RETRY_MAX);
        assert!(at <= platform.now());
        pool.retry();
        assert!(
            !pool.is_retry_due(platform.now()),
            "whoever makes progress would go round and round"
        );
    }
    jobs.add(&pool, 3);
    assert_eq!(jobs.next(), 3);
    assert_eq!(pool.next_try(), None, "there was a thread again");
    jobs.ends(1);
    assert_eq!(jobs.next(), 2);
}

#[test]
fn memory_is_given_back_in_place_where_there_is_no_thread_at_all() {
    struct Says(mpsc::Sender<()>);
    impl Drop for Says {
        fn drop(&mut self) {
            self.0.send(()).expect("somebody hears it");
        }
    }
    let (platform, pool) = pool(4);
    let (say, said) = mpsc::channel();
    platform.refuse(true);
    pool.free(Box::new(Says(say.clone())));
    assert!(said.try_recv().is_ok());
    assert_eq!(pool.next_try(), None, "nothing waits");
    // With a thread it waits for that.
    platform.refuse(false);
    let mut jobs = Jobs::new();
    jobs.add(&pool, 1);
    jobs.next();
    platform.refuse(true);
    pool.free(Box::new(Says(say)));
    assert!(said.try_recv().is_err());
    jobs.ends(1);
    hear(&said);
}

#[test]
fn a_pool_with_patience_runs_its_own_jobs_in_place_only_when_there_was_no_thread_for_long() {
    const PATIENCE: Duration = Duration::from_secs(1);
    let platform = Arc::new(Refusing::default());
    let kind = ("hg-pool", PATIENCE);
    let pool = Arc::new(Pool::new(kind, Arc::clone(&platform) as Arc<dyn Platform>, 4));
    platform.refuse(true);
    let (say, said) = mpsc::channel();
    let job = |number| {
        let say = say.clone();
        Box::new(move || say.send(number).expect("somebody hears it"))
    };
    pool.add(Origin::Engine, job(1));
    pool.retry();
    assert!(said.try_recv().is_err() && pool.next_try().is_some());
    platform.put_forward(PATIENCE);
    pool.retry();
    assert_eq!((said.try_recv(), pool.next_try()), (Ok(1), None));
    // Known by now.
    pool.add(Origin::Engine, job(2));
    assert_eq!(said.try_recv(), Ok(2));
    platform.refuse(false);
    pool.add(Origin::Engine, job(3));
    assert_eq!(hear(&said), 3);
    // That is over.
    pool.close();
    assert_eq!(pool.next_try(), None);
}

#[test]
fn a_job_that_panics_costs_no_thread() {
    let (_, pool) = pool(2);
    for _ in 0..10 {
        pool.add(peer(1), Box::new(|| panic!("a job that panics")));
    }
    let mut jobs = Jobs::new();
    jobs.add(&pool, 1);
    assert_eq!((jobs.next(), pool.threads()), (1, 1));
}

#[test]
fn closing_drops_what_is_queued_and_waits_for_no_job() {
    let (_, pool) = pool(2);
    let mut jobs = Jobs::new();
    (0..20).for_each(|_| jobs.add(&pool, 1));
    assert_eq!(jobs.next(), 1);
    let mut others = Jobs::new();
    others.add(&pool, 2);
    assert_eq!(others.next(), 2);
    others.ends(1);
    pool.close();
    let waits = || jobs.gates.iter().filter(|gate| gate.send(()).is_ok()).count();
    assert_eq!(waits(), 1, "only the one that runs is left");
    jobs.add(&pool, 1);
    assert!(jobs.gates.pop().is_some_and(|gate| gate.send(()).is_err()), "it was dropped");
    jobs.gates.clear();
    until("all threads end", || pool.threads() == 0);
    assert_eq!(jobs.running.try_recv(), Err(mpsc::TryRecvError::Empty));
}

#[test]
fn a_forked_child_waits_for_no_lock_of_a_thread_that_it_lacks() {
    let (platform, pool) = pool(2);
    let held = pool.state.lock();
    platform.process.store(1, Ordering::SeqCst);
    pool.add(peer(1), Box::new(|| panic!("there is nobody to run it")));
    pool.close();
    assert_eq!(pool.next_try(), None);
    drop(held);
}
