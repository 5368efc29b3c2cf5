//! What a bare link carries: a plain stream between two ranks, with nothing of this project on it.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    time::Instant,
};

use hg_job::Job;

use crate::{Error, arguments::Rate, network};

/// Bytes a second from rank 0 to rank 1 over a link of this rate, by what takes a second there, or less. Collective.
///
/// # Errors
/// Of the sockets, or of the job.
pub(crate) fn bytes_per_s(job: &Job, link: Rate) -> Result<f64, Error> {
    let blocks = (link.0 / 8 / BLOCK as u64).clamp(1, BLOCKS_MAX);
    let listener = (job.rank() == 1).then(|| TcpListener::bind("0.0.0.0:0")).transpose();
    let listener = listener.map_err(Error::Link)?;
    let port = listener.as_ref().map(|it| it.local_addr().map(|it| it.port()));
    let port = port.transpose().map_err(Error::Link)?.unwrap_or(0);
    let ports = job.all_gather(&port.to_le_bytes())?;
    let mut rate = 0.0;
    if let Some(listener) = listener {
        receive(&listener, blocks).map_err(Error::Link)?;
    } else if job.rank() == 0 {
        let port = ports[1].first_chunk().map_or(0, |bytes| u16::from_le_bytes(*bytes));
        rate = send(port, blocks).map_err(Error::Link)?;
    }
    let rates = job.all_gather(&f64::to_le_bytes(rate))?;
    Ok(rates[0].first_chunk().map_or(0.0, |bytes| f64::from_le_bytes(*bytes)))
}

fn receive(listener: &TcpListener, blocks: u64) -> std::io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    let mut block = vec![0; BLOCK];
    for _ in 0..blocks {
        stream.read_exact(&mut block)?;
    }
    stream.write_all(&[1])
}

#[expect(clippy::cast_precision_loss, reason = "a few megabytes")]
fn send(port: u16, blocks: u64) -> std::io::Result<f64> {
    let mut stream = TcpStream::connect((network::address(1), port))?;
    let block = vec![0; BLOCK];
    let start = Instant::now();
    for _ in 0..blocks {
        stream.write_all(&block)?;
    }
    stream.read_exact(&mut [0])?;
    Ok((BLOCK as u64 * blocks) as f64 / start.elapsed().as_secs_f64())
}

const BLOCK: usize = 64 << 10;
const BLOCKS_MAX: u64 = 24 << 4;
