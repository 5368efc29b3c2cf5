//! A breadth-first search over a random graph that lies in pieces in the threads of all processes.
//!
//! ```console
//! $ cargo run --release -p hydrargyrum-invoke --example bfs    # starts two processes of two threads itself
//! $ mpirun -n 8 target/release/examples/bfs 1000000 16         # vertices, edges of each
//! ```
//! Each thread owns every n-th vertex. A level is a call for each edge of what was found before, to the owner of its other end. One
//! thread checks the result.

#![expect(clippy::print_stdout, reason = "an example says what it does")]
#![expect(clippy::cast_possible_truncation, reason = "what is counted fits in memory")]

use std::{cell::RefCell, error::Error, mem, thread, time::Instant};

use hg_invoke::{Fabric, Place, Worker, rpc};
use hg_job::{Job, Local, Via};

/// What one thread has: how far its vertices are from the root, those that were found last, and what all have told it, by rounds.
#[derive(Default)]
struct Piece {
    distances: Vec<u32>,
    found: Vec<u64>,
    sums: Vec<u64>,
}

thread_local! {
    static PIECE: RefCell<Piece> = RefCell::default();
}

/// The end of an edge, so far from the root that way: has nobody come here before?
#[rpc(crate = hg_invoke)]
fn visit(place: u64, distance: u32) {
    PIECE.with_borrow_mut(|piece| {
        let known = &mut piece.distances[place as usize];
        if *known == FAR {
            *known = distance;
            piece.found.push(place);
        }
    });
}

/// A thread's part of a sum.
#[rpc(crate = hg_invoke)]
fn tell(round: u32, number: u64) {
    PIECE.with_borrow_mut(|piece| {
        piece.sums.resize(piece.sums.len().max(round as usize + 1), 0);
        piece.sums[round as usize] += number;
    });
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut given = std::env::args().skip(1).map(|word| word.parse::<u64>());
    let vertices = given.next().unwrap_or(Ok(100_000))?.max(1);
    let degree = given.next().unwrap_or(Ok(8))?;
    let job = Job::connect()?;
    if job.via() == Via::Single {
        // Nobody has started several: two of them, here.
        let ended = Local::new(2).run()?;
        std::process::exit(i32::from(ended.code()));
    }
    let workers =
        Fabric::new().threads(THREADS).register(visit)?.register(tell)?.open(&job, "sm://")?;
    thread::scope(|scope| {
        let start = |worker| scope.spawn(move || search(worker, vertices, degree));
        let threads: Vec<_> = workers.into_iter().map(start).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
    })?;
    Ok(job.leave()?)
}

fn search(worker: Worker, vertices: u64, degree: u64) -> Result<(), hg_invoke::Error> {
    let places: Vec<Place> = worker.everybody().collect();
    let all = places.len() as u64;
    let Place { process, thread } = worker.place();
    let me = u64::from(process * u32::from(THREADS) + thread);
    let mut round = 0..;
    // What the numbers of all threads add up to. A thread may tell its next one before another has read this one.
    let mut sum = |number| {
        let round = round.next().expect("few rounds");
        for place in &places {
            worker.call(*place, tell, (round, number))?;
        }
        worker.quiesce()?;
        Ok(PIECE.with_borrow(|piece| piece.sums[round as usize]))
    };
    PIECE.with_borrow_mut(|piece| piece.distances = vec![FAR; vertices.div_ceil(all) as usize]);
    if me == 0 {
        worker.call(places[0], visit, (0, 0))?;
    }
    worker.quiesce()?;
    let start = Instant::now();
    for distance in 1.. {
        let found = PIECE.with_borrow_mut(|piece| mem::take(&mut piece.found));
        if sum(found.len() as u64)? == 0 {
            break;
        }
        for (number, place) in found.into_iter().enumerate() {
            for to in neighbours(place * all + me, vertices, degree) {
                worker.call(places[(to % all) as usize], visit, (to / all, distance))?;
            }
            if number % 16 == 0 {
                worker.progress()?; // Runs what others call meanwhile.
            }
        }
        worker.quiesce()?;
    }
    let distances = PIECE.with_borrow(|piece| piece.distances.clone());
    let near = || distances.iter().filter(|it| **it != FAR);
    let found = sum(near().count() as u64)?;
    let far = sum(near().map(|it| u64::from(*it)).sum())?;
    worker.finish()?;
    if me == 0 {
        let rate = (found * degree) as f64 / start.elapsed().as_secs_f64() / 1e6;
        println!("{found} of {vertices} vertices by {all} threads: {rate:.1} M edges/s");
        assert_eq!((found, far), alone(vertices, degree), "vertices, and their distances");
        println!("one thread finds the same");
    }
    Ok(())
}

/// How many vertices one thread finds, and what their distances add up to.
fn alone(vertices: u64, degree: u64) -> (u64, u64) {
    let mut distances = vec![FAR; vertices as usize];
    distances[0] = 0;
    let (mut queue, mut next) = (vec![0], 0);
    while let Some(&vertex) = queue.get(next) {
        for to in neighbours(vertex, vertices, degree) {
            if distances[to as usize] == FAR {
                distances[to as usize] = distances[vertex as usize] + 1;
                queue.push(to);
            }
        }
        next += 1;
    }
    (queue.len() as u64, queue.iter().map(|it| u64::from(distances[*it as usize])).sum())
}

/// Where the edges of a vertex end: the same in every process (splitmix64).
fn neighbours(vertex: u64, vertices: u64, degree: u64) -> impl Iterator<Item = u64> {
    (0..degree).map(move |edge| {
        let mut random = (vertex * degree + edge + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        random = (random ^ random >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        random = (random ^ random >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (random ^ random >> 31) % vertices
    })
}

const THREADS: u8 = 2;
/// Nobody has come there.
const FAR: u32 = u32::MAX;
