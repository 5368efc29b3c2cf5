//! A rank's side of its connection to the hub: one thread that reads, callers that wait.
//!
//! A call writes its frame and sleeps until the reader has the answer, the job is broken, or its bound has
//! passed; then it asks the hub whom it waits for, and says so.

mod line;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    io::{BufReader, Read as _, Write as _},
    os::fd::AsFd as _,
    process,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use hg_na_memory::NotInherited;

use self::line::{Line, Sent};
use crate::{
    deadline::after,
    error::{Error, Ranks},
    frame::{Broken, DOWN_MAX, Down, Hello, Letter, Post, Up, What},
    hub,
    stream::Stream,
    tree::Run,
};

/// How long the hub may take to answer a question.
const ANSWER: Duration = Duration::from_secs(2);

/// Names the question who has not joined. No program's channel: an answer that comes after the welcome is nobody's then.
const JOINING: &str = "\0joining";

/// What ends the process, instead of being told to the next call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Endings {
    /// An abort of another rank.
    pub abort: bool,
    /// The hub's end: for ranks whose runner holds it.
    pub hub_gone: bool,
}

/// Who holds the hub at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holder {
    Runner,
    Rank(u32),
}

impl Holder {
    /// In words.
    fn name(self) -> &'static str {
        match self {
            Self::Runner => "the runner",
            Self::Rank(0) => "rank 0",
            Self::Rank(_) => "the rank that this one is connected through",
        }
    }

    /// Its connection has ended.
    fn gone(self) -> Error {
        match self {
            Self::Runner | Self::Rank(0) => Error::HubGone(self.name()),
            Self::Rank(rank) => Error::Lost { rank, how: "ended without leaving the job" },
        }
    }
}

#[derive(Debug)]
pub(crate) struct Link {
    shared: Arc<Shared>,
    /// A forked child's copy would keep the connection open when this rank dies. Dropped before it is closed.
    _kept: NotInherited,
    line: Line,
    reader: Option<JoinHandle<()>>,
    rank: u32,
    /// [`ANSWER`], but for tests.
    patience: Duration,
}

/// A channel, and the number of a call.
type Call = (String, u64);

/// A collective call that was made. What comes of it after this is nobody's.
struct Open<'a> {
    shared: &'a Shared,
    call: Call,
}

/// What is numbered by itself in each channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Collective,
    Exchange,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    hub: Holder,
    size: u32,
    /// How long the ranks had to come together: for sentences.
    within: Duration,
    endings: Endings,
    /// The hub that is in this process.
    here: Option<hub::Handle>,
}

#[derive(Debug, Default)]
struct State {
    welcome: Option<Vec<u32>>,
    /// The next collective call of each channel, and the next exchange.
    calls: HashMap<(String, Kind), u64>,
    /// What has come of collective calls that have not ended.
    answers: HashMap<Call, Option<Answer>>,
    /// A value was given to the hub, which has not passed it on.
    is_given: bool,
    /// What has come of exchanges that have not ended, or not begun.
    letters: HashMap<Call, Letters>,
    end: Option<End>,
    /// This rank has said `Bye`: what comes after is nobody's business.
    leaving: bool,
}

#[derive(Debug)]
enum Answer {
    Gathered(Vec<Vec<u8>>),
    Missing(Vec<u32>),
}

/// The values that came of an exchange, by rank.
pub(crate) type Letters = BTreeMap<u32, Arc<[u8]>>;

/// The values of a call, or whom it waits for.
type Met = Result<Vec<Vec<u8>>, Ranks>;

#[derive(Debug, Clone)]
enum End {
    Refused(String),
    Broken(Broken),
    HubGone,
    /// The hub has taken only part of a frame within this.
    Silent(Duration),
}

impl Link {
    /// Says who this is; `join` waits for the answer. `here`: the hub, if it is in this process.
    pub(crate) fn open(
        stream: Stream,
        hello: Hello,
        within: Duration,
        hub: Holder,
        endings: Endings,
        here: Option<hub::Handle>,
    ) -> Result<Self, Error> {
        let (rank, size) = (hello.rank, hello.size);
        stream.set_deadline(None).map_err(Error::os("a socket"))?;
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { state, changed, hub, size, within, endings, here });
        let reading = stream.try_clone().map_err(Error::os("a socket"))?;
        let mut link = Self {
            shared: Arc::clone(&shared),
            _kept: NotInherited::new(stream.as_fd()),
            line: Line::new(stream),
            reader: None,
            rank,
            patience: ANSWER,
        };
        link.send(&Up::Hello(hello), after(Duration::MAX));
        let thread = std::thread::Builder::new().name("hg-job-link".into());
        let reader =
            thread.spawn(move || read_all(&shared, reading)).map_err(Error::os("a thread"))?;
        link.reader = Some(reader);
        Ok(link)
    }

    /// The node of each rank, once all are there.
    pub(crate) fn join(&self, deadline: Instant) -> Result<Vec<u32>, Error> {
        if let Some(nodes) = self.wait(deadline, |state| state.welcome.take())? {
            return Ok(nodes);
        }
        // The hub's own bound may be a later one: whom does it wait for?
        let open = self.open_call((JOINING.to_owned(), 0));
        let until = after(self.patience);
        self.ask(&open, until);
        let answer = self.wait(until, |state| {
            let welcome = state.welcome.take().map(Ok);
            welcome.or_else(|| match state.answers.get_mut(&open.call)?.take()? {
                Answer::Missing(ranks) => Some(Err(ranks)),
                Answer::Gathered(_) => None,
            })
        })?;
        let (hub, within) = (self.shared.hub.name(), self.shared.within);
        match answer {
            Some(Ok(nodes)) => Ok(nodes),
            Some(Err(ranks)) => Err(self.shared.error(&Broken::NeverCame { ranks })),
            None => Err(Error::Silent { what: "joining", hub, within }),
        }
    }

    /// One collective call.
    pub(crate) fn collect(
        &self,
        channel: &str,
        what: What,
        value: Option<&[u8]>,
        within: Duration,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let deadline = after(within);
        let Some((open, sent)) = self.call(channel, what, value, deadline) else {
            self.check()?;
            return Err(Error::NotMade { what: what.name(), within });
        };
        if sent == Sent::Part {
            self.cut(within);
        }
        match self.answer(&open, deadline)? {
            Some(Ok(values)) => Ok(values),
            Some(Err(missing)) => {
                Err(Error::Late { what: what.name(), number: open.call.1 + 1, within, missing })
            }
            None => Err(Error::Silent { what: what.name(), hub: self.shared.hub.name(), within }),
        }
    }

    /// One all-gather without a bound; `late` is told whom it waits for, whenever `patience` has passed. It is called outside of
    /// every lock and turn: it may make calls, and panic.
    pub(crate) fn gather_watched(
        &self,
        channel: &str,
        value: &[u8],
        patience: Duration,
        mut late: impl FnMut(Option<&Ranks>),
    ) -> Result<Vec<Vec<u8>>, Error> {
        let (open, mut sent) = loop {
            if let Some(made) = self.call(channel, What::Gather, Some(value), after(patience)) {
                break made;
            }
            self.check()?;
            late(None);
        };
        while sent == Sent::Part {
            self.check()?;
            late(None);
            if self.line.turn(after(patience)).is_some() {
                sent = Sent::All;
            }
        }
        loop {
            match self.answer(&open, after(patience))? {
                Some(Ok(values)) => return Ok(values),
                Some(Err(missing)) => late(Some(&missing)),
                None => late(None),
            }
        }
    }

    /// Makes a call; `None`: its frame has not begun to leave at the deadline, and there was no call.
    fn call(
        &self,
        channel: &str,
        what: What,
        value: Option<&[u8]>,
        deadline: Instant,
    ) -> Option<(Open<'_>, Sent)> {
        let mut turn = self.line.turn(deadline)?;
        // Only who has its turn takes a number: so it can be given back.
        let number = locked(&self.shared.state).take_number(channel, Kind::Collective);
        let open = self.open_call((channel.to_owned(), number));
        let values = value.map(<[u8]>::to_vec).into_iter().collect();
        let up = Up::Gather { channel: channel.to_owned(), number, what, values };
        let sent = turn.send(up.encode(), deadline);
        if sent == Sent::Nothing {
            let name = (channel.to_owned(), Kind::Collective);
            locked(&self.shared.state).calls.insert(name, number);
            return None;
        }
        Some((open, sent))
    }

    fn open_call(&self, call: Call) -> Open<'_> {
        locked(&self.shared.state).answers.insert(call.clone(), None);
        Open { shared: &self.shared, call }
    }

    /// Nobody misses a question that does not leave, and of part of one the rest goes before the next frame.
    fn ask(&self, open: &Open<'_>, deadline: Instant) {
        let (channel, number) = open.call.clone();
        self.send(&Up::Who { channel, number }, deadline);
    }

    /// The values of a call; whom it waits for, if that is so still at the deadline; or that the hub does not answer.
    fn answer(&self, open: &Open<'_>, deadline: Instant) -> Result<Option<Met>, Error> {
        let answered = |state: &mut State| match state.answers.get_mut(&open.call)?.take()? {
            Answer::Gathered(values) => Some(Ok(values)),
            Answer::Missing(ranks) => Some(Err(Ranks(ranks))),
        };
        if let Some(Ok(values)) = self.wait(deadline, answered)? {
            return Ok(Some(Ok(values)));
        }
        let until = after(self.patience);
        self.ask(open, until);
        self.wait(until, answered)
    }

    /// Sends a value to some ranks, and waits for theirs. Both by rank, ascending.
    pub(crate) fn exchange(
        &self,
        channel: &str,
        peers: &[u32],
        value: &[u8],
        within: Duration,
    ) -> Result<Letters, Error> {
        let mut state = locked(&self.shared.state);
        let number = state.take_number(channel, Kind::Exchange);
        let call = (channel.to_owned(), number);
        // Some may have come before.
        state.letters.entry(call.clone()).or_default();
        drop(state);
        let letter = Letter { from: self.rank, to: Run::of(peers), value: value.into() };
        let deadline = after(within);
        let mut is_given = true;
        for post in Post::in_frames(channel.to_owned(), number, letter) {
            is_given = self.give(post, deadline, within)?;
            if !is_given {
                break;
            }
        }
        let met = self.wait(deadline, |state| {
            let letters = state.letters.entry(call.clone()).or_default();
            let is_whole = peers.iter().all(|peer| letters.contains_key(peer));
            is_whole.then(|| std::mem::take(letters))
        })?;
        let came = locked(&self.shared.state).letters.remove(&call).unwrap_or_default();
        let what = "exchange";
        match met {
            Some(letters) if is_given => Ok(letters),
            // The others do not have this rank's.
            Some(_) => Err(Error::Silent { what, hub: self.shared.hub.name(), within }),
            None => {
                let missing = peers.iter().copied().filter(|peer| !came.contains_key(peer));
                let missing = Ranks(missing.collect());
                Err(Error::Late { what, number: number + 1, within, missing })
            }
        }
    }

    /// Gives a value to the hub when that has passed on the one before. Was that in time?
    fn give(&self, post: Post, deadline: Instant, within: Duration) -> Result<bool, Error> {
        let may_give =
            |state: &mut State| (!std::mem::replace(&mut state.is_given, true)).then_some(());
        if self.wait(deadline, may_give)?.is_none() {
            return Ok(false);
        }
        let sent = self.send(&Up::Post(post), deadline);
        match sent {
            Sent::All => {}
            Sent::Part => self.cut(within),
            Sent::Nothing => {
                locked(&self.shared.state).is_given = false;
                self.shared.changed.notify_all();
            }
        }
        Ok(sent == Sent::All)
    }

    /// Waits until `look` finds something, or the deadline: `None`.
    fn wait<T>(
        &self,
        deadline: Instant,
        mut look: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let mut state = locked(&self.shared.state);
        loop {
            if let Some(found) = look(&mut state) {
                return Ok(Some(found));
            }
            if let Some(end) = &state.end {
                return Err(self.error(end));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn error(&self, end: &End) -> Error {
        match end {
            End::Refused(why) => Error::Environment(format!("rank {}: {why}", self.rank)),
            End::Broken(broken) => self.shared.error(broken),
            End::HubGone => self.shared.hub.gone(),
            End::Silent(within) => {
                let (hub, within) = (self.shared.hub.name(), *within);
                Error::Silent { what: "sending", hub, within }
            }
        }
    }

    /// Why the ranks cannot work together any more, if that is so. Does not wait.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let state = locked(&self.shared.state);
        state.end.as_ref().map_or(Ok(()), |end| Err(self.error(end)))
    }

    pub(crate) fn abort(&self, code: u8, why: &str) {
        locked(&self.shared.state).leaving = true;
        let until = after(self.patience);
        if self.send(&Up::Abort { code, why: why.to_owned() }, until) != Sent::All {
            // The end of the connection tells as much.
            self.cut(self.patience);
        }
        // The hub tells everybody, this rank too: then it has heard.
        let _ = self.wait(until, |_| None::<()>);
        // One that is here says what is left to say.
        if let Some(hub) = &self.shared.here {
            hub.part();
        }
    }

    /// Says goodbye. Fails if the job is broken already.
    pub(crate) fn leave(&self) -> Result<(), Error> {
        self.check()?;
        locked(&self.shared.state).leaving = true;
        // A hub that does not hear it has its own reasons.
        self.send(&Up::Bye, after(Duration::MAX));
        Ok(())
    }

    /// Sends a frame until the deadline.
    fn send(&self, up: &Up, deadline: Instant) -> Sent {
        let turn = self.line.turn(deadline);
        turn.map_or(Sent::Nothing, |mut turn| turn.send(up.encode(), deadline))
    }

    /// Ends the connection, since part of a frame has not left: its rank has given it up, and others wait for it.
    fn cut(&self, within: Duration) {
        locked(&self.shared.state).end.get_or_insert(End::Silent(within));
        self.shared.changed.notify_all();
        self.line.shutdown();
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        locked(&self.shared.state).answers.remove(&self.call);
    }
}

impl State {
    fn take_number(&mut self, channel: &str, kind: Kind) -> u64 {
        let next = self.calls.entry((channel.to_owned(), kind)).or_default();
        *next += 1;
        *next - 1
    }

    /// Letters of an exchange that this rank has ended are nobody's.
    fn wants(&self, call: &Call) -> bool {
        let begun = self.calls.get(&(call.0.clone(), Kind::Exchange)).copied().unwrap_or_default();
        call.1 >= begun || self.letters.contains_key(call)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        locked(&self.shared.state).leaving = true;
        self.line.shutdown();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change under these locks is complete when it can panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The reader's thread: until the connection ends.
fn read_all(shared: &Shared, stream: Stream) {
    let mut stream = BufReader::new(stream);
    // A number only: it is dropped first.
    let _kept = NotInherited::new(stream.get_ref().as_fd());
    let mut body = Vec::new();
    loop {
        let Some(down) = read_frame(&mut stream, &mut body) else { return shared.hub_gone() };
        shared.take(down);
    }
}

fn read_frame(stream: &mut BufReader<Stream>, body: &mut Vec<u8>) -> Option<Down> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let length = u32::from_le_bytes(length);
    if length as usize > DOWN_MAX {
        return None;
    }
    body.clear();
    // Grows with what arrives, not with what is announced.
    stream.take(u64::from(length)).read_to_end(body).ok()?;
    if body.len() == length as usize { Down::decode(body).ok() } else { None }
}

impl Shared {
    fn error(&self, broken: &Broken) -> Error {
        Error::from_broken(broken, self.size, self.within)
    }

    fn take(&self, down: Down) {
        let mut state = locked(&self.state);
        match down {
            Down::Welcome { nodes } => state.welcome = Some(nodes),
            Down::Gathered { channel, number, values } => {
                if let Some(open) = state.answers.get_mut(&(channel, number)) {
                    *open = Some(Answer::Gathered(values));
                }
            }
            Down::Missing { channel, number, ranks } => {
                if let Some(open) = state.answers.get_mut(&(channel, number)) {
                    open.get_or_insert(Answer::Missing(ranks));
                }
            }
            Down::Post(Post { channel, number, letters }) => {
                let came = letters.into_iter().map(|letter| (letter.from, letter.value));
                let call = (channel, number);
                if state.wants(&call) {
                    state.letters.entry(call).or_default().extend(came);
                }
            }
            Down::Taken => state.is_given = false,
            // A hub is asked that, not a rank.
            Down::Who { .. } => {}
            Down::Refused { why } => {
                state.end.get_or_insert(End::Refused(why));
            }
            Down::Broken(broken) => {
                if let Broken::Aborted { by, code, why } = &broken
                    && self.endings.abort
                    && !state.leaving
                {
                    // Whatever made that rank give up was told before.
                    let first = match &state.end {
                        Some(End::Broken(first)) => format!("{}; then ", self.error(first)),
                        Some(End::Refused(_) | End::HubGone | End::Silent(_)) | None => {
                            String::new()
                        }
                    };
                    drop(state);
                    say_last(&format!("{first}rank {by} aborted the job: {why}"));
                    // Others hear of it from this process, if they do from anybody.
                    if let Some(hub) = &self.here {
                        hub.part();
                    }
                    process::exit(i32::from((*code).max(1)));
                }
                state.end.get_or_insert(End::Broken(broken));
            }
        }
        self.changed.notify_all();
    }

    fn hub_gone(&self) {
        let mut state = locked(&self.state);
        if self.endings.hub_gone && !state.leaving && state.end.is_none() {
            drop(state);
            say_last(&format!("{} is gone", self.hub.name()));
            process::exit(1);
        }
        state.end.get_or_insert(End::HubGone);
        self.changed.notify_all();
    }
}

/// Says why this process ends, on standard error.
pub(crate) fn say_last(why: &str) {
    // One write: lines of several ranks stay whole. Nobody may be there to read it.
    let _ = std::io::stderr().write_all(format!("{why}\n").as_bytes());
}
