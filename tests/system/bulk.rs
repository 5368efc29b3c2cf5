//! Bulk transfers between real processes, over each transport.
//!
//! | module | what it shows |
//! |---|---|
//! | `ranges` | null, full, unaligned, shifted; segments cut differently on both sides; third processes; oneself |
//! | `refusals` | rights, ranges and descriptors that do not hold; memory that was taken back; nothing is touched |
//! | `frozen` | frozen memory among arguments: seen where it lies, or copied; early endings; limits |
//! | `forked` | what a forked child has of frozen memory |
//! | `mapped` | what a process sees of memory that it maps, and what a kept mapping is good for |
//! | `mutilated` | descriptors that no honest process makes, and processes that use whatever they get |
//! | `endings` | owners and pullers that die, deadlines, cancellation at every step; memory comes back |
//! | `views` | fetching and seeing; descriptors that hold the bytes; handlers of every kind |
//!
//! Exposed memory holds [`pattern`], so that whoever moves a range can say whether it
//! arrived whole and at its place.

mod endings;
mod forked;
mod frozen;
mod mapped;
mod mutilated;
mod ranges;
mod refusals;
mod views;

pub(crate) use self::{
    endings::{play_mover as play_bulk_mover, play_owner},
    forked::play_forker,
    frozen::{play_lender, sum},
    mutilated::claiming,
};

use std::sync::LazyLock;

use hg::{
    Builder, Engine, Peer, Request,
    bulk::{Bulk, Descriptor, Rights, TransferError},
};

use crate::{
    common::{
        Child,
        child::{next_command, say},
    },
    roles::Settings,
    transports::open_over,
};

/// Opens an engine over one of [`bulk_urls`](crate::transports::bulk_urls).
fn open(builder: Builder, url: &str) -> Engine {
    open_over(builder, url).expect("this process can open an engine")
}

/// What lies in exposed memory, again and again: bytes that are not zero, a prime number of them.
static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let byte =
        |place: u64| u8::try_from(place.wrapping_mul(2_654_435_761) >> 7 & 0x7f).unwrap() | 0x80;
    (0..65_521).map(byte).collect()
});

/// What lies at `len` places from `from` on.
pub(crate) fn pattern(from: u64, len: usize) -> Vec<u8> {
    let period = PATTERN.len();
    let start = usize::try_from(from % period as u64).unwrap();
    let mut bytes = Vec::with_capacity(len);
    let mut rest = &PATTERN[start..];
    while bytes.len() < len {
        bytes.extend_from_slice(&rest[..rest.len().min(len - bytes.len())]);
        rest = &PATTERN;
    }
    bytes
}

pub(crate) fn patterned(len: usize) -> Vec<u8> {
    pattern(0, len)
}

/// The same in segments of these lengths.
fn patterned_segments(lens: &[u64]) -> Vec<Vec<u8>> {
    let mut place = 0;
    let segment = |len: &u64| {
        let segment = pattern(place, usize::try_from(*len).unwrap());
        place += len;
        segment
    };
    lens.iter().map(segment).collect()
}

fn zeroed_segments(lens: &[u64]) -> Vec<Vec<u8>> {
    lens.iter().map(|len| vec![0; usize::try_from(*len).unwrap()]).collect()
}

/// Whether `bytes` are zero but for the range that begins at `to` and holds the pattern from `from` on.
pub(crate) fn holds(bytes: &[u8], from: u64, to: u64, len: u64) -> bool {
    let (to, len) = (usize::try_from(to).unwrap(), usize::try_from(len).unwrap());
    let mut expected = vec![0; bytes.len()];
    expected[to..to + len].copy_from_slice(&pattern(from, len));
    bytes == expected
}

fn is_zero(bulk: &Bulk) -> bool {
    bulk.to_vec().unwrap() == vec![0; usize::try_from(bulk.len()).unwrap()]
}

/// The name of an error's kind.
fn name_of(error: &TransferError) -> &'static str {
    match error {
        TransferError::DeadlineExceeded => "DeadlineExceeded",
        TransferError::Cancelled => "Cancelled",
        TransferError::PeerGone { .. } => "PeerGone",
        TransferError::Stale => "Stale",
        TransferError::Denied { .. } => "Denied",
        TransferError::OutOfRange { .. } => "OutOfRange",
        TransferError::Unequal { .. } => "Unequal",
        TransferError::NotMade(_) => "NotMade",
        TransferError::WouldDeadlock => "WouldDeadlock",
        TransferError::Closed => "Closed",
        _ => "another kind",
    }
}

/// The same for what a transfer came to.
fn end_of<T>(result: &Result<T, TransferError>) -> &'static str {
    result.as_ref().err().map_or("Ok", name_of)
}

/// An engine of this process that others can reach.
fn listening(url: &str) -> Engine {
    open(hg::builder().listen(true), url)
}

/// An engine of this process, and another process that serves it.
struct Scene {
    child: Child,
    engine: Engine,
    peer: Peer,
}

impl Scene {
    fn new(url: &str) -> Self {
        let (child, address) = mover(url);
        let engine = listening(url);
        let peer = engine.lookup(&address).unwrap();
        Self { child, engine, peer }
    }
}

/// The owner of a descriptor in an RPC: whoever it is bound to, or the caller.
fn owner(request: &Request, descriptor: &Descriptor) -> Result<Peer, String> {
    match descriptor.owner() {
        Some(_) => request.engine().owner_of(descriptor).map_err(|error| error.to_string()),
        None => Ok(request.origin()),
    }
}

/// Moves bytes between the memory of somebody and memory cut into `lens`. `range`: where in the remote memory,
/// where in the local one, how many. Pulled
/// bytes are checked; pushed ones are the pattern of their place here.
#[hg::rpc]
pub(crate) async fn move_range(
    request: &Request,
    is_pull: bool,
    what: Descriptor,
    range: (u64, u64, u64),
    lens: Vec<u64>,
) -> Result<String, String> {
    let engine = request.engine();
    let (remote, local, len) = range;
    let owner = owner(request, &what)?;
    let text = |error: hg::Error| error.to_string();
    let far = what.range(remote..remote + len).map_err(text)?;
    let memory = if is_pull { zeroed_segments(&lens) } else { patterned_segments(&lens) };
    let memory = engine.expose(memory, Rights::empty()).map_err(text)?;
    let near = memory.range(local..local + len).map_err(text)?;
    let result = if is_pull {
        engine.pull(&owner, far, near).await
    } else {
        engine.push(&owner, near, far).await
    };
    if let Err(error) = result {
        return Ok(name_of(&error).to_owned());
    }
    let bytes = memory.into_vec().map_err(|busy| busy.to_string())?;
    let is_right = !is_pull || holds(&bytes, remote, local, len);
    Ok(if is_right { "Ok" } else { "wrong bytes" }.to_owned())
}

/// Has somebody else do it.
#[hg::rpc]
pub(crate) async fn forward(
    request: &Request,
    to: String,
    is_pull: bool,
    what: Descriptor,
    range: (u64, u64, u64),
    lens: Vec<u64>,
) -> Result<String, String> {
    let engine = request.engine();
    let peer = engine.lookup(&to).map_err(|error| error.to_string())?;
    engine
        .call(move_range, &peer, (is_pull, what, range, lens))
        .await
        .map_err(|error| error.to_string())
}

pub(crate) fn serve(engine: &Engine) {
    engine.register(move_range).expect("a fresh registry");
    engine.register(forward).expect("a fresh registry");
    views::serve(engine);
    mutilated::serve(engine);
    frozen::serve(engine);
}

/// Starts a process that serves transfers; gives its address, too.
pub(crate) fn mover(url: &str) -> (Child, String) {
    let mut child = Child::start("mover", &format!("url={url}"));
    let address = child.hear();
    (child, address)
}

/// The role: serves transfers.
pub(crate) fn play_mover(settings: &Settings) {
    let engine = open(settings.builder().listen(true), url_of(settings));
    serve(&engine);
    say(engine.address().as_str());
    while next_command().is_some() {}
}

fn url_of(settings: &Settings) -> &str {
    settings.text("url").expect("this role needs `url=URL`")
}

/// Words for a pipe.
pub(crate) fn to_hex(descriptor: &Descriptor) -> String {
    descriptor.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn from_hex(text: &str) -> Descriptor {
    let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal digits");
    let bytes: Vec<u8> = (0..text.len()).step_by(2).map(digits).collect();
    Descriptor::decode(&bytes).expect("the descriptor of an honest process")
}
