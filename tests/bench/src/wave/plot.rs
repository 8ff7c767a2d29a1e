//! The errors of each frame of each movie, as an SVG.

use anyhow::{Context, Result};
use plotters::prelude::*;

use super::movie::{MovieFrame, WaveMovie};

const WIDTH: u32 = 900;
const CHARTS_HEIGHT: u32 = 600;
const LEGEND_COLUMNS: usize = 4;
const LEGEND_ROW: u32 = 18;
const FONT: (&str, u32) = ("sans-serif", 15);
const TITLE_FONT: (&str, u32) = ("sans-serif", 18);
/// Colours that people with red-green colour blindness can tell apart.
const COLOURS: [RGBColor; 9] = [
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xaa, 0x44, 0x99),
    RGBColor(0x88, 0x22, 0x55),
    RGBColor(0x66, 0x66, 0x66),
    RGBColor(0x44, 0xaa, 0x99),
    RGBColor(0xdd, 0xcc, 0x77),
];

/// The plotted value of a frame.
type FrameValue = fn(&MovieFrame) -> f64;
type ChartArea<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Two charts, one below the other: RMSE and wrong cells of each frame.
pub(crate) fn errors(movies: &[&WaveMovie], frame_ms: u64) -> Result<String> {
    let mut svg = String::new();
    draw(&mut svg, movies, frame_ms).context("draw the errors")?;
    Ok(svg)
}

fn draw(svg: &mut String, movies: &[&WaveMovie], frame_ms: u64) -> Result<()> {
    let legend_rows = movies.len().div_ceil(LEGEND_COLUMNS) as u32;
    let size = (WIDTH, CHARTS_HEIGHT + (legend_rows + 1) * LEGEND_ROW);
    let root = SVGBackend::with_string(svg, size).into_drawing_area();
    root.fill(&WHITE)?;
    let (charts, legend) = root.split_vertically(CHARTS_HEIGHT);
    let values: [(&str, FrameValue); 2] = [
        ("RMSE of a frame, mm", |frame| frame.rmse_mm),
        ("wrong cells in a frame", |frame| frame.wrong_cells as f64),
    ];
    for (area, (title, value)) in charts.split_evenly((values.len(), 1)).iter().zip(values) {
        draw_chart(area, title, movies, value, frame_ms)?;
    }
    for (nth, (movie, colour)) in movies.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let x = 70 + (nth % LEGEND_COLUMNS) as i32 * 205;
        let y = (nth / LEGEND_COLUMNS) as i32 * LEGEND_ROW as i32 + 10;
        legend.draw(&PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(3)))?;
        legend.draw(&Text::new(movie.title.clone(), (x + 24, y - 6), FONT))?;
    }
    root.present()?;
    Ok(())
}

fn draw_chart(
    area: &ChartArea<'_>,
    title: &str,
    movies: &[&WaveMovie],
    value: FrameValue,
    frame_ms: u64,
) -> Result<()> {
    let seconds = |frames: usize| frames as f64 * frame_ms as f64 / 1e3;
    let frames = movies.iter().map(|movie| movie.frames.len()).max().unwrap_or(0).max(2);
    let largest = movies.iter().flat_map(|movie| &movie.frames).map(value).fold(1e-3, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(title, TITLE_FONT)
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(60)
        .build_cartesian_2d(seconds(1)..seconds(frames), 0.0..1.05 * largest)?;
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh().max_light_lines(0).x_desc("s").label_style(FONT).draw()?;
    for (movie, colour) in movies.iter().zip(COLOURS.iter().cycle()) {
        let points = movie.frames.iter().enumerate().map(|(nth, of)| (seconds(nth + 1), value(of)));
        chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
    }
    Ok(())
}
