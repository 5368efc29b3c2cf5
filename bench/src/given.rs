//! Settings of the command line (`--set`): of every engine that this process opens, and of those that it starts.

use std::sync::OnceLock;

static SETTINGS: OnceLock<Vec<(String, String)>> = OnceLock::new();

/// Keeps them; once, before anything is opened.
pub(crate) fn keep(settings: Vec<(String, String)>) {
    SETTINGS.get_or_init(|| settings);
}

/// Names and values.
pub(crate) fn settings() -> &'static [(String, String)] {
    SETTINGS.get().map_or(&[], Vec::as_slice)
}

/// Reads `NAME=VALUE`.
pub(crate) fn parse(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').ok_or("it has no `=`")?;
    Ok((name.to_owned(), value.to_owned()))
}
