//! Counts the words of files over all ranks of a job: each rank reads some of the files and owns some of the words.
//!
//! ```console
//! $ cargo run --release -p hydrargyrum-shuffle --example words -- *.md    # starts four ranks itself
//! $ mpirun -n 8 target/release/examples/words *.md                        # or srun, or any MPI's launcher
//! ```
//! Without files it counts the words of its own source.

use std::{
    collections::HashMap,
    env,
    error::Error,
    fs,
    hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher},
    sync::{Arc, Mutex},
};

use hg_job::{Job, Local, Via};
use hg_shuffle::{Options, Ranks, Shuffle, Shutdown};

/// How many of the most frequent words are printed.
const SHOWN: usize = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let job = Job::connect()?;
    if job.via() == Via::Single {
        // Nobody has started several: four of them, here.
        std::process::exit(i32::from(Local::new(4).run()?.code()));
    }
    let mut files: Vec<String> = env::args().skip(1).collect();
    if files.is_empty() {
        files.push(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/words.rs").to_owned());
    }

    let counts = Arc::new(Mutex::new(HashMap::<Vec<u8>, u64>::new()));
    let callback = {
        let counts = Arc::clone(&counts);
        move |message: hg_shuffle::Delivery<'_>| {
            let mut counts = counts.lock().expect("the callback does not panic");
            match counts.get_mut(message.bytes) {
                Some(count) => *count += 1,
                None => drop(counts.insert(message.bytes.to_vec(), 1)),
            }
        }
    };
    let mut options = Options::default();
    options.deliver_inline = true;
    let shuffle = Shuffle::new(&Ranks::of(&job, "words"), "words", options, callback)?;

    // A word belongs to the rank that its hash names; the hash is the same everywhere.
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let (rank, size) = (job.rank() as usize, u64::from(job.size()));
    let mut sent = 0;
    let mut sender = shuffle.sender();
    for file in files.iter().skip(rank).step_by(job.size() as usize) {
        let text = fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
        for word in words(&text) {
            let owner = u32::try_from(hasher.hash_one(&word) % size)?;
            sender.enqueue(owner, 0, word.as_bytes())?;
            sent += 1;
        }
    }
    sender.flush()?;
    drop(sender);
    shuffle.flush_all()?; // every word of every file is counted

    let counts = counts.lock().expect("the callback does not panic");
    report(&job, &counts, sent)?;
    shuffle.shutdown(Shutdown::Drain)?;
    job.leave()?;
    Ok(())
}

fn words(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|letter: char| !letter.is_alphanumeric());
    words.filter(|word| !word.is_empty()).map(str::to_lowercase)
}

/// Each rank tells its most frequent words; the most frequent of all are among them.
fn report(job: &Job, counts: &HashMap<Vec<u8>, u64>, sent: u64) -> Result<(), Box<dyn Error>> {
    let mut most: Vec<(u64, String)> =
        counts.iter().map(|(word, count)| (*count, String::from_utf8_lossy(word).into())).collect();
    // The most frequent first; among equals by the alphabet.
    let in_order = |one: &(u64, String), other: &(u64, String)| {
        other.0.cmp(&one.0).then_with(|| one.1.cmp(&other.1))
    };
    most.sort_unstable_by(in_order);
    let mut mine = format!("{sent} {} {}\n", counts.values().sum::<u64>(), counts.len());
    most.iter().take(SHOWN).for_each(|(count, word)| mine += &format!("{count} {word}\n"));

    let (mut totals, mut shown) = ([0; 3], Vec::new());
    for told in job.all_gather(mine.as_bytes())? {
        let told = String::from_utf8(told)?;
        let mut lines = told.lines();
        let numbers = lines.next().unwrap_or_default().split(' ');
        for (total, number) in totals.iter_mut().zip(numbers) {
            *total += number.parse::<u64>()?;
        }
        for (count, word) in lines.filter_map(|line| line.split_once(' ')) {
            shown.push((count.parse()?, word.to_owned()));
        }
    }
    let [sent, counted, different] = totals;
    assert_eq!(sent, counted, "each word is counted once");
    shown.sort_unstable_by(in_order);
    if job.rank() == 0 {
        print(&format!("{counted} words, {different} different ones, at {} ranks", job.size()));
        shown.iter().take(SHOWN).for_each(|(count, word)| print(&format!("{count:8} {word}")));
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "an example says what it does")]
fn print(line: &str) {
    println!("{line}");
}
