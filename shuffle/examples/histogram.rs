//! A histogram over all ranks of a job: each rank owns some of the bins, and gets every value that falls into them.
//!
//! ```console
//! $ cargo run --release -p hydrargyrum-shuffle --example histogram    # starts four ranks itself
//! $ mpirun -n 8 target/release/examples/histogram                     # or srun, or any MPI's launcher
//! ```

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use hg_job::{Job, Local, Via};
use hg_shuffle::{Options, Ranks, Shuffle, Shutdown};

const BINS: u32 = 1000;
const VALUES: u32 = 100_000;

fn main() -> Result<(), Box<dyn Error>> {
    let job = Job::connect()?;
    if job.via() == Via::Single {
        // Nobody has started several: four of them, here.
        let ended = Local::new(4).run()?;
        std::process::exit(i32::from(ended.code()));
    }
    let (rank, size) = (job.rank(), job.size());

    // Bin `b` belongs to rank `b % size`, which counts it here.
    let bins: Arc<[AtomicU64]> = (0..BINS).map(|_| AtomicU64::new(0)).collect();
    let counted = Arc::clone(&bins);
    let ranks = Ranks::of(&job, "histogram");
    let shuffle = Shuffle::new(&ranks, "histogram", Options::default(), move |message| {
        // Relaxed: `flush_all` orders it before what is read below.
        counted[message.kind as usize].fetch_add(1, Ordering::Relaxed);
    })?;

    // The bin travels as the message's type; the message itself may be empty.
    let mut value = rank.wrapping_add(1);
    for _ in 0..VALUES {
        value = value.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let bin = (value >> 16) % BINS;
        shuffle.enqueue(bin % size, bin, &[])?;
    }
    shuffle.flush_all()?; // every value of every rank is in its bin

    let mine: u64 = bins.iter().map(|bin| bin.load(Ordering::Relaxed)).sum();
    let all = job.all_gather(&mine.to_le_bytes())?;
    let sum = |bytes: Vec<u8>| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let total: u64 = all.into_iter().map(sum).sum();
    assert_eq!(total, u64::from(VALUES) * u64::from(size), "each value is counted once");
    if rank == 0 {
        print(&format!("{total} values of {size} ranks are in {BINS} bins, {mine} of them here"));
    }
    shuffle.shutdown(Shutdown::Drain)?;
    job.leave()?;
    Ok(())
}

#[expect(clippy::print_stdout, reason = "an example says what it does")]
fn print(line: &str) {
    println!("{line}");
}
