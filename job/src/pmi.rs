//! The client of a process management interface: MPICH's hydra, Intel MPI, Slurm's `--mpi=pmi2`.
//!
//! Only what is needed to meet: who am I, one value of rank 0's, one barrier; later abort and finalize.
//! Everything else goes over the hub.

mod roll_call;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream, ToSocketAddrs as _},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use self::{
    roll_call::RollCall,
    wire::{Fields, MESSAGE_MAX, VALUE_MAX},
};
use crate::{
    Error, Via,
    detect::{Place, Server},
    foreign,
    meeting::ATTEMPT,
    stream::{Stream, is_timeout},
};

#[derive(Debug)]
pub(crate) struct Client {
    stream: Stream,
    input: Vec<u8>,
    dialect: Via,
    deadline: Instant,
    within: Duration,
    place: Place,
    /// The name of the key-value space, or of the job.
    space: String,
}

/// What rank 0's address is put under.
const KEY: &str = "hg-job-hub";

/// Where a rank shows the address of its hub.
fn key_of(rank: u32) -> String {
    if rank == 0 { KEY.to_owned() } else { format!("{KEY}.{rank}") }
}
/// How long a server may take to hear an abort or a goodbye.
const PARTING: Duration = Duration::from_secs(5);

impl Client {
    /// Says hello to the server.
    pub(crate) fn connect(
        server: &Server,
        dialect: Via,
        deadline: Instant,
        within: Duration,
    ) -> Result<Self, Error> {
        let (stream, place) = match server {
            Server::Fd { fd, place } => {
                let fd = foreign::inherited(*fd).map_err(Error::os(format!("PMI_FD {fd}")))?;
                // It need not be a unix socket: only reads, writes and deadlines are asked of it.
                (Stream::Unix(UnixStream::from(fd)), Some(*place))
            }
            Server::Port { address, .. } => {
                let stream = look_up(address)
                    .and_then(|targets| connect(&targets, deadline))
                    .map_err(Error::os(format!("PMI_PORT {address}")))?;
                (Stream::Tcp(stream), None)
            }
        };
        let place = place.unwrap_or(Place { rank: 0, size: 0 });
        let space = String::new();
        let mut client =
            Self { stream, input: Vec::new(), dialect, deadline, within, place, space };
        if let Server::Port { id, .. } = server {
            client.introduce(*id)?;
        }
        client.init()?;
        Ok(client)
    }

    /// Over a port the server first tells rank and size.
    fn introduce(&mut self, id: u32) -> Result<(), Error> {
        let answer = self.ask_line("initack", &[("pmiid", &id.to_string())], "initack")?;
        if !answer.is_good() {
            return Err(self.error("the server does not know this PMI_ID"));
        }
        let mut told = [None; 2];
        for name in ["size", "rank", "debug"] {
            let fields = self.next_line("initack", "set")?;
            match name {
                "size" => told[0] = fields.number("size"),
                "rank" => told[1] = fields.number("rank"),
                _ => {}
            }
        }
        let [Some(size), Some(rank)] = told else {
            return Err(self.error("the server does not say which rank this is"));
        };
        if rank >= size {
            return Err(self.error(&format!("the server says that this is rank {rank} of {size}")));
        }
        self.place = Place { rank, size };
        Ok(())
    }

    fn init(&mut self) -> Result<(), Error> {
        let (version, subversion) = if self.dialect == Via::Pmi2 { ("2", "0") } else { ("1", "1") };
        let fields = [("pmi_version", version), ("pmi_subversion", subversion)];
        let answer = self.ask_line("init", &fields, "response_to_init")?;
        if !answer.is_good() || answer.text("pmi_version") != Some(version) {
            let other = answer.text("pmi_version").unwrap_or("none");
            let why = format!(
                "the server speaks version {other}, not {version}: try HG_JOB_VIA=pmi1 or pmi2"
            );
            return Err(self.error(&why));
        }
        self.space =
            if self.dialect == Via::Pmi2 { self.init_second()? } else { self.init_first()? };
        Ok(())
    }

    fn init_first(&mut self) -> Result<String, Error> {
        let answer = self.ask_line("get_my_kvsname", &[], "my_kvsname")?;
        let name = answer.text("kvsname").filter(|name| !name.is_empty());
        name.map(str::to_owned).ok_or_else(|| self.error("the server gives no name of the job"))
    }

    fn init_second(&mut self) -> Result<String, Error> {
        let job = std::env::var("PMI_JOBID").unwrap_or_default();
        let rank = self.place.rank.to_string();
        let fields = [("pmijobid", &job[..]), ("pmirank", &rank), ("threaded", "FALSE")];
        let answer = self.ask_packet("fullinit", &fields)?;
        let told = (answer.number("rank"), answer.number("size"));
        if told != (Some(self.place.rank), Some(self.place.size)) {
            let Place { rank, size } = self.place;
            let why = format!("the server's idea of rank and size differs from {rank} and {size}");
            return Err(self.error(&why));
        }
        let answer = self.ask_packet("job-getid", &[])?;
        answer
            .text("jobid")
            .map(str::to_owned)
            .ok_or_else(|| self.error("the server gives no name of the job"))
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// Shows an address, if there is one, and learns that of another rank, if one is wanted. One barrier.
    pub(crate) fn meet(
        &mut self,
        address: Option<&str>,
        from: Option<u32>,
    ) -> Result<Option<String>, Error> {
        if let Some(address) = address {
            self.put(&key_of(self.place.rank), address)?;
        }
        let nodes = self.mapping()?;
        let here = RollCall::answer(&self.space, self.place.rank, self.place.size);
        // MPICH's barrier in the second dialect ends at once: there the question for rank 0's value waits.
        let met =
            self.barrier().and_then(|()| from.map(|rank| self.get(&key_of(rank))).transpose());
        match met {
            Ok(None) => Ok(None),
            Ok(Some(Some(value))) => Ok(Some(value)),
            Ok(Some(None)) => {
                let rank = from.unwrap_or(0);
                Err(self.error(&format!("rank {rank} has shown no address")))
            }
            Err(Trouble::Late) => Err(here.missing(nodes.as_deref(), self.within)),
            Err(Trouble::Error(error)) => Err(error),
        }
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), Error> {
        assert!(value.len() <= VALUE_MAX, "an address is short");
        let answer = if self.dialect == Via::Pmi2 {
            self.ask_packet("kvs-put", &[("key", key), ("value", value)])?
        } else {
            let space = self.space.clone();
            self.ask_line(
                "put",
                &[("kvsname", &space), ("key", key), ("value", value)],
                "put_result",
            )?
        };
        if answer.is_good() { Ok(()) } else { Err(self.error("the server refuses a value")) }
    }

    fn get(&mut self, key: &str) -> Result<Option<String>, Trouble> {
        let space = self.space.clone();
        let answer = if self.dialect == Via::Pmi2 {
            let fields = [("jobid", &space[..]), ("srcid", "-1"), ("key", key)];
            self.ask("kvs-get", &fields, "kvs-get-response")?
        } else {
            self.ask("get", &[("kvsname", &space), ("key", key)], "get_result")?
        };
        if answer.text("flag").is_some_and(|flag| flag != "TRUE") {
            return Ok(None);
        }
        Ok(answer.text("value").filter(|_| answer.is_good()).map(str::to_owned))
    }

    fn barrier(&mut self) -> Result<(), Trouble> {
        let answer = if self.dialect == Via::Pmi2 {
            self.ask("kvs-fence", &[], "kvs-fence-response")?
        } else {
            self.ask("barrier_in", &[], "barrier_out")?
        };
        let failed = || Trouble::Error(self.error("the server's barrier failed"));
        if answer.is_good() { Ok(()) } else { Err(failed()) }
    }

    /// The node of each rank, if the launcher tells. Only for sentences about who is missing.
    fn mapping(&mut self) -> Result<Option<Vec<u32>>, Error> {
        const NAME: &str = "PMI_process_mapping";
        let text = if self.dialect == Via::Pmi2 {
            let answer = self.ask_packet("info-getjobattr", &[("key", NAME)])?;
            answer.text("value").map(str::to_owned)
        } else {
            self.get(NAME).map_err(|trouble| self.plain("get", trouble))?
        };
        Ok(text.and_then(|text| wire::mapping(&text, self.place.size)))
    }

    /// Asks the launcher to end the job.
    pub(crate) fn abort(&mut self, code: u8, why: &str) {
        self.deadline = Instant::now() + PARTING;
        let text = if self.dialect == Via::Pmi2 {
            wire::packet("abort", &[("isworld", "TRUE"), ("msg", &why.replace(['\n', ';'], " "))])
        } else {
            wire::line("abort", &[("exitcode", &code.to_string())])
        };
        // A server that is gone ends the job by that.
        let _ = self.send("abort", &text);
    }

    /// Says that this process ends well. Not for processes in which MPI does the same.
    pub(crate) fn finalize(&mut self) -> Result<(), Error> {
        self.deadline = Instant::now() + PARTING;
        if self.dialect == Via::Pmi2 {
            self.ask_packet("finalize", &[]).map(drop)
        } else {
            self.ask_line("finalize", &[], "finalize_ack").map(drop)
        }
    }

    fn ask_line(
        &mut self,
        command: &str,
        fields: &[(&str, &str)],
        wanted: &str,
    ) -> Result<Fields, Error> {
        self.send(command, &wire::line(command, fields))?;
        self.next_line(command, wanted)
    }

    /// A line whether or not PMI-2 is settled: both begin with lines.
    fn next_line(&mut self, command: &str, wanted: &str) -> Result<Fields, Error> {
        let text = self.take_line(command).map_err(|trouble| self.plain(command, trouble))?;
        let answer = Fields::of_line(&text);
        self.expect(command, wanted, answer, &text)
    }

    fn ask_packet(&mut self, command: &str, fields: &[(&str, &str)]) -> Result<Fields, Error> {
        let wanted = format!("{command}-response");
        self.ask(command, fields, &wanted).map_err(|trouble| self.plain(command, trouble))
    }

    /// In the dialect that was settled.
    fn ask(
        &mut self,
        command: &str,
        fields: &[(&str, &str)],
        wanted: &str,
    ) -> Result<Fields, Trouble> {
        let (answer, text) = if self.dialect == Via::Pmi2 {
            self.send(command, &wire::packet(command, fields)).map_err(Trouble::Error)?;
            let text = self.take_packet(command)?;
            (Fields::of_packet(&text), text)
        } else {
            self.send(command, &wire::line(command, fields)).map_err(Trouble::Error)?;
            let text = self.take_line(command)?;
            (Fields::of_line(&text), text)
        };
        self.expect(command, wanted, answer, &text).map_err(Trouble::Error)
    }

    fn expect(
        &self,
        command: &str,
        wanted: &str,
        answer: Fields,
        text: &str,
    ) -> Result<Fields, Error> {
        if answer.text("cmd") == Some(wanted) {
            return Ok(answer);
        }
        let shown: String = text.chars().take(80).flat_map(char::escape_default).collect();
        Err(self.error(&format!(
            "the server answers `{shown}` to `{command}`, where cmd={wanted} was due"
        )))
    }

    fn send(&mut self, command: &str, text: &str) -> Result<(), Error> {
        let deadline = self.deadline;
        let sent = self.in_time(deadline, |stream| stream.write_all(text.as_bytes()));
        sent.map_err(|why| self.error(&format!("sending `{command}` to the server failed: {why}")))
    }

    /// The deadline is the socket's, which MPI in this process has, too: it is taken back.
    fn in_time<T>(
        &mut self,
        deadline: Instant,
        work: impl FnOnce(&mut Stream) -> io::Result<T>,
    ) -> io::Result<T> {
        self.stream.set_deadline(Some(deadline))?;
        let done = work(&mut self.stream);
        self.stream.set_deadline(None)?;
        done
    }

    fn take_line(&mut self, command: &str) -> Result<String, Trouble> {
        let is_end =
            |bytes: &[u8]| Ok(bytes.iter().position(|byte| *byte == b'\n').map(|end| end + 1));
        let bytes = self.take(command, is_end)?;
        Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
    }

    fn take_packet(&mut self, command: &str) -> Result<String, Trouble> {
        let garbage = "the server's answer has no length";
        let is_end = |bytes: &[u8]| match bytes.get(..6) {
            None => Ok(None),
            Some(head) => {
                let length = wire::packet_length(head).ok_or(garbage)?;
                Ok((bytes.len() >= 6 + length).then_some(6 + length))
            }
        };
        let bytes = self.take(command, is_end)?;
        Ok(String::from_utf8_lossy(&bytes[6..]).into_owned())
    }

    /// Reads until `is_end` knows where a message ends.
    fn take(
        &mut self,
        command: &str,
        is_end: impl Fn(&[u8]) -> Result<Option<usize>, &'static str>,
    ) -> Result<Vec<u8>, Trouble> {
        loop {
            match is_end(&self.input) {
                Ok(Some(end)) => return Ok(self.input.drain(..end).collect()),
                Ok(None) if self.input.len() <= MESSAGE_MAX => {}
                Ok(None) => {
                    return Err(Trouble::Error(self.error("the server's answer has no end")));
                }
                Err(why) => return Err(Trouble::Error(self.error(why))),
            }
            let mut chunk = [0; 4096];
            let read = if self.deadline <= Instant::now() {
                return Err(Trouble::Late);
            } else {
                self.in_time(self.deadline, |stream| stream.read(&mut chunk))
            };
            match read {
                Ok(0) => {
                    let why = format!(
                        "the server closed the connection instead of answering `{command}`"
                    );
                    return Err(Trouble::Error(self.error(&why)));
                }
                Ok(count) => self.input.extend_from_slice(&chunk[..count]),
                Err(error)
                    if error.kind() == std::io::ErrorKind::Interrupted || is_timeout(&error) => {}
                Err(error) => {
                    let why = format!("reading the answer to `{command}` failed: {error}");
                    return Err(Trouble::Error(self.error(&why)));
                }
            }
        }
    }

    fn plain(&self, command: &str, trouble: Trouble) -> Error {
        match trouble {
            Trouble::Error(error) => error,
            Trouble::Late => self
                .error(&format!("the server did not answer `{command}` within {:?}", self.within)),
        }
    }

    fn error(&self, why: &str) -> Error {
        let launcher = if self.dialect == Via::Pmi2 { "PMI-2" } else { "PMI-1" };
        Error::Launcher { launcher, why: why.to_owned() }
    }
}

fn look_up(address: &str) -> io::Result<Vec<SocketAddr>> {
    Ok(address.to_socket_addrs()?.collect())
}

/// The first of a name's addresses that takes a connection before the deadline.
fn connect(targets: &[SocketAddr], deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::ErrorKind::AddrNotAvailable.into();
    for (at, target) in targets.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        // One that does not answer leaves time for the others.
        let within = if at + 1 < targets.len() { ATTEMPT.min(left / 2) } else { left };
        // Zero is no timeout.
        match TcpStream::connect_timeout(target, within.max(Duration::from_millis(1))) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Why there is no message.
enum Trouble {
    Late,
    Error(Error),
}
