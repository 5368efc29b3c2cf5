//! A queue against what it promises.

use std::rc::Rc;

use proptest::prelude::*;

use super::*;
use crate::message::Messages;

fn message(bytes: &[u8]) -> Message<'_> {
    Message { kind: 0, source: 0, to: 1, bytes }
}

impl<P: Clone + PartialEq> Queue<P> {
    /// One message that came in a batch.
    pub(super) fn push_from(&mut self, message: &Message<'_>, parent: &P) -> u64 {
        self.push_some_from(&[*message], parent)
    }

    /// Several of them.
    fn push_some_from(&mut self, messages: &[Message<'_>], parent: &P) -> u64 {
        let mut run = Loaded { bytes: vec![0; self.room], ..Loaded::default() };
        messages.iter().for_each(|message| run.push(message));
        self.push_run(&mut run, parent, Instant::now);
        self.last_number()
    }
}

fn payloads(batch: &Outgoing) -> Vec<Vec<u8>> {
    Messages::of(&batch.bytes).map(|message| message.unwrap().bytes.to_vec()).collect()
}

#[test]
fn a_batch_leaves_when_it_is_full_and_the_target_may_be_exceeded_by_one_message() {
    let now = Instant::now;
    let mut queue = Queue::<u32>::new(2, 100);
    assert_eq!(queue.push(&message(&[1; 60]), now), 0);
    assert_eq!(queue.poll_batch(now), None);
    assert_eq!(queue.push(&message(&[2; 60]), now), 0);
    let batch = queue.poll_batch(now).unwrap();
    assert_eq!((batch.number, batch.messages), (0, 2));
    assert_eq!(queue.poll_batch(now), None);
}

#[test]
fn messages_without_bytes_leave_alone_and_in_batches() {
    let now = Instant::now;
    for target in [0, 1] {
        let mut queue = Queue::<u32>::new(1, target);
        queue.push(&message(b""), now);
        assert_eq!(queue.poll_batch(now).unwrap().messages, 1);
    }
    let mut queue = Queue::<u32>::new(1, 64);
    for _ in 0..8 {
        assert_eq!(queue.poll_batch(now), None);
        queue.push(&message(b""), now);
    }
    assert_eq!(queue.poll_batch(now).unwrap().messages, 8, "heads count as well");
}

#[test]
fn messages_that_leave_alone_share_a_batch_while_they_wait_for_one_another() {
    let now = Instant::now;
    let mut queue = Queue::<u32>::new(2, 0);
    let mut left = 0;
    for number in 0..5 {
        queue.push(&message(b"x"), now);
        assert!(queue.has_left(number.min(2)) && !queue.would_wait());
        left += queue.poll_batch(now).map_or(0, |batch| batch.messages);
    }
    assert_eq!((left, queue.in_flight()), (2, 2));
    queue.acknowledge(0);
    assert_eq!(queue.poll_batch(now).map(|batch| batch.messages), Some(3));
    queue.push_from(&message(&[0; GATHERED]), &7);
    assert!(queue.would_wait(), "as many bytes as are gathered");
    assert_eq!(queue.push_from(&message(b"y"), &8), 4);
    assert!(!queue.has_left(4));
    queue.acknowledge(1);
    assert_eq!(queue.poll_batch(now).map(|batch| batch.messages), Some(1));
    assert_eq!((queue.released.as_slice(), queue.has_left(4)), (&[8][..], true));
}

#[test]
fn a_partial_batch_leaves_by_a_flush_or_after_lingering() {
    let (begin, linger) = (Instant::now(), Duration::from_millis(5));
    let now = || begin;
    let mut queue = Queue::<u32>::new(1, 100);
    queue.push(&message(b"a"), now);
    assert_eq!(queue.handle_timeout(begin, linger), Some(begin + linger));
    assert_eq!(queue.poll_batch(now), None);
    assert_eq!(queue.handle_timeout(begin + linger, linger), None);
    assert_eq!(queue.poll_batch(now).unwrap().number, 0);
    queue.push(&message(b"b"), now);
    let mark = queue.flush();
    assert_eq!(queue.poll_batch(now), None, "one is under way");
    queue.acknowledge(0);
    assert!(!queue.is_flushed(mark));
    assert_eq!(queue.poll_batch(now).unwrap().number, 1);
    assert!(!queue.is_flushed(mark));
    queue.acknowledge(1);
    assert!(queue.is_flushed(mark));
    queue.push(&message(b"c"), now);
    assert!(queue.is_flushed(mark), "what comes later is not waited for");
}

#[test]
fn what_a_flush_has_made_urgent_stays_so_when_a_batch_before_it_has_lingered() {
    let (begin, linger) = (Instant::now(), Duration::from_millis(5));
    let now = || begin;
    let mut queue = Queue::<u32>::new(1, 100);
    queue.push(&message(&[0; 100]), now);
    assert_eq!(queue.poll_batch(now).unwrap().number, 0);
    queue.push(&message(b"a"), now);
    let batch = Loaded { bytes: vec![0; 17], payload: 1, messages: 1 };
    assert_eq!(queue.push_batch(batch), 2);
    let mark = queue.flush();
    assert_eq!(queue.handle_timeout(begin + linger, linger), None);
    for number in 0..2 {
        queue.acknowledge(number);
        assert_eq!(queue.poll_batch(now).map(|batch| batch.number), Some(number + 1));
    }
    queue.acknowledge(2);
    assert!(queue.is_flushed(mark));
}

#[test]
fn a_failed_hop_that_holds_nothing_more_is_not_flushed() {
    let now = Instant::now;
    for sends in [false, true] {
        let mut queue = Queue::<u32>::new(1, 0);
        queue.push(&message(b"a"), now);
        assert_eq!(sends.then(|| queue.poll_batch(now).unwrap().number), sends.then_some(0));
        let mark = queue.flush();
        queue.fail(0);
        assert_eq!(queue.unacknowledged(), 0);
        assert!(!queue.is_flushed(mark));
    }
}

#[test]
fn what_a_failed_hop_has_not_acknowledged_is_counted_and_its_parents_are_released() {
    let now = Instant::now;
    let mut queue = Queue::new(1, 0);
    for parent in 0..4 {
        queue.push_from(&message(&[0; GATHERED]), &parent);
        assert_eq!(queue.poll_batch(now).is_some(), parent == 0);
    }
    queue.fail(0);
    let counts = queue.counts();
    assert_eq!((counts.messages, counts.dropped, counts.unanswered), (4, 3, 1));
    assert_eq!((queue.own_dropped(1), queue.own_dropped(2)), (3, 0));
    assert_eq!(queue.released, [2, 3], "the first two never waited");
    assert!(queue.has_left(3));
}

#[test]
fn what_a_closed_queue_has_sent_is_acknowledged_or_refused_and_nothing_else_is_taken_for_sent() {
    let now = Instant::now;
    let mut queue = Queue::<u32>::new(3, 0);
    for _ in 0..5 {
        queue.push(&message(b"x"), now);
        queue.poll_batch(now);
    }
    queue.close(7);
    assert_eq!((queue.in_flight(), queue.own_dropped(1)), (3, 0), "they are those of rank 0");
    queue.acknowledge(1);
    queue.refuse(2);
    queue.refuse(2);
    queue.fail(7);
    queue.refuse(0);
    let counts = queue.counts();
    assert_eq!((counts.messages, counts.dropped, counts.unanswered), (5, 3, 1));
    assert_eq!(counts.unacknowledged, 0);
}

proptest! {
    #[test]
    fn the_short_way_into_the_loading_batch_comes_to_the_same_as_the_long_one(
        steps in prop::collection::vec(step(), 1..200),
        max_in_flight in 1..4u32,
        target in prop_oneof![Just(0), Just(1), 2..60usize],
    ) {
        let now = Instant::now;
        let (room, bytes) = (max_in_flight as usize % 3 * 7, [7; 32]);
        let queue = || Queue::<u32>::new(max_in_flight, target).with_room(room);
        let mut queues = [(); 2].map(|()| queue());
        let mut under_way = Vec::new();
        for step in steps {
            let [short, long] = &mut queues;
            if let Step::Push { len, .. } = step {
                let message = message(&bytes[..len]);
                let number = long.push(&message, now);
                if short.push_loading(&message) {
                    prop_assert_eq!((short.first(), short.has_left(number)), (number, true));
                    prop_assert_eq!(short.poll_batch(now), None);
                } else {
                    prop_assert_eq!(short.push(&message, now), number);
                }
            }
            match step {
                Step::Acknowledge(at) if !under_way.is_empty() => {
                    let number = under_way.swap_remove(at % under_way.len());
                    queues.iter_mut().for_each(|queue| queue.acknowledge(number));
                }
                Step::Flush => {
                    let marks = queues.each_mut().map(Queue::flush);
                    prop_assert_eq!(marks[0], marks[1]);
                }
                Step::Push { .. } | Step::Poll | Step::Acknowledge(_) => {}
            }
            let [short, long] = queues.each_mut().map(|queue| queue.poll_batch(now));
            prop_assert_eq!(&short, &long);
            if let Some(batch) = &short {
                let read = Messages::of(&batch.bytes[room..]).flatten().count();
                prop_assert_eq!(read, batch.messages as usize);
            }
            under_way.extend(short.map(|batch| batch.number));
            let [short, long] = queues.each_ref().map(Queue::counts);
            prop_assert_eq!(short, long);
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Push {
        len: usize,
        parent: u8,
    },
    Poll,
    /// Of those in flight, which.
    Acknowledge(usize),
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..30usize, 0..6u8).prop_map(|(len, parent)| Step::Push { len, parent }),
        3 => Just(Step::Poll),
        2 => (0..8usize).prop_map(Step::Acknowledge),
        1 => Just(Step::Flush),
    ]
}

proptest! {
    #[test]
    fn every_message_leaves_once_in_order_and_every_parent_is_released_when_nothing_of_it_waits(
        steps in prop::collection::vec(step(), 1..200),
        max_in_flight in 1..4u32,
        target in prop_oneof![Just(0), Just(1), 2..60usize],
    ) {
        let now = Instant::now;
        let mut queue = Queue::<Rc<u8>>::new(max_in_flight, target);
        let mut under_way = Vec::new();
        let (mut pushed, mut left) = (Vec::new(), Vec::new());
        let mut take = |queue: &mut Queue<_>, under_way: &mut Vec<u64>| {
            while let Some(batch) = queue.poll_batch(now) {
                left.extend(payloads(&batch));
                under_way.push(batch.number);
                assert!(under_way.len() <= max_in_flight as usize);
                queue.reuse(batch.bytes);
            }
        };
        let parents: Vec<Rc<u8>> = (0..6).map(Rc::new).collect();
        for step in steps {
            match step {
                Step::Push { len, parent } => {
                    let bytes = vec![u8::try_from(pushed.len() % 256).unwrap(); len];
                    let run = vec![message(&bytes); 1 + len % 3];
                    let number = queue.push_some_from(&run, &parents[usize::from(parent)]);
                    let holds = Rc::strong_count(&parents[usize::from(parent)]) > 1;
                    prop_assert!(queue.has_left(number) || holds, "a waiting message's parent is kept");
                    pushed.extend(run.iter().map(|message| message.bytes.to_vec()));
                }
                Step::Poll => take(&mut queue, &mut under_way),
                Step::Acknowledge(at) if !under_way.is_empty() => {
                    queue.acknowledge(under_way.remove(at % under_way.len()));
                }
                Step::Acknowledge(_) => {}
                Step::Flush => drop(queue.flush()),
            }
            queue.released.clear();
        }
        let mark = queue.flush();
        while !queue.is_flushed(mark) {
            take(&mut queue, &mut under_way);
            for number in under_way.drain(..) {
                queue.acknowledge(number);
            }
        }
        queue.released.clear();
        prop_assert_eq!(left, pushed);
        prop_assert!(parents.iter().all(|parent| Rc::strong_count(parent) == 1));
        prop_assert_eq!(queue.unacknowledged(), 0);
    }
}
