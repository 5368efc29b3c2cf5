//! Opens the workers of one process, and tells them where all others are.

use std::{fmt::Display, sync::Arc};

use hg_channel::{Directory, Limits, Near, Port};
use hg_core::{
    codec::{self, Codec as _},
    rpc::Serve,
};
use hg_na::{Address, Context, Domain, OpenOptions, Plugin};
use hg_na_route::Route;
use serde::{Deserialize, Serialize};

use crate::{
    Error, Packing, Worker,
    functions::Functions,
    held,
    numa::{self, Node},
    quiet::Shape,
    service::Services,
    worker::{Common, Settings, reserve, settle},
};

/// The processes of a job, as far as a fabric needs them.
pub trait Group {
    /// This process.
    fn rank(&self) -> u32;
    /// How many there are.
    fn size(&self) -> u32;
    /// Gives bytes of its own, and gets those of all, in their order. Collective.
    ///
    /// # Errors
    /// A sentence that says what went wrong.
    fn all_gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, String>;
}

impl Group for hg_job::Job {
    fn rank(&self) -> u32 {
        Self::rank(self)
    }

    fn size(&self) -> u32 {
        Self::size(self)
    }

    fn all_gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        self.channel("invoke").all_gather(own).map_err(|error| error.to_string())
    }
}

/// What each process tells all others.
#[derive(Serialize, Deserialize)]
struct Introduction {
    token: [u8; 16],
    functions: Vec<u64>,
    /// Of its workers; the rest are service threads.
    threads: u8,
    /// Of each thread, the number of its NUMA node.
    nodes: Vec<Option<u32>>,
    addresses: Vec<String>,
    bounds: Bounds,
}

/// What is to be the same everywhere, beside functions and threads.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Bounds {
    scheme: String,
    block: u64,
    window: u32,
    queue_max: u64,
    buffer_max: u64,
}

impl Bounds {
    fn new(scheme: &str, settings: &Settings) -> Self {
        let Settings { limits, queue_max, buffer_max, .. } = *settings;
        let (block, window) = (limits.block as u64, limits.window);
        Self { scheme: scheme.to_owned(), block, window, queue_max, buffer_max }
    }

    /// The first that another process has otherwise: what it is, and what it is there and here.
    fn differ(&self, there: &Self) -> Option<(&'static str, String, String)> {
        let scheme = |it: &Self| format!("{}://", it.scheme);
        let bytes =
            |of: fn(&Self) -> u64| (format!("{} bytes", of(there)), format!("{} bytes", of(self)));
        let all = [
            ("transport", (scheme(there), scheme(self))),
            ("`Limits::block`", bytes(|it| it.block)),
            ("`Limits::window`", bytes(|it| it.window.into())),
            ("`Fabric::queue_max`", bytes(|it| it.queue_max)),
            ("`Fabric::buffer_max`", bytes(|it| it.buffer_max)),
        ];
        let mut differing = all.into_iter().filter(|(_, (there, here))| there != here);
        differing.next().map(|(what, (there, here))| (what, there, here))
    }
}

/// How workers are opened; the same in all processes.
#[derive(Debug, Clone)]
#[must_use]
pub struct Fabric {
    threads: u8,
    services: u8,
    numa: Option<bool>,
    functions: Functions,
    settings: Settings,
    options: OpenOptions,
}

impl Default for Fabric {
    fn default() -> Self {
        Self::new()
    }
}

impl Fabric {
    /// One thread a process, no function.
    pub fn new() -> Self {
        let functions = Functions::default().with_own::<reserve>().with_own::<settle>();
        let settings = Settings::default();
        Self {
            threads: 1,
            services: 0,
            numa: None,
            functions,
            settings,
            options: OpenOptions::listening(),
        }
    }

    /// Workers of each process, at least one.
    pub fn threads(self, threads: u8) -> Self {
        Self { threads: threads.max(1), ..self }
    }

    /// Service threads of each process: none, unless this says otherwise. The library starts them. They run what is called by
    /// [`Place::any_of`](crate::Place::any_of), so that the workers need not be interrupted, or by name: their numbers follow those of the workers.
    /// They take part in broadcasts and barriers, and end with the last worker of their process.
    pub fn services(self, services: u8) -> Self {
        Self { services, ..self }
    }

    /// Each thread has a NUMA node, on a machine of one node as well: those of a process are dealt out over the nodes that it may run on, in blocks. What
    /// others write to it lies there. Service threads run there; a worker's thread does once it has called [`Worker::bind`]. Where a process may run on
    /// more than one, it is so unless [`Fabric::without_numa`] says otherwise.
    pub fn numa(self) -> Self {
        Self { numa: Some(true), ..self }
    }

    /// No thread has a NUMA node that is known: the system places threads and memory.
    pub fn without_numa(self) -> Self {
        Self { numa: Some(false), ..self }
    }

    /// Adds a function. All processes register the same ones, in any order.
    ///
    /// # Errors
    /// [`Error::Setup`]: it is there already, or is asynchronous.
    pub fn register<F: Serve<Worker>>(mut self, function: F) -> Result<Self, Error> {
        let _: F = function;
        self.functions.add::<F>()?;
        Ok(self)
    }

    /// How calls are packed: [`Packing::Trad`] unless this says otherwise.
    pub fn packing(mut self, packing: Packing) -> Self {
        self.settings.packing = packing;
        self
    }

    /// Bounds of the channels: [`Fabric::open`] refuses what may not be. The block and the window are the same in all processes.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.settings.limits = limits;
        self
    }

    /// Bytes of calls to one thread that wait here while [`Room::Queue`](crate::Room::Queue) is chosen, and of results that wait beside
    /// them: 16 MiB. A result beyond that is [`Error::Lost`] at its caller. The broadcasts of one worker that have not run everywhere take as much
    /// divided by the workers of the job, or 64 KiB. The same in all processes.
    pub fn queue_max(mut self, bytes: u64) -> Self {
        self.settings.queue_max = bytes;
        self
    }

    /// Bytes that wait in one worker to leave for all threads, beyond which [`Room::Queue`](crate::Room::Queue) lets no more wait for each than the
    /// other choices do, which is two blocks: 64 MiB, and never less than [`Fabric::queue_max`], which counts in place of a smaller one. So who calls many threads that do not consume has this, and
    /// two blocks for each of them. A call that comes back for it is [`Error::Full`]. Results have as much beside calls: of those that wait for threads
    /// which take none, more are [`Error::Lost`]. Each process has a bound of its own.
    pub fn queue_total(mut self, bytes: u64) -> Self {
        self.settings.queue_total = bytes;
        self
    }

    /// Bytes of a buffer that its receivers read, each into memory of its own: 64 MiB. The same in all processes.
    pub fn buffer_max(mut self, bytes: u64) -> Self {
        self.settings.buffer_max = bytes;
        self
    }

    /// Bytes of memory that a worker allocates for each other one ([`Worker::allocate_at`], [`Worker::allocate_everywhere`]), and that all workers of a
    /// process do for all together: 64 MiB, and 256 MiB. They count in pages of 4 KiB. Each process has limits of its own.
    pub fn remote_max(mut self, each: u64, all: u64) -> Self {
        self.settings.remote_max = held::Limits { each, all };
        self
    }

    /// A setting of the transport's.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.options = self.options.with(name, value);
        self
    }

    /// Opens the workers of this process, the first one first. Collective: where one process fails, all do, but for what fails last, which is
    /// the start of its service threads: the others' workers are opened then, and find it gone.
    ///
    /// `sm://`; `tcp://host`; `sm+tcp://host`, which is shared memory inside a node and TCP between nodes; libfabric's `ofi+...`; or, with the
    /// features of the same names, `verbs://`, and `visor://` through the daemon of each node. Each process listens at an address of its own, which the
    /// transport chooses: a port (`tcp://host:18431`) or a name (`sm://name`) in the URL can be had by one process of a machine only. Threads of
    /// one process need no transport.
    ///
    /// # Errors
    /// [`Error::Setup`]: the transport's reasons, here or in another process, which is named; the group's; or what another process has otherwise:
    /// functions, numbers of threads, bounds, or the transport.
    pub fn open(self, group: &impl Group, url: &str) -> Result<Vec<Worker>, Error> {
        let opened = self.open_contexts(url);
        // All processes come here, whether they could open theirs or not: the others wait for what each has to say.
        let (opened, all) = introduce(group, opened, &self.functions)?;
        let Opened { domain, contexts, nodes_here, nodes_of_threads, .. } = opened;
        let mut addresses = Vec::new();
        for text in all.iter().flat_map(|it| &it.addresses) {
            addresses.push(Address::new(text).map_err(|error| of_url(url, &error))?);
        }
        let directory = Arc::new(Directory::new(all[0].token, addresses));
        let (workers, services) = (self.threads.into(), self.services.into());
        let shape = Shape { processes: group.size(), workers, services };
        let first = group.rank() * shape.threads();
        let near = Near::new(first, shape.threads());
        let (functions, settings) = (self.functions, self.settings);
        let nodes_of_all = all.iter().flat_map(|it| &it.nodes).copied().collect();
        let (nodes, allotted) = (nodes_of_all, Default::default());
        let common = Common { functions, settings, shape, nodes, nodes_here, domain, allotted };
        let common = Arc::new(common);
        let all = contexts.into_iter().zip(first..).map(|(context, end)| {
            let (directory, near) = (Arc::clone(&directory), Arc::clone(&near));
            let port = Port::new(end, context, directory, near, common.settings.limits);
            Worker::new(Arc::clone(&common), port.over(common.domain.caps()))
        });
        let all = all.zip(nodes_of_threads).map(|(worker, node)| worker.on_node(node));
        let mut all: Vec<Worker> = all.collect();
        let mut services = Services::new(&near);
        for (end, worker) in (first + shape.workers..).zip(all.split_off(self.threads.into())) {
            services.start(end, |stage| worker.serve(stage))?;
        }
        let services = Arc::new(services);
        Ok(all.into_iter().map(|it| it.with_services(&services)).collect())
    }

    /// What this process has before it knows of the others.
    fn open_contexts(&self, url: &str) -> Result<Opened, Error> {
        let setup = |error: hg_na::Error| of_url(url, &error);
        self.settings.limits.check().map_err(|error| Error::Setup(error.to_string()))?;
        let address = Address::new(url).map_err(setup)?;
        let domain = plugin_of(&address)?.open(&address, &self.options).map_err(setup)?;
        let ids = self.threads.checked_add(self.services);
        let ids = ids.ok_or_else(|| Error::Setup("more than 255 threads".to_owned()))?;
        let nodes_here = numa::chosen(self.numa, numa::nodes, |node| node.run(|| ()).is_ok());
        let of = |threads: u8| numa::dealt(&nodes_here, threads.into()).map(|it| it.cloned());
        let nodes_of_threads: Vec<Option<Node>> =
            of(self.threads).chain(of(self.services)).collect();
        let contexts = (0..ids).zip(&nodes_of_threads).map(|(id, node)| match node {
            None => domain.context(id).map_err(setup),
            Some(node) => node.run(|| domain.context(id).map_err(setup)).map_err(Error::of_node)?,
        });
        let contexts = contexts.collect::<Result<Vec<_>, _>>()?;
        let mut token = [0; 16];
        getrandom::fill(&mut token).map_err(|error| Error::Setup(error.to_string()))?;
        let addresses = contexts.iter().map(|it| it.address().as_str().to_owned()).collect();
        let functions = self.functions.ids();
        let nodes = nodes_of_threads.iter().map(|it| it.as_ref().map(|it| it.number)).collect();
        let bounds = Bounds::new(address.scheme(), &self.settings);
        let own =
            Introduction { token, functions, threads: self.threads, nodes, addresses, bounds };
        Ok(Opened { domain, contexts, nodes_here, nodes_of_threads, own })
    }
}

/// What a process has before it knows of the others.
struct Opened {
    domain: Arc<dyn Domain>,
    contexts: Vec<Box<dyn Context>>,
    /// As in [`Common`].
    nodes_here: Vec<Node>,
    nodes_of_threads: Vec<Option<Node>>,
    own: Introduction,
}

/// Why a URL cannot be opened.
fn of_url(url: &str, error: &hg_na::Error) -> Error {
    let hint = match error {
        hg_na::Error::AddressInUse(_) => {
            "; a port or a name can be had by one process of a machine only: without one the transport chooses"
        }
        _ => "",
    };
    Error::Setup(format!("{url}: {error}{hint}"))
}

/// What each process has to say, in their order; or the first that could not open its workers.
fn introduce(
    group: &impl Group,
    opened: Result<Opened, Error>,
    functions: &Functions,
) -> Result<(Opened, Vec<Introduction>), Error> {
    let encoding = |error: codec::CodecError| Error::Setup(error.to_string());
    let told = opened.and_then(|it| Ok((encoded(&Ok(&it.own)).map_err(encoding)?, it)));
    let bytes = match &told {
        Ok((bytes, _)) => bytes.clone(),
        // Nothing is none that can be read.
        Err(error) => encoded(&Err(error.to_string())).unwrap_or_default(),
    };
    let gathered = group.all_gather(&bytes).map_err(Error::Setup);
    let (_, opened) = told?;
    let gathered = gathered?;
    let mut all = Vec::new();
    for (rank, bytes) in gathered.iter().enumerate() {
        let told: Result<Introduction, String> = codec::Default::decode(bytes).map_err(encoding)?;
        let failed = |why| Error::Setup(format!("process {rank} cannot open its workers: {why}"));
        all.push(told.map_err(failed)?);
    }
    if all.is_empty() {
        return Err(Error::Setup("a group of nobody".to_owned()));
    }
    compare(group.rank(), &opened.own, &all, functions)?;
    Ok((opened, all))
}

/// What a process says.
fn encoded(told: &Result<&Introduction, String>) -> Result<Vec<u8>, codec::CodecError> {
    let mut bytes = vec![0; codec::Default::size(told)?];
    codec::Default::encode(told, &mut bytes)?;
    Ok(bytes)
}

/// Whether all have the same, where that is to be so.
fn compare(
    me: u32,
    own: &Introduction,
    all: &[Introduction],
    functions: &Functions,
) -> Result<(), Error> {
    for (rank, other) in all.iter().enumerate() {
        if let Some((what, there, here)) = own.bounds.differ(&other.bounds) {
            return Err(is_to_be_the_same(what, (rank, &there), (me, &here)));
        }
        if let Some(why) = functions.differ(&other.functions) {
            return Err(Error::Setup(format!("process {rank} {why}")));
        }
        let services = |it: &Introduction| it.nodes.len().saturating_sub(usize::from(it.threads));
        for (what, there, here) in [
            ("number of `Fabric::threads`", usize::from(other.threads), usize::from(own.threads)),
            ("number of `Fabric::services`", services(other), services(own)),
            ("number of threads", other.nodes.len(), own.nodes.len()),
            ("number of addresses", other.addresses.len(), own.addresses.len()),
        ] {
            if there != here {
                return Err(is_to_be_the_same(what, (rank, &there), (me, &here)));
            }
        }
    }
    Ok(())
}

fn is_to_be_the_same(
    what: &str,
    (rank, there): (usize, &dyn Display),
    (me, here): (u32, &dyn Display),
) -> Error {
    let both = format!("{there} in process {rank}, and {here} in process {me}");
    Error::Setup(format!("the {what} is to be the same everywhere: it is {both}"))
}

fn plugin_of(url: &Address) -> Result<Box<dyn Plugin>, Error> {
    let (sm, tcp) = (hg_na_sm::SmPlugin, hg_na_tcp::TcpPlugin);
    let routed = Route::new(sm, tcp, hg_na_sm::node_id, &["uid", "sm+tcp"]);
    let plugins: Vec<Box<dyn Plugin>> = vec![
        Box::new(hg_na_sm::SmPlugin),
        Box::new(hg_na_tcp::TcpPlugin),
        Box::new(hg_na_ofi::OfiPlugin),
        #[cfg(feature = "verbs")]
        Box::<hg_na_verbs::VerbsPlugin>::default(),
        #[cfg(feature = "visor")]
        Box::<hg_visor::VisorPlugin>::default(),
        Box::new(routed),
    ];
    let scheme = url.scheme();
    let mut takers = plugins.into_iter().filter(|plugin| plugin.schemes().contains(&scheme));
    takers.next().ok_or_else(|| {
        Error::Setup(format!(
            "no transport of this build takes `{scheme}://`{}",
            of_feature(scheme)
        ))
    })
}

/// What would bring a transport.
fn of_feature(scheme: &str) -> &'static str {
    match scheme {
        "verbs" => ": the feature `verbs` of `hydrargyrum-invoke` brings it",
        "visor" => ": the feature `visor` of `hydrargyrum-invoke` brings it",
        _ => "",
    }
}
