//! Runs many stories, or one.

#![expect(clippy::print_stdout, reason = "a command line tool")]

use std::{
    collections::BTreeMap,
    fmt::Display,
    process::{Command, ExitCode},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use sim::{
    Checks, Judged, Planted, Tracing, check_of,
    real::{self, Transport},
    story::Story,
};

/// What is to be done.
struct Options {
    seeds: u64,
    from: u64,
    seed: Option<u64>,
    trace: bool,
    keep_going: bool,
    checks: Checks,
    real: Option<Transport>,
    threads: Option<u64>,
    planted: Option<Planted>,
}

const USAGE: &str = "usage: sim [--seeds N] [--from N] [--seed N] [--trace] [--keep-going] [--skip CHECK,CHECK] [--threads N] [--planted FAULT]
       sim --real sm|tcp [--seeds N] [--from N] [--seed N] [--keep-going] [--threads N]";

/// Stories with real processes that run at a time: they mostly wait.
const THREADS: u64 = 4;

impl Options {
    fn story(&self, seed: u64) -> Story {
        let mut story = Story::new(seed);
        story.rules.planted = self.planted;
        story
    }

    /// How many stories run at a time.
    fn threads(&self) -> u64 {
        self.threads.unwrap_or_else(|| {
            thread::available_parallelism().map_or(1, |threads| threads.get() as u64)
        })
    }
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        seeds: 5000,
        from: 0,
        seed: None,
        trace: false,
        keep_going: false,
        checks: Checks::default(),
        real: None,
        threads: None,
        planted: None,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || {
            let text = args.next().ok_or(USAGE)?;
            text.parse::<u64>().map_err(|error| format!("{text}: {error}"))
        };
        match arg.as_str() {
            "--seeds" => options.seeds = number()?,
            "--from" => options.from = number()?,
            "--seed" => options.seed = Some(number()?),
            "--threads" => options.threads = Some(number()?.max(1)),
            "--real" => options.real = Some(args.next().ok_or(USAGE)?.parse()?),
            "--planted" => options.planted = Some(args.next().ok_or(USAGE)?.parse()?),
            "--trace" => options.trace = true,
            "--keep-going" => options.keep_going = true,
            "--skip" => {
                let names = args.next().ok_or(USAGE)?;
                options.checks.skipped.extend(names.split(',').map(str::to_owned));
            }
            _ => return Err(USAGE.to_owned()),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|first| first == real::FLAG) {
        real::play(&args[1..]);
    }
    let options = match options() {
        Ok(options) => options,
        Err(why) => {
            println!("{why}");
            return ExitCode::from(2);
        }
    };
    if let Some(transport) = options.real {
        return with_real_processes(transport, &options);
    }
    match options.seed {
        Some(seed) => one(seed, &options),
        None if options.threads() == 1 => many(&options),
        None => in_batches(&options),
    }
}

fn with_real_processes(transport: Transport, options: &Options) -> ExitCode {
    let program = std::env::current_exe().expect("this program has a path");
    let (from, seeds) = options.seed.map_or((options.from, options.seeds), |seed| (seed, 1));
    let (begun, next, failed) = (Instant::now(), AtomicU64::new(from), AtomicU64::new(0));
    // Relaxed: nothing else hangs on these numbers.
    let work = || {
        while options.keep_going || failed.load(Ordering::Relaxed) == 0 {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= from + seeds {
                return;
            }
            if let Err(failure) = real::run(seed, transport, &program) {
                failed.fetch_add(1, Ordering::Relaxed);
                println!("{}", real::describe(seed, transport, &failure));
            }
        }
    };
    thread::scope(|scope| {
        (0..options.threads.unwrap_or(THREADS)).for_each(|_| drop(scope.spawn(work)))
    });
    let (failed, took) = (failed.into_inner(), begun.elapsed().as_secs_f64());
    println!(
        "stories up to {} over {} in {took:.1} s, {failed} failed",
        from + seeds,
        transport.name()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn one(seed: u64, options: &Options) -> ExitCode {
    let story = options.story(seed);
    if options.trace {
        println!("{story}");
    }
    let tracing = if options.trace { Tracing::Lines } else { Tracing::Hash };
    let report = sim::run(&story, options.checks.clone(), tracing);
    report.trace.lines().iter().for_each(|line| println!("{line}"));
    println!("trace {:016x}", report.trace.hash());
    let Some(failure) = report.failure else { return ExitCode::SUCCESS };
    println!("{failure}");
    print_short(&story, &failure, options);
    ExitCode::FAILURE
}

fn print_short(story: &Story, failure: &str, options: &Options) {
    let (short, why) = sim::shrink(story, &options.checks, failure);
    println!("\nmade shorter, {} of {} events:", short.events.len(), story.events.len());
    println!("{short}{why}\n");
}

/// Stories that one process runs: what a killed process of a story has had is never freed, as its threads cannot be unwound.
const BATCH: u64 = 2000;

/// Runs many stories in batches, each in a process of its own; gives what they have said.
fn in_batches(options: &Options) -> ExitCode {
    let program = std::env::current_exe().expect("this program has a path");
    let (begun, next) = (Instant::now(), AtomicU64::new(0));
    let (held, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    let judged = Mutex::new(BTreeMap::new());
    let flags: Vec<_> = std::env::args().skip(1).collect();
    // Relaxed: nothing else hangs on these numbers.
    let work = || {
        while options.keep_going || failed.load(Ordering::Relaxed) == 0 {
            let first = next.fetch_add(BATCH, Ordering::Relaxed);
            if first >= options.seeds {
                return;
            }
            let seeds = BATCH.min(options.seeds - first);
            let (from, seeds) = ((options.from + first).to_string(), seeds.to_string());
            let own = ["--from", &from, "--seeds", &seeds, "--threads", "1"];
            let output = Command::new(&program).args(&flags).args(own).output();
            let output = output.expect("this program can be started again");
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let of_line = |line: &str| line.split_once(" of them hold")?.0.parse::<u64>().ok();
            add_judged(&mut judged.lock().unwrap_or_else(PoisonError::into_inner), &said);
            held.fetch_add(said.lines().find_map(of_line).unwrap_or(0), Ordering::Relaxed);
            if !output.status.success() {
                failed.fetch_add(1, Ordering::Relaxed);
                println!("{said}{}", String::from_utf8_lossy(&output.stderr));
            }
        }
    };
    let threads = options.threads();
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let (held, failed, took) =
        (held.into_inner(), failed.into_inner(), begun.elapsed().as_secs_f64());
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = held as f64 / took / threads as f64;
    println!(
        "{held} of {} seeds hold, {failed} batches have failures; {took:.1} s by {threads} processes at a time, {rate:.0} stories a second and process",
        options.seeds
    );
    println!("{JUDGED}{}", listed(&judged.into_inner().unwrap_or_default()));
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Before how often each check has judged something.
const JUDGED: &str = "judged: ";

fn listed<K: Display>(judged: &BTreeMap<K, u64>) -> String {
    judged.iter().map(|(check, count)| format!("{check} {count}")).collect::<Vec<_>>().join(", ")
}

/// Adds what another process has said of that.
fn add_judged(judged: &mut BTreeMap<String, u64>, said: &str) {
    let lists = said.lines().filter_map(|line| line.strip_prefix(JUDGED));
    for (check, count) in
        lists.flat_map(|list| list.split(", ")).filter_map(|it| it.split_once(' '))
    {
        *judged.entry(check.to_owned()).or_default() += count.parse().unwrap_or(0);
    }
}

/// What has become of many stories.
#[derive(Default)]
struct Tally {
    done: u64,
    passed: u64,
    /// How many have broken a check, and the first of them.
    kinds: BTreeMap<String, (u64, u64)>,
    judged: Judged,
}

/// Runs many stories in this process.
fn many(options: &Options) -> ExitCode {
    let begun = Instant::now();
    let mut tally = Tally::default();
    for seed in options.from..options.from + options.seeds {
        if let Some((story, failure)) = try_one(seed, options, &mut tally) {
            print_short(&story, &failure, options);
            break;
        }
    }
    let Tally { done, passed, kinds, judged } = tally;
    let took = begun.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = done as f64 / took;
    println!("{done} seeds in {took:.1} s, {rate:.0} a second");
    println!("{passed} of them hold");
    println!("{JUDGED}{}", listed(&judged));
    for (check, (count, first)) in &kinds {
        println!("  {check}: {count}, the first is seed {first}");
    }
    if kinds.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the story of a seed; gives one that has failed and is to be made shorter.
fn try_one(seed: u64, options: &Options, tally: &mut Tally) -> Option<(Story, String)> {
    let story = options.story(seed);
    let report = sim::run(&story, options.checks.clone(), Tracing::Off);
    tally.done += 1;
    report
        .judged
        .iter()
        .for_each(|(check, count)| *tally.judged.entry(check).or_default() += count);
    let Some(failure) = report.failure else {
        tally.passed += 1;
        return None;
    };
    let (count, first) = tally.kinds.entry(check_of(&failure).to_owned()).or_insert((0, seed));
    (*count, *first) = (*count + 1, seed.min(*first));
    if !options.keep_going || *count <= 3 {
        println!("seed {seed}: {failure}");
    }
    (!options.keep_going).then_some((story, failure))
}
