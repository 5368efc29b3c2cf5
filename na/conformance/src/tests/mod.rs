//! The tests, by the sentence of the contract that they hold a plugin to.

pub(crate) mod admission;
pub(crate) mod asleep;
pub(crate) mod begun;
pub(crate) mod chaos;
pub(crate) mod completion;
pub(crate) mod fetched;
pub(crate) mod flow;
pub(crate) mod flushes;
pub(crate) mod hang_ups;
pub(crate) mod identities;
pub(crate) mod matching;
pub(crate) mod messages;
pub(crate) mod one_sided;
pub(crate) mod opening;
pub(crate) mod peers;
pub(crate) mod processes;
pub(crate) mod refusals;
pub(crate) mod room;
pub(crate) mod short_cuts;
pub(crate) mod sleeping;
pub(crate) mod views;
