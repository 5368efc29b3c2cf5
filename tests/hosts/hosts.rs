//! Hosts on one machine: network namespaces, joined by veth pairs and a switch.
//!
//! ```text
//!   host 0              switch                host 1
//!   eth0 10.77.0.1 --- p0n0 [ net0 ] p1n0 --- eth0 10.77.0.2      network 0, fd00:77::1, fd00:77::2
//!   eth1 10.77.1.1 --- p0n1 [ net1 ] p1n1 --- eth1 10.77.1.2      network 1, fd00:77:1::1, fd00:77:1::2
//! ```
//! The switch is a namespace with a bridge for each network, and has no address. A cable is cut at its port, so
//! that a host notices nothing of it but silence. All addresses exist inside the namespaces only. Every host has
//! its own `/etc/hosts`, which names all of them: `host0`, `host1`.
//!
//! # Nothing is left behind
//! A namespace has no name. It lives as long as a process in it: its *keeper*, `cat`, which ends when its input
//! does, and that is a pipe of the test's. Whichever way the test ends, SIGKILL included, the kernel then takes
//! namespaces, cables and the private `/etc/hosts` away.
//!
//! # Rights
//! Root may do this, and others where the kernel gives user namespaces to everybody. Otherwise [`Hosts::new`]
//! says in words what is missing: a test then prints `SKIPPED: TEST: WORDS` and returns, see [`or_skip`].
//!
//! This file stands alone, so that tests of other packages can take it in by `#[path]`.

use std::{
    ffi::OsStr,
    fmt, fs,
    io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, Ipv6Addr},
    path::Path,
    process::{Child, ChildStdin, Command, Output, Stdio},
    thread,
};

/// Hosts at most: one number of an address stands for each.
const HOSTS_MAX: usize = 200;

/// Why there can be no hosts here: the words of a skip.
#[derive(Debug)]
pub(crate) struct Missing(String);

impl fmt::Display for Missing {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// What there is, or `None` after the line that counts as a skip of the test that runs.
pub(crate) fn or_skip<T>(result: Result<T, Missing>) -> Option<T> {
    result.inspect_err(|missing| skip(missing)).ok()
}

/// Says that the test that runs is skipped, and why.
#[expect(clippy::print_stderr, reason = "this line is how skips are counted")]
pub(crate) fn skip(why: impl fmt::Display) {
    eprintln!("SKIPPED: {}: {why}", thread::current().name().unwrap_or("a test"));
}

/// Hosts and the switch between them. Gone when dropped; processes on them should be gone before.
#[derive(Debug)]
pub(crate) struct Hosts {
    hosts: Vec<Host>,
    switch: Keeper,
    networks: usize,
}

impl Hosts {
    /// Hosts on one network.
    pub(crate) fn new(count: usize) -> Result<Self, Missing> {
        Self::with_networks(count, 1)
    }

    /// Hosts with an interface in each of several networks.
    pub(crate) fn with_networks(count: usize, networks: usize) -> Result<Self, Missing> {
        assert!(count <= HOSTS_MAX && networks <= HOSTS_MAX, "addresses have no more room");
        let switch = Keeper::start(None)?;
        for network in 0..networks {
            let bridge = format!("link add net{network} type bridge\nlink set net{network} up");
            switch.ip(&bridge).map_err(|why| not_joined(&why))?;
        }
        let mut hosts = Self { hosts: Vec::new(), switch, networks };
        for index in 0..count {
            let host = hosts.start(index, count)?;
            hosts.hosts.push(host);
        }
        Ok(hosts)
    }

    pub(crate) fn host(&self, index: usize) -> &Host {
        &self.hosts[index]
    }

    /// The cable of a host's interface in network 0.
    pub(crate) fn link(&self, host: usize) -> Link<'_> {
        self.link_of(host, 0)
    }

    /// The cable of a host's interface in one of the networks.
    pub(crate) fn link_of(&self, host: usize, network: usize) -> Link<'_> {
        Link { host: &self.hosts[host], switch: &self.switch, network }
    }

    /// Takes the power from a host, without a word to anybody, and starts it again: a new namespace at the old
    /// addresses. Processes that were there must have been killed, with its cables cut before.
    pub(crate) fn restart(&mut self, host: usize) {
        for network in 0..self.networks {
            must(self.switch.ip(&format!("link del {}", port(host, network))));
        }
        let again = self.start(host, self.hosts.len()).expect("it could be started before");
        self.hosts[host] = again;
    }

    /// The processes that hold the namespaces: those of the hosts, then that of the switch.
    pub(crate) fn keepers(&self) -> Vec<u32> {
        let keepers = self.hosts.iter().map(|host| &host.keeper).chain([&self.switch]);
        keepers.map(Keeper::pid).collect()
    }

    /// A namespace with a cable to each network.
    fn start(&self, index: usize, count: usize) -> Result<Host, Missing> {
        let keeper = Keeper::start(Some(&self.switch))?;
        let mut host = Host { index, keeper, six: Ok(()) };
        must(host.keeper.ip("link set lo up"));
        for network in 0..self.networks {
            let (port, card, pid) = (port(index, network), card(network), host.keeper.pid());
            // The same after a restart: others have it in their tables.
            let mac = format!("02:00:00:77:{network:02x}:{index:02x}");
            let cable = format!(
                "link add {port} type veth peer name {card} address {mac} netns {pid}\n\
                 link set {port} master net{network} up"
            );
            self.switch.ip(&cable).map_err(|why| not_joined(&why))?;
            let (four, six) = (host.ip4(network), host.ip6(network));
            let up = format!("addr add {four}/24 dev {card}\nlink set {card} up");
            must(host.keeper.ip(&up));
            let six = host.keeper.ip(&format!("addr add {six}/64 dev {card} nodad"));
            host.six = std::mem::replace(&mut host.six, Ok(())).and(six);
        }
        host.name_all(count);
        Ok(host)
    }
}

/// One host.
#[derive(Debug)]
pub(crate) struct Host {
    index: usize,
    keeper: Keeper,
    six: Result<(), String>,
}

impl Host {
    /// A program on this host, which runs as a child of this process under the id that it is started with. Its
    /// working directory is `/`.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.keeper.command(program)
    }

    /// The name that each host knows it by.
    pub(crate) fn name(&self) -> String {
        format!("host{}", self.index)
    }

    pub(crate) fn ip4(&self, network: usize) -> Ipv4Addr {
        let byte = |number: usize| u8::try_from(number).expect("HOSTS_MAX fits");
        Ipv4Addr::new(10, 77, byte(network), byte(self.index + 1))
    }

    pub(crate) fn ip6(&self, network: usize) -> Ipv6Addr {
        let word = |number: usize| u16::try_from(number).expect("HOSTS_MAX fits");
        Ipv6Addr::new(0xfd00, 0x77, word(network), 0, 0, 0, 0, word(self.index + 1))
    }

    /// Whether it has its IPv6 addresses; if not, why.
    pub(crate) fn has_ip6(&self) -> Result<(), Missing> {
        self.six.clone().map_err(|why| Missing(format!("the kernel has no IPv6: {why}")))
    }

    /// TCP segments that its kernel has sent again since the host was started.
    pub(crate) fn retransmits(&self) -> u64 {
        let text = self.keeper.network_file("snmp");
        let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
        let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
        let mut both = names.split_whitespace().zip(values.split_whitespace());
        let found = both.find(|(name, _)| *name == "RetransSegs").expect("every kernel counts it");
        found.1.parse().expect("a number")
    }

    /// Whether a connection of this host's has bytes that its peer has no space for.
    pub(crate) fn has_full_peer(&self) -> bool {
        // The fourth field's `tr`: 4 is the timer of window probes.
        let table = self.keeper.network_file("tcp");
        table
            .lines()
            .any(|line| line.split_whitespace().nth(5).is_some_and(|it| it.starts_with("04:")))
    }

    /// Its own `/etc/hosts`, in its own mount namespace.
    fn name_all(&self, count: usize) {
        let mut text = "127.0.0.1 localhost\n::1 localhost\n".to_owned();
        for index in 0..count {
            text += &format!("10.77.0.{} host{index}\n", index + 1);
        }
        let mut command = self.keeper.command("sh");
        // What is mounted stays when its name is gone.
        let script = "set -e; at=$(mktemp); trap 'rm -f \"$at\"' EXIT; cat > \"$at\"; \
                      chmod 644 \"$at\"; mount --bind \"$at\" /etc/hosts";
        must(fed(command.args(["-c", script]), &text).map(drop));
    }
}

/// The cable between a host and the switch of a network.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link<'a> {
    host: &'a Host,
    switch: &'a Keeper,
    network: usize,
}

impl Link<'_> {
    /// Cuts it: what is sent from now on is lost, and nobody is told.
    pub(crate) fn down(&self) {
        must(self.switch.ip(&format!("link set {} down", port(self.host.index, self.network))));
    }

    /// Mends it.
    pub(crate) fn up(&self) {
        must(self.switch.ip(&format!("link set {} up", port(self.host.index, self.network))));
    }

    /// Bytes that the host has received and sent by it.
    pub(crate) fn traffic(&self) -> u64 {
        let text = self.host.keeper.network_file("dev");
        let card = format!("{}:", card(self.network));
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix(&card));
        let fields: Vec<&str> = line.expect("the card is there").split_whitespace().collect();
        let number = |at: usize| fields[at].parse::<u64>().expect("a number");
        // Eight numbers of what was received, then eight of what was sent.
        number(0) + number(8)
    }

    /// Puts a queueing discipline of the kernel's on both of its ends: `tbf rate 100mbit burst 32k limit 64k`.
    pub(crate) fn shape(&self, discipline: &str) -> Result<(), Missing> {
        let kind = discipline.split(' ').next().unwrap_or_default();
        for (keeper, device) in self.ends() {
            let mut command = keeper.command("tc");
            command.args(["qdisc", "replace", "dev", &device, "root"]);
            command.args(discipline.split(' '));
            fed(&mut command, "")
                .map_err(|why| Missing(format!("the kernel cannot shape by {kind}: {why}")))?;
        }
        Ok(())
    }

    /// Loses whatever is sent to the host; what it sends arrives. `shape("pfifo")` mends it.
    pub(crate) fn deafen(&self) -> Result<(), Missing> {
        let mut command = self.switch.command("tc");
        let device = port(self.host.index, self.network);
        // No packet is as short as that.
        let narrow = ["root", "tbf", "rate", "8bit", "burst", "1", "limit", "1"];
        command.args(["qdisc", "replace", "dev", &device]).args(narrow);
        let shaped = fed(&mut command, "").map(drop);
        shaped.map_err(|why| Missing(format!("the kernel cannot shape by tbf: {why}")))
    }

    /// Packets that the queueing disciplines of both ends have dropped.
    pub(crate) fn dropped(&self) -> u64 {
        let of = |(keeper, device): (&Keeper, String)| -> u64 {
            let mut command = keeper.command("tc");
            let shown = fed(command.args(["-s", "qdisc", "show", "dev", &device]), "");
            let shown = shown.unwrap_or_else(|why| panic!("{why}"));
            let number = shown.split("dropped ").nth(1).and_then(|rest| rest.split(',').next());
            number.expect("tc counts them").parse().expect("a number")
        };
        self.ends().into_iter().map(of).sum()
    }

    fn ends(&self) -> [(&Keeper, String); 2] {
        let port = port(self.host.index, self.network);
        [(&self.host.keeper, card(self.network)), (self.switch, port)]
    }
}

/// Interface of a host.
fn card(network: usize) -> String {
    format!("eth{network}")
}

/// The switch's end of a host's cable.
fn port(host: usize, network: usize) -> String {
    format!("p{host}n{network}")
}

/// A process that does nothing in namespaces of its own, which live as long as it does.
#[derive(Debug)]
struct Keeper {
    process: Child,
    input: Option<ChildStdin>,
    /// Whether they belong to a user namespace, in which anybody is root.
    in_user: bool,
}

impl Keeper {
    /// The first one; or one beside another.
    fn start(beside: Option<&Self>) -> Result<Self, Missing> {
        match beside {
            Some(other) if other.in_user => Self::run(other.enter(&["--user"], "unshare"), true),
            Some(_) => Self::run(Command::new("unshare"), false),
            None => Self::run(Command::new("unshare"), false).or_else(|refused| {
                let mut command = Command::new("unshare");
                command.args(["--user", "--map-root-user"]);
                Self::run(command, true).map_err(|_also_refused| refused)
            }),
        }
    }

    fn run(mut command: Command, in_user: bool) -> Result<Self, Missing> {
        command.args(["--net", "--mount", "--", "cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(|error| not_started(&command, &error))?;
        let input = process.stdin.take();
        Self { process, input, in_user }.answers()
    }

    /// It says what it is told as soon as it is there.
    fn answers(mut self) -> Result<Self, Missing> {
        let mut line = String::new();
        let input = self.input.as_mut().expect("open until it is dropped");
        // What it says to this, or why it ended instead, is read below.
        let _told = writeln!(input, "there?");
        let said = self.process.stdout.as_mut().expect("piped above");
        if BufReader::new(said).read_line(&mut line).is_ok_and(|len| len > 0) {
            return Ok(self);
        }
        let mut why = String::new();
        let error = self.process.stderr.as_mut().expect("piped above");
        let _as_far_as_it_can_be_read = error.read_to_string(&mut why);
        let why = why.trim().replace('\n', "; ");
        Err(Missing(format!("no right to make network namespaces: {why}")))
    }

    fn pid(&self) -> u32 {
        self.process.id()
    }

    /// A command that is run in some of its namespaces.
    fn enter(&self, namespaces: &[&str], program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.pid().to_string(), "--preserve-credentials"]);
        command.args(namespaces).arg("--").arg(program);
        command
    }

    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let namespaces = ["--user", "--net", "--mount"];
        self.enter(if self.in_user { &namespaces } else { &namespaces[1..] }, program)
    }

    /// Runs commands of `ip`, one a line.
    fn ip(&self, lines: &str) -> Result<(), String> {
        fed(self.command("ip").args(["-batch", "-"]), lines).map(drop)
    }

    fn network_file(&self, name: &str) -> String {
        let path = format!("/proc/{}/net/{name}", self.pid());
        fs::read_to_string(path).expect("the keeper lives")
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.input.take());
        let _it_may_have_been_killed = self.process.kill();
        let _it_may_have_been_killed = self.process.wait();
    }
}

/// Runs a command with this input; what it says, or why it failed.
fn fed(command: &mut Command, input: &str) -> Result<String, String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().map_err(|error| not_started(command, &error).0)?;
    let mut pipe = process.stdin.take().expect("piped above");
    // One that ends without reading says why.
    let _written = pipe.write_all(input.as_bytes());
    drop(pipe);
    let ended = process.wait_with_output().map_err(|error| error.to_string())?;
    let Output { status, stdout, stderr } = ended;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    Err(String::from_utf8_lossy(&stderr).trim().replace('\n', "; "))
}

fn must(result: Result<(), String>) {
    result.unwrap_or_else(|why| panic!("the test's network cannot be built: {why}"));
}

fn not_started(command: &Command, error: &std::io::Error) -> Missing {
    let program = Path::new(command.get_program()).display();
    Missing(match error.kind() {
        ErrorKind::NotFound => format!("{program} is not installed"),
        _ => format!("{program} cannot be started: {error}"),
    })
}

/// The tool is not there, or the kernel has no bridges, or no veth pairs.
fn not_joined(why: &str) -> Missing {
    if why.contains("failed to execute") {
        return Missing("ip is not installed".to_owned());
    }
    Missing(format!("the kernel joins no network namespaces: {why}"))
}
