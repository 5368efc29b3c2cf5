//! A hub's address as a text, how it travels without a launcher, and how others get there.

use std::{
    fs,
    io::Write as _,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use socket2::SockRef;

use crate::{Error, host, notice::Notice, tree::Branch};

/// Where the hub is and how to be let in: `hg1/TOKEN/HOST/PORT/IP,IP`, without spaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub token: Vec<u8>,
    host: String,
    port: u16,
    ips: Vec<IpAddr>,
}

/// Addresses of a machine that are told: the text stays short enough for every launcher.
const IPS_MAX: usize = 8;
/// One attempt at one of several addresses.
pub(crate) const ATTEMPT: Duration = Duration::from_secs(2);
/// Between two looks at a folder, or two knocks at a door.
const PAUSE: Duration = Duration::from_millis(10);

impl Address {
    /// Of a listening socket of this process: the one address that it is bound to, or those of the machine. The token is made of
    /// the system's randomness.
    pub(crate) fn here(listener: &TcpListener) -> Result<Self, Error> {
        let bound = listener.local_addr().map_err(Error::os("a listening socket"))?;
        let ips = match bound.ip() {
            ip if ip.is_unspecified() => host::addresses(IPS_MAX),
            ip => vec![ip],
        };
        Ok(Self {
            token: random::<16>()?.to_vec(),
            host: host::identity(),
            port: bound.port(),
            ips,
        })
    }

    pub(crate) fn to_text(&self) -> String {
        let token = hex(&self.token);
        let ips: Vec<String> = self.ips.iter().map(IpAddr::to_string).collect();
        format!("hg1/{token}/{}/{}/{}", self.host, self.port, ips.join(","))
    }

    /// What somebody else wrote.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        Self::from_text(text).ok_or_else(|| {
            let shown: String = text.chars().take(80).flat_map(char::escape_default).collect();
            Error::Environment(format!("`{shown}` is no address of rank 0's"))
        })
    }

    fn from_text(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('/');
        let mut next = || parts.next();
        let (magic, token, host, port, ips) = (next()?, next()?, next()?, next()?, next()?);
        if magic != "hg1" || next().is_some() || !token.is_ascii() || token.len() > 128 {
            return None;
        }
        let pair = |at: usize| u8::from_str_radix(token.get(at..at + 2)?, 16).ok();
        Some(Self {
            token: (0..token.len()).step_by(2).map(pair).collect::<Option<_>>()?,
            host: host.to_owned(),
            port: port.parse().ok()?,
            ips: ips.split(',').map(|ip| ip.parse().ok()).collect::<Option<_>>()?,
        })
    }

    /// A connection to the hub. On the same machine over loopback, else over whichever address answers.
    pub(crate) fn connect(
        &self,
        rank: u32,
        deadline: Instant,
        notice: Notice,
    ) -> Result<TcpStream, Error> {
        let is_near = self.host == host::identity();
        let ips: Vec<IpAddr> =
            self.ips.iter().copied().filter(|ip| ip.is_loopback() == is_near).collect();
        let ips = if ips.is_empty() { &self.ips } else { &ips };
        let targets: Vec<SocketAddr> =
            ips.iter().map(|ip| SocketAddr::new(*ip, self.port)).collect();
        knock(&targets, deadline, &format!("rank {rank} at {}", self.shown(ips)), notice)
    }

    fn shown(&self, ips: &[IpAddr]) -> String {
        let ips: Vec<String> =
            ips.iter().map(|ip| SocketAddr::new(*ip, self.port).to_string()).collect();
        ips.join(" or ")
    }
}

fn random<const LEN: usize>() -> Result<[u8; LEN], Error> {
    let mut bytes = [0; LEN];
    getrandom::fill(&mut bytes).map_err(|why| Error::Os {
        call: "getrandom".into(),
        source: std::io::Error::other(why.to_string()),
    })?;
    Ok(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Connects to the first that answers, again and again until the deadline.
fn knock(
    targets: &[SocketAddr],
    deadline: Instant,
    whom: &str,
    mut notice: Notice,
) -> Result<TcpStream, Error> {
    let mut last = std::io::Error::from(std::io::ErrorKind::TimedOut);
    loop {
        for target in targets {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Os { call: format!("connecting to {whom}"), source: last });
            }
            match TcpStream::connect_timeout(target, left.min(ATTEMPT)) {
                Ok(stream) if is_own_end(&stream) => {
                    // Rank 0 may want the port at once.
                    let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
                    last = std::io::ErrorKind::ConnectionRefused.into();
                }
                Ok(stream) => {
                    host::keep_alive(&stream);
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        notice.look(|| format!("{whom} does not answer yet ({last}): still waiting"));
        std::thread::sleep(PAUSE);
    }
}

/// Where nobody listens at a port that the system also gives to those who connect, TCP may connect a socket to itself.
fn is_own_end(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(own), Ok(peer)) if own == peer)
}

/// Where ranks meet without a launcher's help.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Rendezvous {
    /// Rank 0 leaves its address in a folder that all see.
    Folder(PathBuf),
    /// Rank 0 listens there.
    Tcp(String),
}

impl Rendezvous {
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        if let Some(path) = text.strip_prefix("dir:").filter(|path| !path.is_empty()) {
            return Ok(Self::Folder(path.into()));
        }
        match text.strip_prefix("tcp:").map(|rest| rest.trim_start_matches('/')) {
            Some(at)
                if at.rsplit_once(':').is_some_and(|(host, port)| {
                    !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
                }) =>
            {
                Ok(Self::Tcp(at.to_owned()))
            }
            _ => Err(Error::Environment(format!(
                "HG_JOB_RENDEZVOUS: `{text}` is neither dir:FOLDER nor tcp:HOST:PORT"
            ))),
        }
    }

    /// Whose hub a rank connects to. A folder has room for many addresses; at a known port all meet.
    pub(crate) fn branch(&self, rank: u32, size: u32) -> Branch {
        match self {
            Self::Folder(_) => Branch::of(rank, size),
            Self::Tcp(_) if rank == 0 => Branch { ranks: 0..size, parent: None },
            Self::Tcp(_) => Branch { ranks: rank..rank + 1, parent: Some(0) },
        }
    }

    /// A rank makes its hub's address known. A folder keeps it until the job is together.
    pub(crate) fn publish(&self, rank: u32, address: &Address) -> Result<Option<Published>, Error> {
        let Self::Folder(folder) = self else { return Ok(None) };
        let name = file_of(rank);
        // Others may write to the folder: nobody knows the name before, and what is there is not written to.
        let draft = folder.join(format!(".{name}.{}", hex(&random::<8>()?)));
        let target = folder.join(name);
        let write = || -> std::io::Result<()> {
            let mut options = fs::OpenOptions::new();
            // It holds the token: nobody else's to read.
            let mut file = options.write(true).create_new(true).mode(0o600).open(&draft)?;
            file.write_all(address.to_text().as_bytes())?;
            file.sync_all()?;
            // Whole or not at all, and never over the address of another job.
            fs::hard_link(&draft, &target)
        };
        let written = write();
        let _ = fs::remove_file(&draft);
        written.map_err(|source| match source.kind() {
            std::io::ErrorKind::AlreadyExists => Error::Environment(format!(
                "{} exists: a job meets there now, or one was killed there; each needs a folder of its own",
                target.display()
            )),
            _ => Error::Os { call: format!("writing {}", target.display()), source },
        })?;
        Ok(Some(Published(target)))
    }

    /// The other ranks' way in: a connection, and the token.
    pub(crate) fn find(
        &self,
        rank: u32,
        token: &str,
        deadline: Instant,
        within: Duration,
        notice: Notice,
    ) -> Result<(TcpStream, Vec<u8>), Error> {
        match self {
            Self::Folder(folder) => {
                let file = folder.join(file_of(rank));
                let text = read_when_there(&file, rank, deadline, within, notice)?;
                let address = Address::parse(&text)?;
                let stream = address.connect(rank, deadline, notice)?;
                Ok((stream, address.token))
            }
            Self::Tcp(at) => {
                let targets: Vec<SocketAddr> =
                    at.to_socket_addrs().map_err(Error::os(format!("looking up {at}")))?.collect();
                Ok((
                    knock(&targets, deadline, &format!("rank 0 at {at}"), notice)?,
                    token.as_bytes().to_vec(),
                ))
            }
        }
    }
}

/// A hub's file in a folder.
fn file_of(rank: u32) -> String {
    if rank == 0 { FILE.to_owned() } else { format!("{FILE}.{rank}") }
}

const FILE: &str = "hg-job-hub";

/// Taken away when dropped.
#[derive(Debug)]
pub(crate) struct Published(PathBuf);

impl Drop for Published {
    fn drop(&mut self) {
        // Somebody else may have cleaned up.
        let _ = fs::remove_file(&self.0);
    }
}

fn read_when_there(
    path: &Path,
    rank: u32,
    deadline: Instant,
    within: Duration,
    mut notice: Notice,
) -> Result<String, Error> {
    loop {
        match fs::read_to_string(path) {
            Ok(text) => return Ok(text),
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::os(format!("reading {}", path.display()))(error));
            }
            Err(_) if deadline <= Instant::now() => {
                return Err(Error::Environment(format!(
                    "rank {rank} did not join within {within:?}: there is no {}",
                    path.display()
                )));
            }
            Err(_) => {
                let words =
                    || format!("rank {rank} has not left {} yet: still waiting", path.display());
                notice.look(words);
                std::thread::sleep(PAUSE);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn an_address_survives_being_a_text() {
        let address = Address::here(&TcpListener::bind("0.0.0.0:0").unwrap()).unwrap();
        let text = address.to_text();
        assert!(text.len() < 768 && !text.contains([' ', '=', ';']), "{text}");
        assert_eq!(Address::parse(&text).unwrap(), address);
    }

    #[test]
    fn a_hub_is_found_where_it_listens_and_nowhere_else() {
        let listener = TcpListener::bind("127.0.0.2:0").unwrap();
        let address = Address::here(&listener).unwrap();
        let (deadline, notice) = (Instant::now() + LONG, Notice::new(None, LONG));
        let stream = address.connect(0, deadline, notice).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), listener.local_addr().unwrap());
    }

    #[test]
    fn a_socket_that_met_itself_is_no_connection() {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        socket.connect(&socket.local_addr().unwrap()).unwrap();
        assert!(is_own_end(&socket.into()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(!is_own_end(&TcpStream::connect(listener.local_addr().unwrap()).unwrap()));
    }

    #[test]
    fn a_link_that_somebody_put_into_the_folder_is_not_written_through() {
        let folder = std::env::temp_dir().join(format!("hg-job-planted-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let victim = folder.join("victim");
        fs::write(&victim, "whole").unwrap();
        let planted = folder.join(format!(".{FILE}.{}", std::process::id()));
        std::os::unix::fs::symlink(&victim, planted).unwrap();
        let address = Address::here(&TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
        let published = Rendezvous::Folder(folder.clone()).publish(0, &address).unwrap();
        let texts = [&victim, &folder.join(FILE)].map(|path| fs::read_to_string(path).unwrap());
        drop(published);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(texts, ["whole".to_owned(), address.to_text()]);
    }

    #[test]
    fn texts_that_are_no_address_are_refused() {
        for wrong in [
            "",
            "hg1",
            "hg2/00/h/1/127.0.0.1",
            "hg1/0/h/1/127.0.0.1",
            "hg1/00/h/99999/::1",
            "hg1/00/h/1/x",
        ] {
            let said = Address::parse(wrong).unwrap_err().to_string();
            assert_eq!(said, format!("`{wrong}` is no address of rank 0's"));
        }
    }

    #[test]
    fn a_rendezvous_is_a_folder_or_an_address() {
        assert_eq!(Rendezvous::parse("dir:/x").unwrap(), Rendezvous::Folder("/x".into()));
        assert_eq!(Rendezvous::parse("tcp:h:1").unwrap(), Rendezvous::Tcp("h:1".into()));
        assert_eq!(Rendezvous::parse("tcp://h:1").unwrap(), Rendezvous::Tcp("h:1".into()));
        for wrong in ["", "dir:", "/x", "tcp:h", "tcp::1", "tcp:h:x", "tcp:h:0"] {
            let said = Rendezvous::parse(wrong).unwrap_err().to_string();
            assert_eq!(
                said,
                format!("HG_JOB_RENDEZVOUS: `{wrong}` is neither dir:FOLDER nor tcp:HOST:PORT")
            );
        }
    }

    proptest! {
        #[test]
        fn any_text_is_an_address_or_not(text in "\\PC{0,60}") {
            let _ = Address::from_text(&text);
        }
    }
}
