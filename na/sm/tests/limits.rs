//! Limits of the operating system are told by name, and cost nobody his process or his processor.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::time::{Duration, Instant};

use hg_na::{
    Completion, Context, Done, Error, GoneReason, Message, Op, OpenOptions, Plugin as _, QUIET,
    Region, Returned, Rights,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use watchdog::{Watchdog, alone, in_time};

fn limit(resource: Resource, soft: u64) {
    let (_, hard) = getrlimit(resource).unwrap();
    setrlimit(resource, soft, hard).unwrap();
}

fn open() -> Result<Box<dyn Context>, Error> {
    let options = OpenOptions::listening();
    hg_na_sm::SmPlugin.open(&"sm://".parse().unwrap(), &options)?.context(0)
}

/// One round of each.
fn rounds(contexts: &mut [&mut dyn Context]) -> Vec<Completion> {
    let mut done = Vec::new();
    for context in contexts {
        context.progress(Instant::now(), &mut done).unwrap();
    }
    done
}

fn request(from: &mut dyn Context, to: &dyn Context) {
    let to = from.lookup(to.address()).unwrap();
    from.post(QUIET, Op::SendUnexpected { to, message: Message::copied(b"request") }).unwrap();
}

#[test]
fn a_limit_of_the_size_of_files_is_named_and_sends_no_signal() {
    alone(|| {
        let _watchdog = Watchdog::start();
        let (mut one, mut other) = (open().unwrap(), open().unwrap());
        limit(Resource::RLIMIT_FSIZE, 4096);
        let said = open().unwrap_err().to_string();
        assert!(said.contains("RLIMIT_FSIZE") && said.contains("ulimit -f"), "{said}");
        let said = hg_na_sm::shared::alloc(1 << 20).unwrap_err().to_string();
        assert!(said.contains("RLIMIT_FSIZE"), "{said}");
        request(one.as_mut(), other.as_ref());
        let start = Instant::now();
        loop {
            let mut done = rounds(&mut [one.as_mut(), other.as_mut()]).into_iter();
            if let Some(Completion::Gone { reason, .. }) = done.next_back() {
                assert!(matches!(reason, GoneReason::Exhausted(_)), "{reason}");
                assert!(reason.to_string().contains("RLIMIT_FSIZE"), "{reason}");
                return;
            }
            in_time!(start, "nothing was told");
        }
    });
}

#[test]
fn a_listener_without_a_descriptor_left_lets_its_context_sleep_and_accepts_later() {
    alone(|| {
        let _watchdog = Watchdog::start();
        let mut target = open().unwrap();
        let mut origin = open().unwrap();
        request(origin.as_mut(), target.as_ref());
        rounds(&mut [origin.as_mut()]);
        // Each descriptor that the target gives up is taken, as by another thread.
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        limit(Resource::RLIMIT_NOFILE, 0);
        let (start, mut rounds_made) = (Instant::now(), 0_u32);
        while start.elapsed() < Duration::from_secs(1) {
            assert!(rounds(&mut [target.as_mut()]).is_empty());
            rounds_made += 1;
            if target.may_sleep() {
                let left = target.next_deadline().map(|at| at.duration_since(Instant::now()));
                let timeout = left.unwrap_or(Duration::MAX).min(Duration::from_millis(500));
                target.waiter().wait(Some(timeout)).unwrap();
            }
        }
        assert!(rounds_made < 10_000, "{rounds_made} rounds in a second without anything to do");
        limit(Resource::RLIMIT_NOFILE, hard);
        let start = Instant::now();
        request(origin.as_mut(), target.as_ref());
        while rounds(&mut [origin.as_mut(), target.as_mut()]).is_empty() {
            in_time!(start, "the origin was never accepted");
        }
    });
}

#[test]
fn a_limit_of_address_space_is_named_and_peers_that_are_connected_go_on() {
    alone(|| {
        let _watchdog = Watchdog::start();
        let (mut one, mut other) = (open().unwrap(), open().unwrap());
        let mut stranger = open().unwrap();
        request(one.as_mut(), other.as_ref());
        let start = Instant::now();
        while rounds(&mut [one.as_mut(), other.as_mut()]).is_empty() {
            in_time!(start, "the first request never came");
        }
        // A megabyte for the heap: a connection takes more.
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
        limit(Resource::RLIMIT_AS, pages * 4096 + (1 << 20));
        let said = hg_na_sm::shared::alloc(64 << 20).unwrap_err().to_string();
        assert!(said.contains("ulimit -v"), "{said}");
        request(stranger.as_mut(), other.as_ref());
        let start = Instant::now();
        let reason = loop {
            let mut done = rounds(&mut [stranger.as_mut(), other.as_mut()]).into_iter();
            if let Some(Completion::Gone { reason, .. }) = done.next_back() {
                break reason;
            }
            in_time!(start, "nothing was told");
        };
        assert!(matches!(reason, GoneReason::Exhausted(_)), "{reason}");
        assert!(reason.to_string().contains("ulimit -v"), "{reason}");
        request(one.as_mut(), other.as_ref());
        let start = Instant::now();
        while rounds(&mut [one.as_mut(), other.as_mut()]).is_empty() {
            in_time!(start, "those who are connected cannot go on");
        }
    });
}

#[test]
fn a_peer_with_a_socket_full_of_regions_that_were_taken_back_is_answered_all_the_same() {
    const REGIONS: usize = 400;
    alone(|| {
        let _watchdog = Watchdog::start();
        limit(Resource::RLIMIT_NOFILE, 4096);
        let options = OpenOptions::listening();
        let domain = hg_na_sm::SmPlugin.open(&"sm://".parse().unwrap(), &options).unwrap();
        let (mut viewer, mut owner) = (open().unwrap(), domain.context(0).unwrap());
        let to = viewer.lookup(owner.address()).unwrap();
        let view = |viewer: &mut dyn Context, region: &Region| {
            let remote = region.descriptor().slice(0, 8).unwrap();
            viewer.post(1, Op::View { from: to, remote }).unwrap();
        };
        let register = |_| {
            let memory = hg_na_sm::shared::alloc(8).unwrap();
            domain.register(memory.into(), Rights::READ).unwrap()
        };
        let regions: Vec<_> = (0..REGIONS).map(register).collect();
        let last = register(REGIONS);
        regions.iter().for_each(|region| view(viewer.as_mut(), region));
        let (start, mut done) = (Instant::now(), Vec::new());
        while done.len() < REGIONS {
            in_time!(start, "the views do not come: {done:?}");
            done.extend(rounds(&mut [viewer.as_mut(), owner.as_mut()]));
        }
        view(viewer.as_mut(), &last);
        for region in regions {
            region.unregister().unwrap();
        }
        // More than there are between two questions to the kernel.
        for _ in 0..10_000 {
            assert!(rounds(&mut [owner.as_mut()]).is_empty(), "the viewer's question is no fault");
        }
        while done.len() == REGIONS {
            in_time!(start, "the last view does not come");
            done.extend(rounds(&mut [viewer.as_mut(), owner.as_mut()]));
        }
        let is_view = |it: &Completion| {
            matches!(it, Completion::Done(Done { result: Ok(()), returned: Returned::View(_), .. }))
        };
        assert!(done.iter().all(is_view), "{:?}", done.last());
    });
}
