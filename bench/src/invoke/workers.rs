//! Two workers, one of which calls the other: in two processes, or in two threads of this one.
//!
//! Whoever is called sleeps until it is told to begin, on a socket or a queue; then it spins until a call tells it to stop, and says
//! how many have run.

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use hg_invoke::{Fabric, Group, How, Packing, Place, Room, Synchronizer, Worker, rpc};

use crate::error::Error;
use crate::pair::{self, Control, Cores, Peer};

thread_local! {
    static RUN: Cell<u64> = const { Cell::new(0) };
    static IS_OVER: Cell<bool> = const { Cell::new(false) };
}

#[rpc(crate = hg_invoke)]
pub(super) fn take_word(word: u64) {
    black_box(word);
    RUN.set(RUN.get() + 1);
}

#[rpc(crate = hg_invoke)]
fn take_bytes(bytes: &[u8]) {
    black_box(bytes);
    RUN.set(RUN.get() + 1);
}

#[rpc(crate = hg_invoke)]
fn stop() {
    IS_OVER.set(true);
}

/// How calls are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Packed {
    /// Into blocks.
    Trad,
    /// A message each while the transport takes them.
    Ovfl,
    /// A message each, always.
    Plain,
}

/// `hg-perf invoked`: the process that is called.
#[derive(Debug, clap::Args)]
pub(crate) struct InvokedArguments {
    #[arg(long)]
    url: String,
    #[arg(long, value_enum)]
    packed: Packed,
    /// The process that must live.
    #[arg(long)]
    parent: u32,
    /// The core to run on.
    #[arg(long)]
    core: Option<usize>,
}

/// Is called as often as it is told to begin.
pub(crate) fn serve(arguments: &InvokedArguments) -> Result<(), Error> {
    let mut control = pair::become_peer(arguments.parent, arguments.core)?;
    let group = Two { rank: 1, control: RefCell::new(&mut control) };
    let worker = one(fabric(arguments.packed)?.open(&group, &arguments.url)?)?;
    while control.next()?.is_some() {
        let run = run(&worker)?;
        control.send(run)?;
    }
    Ok(())
}

/// Spins until a call says that it is over; how many others have run.
fn run(worker: &Worker) -> Result<u64, Error> {
    RUN.set(0);
    IS_OVER.set(false);
    while !IS_OVER.get() {
        worker.progress()?;
    }
    Ok(RUN.get())
}

/// The worker that calls, and the one that is called.
pub(crate) struct Workers {
    caller: Worker,
    called: Place,
    other: RefCell<Other>,
    bytes: Vec<u8>,
}

enum Other {
    Process(Peer),
    Thread { begin: mpsc::Sender<()>, run: mpsc::Receiver<u64> },
}

impl Workers {
    /// In two processes.
    pub(crate) fn of_processes(url: &str, packed: Packed, cores: Cores) -> Result<Self, Error> {
        let name = clap::ValueEnum::to_possible_value(&packed);
        let name = name.as_ref().map_or("trad", |it| it.get_name());
        let words = ["invoked", "--url", url, "--packed", name];
        let mut peer = Peer::run("invoked", &words, cores.target)?;
        let group = Two { rank: 0, control: RefCell::new(peer.control()) };
        let caller = one(fabric(packed)?.open(&group, url)?)?;
        let called = Place { process: 1, thread: 0 };
        Ok(Self::new(caller, called, Other::Process(peer)))
    }

    /// In two threads of this process.
    pub(crate) fn of_threads(cores: Cores) -> Result<Self, Error> {
        let mut workers = fabric(Packed::Trad)?.threads(2).open(&Alone, "sm://")?;
        let (called, caller) = (one(workers.split_off(1))?, one(workers)?);
        let (begin, begins) = mpsc::channel();
        let (tell, run_there) = mpsc::channel();
        thread::spawn(move || -> Result<(), Error> {
            cores.target.map_or(Ok(()), pair::pin)?;
            while begins.recv().is_ok() {
                // Whoever would hear it has ended otherwise.
                let _ = tell.send(run(&called)?);
            }
            Ok(())
        });
        let place = Place { process: 0, thread: 1 };
        Ok(Self::new(caller, place, Other::Thread { begin, run: run_there }))
    }

    fn new(caller: Worker, called: Place, other: Other) -> Self {
        Self { caller, called, other: RefCell::new(other), bytes: vec![7; 1 << 16] }
    }

    /// The time of so many calls, until all have run.
    pub(crate) fn calls(&self, size: u64, count: u64) -> Result<Duration, Error> {
        self.running(WARM_UP + count, || {
            self.make(size, WARM_UP)?;
            let start = Instant::now();
            self.make(size, count)?;
            Ok(start.elapsed())
        })
    }

    /// The time of so many calls, each of which is known to have run before the next is made.
    pub(crate) fn notified_calls(&self, count: u64) -> Result<Duration, Error> {
        self.running(WARM_UP + count, || {
            self.make(8, WARM_UP)?;
            let (ran, start) = (Synchronizer::new(), Instant::now());
            for number in 0..count {
                self.call(8, number, How::room(Room::Return).when_run(&ran))?;
                self.caller.flush();
                self.spin_until_run(&ran)?;
            }
            Ok(start.elapsed())
        })
    }

    /// Lets the other one spin meanwhile, and checks that it has run as many calls as were made.
    fn running<T>(&self, count: u64, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        match &mut *self.other.borrow_mut() {
            Other::Process(peer) => peer.control().send(1)?,
            Other::Thread { begin, .. } => {
                begin.send(()).map_err(|_| Error::PeerGone("a thread that is called"))?;
            }
        }
        let result = work()?;
        self.caller.call(self.called, stop, ())?;
        // What the transport has taken leaves with the caller's progress, at the latest.
        let run = loop {
            self.caller.progress()?;
            match &mut *self.other.borrow_mut() {
                Other::Process(peer) => {
                    if peer.control().is_ready()? {
                        break peer.receive()?;
                    }
                }
                Other::Thread { run, .. } => match run.try_recv() {
                    Ok(run) => break run,
                    Err(mpsc::TryRecvError::Empty) => {}
                    Err(mpsc::TryRecvError::Disconnected) => {
                        return Err(Error::PeerGone("a thread that is called"));
                    }
                },
            }
            thread::yield_now();
        };
        if run == count {
            return Ok(result);
        }
        Err(Error::WrongAnswer { figure: "calls that ran", sent: count, got: run })
    }

    /// So many calls, until the last one has run.
    fn make(&self, size: u64, count: u64) -> Result<(), Error> {
        let ran = Synchronizer::new();
        for number in 1..count {
            self.call(size, number, How::room(Room::Return))?;
        }
        self.call(size, count, How::room(Room::Return).when_run(&ran))?;
        self.caller.flush();
        self.spin_until_run(&ran)
    }

    /// Whoever waits by the product's own means lets others run after a while: on a busy machine that is what would be measured.
    fn spin_until_run(&self, ran: &Synchronizer) -> Result<(), Error> {
        while ran.left() > 0 {
            self.caller.progress()?;
        }
        ran.result().map_or(Ok(()), |result| Ok(result?))
    }

    #[inline]
    fn call(&self, size: u64, number: u64, how: How<'_>) -> Result<(), Error> {
        // The length is one of the arguments.
        let bytes = &self.bytes[..usize::try_from(size - 8).unwrap_or(0)];
        loop {
            let made = if size == 8 {
                self.caller.call_with(self.called, take_word, (number,), how).map_err(|it| it.error)
            } else {
                self.caller.call_with(self.called, take_bytes, (bytes,), how).map_err(|it| it.error)
            };
            match made {
                Err(hg_invoke::Error::Full(_)) => self.caller.progress()?,
                made => return Ok(made?),
            };
        }
    }
}

pub(super) fn fabric(packed: Packed) -> Result<Fabric, Error> {
    let packing = match packed {
        Packed::Trad => Packing::Trad,
        Packed::Ovfl => Packing::Ovfl,
        Packed::Plain => Packing::Plain,
    };
    let fabric = Fabric::new().packing(packing);
    Ok(fabric.register(take_word)?.register(take_bytes)?.register(stop)?)
}

pub(super) fn one(workers: Vec<Worker>) -> Result<Worker, Error> {
    let one = workers.into_iter().next();
    one.ok_or_else(|| Error::Failed("a fabric without a worker".to_owned()))
}

/// This process and the other one, by the socket between them.
struct Two<'a> {
    rank: u32,
    control: RefCell<&'a mut Control>,
}

impl Group for Two<'_> {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        2
    }

    /// In digits: the socket carries texts.
    fn all_gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        let mut control = self.control.borrow_mut();
        let digits: String = own.iter().map(|byte| format!("{byte:02x}")).collect();
        control.send_text(&digits).map_err(|error| error.to_string())?;
        let text = control.next_text().map_err(|error| error.to_string())?;
        let text = text.ok_or("the second process is gone")?;
        let (pairs, _) = text.as_bytes().as_chunks::<2>();
        let byte = |pair: &[u8; 2]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
        let other = pairs.iter().map(byte).collect::<Option<Vec<u8>>>();
        let mut all = vec![own.to_vec(), other.ok_or("no digits")?];
        if self.rank == 1 {
            all.reverse();
        }
        Ok(all)
    }
}

/// This process by itself.
struct Alone;

impl Group for Alone {
    fn rank(&self) -> u32 {
        0
    }

    fn size(&self) -> u32 {
        1
    }

    fn all_gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        Ok(vec![own.to_vec()])
    }
}

/// Calls before each repetition.
const WARM_UP: u64 = if cfg!(debug_assertions) { 100 } else { 2_000 };
