//! A peer that the local plugin is tried for ([`crate::candidates`]).

use hg_na::OpId;

use crate::uid::Uid;

/// A peer on trial.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) uid: Uid,
    /// What makes the local plugin connect.
    pub(crate) trial: Option<OpId>,
    /// It is reached locally; what waits has had no room yet.
    pub(crate) is_local: bool,
    pub(crate) forgotten: bool,
    pub(crate) is_admitted: bool,
}

impl Candidate {
    /// Nothing was posted to it yet.
    pub(crate) fn new(uid: Uid) -> Self {
        Self { uid, trial: None, is_local: false, forgotten: false, is_admitted: true }
    }
}
