//! The order of patches in a tower's pass, their rotary positions, and the segments that attend to themselves.
//!
//! Patches of many images are packed on one axis. A processor gives them in squares of `spatial_merge_size` patches a side,
//! row by row, because the merger makes one token of each square. Most blocks attend inside windows, which are cut at the
//! edges of an image, so the squares of a window come one after the other. The order is that of `get_vision_window_index`
//! in transformers' `vision_utils.py`.

use nestor_images::Grid;

use crate::model::VisionConfig;

/// A pass over P patches of several images, M tokens after the merger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TowerPlan {
    /// The square at each place of the pass, numbered in the processor's order: (M).
    pub squares: Vec<i64>,
    /// Row and column of each patch in its image, in the order of the pass: (P).
    pub positions: Vec<[i64; 2]>,
    /// Patches of each window.
    pub windows: Vec<i64>,
    /// Patches of each image.
    pub images: Vec<i64>,
}

impl TowerPlan {
    /// The plan for images of these grids, in this order.
    pub fn new(config: &VisionConfig, grids: &[Grid]) -> Self {
        let merge = config.spatial_merge_size;
        let side = config.window_size / merge / config.patch_size; // squares of a window's side
        let mut plan = Self { squares: Vec::new(), positions: Vec::new(), windows: Vec::new(), images: Vec::new() };
        let mut first = 0;
        for grid in grids {
            let [rows, cols] = [grid.rows, grid.cols].map(|n| i64::from(n) / merge);
            for top in (0..rows).step_by(side as usize) {
                for left in (0..cols).step_by(side as usize) {
                    let [bottom, right] = [(top + side).min(rows), (left + side).min(cols)];
                    for (row, col) in (top..bottom).flat_map(|row| (left..right).map(move |col| (row, col))) {
                        plan.squares.push(first + row * cols + col);
                        let inside =
                            (0..merge).flat_map(|y| (0..merge).map(move |x| [row * merge + y, col * merge + x]));
                        plan.positions.extend(inside);
                    }
                    plan.windows.push((bottom - top) * (right - left) * merge * merge);
                }
            }
            plan.images.push(rows * cols * merge * merge);
            first += rows * cols;
        }
        plan
    }

    /// The place of each square in the pass: (M).
    pub fn places(&self) -> Vec<i64> {
        let mut places = vec![0; self.squares.len()];
        for (place, &square) in self.squares.iter().enumerate() {
            places[square as usize] = place as i64;
        }
        places
    }

    /// The patch at each place of the pass, numbered in the processor's order: (P).
    pub fn patches(&self, merged: i64) -> Vec<i64> {
        self.squares.iter().flat_map(|square| (0..merged).map(move |inside| square * merged + inside)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_cut_at_the_edges() {
        // 6 x 5 squares in windows of 4 x 4.
        let config = VisionConfig::published();
        let plan = TowerPlan::new(&config, &[Grid { rows: 12, cols: 10 }, Grid { rows: 2, cols: 2 }]);
        assert_eq!(plan.windows, [16 * 4, 4 * 4, 8 * 4, 2 * 4, 4]);
        assert_eq!(plan.images, [120, 4]);
        assert_eq!(plan.squares[..6], [0, 1, 2, 3, 5, 6]);
        assert_eq!(plan.squares[16..20], [4, 9, 14, 19]);
        assert_eq!(plan.squares[30], 30, "the second image");
        assert_eq!(plan.positions[..5], [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2]]);
        let places = plan.places();
        assert!(plan.squares.iter().enumerate().all(|(place, &square)| places[square as usize] == place as i64));
        assert_eq!(plan.patches(4)[64..68], [16, 17, 18, 19]);
    }
}
