//! Which launcher started this process: a pure function of the environment.
//!
//! Looked for in this order; the first that shows counts, and if only half of it is there, that is an error:
//!
//! | launcher | variables |
//! |---|---|
//! | `Local` runner | `HG_JOB_FD`, `HG_JOB_RANK`, `HG_JOB_SIZE` |
//! | rendezvous | `HG_JOB_RENDEZVOUS`; rank and size from `HG_JOB_*`, or the first whole pair of `OMPI_COMM_WORLD_*`, `PMI_*`, `SLURM_*` |
//! | PMI-1, PMI-2 | `PMI_FD`, `PMI_RANK`, `PMI_SIZE`; or `PMI_PORT`, `PMI_ID` |
//! | PMIx | `PMIX_NAMESPACE`, `PMIX_RANK` |
//! | none, with more than one rank | an error that says what to do |
//! | none | one process alone |

use crate::{
    Error, NodeMap, Via,
    node_map::RANKS_MAX,
    settings::{Complete, Variables},
};

/// What to do, and what is known before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Plan {
    Local { fd: i32, place: Place },
    Rendezvous { at: String, place: Place, token: String },
    Pmi { server: Server, dialect: Via },
    Pmix { rank: u32 },
    Single,
}

impl Plan {
    /// As far as it is known before the ranks meet.
    pub(crate) fn rank(&self) -> Option<u32> {
        match self {
            Self::Local { place, .. } | Self::Rendezvous { place, .. } => Some(place.rank),
            Self::Pmi { server: Server::Fd { place, .. }, .. } => Some(place.rank),
            Self::Pmi { server: Server::Port { id, .. }, .. } => Some(*id),
            Self::Pmix { rank } => Some(*rank),
            Self::Single => None,
        }
    }
}

/// A rank among others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub rank: u32,
    pub size: u32,
}

/// Where the PMI server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Server {
    Fd { fd: i32, place: Place },
    Port { address: String, id: u32 },
}

/// Pairs of variables that tell rank and size, by launcher. Slurm's come last: an `mpirun` inside of it hands them on to its ranks.
const PLACES: [(&str, &str); 4] = [
    ("HG_JOB_RANK", "HG_JOB_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
];

pub(crate) fn plan(settings: &Complete, variables: Variables<'_>) -> Result<Plan, Error> {
    let environment = Environment { variables };
    match settings.via {
        Some(via) => environment.forced(via),
        None => environment.detected(settings.nodes.as_ref()),
    }
}

struct Environment<'a> {
    variables: Variables<'a>,
}

impl Environment<'_> {
    fn has(&self, name: &str) -> bool {
        (self.variables)(name).is_some()
    }

    fn detected(&self, nodes: Option<&NodeMap>) -> Result<Plan, Error> {
        if self.has("HG_JOB_FD") {
            self.local()
        } else if self.has("HG_JOB_RENDEZVOUS") {
            self.rendezvous()
        } else if self.has("PMI_FD") || self.has("PMI_PORT") {
            self.pmi(Via::Pmi1)
        } else if self.has("PMIX_NAMESPACE") || self.has("PMIX_RANK") {
            self.pmix()
        } else {
            self.alone(nodes)
        }
    }

    fn forced(&self, via: Via) -> Result<Plan, Error> {
        match via {
            Via::Local => self.local(),
            Via::Rendezvous => self.rendezvous(),
            Via::Pmi1 | Via::Pmi2 => self.pmi(via),
            Via::Pmix => self.pmix(),
            Via::Single => Ok(Plan::Single),
        }
    }

    fn local(&self) -> Result<Plan, Error> {
        let fd = self.descriptor("HG_JOB_FD")?;
        Ok(Plan::Local { fd, place: self.place("HG_JOB_RANK", "HG_JOB_SIZE")? })
    }

    fn rendezvous(&self) -> Result<Plan, Error> {
        let at = self.needed("HG_JOB_RENDEZVOUS")?;
        let is_half = |pair: &&(&str, &str)| self.has(pair.0) || self.has(pair.1);
        let whole = PLACES.iter().find(|(rank, size)| self.has(rank) && self.has(size));
        // Launchers inside one another set halves; what the user sets by hand is meant.
        let by_hand = PLACES.iter().take(1).find(is_half);
        let pair = by_hand.or(whole).or_else(|| PLACES.iter().find(is_half));
        let Some((rank, size)) = pair else {
            let names: Vec<&str> = PLACES.iter().map(|(rank, _)| *rank).collect();
            let names = names.join(", ");
            return Err(Error::Environment(format!(
                "HG_JOB_RENDEZVOUS is set, but no rank: none of {names} is there"
            )));
        };
        let token = (self.variables)("HG_JOB_TOKEN").unwrap_or_default();
        if token.len() > TOKEN_MAX {
            let text = format!("HG_JOB_TOKEN is longer than {TOKEN_MAX} bytes");
            return Err(Error::Environment(text));
        }
        Ok(Plan::Rendezvous { at, place: self.place(rank, size)?, token })
    }

    fn pmi(&self, dialect: Via) -> Result<Plan, Error> {
        let server = if self.has("PMI_FD") {
            Server::Fd {
                fd: self.descriptor("PMI_FD")?,
                place: self.place("PMI_RANK", "PMI_SIZE")?,
            }
        } else {
            if !self.has("PMI_PORT") {
                let text =
                    "neither PMI_FD nor PMI_PORT is there: was this started by mpirun or srun?";
                return Err(Error::Environment(text.into()));
            }
            if dialect == Via::Pmi2 {
                let text = "PMI-2 goes over PMI_FD, but only PMI_PORT is there";
                return Err(Error::Environment(text.into()));
            }
            let address = self.needed("PMI_PORT")?;
            if !address.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
            }) {
                return Err(Error::Environment(format!("PMI_PORT: `{address}` is no HOST:PORT")));
            }
            Server::Port { address, id: self.number("PMI_ID")? }
        };
        Ok(Plan::Pmi { server, dialect })
    }

    fn pmix(&self) -> Result<Plan, Error> {
        self.needed("PMIX_NAMESPACE")?;
        let rank = self.number("PMIX_RANK")?;
        if rank >= RANKS_MAX {
            return Err(Error::Environment(format!("PMIX_RANK: {rank} is no rank")));
        }
        Ok(Plan::Pmix { rank })
    }

    /// Nobody says how ranks meet: then there must be only one.
    fn alone(&self, nodes: Option<&NodeMap>) -> Result<Plan, Error> {
        for (rank, size) in PLACES {
            if !self.has(rank) || !self.has(size) {
                if self.has("PMI_RANK") || self.has("PMI_SIZE") {
                    return Err(Error::Environment(
                        "PMI_RANK or PMI_SIZE is set, but neither PMI_FD nor PMI_PORT: half a PMI environment"
                            .into(),
                    ));
                }
                continue;
            }
            let place = self.place(rank, size)?;
            if place.size > 1 {
                return Err(Error::Environment(format!(
                    "{size} says {} ranks, but nothing tells how they find one another: start with srun \
                     --mpi=pmi2 or --mpi=pmix, with mpirun, or set HG_JOB_RENDEZVOUS; HG_JOB_VIA=single is \
                     for one process alone",
                    place.size
                )));
            }
        }
        if let Some(nodes) = nodes {
            nodes.check_size(1)?;
        }
        Ok(Plan::Single)
    }

    fn place(&self, rank_name: &str, size_name: &str) -> Result<Place, Error> {
        let (rank, size) = (self.number(rank_name)?, self.number(size_name)?);
        if size == 0 || size > RANKS_MAX {
            return Err(Error::Environment(format!("{size_name}: {size} is no number of ranks")));
        }
        if rank >= size {
            return Err(Error::Environment(format!(
                "{rank_name} is {rank}, but {size_name} is {size}: a rank is below the number of ranks"
            )));
        }
        Ok(Place { rank, size })
    }

    fn descriptor(&self, name: &str) -> Result<i32, Error> {
        let number = self.number(name)?;
        i32::try_from(number)
            .map_err(|_| Error::Environment(format!("{name}: {number} is no descriptor")))
    }

    fn number(&self, name: &str) -> Result<u32, Error> {
        let text = self.needed(name)?;
        text.trim()
            .parse()
            .map_err(|_| Error::Environment(format!("{name}: `{text}` is no number")))
    }

    fn needed(&self, name: &str) -> Result<String, Error> {
        (self.variables)(name).ok_or_else(|| {
            // The first letters of a launcher's variables are its own.
            let prefix = name.split_inclusive('_').next().unwrap_or(name);
            let others = FAMILIES.iter().filter(|of| of.starts_with(prefix) && **of != name);
            let found: Vec<&str> = others.copied().filter(|of| self.has(of)).collect();
            Error::Environment(match found.first() {
                Some(other) => {
                    format!("{name} is missing, though {other} of the same launcher is there")
                }
                None => {
                    format!("{name} is missing: was this started by the launcher that sets it?")
                }
            })
        })
    }
}

/// What launchers set.
const FAMILIES: [&str; 12] = [
    "HG_JOB_FD",
    "HG_JOB_RANK",
    "HG_JOB_RENDEZVOUS",
    "HG_JOB_SIZE",
    "HG_JOB_TOKEN",
    "PMI_FD",
    "PMI_ID",
    "PMI_PORT",
    "PMI_RANK",
    "PMI_SIZE",
    "PMIX_NAMESPACE",
    "PMIX_RANK",
];

/// The longest token of a rendezvous, in bytes.
const TOKEN_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;

    fn look(pairs: &[(&str, &str)]) -> Result<Plan, String> {
        let variables = |asked: &str| {
            pairs.iter().find(|(name, _)| *name == asked).map(|(_, value)| (*value).to_owned())
        };
        let settings = Settings::new().complete(&variables).map_err(|error| error.to_string())?;
        plan(&settings, &variables).map_err(|error| error.to_string())
    }

    const HYDRA: [(&str, &str); 3] = [("PMI_FD", "6"), ("PMI_RANK", "1"), ("PMI_SIZE", "4")];
    const PLACE: Place = Place { rank: 1, size: 4 };

    #[test]
    fn every_launcher_is_known_by_its_variables() {
        assert_eq!(look(&[]), Ok(Plan::Single));
        let server = Server::Fd { fd: 6, place: PLACE };
        assert_eq!(look(&HYDRA), Ok(Plan::Pmi { server: server.clone(), dialect: Via::Pmi1 }));
        let port = Server::Port { address: "host:123".into(), id: 2 };
        assert_eq!(
            look(&[("PMI_PORT", "host:123"), ("PMI_ID", "2")]),
            Ok(Plan::Pmi { server: port, dialect: Via::Pmi1 })
        );
        assert_eq!(
            look(&[("PMIX_NAMESPACE", "a"), ("PMIX_RANK", "3")]),
            Ok(Plan::Pmix { rank: 3 })
        );
        let local = [("HG_JOB_FD", "9"), ("HG_JOB_RANK", "1"), ("HG_JOB_SIZE", "4")];
        assert_eq!(look(&local), Ok(Plan::Local { fd: 9, place: PLACE }));
        let slurm =
            [("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "4"), ("HG_JOB_RENDEZVOUS", "dir:x")];
        let met = Plan::Rendezvous { at: "dir:x".into(), place: PLACE, token: String::new() };
        assert_eq!(look(&slurm), Ok(met));
    }

    #[test]
    fn the_rank_is_known_before_the_ranks_meet() {
        let rank = |pairs: &[(&str, &str)]| look(pairs).unwrap().rank();
        assert_eq!(rank(&[]), None);
        assert_eq!(rank(&HYDRA), Some(1));
        assert_eq!(rank(&[("PMI_PORT", "host:123"), ("PMI_ID", "2")]), Some(2));
        assert_eq!(rank(&[("PMIX_NAMESPACE", "a"), ("PMIX_RANK", "3")]), Some(3));
        let place = [("HG_JOB_RANK", "1"), ("HG_JOB_SIZE", "4")];
        assert_eq!(rank(&[&place[..], &[("HG_JOB_FD", "9")]].concat()), Some(1));
        assert_eq!(rank(&[&place[..], &[("HG_JOB_RENDEZVOUS", "dir:x")]].concat()), Some(1));
    }

    #[test]
    fn the_runner_s_own_variables_come_before_a_launcher_s_and_an_override_before_all() {
        let mut both = HYDRA.to_vec();
        both.extend([("HG_JOB_FD", "9"), ("HG_JOB_RANK", "1"), ("HG_JOB_SIZE", "4")]);
        assert_eq!(look(&both), Ok(Plan::Local { fd: 9, place: PLACE }));
        both.push(("HG_JOB_VIA", "pmi2"));
        let server = Server::Fd { fd: 6, place: PLACE };
        assert_eq!(look(&both), Ok(Plan::Pmi { server, dialect: Via::Pmi2 }));
        both.pop();
        both.push(("HG_JOB_VIA", "single"));
        assert_eq!(look(&both), Ok(Plan::Single));
    }

    #[test]
    fn a_launcher_that_is_asked_for_and_is_not_there_is_not_said_to_be() {
        for (via, name) in [("pmix", "PMIX_NAMESPACE"), ("local", "HG_JOB_FD")] {
            let said = look(&[("HG_JOB_VIA", via)]).unwrap_err();
            let expected = "is missing: was this started by the launcher that sets it?";
            assert_eq!(said, format!("{name} {expected}"));
        }
    }

    #[test]
    fn half_an_environment_is_refused_with_the_missing_variable() {
        let missing = |pairs: &[(&str, &str)], name: &str| {
            let said = look(pairs).unwrap_err();
            let others = pairs.iter().any(|(it, _)| {
                said == format!("{name} is missing, though {it} of the same launcher is there")
            });
            assert!(others, "{name}: {said}");
        };
        missing(&HYDRA[..2], "PMI_SIZE");
        missing(&HYDRA[..1], "PMI_RANK");
        missing(&[("PMI_PORT", "host:1")], "PMI_ID");
        missing(&[("PMIX_RANK", "0")], "PMIX_NAMESPACE");
        missing(&[("PMIX_NAMESPACE", "x")], "PMIX_RANK");
        missing(&[("HG_JOB_FD", "4"), ("HG_JOB_RANK", "0")], "HG_JOB_SIZE");
        let half = look(&HYDRA[1..]).unwrap_err();
        assert!(half.contains("neither PMI_FD nor PMI_PORT"), "{half}");
        assert!(
            look(&[("HG_JOB_VIA", "pmi1")]).unwrap_err().contains("started by mpirun or srun?")
        );
        assert!(look(&[("HG_JOB_RENDEZVOUS", "dir:x")]).unwrap_err().contains("but no rank"));
    }

    #[test]
    fn a_launcher_inside_slurm_tells_the_place_and_half_a_pair_does_not() {
        let at = ("HG_JOB_RENDEZVOUS", "dir:x");
        let met = Ok(Plan::Rendezvous { at: "dir:x".into(), place: PLACE, token: String::new() });
        let inner = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4")];
        let mpich = [("PMI_RANK", "1"), ("PMI_SIZE", "4")];
        for inner in [inner, mpich] {
            let outer = [at, ("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")];
            assert_eq!(look(&[&outer[..], &inner].concat()), met);
            // A batch script's own process has no step of tasks.
            assert_eq!(look(&[&outer[..2], &inner].concat()), met);
        }
        for (half, missing) in [("HG_JOB_RANK", "HG_JOB_SIZE"), ("HG_JOB_SIZE", "HG_JOB_RANK")] {
            let said = look(&[&[at, (half, "3")][..], &inner].concat()).unwrap_err();
            assert!(said.starts_with(&format!("{missing} is missing")), "{said}");
        }
        let said = look(&[at, ("SLURM_PROCID", "0")]).unwrap_err();
        assert!(said.starts_with("SLURM_STEP_NUM_TASKS is missing"), "{said}");
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused_with_their_variable() {
        let said = |name: &str, value: &str| {
            let mut pairs = HYDRA;
            pairs.iter_mut().find(|(key, _)| *key == name).unwrap().1 = value;
            let leaked: Vec<(&str, &str)> = pairs.to_vec();
            look(&leaked).unwrap_err()
        };
        assert_eq!(
            said("PMI_RANK", "4"),
            "PMI_RANK is 4, but PMI_SIZE is 4: a rank is below the number of ranks"
        );
        assert_eq!(said("PMI_RANK", "-1"), "PMI_RANK: `-1` is no number");
        assert_eq!(said("PMI_SIZE", "0"), "PMI_SIZE: 0 is no number of ranks");
        assert_eq!(said("PMI_SIZE", "4000000000"), "PMI_SIZE: 4000000000 is no number of ranks");
        assert_eq!(said("PMI_FD", "x"), "PMI_FD: `x` is no number");
        assert_eq!(said("PMI_FD", "4000000000"), "PMI_FD: 4000000000 is no descriptor");
        assert_eq!(
            look(&[("PMI_PORT", "nowhere"), ("PMI_ID", "0")]).unwrap_err(),
            "PMI_PORT: `nowhere` is no HOST:PORT"
        );
    }

    #[test]
    fn several_ranks_without_a_way_to_meet_are_an_error_and_one_is_not() {
        let slurm = |size| look(&[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", size)]);
        assert!(
            slurm("4")
                .unwrap_err()
                .starts_with("SLURM_STEP_NUM_TASKS says 4 ranks, but nothing tells")
        );
        assert_eq!(slurm("1"), Ok(Plan::Single));
        // A batch script: tasks are allocated, but this is not one of them.
        assert_eq!(look(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")]), Ok(Plan::Single));
        let text = look(&[("HG_JOB_NODES", "2x1")]).unwrap_err();
        assert_eq!(text, "the node map is for 2 ranks, but the job has 1");
    }
}
