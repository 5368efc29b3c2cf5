//! Every plugin promises the same; this one is held to it here.

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
    shareable = shareable
);
