//! Positions whose results are known, and all ways to search them.

use hg_mcts::{Audit, Game, Parallelism, Placement, Search, Settings, VirtualLoss, hex::Hex};

/// Every way to share a search, with every virtual loss.
pub(crate) fn all_settings() -> Vec<Settings> {
    let losses = [VirtualLoss::Count, VirtualLoss::Loss(3), VirtualLoss::Unobserved];
    let placements = [Placement::Random, Placement::Hash, Placement::Local(1)];
    let mut all = Vec::new();
    for placement in placements {
        for virtual_loss in losses {
            for (workers, window) in [(1, 1), (2, 48)] {
                all.push(Settings { virtual_loss, placement, workers, window, ..small() });
            }
        }
        all.push(Settings { placement, workers: 3, window: 8, ..small() });
    }
    for parallelism in [Parallelism::Root, Parallelism::Merged] {
        all.push(Settings { workers: 2, parallelism, ..small() });
    }
    all
}

pub(crate) fn small() -> Settings {
    let parallelism = Parallelism::Tree;
    Settings { simulations: 4, memory: 32 << 20, seed: 11, parallelism, ..Settings::default() }
}

pub(crate) fn board(size: u8, moves: &str) -> Hex {
    let mut board = Hex::new(size).expect("a size that there is");
    board.play_all(moves).expect("moves that can be made");
    board
}

/// Which openings win, row by row. From solvers of their own: Hex up to 9x9 is solved.
pub(crate) const OPENINGS: [(u8, &str); 4] = [
    (2, "LW/WL"),
    (3, "LLW/WWW/WLL"),
    (4, "LLLW/LLWL/LWLL/WLLL"),
    (5, "LLLLW/LWWWW/LWWWL/WWWWL/WLLLL"),
];

pub(crate) fn opening_wins(size: u8, mv: u16) -> bool {
    let (_, rows) = OPENINGS.iter().find(|(it, _)| *it == size).expect("a solved size");
    rows.bytes().filter(|it| *it != b'/').nth(mv.into()) == Some(b'W')
}

pub(crate) fn balanced(search: &Search<impl Game>) {
    let audit = search.audit().expect("everybody is there");
    assert!(audit.nodes > 0);
    assert_eq!(audit, Audit { nodes: audit.nodes, ..Audit::default() });
}
