//! Lifelines come from anybody who finds the port: any bytes are refused or taken as records, and a context over an imitated card goes on.
#![no_main]

#[path = "../../na/verbs/tests/imitated/imitation/mod.rs"]
#[expect(dead_code, reason = "some of it is for tests")]
mod imitation;

use std::{
    cell::RefCell,
    io::Write as _,
    net::{Shutdown, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use hg_na::{Context, Domain, OpenOptions, Plugin as _};
use libfuzzer_sys::fuzz_target;

/// Longest time for which a lifeline that was closed may stand in the table.
const GONE: Duration = Duration::from_secs(8);
/// Rounds between what a stranger says and his end.
const ROUNDS: usize = 4;

thread_local! {
    static END: RefCell<(Arc<dyn Domain>, Box<dyn Context>)> = RefCell::new({
        let url = "verbs://imitated0".parse().expect("an address");
        let plugin = hg_na_verbs::VerbsPlugin::over(&imitation::LIBRARY);
        let domain = plugin.open(&url, &OpenOptions::listening()).expect("it is imitated");
        let context = domain.context(0).expect("the first one");
        (domain, context)
    });
}

fuzz_target!(|data: &[u8]| {
    let Some((cut, bytes)) = data.split_first() else { return };
    hg_na_verbs::fuzz_greeting(bytes);
    END.with_borrow_mut(|(_, context)| {
        let place = context.address().rest().split_once('@').expect("a place").1.to_owned();
        let Ok(mut stranger) = TcpStream::connect(place) else { return };
        let mut done = Vec::new();
        let mut round = |context: &mut Box<dyn Context>| {
            context.progress(Instant::now(), &mut done).expect("no stranger ends an endpoint");
        };
        let (front, back) = bytes.split_at(usize::from(*cut).min(bytes.len()));
        for part in [front, back] {
            // It may have been cut off.
            let _ = stranger.write_all(part);
            (0..ROUNDS).for_each(|_| round(context));
        }
        let _ = stranger.shutdown(Shutdown::Both);
        drop(stranger);
        let end = Instant::now() + GONE;
        while !format!("{context:?}").ends_with(", 0 peers)") || imitation::left(0).0 > 0 {
            assert!(Instant::now() < end, "it is never gone: {context:?}");
            round(context);
        }
    });
});
