//! What a context may hold.

/// What a context may hold for all its peers together.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Calls under way.
    pub calls_max: usize,
    /// Requests in service.
    pub in_service_max: usize,
    /// Above this number requests are answered with [`Status::Overloaded`](crate::error::Status::Overloaded).
    pub reject_above: Option<usize>,
    /// Bytes of requests that wait for room in the transport; as many of answers, and of large arguments of one-way calls that
    /// their targets have not pulled.
    pub backlog_bytes_max: u64,
    /// Bytes of large results that their origins have not pulled.
    pub results_bytes_max: u64,
}
