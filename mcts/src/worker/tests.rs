//! Workers without threads: a seeded scheduler decides who moves next and whose messages arrive.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::{VirtualLoss, hex::Hex};

/// Workers, and messages under way from each to each.
struct Job {
    workers: Vec<Worker<Hex>>,
    links: Vec<Vec<VecDeque<Message>>>,
    stopped: Vec<bool>,
    root: Root<Hex>,
    random: Random,
}

impl Job {
    fn new(board: Hex, settings: &Settings, schedule: u64) -> Self {
        let count = settings.workers;
        let root = Root { key: board.hash(), position: board, owner: 0 };
        let workers = (0..count)
            .map(|me| Worker::one_of(me, count, settings, &root).among_strangers())
            .collect();
        let links = vec![vec![VecDeque::new(); count.into()]; count.into()];
        let stopped = vec![false; count.into()];
        Self { workers, links, stopped, root, random: Random::new(schedule, 0) }
    }

    fn send_all(&mut self, from: usize) {
        for (to, batch) in self.workers[from].outbox.filled() {
            self.links[from][usize::from(to)].extend(batch.drain(..));
        }
    }

    /// One phase in an order that the seed decides. Returns whether it ended.
    fn run_phase(&mut self, phase: u32, rollouts: u64, window: u64) -> bool {
        let root = self.root.clone();
        self.workers.iter_mut().for_each(|it| it.begin_phase(phase, &root));
        self.stopped.fill(false);
        let mut has_told = false;
        for _ in 0..rollouts * 2_000 {
            let at = self.random.below(self.workers.len());
            let from = self.random.below(self.workers.len());
            match self.random.below(3) {
                0 => {
                    if let Some(message) = self.links[from][at].pop_front()
                        && !self.workers[at].handle(message)
                    {
                        self.stopped[at] = true;
                    }
                }
                1 => {
                    self.workers[at].simulate();
                }
                _ => {
                    let root = &mut self.workers[0];
                    let left = (rollouts - root.begun).min(window - (root.begun - root.counted));
                    if left > 0 && root.proven.is_none() {
                        let some = 1 + self.random.below(left.min(5) as usize);
                        root.begin_rollouts(u32::try_from(some).unwrap());
                    } else if root.begun == root.counted && !has_told {
                        root.outbox.stop_all();
                        has_told = true;
                    }
                    self.send_all(0);
                }
            }
            self.send_all(at);
            if self.stopped.iter().all(|it| *it) {
                return true;
            }
        }
        false
    }

    fn assert_balanced(&self) {
        assert!(self.links.iter().flatten().all(VecDeque::is_empty), "messages are left");
        for worker in &self.workers {
            assert_eq!((worker.jobs(), worker.outbox.is_empty(), worker.fault), (0, true, None));
            for slot in worker.tree.slots() {
                let node = worker.tree.node(slot);
                let children = (0..node.children).map(|edge| worker.tree.child(slot, edge));
                let (visits, pending) = children.fold((0, 0), |(visits, pending), child| {
                    (visits + u64::from(child.visits), pending + child.pending)
                });
                assert_eq!((node.pending, pending), (0, 0));
                assert_eq!(node.visits, node.own + visits);
            }
        }
    }
}

fn settings(placement: usize, loss: usize, workers: u16) -> Settings {
    let placements = [Placement::Random, Placement::Hash, Placement::Local(1)];
    let losses = [VirtualLoss::Count, VirtualLoss::Loss(3), VirtualLoss::Unobserved];
    Settings {
        placement: placements[placement],
        virtual_loss: losses[loss],
        workers,
        simulations: 2,
        // So little that nodes are pruned while rollouts are under way.
        memory: 8 << 10,
        parallelism: Parallelism::Tree,
        ..Settings::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn in_whatever_order_messages_meet_every_rollout_comes_back_once(
        placement in 0_usize..3, loss in 0_usize..3, workers in 1_u16..5, window in 1_u64..40, schedule: u64,
    ) {
        let mut job = Job::new(Hex::new(4).unwrap(), &settings(placement, loss, workers), schedule);
        let mut visits = 0;
        for phase in 1..=2 {
            prop_assert!(job.run_phase(phase, 400, window), "the phase does not end");
            job.assert_balanced();
            let root = &job.workers[0];
            visits += root.counted * 2;
            prop_assert_eq!(root.begun, root.counted);
            prop_assert_eq!(root.root_visits(), visits);
            if root.proven.is_some() {
                prop_assert_eq!(root.proven, Some(Outcome::Won(Player::First)));
                break;
            }
        }
    }
}

#[test]
fn a_message_of_another_phase_changes_nothing() {
    let mut job = Job::new(Hex::new(4).unwrap(), &settings(0, 2, 2), 1);
    assert!(job.run_phase(1, 50, 8));
    let late = Message { phase: 1, from: 0, body: Body::Stop };
    let root = job.root.clone();
    job.workers.iter_mut().for_each(|it| it.begin_phase(2, &root));
    assert!(job.workers[0].handle(late));
    job.assert_balanced();
}

/// Numbers that are sometimes those of a node, a child or a worker.
fn few() -> impl Strategy<Value = u16> {
    prop_oneof![0_u16..6, any::<u16>()]
}

fn nonsense() -> impl Strategy<Value = Message> {
    let hop = (few(), few(), few(), 0_u16..4);
    let path = proptest::collection::vec(hop, 0..4).prop_map(|hops| {
        hops.into_iter()
            .map(|(node, edge, mv, owner)| Hop { node: node.into(), edge, mv, owner })
            .collect::<Path>()
    });
    let path = path.boxed();
    let tally = (0_u32..5, 0_u32..12, -12_i32..12)
        .prop_map(|(rollouts, simulations, score)| Tally { rollouts, simulations, score });
    let body = prop_oneof![
        (path.clone(), 0_u32..200).prop_map(|(path, count)| Body::Select { path, count }),
        (path, tally, any::<bool>()).prop_map(|(path, tally, is_proven)| {
            let proof = is_proven.then_some(Outcome::Won(Player::Second));
            Body::Report { path, tally, proof }
        }),
        Just(Body::Stop),
    ];
    (0_u16..3, body).prop_map(|(from, body)| Message { phase: 1, from, body })
}

proptest! {
    #[test]
    fn whatever_another_process_says_a_worker_goes_on_or_finds_fault(
        placement in 0_usize..3, messages in proptest::collection::vec((0_usize..3, nonsense()), 1..40),
    ) {
        let mut job = Job::new(Hex::new(3).unwrap(), &settings(placement, 2, 3), 1);
        let root = job.root.clone();
        job.workers.iter_mut().for_each(|it| it.begin_phase(1, &root));
        for (to, message) in messages {
            for _ in 0..5 {
                job.workers[0].begin_rollouts(1);
            }
            let worker = &mut job.workers[to];
            worker.handle(message);
            worker.simulate();
            let sent: Vec<(u16, Vec<Message>)> =
                worker.outbox.filled().map(|(to, batch)| (to, std::mem::take(batch))).collect();
            for (to, message) in
                sent.into_iter().flat_map(|(to, batch)| batch.into_iter().map(move |it| (to, it)))
            {
                job.workers[usize::from(to)].handle(message);
            }
            prop_assert!(job.workers.iter().all(|it| it.jobs() <= 1_000));
        }
    }
}
