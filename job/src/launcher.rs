//! Whoever has started this process, as far as it is spoken to.

use crate::{pmi, pmix};

/// The launcher, as far as it is needed after the ranks have met.
#[derive(Debug)]
pub(crate) enum Launcher {
    Pmi(pmi::Client),
    Pmix(pmix::Client),
}
