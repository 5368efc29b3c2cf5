//! What every plugin promises, for routing: by either way, and with every peer moved from one to the other.

mod common;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use hg_na::{Address, Domain, Error, Memory, OpenOptions, Plugin};
use hg_na_conformance::{Mem, Suite};
use hg_na_route::Route;
use hg_na_sm::{
    SmPlugin, node_id,
    shared::{Buffer, alloc},
};
use uuid::Uuid;

use common::Net;

/// Routing in which every URL is on a node of its own: a name's is always the same.
#[derive(Debug, Clone, Copy)]
struct Elsewhere;

impl Plugin for Elsewhere {
    fn schemes(&self) -> &[&str] {
        &["uid", "net"]
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only that it is another number each time counts.
        let serial = LAST.fetch_add(1, Ordering::Relaxed);
        let fresh = Uuid::from_u64_pair(u64::from(std::process::id()), serial);
        let named = Uuid::new_v5(&Uuid::NAMESPACE_URL, url.as_str().as_bytes());
        let node = if url.rest().is_empty() { fresh } else { named };
        Route::new(SmPlugin, Net, move || Ok(node), &["uid", "net"]).open(url, options)
    }
}

/// The local plugin, but nobody can be reached by it.
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

mod inside_a_node {
    use super::*;

    hg_na_conformance::suite!(
        Route::new(SmPlugin, Net, node_id, &["uid", "net", "sm+net"]),
        "sm+net://",
        named = "sm+net://inside-{}:7",
        frozen = frozen,
        shareable = shareable,
        report = watchdog::report
    );
}

mod between_nodes {
    use super::*;

    hg_na_conformance::suite!(
        Elsewhere,
        "net://",
        named = "net://between-{}:7",
        frozen = frozen,
        shareable = shareable,
        report = watchdog::report
    );
}

mod where_the_local_way_is_closed {
    use super::*;

    hg_na_conformance::suite!(
        Route::new(Deaf, Net, node_id, &["uid", "net"]),
        "net://",
        named = "net://closed-{}:7",
        frozen = frozen,
        shareable = shareable,
        report = watchdog::report
    );
}

mod with_a_network_that_has_no_descriptor {
    use super::*;

    fn suite() -> Suite {
        let route = Route::new(Deaf, Mem::default(), node_id, &["uid", "mem"]);
        Suite::new(route, "mem://").named("mem://{}:7")
    }

    hg_na_conformance::suite!(@suite suite(), one_process);
}
