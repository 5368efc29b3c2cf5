//! The engine of either side.

use hg_multicast::Multicast;

use crate::{arguments::Arguments, key::Key, protocol};

/// Opens it: over the network only, since the hosts of a copy are not one; and it sleeps at once where it waits, since nobody
/// notices microseconds in a copy, and others want the cores.
///
/// # Errors
/// What is wrong with the transport, or with its settings.
pub(crate) fn open(arguments: &Arguments, key: Option<Key>) -> Result<Multicast, String> {
    let mut builder = hg::builder().setting("routing", "off").wait(hg::Wait::Block);
    for (name, value) in arguments.settings()? {
        builder = builder.setting(name, value);
    }
    if let Some(key) = key {
        builder = builder.key(key.0);
    }
    let builder =
        builder.serve(protocol::here, |_, ()| Ok(())).map_err(|error| error.to_string())?;
    Multicast::open(builder, &arguments.url).map_err(|error| error.to_string())
}
