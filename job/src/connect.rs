//! Joining: from what was detected to a connection to the hub.

use std::{
    net::TcpListener,
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use crate::{
    Error, Job, NodeMap, Settings, Via,
    detect::{self, Place, Plan},
    foreign,
    frame::Hello,
    host, hub,
    job::Parts,
    launcher::Launcher,
    link::{Endings, Link},
    meeting::{Address, Published, Rendezvous},
    notice::Notice,
    pmi, pmix,
    settings::{Complete, environment},
    stream::Stream,
};

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
    let settings = settings.complete(&environment)?;
    let deadline = Instant::now() + settings.timeout;
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
            let (hub, address) =
                joining.met(place, IsBarrier(true), |address| client.meet(address))?;
            joining.finish(dialect, place, hub, Some(Launcher::Pmi(client)), address)
        }
        Plan::Pmix { rank } => {
            let client = pmix::Client::connect(rank, deadline, within, &environment)?;
            let place = client.place();
            let (hub, address) =
                joining.met(place, IsBarrier(false), |address| client.meet(address))?;
            joining.finish(Via::Pmix, place, hub, Some(Launcher::Pmix(client)), address)
        }
    }
}

/// Whether the launcher lets no rank learn rank 0's address before all have asked for it.
struct IsBarrier(bool);

struct Joining<'a> {
    settings: &'a Complete,
    deadline: Instant,
    notice: Notice,
}

/// The hub of this process, if it is rank 0, and its own seat there.
struct Hub {
    running: hub::Running,
    seat: UnixStream,
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
        crate::local::keep_from_children(fd).map_err(Error::os(name))?;
        crate::local::die_with_runner()?;
        let endings = Endings { abort: self.settings.abort_exits, hub_gone: true };
        let hello = self.hello(place, Vec::new());
        let stream = Stream::Unix(UnixStream::from(seat));
        let link = Link::open(stream, hello, self.settings.timeout, "the runner", endings)?;
        self.welcomed(Via::Local, place, link, None, None)
    }

    fn rendezvous(&self, at: &str, place: Place, token: &str) -> Result<Job, Error> {
        self.check_map(place)?;
        let at = Rendezvous::parse(at)?;
        if place.rank > 0 {
            let (stream, token) =
                at.find(token, self.deadline, self.settings.timeout, self.notice)?;
            let link = self.open(Stream::Tcp(stream), place, token)?;
            // From here on rank 0 knows who is missing.
            return self.welcomed(Via::Rendezvous, place, link, None, None);
        }
        let (listener, token) = match &at {
            Rendezvous::Tcp(at) => (host::listen(Some(at))?, Some(token.as_bytes().to_vec())),
            Rendezvous::Folder(_) => (self.listen()?, None),
        };
        let mut address = Address::here(port_of(&listener)?)?;
        if let Some(token) = token {
            address.token = token;
        }
        // Taken away when all are there, or when this fails.
        let published: Option<Published> = at.publish(&address)?;
        let hub = self.start_hub(place, listener, &address, self.notice)?;
        let job = self.finish(Via::Rendezvous, place, Some(hub), None, address);
        drop(published);
        job
    }

    /// Rank 0 starts the hub and tells where; everybody learns it. The launcher carries one text.
    fn met(
        &self,
        place: Place,
        IsBarrier(is_barrier): IsBarrier,
        meet: impl FnOnce(Option<&str>) -> Result<String, Error>,
    ) -> Result<(Option<Hub>, Address), Error> {
        self.check_map(place)?;
        if place.rank > 0 {
            return Ok((None, Address::parse(&meet(None)?)?));
        }
        let listener = self.listen()?;
        let address = Address::here(port_of(&listener)?)?;
        // Behind the launcher's barrier all ranks join at once.
        let tell = self.settings.on_waiting.filter(|_| !is_barrier);
        let notice = Notice::new(tell, self.settings.timeout);
        let hub = self.start_hub(place, listener, &address, notice)?;
        // The launcher's own barrier does not say whom it waits for.
        let words = "not all ranks have reached the launcher's barrier yet: still waiting";
        self.notice.during(words, || meet(Some(&address.to_text())))?;
        Ok((Some(hub), address))
    }

    fn listen(&self) -> Result<TcpListener, Error> {
        host::listen(self.settings.listen.as_deref())
    }

    fn start_hub(
        &self,
        place: Place,
        listener: TcpListener,
        address: &Address,
        notice: Notice,
    ) -> Result<Hub, Error> {
        let (seat, theirs) = UnixStream::pair().map_err(Error::os("a pair of sockets"))?;
        let running = hub::Running::start(hub::Config {
            size: place.size,
            token: address.token.clone(),
            deadline: self.deadline,
            notice,
            listener: Some(listener),
            seats: vec![hub::Seat { rank: 0, stream: theirs, process: None }],
            on_broken: Box::new(|_| {}),
        })?;
        Ok(Hub { running, seat })
    }

    /// Connects to the hub, here or elsewhere, and waits until all have.
    fn finish(
        &self,
        via: Via,
        place: Place,
        hub: Option<Hub>,
        launcher: Option<Launcher>,
        address: Address,
    ) -> Result<Job, Error> {
        let (stream, running) = match hub {
            Some(Hub { running, seat }) => (Stream::Unix(seat), Some(running)),
            None => (Stream::Tcp(address.connect(self.deadline, self.notice)?), None),
        };
        let link = self.open(stream, place, address.token)?;
        self.welcomed(via, place, link, running, launcher)
    }

    fn open(&self, stream: Stream, place: Place, token: Vec<u8>) -> Result<Link, Error> {
        let endings = Endings { abort: self.settings.abort_exits, hub_gone: false };
        Link::open(stream, self.hello(place, token), self.settings.timeout, "rank 0", endings)
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

fn port_of(listener: &TcpListener) -> Result<u16, Error> {
    Ok(listener.local_addr().map_err(Error::os("a listening socket"))?.port())
}
