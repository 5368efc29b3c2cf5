//! The plugin: opens domains, which open contexts.

use std::sync::Arc;

use hg_na::{Address, Domain, Error, OpenOptions, Plugin};

use crate::{address::SCHEME, domain::VisorDomain};

/// The plugin: scheme `visor`. Its daemon is that of the setting `daemon`, of the environment variable `HG_VISOR`, or
/// [`crate::NAME`].
#[derive(Debug, Default, Clone)]
pub struct VisorPlugin {
    daemon: Option<String>,
}

impl VisorPlugin {
    /// Through the daemon of this name, where no setting names another one.
    #[must_use]
    pub fn through(daemon: &str) -> Self {
        Self { daemon: Some(daemon.to_owned()) }
    }
}

impl Plugin for VisorPlugin {
    fn schemes(&self) -> &[&str] {
        &[SCHEME]
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        Ok(Arc::new(VisorDomain::open(url, options, self.daemon.as_deref())?))
    }
}
