//! The board with the visits of its moves as a heat map, and simulations over time, as an SVG file.

use std::{
    fmt::{self, Write as _},
    fs, io,
    path::Path,
};

use hg_mcts::{Analysis, Player, Progress, hex::Hex};

pub(crate) fn write(file: &Path, board: &Hex, found: &Analysis) -> Result<(), String> {
    let mut out = String::new();
    draw(&mut out, board, found).expect("a string takes everything");
    fs::write(file, out).map_err(|error| unwritten(file, &error))
}

pub(crate) fn unwritten(file: &Path, error: &io::Error) -> String {
    format!("{} cannot be written: {error}", file.display())
}

const RADIUS: f64 = 20.0;
/// Half of a cell's width: cells stand on a corner.
const HALF: f64 = 0.866_025_4 * RADIUS;
const MARGIN: f64 = 40.0;
const CHART: f64 = 160.0;

#[expect(clippy::cast_precision_loss, reason = "drawn")]
fn draw(out: &mut String, board: &Hex, found: &Analysis) -> fmt::Result {
    let size = f64::from(board.size());
    let width = 2.0 * MARGIN + HALF * (3.0 * size - 1.0);
    let top = 2.0 * MARGIN + RADIUS * (1.5 * size + 0.5);
    let height = top + CHART + MARGIN;
    writeln!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" font-family="sans-serif" font-size="10" text-anchor="middle">"#
    )?;
    writeln!(out, r#"<rect width="{width:.0}" height="{height:.0}" fill="white"/>"#)?;
    let most = found.candidates.first().map_or(1, |it| it.visits.max(1)) as f64;
    for row in 0..board.size() {
        for column in 0..board.size() {
            let cell = u16::from(row) * u16::from(board.size()) + u16::from(column);
            let visits = found.candidates.iter().find(|it| it.mv == cell).map_or(0, |it| it.visits);
            draw_cell(out, board, (row, column), visits, visits as f64 / most)?;
        }
    }
    draw_edges(out, board)?;
    draw_chart(out, &found.samples, (MARGIN, top, width - 2.0 * MARGIN))?;
    writeln!(out, "</svg>")
}

fn centre(row: u8, column: u8) -> (f64, f64) {
    let (row, column) = (f64::from(row), f64::from(column));
    (MARGIN + HALF * (2.0 * column + row + 1.0), MARGIN + RADIUS * (1.5 * row + 1.0))
}

fn draw_cell(
    out: &mut String,
    board: &Hex,
    (row, column): (u8, u8),
    visits: u64,
    heat: f64,
) -> fmt::Result {
    let (x, y) = centre(row, column);
    let corners = [(0.0, -1.0), (1.0, -0.5), (1.0, 0.5), (0.0, 1.0), (-1.0, 0.5), (-1.0, -0.5)]
        .map(|(right, down)| format!("{:.1},{:.1}", x + right * HALF, y + down * RADIUS));
    // From white to red; the root shows rare visits too.
    let cold = (255.0 * (1.0 - heat.sqrt())).round();
    writeln!(
        out,
        r##"<polygon points="{}" fill="rgb(255,{cold},{cold})" stroke="#888"/>"##,
        corners.join(" ")
    )?;
    match board.stone(row, column) {
        Some(player) => {
            let colour = colour(player);
            writeln!(
                out,
                r#"<circle cx="{x:.1}" cy="{y:.1}" r="{:.1}" fill="{colour}"/>"#,
                0.7 * RADIUS
            )
        }
        None if visits > 0 => {
            let text = short(visits);
            writeln!(out, r#"<text x="{x:.1}" y="{:.1}">{text}</text>"#, y + 3.5)
        }
        None => Ok(()),
    }
}

fn colour(player: Player) -> &'static str {
    match player {
        Player::First => "#222222",
        Player::Second => "#1f77b4",
    }
}

/// Letters and numbers, in the colours of those who join these edges.
fn draw_edges(out: &mut String, board: &Hex) -> fmt::Result {
    for at in 0..board.size() {
        let letter = char::from(b'a' + at);
        let (first, second) = (colour(Player::First), colour(Player::Second));
        let (x, y) = centre(0, at);
        writeln!(
            out,
            r#"<text x="{x:.1}" y="{:.1}" fill="{first}">{letter}</text>"#,
            y - 1.3 * RADIUS
        )?;
        let (x, y) = centre(at, 0);
        writeln!(
            out,
            r#"<text x="{:.1}" y="{:.1}" fill="{second}">{}</text>"#,
            x - 1.4 * RADIUS,
            y + 3.5,
            at + 1
        )?;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "drawn")]
fn draw_chart(
    out: &mut String,
    samples: &[Progress],
    (left, top, width): (f64, f64, f64),
) -> fmt::Result {
    let Some(last) = samples.last() else { return Ok(()) };
    let (time, most) = (last.elapsed.as_secs_f64().max(1e-9), last.simulations.max(1) as f64);
    let bottom = top + CHART;
    let mut points = String::new();
    for it in samples {
        let x = left + width * it.elapsed.as_secs_f64() / time;
        let y = bottom - CHART * it.simulations as f64 / most;
        write!(points, "{x:.1},{y:.1} ")?;
    }
    writeln!(
        out,
        r##"<path d="M{left:.1} {top:.1}V{bottom:.1}H{:.1}" fill="none" stroke="#888"/>"##,
        left + width
    )?;
    writeln!(out, r##"<polyline points="{points}" fill="none" stroke="#d62728"/>"##)?;
    let middle = left + width / 2.0;
    let total = short(last.simulations);
    writeln!(
        out,
        r#"<text x="{middle:.1}" y="{:.1}">{total} simulations in {time:.2} s</text>"#,
        bottom + 16.0
    )
}

/// At most four characters.
fn short(count: u64) -> String {
    match count {
        0..1_000 => count.to_string(),
        1_000..1_000_000 => format!("{}k", count / 1_000),
        _ => format!("{}M", count / 1_000_000),
    }
}
