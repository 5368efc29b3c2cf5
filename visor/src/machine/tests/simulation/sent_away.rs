//! Applications that are disconnected.

use hg_na::Identity;

use super::{QUOTA, World};
use crate::{machine::PartyKey, wire::Hello};

impl World {
    pub(super) fn hung_up(&mut self, at: usize, key: PartyKey, why: &str) {
        let place = self.apps.iter().position(|app| (app.node, app.key) == (at, key));
        assert!(!self.legs.contains_key(&(at, key)), "a daemon was disconnected: {why}");
        // It may have died since.
        let Some(place) = place else { return };
        if why.contains("say who it is") {
            return self.come_again(place);
        }
        let app = &self.apps[place];
        let stands = why.contains("does not answer") && !app.inbox.is_empty();
        self.stood += usize::from(app.is_honest && stands);
        let may_be = !app.is_honest || stands && self.drains[at].is_some();
        assert!(may_be, "an honest application was disconnected: {why}");
        self.excuse(place);
        self.apps.remove(place);
    }

    /// Whoever was refused, and has not said hello again for long, has to connect again.
    fn come_again(&mut self, place: usize) {
        let app = &mut self.apps[place];
        assert!(!app.is_welcome, "an application was taken for a stranger");
        (app.is_refused, app.is_stopped) = (false, false);
        app.inbox.clear();
        let switch = &mut self.switches[app.node];
        app.key = switch.arrived(Identity::default(), QUOTA);
        switch.handle(app.key, Hello { listens: true, name: &app.name }.frame());
    }
}
