//! How fast objects go from one process to others of this machine, each a process of its own.
//!
//! `cargo run --release -p hydrargyrum-multicast --example speed -- URL MEMBERS SIZE COUNT [UNDER_WAY] [BLOCK]`: the time from sending to the last
//! member's word, of `COUNT` objects in registered memory, so many of them under way at a time.

#![expect(clippy::print_stdout, reason = "what it has measured")]

use std::{
    collections::VecDeque,
    error::Error,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Instant,
};

use hg::bulk::{Bulk, Rights, alloc};
use hg_multicast::{
    Completion, Destination, Group, GroupId, Multicast, Options, schedule::SMALL_OBJECT_MAX,
};

type Failed = Box<dyn Error>;

/// What is measured.
struct Settings {
    words: Vec<String>,
    members: usize,
    size: usize,
    count: usize,
    under_way: usize,
    options: Options,
}

impl Settings {
    fn of(words: Vec<String>) -> Result<Self, Failed> {
        let number =
            |place: usize, otherwise| words.get(place).map_or(Ok(otherwise), |it| it.parse());
        let (members, size, count) = (number(1, 4)?, number(2, 16 << 20)?, number(3, 10)?);
        let (under_way, block) = (number(4, 1)?, number(5, 0)?);
        let mut options = Options::default();
        options.block_size = (block > 0).then_some(block as u64);
        options.checksum = std::env::var_os("NO_CHECKSUM").is_none();
        Ok(Self { words, members, size, count, under_way, options })
    }

    fn is_small(&self) -> bool {
        self.size as u64 <= SMALL_OBJECT_MAX
    }

    fn register(&self, multicast: &Multicast) -> Result<Arc<Bulk>, Failed> {
        Ok(Arc::new(multicast.engine().expose(alloc(self.size.max(1))?, Rights::READ)?))
    }
}

fn main() -> Result<(), Failed> {
    let settings = Settings::of(std::env::args().skip(1).collect())?;
    let url = settings.words.first().map_or("sm://", String::as_str);
    let multicast = Multicast::open(hg::builder(), url)?;
    if std::env::var_os("MULTICAST_SPEED").is_some() {
        receive(&multicast, &settings)
    } else {
        send(&multicast, &settings)
    }
}

/// What the processes do that the root starts.
fn receive(multicast: &Multicast, settings: &Settings) -> Result<(), Failed> {
    println!("{}", multicast.address());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let words: Vec<_> = line.split_whitespace().collect();
    let id = GroupId::from_bytes(u128::from_str_radix(words[0], 16)?.to_le_bytes());
    let all = words[2..].iter().map(|it| it.parse()).collect::<Result<Vec<_>, _>>()?;
    let memory = settings.register(multicast)?;
    let is_small = settings.is_small();
    let options = settings.options.clone();
    let group = multicast.group(id, &all, words[1].parse()?, options, move |_| {
        let memory = Destination::Registered(Arc::clone(&memory));
        Ok(if is_small { Destination::Allocate } else { memory })
    })?;
    while group.receive().wait()?.is_some() {}
    Ok(group.close().wait()?)
}

/// Starts the others; gives the group, and them.
fn start(multicast: &Multicast, settings: &Settings) -> Result<(Group, Vec<Child>), Failed> {
    let start = |_| {
        let mut child = Command::new(std::env::current_exe()?);
        child.args(&settings.words).env("MULTICAST_SPEED", "1");
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
    };
    let mut children: Vec<Child> = (1..settings.members).map(start).collect::<Result<_, _>>()?;
    let mut all = vec![multicast.address().to_string()];
    for child in &mut children {
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no pipe")?).read_line(&mut line)?;
        all.push(line.trim().to_owned());
    }
    let id = GroupId::random()?;
    for (own, child) in (1..).zip(&mut children) {
        let id = u128::from_le_bytes(id.to_bytes());
        writeln!(child.stdin.take().ok_or("no pipe")?, "{id:x} {own} {}", all.join(" "))?;
    }
    let all = all.iter().map(|it| it.parse()).collect::<Result<Vec<_>, _>>()?;
    let options = settings.options.clone();
    let group = multicast.group(id, &all, 0, options, |_| Err("the root sends".to_owned()))?;
    group.joined().wait()?;
    Ok((group, children))
}

fn send(multicast: &Multicast, settings: &Settings) -> Result<(), Failed> {
    let (group, mut children) = start(multicast, settings)?;
    let memory = if settings.is_small() { None } else { Some(settings.register(multicast)?) };
    let send = || match &memory {
        Some(memory) => group.send(Arc::clone(memory), b""),
        None => group.send(vec![1; settings.size], b""),
    };
    send()?.wait()?; // Pages and connections are there.
    let (begun, mut waiting) = (Instant::now(), VecDeque::new());
    for _ in 0..settings.count {
        if waiting.len() >= settings.under_way {
            waiting.pop_front().map_or(Ok(()), Completion::wait)?;
        }
        waiting.push_back(send()?);
    }
    waiting.into_iter().try_for_each(Completion::wait)?;
    let each = begun.elapsed().as_secs_f64() / settings.count as f64;
    group.close().wait()?;
    children.iter_mut().try_for_each(|it| it.wait().map(drop))?;
    println!(
        "{} members, {} bytes: {:.1} us each, {:.0}/s, {:.2} GB/s",
        settings.members,
        settings.size,
        each * 1e6,
        1.0 / each,
        settings.size as f64 / each / 1e9
    );
    Ok(())
}
