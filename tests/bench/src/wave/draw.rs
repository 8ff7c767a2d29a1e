//! The movies as pictures: the truth and each movie side by side, one scale of colours for all.

use std::path::Path;

use anyhow::{Context, Result};
use embedded_graphics::geometry::{Point, Size};

use super::canvas::{Canvas, Ink, LINE, animated};
use super::movie::{MovieFrame, WaveMovie};
use super::wave_run::WavePlan;

/// Pixels along a cell's side.
const SCALE: u32 = 3;
const MARGIN: u32 = 16;
const LEADING: u32 = LINE + 4;
/// The paper shows its 37th.
const SHOWN: usize = 37;
/// The movies that are animated, in order; the last if there is a Kafka to compare with.
const ANIMATED: [&str; 5] = ["a", "a2", "b", "c", "kafka-a"];

/// The drawing of one movie at one frame.
struct MoviePanel<'a> {
    title: &'a str,
    frame: Option<&'a MovieFrame>,
    surface: Vec<Option<f32>>,
}

/// The style of pictures.
struct DrawStyle {
    side: u32,
    /// The height in metres that has the last colour.
    height_max: f32,
    has_errors: bool,
}

impl DrawStyle {
    fn of(plan: &WavePlan, has_errors: bool) -> DrawStyle {
        let mut heights: Vec<f32> = plan.film.iter().flatten().map(|it| it.abs()).collect();
        heights.sort_by(f32::total_cmp);
        // Few cells are higher, where a drop has just fallen.
        let height_max = heights[heights.len() * 998 / 1000].max(1e-3);
        DrawStyle { side: plan.mesh.cells_side() as u32 * SCALE, height_max, has_errors }
    }

    fn panel_height(&self) -> u32 {
        let pictures = if self.has_errors { 2 * self.side + 4 } else { self.side };
        2 * LEADING + 4 + pictures + MARGIN
    }

    fn water(&self, height: Option<f32>) -> Ink {
        height.map_or(Ink::NOTHING, |height| Ink::water(height / self.height_max))
    }

    fn draw(&self, canvas: &mut Canvas, at: Point, panel: &MoviePanel<'_>, truth: &[f32]) {
        canvas.write(at, panel.title, Ink::TEXT);
        let below = at + Size::new(0, LEADING);
        match panel.frame {
            None => _ = canvas.write(below, "as it was", Ink::DIM),
            Some(frame) => {
                let ink = if frame.wrong_cells == 0 { Ink::GOOD } else { Ink::BAD };
                let text = format!("{:5} wrong  ", frame.wrong_cells);
                let end = canvas.write(below, &text, ink);
                let error = format!("RMSE {:.2} mm", frame.rmse_mm);
                canvas.write(end, &error, Ink::DIM);
            }
        }
        let top = at + Size::new(0, 2 * LEADING + 4);
        let inks: Vec<Ink> = panel.surface.iter().map(|height| self.water(*height)).collect();
        canvas.cells(top, SCALE, &inks);
        if self.has_errors {
            let error = |(seen, truth): (&Option<f32>, &f32)| {
                let size = (seen.unwrap_or(0.0) - truth).abs();
                Ink::error((size / self.height_max).sqrt())
            };
            let errors: Vec<Ink> = panel.surface.iter().zip(truth).map(error).collect();
            canvas.cells(top + Size::new(0, self.side + 4), SCALE, &errors);
        }
    }

    /// One frame of all panels, `columns` in a row, below a line of text.
    fn sheet(&self, head: &str, panels: &[MoviePanel<'_>], columns: u32, truth: &[f32]) -> Canvas {
        let rows = (panels.len() as u32).div_ceil(columns);
        let pitch = self.side + MARGIN;
        let top = MARGIN + LEADING;
        let height = top + MARGIN + rows * self.panel_height();
        let mut canvas = Canvas::new(Size::new(MARGIN + columns * pitch, height));
        let corner = Point::zero() + Size::new_equal(MARGIN);
        canvas.write(corner, head, Ink::DIM);
        for (nth, panel) in (0..).zip(panels) {
            let (row, column) = (nth / columns, nth % columns);
            let down = LEADING + MARGIN / 2 + row * self.panel_height();
            let place = corner + Size::new(column * pitch, down);
            self.draw(&mut canvas, place, panel, truth);
        }
        canvas
    }
}

fn panels<'a>(plan: &WavePlan, movies: &[&'a WaveMovie], frame: usize) -> Vec<MoviePanel<'a>> {
    let truth = plan.film[plan.expected(frame)].iter().copied().map(Some).collect();
    let first = MoviePanel { title: "Truth", frame: None, surface: truth };
    let others = movies.iter().filter_map(|movie| {
        let frame = movie.frames.get(frame)?;
        Some(MoviePanel { title: &movie.title, frame: Some(frame), surface: frame.surface.clone() })
    });
    [first].into_iter().chain(others).collect()
}

fn head(plan: &WavePlan, frame: usize) -> String {
    let seconds = (frame + 1) as f64 * super::FRAME_MS as f64 / 1e3;
    let pixel = "one scale of colours for all";
    format!("frame {} of {} | {seconds:.1} s | {pixel}", frame + 1, plan.frames)
}

/// One frame of all movies, and the errors of each picture below it.
pub(crate) fn strip(plan: &WavePlan, movies: &[&WaveMovie]) -> Result<Vec<u8>> {
    let frame = SHOWN.min(plan.frames) - 1;
    let (style, truth) = (DrawStyle::of(plan, true), &plan.film[plan.expected(frame)]);
    let panels = panels(plan, movies, frame);
    let columns = (panels.len() as u32).div_ceil(2);
    let head = format!("{} | below each: how far it is from the truth", head(plan, frame));
    style.sheet(&head, &panels, columns, truth).png()
}

/// All frames of the truth and of the movies that matter most.
pub(crate) fn animation(plan: &WavePlan, movies: &[&WaveMovie], frame_ms: u64) -> Result<Vec<u8>> {
    let style = DrawStyle::of(plan, false);
    let named = |name: &str| movies.iter().copied().find(|movie| movie.name == name);
    let chosen: Vec<&WaveMovie> = ANIMATED.into_iter().filter_map(named).collect();
    let sheet = |frame: usize| {
        let truth = &plan.film[plan.expected(frame)];
        style.sheet(&head(plan, frame), &panels(plan, &chosen, frame), 3, truth)
    };
    let sheets: Vec<Canvas> = (0..plan.frames).map(sheet).collect();
    animated(&sheets, frame_ms)
}

/// Every frame of every movie, a file each.
pub(crate) fn write_all(directory: &Path, plan: &WavePlan, movies: &[&WaveMovie]) -> Result<()> {
    let style = DrawStyle::of(plan, true);
    for movie in movies {
        for frame in 0..plan.frames {
            let truth = &plan.film[plan.expected(frame)];
            let panels = panels(plan, &[movie], frame);
            let path = directory.join(format!("{}-{:03}.png", movie.name, frame + 1));
            let png = style.sheet(&head(plan, frame), &panels, 2, truth).png()?;
            std::fs::write(&path, png).with_context(|| format!("write {}", path.display()))?;
        }
    }
    Ok(())
}
