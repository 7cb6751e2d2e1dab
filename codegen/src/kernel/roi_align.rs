//! Pooling of image regions (`RoiAlign`).

use of_ir::DType;

use crate::kernel::extent::Extent;

/// Regions of images `[N, H, W, C]`, pooled into `[R, rows, columns, C]`; all are f32. Arguments are the images, the
/// regions `[R, 4]` (x1, y1, x2, y2), the number of each one's image, and the result.
#[derive(Clone, PartialEq, Debug)]
pub struct RoiAlign {
    /// N, H, W and C.
    pub images: [Extent; 4],
    /// R.
    pub count: Extent,
    /// Rows and columns of the grid.
    pub grid: (usize, usize),
    /// Samples of a cell along each axis; `None` for as many as cover it.
    pub samples: Option<usize>,
    /// Points of the image by units of the regions.
    pub scale: f64,
    /// Whether coordinates are shifted by half a point; otherwise no region is smaller than a point.
    pub half: bool,
    /// Whether a cell is the mean of its samples; otherwise the largest part of any.
    pub mean: bool,
    /// Type of the numbers of images.
    pub index: DType,
}
