//! Where a message that came from another process goes next: what [`Routes::next`] says, from a table of first hops.
//!
//! [`Routes::next`]: crate::route::Routes::next

use crate::{
    inner::{HERE, Inner},
    rpc::Lane,
};

impl Inner {
    /// The index of the next hop, or [`HERE`]; `None`: the message must not have come this way.
    #[inline]
    pub(crate) fn onward(&self, lane: Lane, to: u32) -> Option<u32> {
        let first = *self.first_hops.get(to as usize)?;
        // Origin hops come first, then as many relay hops in the same order, then network hops.
        let neighbours = self.neighbours();
        let next = match lane {
            _ if first == HERE => Some(HERE),
            Lane::Origin => (first >= 2 * neighbours).then_some(first),
            Lane::Network => {
                let is_here = self.routes.map().node_of(to) == self.routes.node();
                is_here.then(|| first + neighbours)
            }
            Lane::Relay => None,
        };
        debug_assert_eq!(next, self.onward_by_route(lane, to), "lane {lane:?}, to {to}");
        next
    }

    fn neighbours(&self) -> u32 {
        u32::try_from(self.table.origin.len()).map_or(0, |ranks| ranks - 1)
    }

    /// The same without the table: what it is compared with wherever assertions are on.
    fn onward_by_route(&self, lane: Lane, to: u32) -> Option<u32> {
        let next = self.routes.next(lane.came(), to).ok()?;
        Some(self.table.hop_of(self.routes.map(), next).unwrap_or(HERE))
    }
}
