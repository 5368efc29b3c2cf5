//! How engines are opened with the transports of this build.

use hg_engine::{Builder, Engine};
use hg_na::{Error, Offer};

use crate::schemes;

/// Opens an engine that others can connect to, and has no handler yet: whoever calls it before one is registered is told
/// that there is none. Handlers that are there from the start are given to [`builder`]. The URL chooses the transport: `sm://`,
/// `sm://name`, or `tcp://`, `tcp://host:port`, which is reached by shared memory inside the node (feature `sm-routing`), or
/// libfabric's `ofi+tcp://host:port`, `ofi+shm://name`, `ofi+verbs://`, ... (feature `ofi`; the same), or `verbs://device` (feature `verbs`;
/// the same), or `visor://`, `visor://name` through this node's daemon `hg-visor` (feature `visor`).
///
/// An idle engine sleeps, except where libfabric has nothing to sleep on (`ofi+shm://` of 1.17, `ofi+udp://`, `ofi+net://`, and routes over
/// them): there it looks in steps that grow to 4 ms, and so late hears the first message after a pause ([`crate::offers`] says where, and so does
/// `hydrargyrum info`).
///
/// # Errors
/// [`Error::NoPlugin`], [`Error::AddressInUse`], and whatever the transport has to say.
pub fn listen(url: &str) -> Result<Engine, Error> {
    builder().listen(true).open(url)
}

/// Opens an engine that connects to others.
///
/// # Errors
/// The same as for [`listen`].
pub fn open(url: &str) -> Result<Engine, Error> {
    builder().open(url)
}

/// All settings, with the transports of this build; others can be added by [`Builder::plugin`].
///
/// # Handlers other than functions
/// A closure that may block runs on a pool of threads ([`Engine::serve_blocking`]); one that gives a future is polled
/// by the thread that makes progress ([`Engine::serve_async`]); one that is given an [`Answer`](crate::Answer) sends it
/// when it likes, from any thread ([`Engine::serve_later`]). Only the first may `wait` for a call of its own.
///
/// Such closures take the arguments as a tuple, `(key,)` even when there is one, and give a `Result`, `Ok(())` even
/// when nothing can fail. Any thread may run them: what they change is in an `Arc<Mutex<...>>` or an atomic.
/// Borrowed arguments (`&str`, `&[u8]`) end with the closure: before `async move`, make them owned
/// (`let key = key.to_owned();`). An `async fn` with `#[hg::rpc]` may use its own all the time.
/// ```
/// #[hg::rpc]
/// fn sum(numbers: &[u8]) -> u64;
/// #[hg::rpc]
/// fn twice(number: u64) -> u64;
/// #[hg::rpc]
/// fn ticket() -> u64;
///
/// let (sender, answers) = std::sync::mpsc::channel::<hg::Answer<ticket>>();
/// let target = hg::builder()
///     .serve_blocking(sum, |_request, (numbers,)| Ok(numbers.iter().map(|&it| u64::from(it)).sum()))?
///     .serve_async(twice, |_request, (number,)| async move { Ok(2 * number) })?
///     .serve_later(ticket, move |_request, (), answer| {
///         // Dropped, the answer tells the caller that there is none.
///         let _ = sender.send(answer);
///     })?
///     .listen(true)
///     .open("sm://")?;
/// let clerk = std::thread::spawn(move || answers.iter().zip(1..).for_each(|(it, number)| it.send(Ok(number))));
///
/// let origin = hg::open("sm://")?;
/// let peer = origin.lookup(target.address())?;
/// assert_eq!(origin.call(sum, &peer, (&[1, 2, 3],)).wait()?, 6);
/// assert_eq!(origin.call(twice, &peer, (21,)).wait()?, 42);
/// assert_eq!(origin.call(ticket, &peer, ()).wait()?, 1);
/// target.deregister(ticket);
/// target.close();
/// # drop((target, clerk));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn builder() -> Builder {
    let builder = Builder::new().advice(schemes::advice);
    #[cfg(feature = "sm")]
    let builder = builder.plugin(hg_na_sm::SmPlugin);
    #[cfg(feature = "tcp")]
    let builder = builder.plugin(hg_na_tcp::TcpPlugin);
    #[cfg(feature = "ofi")]
    let builder = builder.plugin(hg_na_ofi::OfiPlugin);
    #[cfg(feature = "verbs")]
    let builder = builder.plugin(hg_na_verbs::VerbsPlugin::default());
    #[cfg(feature = "visor")]
    let builder = builder.plugin(hg_visor::VisorPlugin::default());
    // The last one that takes a scheme wins: this is what `tcp://` means, unless `routing` is `off`.
    #[cfg(feature = "sm-routing")]
    let builder = builder.plugin(hg_na_route::Route::new(
        hg_na_sm::SmPlugin,
        hg_na_tcp::TcpPlugin,
        hg_na_sm::node_id,
        &[hg_na::UID, "tcp", "sm+tcp"],
    ));
    #[cfg(all(feature = "sm-routing", feature = "ofi"))]
    let builder = builder.plugin(hg_na_route::Route::new(
        hg_na_sm::SmPlugin,
        hg_na_ofi::OfiPlugin,
        hg_na_sm::node_id,
        &OFI_ROUTED,
    ));
    #[cfg(all(feature = "sm-routing", feature = "verbs"))]
    let builder = builder.plugin(hg_na_route::Route::new(
        hg_na_sm::SmPlugin,
        hg_na_verbs::VerbsPlugin::default(),
        hg_na_sm::node_id,
        &["verbs", "sm+verbs"],
    ));
    builder
}

/// What the transports of this build offer on this machine: each URL that can be opened, on which interface or
/// card and by which provider; and for what is missing, what to install. The command `hydrargyrum info` prints it.
///
/// ```
/// for offer in hg::offers().iter().filter(|offer| offer.is_available()) {
///     println!("{} on {:?}", offer.url, offer.domain);
/// }
/// ```
#[must_use]
pub fn offers() -> Vec<Offer> {
    builder().offers()
}

/// What of libfabric's crosses a network, alone and with shared memory inside the node.
#[cfg(all(feature = "sm-routing", feature = "ofi"))]
const OFI_ROUTED: [&str; 16] = [
    "ofi+tcp",
    "ofi+verbs",
    "ofi+cxi",
    "ofi+efa",
    "ofi+psm3",
    "ofi+psm2",
    "ofi+opx",
    "ofi+ucx",
    "sm+ofi+tcp",
    "sm+ofi+verbs",
    "sm+ofi+cxi",
    "sm+ofi+efa",
    "sm+ofi+psm3",
    "sm+ofi+psm2",
    "sm+ofi+opx",
    "sm+ofi+ucx",
];
