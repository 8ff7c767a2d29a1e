//! Water in a square tank: the shallow-water equations, solved by the two-step scheme of Lax and
//! Wendroff, with reflecting walls.
//!
//! A cell has the height of the water and its momentum along both axes. It begins at rest, and
//! drops fall into it. The result depends only on the seed, so a film of it is reproducible.

/// Height, and momentum along x and y.
type CellState = [f64; 3];

const GRAVITY: f64 = 9.81;
/// Metres: the water at rest.
const DEPTH: f64 = 1.0;
/// Metres: one cell.
const CELL: f64 = 0.05;
/// Seconds: far enough below what the scheme's stability asks for.
const STEP: f64 = 0.005;
/// The part of the difference to its neighbours that a cell loses in a step. It keeps ripples of
/// two cells, which the scheme produces and water does not, from growing.
const DAMPING: f64 = 0.002;
/// Metres: a drop is as high as that, and as wide.
const DROP_HEIGHT: f64 = 0.22;
const DROP_RADIUS: f64 = 0.24;

/// The tank between two steps.
pub(crate) struct WaterTank {
    side: usize,
    /// The axis that comes first in the next step.
    is_odd: bool,
    /// With a rim of one cell on each side, which mirrors what is inside of it.
    cells: Vec<CellState>,
}

impl WaterTank {
    /// A tank of `side` by `side` cells, at rest.
    pub(crate) fn at_rest(side: usize) -> WaterTank {
        WaterTank { side, is_odd: false, cells: vec![[DEPTH, 0.0, 0.0]; (side + 2) * (side + 2)] }
    }

    fn at(&self, row: usize, column: usize) -> usize {
        row * (self.side + 2) + column
    }

    /// A drop falls, at a place given as fractions of the side.
    pub(crate) fn drop_at(&mut self, x: f64, y: f64) {
        let side = self.side as f64;
        for row in 1..=self.side {
            for column in 1..=self.side {
                let (dx, dy) = (column as f64 - 0.5 - x * side, row as f64 - 0.5 - y * side);
                let distance = CELL * dx.hypot(dy) / DROP_RADIUS;
                let at = self.at(row, column);
                // Further away it is nothing at all: water that no wave has reached is at rest.
                if distance < 3.0 {
                    self.cells[at][0] += DROP_HEIGHT * (-distance * distance).exp();
                }
            }
        }
    }

    /// The next [`STEP`] seconds: along one axis and then the other, alternating which is first.
    /// Both at once would lack the cross terms, and grow ripples from that.
    pub(crate) fn step(&mut self) {
        let width = self.side + 2;
        let mut axes = [(1, 1), (2, width)];
        if self.is_odd {
            axes.reverse();
        }
        axes.into_iter().for_each(|(axis, next)| self.sweep(axis, next));
        self.is_odd = !self.is_odd;
    }

    /// Along one axis, on which the next cell is `next` further on.
    fn sweep(&mut self, axis: usize, next: usize) {
        self.mirror();
        let pairs = self.cells.iter().zip(&self.cells[next..]);
        let through: Vec<CellState> =
            pairs.map(|(here, there)| through_face(here, there, axis)).collect();
        let old = self.cells.clone();
        for row in 1..=self.side {
            for at in self.at(row, 1)..self.at(row, self.side + 1) {
                for part in 0..3 {
                    let out = through[at][part] - through[at - next][part];
                    let uneven = old[at - next][part] + old[at + next][part] - 2.0 * old[at][part];
                    self.cells[at][part] += DAMPING * uneven - STEP / CELL * out;
                }
            }
        }
    }

    /// Walls reflect: behind them is the same water, moving the other way.
    fn mirror(&mut self) {
        let (side, last) = (self.side, self.side + 1);
        for nth in 0..=last {
            for (rim, inside) in [(0, 1), (last, side)] {
                let (left, from) = (self.at(nth, rim), self.at(nth, inside));
                self.cells[left] = against(self.cells[from], 1);
            }
        }
        for nth in 0..=last {
            for (rim, inside) in [(0, 1), (last, side)] {
                let (above, from) = (self.at(rim, nth), self.at(inside, nth));
                self.cells[above] = against(self.cells[from], 2);
            }
        }
    }

    /// The height of each cell above the water at rest, in metres, row by row.
    pub(crate) fn surface(&self) -> Vec<f32> {
        let inside = |row| self.at(row, 1)..self.at(row, self.side + 1);
        let heights = (1..=self.side).flat_map(|row| &self.cells[inside(row)]);
        heights.map(|state| (state[0] - DEPTH) as f32).collect()
    }
}

fn against(mut state: CellState, axis: usize) -> CellState {
    state[axis] = -state[axis];
    state
}

/// The flow along one axis where the water is in this state.
fn flux(state: &CellState, axis: usize) -> CellState {
    let velocity = state[axis] / state[0];
    let mut flux = [state[axis], state[1] * velocity, state[2] * velocity];
    flux[axis] += GRAVITY / 2.0 * state[0] * state[0];
    flux
}

/// The flow through the face between two cells, by its state half a step later.
fn through_face(here: &CellState, there: &CellState, axis: usize) -> CellState {
    let (flux_here, flux_there) = (flux(here, axis), flux(there, axis));
    let half = |part: usize| {
        let mean = (here[part] + there[part]) / 2.0;
        mean - STEP / (2.0 * CELL) * (flux_there[part] - flux_here[part])
    };
    flux(&[half(0), half(1), half(2)], axis)
}

/// Films the surface: a picture every `interval_ms`, the first when the first drop has just fallen.
/// More drops fall later, at random by `seed`, so that the water keeps moving.
pub(crate) fn film(side: usize, pictures: usize, interval_ms: u64, seed: u64) -> Vec<Vec<f32>> {
    let steps = (interval_ms as f64 / 1000.0 / STEP).round() as usize;
    let mut water = WaterTank::at_rest(side);
    let mut film = Vec::with_capacity(pictures);
    for nth in 0..pictures {
        if (nth as u64 * interval_ms).is_multiple_of(DROP_EVERY_MS) {
            let chance = |salt| 0.15 + 0.7 * super::chance(seed, &[nth as u64, salt]);
            water.drop_at(chance(0), chance(1));
        }
        film.push(water.surface());
        (0..steps).for_each(|_| water.step());
    }
    film
}

const DROP_EVERY_MS: u64 = 3_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(water: &WaterTank) -> f64 {
        water.surface().iter().map(|height| f64::from(*height)).sum()
    }

    #[test]
    fn water_at_rest_stays_at_rest_and_none_is_lost_through_the_walls() {
        let mut water = WaterTank::at_rest(20);
        (0..50).for_each(|_| water.step());
        assert!(water.surface().iter().all(|height| *height == 0.0));
        water.drop_at(0.3, 0.4);
        let before = volume(&water);
        (0..200).for_each(|_| water.step());
        assert!((volume(&water) - before).abs() < before * 1e-5);
    }

    #[test]
    fn a_wave_runs_at_the_speed_of_shallow_water() {
        let side = 60;
        let mut water = WaterTank::at_rest(side);
        water.drop_at(0.0, 0.5);
        let steps = 80;
        (0..steps).for_each(|_| water.step());
        let row = &water.surface()[side / 2 * side..(side / 2 + 1) * side];
        let crest = (0..side).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
        let travelled = (GRAVITY * DEPTH).sqrt() * STEP * steps as f64 / CELL;
        assert!((crest as f64 - travelled).abs() < 5.0, "crest={crest}, travelled={travelled}");
    }

    #[test]
    fn a_film_is_made_again_from_its_seed() {
        assert_eq!(film(20, 3, 50, 7), film(20, 3, 50, 7));
        assert_ne!(film(20, 3, 50, 7), film(20, 3, 50, 8));
    }
}
