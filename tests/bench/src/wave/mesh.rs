//! The mesh of cameras above the tank: each sees ten by ten cells, and numbers its samples.

use anyhow::{Result, ensure};

/// Cells along the side of what one camera sees.
pub(crate) const TILE_SIDE: usize = 10;
const TILE_CELLS: usize = TILE_SIDE * TILE_SIDE;
const TILE_BYTES: usize = 4 + 4 * TILE_CELLS;

/// A square of cameras.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CameraMesh {
    /// Cameras along a side.
    pub(crate) side: usize,
}

/// The cells that one camera sent at one moment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CameraTile {
    /// The number of the sample in its stream.
    pub(crate) sample: usize,
    /// The heights that it saw, row by row.
    pub(crate) cells: Vec<f32>,
}

/// A picture assembled from the tiles of all cameras; `None` for a camera without a tile yet.
pub(crate) type MeshPhoto = Vec<Option<CameraTile>>;

impl CameraMesh {
    pub(crate) fn cameras(self) -> usize {
        self.side * self.side
    }

    /// Cells along a side.
    pub(crate) fn cells_side(self) -> usize {
        self.side * TILE_SIDE
    }

    /// The places of a camera's cells in the surface.
    pub(crate) fn cells_of(self, camera: usize) -> impl Iterator<Item = usize> {
        let (top, left) = (camera / self.side * TILE_SIDE, camera % self.side * TILE_SIDE);
        (0..TILE_CELLS)
            .map(move |nth| (top + nth / TILE_SIDE) * self.cells_side() + left + nth % TILE_SIDE)
    }

    /// The part of the surface that a camera sees.
    pub(crate) fn tile(self, surface: &[f32], camera: usize, sample: usize) -> CameraTile {
        CameraTile { sample, cells: self.cells_of(camera).map(|at| surface[at]).collect() }
    }

    /// The surface that a photo shows; `None` where it shows nothing.
    pub(crate) fn surface(self, photo: &MeshPhoto) -> Vec<Option<f32>> {
        let mut surface = vec![None; self.cameras() * TILE_CELLS];
        for (camera, tile) in photo.iter().enumerate() {
            let cells = tile.iter().flat_map(|tile| &tile.cells);
            self.cells_of(camera).zip(cells).for_each(|(at, cell)| surface[at] = Some(*cell));
        }
        surface
    }
}

impl CameraTile {
    /// The value of a record: the sample's number, and the cells, little-endian.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let cells = self.cells.iter().flat_map(|cell| cell.to_le_bytes());
        (self.sample as u32).to_le_bytes().into_iter().chain(cells).collect()
    }

    pub(crate) fn decode(value: &[u8]) -> Result<CameraTile> {
        ensure!(value.len() == TILE_BYTES, "a record is no tile. bytes={}", value.len());
        let mut words = value.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]]);
        let sample = words.next().map_or(0, u32::from_le_bytes) as usize;
        Ok(CameraTile { sample, cells: words.map(f32::from_le_bytes).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_of_all_cameras_make_the_surface_that_they_were_cut_from() {
        let mesh = CameraMesh { side: 3 };
        let surface: Vec<f32> = (0..900).map(|nth| nth as f32).collect();
        let sent = |camera| CameraTile::decode(&mesh.tile(&surface, camera, 7).encode()).unwrap();
        let mut photo: MeshPhoto = (0..9).map(|camera| Some(sent(camera))).collect();
        let seen: Option<Vec<f32>> = mesh.surface(&photo).into_iter().collect();
        assert_eq!(seen, Some(surface));
        photo[4] = None;
        assert_eq!(mesh.surface(&photo).iter().filter(|cell| cell.is_none()).count(), 100);
        assert!(CameraTile::decode(&[0; 8]).is_err());
    }
}
