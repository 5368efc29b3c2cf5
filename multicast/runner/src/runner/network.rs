//! Emulated links: each process in a network namespace of its own, with a cable to a switch, and a token bucket of the kernel's
//! (`tc tbf`) at both of its ends.
//!
//! ```text
//!   host 0                      switch                      host 1
//!   eth0 10.78.0.1 -- bucket -- bucket -- p0 [ net ] p1 -- bucket -- bucket -- eth0 10.78.0.2
//! ```
//! A bucket of a hundred megabits holds packets for milliseconds that a fast card sends in microseconds, so what stands before it is made as
//! short as it is there: packets of half a millisecond, a bucket of one, and two of each socket in the queue. Without that a
//! short message waits for tens of milliseconds behind bulk data to somebody else.
//!
//! A namespace has no name and lives as long as a process in it, `cat`, which ends with its input: the runner's pipe. So nothing is left
//! however the runner ends.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    process::{Child, ChildStdin, Command, Stdio},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::arguments::Rate;

/// Hosts and the switch between them. Gone when dropped.
#[derive(Debug)]
pub(crate) struct Network {
    hosts: Vec<Keeper>,
    _switch: Keeper,
}

impl Network {
    /// So many hosts, and links of this rate.
    ///
    /// # Errors
    /// What is missing for it, in words.
    pub(crate) fn new(hosts: u32, rate: Rate) -> Result<Self, String> {
        if hosts > HOSTS_MAX {
            return Err(format!("there are addresses for {HOSTS_MAX} hosts, not for {hosts}"));
        }
        let switch = Keeper::start("switch")?;
        switch.ip("link add net type bridge\nlink set net up")?;
        let mut this = Self { hosts: Vec::new(), _switch: switch };
        for host in 0..hosts {
            let keeper = this.host(host, rate)?;
            this.hosts.push(keeper);
        }
        Ok(this)
    }

    fn host(&self, host: u32, rate: Rate) -> Result<Keeper, String> {
        let keeper = Keeper::start(&name(host))?;
        let (port, pid) = (format!("p{host}"), keeper.process.id());
        self._switch.ip(&format!(
            "link add {port} type veth peer name eth0 netns {pid}\nlink set {port} master net\nlink set {port} up"
        ))?;
        let address = address(host);
        keeper.ip(&format!("link set lo up\naddr add {address}/24 dev eth0\nlink set eth0 up"))?;
        keeper.limit_output(rate)?;
        for (keeper, device) in [(&keeper, "eth0"), (&self._switch, &port[..])] {
            keeper.shape(device, rate)?;
        }
        Ok(keeper)
    }

    /// The processes in whose namespaces the hosts are.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.hosts.iter().map(|keeper| keeper.process.id()).collect()
    }

    /// A command on a host.
    pub(crate) fn command(&self, host: usize, program: &str) -> Command {
        self.hosts[host].command(program)
    }
}

/// Of a host.
pub(crate) fn address(host: u32) -> String {
    format!("10.78.0.{}", host + 1)
}

/// The name that a host believes to have.
pub(crate) fn name(host: u32) -> String {
    format!("host{host}")
}

/// Moves this process into the namespace of another one. It has one thread so far.
///
/// # Errors
/// The system's words.
pub(crate) fn enter(pid: u32) -> Result<(), String> {
    let failed = |why: &dyn std::fmt::Display| format!("the namespace of an emulated link: {why}");
    let file = File::open(format!("/proc/{pid}/ns/net")).map_err(|error| failed(&error))?;
    let moved = move_into_link_name_space(
        std::os::fd::AsFd::as_fd(&file),
        Some(LinkNameSpaceType::Network),
    );
    moved.map_err(|errno| failed(&errno))
}

/// What stands in every output about these links.
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
pub(crate) fn described(rate: Rate) -> String {
    format!(
        "emulated links of {} Mbit/s both ways for each process: network namespaces, token buckets of the kernel's (tc tbf) at both ends, and queues of milliseconds before them",
        rate.0 as f64 / 1e6
    )
}

/// A process that does nothing in namespaces of its own, which live as long as it does.
#[derive(Debug)]
struct Keeper {
    process: Child,
    input: Option<ChildStdin>,
}

impl Keeper {
    fn start(name: &str) -> Result<Self, String> {
        let mut command = Command::new("unshare");
        command.args(["--net", "--uts", "--", "sh", "-c", "hostname \"$0\" && exec cat", name]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process =
            command.spawn().map_err(|error| format!("unshare cannot be started: {error}"))?;
        let input = process.stdin.take();
        let mut this = Self { process, input };
        // It says what it is told as soon as it is there; or it has ended, and says why.
        let _ = writeln!(this.input.as_mut().expect("piped above"), "there?");
        let (mut line, mut why) = (String::new(), String::new());
        let output = this.process.stdout.as_mut().expect("piped above");
        if BufReader::new(output).read_line(&mut line).is_ok_and(|len| len > 0) {
            return Ok(this);
        }
        let _ = this.process.stderr.as_mut().expect("piped above").read_to_string(&mut why);
        Err(format!("no right to make network namespaces: {}", why.trim()))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        let pid = self.process.id().to_string();
        command.args(["--target", &pid, "--net", "--uts", "--", program]);
        command
    }

    /// Runs commands of `ip`, one a line.
    fn ip(&self, lines: &str) -> Result<(), String> {
        let mut command = self.command("ip");
        fed(command.args(["-batch", "-"]), lines)
            .map_err(|why| format!("the kernel joins no namespaces: ip: {why}"))
    }

    fn shape(&self, device: &str, rate: Rate) -> Result<(), String> {
        let mut command = self.command("tc");
        command.args([
            "qdisc",
            "add",
            "dev",
            device,
            "root",
            "tbf",
            "rate",
            &format!("{}bit", rate.0),
        ]);
        let millisecond = rate.0 / 8 / 1000;
        let (burst, queue) = (millisecond.max(BURST_MIN), QUEUE_MS * millisecond.max(BURST_MIN));
        command.args(["burst", &burst.to_string(), "limit", &queue.to_string()]);
        fed(&mut command, "")
            .map_err(|why| format!("the kernel has no token bucket: tc: {why}"))?;
        let packet = (millisecond / 2).clamp(PACKET_MIN, PACKET_MAX);
        self.ip(&format!("link set dev {device} gso_max_size {packet}"))
    }

    /// What a socket of this host has in the bucket's queue at most: two milliseconds, as the queue of a real card's driver.
    fn limit_output(&self, rate: Rate) -> Result<(), String> {
        let bytes = (rate.0 / 8 / 500).max(OUTPUT_MIN);
        let mut command = self.command("sh");
        let set = format!("echo {bytes} > /proc/sys/net/ipv4/tcp_limit_output_bytes");
        fed(command.args(["-c", &set]), "")
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.process.wait();
    }
}

/// Runs a command with this input; why it failed.
fn fed(command: &mut Command, input: &str) -> Result<(), String> {
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut process = command.spawn().map_err(|error| error.to_string())?;
    // One that ends without reading says why.
    let _ = process.stdin.take().expect("piped above").write_all(input.as_bytes());
    let ended = process.wait_with_output().map_err(|error| error.to_string())?;
    if ended.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&ended.stderr).trim().replace('\n', "; "))
}

/// Addresses of a network.
const HOSTS_MAX: u32 = 250;
/// Bytes of a bucket at least: more than a packet. And milliseconds that may wait for it.
const BURST_MIN: u64 = 16 << 10;
const QUEUE_MS: u64 = 64;
/// Bytes of what goes through a bucket at a time: half a millisecond, as far as the kernel can cut it so.
const PACKET_MIN: u64 = 3 << 10;
const PACKET_MAX: u64 = 64 << 10;
/// Bytes of one socket in a queue, at least.
const OUTPUT_MIN: u64 = 32 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_below_a_megabit_is_stated_as_it_is() {
        for (rate, stated) in [(500_000, "of 0.5 Mbit/s"), (200_000_000, "of 200 Mbit/s")] {
            assert!(described(Rate(rate)).contains(stated), "{}", described(Rate(rate)));
        }
    }
}
