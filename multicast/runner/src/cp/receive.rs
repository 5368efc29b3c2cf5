//! The receiver's side.

use std::{
    io::{self, BufRead as _, ErrorKind, Read as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use hg::{Address, CallError, CallOptions, Peer};
use hg_job_runner::say::say;
use hg_multicast::{Destination, Group, GroupId, Multicast, Options};
use hg_multicast_copy::{
    folder::Folder,
    incoming::Incoming,
    offer::{Held, Offer, Trouble},
    spool::Spool,
};
use rustix::{fs::Mode, process::umask};

use crate::{
    NAME,
    arguments::Arguments,
    engine,
    key::Key,
    protocol::{self, Members, PART_MAX, SIGN_WITHIN, Session},
};

/// Receives until the process is ended, or, started by a sender, until the sender has ended.
pub(crate) fn run(arguments: &Arguments, folder: &Path) -> Result<(), String> {
    let is_started = folder == Path::new("-");
    let (key, folder) = if is_started { told()? } else { (own_key(arguments)?, folder.to_owned()) };
    let _alone =
        prepare(&folder, is_started).map_err(|why| format!("{}: {why}", folder.display()))?;
    let multicast = engine::open(arguments, key)?;
    let receiver = Arc::new(Receiver {
        folder,
        umask: own_umask(),
        multicast: multicast.clone(),
        copy: Mutex::default(),
    });
    receiver.serve().map_err(|error| error.to_string())?;
    hg_cli_style::print(&format!("{}\n", multicast.address()))
        .map_err(|error| error.to_string())?;
    if is_started {
        // Until the sender closes it.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        multicast.close();
        return Ok(());
    }
    loop {
        thread::park();
    }
}

/// Looks whether the folder can be written into, and nobody else does. Who starts receivers by hand starts one in each folder, as long as what
/// this gives is there; a sender starts one for itself, and perhaps while that of the one before is about to end.
fn prepare(folder: &Path, is_started: bool) -> io::Result<Folder> {
    if is_started && !folder.exists() {
        std::fs::create_dir(folder).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                io::Error::other("the folder above it is not there: make that first")
            }
            _ => error,
        })?;
    }
    let folder = Folder::open(folder)?;
    if !is_started {
        folder.lock()?;
    }
    Spool::open(&folder)?;
    Ok(folder)
}

/// Key and folder, from standard input.
fn told() -> Result<(Option<Key>, PathBuf), String> {
    let mut lines = io::stdin().lock().take(TOLD_MAX);
    let (mut key, mut folder) = (String::new(), String::new());
    let read = lines.read_line(&mut key).and_then(|_| lines.read_line(&mut folder));
    read.map_err(|error| format!("standard input cannot be read: {error}"))?;
    let key = Key::parse(key.trim());
    let key =
        key.ok_or("`--receive -` is for a sender that starts receivers itself: --receive FOLDER")?;
    Ok((Some(key), folder.trim_end_matches('\n').into()))
}

fn own_key(arguments: &Arguments) -> Result<Option<Key>, String> {
    match &arguments.key_file {
        Some(path) => Key::read(path).map(Some),
        None if arguments.open => Ok(None),
        None => Err("who may send? Give --key-file FILE, with `openssl rand -hex 32` in it and mode 600, to both sides; \
                     or --open to whoever reaches this host"
            .to_owned()),
    }
}

/// The process's, which can be asked only by setting another one.
fn own_umask() -> u32 {
    let mask = umask(Mode::from_raw_mode(0o077));
    umask(mask);
    mask.as_raw_mode()
}

/// One process that receives.
struct Receiver {
    folder: PathBuf,
    umask: u32,
    multicast: Multicast,
    copy: Mutex<Option<Copy>>,
}

/// A copy that comes.
struct Copy {
    session: Session,
    sender: Peer,
    state: Arc<Mutex<Taking>>,
    taker: Option<JoinHandle<Result<(), String>>>,
}

struct Taking {
    incoming: Incoming,
    /// The first thing that went wrong: nothing is written after that, but what comes is still passed on.
    trouble: Option<Trouble>,
}

impl Receiver {
    fn serve(self: Arc<Self>) -> Result<(), hg::RegisterError> {
        let engine = self.multicast.engine().clone();
        let this = Arc::clone(&self);
        engine.serve_blocking(protocol::offer, move |request, (session, offer)| {
            this.offer((session, request.origin()), offer)
        })?;
        let this = Arc::clone(&self);
        engine.serve_blocking(protocol::settle, move |_, (session, same, lost)| {
            this.settle(session, &same, &lost)
        })?;
        let this = Arc::clone(&self);
        engine.serve_blocking(protocol::join, move |_, (session, members)| {
            this.join(session, &members)
        })?;
        engine.serve_blocking(protocol::finish, move |_, (session,)| self.finish(session))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Copy>> {
        self.copy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn offer(
        &self,
        (session, sender): (Session, Peer),
        offer: Offer,
    ) -> Result<Vec<Held>, Trouble> {
        let mut copy = self.lock();
        if let Some(before) = copy.take() {
            // A sender that has given this receiver up may be at work with others for long.
            let is_over = before.taker.as_ref().is_some_and(JoinHandle::is_finished);
            if before.session != session && !is_over && !self.is_gone(before.sender) {
                *copy = Some(before);
                let why = "this receiver is at work for another sender";
                return Err(Trouble::new(self.folder.display(), why));
            }
            // The group of a dead sender, or of the same sender's last attempt, has failed: its end is near.
            if let Some(taker) = before.taker {
                let _ = taker.join();
            }
        }
        let folder =
            Folder::open(&self.folder).map_err(|why| Trouble::new(self.folder.display(), why))?;
        let (incoming, held) = Incoming::begin(folder, offer, self.umask).map_err(said)?;
        let state = Arc::new(Mutex::new(Taking { incoming, trouble: None }));
        *copy = Some(Copy { session, sender, state, taker: None });
        Ok(held)
    }

    /// Whether the process of a sender has ended.
    fn is_gone(&self, sender: Peer) -> bool {
        let within = CallOptions::within(SIGN_WITHIN);
        let sign = self.multicast.engine().call_with(protocol::here, &sender, (), within).wait();
        matches!(sign, Err(CallError::PeerGone { .. }))
    }

    fn settle(&self, session: Session, same: &[u32], lost: &[u32]) -> Result<(), Trouble> {
        let mut copy = self.lock();
        let settled = taking(&of(&mut copy, session)?.state).incoming.settle(same, lost);
        settled.map_err(|trouble| {
            *copy = None;
            said(trouble)
        })
    }

    fn join(&self, session: Session, members: &Members) -> Result<(), Trouble> {
        let mut copy = self.lock();
        let copy = of(&mut copy, session)?;
        let trouble = |why: &dyn std::fmt::Display| Trouble::new("the group of hosts", why);
        if copy.taker.is_some() {
            return Err(trouble(&"was joined already"));
        }
        let addresses = members.addresses.iter().map(|it| it.parse());
        let addresses: Vec<Address> =
            addresses.collect::<Result<_, hg::Error>>().map_err(|why| trouble(&why))?;
        let id = GroupId::from_bytes(members.group);
        let take = |coming: hg_multicast::Incoming<'_>| {
            if coming.size > PART_MAX {
                return Err(format!("{} bytes at once are over {PART_MAX}", coming.size));
            }
            Ok(Destination::Allocate)
        };
        let group = self.multicast.group(id, &addresses, members.own, options(members.block), take);
        let group = group.map_err(|why| trouble(&why))?;
        let (state, names) = (Arc::clone(&copy.state), members.names.clone());
        let thread = thread::Builder::new().name("taker".to_owned());
        copy.taker = Some(
            thread.spawn(move || take_all(group, &state, &names)).map_err(|why| trouble(&why))?,
        );
        Ok(())
    }

    fn finish(&self, session: Session) -> Result<(), Trouble> {
        let mut copy = self.lock();
        of(&mut copy, session)?;
        let Copy { state, taker, .. } = copy.take().expect("looked at above");
        let ended = taker.map_or(Ok(Ok(())), JoinHandle::join);
        let ended = ended.unwrap_or_else(|_panic| Err("the receiver is broken".to_owned()));
        ended.map_err(|why| Trouble::new("the group of hosts", why))?;
        let taking = Arc::into_inner(state)
            .map(|state| state.into_inner().unwrap_or_else(PoisonError::into_inner));
        let Taking { incoming, trouble } = taking.expect("its only other owner has ended");
        match trouble {
            Some(trouble) => Err(trouble),
            None => incoming.finish().map_err(said),
        }
    }
}

/// The copy of this sender.
fn of(copy: &mut Option<Copy>, session: Session) -> Result<&mut Copy, Trouble> {
    let own = copy.as_mut().filter(|copy| copy.session == session);
    own.ok_or_else(|| Trouble::new("the copy", "this receiver knows nothing of it any more"))
}

fn taking(state: &Mutex<Taking>) -> MutexGuard<'_, Taking> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes what comes until the group is closed; why it ended otherwise.
fn take_all(group: Group, state: &Mutex<Taking>, names: &[String]) -> Result<(), String> {
    let words = |failure| protocol::words(&failure, names);
    while let Some(received) = group.receive().wait().map_err(words)? {
        let mut taking = taking(state);
        if taking.trouble.is_some() {
            continue;
        }
        let taken = match received.data.into_vec() {
            Ok(Some(bytes)) => taking.incoming.take(&bytes),
            Ok(None) => Err(Trouble::new("a part of the copy", "is not where it was wanted")),
            Err(why) => Err(Trouble::new("a part of the copy", why)),
        };
        taking.trouble = taken.err().map(said);
    }
    group.close().wait().map_err(words)
}

/// For the receiver's own terminal; the sender says it, too.
fn said(trouble: Trouble) -> Trouble {
    say(&format!("{NAME}: {trouble}"));
    trouble
}

/// How a group of this program works, at both sides.
pub(crate) fn options(block: u32) -> Options {
    let mut options = Options::default();
    options.block_size = Some(block.into());
    options.untaken_bytes_max = PART_MAX;
    options
}

/// Bytes of a key and a folder's name, each with its end of line.
const TOLD_MAX: u64 = 5000;

#[cfg(test)]
mod tests {
    use std::fs;

    use hg_multicast_copy::{
        offer::{Entry, What},
        path::Below,
    };

    use super::*;

    fn open() -> Multicast {
        Multicast::open(hg::builder().setting("routing", "off"), "tcp://127.0.0.1").unwrap()
    }

    #[test]
    fn a_receiver_serves_the_sender_that_has_come_first_as_long_as_that_one_lives() {
        let folder = std::env::temp_dir().join(format!("multicast-cp-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let multicast = open();
        let address = multicast.address().clone();
        let receiver =
            Receiver { folder: folder.clone(), umask: 0, multicast, copy: Mutex::default() };
        Arc::new(receiver).serve().unwrap();
        let path = Below::new("file").unwrap();
        let entries = vec![Entry { path, what: What::File(3), mode: 0o644, mtime: (0, 0) }];
        let offer = Offer { block: 4096, force: false, preserve: false, into: None, entries };
        let senders = [open(), open()];
        let ask = |sender: usize| {
            let engine = senders[sender].engine();
            let session = [u8::try_from(sender).unwrap(); 16];
            engine
                .call(protocol::offer, &engine.lookup(&address).unwrap(), (session, offer.clone()))
                .wait()
        };
        senders[0].engine().serve(protocol::here, |_, ()| Ok(())).unwrap();
        assert_eq!(ask(0).unwrap(), []);
        // Which looks what it has itself, now.
        let said = ask(1).unwrap_err().to_string();
        assert!(said.contains("is at work for another sender"), "{said}");
        assert_eq!(ask(0).unwrap(), []);
        senders[0].close();
        assert_eq!(ask(1).unwrap(), []);
        fs::remove_dir_all(folder).unwrap();
    }
}
