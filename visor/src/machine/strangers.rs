//! Whoever has connected and has not said who he is. He may take his time: he makes room only where places run short.

use super::{
    Switch,
    party::{PartyKey, Role},
};

/// Places that a daemon has besides those of `max-applications`, for whoever has not said who he is.
pub(crate) const SPARE: u32 = 256;
/// So many places are kept free, for newcomers and whoever asks for `status` or a `drain`.
pub(super) const RESERVE: u32 = 64;

impl Switch {
    /// Where places run short, strangers make room, those who have come first before others. Who waits for an answer is no such stranger.
    pub(crate) fn make_room(&mut self) {
        let places = self.limits[0].saturating_add(SPARE - RESERVE) as usize;
        let too_many = (self.parties.len() - self.daemons).saturating_sub(places);
        if too_many == 0 {
            return;
        }
        let silent = self.parties.iter().filter(|(key, party)| {
            let is_awaited = party.is_listed || self.drainers.contains(key);
            matches!(party.role, Role::Stranger) && !is_awaited
        });
        let mut silent: Vec<PartyKey> = silent.map(|(key, _)| *key).collect();
        silent.sort_unstable();
        for key in silent.into_iter().take(too_many) {
            self.send_away(key, "it does not say who it is, and places run short");
        }
    }
}
