//! A sample sort over all ranks of a job: each rank ends with one range of the keys, in order.
//!
//! ```console
//! $ cargo run --release -p hydrargyrum-shuffle --example sort                   # starts four ranks itself
//! $ cargo run --release -p hydrargyrum-shuffle --example sort -- 100000000 512  # so many keys, so many a message
//! $ mpirun -n 8 target/release/examples/sort 100000000                          # or srun, or any MPI's launcher
//! ```
//! `hg-perf sort` sets it beside the same sort over `MPI_Alltoallv` (`bench/src/sort/alltoallv.c`).

use std::sync::{Arc, Mutex};
use std::{env, error::Error, mem, time::Instant};

use hg_job::{Job, Local, Via};
use hg_shuffle::{Options, Ranks, Shuffle, Shutdown};

/// Keys of a rank by which the ranges are chosen.
const SAMPLES: usize = 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let numbers = env::args().skip(1).map(|word| word.parse()).collect::<Result<Vec<u64>, _>>()?;
    let keys = *numbers.first().unwrap_or(&1_000_000);
    let a_message = usize::try_from(*numbers.get(1).unwrap_or(&1))?;
    let job = Job::connect()?;
    if job.via() == Via::Single {
        let ranks = u32::try_from(*numbers.get(2).unwrap_or(&4))?;
        std::process::exit(i32::from(Local::new(ranks).run()?.code()));
    }
    let (rank, size) = (u64::from(job.rank()), u64::from(job.size()));
    let own: Vec<u64> = (keys * rank / size..keys * (rank + 1) / size).map(scrambled).collect();

    let received = Arc::new(Mutex::new(Vec::with_capacity(own.len() + own.len() / 8)));
    let (into, mut options) = (Arc::clone(&received), Options::default());
    options.deliver_inline = true;
    let shuffle = Shuffle::new(&Ranks::of(&job, "sort"), "sort", options, move |message| {
        let mut received = into.lock().expect("the callback does not panic");
        received.extend(numbers_of(message.bytes));
    })?;

    job.barrier()?;
    let begin = Instant::now();
    send(&shuffle, &own, &bounds(&job, &own)?, a_message)?;
    shuffle.flush_all()?;
    let exchanged = begin.elapsed();
    let mut sorted = mem::take(&mut *received.lock().expect("the callback does not panic"));
    sort(&mut sorted);
    job.barrier()?;
    let all = begin.elapsed();

    verify(&job, &own, &sorted, keys)?;
    if rank == 0 {
        let rate = keys as f64 / all.as_secs_f64();
        print(&format!("{keys} keys in {all:.3?}, exchanged in {exchanged:.3?}"));
        print(&format!("{{\"keys_per_s\":{rate:.1}}}"));
    }
    shuffle.shutdown(Shutdown::Drain)?;
    job.leave()?;
    Ok(())
}

/// Where the range of each rank but the first begins: the same at all ranks, from samples of all.
fn bounds(job: &Job, own: &[u64]) -> Result<Vec<u64>, Box<dyn Error>> {
    let step = (own.len() / SAMPLES).max(1);
    let mine: Vec<u8> = own.iter().step_by(step).flat_map(|key| key.to_le_bytes()).collect();
    let all = job.all_gather(&mine)?.concat();
    let mut samples: Vec<u64> = numbers_of(&all).collect();
    samples.sort_unstable();
    let size = job.size() as usize;
    Ok((1..size).filter_map(|rank| samples.get(rank * samples.len() / size)).copied().collect())
}

/// Each key to the rank of its range, so many keys in one message.
fn send(shuffle: &Shuffle, own: &[u64], bounds: &[u64], most: usize) -> Result<(), Box<dyn Error>> {
    let mut sender = shuffle.sender();
    let mut waiting = vec![Vec::with_capacity(most * 8); bounds.len() + 1];
    for key in own {
        let to = bounds.partition_point(|bound| bound <= key);
        if most <= 1 {
            sender.enqueue(u32::try_from(to)?, 0, &key.to_le_bytes())?;
            continue;
        }
        waiting[to].extend_from_slice(&key.to_le_bytes());
        if waiting[to].len() >= most * 8 {
            sender.enqueue(u32::try_from(to)?, 0, &waiting[to])?;
            waiting[to].clear();
        }
    }
    for (to, rest) in (0..).zip(&waiting).filter(|(_, rest)| !rest.is_empty()) {
        sender.enqueue(to, 0, rest)?;
    }
    Ok(sender.flush()?)
}

/// By eleven bits at a time, the lowest first: the sort that the program in C has.
fn sort(keys: &mut Vec<u64>) {
    let mut other = vec![0; keys.len()];
    for shift in (0..64).step_by(11) {
        let digit = |key: u64| {
            let [low, high, ..] = (key >> shift).to_le_bytes();
            usize::from(u16::from_le_bytes([low, high])) & 2047
        };
        let mut starts = [0_usize; 2049];
        keys.iter().for_each(|key| starts[digit(*key) + 1] += 1);
        (1..2049).for_each(|at| starts[at] += starts[at - 1]);
        for key in keys.iter() {
            let place = &mut starts[digit(*key)];
            other[*place] = *key;
            *place += 1;
        }
        mem::swap(keys, &mut other);
    }
}

/// In order here and from rank to rank, and the same keys as before: as many, with the same sum and the same product.
fn verify(job: &Job, own: &[u64], sorted: &[u64], keys: u64) -> Result<(), Box<dyn Error>> {
    assert!(sorted.is_sorted(), "the keys of rank {} are in order", job.rank());
    let fold = |keys: &[u64]| {
        let start = [keys.len() as u64, 0, 1];
        keys.iter().fold(start, |[len, sum, product], key| {
            [len, sum.wrapping_add(*key), product.wrapping_mul(key | 1)]
        })
    };
    let ends = [sorted.first(), sorted.last()].map(|key| key.copied().unwrap_or_default());
    let mine = [fold(own), fold(sorted)].concat().into_iter().chain(ends);
    let all = job.all_gather(&mine.flat_map(u64::to_le_bytes).collect::<Vec<u8>>())?.concat();
    let all: Vec<u64> = numbers_of(&all).collect();
    let total = |at: usize| all.chunks(8).fold(0, |sum: u64, rank| sum.wrapping_add(rank[at]));
    let product = |at: usize| all.chunks(8).fold(1, |all: u64, rank| all.wrapping_mul(rank[at]));
    assert_eq!((total(0), total(3)), (keys, keys), "no key is lost, and none comes twice");
    assert_eq!((total(1), product(2)), (total(4), product(5)), "they are the same keys");
    let ranges = all.chunks(8).filter(|rank| rank[3] > 0).flat_map(|rank| [rank[6], rank[7]]);
    assert!(ranges.is_sorted(), "the ranks' ranges are in order");
    Ok(())
}

fn numbers_of(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number))
}

/// A number that looks like chance (splitmix64): the same keys, however many ranks there are.
fn scrambled(number: u64) -> u64 {
    let mut key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x9e37_79b9_7f4a_7c15);
    key = (key ^ key >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    key = (key ^ key >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ key >> 31
}

#[expect(clippy::print_stdout, reason = "an example says what it does")]
fn print(line: &str) {
    println!("{line}");
}
