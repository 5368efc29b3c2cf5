//! Two processes of nodes that have a daemon, like Berkeley's sockets: `sockets serve`, and `sockets call ADDRESS` with what that prints.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{error::Error, time::Duration};

use hg_na::{Address, OpenOptions, Plugin as _};
use hg_sockets::{Flags, Sockets};
use hg_visor::VisorPlugin;

const PORT: u32 = 7;
const PATIENCE: Option<Duration> = Some(Duration::from_secs(10));

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve"] => serve(&VisorPlugin::default(), |address| println!("{address}")),
        ["call", address] => call(&VisorPlugin::default(), address),
        _ => Err("sockets serve | sockets call ADDRESS".into()),
    }
}

/// Answers one connection, whose messages land in memory of its own.
pub(crate) fn serve(
    plugin: &VisorPlugin,
    ready: impl FnOnce(&Address),
) -> Result<(), Box<dyn Error>> {
    let domain = plugin.open(&Address::new("visor://")?, &OpenOptions::listening())?;
    let sockets = Sockets::over(domain)?;
    let listener = sockets.listen(PORT, 16)?;
    ready(sockets.address());
    let connection = listener.accept(Flags::RC, PATIENCE)?;
    let memory = sockets.register(vec![0; 1 << 20])?;
    loop {
        match connection.recv_zero_copy(&memory, Flags::empty(), PATIENCE) {
            Err(hg_sockets::Error::Closed) => return Ok(()),
            len => connection.send(&len?.to_le_bytes(), Flags::empty(), PATIENCE)?,
        }
    }
}

/// Sends a short message, and a long one as the load decides, and one that the far side is to read.
pub(crate) fn call(plugin: &VisorPlugin, address: &str) -> Result<(), Box<dyn Error>> {
    let domain = plugin.open(&Address::new("visor://")?, &OpenOptions::default())?;
    let connection =
        Sockets::over(domain)?.connect(&Address::new(address)?, PORT, Flags::RC, PATIENCE)?;
    for (len, flags) in [(5, Flags::RC), (1 << 20, Flags::RC), (1 << 20, Flags::RC | Flags::READ)] {
        connection.send(&vec![1; len], flags, PATIENCE)?;
        let mut answer = [0; 8];
        connection.recv(&mut answer, Flags::empty(), PATIENCE)?;
        println!("{} bytes have landed", u64::from_le_bytes(answer));
    }
    Ok(connection.close(PATIENCE)?)
}
