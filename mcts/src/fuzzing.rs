//! What another process can send to a worker in the middle of a phase, for the fuzz target `mcts_messages`.

use crate::{
    Game as _, Parallelism, Settings,
    hex::Hex,
    message::Message,
    phase::Rounds,
    wire::{self, Head},
    worker::{Root, Worker},
};

const PHASE: u32 = 1;
const ROLLOUTS: u64 = 64;
const ME: u16 = 0;
const OTHER: u16 = 1;
/// The board's rows.
const SIZE: u8 = 4;
/// Of a leaf.
const SIMULATIONS: u32 = 2;
/// Rollouts between two batches where trees are merged.
const ROLLOUTS_MERGED: u64 = 8;
const MEMORY: usize = 1 << 18;

/// One of two workers at the beginning of a phase.
fn worker(number: u16, parallelism: Parallelism) -> Worker<Hex> {
    let simulations = SIMULATIONS;
    let settings =
        Settings { simulations, parallelism, workers: 2, memory: MEMORY, ..Settings::default() };
    let position = Hex::new(SIZE).expect("a size that there is");
    let root = Root { key: position.hash(), position, owner: ME };
    let mut worker = Worker::one_of(number, 2, &settings, &root).among_strangers();
    worker.begin_phase(PHASE, &root);
    if parallelism == Parallelism::Merged {
        worker.begin_merging();
    }
    worker
}

/// Runs a phase of one of two workers. The first byte says whether they have one tree (0) or a tree each, which are merged. The others are
/// what the other worker sends: batches, each behind its length (1), without their heads.
///
/// # Panics
/// When a promise of the worker's is broken: it refuses what makes no sense, and counts what does.
pub fn fuzz_messages(bytes: &[u8]) {
    match bytes.split_first() {
        None => {}
        Some((0, rest)) => drop(on_one_tree(rest)),
        Some((_, rest)) => drop(on_merged_trees(rest)),
    }
}

/// The next batch, and what is behind it.
fn next_batch(bytes: &[u8]) -> Option<(Vec<Message>, &[u8])> {
    let (len, rest) = bytes.split_first()?;
    let (batch, rest) = rest.split_at(usize::from(*len).min(rest.len()));
    Some((read(batch), rest))
}

/// Between two batches the worker begins a rollout, and simulates a leaf. Returns how many messages were heard, or what is wrong.
fn on_one_tree(mut bytes: &[u8]) -> Result<usize, &'static str> {
    let mut worker = worker(ME, Parallelism::Tree);
    let mut heard = 0;
    while let Some((messages, rest)) = next_batch(bytes) {
        bytes = rest;
        if worker.begun < ROLLOUTS && worker.proven.is_none() {
            worker.begin_rollouts(1);
        }
        worker.simulate();
        for message in messages {
            let goes_on = worker.handle(message);
            if let Some(why) = worker.fault {
                return Err(why);
            }
            assert!(goes_on, "only the owner of the root ends a phase");
            heard += 1;
        }
        worker.outbox.filled().for_each(|(_, batch)| batch.clear());
        assert!(worker.counted <= worker.begun, "{} of {}", worker.counted, worker.begun);
        assert!(worker.root_visits() <= worker.begun * u64::from(SIMULATIONS));
    }
    Ok(heard)
}

/// Between two batches the worker makes rollouts, and tells what it has counted where it may.
fn on_merged_trees(mut bytes: &[u8]) -> Result<usize, &'static str> {
    let mut worker = worker(ME, Parallelism::Merged);
    let mut rounds = Rounds::new(ME, 2);
    let mut heard = 0;
    while let Some((messages, rest)) = next_batch(bytes) {
        bytes = rest;
        simulate(&mut worker);
        for Message { from, body, .. } in messages {
            rounds.hear(&mut worker, from, body);
            if let Some(why) = worker.fault {
                return Err(why);
            }
            heard += 1;
        }
        if rounds.may_tell() {
            rounds.tell(&mut worker, false);
        }
        worker.outbox.filled().for_each(|(_, batch)| batch.clear());
        let found = worker.part(Vec::new()).stats;
        assert!(found.tree_bytes <= MEMORY / 2, "{found:?}");
        assert_eq!(worker.audit().unbalanced, 0);
    }
    Ok(heard)
}

fn simulate(worker: &mut Worker<Hex>) {
    for _ in 0..ROLLOUTS_MERGED {
        if worker.proven.is_none() {
            worker.begin_rollouts(1);
            worker.simulate();
        }
    }
}

/// What was read before the first message that is none counts as sent, as in a team: its sender is accused after that.
fn read(batch: &[u8]) -> Vec<Message> {
    let mut whole = Vec::new();
    Head { phase: PHASE, load: 0 }.write(&mut whole);
    whole.extend(batch);
    let mut messages = Vec::new();
    let _ = wire::read(&whole, OTHER, &mut messages);
    messages
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Appends a batch.
    fn write(batch: &[Message], into: &mut Vec<u8>) {
        let mut bytes = Vec::new();
        batch.iter().for_each(|it| wire::write(&it.body, &mut bytes));
        into.push(u8::try_from(bytes.len()).expect("short batches"));
        into.extend(bytes);
    }

    /// What a worker that shares a tree sends.
    fn partner() -> Vec<u8> {
        let mut workers = [ME, OTHER].map(|number| worker(number, Parallelism::Tree));
        let mut sent = vec![0];
        for _ in 0..ROLLOUTS {
            workers[0].begin_rollouts(1);
            workers[0].simulate();
            let [one, other] = &mut workers;
            for (_, batch) in one.outbox.filled() {
                batch.drain(..).for_each(|it| assert!(other.handle(it)));
            }
            while other.simulate() {}
            let batch: Vec<_> =
                other.outbox.filled().flat_map(|(_, it)| std::mem::take(it)).collect();
            write(&batch, &mut sent);
            batch.into_iter().for_each(|it| assert!(one.handle(it)));
        }
        assert!(workers.iter().all(|it| it.fault.is_none()));
        sent
    }

    /// What a worker with a tree of its own sends.
    fn merged_partner() -> Vec<u8> {
        let mut workers = [ME, OTHER].map(|number| worker(number, Parallelism::Merged));
        let mut rounds = [ME, OTHER].map(|number| Rounds::new(number, 2));
        let mut sent = vec![1];
        for turn in 0..8 {
            for at in [1, 0] {
                simulate(&mut workers[at]);
                rounds[at].tell(&mut workers[at], turn == 7);
                let filled = workers[at].outbox.filled();
                let batch: Vec<_> = filled.flat_map(|(_, it)| std::mem::take(it)).collect();
                if at == 1 {
                    batch.chunks(1).for_each(|it| write(it, &mut sent));
                }
                for it in batch {
                    rounds[1 - at].hear(&mut workers[1 - at], it.from, it.body);
                }
            }
        }
        assert!(workers.iter().all(|it| it.fault.is_none()));
        sent
    }

    #[test]
    fn what_a_true_partner_sends_is_taken_and_is_among_the_seeds() {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/mcts_messages");
        for (name, sent, least) in [("partner", partner(), 10), ("merged", merged_partner(), 20)] {
            let is_tree = sent[0] == 0;
            let heard = if is_tree { on_one_tree(&sent[1..]) } else { on_merged_trees(&sent[1..]) };
            assert!(heard.expect(name) >= least, "{name}: {heard:?}");
            let seed = seeds.join(name);
            if std::env::var_os("WRITE_SEEDS").is_some() {
                std::fs::write(&seed, &sent).expect("the seed can be written");
            }
            let seed = std::fs::read(seed).expect("a seed");
            assert!(seed == sent, "{name} is outdated: run this test with WRITE_SEEDS=1");
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_sent_is_refused_or_counted(bytes: Vec<u8>, is_tree: bool) {
            fuzz_messages(&[&[u8::from(!is_tree)], &bytes[..]].concat());
        }
    }
}
