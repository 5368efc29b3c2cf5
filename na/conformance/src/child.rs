//! A second process for the suite: this test binary, started again as one of its own tests.
//!
//! The child finds the parent's address and its role in the environment, looks the parent up and
//! greets it. It ends when the parent is gone, or when it is killed.
//!
//! # Greeting
//! | offset | size | field |
//! |---:|---:|---|
//! | 0 | 4 | length of the child's address |
//! | 4 | ... | the address, then a descriptor of [`CHILD_REGION`] bytes where put and get exist |

use std::{
    env,
    process::{Child, Command, Stdio},
    time::Duration,
};

use hg_na::{Address, Descriptor, Memory, Message, Op, OpenOptions, Peer, Region, Rights};

use crate::{
    node::Node,
    outcome::{Outcome, ensure, fail},
    random::Random,
    suite::{CHILD_TEST, Suite},
    tests::sleeping::drive,
    world::{World, pattern},
};

/// Messages of a [`Role::Caller`].
pub(crate) const REQUESTS: u64 = 16;
/// Size of the memory that a child registers.
pub(crate) const CHILD_REGION: usize = 4096;
/// Time after which a child ends whatever happens.
const CHILD_LIFE: Duration = Duration::from_secs(120);

const PARENT: &str = "HG_CONFORMANCE_PARENT";
const ROLE: &str = "HG_CONFORMANCE_ROLE";
const URL: &str = "HG_CONFORMANCE_URL";

/// What a child does after its greeting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Answers every unexpected message: its first eight bytes are the tag.
    Echo,
    /// Sends [`REQUESTS`] unexpected messages, numbered, and a control message when they have left; then as `Silent`.
    Caller,
    /// Makes no progress any more.
    Silent,
    /// Sends unexpected messages as fast as they are taken.
    Flood,
    /// Makes no progress any more than its peer's views need; its memory is frozen.
    Lender,
}

const ROLES: [(Role, &str); 5] = [
    (Role::Echo, "echo"),
    (Role::Caller, "caller"),
    (Role::Silent, "silent"),
    (Role::Flood, "flood"),
    (Role::Lender, "lender"),
];

/// A child process; killed when dropped.
#[derive(Debug)]
pub(crate) struct Second {
    process: Child,
    pub(crate) peer: Peer,
    pub(crate) address: Address,
    pub(crate) descriptor: Option<Descriptor>,
}

impl Second {
    /// Starts a child that connects to the node at `place`, and waits for its greeting.
    pub(crate) fn start(
        world: &mut World<'_>,
        place: usize,
        role: Role,
        url: &str,
    ) -> Outcome<Self> {
        let suite = world.suite;
        let Some(test) = &suite.child_test else { fail!("this suite cannot start processes") };
        let role = ROLES.iter().find(|(known, _)| *known == role).map_or("", |(_, name)| *name);
        let program = env::current_exe().map_err(|error| format!("no own program: {error}"))?;
        let process = Command::new(program)
            .args(["--exact", test, "--nocapture", "--test-threads", "1"])
            .env(PARENT, world.nodes[place].address().as_str())
            .env(ROLE, role)
            .env(URL, url)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("no second process: {error}"))?;
        let guard = KillOnDrop(Some(process));
        let (peer, greeting) = world.arrival(place)?;
        let (address, descriptor) = parse(greeting.as_slice())?;
        Ok(Self { process: guard.keep(), peer, address, descriptor })
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// SIGKILL, and waits until the kernel says that it is dead.
    pub(crate) fn kill(&mut self) -> Outcome {
        self.process.kill().map_err(|error| format!("a child cannot be killed: {error}"))?;
        self.process.wait().map_err(|error| format!("a child cannot be waited for: {error}"))?;
        Ok(())
    }

    /// Waits for its own end.
    pub(crate) fn ends(&mut self, suite: &Suite) -> Outcome {
        let mut clock = suite.patience.start();
        loop {
            match self.process.try_wait() {
                Ok(Some(status)) => {
                    ensure!(status.success(), "a child ended with {status}");
                    return Ok(());
                }
                Ok(None) => ensure!(clock.patient(false), "a child outlived its parent's context"),
                Err(error) => fail!("a child cannot be waited for: {error}"),
            }
        }
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.kill();
    }
}

struct KillOnDrop(Option<Child>);

impl KillOnDrop {
    fn keep(mut self) -> Child {
        self.0.take().expect("taken only here")
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(mut process) = self.0.take() {
            // It may have ended by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn parse(greeting: &[u8]) -> Outcome<(Address, Option<Descriptor>)> {
    let (len, rest) = greeting.split_first_chunk::<4>().ok_or("a child's greeting is cut short")?;
    let len = usize::try_from(u32::from_le_bytes(*len)).map_err(|error| error.to_string())?;
    let (address, descriptor) = rest.split_at_checked(len).ok_or("a greeting is cut short")?;
    let address = std::str::from_utf8(address).map_err(|error| error.to_string())?;
    let address = Address::new(address).map_err(|error| error.to_string())?;
    if descriptor.is_empty() {
        return Ok((address, None));
    }
    let descriptor = Descriptor::decode(descriptor).map_err(|error| error.to_string())?;
    Ok((address, Some(descriptor)))
}

/// The body of the hidden test. In a child it plays the role and never returns; otherwise it is a
/// test of its own: a child echoes, and ends when its peer closes.
///
/// # Errors
/// What went wrong, on either side.
pub fn child_main(suite: &Suite) -> Outcome {
    let (Ok(parent), Ok(role)) = (env::var(PARENT), env::var(ROLE)) else {
        return suite.run(crate::Test { name: CHILD_TEST, run: echo_and_end });
    };
    let url = env::var(URL).unwrap_or_else(|_| suite.url.clone());
    let role = ROLES.iter().find(|(_, name)| *name == role).map(|(role, _)| *role);
    let Some(role) = role else { fail!("no such role for a child") };
    // A child must never outlive its test run.
    std::thread::spawn(|| {
        std::thread::sleep(CHILD_LIFE);
        std::process::exit(3);
    });
    play(suite, &parent, role, &url)
}

fn play(suite: &Suite, parent: &str, role: Role, url: &str) -> Outcome {
    let mut world = World { suite, nodes: Vec::new() };
    world.add(suite.open(url, &OpenOptions::listening())?, 0)?;
    let parent = Address::new(parent).map_err(|error| error.to_string())?;
    let peer = world.nodes[0].lookup(&parent)?;
    let region = register(&world, role)?;
    let address = world.nodes[0].address();
    let len = u32::try_from(address.as_str().len()).expect("ADDRESS_MAX fits");
    let mut greeting = len.to_le_bytes().to_vec();
    greeting.extend(address.as_str().bytes());
    greeting.extend(region.iter().flat_map(|region| region.descriptor().encode()));
    let token = world.send(0, peer, &greeting)?;
    world.completion(0, token)?;
    match role {
        Role::Echo | Role::Lender => echo(&mut world, peer),
        Role::Flood => flood(&mut world, peer),
        Role::Caller => {
            call(&mut world, peer)?;
            silent()
        }
        Role::Silent => silent(),
    }
}

fn silent() -> ! {
    loop {
        std::thread::park();
    }
}

fn call(world: &mut World<'_>, parent: Peer) -> Outcome {
    for number in 0..REQUESTS {
        let token = world.send(0, parent, &number.to_le_bytes())?;
        world.completion(0, token)?;
    }
    let message = Message::copied(b"all have left");
    world.succeed(0, Op::SendControl { to: parent, message }).map(drop)
}

fn register(world: &World<'_>, role: Role) -> Outcome<Option<Region>> {
    let node = &world.nodes[0];
    if !node.caps().one_sided {
        return Ok(None);
    }
    let bytes = pattern(CHILD_REGION, 20);
    let (memory, rights) = if role == Role::Lender {
        let frozen = (world.suite.frozen)(&bytes);
        (frozen.map_err(|error| format!("no frozen memory: {error}"))?, Rights::READ)
    } else {
        (Memory::from(bytes), Rights::all())
    };
    node.domain.register(memory, rights).map(Some).map_err(|error| error.to_string())
}

fn echo(world: &mut World<'_>, parent: Peer) -> Outcome {
    let patience = world.suite.patience;
    let mut random = Random::new(u64::from(std::process::id()));
    loop {
        // Sleeps for as long as the parent has nothing to say, so its patience may end: it is
        // then still alive, and asks again.
        let something =
            |node: &mut Node| !node.unexpected.is_empty() || node.gone.contains_key(&parent);
        let _ = drive(&mut world.nodes[0], patience, &mut random, something);
        while let Some((to, message)) = world.nodes[0].unexpected.pop_front() {
            let Some(tag) = message.as_slice().first_chunk::<8>() else { continue };
            let tag = u64::from_le_bytes(*tag);
            let op = Op::SendExpected { to, tag, message: Message::copied(message.as_slice()) };
            // A peer that has closed in the meantime gets no answer.
            let _ = world.try_post(0, op)?;
        }
        if world.nodes[0].gone.contains_key(&parent) {
            return Ok(());
        }
    }
}

fn flood(world: &mut World<'_>, parent: Peer) -> Outcome {
    while !world.nodes[0].gone.contains_key(&parent) {
        let message = Message::copied(&[7; 100]);
        let _ = world.nodes[0].post(Op::SendUnexpected { to: parent, message })?;
        world.round()?;
        world.nodes[0].done.clear();
    }
    Ok(())
}

fn echo_and_end(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 1)?;
    let mut child = Second::start(&mut world, 0, Role::Echo, &suite.url)?;
    ping(&mut world, child.peer, 0, 100)?;
    world.close(0);
    child.ends(suite)
}

/// Round trips with an echoing child.
pub(crate) fn ping(world: &mut World<'_>, peer: Peer, place: usize, count: u64) -> Outcome {
    for tag in 0..count {
        let (receive, _) = world.receive(place, peer, tag)?;
        let send = world.send(place, peer, &tag.to_le_bytes())?;
        world.received(place, receive, &tag.to_le_bytes())?;
        world.completion(place, send)?;
    }
    Ok(())
}
