//! A launcher of its own: starts N copies of a command on this machine, holds their hub, and reaps them.
//!
//! A rank gets one end of a socket pair (`HG_JOB_FD`), so there is no name, port or file that could be left
//! behind or met by a stranger. The kernel closes it when the rank dies, and closes the other end when the
//! runner dies: each learns of the other's death at once.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    io,
    os::{fd::AsFd, unix::net::UnixStream, unix::process::ExitStatusExt as _},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use hg_na_memory::NotInherited;
use nix::{
    fcntl::{FcntlArg, FdFlag, fcntl},
    sys::{
        signal::Signal,
        wait::{Id, WaitPidFlag, waitid},
    },
    unistd::{Pid, getppid},
};

use crate::{
    Error, NodeMap,
    deadline::{self, LONGEST},
    error::Ranks,
    foreign,
    frame::Broken,
    host, hub,
    node_map::RANKS_MAX,
    notice::Notice,
};

/// The runner of a job of this machine.
///
/// The usual form: the program that is asked for N ranks starts itself N times with the same arguments, and
/// finds in the environment that it is a rank.
///
/// ```no_run
/// # fn main() -> Result<(), hg_job::Error> {
/// let asked_for = Some(4); // from `--local 4`
/// if let Some(size) = asked_for
///     && !hg_job::Local::is_rank()
/// {
///     let ended = hg_job::Local::new(size).run()?;
///     std::process::exit(i32::from(ended.code()));
/// }
/// let job = hg_job::Job::connect()?;
/// # job.leave()
/// # }
/// ```
///
/// Where the process ignores `SIGCHLD`, it does so no more from then on: the kernel would tell nobody how a rank ended.
///
/// # Who ends when
/// - A rank dies: the others hear it at once, and have the [`grace`](Self::grace) to end by themselves; what
///   is left then is killed.
/// - A rank aborts: the others end at once; what is left after two seconds is killed.
/// - The runner dies, by whatever: the ranks die with it.
#[derive(Debug)]
pub struct Local {
    size: u32,
    program: Option<OsString>,
    arguments: Vec<OsString>,
    variables: BTreeMap<OsString, OsString>,
    nodes: Option<NodeMap>,
    timeout: Option<Duration>,
    grace: Duration,
    on_waiting: Option<fn(&str)>,
}

/// What ranks may take to end after one of them died.
const GRACE: Duration = Duration::from_secs(30);
/// What they may take after an abort.
const ABORT_GRACE: Duration = Duration::from_secs(2);
/// Ranks that have not joined after this long are missing.
const TIMEOUT: Duration = Duration::from_secs(60);

impl Local {
    /// So many copies of the current command, with its arguments.
    #[must_use]
    pub fn new(size: u32) -> Self {
        Self {
            size,
            program: None,
            arguments: env::args_os().skip(1).collect(),
            variables: BTreeMap::new(),
            nodes: None,
            timeout: None,
            grace: GRACE,
            on_waiting: None,
        }
    }

    /// Is this process a rank that a runner started?
    #[must_use]
    pub fn is_rank() -> bool {
        env::var_os("HG_JOB_FD").is_some()
    }

    /// Another command.
    #[must_use]
    pub fn command<A: Into<OsString>>(
        mut self,
        program: impl Into<OsString>,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        self.program = Some(program.into());
        self.arguments = arguments.into_iter().map(Into::into).collect();
        self
    }

    /// A variable for all ranks.
    #[must_use]
    pub fn variable(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// Which rank is on which node, to imitate many.
    #[must_use]
    pub fn nodes(mut self, nodes: NodeMap) -> Self {
        self.nodes = Some(nodes);
        self
    }

    /// As [`Settings::timeout`](crate::Settings::timeout), for the hub and all ranks.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How long the others may live on after a rank died.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// As [`Settings::on_waiting`](crate::Settings::on_waiting).
    #[must_use]
    pub fn on_waiting(mut self, tell: fn(&str)) -> Self {
        self.on_waiting = Some(tell);
        self
    }

    /// Starts the ranks and waits for their ends.
    ///
    /// # Errors
    /// They could not be started.
    pub fn run(self) -> Result<Ended, Error> {
        Ok(self.start()?.wait())
    }

    /// Starts the ranks.
    ///
    /// # Errors
    /// The number of ranks or the node map makes no sense, or the system refuses; then none is left.
    pub fn start(self) -> Result<Started, Error> {
        if self.size == 0 || self.size > RANKS_MAX {
            return Err(Error::Environment(format!("{} is no number of ranks", self.size)));
        }
        self.nodes.as_ref().map_or(Ok(()), |nodes| nodes.check_size(self.size))?;
        host::allow_descriptors(2 * u64::from(self.size) + 128);
        foreign::keep_ended_children().map_err(Error::os("the action of SIGCHLD"))?;
        let (told, tells) = mpsc::sync_channel(1);
        // One thread starts and reaps: "dies with its parent" means the parent's thread.
        let thread = std::thread::Builder::new().name("hg-job-runner".into());
        let thread = thread
            .spawn(move || match self.spawn_all() {
                Ok(ranks) => {
                    let pids = ranks.children.lock().pids();
                    let _ = told.send(Ok(pids));
                    ranks.reap()
                }
                Err(error) => {
                    let _ = told.send(Err(error));
                    Ended::default()
                }
            })
            .map_err(Error::os("a thread"))?;
        match tells.recv() {
            Ok(Ok(pids)) => Ok(Started { pids, thread }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::HubGone("the runner")),
        }
    }

    fn spawn_all(&self) -> Result<Reaper, Error> {
        let children = Arc::new(Children::default());
        let mut seats = Vec::new();
        for rank in 0..self.size {
            let (ours, theirs) = UnixStream::pair().map_err(Error::os("a pair of sockets"))?;
            // Dropping `children` kills those that were started.
            let child = self.spawn(rank, &theirs)?;
            // Not reaped yet, so the number is its own. Without such a descriptor the hang-up tells.
            let process = foreign::process(child.id()).ok();
            children.lock().0.push(Some(child));
            seats.push(hub::Seat { rank, stream: ours, process });
        }
        let on_broken = Arc::clone(&children);
        let grace = self.grace;
        let timeout = self.timeout.unwrap_or(TIMEOUT);
        let hub = hub::Running::start(hub::Config {
            hub: hub::state::Hub::star(self.size, Vec::new()),
            above: None,
            deadline: deadline::after(timeout),
            notice: Notice::new(self.on_waiting, timeout),
            door: None,
            seats,
            on_broken: Box::new(move |broken| Children::end_soon(&on_broken, broken, grace)),
        })?;
        Ok(Reaper { children, _hub: hub })
    }

    fn spawn(&self, rank: u32, seat: &UnixStream) -> Result<Child, Error> {
        use std::os::fd::AsRawFd as _;
        let program = match &self.program {
            Some(program) => program.clone(),
            None => env::current_exe().map_err(Error::os("the path of this program"))?.into(),
        };
        let what = format!("starting rank {rank} ({})", program.to_string_lossy());
        let mut command = Command::new(program);
        command.args(&self.arguments).envs(&self.variables).env_remove("HG_JOB_VIA");
        command.env("HG_JOB_FD", seat.as_raw_fd().to_string());
        command.env("HG_JOB_RANK", rank.to_string()).env("HG_JOB_SIZE", self.size.to_string());
        command.env(RUNNER, std::process::id().to_string());
        if let Some(nodes) = &self.nodes {
            command.env("HG_JOB_NODES", nodes.to_string());
        }
        if let Some(timeout) = self.timeout {
            command.env("HG_JOB_TIMEOUT_S", timeout.min(LONGEST).as_secs_f64().to_string());
        }
        if rank > 0 {
            command.stdin(Stdio::null());
        }
        set_inherited(seat, true).map_err(Error::os("a socket"))?;
        command.spawn().map_err(Error::os(what))
    }
}

/// The runner's process id, for its ranks.
const RUNNER: &str = "HG_JOB_RUNNER";

/// Ranks that run.
#[derive(Debug)]
pub struct Started {
    pids: Vec<u32>,
    thread: JoinHandle<Ended>,
}

impl Started {
    /// The process of each rank.
    #[must_use]
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// Waits until all have ended.
    #[must_use]
    pub fn wait(self) -> Ended {
        self.thread.join().unwrap_or_default()
    }
}

/// How the ranks ended.
#[derive(Debug, Default)]
pub struct Ended {
    statuses: Vec<ExitStatus>,
}

impl Ended {
    /// How each rank ended, in their order.
    #[must_use]
    pub fn statuses(&self) -> &[ExitStatus] {
        &self.statuses
    }

    /// What the runner should end with: 0 if all ranks did. Otherwise the status of the first that exited
    /// with another one; if there is none, 128 and the signal of the first that was killed.
    #[must_use]
    pub fn code(&self) -> u8 {
        let failed = || self.statuses.iter().filter(|status| !status.success());
        let exited = failed().find_map(ExitStatus::code);
        let killed = failed().find_map(|status| status.signal().map(|signal| 128 + signal));
        let code = match (self.statuses.is_empty(), exited.or(killed)) {
            (true, _) => 1,
            (false, None) => 0,
            (false, Some(code)) => code,
        };
        u8::try_from(code).unwrap_or(1)
    }

    /// A sentence about those that did not end well; empty if there are none.
    #[must_use]
    pub fn report(&self) -> String {
        let mut by_end: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for (rank, status) in (0..).zip(&self.statuses) {
            if !status.success() {
                by_end.entry(status.to_string()).or_default().push(rank);
            }
        }
        let sentences: Vec<String> =
            by_end.into_iter().map(|(end, ranks)| format!("{}: {end}", Ranks(ranks))).collect();
        sentences.join("; ")
    }
}

struct Reaper {
    children: Arc<Children>,
    _hub: hub::Running,
}

impl Reaper {
    fn reap(self) -> Ended {
        let count = self.children.lock().0.len();
        let statuses = (0..count).map(|rank| self.children.reap(rank)).collect();
        self.children.all_ended();
        Ended { statuses }
    }
}

/// Processes that were not reaped, by rank.
#[derive(Debug, Default)]
struct Processes(Vec<Option<Child>>);

#[derive(Debug, Default)]
struct Children {
    processes: Mutex<Processes>,
    /// All have been reaped.
    ended: Mutex<bool>,
    changed: Condvar,
}

impl Processes {
    fn pids(&self) -> Vec<u32> {
        self.0.iter().flatten().map(Child::id).collect()
    }

    fn kill_all(&mut self) {
        for child in self.0.iter_mut().flatten() {
            // Not reaped yet, so its number is still its own.
            let _ = child.kill();
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.kill_all();
        for child in self.0.iter_mut().flatten() {
            let _ = child.wait();
        }
    }
}

impl Children {
    fn lock(&self) -> MutexGuard<'_, Processes> {
        // Every change under this lock is complete when it can panic.
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits without the lock and without taking the number away, then reaps under the lock: nobody signals
    /// a number that has become another process's.
    fn reap(&self, rank: usize) -> ExitStatus {
        let pid =
            self.lock().0[rank].as_ref().map(Child::id).and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid {
            let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
            while waitid(Id::Pid(Pid::from_raw(pid)), flags) == Err(nix::errno::Errno::EINTR) {}
        }
        let child = self.lock().0[rank].take();
        let status = child.map(|mut child| child.wait());
        status.and_then(Result::ok).unwrap_or_else(|| ExitStatus::from_raw(1 << 8))
    }

    fn all_ended(&self) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// In a thread of its own: kills what is left after the grace.
    fn end_soon(this: &Arc<Self>, broken: &Broken, grace: Duration) {
        let is_abort = matches!(broken, Broken::Aborted { .. });
        let grace = if is_abort { grace.min(ABORT_GRACE) } else { grace };
        let children = Arc::clone(this);
        let thread = std::thread::Builder::new().name("hg-job-grace".into());
        let spawned = thread.spawn(move || {
            let ended = children.ended.lock().unwrap_or_else(PoisonError::into_inner);
            let (ended, _) = children
                .changed
                .wait_timeout_while(ended, grace, |ended| !*ended)
                .unwrap_or_else(PoisonError::into_inner);
            if !*ended {
                children.lock().kill_all();
            }
        });
        if spawned.is_err() {
            // No thread to be had: no grace.
            this.lock().kill_all();
        }
    }
}

/// In a rank: its own children shall not hold the connection to the runner, whether they go on as another program or not.
/// The descriptor stays open as long as this process.
pub(crate) fn keep_from_children(fd: i32) -> io::Result<()> {
    foreign::with_inherited(fd, |fd| {
        std::mem::forget(NotInherited::new(fd));
        set_inherited(fd, false)
    })
}

fn set_inherited(fd: impl AsFd, inherited: bool) -> io::Result<()> {
    let flags = if inherited { FdFlag::empty() } else { FdFlag::FD_CLOEXEC };
    fcntl(fd, FcntlArg::F_SETFD(flags)).map(drop).map_err(io::Error::from)
}

/// In a rank: the kernel ends it with the runner. Behind a wrapper that stays, the hub's end does.
pub(crate) fn die_with_runner() -> Result<(), Error> {
    let runner = env::var(RUNNER).unwrap_or_default();
    let is_child = || getppid().to_string() == runner;
    if !is_child() {
        return Ok(());
    }
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)
        .map_err(|errno| Error::os("dying with the runner")(errno.into()))?;
    if is_child() { Ok(()) } else { Err(Error::HubGone("the runner")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(statuses: &[i32]) -> Ended {
        Ended { statuses: statuses.iter().map(|raw| ExitStatus::from_raw(*raw)).collect() }
    }

    #[test]
    fn the_first_exit_status_counts_before_signals() {
        assert_eq!(ended(&[0, 0]).code(), 0);
        assert_eq!(ended(&[0, 9, 3 << 8]).code(), 3);
        assert_eq!(ended(&[0, 9]).code(), 137);
        assert_eq!(ended(&[]).code(), 1);
        assert_eq!(ended(&[0]).report(), "");
        let text = ended(&[3 << 8, 0, 3 << 8, 9]).report();
        assert_eq!(text, "ranks 0 and 2: exit status: 3; rank 3: signal: 9 (SIGKILL)");
    }

    #[test]
    fn commands_and_exit_statuses_are_passed_on() {
        let ended = Local::new(3).command("sh", ["-c", "exit $((HG_JOB_RANK * 2))"]).run().unwrap();
        let codes: Vec<_> = ended.statuses().iter().map(ExitStatus::code).collect();
        assert_eq!(codes, [Some(0), Some(2), Some(4)]);
        assert_eq!(ended.code(), 2);
    }

    #[test]
    fn what_cannot_be_started_is_an_error_with_its_name() {
        let said = Local::new(2).command("no-such-program", ["x"]).run().unwrap_err().to_string();
        assert!(said.starts_with("starting rank 0 (no-such-program): "), "{said}");
        let none: [&str; 0] = [];
        let said = Local::new(0).command("true", none).run().unwrap_err().to_string();
        assert_eq!(said, "0 is no number of ranks");
        let map = NodeMap::uniform(2, 2).unwrap();
        let said = Local::new(3).command("true", none).nodes(map).run().unwrap_err().to_string();
        assert_eq!(said, "the node map is for 4 ranks, but the job has 3");
    }

    #[test]
    fn what_does_not_end_after_a_death_is_killed_after_the_grace() {
        let script = "[ $HG_JOB_RANK = 0 ] || exec sleep 1000";
        let local = Local::new(2).command("sh", ["-c", script]).grace(Duration::from_millis(50));
        let ended = local.run().unwrap();
        assert_eq!(ended.statuses()[1].signal(), Some(9));
        assert_eq!(ended.code(), 137);
    }
}
