//! Every plugin promises the same; this one is held to it here: as it is, and where no process may reach into another.

use hg_na::{Error, Memory};
use hg_na_sm::shared::{Buffer, alloc};

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

hg_na_conformance::suite!(
    hg_na_sm::SmPlugin,
    "sm://",
    named = "sm://conformance-{}",
    frozen = frozen,
    shareable = shareable,
    report = watchdog::report
);

mod copied {
    //! Put and get are copied through shared memory.

    use std::sync::Arc;

    use hg_na::{Address, Domain, Error, OpenOptions, Plugin};

    use super::{frozen, shareable};

    /// The plugin with the setting `cma=off`.
    #[derive(Debug)]
    struct Copying;

    impl Plugin for Copying {
        fn schemes(&self) -> &[&str] {
            &["sm"]
        }

        fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
            hg_na_sm::SmPlugin.open(url, &options.clone().with("cma", "off"))
        }
    }

    hg_na_conformance::suite!(
        Copying,
        "sm://",
        named = "sm://conformance-copied-{}",
        frozen = frozen,
        shareable = shareable,
        report = watchdog::report
    );
}
