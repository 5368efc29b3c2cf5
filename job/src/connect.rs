//! Joining: from what was detected to a connection to the hub.

use std::{
    net::{TcpListener, TcpStream},
    os::unix::net::UnixStream,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use crate::{
    Error, Job, NodeMap, Settings, Via, deadline,
    detect::{self, Place, Plan},
    foreign,
    frame::Hello,
    host, hub,
    job::Parts,
    launcher::Launcher,
    link::{Endings, Holder, Link},
    meeting::{Address, Rendezvous},
    notice::Notice,
    pmi, pmix,
    settings::{Complete, check_environment, environment},
    stream::Stream,
    tree::Branch,
};

/// The runner has one connection for each rank.
const ONCE: &str = "this process has told its runner before which rank it is, and a rank does that once: keep its `Job`, whose clones are the same rank";

/// The hub names who is missing at the deadline; its word may take this long to arrive.
const GRACE: Duration = Duration::from_secs(2);

impl Job {
    /// Joins the job that this process was started in, with [`Settings`] from the environment.
    ///
    /// # Errors
    /// A sentence that says what is wrong with the environment, or who is missing.
    pub fn connect() -> Result<Self, Error> {
        Settings::new().connect()
    }
}

impl Settings {
    /// Joins the job: the same on every rank.
    ///
    /// # Errors
    /// A sentence that says what is wrong with the environment, or who is missing.
    pub fn connect(&self) -> Result<Job, Error> {
        connect(self)
    }

    /// The rank that whoever started this process has given it, without a word to the others: for what each would say alike.
    /// `None`: it was started alone, or cannot join.
    #[must_use]
    pub fn rank(&self) -> Option<u32> {
        let settings = self.complete(&environment).ok()?;
        detect::plan(&settings, &environment).ok()?.rank()
    }
}

fn connect(settings: &Settings) -> Result<Job, Error> {
    check_environment()?;
    let settings = settings.complete(&environment)?;
    let deadline = deadline::after(settings.timeout);
    let within = settings.timeout;
    let notice = Notice::new(settings.on_waiting, within);
    let joining = Joining { settings: &settings, deadline, notice };
    match detect::plan(&settings, &environment)? {
        Plan::Single => joining.single(),
        Plan::Local { fd, place } => joining.local(fd, place),
        Plan::Rendezvous { at, place, token } => joining.rendezvous(&at, place, &token),
        Plan::Pmi { server, dialect } => {
            let mut client = pmi::Client::connect(&server, dialect, deadline, within)?;
            let place = client.place();
            let way = joining.met(place, IsBarrier(true), |own, from| client.meet(own, from))?;
            joining.finish(dialect, place, way, Some(Launcher::Pmi(client)))
        }
        Plan::Pmix { rank } => {
            let client = pmix::Client::connect(rank, deadline, within, &environment)?;
            let place = client.place();
            let way = joining.met(place, IsBarrier(false), |own, from| client.meet(own, from))?;
            joining.finish(Via::Pmix, place, way, Some(Launcher::Pmix(client)))
        }
    }
}

/// Whether the launcher lets no rank learn an address before all have asked for one.
struct IsBarrier(bool);

struct Joining<'a> {
    settings: &'a Complete,
    deadline: Instant,
    notice: Notice,
}

/// The hub of this process, and its own seat there.
struct Hub {
    running: hub::Running,
    seat: UnixStream,
}

/// How this rank gets to the others: by its own hub, or by a connection to another's.
enum Way {
    Own(Hub, Vec<u8>),
    To { hub: u32, stream: TcpStream, token: Vec<u8> },
}

impl Joining<'_> {
    fn single(&self) -> Result<Job, Error> {
        let nodes = self.nodes(vec![0], 1)?;
        Ok(Job::new(self.parts(Via::Single, 0, nodes, None, None, None)))
    }

    fn local(&self, fd: i32, place: Place) -> Result<Job, Error> {
        self.check_map(place)?;
        let name = format!("HG_JOB_FD {fd}");
        let seat = foreign::inherited(fd).map_err(Error::os(name.clone()))?;
        crate::local::keep_from_children(fd).map_err(Error::os(name.clone()))?;
        crate::local::die_with_runner()?;
        static IS_TAKEN: AtomicBool = AtomicBool::new(false);
        // Relaxed: nothing is published by it, and one swap alone finds `false`.
        if IS_TAKEN.swap(true, Ordering::Relaxed) {
            return Err(Error::Environment(format!("{name}: {ONCE}")));
        }
        let endings = Endings { abort: self.settings.abort_exits, hub_gone: true };
        let hello = self.hello(place, Vec::new());
        let stream = Stream::Unix(UnixStream::from(seat));
        let within = self.settings.timeout;
        let link = Link::open(stream, hello, within, Holder::Runner, endings, None)?;
        self.welcomed(Via::Local, place, link, None, None)
    }

    fn rendezvous(&self, at: &str, place: Place, token: &str) -> Result<Job, Error> {
        self.check_map(place)?;
        let at = Rendezvous::parse(at)?;
        let branch = at.branch(place.rank, place.size);
        let find = |hub| {
            let found = at.find(hub, token, self.deadline, self.settings.timeout, self.notice);
            found.map(|(stream, token)| Way::To { hub, stream, token })
        };
        if !branch.is_hub() {
            // From here on its hub knows who is missing.
            let way = find(branch.parent.unwrap_or(0))?;
            return self.finish(Via::Rendezvous, place, way, None);
        }
        let (listener, token) = match &at {
            Rendezvous::Tcp(at) => (host::listen(Some(at))?, Some(token.as_bytes().to_vec())),
            Rendezvous::Folder(_) => (self.listen(place)?, None),
        };
        let mut address = Address::here(&listener)?;
        if let Some(token) = token {
            address.token = token;
        }
        let door = hub::Door { listener, published: at.publish(place.rank, &address)? };
        let above = branch.parent.map(find).transpose()?;
        let way = self.start_hub(place, branch, door, address, above, self.notice)?;
        self.finish(Via::Rendezvous, place, way, None)
    }

    /// Whoever has a hub starts it, and tells where; everybody learns where that is which it connects to. The launcher carries
    /// one text of each hub. `meet` is given the own one, and the rank whose text is wanted.
    fn met(
        &self,
        place: Place,
        IsBarrier(is_barrier): IsBarrier,
        mut meet: impl FnMut(Option<&str>, Option<u32>) -> Result<Option<String>, Error>,
    ) -> Result<Way, Error> {
        self.check_map(place)?;
        let branch = Branch::of(place.rank, place.size);
        let to = |hub: u32, text: Option<String>| {
            let address = Address::parse(&text.unwrap_or_default())?;
            let stream = address.connect(hub, self.deadline, self.notice)?;
            Ok::<_, Error>(Way::To { hub, stream, token: address.token })
        };
        if !branch.is_hub() {
            let hub = branch.parent.unwrap_or(0);
            return to(hub, meet(None, Some(hub))?);
        }
        let listener = self.listen(place)?;
        let address = Address::here(&listener)?;
        let door = hub::Door { listener, published: None };
        // Behind the launcher's barrier all ranks join at once.
        let tell = self.settings.on_waiting.filter(|_| !is_barrier);
        let notice = Notice::new(tell, self.settings.timeout);
        let mut show = || meet(Some(&address.to_text()), branch.parent);
        // Rank 0's ranks connect while others wait; and the launcher's own barrier does not say whom it waits for.
        let words = "not all ranks have reached the launcher's barrier yet: still waiting";
        if let Some(hub) = branch.parent {
            let above = to(hub, show()?)?;
            return self.start_hub(place, branch, door, address, Some(above), notice);
        }
        let text = address.to_text();
        let way = self.start_hub(place, branch, door, address, None, notice)?;
        self.notice.during(words, || meet(Some(&text), None))?;
        Ok(way)
    }

    /// The setting is for rank 0: other hubs would want the same port, or are on other machines.
    fn listen(&self, place: Place) -> Result<TcpListener, Error> {
        let on = self.settings.listen.as_deref();
        if place.rank == 0 { host::listen(on) } else { host::listen_beside(on) }
    }

    fn start_hub(
        &self,
        place: Place,
        branch: Branch,
        door: hub::Door,
        address: Address,
        above: Option<Way>,
        notice: Notice,
    ) -> Result<Way, Error> {
        let (seat, theirs) = UnixStream::pair().map_err(Error::os("a pair of sockets"))?;
        let above = above.and_then(|way| match way {
            Way::Own(..) => None,
            Way::To { hub: rank, stream, token } => {
                let hello = self.hello(place, token);
                Some(hub::Above { rank, stream, hello })
            }
        });
        let running = hub::Running::start(hub::Config {
            hub: hub::state::Hub::heading(branch.ranks, place.size, address.token.clone()),
            above,
            deadline: self.deadline,
            notice,
            door: Some(door),
            seats: vec![hub::Seat { rank: place.rank, stream: theirs, process: None }],
            on_broken: Box::new(|_| {}),
        })?;
        Ok(Way::Own(Hub { running, seat }, address.token))
    }

    /// Connects to the hub, here or elsewhere, and waits until all have.
    fn finish(
        &self,
        via: Via,
        place: Place,
        way: Way,
        launcher: Option<Launcher>,
    ) -> Result<Job, Error> {
        let (stream, head, token, running) = match way {
            Way::Own(Hub { running, seat }, token) => {
                (Stream::Unix(seat), place.rank, token, Some(running))
            }
            Way::To { hub, stream, token } => (Stream::Tcp(stream), hub, token, None),
        };
        let endings = Endings { abort: self.settings.abort_exits, hub_gone: false };
        let (hello, within) = (self.hello(place, token), self.settings.timeout);
        let here = running.as_ref().map(hub::Running::handle);
        let link = Link::open(stream, hello, within, Holder::Rank(head), endings, here)?;
        self.welcomed(via, place, link, running, launcher)
    }

    fn hello(&self, place: Place, token: Vec<u8>) -> Hello {
        Hello { token, rank: place.rank, size: place.size, host: host::identity() }
    }

    fn welcomed(
        &self,
        via: Via,
        place: Place,
        link: Link,
        hub: Option<hub::Running>,
        launcher: Option<Launcher>,
    ) -> Result<Job, Error> {
        let nodes = self.nodes(link.join(self.deadline + GRACE)?, place.size)?;
        Ok(Job::new(self.parts(via, place.rank, nodes, Some(link), hub, launcher)))
    }

    fn parts(
        &self,
        via: Via,
        rank: u32,
        nodes: NodeMap,
        link: Option<Link>,
        hub: Option<hub::Running>,
        launcher: Option<Launcher>,
    ) -> Parts {
        Parts { via, rank, nodes, wait: self.settings.wait, link, hub, launcher }
    }

    /// A map for another number of ranks is an error before anybody waits.
    fn check_map(&self, place: Place) -> Result<(), Error> {
        self.settings.nodes.as_ref().map_or(Ok(()), |nodes| nodes.check_size(place.size))?;
        Ok(())
    }

    fn nodes(&self, told: Vec<u32>, size: u32) -> Result<NodeMap, Error> {
        let nodes = self.settings.nodes.clone().map_or_else(|| NodeMap::new(told), Ok)?;
        nodes.check_size(size)?;
        Ok(nodes)
    }
}
