//! Workers without threads, which tell one another what they have counted in any order.

use proptest::prelude::*;

use super::*;
use crate::{
    MEMORY_MIN, Outcome, Parallelism, Player, Random, Settings,
    hex::Hex,
    message::Message,
    worker::{Root, Worker},
};

/// `memory`: of each worker, beside what the news of a root may need.
fn workers(size: u8, memory: usize, count: u16) -> Vec<Worker<Hex>> {
    let memory = usize::from(count) * (memory + Share::new::<Hex>(count - 1).least());
    let parallelism = Parallelism::Merged;
    let settings =
        Settings { workers: count, parallelism, simulations: 2, memory, ..Settings::default() };
    let root = Root::of(Hex::new(size).unwrap());
    let begun = |number| {
        let mut worker = Worker::one_of(number, count, &settings, &root);
        worker.begin_phase(1, &root);
        worker.begin_merging();
        worker
    };
    (0..count).map(begun).collect()
}

fn deliver(worker: &mut Worker<Hex>, message: Message) {
    if let Body::News { moves, news } = message.body {
        worker.add(&moves, &news);
    }
}

/// What is known about the root, by move.
fn root(worker: &Worker<Hex>) -> Vec<(u16, u64, i64)> {
    let sums = worker.look(Root::of(Hex::new(4).unwrap()).key).expect("made at the beginning");
    let mut sums: Vec<_> = sums.children.iter().map(|it| (it.mv, it.visits, it.score)).collect();
    sums.sort_unstable();
    sums
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn in_whatever_order_news_meet_all_count_the_same_at_the_root(
        count in 2_u16..5, memory in prop_oneof![Just(8_usize << 10), Just(1 << 20)], schedule: u64,
    ) {
        let mut all = workers(4, memory, count);
        let mut random = Random::new(schedule, 0);
        let mut links: Vec<(usize, Message)> = Vec::new();
        for turn in 0..200 {
            let at = random.below(all.len());
            if turn < 190 {
                for _ in 0..random.below(40) {
                    if all[at].proven.is_none() {
                        all[at].begin_rollouts(1);
                        all[at].simulate();
                    }
                }
            }
            let tellers = if turn == 199 { 0..all.len() } else { at..at + 1 };
            for at in tellers {
                all[at].tell(turn == 199);
                for (to, batch) in all[at].outbox.filled() {
                    links.extend(batch.drain(..).map(|it| (usize::from(to), it)));
                }
            }
            while !links.is_empty() && (turn == 199 || random.below(3) > 0) {
                let (to, message) = links.swap_remove(random.below(links.len()));
                deliver(&mut all[to], message);
            }
        }
        let visits: u64 = all.iter().map(|it| it.counted * 2).sum();
        for worker in &all {
            prop_assert_eq!(worker.root_visits(), visits);
            prop_assert_eq!(root(worker), root(&all[0]));
            let audit = worker.audit();
            prop_assert_eq!((audit.unbalanced, audit.under_way, audit.waiting), (0, 0, 0));
            prop_assert!(worker.proven.is_none_or(|it| it == Outcome::Won(Player::First)));
        }
    }

    #[test]
    fn whatever_another_process_tells_a_worker_counts_or_finds_fault(
        told in proptest::collection::vec(
            (proptest::collection::vec(0_u16..10, 0..3), proptest::collection::vec((0_u16..20, any::<u32>(), any::<i32>(), 0_u8..20), 0..9)),
            1..40,
        ),
    ) {
        let mut worker = workers(3, 1 << 20, 2).remove(0).among_strangers();
        for (moves, news) in told {
            for _ in 0..20 {
                worker.begin_rollouts(1);
                worker.simulate();
            }
            let proofs = [Outcome::Drawn, Outcome::Won(Player::First), Outcome::Won(Player::Second)];
            let news: Vec<News> = news
                .into_iter()
                .map(|(mv, visits, score, proof)| {
                    News { mv, visits, score, proof: proofs.get(usize::from(proof)).copied() }
                })
                .collect();
            worker.add(&moves, &news);
            worker.tell(false);
            worker.outbox.filled().for_each(|(_, batch)| batch.clear());
            prop_assert_eq!(worker.audit().unbalanced, 0);
            if worker.fault.is_some() {
                break;
            }
        }
    }
}

#[test]
fn what_one_has_proved_all_know() {
    let mut all = workers(3, 1 << 20, 2);
    while all[0].proven.is_none() {
        all[0].begin_rollouts(1);
        all[0].simulate();
    }
    all[0].tell(true);
    let sent: Vec<Message> =
        all[0].outbox.filled().flat_map(|(_, batch)| std::mem::take(batch)).collect();
    sent.into_iter().for_each(|it| deliver(&mut all[1], it));
    assert_eq!(all[1].proven, Some(Outcome::Won(Player::First)));
}

#[test]
fn what_was_told_once_is_not_told_again_when_the_game_comes_back() {
    let mut all = workers(4, 1 << 20, 2);
    let exchange = |all: &mut Vec<Worker<Hex>>| {
        for at in 0..2 {
            all[at].tell(true);
            let sent: Vec<Message> =
                all[at].outbox.filled().flat_map(|(_, batch)| std::mem::take(batch)).collect();
            sent.into_iter().for_each(|it| deliver(&mut all[1 - at], it));
        }
    };
    let home = Root::of(Hex::new(4).unwrap());
    let mut elsewhere = home.position.clone();
    elsewhere.play(0);
    let elsewhere = Root::of(elsewhere);
    for (phase, root) in (1..).zip([&home, &elsewhere, &elsewhere, &elsewhere, &home]) {
        for worker in &mut all {
            worker.begin_phase(phase, root);
            worker.begin_merging();
            for _ in 0..100 {
                worker.begin_rollouts(1);
                worker.simulate();
            }
        }
        exchange(&mut all);
    }
    // Two phases of two workers, with two simulations a leaf.
    assert!(all.iter().all(|it| it.root_visits() == 2 * 2 * 2 * 100), "{}", all[0].root_visits());
    assert_eq!(root(&all[0]), root(&all[1]));
}

#[test]
fn merging_keeps_to_its_share_of_the_memory_and_the_root_is_always_merged() {
    for (memory, count) in [(MEMORY_MIN, 2), (MEMORY_MIN, 9), (1 << 20, 2)] {
        let mut all = workers(9, memory, count);
        let share = Share::new::<Hex>(count - 1);
        let all_bytes = memory + share.least();
        for phase in 1..4 {
            let worker = &mut all[0];
            let mut board = Hex::new(9).unwrap();
            (0..phase).for_each(|mv| board.play(u16::try_from(mv).unwrap()));
            worker.begin_phase(phase, &Root::of(board));
            worker.begin_merging();
            for _ in 0..2_000 {
                worker.begin_rollouts(1);
                worker.simulate();
            }
            worker.tell(true);
            let told = worker.outbox.filled().next().expect("somebody is told").1.len();
            worker.outbox.filled().for_each(|(_, batch)| batch.clear());
            assert!(told > 1 && worker.merged.bytes() <= share.of(all_bytes));
            let slots: Vec<u32> = worker.tree.slots().collect();
            let is_merged =
                |slot: &&u32| !matches!(worker.tree.node(**slot).merged, NEVER | NO_MORE);
            let merged: Vec<&u32> = slots.iter().filter(is_merged).collect();
            let bytes = |slot: &&u32| share.node(worker.tree.node(**slot).children.into());
            assert_eq!(merged.iter().map(bytes).sum::<usize>(), worker.merged.bytes());
            let stats = worker.part(Vec::new()).stats;
            assert!(stats.tree_bytes <= all_bytes, "{stats:?}");
        }
    }
}

#[test]
fn a_node_needs_no_more_than_it_is_charged_for() {
    let mut all = workers(9, 1 << 20, 4);
    let worker = &mut all[0];
    for _ in 0..2_000 {
        worker.begin_rollouts(1);
        worker.simulate();
    }
    worker.tell(true);
    let others = 3;
    // Of two rounds for each of the others.
    let waiting: usize =
        worker.outbox.filled().flat_map(|(_, batch)| &*batch).map(|it| 2 * it.bytes()).sum();
    // As much comes from them; and this worker has what it told, and a round.
    let told = waiting / others;
    assert!(2 * waiting + told <= worker.merged.bytes(), "{waiting} {}", worker.merged.bytes());
}

#[test]
fn two_rounds_of_news_are_no_more_messages_than_may_wait() {
    for others in [1, 2, 31, 1_000, u16::MAX - 1] {
        let share = Share::new::<Hex>(others);
        let round = share.nodes() * CHUNKS + 1;
        assert!(usize::from(others) * (2 * round + 1) <= share.messages());
        assert!(share.messages() <= WINDOW_MAX as usize + 8 * usize::from(others));
    }
}

#[test]
fn what_another_one_has_tried_is_not_tried_again_and_its_nodes_are_made() {
    let mut all = workers(4, 1 << 20, 2);
    for _ in 0..200 {
        all[0].begin_rollouts(1);
        all[0].simulate();
    }
    all[0].tell(true);
    let sent: Vec<Message> =
        all[0].outbox.filled().flat_map(|(_, batch)| std::mem::take(batch)).collect();
    let told = sent.iter().filter(|it| matches!(it.body, Body::News { .. })).count();
    sent.into_iter().for_each(|it| deliver(&mut all[1], it));
    assert!(told > 1, "only the root is merged");
    assert_eq!(all[1].tree.len(), told);
    for slot in all[1].tree.slots() {
        let node = all[1].tree.node(slot);
        let visited = (0..node.children).filter(|edge| all[1].tree.child(slot, *edge).visits > 0);
        assert_eq!(visited.collect::<Vec<_>>(), (0..node.tried).collect::<Vec<_>>());
        let (here, there) = (node.key, all[0].tree.find(node.key).expect("told of"));
        assert_eq!(node.tried, all[0].tree.node(there).tried, "{here:x}");
    }
}

#[test]
fn what_a_child_cannot_count_any_more_is_not_taken_back_from_others() {
    let mut tree = Tree::new(usize::MAX);
    let slot = tree.insert(1, Player::First, &[4, 5], 1, 1).unwrap();
    let mut merged = Merged::new(Share::new::<Hex>(1), 1 << 20);
    merged.begin(&mut tree, Some(slot), 1);
    for score in [7, 2_000_000_000] {
        merged.add(&mut tree, slot, &[News { mv: 4, visits: 2_000_000_000, score, proof: None }]);
    }
    assert!(merged.news_of(&mut tree, slot).is_empty());
}
