//! What a program, or its user through the environment, decides about joining a job.

use std::{ffi::OsString, fmt, os::unix::ffi::OsStrExt as _, str::FromStr, time::Duration};

use crate::{Error, NodeMap, deadline::LONGEST};

/// How ranks find one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Via {
    /// A [`Local`](crate::Local) runner.
    Local,
    /// An address or a folder named in `HG_JOB_RENDEZVOUS`.
    Rendezvous,
    /// The first process management interface, over `PMI_FD` or `PMI_PORT`: MPICH, Intel MPI, Slurm.
    Pmi1,
    /// The second one, over `PMI_FD`: the same launchers.
    Pmi2,
    /// `libpmix`: Open MPI, Slurm.
    Pmix,
    /// One process alone.
    Single,
}

impl Via {
    const ALL: [(&str, Self); 6] = [
        ("local", Self::Local),
        ("rendezvous", Self::Rendezvous),
        ("pmi1", Self::Pmi1),
        ("pmi2", Self::Pmi2),
        ("pmix", Self::Pmix),
        ("single", Self::Single),
    ];
}

impl fmt::Display for Via {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(_, via)| via == self).map_or("?", |(name, _)| name);
        out.write_str(name)
    }
}

impl FromStr for Via {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Self::ALL.iter().find(|(name, _)| *name == text).map(|(_, via)| *via);
        found.ok_or_else(|| {
            let names = Self::ALL.map(|(name, _)| name).join(", ");
            Error::Environment(format!("HG_JOB_VIA: `{text}` is none of auto, {names}"))
        })
    }
}

/// How to join a job. What is not set here is taken from the environment, then from the defaults.
///
/// | method | variable | default |
/// |---|---|---|
/// | [`via`](Self::via) | `HG_JOB_VIA` | the first that the environment shows, in the order of [`Via`] |
/// | [`timeout`](Self::timeout) | `HG_JOB_TIMEOUT_S` | 60 s |
/// | [`wait`](Self::wait) | `HG_JOB_WAIT_S` | 600 s |
/// | [`nodes`](Self::nodes) | `HG_JOB_NODES` | what the machines say |
/// | [`listen`](Self::listen) | `HG_JOB_LISTEN` | a free port on every address |
/// | [`abort_exits`](Self::abort_exits) | | yes |
/// | [`on_waiting`](Self::on_waiting) | | nobody is told |
#[derive(Debug, Clone, Default)]
pub struct Settings {
    pub(crate) via: Option<Via>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) wait: Option<Duration>,
    pub(crate) nodes: Option<NodeMap>,
    pub(crate) listen: Option<String>,
    pub(crate) keep_on_abort: bool,
    pub(crate) on_waiting: Option<fn(&str)>,
}

/// Ranks that have not joined after this long are missing.
const TIMEOUT: Duration = Duration::from_secs(60);
/// A collective call that others have not made after this long fails.
const WAIT: Duration = Duration::from_secs(600);

/// Reads one variable of the environment; the tests have another one.
pub(crate) type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// One variable of this process's own environment.
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// Other text than UTF-8 cannot be shown, and two of it might look alike: a token, or the name of a folder.
pub(crate) fn check_environment() -> Result<(), Error> {
    let is_odd = |(name, value): &(OsString, OsString)| {
        name.as_bytes().starts_with(b"HG_JOB_") && value.to_str().is_none()
    };
    match std::env::vars_os().find(is_odd) {
        Some((name, _)) => {
            Err(Error::Environment(format!("{}: the value is no UTF-8", name.to_string_lossy())))
        }
        None => Ok(()),
    }
}

impl Settings {
    /// Everything from the environment and the defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How ranks find one another, instead of looking for it.
    #[must_use]
    pub fn via(mut self, via: Via) -> Self {
        self.via = Some(via);
        self
    }

    /// How long ranks may take to come together; each counts from its own call. Who has not come then is
    /// named by the others, within two seconds more.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How long a collective call waits for ranks that live, but have not called it. One that ends is
    /// noticed at once.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Which rank is on which node, to imitate many nodes on one machine.
    #[must_use]
    pub fn nodes(mut self, nodes: NodeMap) -> Self {
        self.nodes = Some(nodes);
        self
    }

    /// Where rank 0 listens for the others, as `ADDRESS:PORT`.
    /// Of other ranks those with a hub listen there, too, at a free port, if the address is their machine's.
    #[must_use]
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen = Some(address.into());
        self
    }

    /// Does an abort of another rank end this process? If not, the next call fails with it.
    #[must_use]
    pub fn abort_exits(mut self, exits: bool) -> Self {
        self.keep_on_abort = !exits;
        self
    }

    /// Told once, when ranks have not come together after five seconds, in words: whom this one waits for. For a
    /// line on standard error, say; by default nobody is told anything before [`timeout`](Self::timeout).
    #[must_use]
    pub fn on_waiting(mut self, tell: fn(&str)) -> Self {
        self.on_waiting = Some(tell);
        self
    }

    /// With what the environment says where the program said nothing.
    pub(crate) fn complete(&self, variables: Variables<'_>) -> Result<Complete, Error> {
        let via = match (self.via, variables("HG_JOB_VIA").as_deref()) {
            (Some(via), _) => Some(via),
            (None, None | Some("" | "auto")) => None,
            (None, Some(text)) => Some(text.parse()?),
        };
        let nodes = match (&self.nodes, variables("HG_JOB_NODES")) {
            (Some(nodes), _) => Some(nodes.clone()),
            (None, Some(text)) => Some(text.parse()?),
            (None, None) => None,
        };
        Ok(Complete {
            via,
            timeout: duration(self.timeout, "HG_JOB_TIMEOUT_S", TIMEOUT, variables)?,
            wait: duration(self.wait, "HG_JOB_WAIT_S", WAIT, variables)?,
            nodes,
            listen: self.listen.clone().or_else(|| variables("HG_JOB_LISTEN")),
            abort_exits: !self.keep_on_abort,
            on_waiting: self.on_waiting,
        })
    }
}

/// Settings without gaps.
#[derive(Debug, Clone)]
pub(crate) struct Complete {
    pub via: Option<Via>,
    pub timeout: Duration,
    pub wait: Duration,
    pub nodes: Option<NodeMap>,
    pub listen: Option<String>,
    pub abort_exits: bool,
    pub on_waiting: Option<fn(&str)>,
}

fn duration(
    set: Option<Duration>,
    name: &str,
    default: Duration,
    variables: Variables<'_>,
) -> Result<Duration, Error> {
    if let Some(set) = set {
        return Ok(set);
    }
    let Some(text) = variables(name) else { return Ok(default) };
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= LONGEST.as_secs_f64() => {
            Ok(Duration::from_secs_f64(seconds))
        }
        _ => Err(Error::Environment(format!("{name}: `{text}` is no number of seconds above 0"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(name: &str, value: &str) -> Result<Complete, String> {
        let variables = |asked: &str| (asked == name).then(|| value.to_owned());
        Settings::new().complete(&variables).map_err(|error| error.to_string())
    }

    #[test]
    fn the_environment_fills_what_the_program_leaves_open() {
        assert_eq!(complete("HG_JOB_VIA", "pmix").unwrap().via, Some(Via::Pmix));
        assert_eq!(complete("HG_JOB_VIA", "auto").unwrap().via, None);
        assert_eq!(complete("HG_JOB_TIMEOUT_S", "2.5").unwrap().timeout.as_millis(), 2500);
        assert_eq!(complete("HG_JOB_NODES", "2x2").unwrap().nodes.unwrap().nodes(), 2);
        let variables = |_: &str| Some("7".to_owned());
        let set = Settings::new().via(Via::Single).timeout(Duration::from_secs(3));
        let set = set.nodes(NodeMap::one_node(1).unwrap()).complete(&variables).unwrap();
        assert_eq!((set.via, set.timeout.as_secs(), set.wait.as_secs()), (Some(Via::Single), 3, 7));
    }

    #[test]
    fn nonsense_in_the_environment_is_named_with_its_variable() {
        assert_eq!(
            complete("HG_JOB_VIA", "mpi").unwrap_err(),
            "HG_JOB_VIA: `mpi` is none of auto, local, rendezvous, pmi1, pmi2, pmix, single"
        );
        for wrong in ["0", "-1", "soon", "inf", "NaN", ""] {
            let said = complete("HG_JOB_TIMEOUT_S", wrong).unwrap_err();
            assert_eq!(
                said,
                format!("HG_JOB_TIMEOUT_S: `{wrong}` is no number of seconds above 0")
            );
        }
        assert!(complete("HG_JOB_NODES", "two").unwrap_err().contains("no node map"));
    }
}
