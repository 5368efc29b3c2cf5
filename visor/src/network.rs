//! The daemon's networks: which plugin opens each, and what it has to be able to do.

use std::collections::BTreeMap;

use hg_na::{Address, Caps, Context, Error, OpenOptions, Plugin};

use crate::wire::FRAME_MIN;

/// Opens one.
///
/// # Errors
/// Those of the plugin; [`Error::Unsupported`] where its messages are too short.
pub(crate) fn open_network(
    plugin: &dyn Plugin,
    url: &str,
    settings: &BTreeMap<String, String>,
) -> Result<(Box<dyn Context>, Caps), Error> {
    let mut options = OpenOptions::listening();
    options.settings.clone_from(settings);
    let domain = plugin.open(&Address::new(url)?, &options)?;
    let caps = domain.caps().clone();
    if caps.max_unexpected < FRAME_MIN {
        return Err(Error::Unsupported("a network without messages of 16 KiB"));
    }
    Ok((domain.context(0)?, caps))
}

/// The plugin of a URL.
///
/// # Errors
/// [`Error::Missing`] where this build is without it, [`Error::BadAddress`] where nobody takes such a URL.
pub(crate) fn plugin_of(url: &Address) -> Result<Box<dyn Plugin>, Error> {
    match url.scheme() {
        "tcp" => Ok(Box::new(hg_na_tcp::TcpPlugin)),
        #[cfg(feature = "ofi")]
        scheme if scheme.starts_with("ofi+") => Ok(Box::new(hg_na_ofi::OfiPlugin)),
        #[cfg(feature = "verbs")]
        "verbs" => Ok(Box::<hg_na_verbs::VerbsPlugin>::default()),
        scheme => Err(not_here(url, scheme)),
    }
}

fn not_here(url: &Address, scheme: &str) -> Error {
    let feature = match scheme {
        "verbs" => "verbs",
        _ if scheme.starts_with("ofi+") => "ofi",
        _ => {
            let why = "a network is tcp://, ofi+PROVIDER:// or verbs://".to_owned();
            return Error::BadAddress { address: url.to_string(), why };
        }
    };
    Error::missing(format!(
        "this hg-visor is built without {scheme}://: build it with `--features {feature}`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_network_has_its_plugin_or_a_sentence_that_says_what_to_do() {
        for (url, is_built, sentence) in [
            ("tcp://127.0.0.1:0", true, ""),
            ("ofi+tcp://", cfg!(feature = "ofi"), "--features ofi"),
            ("verbs://rxe0", cfg!(feature = "verbs"), "--features verbs"),
            ("sm://", false, "tcp://, ofi+PROVIDER:// or verbs://"),
        ] {
            let url = Address::new(url).unwrap();
            match plugin_of(&url) {
                Ok(plugin) => assert!(is_built && !plugin.schemes().is_empty()),
                Err(error) => assert!(!is_built && error.to_string().contains(sentence), "{error}"),
            }
        }
    }
}
