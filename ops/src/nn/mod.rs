//! Neural-network layers: convolutions, pooling, normalisation, resizing, quantisation.

mod affine_grid;
mod avg_pool;
mod col2im;
mod conv;
mod conv_gradient;
mod conv_transpose;
mod grid_sample;
mod layout;
mod lp_pool;
mod max_pool;
mod max_unpool;
mod pool;
mod resize;
mod roi_align;
mod window;

pub use affine_grid::AffineGrid;
pub use avg_pool::AvgPool;
pub use col2im::Col2Im;
pub use conv::{Conv, ConvGeometry};
pub use conv_transpose::ConvTranspose;
pub use grid_sample::GridSample;
pub use lp_pool::LpPool;
pub use max_pool::MaxPool;
pub use max_unpool::MaxUnpool;
pub use pool::PoolGeometry;
pub use resize::{Coordinates, Filter, Interpolation, Nearest, Resize, Taps, Transform};
pub use roi_align::RoiAlign;
pub use window::{WindowAttrs, Windows};
