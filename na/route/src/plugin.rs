//! Opening: which URLs are taken, which settings are whose.
//!
//! | URL | opens |
//! |---|---|
//! | `sm+tcp://HOST:PORT` | both; fails when either does |
//! | `tcp://HOST:PORT` | the same; the network alone when there can be no local part, or with `routing` = `off` |
//!
//! A setting goes to every plugin that takes one of this name; `sm.NAME` and `tcp.NAME` to one of them.

use std::{collections::BTreeSet, fmt, sync::Arc};

use hg_na::{Address, Domain, Error, Offer, OpenOptions, Plugin, UID};
use uuid::Uuid;

use crate::{
    domain::RouteDomain,
    uid::{bad, name_of},
};

/// What this plugin is called.
const NAME: &str = "route";
/// Setting: `off` opens the network alone.
const ROUTING: &str = "routing";

/// Tells which node this process is on.
type NodeOf = Arc<dyn Fn() -> Result<Uuid, Error> + Send + Sync>;

/// A plugin made of two.
#[derive(Clone)]
pub struct Route {
    local: Arc<dyn Plugin>,
    network: Arc<dyn Plugin>,
    node: NodeOf,
    schemes: &'static [&'static str],
}

impl Route {
    /// Routes between two plugins. `node` says which node this process is on: equal ids mean that the local
    /// plugin can work between them. `schemes` are those of addresses (`uid`) and of URLs to be opened: of the
    /// network's own (`tcp`), and of both (`sm+tcp`).
    #[must_use]
    pub fn new(
        local: impl Plugin + 'static,
        network: impl Plugin + 'static,
        node: impl Fn() -> Result<Uuid, Error> + Send + Sync + 'static,
        schemes: &'static [&'static str],
    ) -> Self {
        Self { local: Arc::new(local), network: Arc::new(network), node: Arc::new(node), schemes }
    }

    /// What a URL's scheme asks for.
    fn read<'a>(&'a self, url: &'a Address) -> Result<Wanted<'a>, Error> {
        let scheme = url.scheme();
        if scheme == UID {
            return Err(bad(url, "it is an address to look up; open tcp://... or sm+tcp://..."));
        }
        if self.network.schemes().contains(&scheme) {
            let local = *self.local.schemes().first().ok_or(Error::Unsupported("no scheme"))?;
            return Ok(Wanted { local, network: scheme, both: false });
        }
        for local in self.local.schemes() {
            let network = scheme.strip_prefix(local).and_then(|rest| rest.strip_prefix('+'));
            if let Some(network) = network.filter(|it| self.network.schemes().contains(it)) {
                return Ok(Wanted { local, network, both: true });
            }
        }
        Err(bad(url, "its scheme is neither the network's nor that of both"))
    }

    /// One URL, and what comes of opening it.
    fn offer(&self, url: Address) -> Option<Offer> {
        let wanted = self.read(&url).ok()?;
        let mut offer = Offer::new(NAME, url.clone());
        if wanted.both && self.schemes.contains(&wanted.network) {
            let network = wanted.network;
            let also = format!("{network}:// means the same, unless the setting {ROUTING} is off");
            offer = offer.fact("also", also);
        }
        if let Ok(node) = (self.node)() {
            offer = offer.fact("node", node.to_string());
        }
        Some(offer.tried(self.open(&url, &OpenOptions::listening())))
    }

    fn open_local(
        &self,
        scheme: &str,
        network_rest: &str,
        settings: &mut Settings,
    ) -> Result<Arc<dyn Domain>, Error> {
        let named = name_of(network_rest).filter(|_| settings.options.listen);
        if let Some(name) = named {
            let url = Address::new(&format!("{scheme}://{name}"))?;
            match settings.open(self.local.as_ref(), &url, scheme) {
                // By another user's process, say: they cannot both listen at the network's address.
                Err(Error::AddressInUse(name)) => {
                    tracing::info!(%name, "the local name is in use: another one is chosen");
                }
                decided => return decided,
            }
        }
        settings.open(self.local.as_ref(), &Address::new(&format!("{scheme}://"))?, scheme)
    }
}

impl Plugin for Route {
    fn schemes(&self) -> &[&str] {
        self.schemes
    }

    fn takes_key(&self) -> bool {
        // Inside the node the kernel vouches for a peer's user.
        self.network.takes_key()
    }

    fn offers(&self) -> Vec<Offer> {
        let urls = self.schemes.iter().filter_map(|it| Address::new(&format!("{it}://")).ok());
        // URLs of the network's own are listed by the network; here only where nothing else is.
        let (both, own): (Vec<_>, Vec<_>) =
            urls.partition(|url| self.read(url).is_ok_and(|wanted| wanted.both));
        let urls = if both.is_empty() { own } else { both };
        urls.into_iter().filter_map(|url| self.offer(url)).collect()
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        let wanted = self.read(url)?;
        let mut options = options.clone();
        let routing = options.settings.remove(ROUTING);
        let network_url = Address::new(&format!("{}://{}", wanted.network, url.rest()))?;
        match routing.as_deref() {
            None | Some("on") => {}
            Some("off") if !wanted.both => return self.network.open(&network_url, &options),
            Some("off") => {
                let Wanted { local, network, .. } = wanted;
                let why = format!("`off` contradicts {local}+{network}://: open {network}://");
                return Err(Error::BadSetting { name: ROUTING.to_owned(), why });
            }
            Some(_) => {
                let why = "it takes `on` or `off`".to_owned();
                return Err(Error::BadSetting { name: ROUTING.to_owned(), why });
            }
        }
        let mut settings = Settings::new(options);
        let network = settings.open(self.network.as_ref(), &network_url, wanted.network)?;
        let local = (self.node)()
            .and_then(|node| Ok((node, self.open_local(wanted.local, url.rest(), &mut settings)?)));
        match local {
            Ok((node, local)) => {
                settings.check(&[wanted.local, wanted.network])?;
                let (local, network) = ((local, wanted.local), (network, wanted.network));
                Ok(Arc::new(RouteDomain::new(node, local, network)))
            }
            Err(error) if wanted.both || is_about_settings(&error) => Err(error),
            Err(error) => {
                tracing::warn!(%error, "no shared memory here: every peer is reached by the network");
                settings.check(&[wanted.network])?;
                Ok(network)
            }
        }
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Route({:?}, {:?})", self.local, self.network)
    }
}

struct Wanted<'a> {
    local: &'a str,
    network: &'a str,
    /// The URL names both.
    both: bool,
}

fn is_about_settings(error: &Error) -> bool {
    matches!(error, Error::BadSetting { .. } | Error::UnknownSetting { .. })
}

/// The setting that an error is about.
fn setting(error: &mut Error) -> Option<&mut String> {
    match error {
        Error::BadSetting { name, .. } | Error::UnknownSetting { name, .. } => Some(name),
        _ => None,
    }
}

/// The settings of both, and how they were refused.
struct Settings {
    options: OpenOptions,
    refused: Vec<Error>,
    opened: usize,
}

impl Settings {
    fn new(options: OpenOptions) -> Self {
        Self { options, refused: Vec::new(), opened: 0 }
    }

    /// Opens one plugin with the settings that it takes.
    fn open(
        &mut self,
        plugin: &dyn Plugin,
        url: &Address,
        scheme: &str,
    ) -> Result<Arc<dyn Domain>, Error> {
        let mut options = self.options.clone();
        options.settings.clear();
        let mut common = BTreeSet::new();
        for (name, value) in &self.options.settings {
            match name.split_once('.') {
                Some((owner, own)) if owner == scheme => {
                    // After the one without an owner, which sorts before it.
                    options.settings.insert(own.to_owned(), value.clone());
                    common.remove(own);
                }
                Some(_) => {}
                None => {
                    options.settings.insert(name.clone(), value.clone());
                    common.insert(name.clone());
                }
            }
        }
        let refused_before = self.refused.len();
        loop {
            let mut error = match plugin.open(url, &options) {
                Ok(domain) => {
                    self.opened += 1;
                    return Ok(domain);
                }
                Err(error) => error,
            };
            if let Some(name) = setting(&mut error) {
                if common.remove(name) {
                    options.settings.remove(name);
                    self.refused.push(error);
                    continue;
                }
                let own = format!("{scheme}.{name}");
                if self.options.settings.contains_key(&own) {
                    *name = own;
                }
            }
            self.refused.truncate(refused_before);
            return Err(error);
        }
    }

    /// Every setting was taken by somebody.
    fn check(&self, schemes: &[&str]) -> Result<(), Error> {
        for name in self.options.settings.keys() {
            let owner = name.split_once('.').map(|(owner, _)| owner);
            if let Some(owner) = owner.filter(|owner| !schemes.contains(owner)) {
                let own = schemes.iter().map(|scheme| format!("{scheme}.NAME")).collect::<Vec<_>>();
                let known = format!("nothing here is called {owner}; there are {}", own.join(", "));
                return Err(Error::UnknownSetting { name: name.clone(), known });
            }
            let (mut wrong, mut unknown) = (Vec::new(), Vec::new());
            for refused in &self.refused {
                match refused {
                    Error::BadSetting { name: other, why } if other == name => wrong.push(&**why),
                    Error::UnknownSetting { name: other, known } if other == name => {
                        unknown.push(&**known);
                    }
                    _ => {}
                }
            }
            let refusals = wrong.len() + unknown.len();
            if refusals == 0 || refusals < self.opened {
                continue;
            }
            wrong.dedup();
            unknown.dedup();
            let name = name.clone();
            // Whoever knows it says what is wrong; what others have instead would be beside the point.
            return Err(if wrong.is_empty() {
                Error::UnknownSetting { name, known: unknown.join("; ") }
            } else {
                Error::BadSetting { name, why: wrong.join("; ") }
            });
        }
        Ok(())
    }
}
