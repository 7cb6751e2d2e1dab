//! Pooling of image regions (`RoiAlign`).

use of_ir::DType;

use crate::kernel::extent::Extent;

/// Regions of images `[N, H, W, C]`, pooled into `[R, rows, columns, C]`; all are f32. Arguments are the images, the regions
/// `[R, 4]` (x1, y1, x2, y2), the image index of each region, and the result.
#[derive(Clone, PartialEq, Debug)]
pub struct RoiAlign {
    /// N, H, W and C.
    pub images: [Extent; 4],
    /// R.
    pub count: Extent,
    /// Rows and columns of the grid.
    pub grid: (usize, usize),
    /// Samples of a cell along each axis; `None` chooses them by the size of the cell.
    pub samples: Option<usize>,
    /// Image points per unit of region coordinates.
    pub scale: f64,
    /// Whether coordinates are shifted by half a point; otherwise regions have at least the size of a point.
    pub half_pixel: bool,
    /// Whether a cell is the mean of its samples; otherwise the largest weighted term of any sample.
    pub average: bool,
    /// Type of the image indices.
    pub index: DType,
}
