//! What every plugin promises, over the imitation.

use std::sync::Arc;

use hg_na::{Address, Domain, Error, OpenOptions, Plugin};
use hg_na_verbs::VerbsPlugin;

use crate::imitation::LIBRARY;

/// Ports below those that the kernel gives out by itself.
const PORTS: std::ops::Range<u64> = 10_000..32_000;

/// The plugin with names for ports: `verbs://imitated0@127.0.0.1:#conformance-12-3`.
#[derive(Debug, Clone, Copy)]
struct Ported;

impl Plugin for Ported {
    fn schemes(&self) -> &[&str] {
        &["verbs"]
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        let plugin = VerbsPlugin::over(&LIBRARY);
        let Some((start, name)) = url.as_str().split_once('#') else {
            return plugin.open(url, options);
        };
        let number = |hash: u64, byte: u8| hash.wrapping_mul(31).wrapping_add(u64::from(byte));
        let port = PORTS.start + name.bytes().fold(7, number) % (PORTS.end - PORTS.start);
        plugin.open(&Address::new(&format!("{start}{port}"))?, options)
    }
}

hg_na_conformance::suite!(
    @suite hg_na_conformance::Suite::new(Ported, "verbs://imitated0")
        .named("verbs://imitated0@127.0.0.1:#{}")
        .report(watchdog::report),
    one_process
);
