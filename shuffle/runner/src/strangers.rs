//! `--strangers N`: so many connections of nobody's to the ports at which the ranks listen, from their start to their end.
//!
//! One in three says nothing, one begins as a peer does and stops, and one says whatever comes without end; each until it is sent away,
//! and then it comes again.

use std::{
    fs, io,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// All of them, and who looks at what they cost.
#[derive(Debug)]
pub(crate) struct Strangers {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

/// Counts; relaxed, all of them: they are read when all threads have ended.
#[derive(Debug, Default)]
struct Shared {
    came: AtomicU64,
    sent_away: AtomicU64,
    /// Most descriptors of a rank.
    descriptors: AtomicU64,
    is_over: AtomicBool,
    looking: Mutex<()>,
    ended: Condvar,
}

impl Strangers {
    /// So many, as soon as so many ranks, which this process is about to start, listen.
    pub(crate) fn start(count: u32, ranks: u32) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let own = Arc::clone(&shared);
        let run = move || own.run(count, ranks as usize);
        let thread = thread::Builder::new().name("strangers".to_owned()).spawn(run)?;
        Ok(Self { shared, thread })
    }

    /// What they did, in words, and how often they came.
    pub(crate) fn end(self) -> (String, u64) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        drop(self.shared.looking.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.ended.notify_all();
        // One that panicked has said so.
        drop(self.thread.join());
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Shared { came, sent_away, descriptors, .. } = &*self.shared;
        let came = count(came);
        let said = format!(
            "strangers came {came} times, and were sent away {} times; a rank had {} descriptors at most",
            count(sent_away),
            count(descriptors)
        );
        (said, came)
    }
}

impl Shared {
    fn run(&self, count: u32, ranks: usize) {
        let mut found = Vec::new();
        while found.len() < ranks {
            if self.waits() {
                return;
            }
            found = listening();
        }
        let doors: Vec<SocketAddr> = found.iter().map(|(_, address)| *address).collect();
        thread::scope(|scope| {
            for (number, way) in (0..count as usize).zip(WAYS.iter().cycle()) {
                let doors = &doors;
                let come = move || self.come(doors.iter().cycle().skip(number), way);
                // As many as there may be.
                let _ = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, come);
            }
            loop {
                let descriptors = found.iter().map(|(pid, _)| descriptors(*pid));
                let most = descriptors.max().unwrap_or(0);
                self.descriptors.fetch_max(most, Ordering::Relaxed);
                if self.waits() {
                    return;
                }
            }
        });
    }

    /// Waits for a moment; whether it is over.
    fn waits(&self) -> bool {
        let looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |(): &mut ()| !self.is_over.load(Ordering::Relaxed);
        drop(self.ended.wait_timeout_while(looking, INTERVAL, is_over));
        self.is_over.load(Ordering::Relaxed)
    }

    /// One of them, which comes again and again.
    fn come<'d>(&self, doors: impl Iterator<Item = &'d SocketAddr>, way: &Way) {
        for door in doors {
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            let Ok(mut stream) = TcpStream::connect_timeout(door, INTERVAL) else {
                // A rank that has ended: at once.
                self.waits();
                continue;
            };
            self.came.fetch_add(1, Ordering::Relaxed);
            if self.stays(&mut stream, way).is_err() {
                self.sent_away.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Until it is over. `Err`: it was sent away.
    fn stays(&self, stream: &mut TcpStream, way: &Way) -> io::Result<()> {
        stream.set_read_timeout(Some(INTERVAL))?;
        stream.set_write_timeout(Some(INTERVAL))?;
        let is_late = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
        if let Way::Half = way {
            stream.write_all(HALF)?;
        }
        while !self.is_over.load(Ordering::Relaxed) {
            let said = match way {
                Way::Noise => stream.write(&[0xab; 4096]),
                Way::Silence | Way::Half => stream.read(&mut [0; 256]).and_then(|count| {
                    if count == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(count) }
                }),
            };
            said.map(drop).or_else(|error| if is_late(&error) { Ok(()) } else { Err(error) })?;
        }
        Ok(())
    }
}

/// What one says.
#[derive(Debug)]
enum Way {
    Silence,
    Half,
    Noise,
}

/// The processes that this one has started, and where each listens.
fn listening() -> Vec<(u32, SocketAddr)> {
    let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| parent(*pid) == Some(std::process::id()))
        .filter_map(|pid| Some((pid, listener(pid)?)))
        .collect()
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may hold anything: the state, and the parent.
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

fn listener(pid: u32) -> Option<SocketAddr> {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let links = links.filter_map(|link| fs::read_link(link.ok()?.path()).ok());
    let own: Vec<String> = links.filter_map(|link| Some(link.to_str()?.to_owned())).collect();
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).ok()?;
    table.lines().skip(1).find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, local, _, LISTENS, .., inode] = words.get(..10)? else { return None };
        let is_own = own.contains(&format!("socket:[{inode}]"));
        let (ip, port) = local.split_once(':')?;
        // As the machine has it in memory.
        let ip = Ipv4Addr::from(u32::from_str_radix(ip, 16).ok()?.to_ne_bytes());
        let ip = if ip.is_unspecified() { Ipv4Addr::LOCALHOST } else { ip };
        let port = u16::from_str_radix(port, 16).ok()?;
        is_own.then_some((ip, port).into())
    })
}

fn descriptors(pid: u32) -> u64 {
    let open = fs::read_dir(format!("/proc/{pid}/fd"));
    open.map_or(0, |open| open.count() as u64)
}

const WAYS: [Way; 3] = [Way::Silence, Way::Half, Way::Noise];
/// The state of a socket that listens, in `/proc/net/tcp`.
const LISTENS: &str = "0A";
/// How a peer begins over `tcp://`.
const HALF: &[u8] = b"HG-TCP";
/// How often is looked.
const INTERVAL: Duration = Duration::from_millis(20);
/// Of a thread each, which needs little.
const STACK: usize = 128 << 10;
