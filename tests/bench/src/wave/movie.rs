//! Photos compared with the truth, and with the timings of each sample.

use std::time::Instant;

use serde_json::{Value, json};

use super::mesh::{CameraMesh, MeshPhoto};
use super::stream::SampleTimings;

/// Photos of one kind, a frame each.
pub(crate) struct WaveMovie {
    /// A short name, for files and tables.
    pub(crate) name: &'static str,
    /// The text above its pictures.
    pub(crate) title: String,
    pub(crate) frames: Vec<MovieFrame>,
}

/// One photo, and how far it is from the truth.
pub(crate) struct MovieFrame {
    pub(crate) surface: Vec<Option<f32>>,
    /// Cells that show another height than the truth, or nothing.
    pub(crate) wrong_cells: usize,
    /// Of heights, in millimetres; a cell that shows nothing is taken for water at rest.
    pub(crate) rmse_mm: f64,
    /// The number of samples by which each camera is behind what it should show; ahead if below 0.
    pub(crate) behind: Vec<Option<i64>>,
    /// Cameras that lack a sample although it was answered before another one was sent that is
    /// there.
    pub(crate) unclosed: usize,
}

impl MovieFrame {
    /// `expected` is the sample that is true at the frame's moment.
    pub(crate) fn of(
        mesh: CameraMesh,
        photo: &MeshPhoto,
        film: &[Vec<f32>],
        expected: usize,
        journeys: &SampleTimings,
    ) -> MovieFrame {
        let surface = mesh.surface(photo);
        let pairs = || surface.iter().zip(&film[expected]);
        let wrong_cells = pairs().filter(|(seen, truth)| **seen != Some(**truth)).count();
        let square =
            |(seen, truth): (&Option<f32>, &f32)| f64::from(seen.unwrap_or(0.0) - truth).powi(2);
        let rmse_mm = 1e3 * (pairs().map(square).sum::<f64>() / surface.len() as f64).sqrt();
        let behind = photo
            .iter()
            .map(|tile| tile.as_ref().map(|tile| expected as i64 - tile.sample as i64))
            .collect();
        MovieFrame { wrong_cells, rmse_mm, behind, unclosed: unclosed(photo, journeys), surface }
    }

    /// The number of different moments of its tiles.
    pub(crate) fn moments(&self) -> usize {
        let mut behind: Vec<Option<i64>> = self.behind.clone();
        behind.sort_unstable();
        behind.dedup();
        behind.len()
    }
}

/// True if each tile is what its camera saw at the tile's moment.
pub(crate) fn is_genuine(mesh: CameraMesh, photo: &MeshPhoto, film: &[Vec<f32>]) -> bool {
    let mut tiles = photo.iter().enumerate().filter_map(|(nth, tile)| Some((nth, tile.as_ref()?)));
    tiles.all(|(camera, tile)| {
        let truth = film.get(tile.sample);
        truth.is_some_and(|truth| mesh.tile(truth, camera, tile.sample) == *tile)
    })
}

/// The number of cameras that lack a sample that happened before one that the photo holds: it was
/// answered before that one was sent.
fn unclosed(photo: &MeshPhoto, journeys: &SampleTimings) -> usize {
    let held = photo.iter().zip(journeys);
    let sent = held.filter_map(|(tile, ways)| Some(ways[tile.as_ref()?.sample].sent));
    let Some(latest) = sent.max() else { return 0 };
    let lacks = |next: usize, ways: &Vec<super::stream::SampleTiming>| {
        ways.get(next).is_some_and(|missing| missing.answered < latest)
    };
    let next = photo.iter().map(|tile| tile.as_ref().map_or(0, |tile| tile.sample + 1));
    next.zip(journeys).filter(|(next, ways)| lacks(*next, ways)).count()
}

/// Cameras whose tile differs from the truth by more than delay, in a cut by system time below
/// `bound_ms`: the tile was sent at or after the bound, or the next one was answered before it.
pub(crate) fn beyond_delay(photo: &MeshPhoto, bound_ms: u64, journeys: &SampleTimings) -> usize {
    let is_beyond =
        |(tile, ways): (&Option<super::mesh::CameraTile>, &Vec<super::stream::SampleTiming>)| {
            let next = tile.as_ref().map_or(0, |tile| tile.sample + 1);
            let too_new = next > 0 && ways[next - 1].sent_ms >= bound_ms;
            let too_old = ways.get(next).is_some_and(|missing| missing.answered_ms < bound_ms);
            too_new || too_old
        };
    photo.iter().zip(journeys).filter(|pair| is_beyond(*pair)).count()
}

/// The longest delay of a sample, in milliseconds from the moment at which it was true.
pub(crate) fn longest_way_ms(journeys: &SampleTimings, first_ms: u64, interval_ms: u64) -> u64 {
    let way = |(sample, journey): (usize, &super::stream::SampleTiming)| {
        journey.answered_ms.saturating_sub(first_ms + sample as u64 * interval_ms)
    };
    journeys.iter().flat_map(|ways| ways.iter().enumerate().map(way)).max().unwrap_or(0)
}

/// The lateness of sent samples, at a percentile of all.
pub(crate) fn late_ms(journeys: &SampleTimings, percent: f64) -> f64 {
    let mut histogram = crate::histogram::Histogram::new();
    journeys.iter().flatten().for_each(|journey| histogram.record(journey.late()));
    crate::report::millis(histogram.percentile(percent))
}

/// The time that samples waited for their responses, at a percentile of all.
pub(crate) fn answer_ms(journeys: &SampleTimings, percent: f64) -> f64 {
    let wait = |from: Instant, to: Instant| to.saturating_duration_since(from);
    let mut histogram = crate::histogram::Histogram::new();
    let waits = journeys.iter().flatten().map(|journey| wait(journey.sent, journey.answered));
    waits.for_each(|wait| histogram.record(wait));
    crate::report::millis(histogram.percentile(percent))
}

impl WaveMovie {
    pub(crate) fn frames_with_errors(&self) -> usize {
        self.frames.iter().filter(|frame| frame.wrong_cells > 0).count()
    }

    fn mean(&self, of: impl Fn(&MovieFrame) -> f64) -> f64 {
        self.frames.iter().map(of).sum::<f64>() / self.frames.len().max(1) as f64
    }

    pub(crate) fn wrong_cells_mean(&self) -> f64 {
        self.mean(|frame| frame.wrong_cells as f64)
    }

    pub(crate) fn rmse_mm_mean(&self) -> f64 {
        self.mean(|frame| frame.rmse_mm)
    }

    pub(crate) fn rmse_mm_max(&self) -> f64 {
        self.frames.iter().map(|frame| frame.rmse_mm).fold(0.0, f64::max)
    }

    pub(crate) fn moments_max(&self) -> usize {
        self.frames.iter().map(MovieFrame::moments).max().unwrap_or(0)
    }

    /// The most that a tile is behind, and ahead, in samples.
    pub(crate) fn behind_range(&self) -> (i64, i64) {
        let all = || self.frames.iter().flat_map(|frame| frame.behind.iter().flatten().copied());
        (all().max().unwrap_or(0), -all().min().unwrap_or(0))
    }

    pub(crate) fn unclosed_frames(&self) -> usize {
        self.frames.iter().filter(|frame| frame.unclosed > 0).count()
    }

    pub(crate) fn json(&self) -> Value {
        let rounded = |value: f64| (value * 1e4).round() / 1e4;
        let (behind, ahead) = self.behind_range();
        json!({
            "name": self.name, "title": self.title,
            "wrong_cells_mean": rounded(self.wrong_cells_mean()),
            "rmse_mm_mean": rounded(self.rmse_mm_mean()), "rmse_mm_max": rounded(self.rmse_mm_max()),
            "frames_with_errors": self.frames_with_errors(),
            "frames_not_closed": self.unclosed_frames(),
            "moments_in_a_frame_max": self.moments_max(),
            "samples_behind_max": behind, "samples_ahead_max": ahead,
            "wrong_cells": self.frames.iter().map(|it| it.wrong_cells).collect::<Vec<_>>(),
            "rmse_mm": self.frames.iter().map(|it| rounded(it.rmse_mm)).collect::<Vec<_>>(),
        })
    }
}
