//! The daemon's configuration: TOML, every name known.
//!
//! ```toml
//! name = "hg-visor"              # applications reach it at sm://hg-visor
//! network = "tcp://10.0.0.1:7700"  # the network that it owns; its address there is in all addresses
//! max-applications = 1024
//! connections = 1024             # of one process, whatever number of contexts it has, opened and accepted, each
//! network-idle-ms = 60000        # a connection to another daemon that carries nothing is closed after so long
//! metrics = "127.0.0.1:9464"     # where Prometheus finds its figures (GET /metrics); nowhere by default
//!
//! [network-settings]             # as of the network plugin
//! key-file = "/etc/hg-visor.key"
//!
//! [[further-network]]            # it owns these as well, and its addresses there are in all addresses: others are called by the first that
//! url = "ofi+tcp://10.0.0.1"     # both nodes have one of. What can only be polled in steps goes first. If one is lost, the daemon ends
//! settings = { }
//!
//! [[user]]                       # besides the daemon's own, who may connect
//! uid = 1000
//! weight = 2                     # share of each of its processes where they have to share; 1 by default
//! connections = 64
//! ```

use std::{collections::BTreeMap, net::SocketAddr};

use hg_na::{Error, Identity};
use serde::Deserialize;

use crate::{
    machine::{IDLE, Quota},
    settings::NAME,
};

/// Largest weight.
const WEIGHT_MAX: u32 = 1000;

/// Everything that a daemon is told.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default = "nowhere")]
pub struct Config {
    /// Its name in shared memory.
    pub name: String,
    /// What it opens in the network.
    pub network: String,
    /// Settings of the network's plugin.
    pub network_settings: BTreeMap<String, String>,
    /// More of them.
    #[serde(rename = "further-network")]
    pub further_networks: Vec<Further>,
    /// Contexts of applications that may be connected at a time.
    pub max_applications: u32,
    /// Connections that a process may open, and as many that it may accept.
    pub connections: u32,
    /// Milliseconds until a connection to another daemon is closed that carries nothing.
    pub network_idle_ms: u64,
    /// Where figures are served over HTTP, to whoever connects there.
    pub metrics: Option<SocketAddr>,
    /// Other users that may connect, or shares and limits of any.
    #[serde(rename = "user")]
    pub users: Vec<User>,
    /// The socket where applications come, if whoever starts it has made that already.
    #[serde(skip)]
    pub listen_fd: Option<i32>,
}

/// A network beside the first.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Further {
    /// What is opened there.
    pub url: String,
    /// Settings of its plugin.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
}

/// A user of the node's.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct User {
    /// Who.
    pub uid: u32,
    /// Share of each of its processes, where they have to share.
    #[serde(default = "one")]
    pub weight: u32,
    /// Connections of each of its processes, where it is not [`Config::connections`].
    pub connections: Option<u32>,
}

fn nowhere() -> Config {
    Config::over("")
}

fn one() -> u32 {
    1
}

impl Config {
    /// The defaults, over this network.
    #[must_use]
    pub fn over(network: &str) -> Self {
        Self {
            name: NAME.to_owned(),
            network: network.to_owned(),
            network_settings: BTreeMap::new(),
            further_networks: Vec::new(),
            max_applications: 1024,
            connections: 1024,
            network_idle_ms: u64::try_from(IDLE.as_millis()).unwrap_or(u64::MAX),
            metrics: None,
            users: Vec::new(),
            listen_fd: None,
        }
    }

    /// Reads TOML.
    ///
    /// # Errors
    /// [`Error::BadSetting`] with the line that is wrong.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let bad = |why: String| Error::BadSetting { name: "configuration".to_owned(), why };
        let config: Self = toml::from_str(text).map_err(|error| bad(error.to_string()))?;
        let weights = config.users.iter().map(|user| user.weight);
        if !weights.into_iter().all(|weight| (1..=WEIGHT_MAX).contains(&weight)) {
            return Err(bad(format!("a weight is 1 to {WEIGHT_MAX}")));
        }
        if config.network.is_empty() {
            return Err(bad("it names no network".to_owned()));
        }
        if [config.connections, config.max_applications].contains(&0) || config.network_idle_ms == 0
        {
            return Err(bad("limits and network-idle-ms are 1 at least".to_owned()));
        }
        Ok(config)
    }

    /// The users of `sm`'s setting.
    pub(crate) fn allowed(&self) -> Option<String> {
        let uids: Vec<String> = self.users.iter().map(|user| user.uid.to_string()).collect();
        (!uids.is_empty()).then(|| uids.join(","))
    }

    /// What a process of this user may have.
    pub(crate) fn quota(&self, identity: &Identity) -> Quota {
        let user = self.users.iter().find(|user| Some(user.uid) == identity.uid);
        Quota {
            weight: user.map_or(1, |user| user.weight),
            connections: user.and_then(|user| user.connections).unwrap_or(self.connections),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_taken_and_what_nobody_knows_is_refused() {
        let text = "network = \"tcp://127.0.0.1:0\"\nconnections = 9\nmetrics = \"[::1]:9464\"\n\
            [[user]]\nuid = 7\nweight = 3\n[[user]]\nuid = 8\nconnections = 2\n";
        let config = Config::parse(text).unwrap();
        assert_eq!(config.metrics, Some(SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 9464))));
        assert_eq!((config.name.as_str(), config.allowed().as_deref()), (NAME, Some("7,8")));
        let quota = |uid| {
            let Quota { weight, connections } = config.quota(&Identity::process(1, uid));
            (weight, connections)
        };
        assert_eq!((quota(7), quota(8), quota(9)), ((3, 9), (1, 2), (1, 9)));
        for wrong in [
            "",
            "network = 7",
            "network = \"tcp://\"\n[[further-network]]\ncolour = 1",
            "network = \"tcp://\"\ncolour = 1",
            "network = \"tcp://\"\nconnections = 0",
            "network = \"tcp://\"\nnetwork-idle-ms = 0",
            "network = \"tcp://\"\nmetrics = \"9464\"",
            "network = \"tcp://\"\n[[user]]\nuid = 7\nweight = 0",
            "network = \"tcp://\"\n[[user]]\nweight = 1",
        ] {
            assert!(Config::parse(wrong).is_err(), "{wrong}");
        }
    }
}
