//! What every plugin promises, tested over libfabric's providers that work on any machine.
//!
//! The suite names domains; a network's have ports instead: [`Ported`] chooses one by the name. `HG_OFI_PROVIDER`
//! runs the network's tests over another provider than tcp: `HG_OFI_PROVIDER=net cargo nextest run ... tcp::`.

use std::sync::Arc;

use hg_na::{Address, Domain, Error, OpenOptions, Plugin};
use hg_na_ofi::OfiPlugin;

/// The plugin, with names for ports: `ofi+tcp://127.0.0.1:conformance-12-3`.
#[derive(Debug, Clone, Copy)]
struct Ported;

/// Names the provider instead of tcp.
const PROVIDER: &str = "HG_OFI_PROVIDER";
/// Ports below those that the kernel gives out by itself.
const PORTS: std::ops::Range<u64> = 10_000..32_000;

impl Plugin for Ported {
    fn schemes(&self) -> &[&str] {
        &["ofi+tcp", "ofi+net", "ofi+udp", "ofi+sockets"]
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        let other = std::env::var(PROVIDER).ok().and_then(|provider| {
            let rest = url.as_str().strip_prefix("ofi+tcp://")?;
            Address::new(&format!("ofi+{provider}://{rest}")).ok()
        });
        let url = other.as_ref().unwrap_or(url);
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
