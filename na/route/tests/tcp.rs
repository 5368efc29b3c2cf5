//! What every plugin promises, for the two plugins that `tcp://` and `sm+tcp://` mean by default: inside a node, between nodes,
//! and where shared memory is refused.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use hg_na::{Address, Domain, Error, Memory, OpenOptions, Plugin};
use hg_na_route::Route;
use hg_na_sm::{
    SmPlugin, node_id,
    shared::{Buffer, alloc},
};
use hg_na_tcp::TcpPlugin;
use uuid::Uuid;

const SCHEMES: &[&str] = &["uid", "tcp", "sm+tcp"];

fn filled(bytes: &[u8]) -> Result<Buffer, Error> {
    let mut buffer = alloc(bytes.len())?;
    buffer.copy_from_slice(bytes);
    Ok(buffer)
}

fn frozen(bytes: &[u8]) -> Result<Memory, Error> {
    Ok(filled(bytes)?.freeze()?.into())
}

fn shareable(bytes: &[u8]) -> Result<Memory, Error> {
    Ok(filled(bytes)?.into())
}

/// Routing with names: `SCHEME://name-NAME` listens on an address of the loopback network that only this name has,
/// since the suite cannot know which ports are free.
#[derive(Debug, Clone, Copy)]
enum Named {
    /// Every domain is on this node.
    Inside,
    /// Every URL is on a node of its own; a name's is always the same.
    Between,
    /// Every domain is on this node and takes no peer by shared memory.
    Refused,
}

/// The port behind all names: below those that the kernel gives out, and not that of other tests.
const PORT: u16 = 29_418;

impl Plugin for Named {
    fn schemes(&self) -> &[&str] {
        SCHEMES
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        let (url, node) = match url.rest().strip_prefix("name-") {
            Some(name) => {
                let node = Uuid::new_v5(&Uuid::NAMESPACE_URL, name.as_bytes());
                (Address::new(&format!("{}://{}", url.scheme(), place_of(node)))?, node)
            }
            None => (url.clone(), fresh_node()),
        };
        match self {
            Self::Inside => Route::new(SmPlugin, TcpPlugin, node_id, SCHEMES).open(&url, options),
            Self::Between => {
                Route::new(SmPlugin, TcpPlugin, move || Ok(node), SCHEMES).open(&url, options)
            }
            Self::Refused => Route::new(Deaf, TcpPlugin, node_id, SCHEMES).open(&url, options),
        }
    }
}

/// Shared memory, but nobody can be reached by it.
#[derive(Debug, Clone, Copy)]
struct Deaf;

impl Plugin for Deaf {
    fn schemes(&self) -> &[&str] {
        &["sm"]
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        let mut options = options.clone();
        options.listen = false;
        SmPlugin.open(url, &options)
    }
}

fn fresh_node() -> Uuid {
    static LAST: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only that it is another number each time counts.
    let serial = LAST.fetch_add(1, Ordering::Relaxed);
    Uuid::from_u64_pair(u64::from(std::process::id()), serial)
}

fn place_of(node: Uuid) -> String {
    let [a, b, c, ..] = *node.as_bytes();
    // Not 127.0.*: there the other tests listen.
    format!("127.{}.{b}.{}:{PORT}", a | 1, c.clamp(1, 254))
}

mod inside_a_node {
    use super::*;

    hg_na_conformance::suite!(
        Named::Inside,
        "sm+tcp://127.0.0.1",
        named = "sm+tcp://name-inside-{}",
        frozen = frozen,
        shareable = shareable,
        report = watchdog::report
    );
}

mod between_nodes {
    use super::*;

    hg_na_conformance::suite!(
        Named::Between,
        "tcp://127.0.0.1",
        named = "tcp://name-between-{}",
        frozen = frozen,
        shareable = shareable,
        report = watchdog::report
    );
}

mod where_shared_memory_is_refused {
    use super::*;

    hg_na_conformance::suite!(
        Named::Refused,
        "tcp://127.0.0.1",
        named = "tcp://name-refused-{}",
        frozen = frozen,
        shareable = shareable,
        report = watchdog::report
    );
}
