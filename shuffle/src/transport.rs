//! How the engine of a side is opened: inside a node, or between nodes.

/// What the engine of a side is opened with.
pub(crate) struct Transport<'a> {
    pub(crate) url: &'a str,
    pub(crate) settings: &'a [(String, String)],
    pub(crate) key: Option<[u8; 32]>,
}

/// How the engine of a side is opened, less its limits.
pub(crate) fn builder(Transport { url, settings, key }: Transport<'_>) -> hg::Builder {
    let mut builder = hg::builder().listen(true).progress(hg::Progress::Own);
    if url.split("://").next().is_some_and(|scheme| scheme.ends_with("tcp")) {
        // Nodes that are imitated on one machine are to use their network.
        builder = builder.setting("routing", "off");
    }
    for (name, value) in settings {
        builder = builder.setting(name, value);
    }
    key.into_iter().fold(builder, hg::Builder::key)
}
