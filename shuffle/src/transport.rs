//! How a process's engine is opened: one for shared memory inside its node and for the network between nodes, so that one
//! thread makes the progress of both, and sleeps for both.

use crate::Options;

/// What an engine is opened with.
pub(crate) struct Transport<'a> {
    pub(crate) url: &'a str,
    pub(crate) settings: &'a [(String, String)],
    pub(crate) key: Option<[u8; 32]>,
}

impl Transport<'_> {
    /// With this key, unless its settings name another one or it takes none: whatever part of the URL is a network has it.
    pub(crate) fn with_key(self, key: Option<[u8; 32]>) -> Self {
        let is_key = |name: &str| matches!(name.rsplit('.').next(), Some("key-file" | "key-env"));
        let has_own = self.settings.iter().any(|(name, _)| is_key(name));
        let key = key.filter(|_| !has_own && hg::builder().takes_key(self.url));
        Self { key, ..self }
    }
}

/// How an engine is opened, less its limits.
pub(crate) fn builder(Transport { url, settings, key }: Transport<'_>) -> hg::Builder {
    let mut builder = hg::builder().listen(true).progress(hg::Progress::Own);
    let scheme = scheme_of(url);
    let network = scheme.strip_prefix(WITH_MEMORY);
    if network.is_none() && (scheme.ends_with("tcp") || scheme.ends_with("verbs")) {
        // Nodes that are imitated on one machine are to use their network.
        builder = builder.setting("routing", "off");
    }
    for (name, value) in settings {
        let name = match network {
            // Shared memory may have a setting of the same name.
            Some(network) if !name.contains('.') => format!("{network}.{name}"),
            _ => name.clone(),
        };
        builder = builder.setting(&name, value);
    }
    key.into_iter().fold(builder, hg::Builder::key)
}

/// The URL of an engine of both, in a job of several nodes. `Err`: why there is none.
pub(crate) fn both(local: &str, network: &str) -> Result<String, String> {
    if scheme_of(local) == scheme_of(network) || local == MEMORY && network.starts_with(WITH_MEMORY)
    {
        Ok(network.to_owned())
    } else if local == MEMORY {
        Ok(format!("{WITH_MEMORY}{network}"))
    } else {
        Err(format!("{local} is neither {MEMORY} nor of the transport of {network}"))
    }
}

/// Settings of an engine for a node alone: those of the network where that is what it uses.
pub(crate) fn local_settings(options: &Options) -> &[(String, String)] {
    let Options { local_url, network_url, network_settings, .. } = options;
    if scheme_of(local_url) == scheme_of(network_url) { network_settings } else { &[] }
}

/// Why an engine was not opened.
pub(crate) fn not_opened(url: &str, error: &hg::Error) -> String {
    match (error, url.strip_prefix(WITH_MEMORY)) {
        (hg::Error::NoPlugin { .. }, Some(network)) => format!(
            "nothing has shared memory and {network} under one address: set `local_url` to {network}, too"
        ),
        _ => format!("{url}: {error}"),
    }
}

/// Where others reach an engine: inside its node and by the network, or one address for both.
pub(crate) fn addresses(engine: &hg::Engine) -> Vec<&str> {
    let address = engine.address().as_str();
    match scheme_of(address) {
        // Before the first one stands the node's id.
        "uid" => address.split('#').skip(1).collect(),
        _ => vec![address],
    }
}

fn scheme_of(url: &str) -> &str {
    url.split("://").next().unwrap_or_default()
}

const MEMORY: &str = "sm://";
const WITH_MEMORY: &str = "sm+";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_networks_that_take_a_key_get_one_unless_the_settings_name_theirs() {
        let has_key = |url: &str, setting: &str| {
            let settings = [(setting.to_owned(), "there".to_owned())];
            Transport { url, settings: &settings, key: None }.with_key(Some([7; 32])).key.is_some()
        };
        for url in
            ["tcp://", "tcp://[::1]:7000", "sm+tcp://127.0.0.1", "ofi+tcp://", "sm+ofi+tcp://"]
        {
            assert!(has_key(url, "silence-bound-ms"), "{url}");
            for own in ["key-file", "key-env", "tcp.key-file", "ofi+tcp.key-env"] {
                assert!(!has_key(url, own), "{url}, {own}");
            }
        }
        for url in ["sm://", "sm://name", "nothing://"] {
            assert!(!has_key(url, "silence-bound-ms"), "{url}");
        }
    }
}
