//! What every plugin promises, tested over libfabric's providers that work on any machine.
//!
//! The suite names domains; a network's have ports instead: [`Ported`] chooses one by the name.

use std::sync::Arc;

use hg_na::{Address, Domain, Error, OpenOptions, Plugin};
use hg_na_ofi::OfiPlugin;

/// The plugin, with names for ports: `ofi+tcp://127.0.0.1:conformance-12-3`.
#[derive(Debug, Clone, Copy)]
struct Ported;

/// Ports below those that the kernel gives out by itself.
const PORTS: std::ops::Range<u64> = 10_000..32_000;

impl Plugin for Ported {
    fn schemes(&self) -> &[&str] {
        &["ofi+tcp"]
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        let Some((start, name)) = url.as_str().split_once("127.0.0.1:") else {
            return OfiPlugin.open(url, options);
        };
        let number = |hash: u64, byte: u8| hash.wrapping_mul(31).wrapping_add(u64::from(byte));
        let port = PORTS.start + name.bytes().fold(7, number) % (PORTS.end - PORTS.start);
        OfiPlugin.open(&Address::new(&format!("{start}127.0.0.1:{port}"))?, options)
    }
}

mod tcp {
    hg_na_conformance::suite!(
        super::Ported,
        "ofi+tcp://127.0.0.1",
        named = "ofi+tcp://127.0.0.1:{}"
    );
}

mod shm {
    hg_na_conformance::suite!(hg_na_ofi::OfiPlugin, "ofi+shm://", named = "ofi+shm://{}");
}
