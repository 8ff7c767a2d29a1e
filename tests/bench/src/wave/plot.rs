//! The errors of each frame of each movie, as an SVG.

use std::fmt::Write;

use super::movie::{MovieFrame, WaveMovie};

const WIDTH: f64 = 900.0;
const CHART: f64 = 230.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const GAP: f64 = 56.0;
const TOP: f64 = 34.0;
/// Colours that people with red-green colour blindness can tell apart.
const COLOURS: [&str; 9] = [
    "#d55e00", "#e69f00", "#0072b2", "#009e73", "#aa4499", "#882255", "#666666", "#44aa99",
    "#ddcc77",
];

/// What is plotted of a frame.
type FrameValue = fn(&MovieFrame) -> f64;

/// Two charts, one below the other: RMSE and wrong cells of each frame.
pub(crate) fn errors(movies: &[&WaveMovie], frame_ms: u64) -> String {
    let legend_rows = movies.len().div_ceil(4) as f64;
    let height = TOP + 2.0 * (CHART + GAP) + legend_rows * 18.0 + 6.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let charts: [(&str, FrameValue); 2] = [
        ("RMSE of a frame, mm", |frame| frame.rmse_mm),
        ("wrong cells in a frame", |frame| frame.wrong_cells as f64),
    ];
    for (nth, (title, value)) in charts.into_iter().enumerate() {
        let top = TOP + nth as f64 * (CHART + GAP);
        chart(&mut svg, top, title, movies, value, frame_ms);
    }
    for (nth, movie) in movies.iter().enumerate() {
        let x = LEFT + (nth % 4) as f64 * 205.0;
        let y = TOP + 2.0 * (CHART + GAP) + (nth / 4) as f64 * 18.0;
        let (colour, to) = (COLOURS[nth % COLOURS.len()], x + 18.0);
        let _ = writeln!(
            svg,
            "<path d=\"M{x} {:.1}H{to}\" stroke=\"{colour}\" stroke-width=\"3\"/><text x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
            y - 4.0,
            to + 6.0,
            movie.title
        );
    }
    svg + "</svg>\n"
}

fn chart(
    svg: &mut String,
    top: f64,
    title: &str,
    movies: &[&WaveMovie],
    value: FrameValue,
    frame_ms: u64,
) {
    let frames = movies.iter().map(|movie| movie.frames.len()).max().unwrap_or(1).max(2);
    let largest = movies.iter().flat_map(|movie| &movie.frames).map(value).fold(0.0, f64::max);
    let tick = tick(largest);
    let highest = (largest / tick).ceil().max(1.0) * tick;
    let x = |frame: usize| LEFT + frame as f64 / (frames - 1) as f64 * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| top + CHART * (1.0 - value / highest);
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{:.1}\" font-weight=\"bold\">{title}</text>",
        top - 10.0
    );
    for nth in 0..=(highest / tick).round() as usize {
        let (at, value) = (y(nth as f64 * tick), nth as f64 * tick);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {at:.1}H{:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0
        );
    }
    for frame in (0..frames).filter(|frame| (frame + 1) % (frames / 10).max(1) == 0) {
        let seconds = (frame + 1) as f64 * frame_ms as f64 / 1e3;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{seconds} s</text>",
            x(frame),
            top + CHART + 18.0
        );
    }
    for (nth, movie) in movies.iter().enumerate() {
        let mut points = String::new();
        for (frame, of) in movie.frames.iter().enumerate() {
            let _ = write!(points, "{:.1},{:.1} ", x(frame), y(value(of)));
        }
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\" points=\"{}\"/>",
            COLOURS[nth % COLOURS.len()],
            points.trim_end()
        );
    }
}

/// A round step that makes about five of `largest`.
fn tick(largest: f64) -> f64 {
    let rough = (largest / 5.0).max(1e-3);
    let power = 10_f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|it| it * power).into_iter().find(|it| *it >= rough).unwrap_or(power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!([10.0, 9_800.0, 3.1].map(tick), [2.0, 2_000.0, 1.0]);
    }
}
