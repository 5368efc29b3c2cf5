//! What another process can send to a worker in the middle of a phase, for the fuzz target `mcts_messages`.

use crate::{
    Game as _, Parallelism, Settings,
    hex::Hex,
    message::Message,
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

/// One of two workers at the beginning of a phase.
fn worker(number: u16) -> Worker<Hex> {
    let memory = 1 << 16;
    let (simulations, parallelism) = (SIMULATIONS, Parallelism::Tree);
    let settings = Settings { simulations, parallelism, workers: 2, memory, ..Settings::default() };
    let position = Hex::new(SIZE).expect("a size that there is");
    let root = Root { key: position.hash(), position, owner: ME };
    let mut worker = Worker::one_of(number, 2, &settings, &root).among_strangers();
    worker.begin_phase(PHASE, &root);
    worker
}

/// Runs a phase of one of two workers. The bytes are what the other one sends: batches, each behind its length (1), without
/// their heads. Between two of them the worker begins a rollout, and simulates a leaf.
///
/// # Panics
/// When a promise of the worker's is broken: it refuses what makes no sense, and counts what does.
pub fn fuzz_messages(mut bytes: &[u8]) {
    let mut worker = worker(ME);
    while let Some((len, rest)) = bytes.split_first() {
        let (batch, rest) = rest.split_at(usize::from(*len).min(rest.len()));
        bytes = rest;
        if worker.begun < ROLLOUTS && worker.proven.is_none() {
            worker.begin_rollout();
        }
        worker.simulate();
        for message in read(batch) {
            let goes_on = worker.handle(message);
            if worker.fault.is_some() {
                return;
            }
            assert!(goes_on, "only the owner of the root ends a phase");
        }
        worker.outbox.filled().for_each(|(_, batch)| batch.clear());
        assert!(worker.counted <= worker.begun, "{} of {}", worker.counted, worker.begun);
        assert!(worker.root_visits() <= worker.begun * u64::from(SIMULATIONS));
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
    use super::*;

    #[test]
    fn what_a_true_partner_sends_is_taken() {
        let mut workers = [ME, OTHER].map(worker);
        let mut sent = Vec::new();
        // First visits stay here.
        for _ in 0..ROLLOUTS {
            workers[0].begin_rollout();
            workers[0].simulate();
            let [one, other] = &mut workers;
            for (_, batch) in one.outbox.filled() {
                batch.drain(..).for_each(|it| assert!(other.handle(it)));
            }
            while other.simulate() {}
            let mut bytes = Vec::new();
            for (_, batch) in other.outbox.filled() {
                for message in batch.drain(..) {
                    wire::write(&message.body, &mut bytes);
                    assert!(one.handle(message));
                }
            }
            sent.push(u8::try_from(bytes.len()).expect("short batches"));
            sent.extend(bytes);
        }
        assert!(workers.iter().all(|it| it.fault.is_none()));
        assert!(sent.len() > 40, "the other one was sent nothing");
        fuzz_messages(&sent);
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_sent_is_refused_or_counted(bytes: Vec<u8>) {
            fuzz_messages(&bytes);
        }
    }
}
