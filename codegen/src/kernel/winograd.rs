//! Convolutions by fewer multiplications: Winograd's F(m x m, r x r).
//!
//! A tile of `n x n` points of the input, `n = m + r - 1`, yields `m x m` points of the output. Filters and tiles are treated as
//! polynomials and evaluated at `n` points. A convolution becomes a pointwise product there, and a matrix product sums over the
//! channels. `n^2` multiplications replace `m^2 r^2`: 36 instead of 144 with F(4 x 4, 3 x 3).
//!
//! A worker takes a block of tiles: it transforms them, multiplies them by one panel of filters after another at each of the
//! `n^2` points, and transforms the products back while they are in its cache.
//!
//! Errors: the transforms add and scale numbers of different magnitude, which amplifies rounding errors by a factor that depends
//! only on the points. 0, ±3/4, ±3/2 and infinity keep it small. On 64 channels of rectified normal numbers, the relative root
//! mean square error of F(4 x 4, 3 x 3) is 6.4e-7 (1.3e-6 with the points 0, ±1, ±2), and that of F(2 x 2, 3 x 3) 2.3e-7.
//! [`Transform::amplification`] bounds it for any input.
//!
//! Sources: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015; on points and errors Barabasz et
//! al., "Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks", 2020.

use rayon::prelude::*;

use crate::isa::{CACHE_LINE_BYTES, Isa, L2_BYTES};
use crate::kernel::contraction;
use crate::kernel::contraction::{Contraction, Element, Tile};
use crate::kernel::extent::Extent;
use crate::kernel::tile_choice;
use crate::kernel::window::WindowAxis;
use crate::kernel::zero_filled::ZeroFilled;

/// The matrices of F(outputs, taps) along one axis.
#[derive(Clone, PartialEq, Debug)]
pub struct Transform {
    /// Points of the output of a tile, m.
    pub outputs: usize,
    /// Taps of the filter, r.
    pub taps: usize,
    /// `[n][n]`, for the input.
    pub input: Vec<Vec<f64>>,
    /// `[n][r]`, for filters.
    pub filter: Vec<Vec<f64>>,
    /// `[m][n]`, for the output.
    pub output: Vec<Vec<f64>>,
}

/// The finite evaluation points: a transform uses the first `n - 1`. Pairs of opposite points share half of their work.
const POINTS: [f64; 5] = [0.0, 0.75, -0.75, 1.5, -1.5];

/// The points for tiles of four points, where units are best.
const POINTS_FOR_TILES_OF_4: [f64; 3] = [0.0, 1.0, -1.0];

/// The product of `(x - p)` over `points`, coefficients from the constant term up.
fn roots(points: impl Iterator<Item = f64>) -> Vec<f64> {
    points.fold(vec![1.0], |poly, p| {
        let mut out = vec![0.0; poly.len() + 1];
        for (i, c) in poly.iter().enumerate() {
            out[i + 1] += c;
            out[i] -= p * c;
        }
        out
    })
}

impl Transform {
    /// F(outputs, taps) by the Toom-Cook method; `None` beyond six points.
    pub fn of(outputs: usize, taps: usize) -> Option<Transform> {
        let n = outputs + taps - 1;
        let points = match n {
            4 => &POINTS_FOR_TILES_OF_4[..],
            3 | 5 | 6 => &POINTS[..n - 1],
            _ => return None,
        };
        let others = |j: usize| points.iter().enumerate().filter(move |(k, _)| *k != j).map(|(_, p)| *p);
        let mut t = Transform {
            outputs,
            taps,
            input: vec![vec![0.0; n]; n],
            filter: vec![vec![0.0; taps]; n],
            output: vec![vec![0.0; n]; outputs],
        };
        for (j, p) in points.iter().enumerate() {
            let scale: f64 = others(j).map(|q| p - q).product();
            (0..taps).for_each(|k| t.filter[j][k] = p.powi(k as i32) / scale);
            (0..outputs).for_each(|i| t.output[i][j] = p.powi(i as i32));
            t.input[j][..n - 1].copy_from_slice(&roots(others(j)));
        }
        // The point at infinity: the leading coefficients.
        t.filter[n - 1][taps - 1] = 1.0;
        t.output[outputs - 1][n - 1] = 1.0;
        t.input[n - 1] = roots(points.iter().copied());
        Some(t)
    }

    /// Points of a tile along an axis, n.
    pub fn points(&self) -> usize {
        self.outputs + self.taps - 1
    }

    /// The worst-case amplification of rounding errors over direct sums, for both axes: the largest sum of magnitudes that
    /// contribute to one output, for inputs and filters of magnitude 1, over the `r^2` of a direct sum.
    pub fn amplification(&self) -> f64 {
        let sum = |row: &[f64]| row.iter().map(|x| x.abs()).sum::<f64>();
        let at = |j: usize| sum(&self.input[j]) * sum(&self.filter[j]);
        let axis = |row: &Vec<f64>| row.iter().enumerate().map(|(j, a)| a.abs() * at(j)).sum::<f64>();
        let worst = self.output.iter().map(axis).fold(0.0, f64::max);
        (worst / self.taps as f64).powi(2)
    }

    /// Transforms filters `[cout, cin, r, r]` into panels `[cout / width][n^2][cin][width]`, padded with zeros. From one point to the next
    /// it is [`point_step`].
    pub fn pack(&self, filters: &[f32], cin: usize, cout: usize, width: usize) -> ZeroFilled<f32> {
        let (r, n) = (self.taps, self.points());
        let step = point_step(cin, width);
        let mut out = ZeroFilled::new(cout.div_ceil(width) * n * n * step);
        out.par_chunks_exact_mut(n * n * step).enumerate().for_each(|(p, panel)| {
            // Adjacent outputs of the panel are lanes.
            let lanes = width.min(cout - p * width);
            let mut taps = vec![0f64; r * r * lanes];
            let mut half = vec![0f64; n * r * lanes];
            let mut point = vec![0f64; lanes];
            for c in 0..cin {
                for o in 0..lanes {
                    let filter = &filters[((p * width + o) * cin + c) * r * r..][..r * r];
                    filter.iter().enumerate().for_each(|(t, x)| taps[t * lanes + o] = f64::from(*x));
                }
                // G g, then (G g) G^T.
                for (i, to) in half.chunks_exact_mut(lanes).enumerate() {
                    combine(to, &self.filter[i / r], |k| &taps[(k * r + i % r) * lanes..][..lanes]);
                }
                for i in 0..n * n {
                    combine(&mut point, &self.filter[i % n], |k| &half[(i / n * r + k) * lanes..][..lanes]);
                    let to = &mut panel[i * step + c * width..][..lanes];
                    to.iter_mut().zip(&point).for_each(|(to, x)| *to = *x as f32);
                }
            }
        });
        out
    }
}

/// Floats from one point of a panel of filters to the next: a cache line more than `[cin][width]`, so that a kernel that writes all points
/// of a filter does not write lines of the same cache set.
fn point_step(cin: usize, width: usize) -> usize {
    cin * width + CACHE_LINE_BYTES / 4
}

/// The sum of vectors with factors.
fn combine<'a>(to: &mut [f64], factors: &[f64], vector: impl Fn(usize) -> &'a [f64]) {
    to.fill(0.0);
    for (k, factor) in factors.iter().enumerate() {
        to.iter_mut().zip(vector(k)).for_each(|(to, x)| *to += factor * x);
    }
}

/// A convolution over `[N, H, W, C]` with one group, stride 1 and no dilation.
#[derive(Clone, PartialEq, Debug)]
pub struct Winograd {
    /// Element type of the input; products are computed in f32.
    pub element: Element,
    /// The algorithm along both axes.
    pub transform: Transform,
    /// Samples.
    pub n: Extent,
    /// Lines.
    pub h: WindowAxis,
    /// Points of a line.
    pub w: WindowAxis,
    /// Channels of the input, a multiple of the vector width.
    pub cin: usize,
    /// Channels of the output, a multiple of the vector width.
    pub cout: usize,
    /// Tiles of a block.
    pub block: usize,
    /// The register tile of the products.
    pub tile: Tile,
}

/// Bytes a cycle from beyond the L2 cache.
const MEMORY_BYTES_PER_CYCLE: f64 = 6.0;

impl Winograd {
    /// The fastest algorithm for a convolution of `element`, if it is expected to be considerably faster than direct sums;
    /// `None` if none is, or none applies. Filters that are `computed` are transformed in each run.
    pub fn choose(
        element: Element,
        n: &Extent,
        (h, w): (&WindowAxis, &WindowAxis),
        (cin, cout): (usize, usize),
        computed: bool,
        isa: &Isa,
    ) -> Option<Winograd> {
        let plain = |a: &WindowAxis| a.stride == 1 && a.dilation == 1;
        let square = h.kernel == w.kernel && h.kernel > 1;
        if !(plain(h) && plain(w) && square && cin.is_multiple_of(isa.lanes) && cout.is_multiple_of(isa.lanes)) {
            return None;
        }
        // An open number of samples is mostly small: large filters are read for few tiles.
        let samples = n.number().map_or(vec![1, 2], |n| vec![n]);
        let direct = |samples: &usize| {
            let (points, taps) = (h.output.size_hint() * w.output.size_hint() * samples, h.kernel * w.kernel);
            let products = (points * taps * cin * cout / element.k_group()) as f64 / (2.0 * isa.lanes as f64);
            /// A direct sum rounds less: it may take a little longer.
            const PREFERENCE: f64 = 0.85;
            PREFERENCE * products.max((taps * cin * cout * element.size()) as f64 / MEMORY_BYTES_PER_CYCLE)
        };
        // Every choice, with its cycles for each number of samples.
        let tiled = (2..=4).filter_map(|m| Transform::of(m, h.kernel));
        let tiled = tiled.map(|transform| Self::with_transform(element, transform, (n, h, w), (cin, cout), isa));
        // Panels of computed filters are whole.
        let tiled = tiled.filter(|own| !computed || cout.is_multiple_of(own.width(isa))).map(|own| {
            let filters = if computed { own.filter_cycles(isa) } else { 0.0 };
            let cycles = |n: &usize| Winograd { n: (*n).into(), ..own.clone() }.cycles(isa) + filters;
            let cycles: Vec<f64> = samples.iter().map(cycles).collect();
            (Some(own), cycles)
        });
        let none = (None, samples.iter().map(direct).collect());
        let all: Vec<(Option<Winograd>, Vec<f64>)> = std::iter::once(none).chain(tiled).collect();
        let least = |i: usize| all.iter().map(|c| c.1[i]).fold(f64::INFINITY, f64::min);
        // How much slower than the best choice, at worst.
        let loss = |c: &[f64]| c.iter().enumerate().map(|(i, cycles)| cycles / least(i)).fold(0.0, f64::max);
        all.iter().min_by(|a, b| loss(&a.1).total_cmp(&loss(&b.1)))?.0.clone()
    }

    fn with_transform(
        element: Element,
        transform: Transform,
        (n, h, w): (&Extent, &WindowAxis, &WindowAxis),
        (cin, cout): (usize, usize),
        isa: &Isa,
    ) -> Winograd {
        let p = transform.points();
        let mut own = Winograd {
            element,
            transform,
            n: n.clone(),
            h: h.clone(),
            w: w.clone(),
            cin,
            cout,
            block: 1,
            tile: Tile { rows: 1, vectors: 1 },
        };
        let all = own.tiles().size_hint().max(1);
        let most = (L2_BYTES / (4 * p * p * cin)).clamp(14, 256);
        own.block = all.div_ceil(all.div_ceil(most));
        own.tile = tile_choice::choose_tile(&own.product(), isa);
        own.block = own.block.next_multiple_of(own.tile.rows);
        own
    }

    /// Approximate cycles of the products, the transforms, and the filters loaded from memory.
    fn cycles(&self, isa: &Isa) -> f64 {
        let (p, m) = (self.transform.points(), self.transform.outputs);
        let all = self.tiles().size_hint();
        let blocks = all.div_ceil(self.block);
        let tiles = all.next_multiple_of(self.tile.rows) as f64;
        let vectors = |c: usize| (c / isa.lanes) as f64;
        let width = self.tile.vectors * isa.lanes;
        let products = (p * p * self.cin * self.cout.next_multiple_of(width)) as f64 * tiles / (2.0 * isa.lanes as f64);
        let filters = self.filter_bytes(isa);
        let passes = if filters > L2_BYTES { blocks } else { 1 };
        let stream = (filters * passes) as f64 / MEMORY_BYTES_PER_CYCLE;
        let input_transform = tiles * vectors(self.cin) * (4 * p * p) as f64;
        let output_transform = tiles * vectors(self.cout) * (2 * p * p + 4 * m * m) as f64;
        products.max(stream) + input_transform + output_transform
    }

    /// Approximate cycles of the transform of filters in a run: they are read and written.
    fn filter_cycles(&self, isa: &Isa) -> f64 {
        let taps = 4 * self.transform.taps.pow(2) * self.cin * self.cout;
        (taps + self.filter_bytes(isa)) as f64 / MEMORY_BYTES_PER_CYCLE
    }

    /// Number of tiles along the axes of an image.
    pub fn tile_grid(&self) -> (Extent, Extent) {
        let m = Extent::from(self.transform.outputs);
        (self.h.output.div_ceil(&m), self.w.output.div_ceil(&m))
    }

    /// Total number of tiles.
    pub fn tiles(&self) -> Extent {
        let (ty, tx) = self.tile_grid();
        &self.n * ty * tx
    }

    /// The product at one point: `[tiles of a block, cin] x [cin, cout]`.
    pub fn product(&self) -> Contraction {
        Contraction {
            element: Element::F32F32,
            batch: Vec::new(),
            a_batch_strides: Vec::new(),
            b_batch_strides: Vec::new(),
            outer: (1usize.into(), 0usize.into()),
            inner: (self.block.into(), self.cin.into()),
            taps: Vec::new(),
            k_inner: self.cin.into(),
            columns: self.cout.into(),
            rhs: contraction::RhsLayout::Packed,
        }
    }

    /// Bytes of the packed filters.
    pub fn filter_bytes(&self, isa: &Isa) -> usize {
        let p = self.transform.points();
        4 * p * p * self.point_step(isa) * self.cout.div_ceil(self.width(isa))
    }

    /// Floats from one point of a panel of filters to the next.
    pub fn point_step(&self, isa: &Isa) -> usize {
        point_step(self.cin, self.width(isa))
    }

    /// Columns of a panel of filters.
    pub fn width(&self, isa: &Isa) -> usize {
        self.tile.vectors * isa.lanes
    }

    /// Multiplications and additions of the products; 0 where unknown.
    pub fn flops(&self) -> u64 {
        let p = self.transform.points();
        2 * (p * p * self.cin * self.cout * self.tiles().number().unwrap_or(0)) as u64
    }
}

#[cfg(test)]
mod tests {
    use of_ir::DType;

    use super::*;

    /// The convolution by the transforms along one axis, and by direct sums.
    fn line(t: &Transform, x: &[f64], w: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let times = |m: &[Vec<f64>], v: &[f64]| -> Vec<f64> {
            m.iter().map(|row| row.iter().zip(v).map(|(a, b)| a * b).sum()).collect()
        };
        let products: Vec<f64> = times(&t.input, x).iter().zip(times(&t.filter, w)).map(|(a, b)| a * b).collect();
        let direct = (0..t.outputs).map(|i| (0..t.taps).map(|k| x[i + k] * w[k]).sum()).collect();
        (times(&t.output, &products), direct)
    }

    #[test]
    fn transforms_match_direct_sums() {
        for (outputs, taps) in [(2, 2), (2, 3), (3, 3), (4, 3), (2, 5), (3, 2), (5, 2)] {
            let t = Transform::of(outputs, taps).unwrap();
            let x: Vec<f64> = (0..t.points()).map(|i| (i * i % 7) as f64 - 2.5).collect();
            let w: Vec<f64> = (0..taps).map(|i| 1.5 - i as f64).collect();
            let (got, want) = line(&t, &x, &w);
            got.iter()
                .zip(&want)
                .for_each(|(g, w)| assert!((g - w).abs() < 1e-12, "F({outputs}, {taps}): {got:?} {want:?}"));
        }
        assert!(Transform::of(6, 3).is_none());
    }

    #[test]
    fn larger_tiles_amplify_more() {
        let of = |m: usize| Transform::of(m, 3).unwrap().amplification();
        assert!(of(2) > 1.0 && of(2) < of(4) && of(4) < 1000.0, "{} {}", of(2), of(4));
    }

    #[test]
    fn filters_are_packed_by_panel_point_and_channel() {
        let t = Transform::of(2, 3).unwrap();
        // Filters for two outputs and one input: only output 1 has a filter, the unit at its centre.
        let mut filters = vec![0f32; 18];
        filters[9 + 4] = 1.0;
        let packed = t.pack(&filters, 1, 2, 4);
        let step = point_step(1, 4);
        assert_eq!(packed.len(), 16 * step);
        for i in 0..16 {
            let want = (t.filter[i / 4][1] * t.filter[i % 4][1]) as f32;
            assert_eq!(packed[i * step..][..4], [0.0, want, 0.0, 0.0]);
        }
    }

    #[test]
    fn computed_filters_need_many_samples_and_whole_panels() {
        let isa = Isa::by_name("avx512").unwrap();
        let axis = WindowAxis {
            input: 7usize.into(),
            output: 7usize.into(),
            kernel: 3,
            stride: 1,
            dilation: 1,
            pad: 1usize.into(),
            pad_end: 1usize.into(),
        };
        let choose = |n: usize, cout: usize, computed: bool| {
            let of = Winograd::choose(Element::F32F32, &n.into(), (&axis, &axis), (512, cout), computed, isa);
            of.map(|own| (own.transform.outputs, cout.is_multiple_of(own.width(isa))))
        };
        assert_eq!(
            [choose(1, 512, false), choose(1, 512, true), choose(32, 512, true)],
            [Some((2, true)), None, Some((4, true))]
        );
        assert_eq!([choose(32, 560, false), choose(32, 560, true)], [Some((4, false)), None]);
    }

    #[test]
    fn small_and_strided_convolutions_are_direct() {
        let axis = |n: usize, stride: usize| WindowAxis {
            input: n.into(),
            output: (n / stride).into(),
            kernel: 3,
            stride,
            dilation: 1,
            pad: 1usize.into(),
            pad_end: 1usize.into(),
        };
        let isa = Isa::by_name("avx512").unwrap();
        let choose = |n: usize, stride: usize, channels: usize| {
            let one = Extent::from(1usize);
            let axis = axis(n, stride);
            let of = |element| Winograd::choose(element, &one, (&axis, &axis), (channels, channels), false, isa);
            [Element::F32F32, Element::F16Pair(DType::BF16)].map(|e| of(e).map(|w| w.transform.outputs))
        };
        assert_eq!(choose(56, 1, 64), [Some(4), Some(4)]);
        assert_eq!(choose(7, 1, 512), [Some(2), None]);
        assert_eq!(choose(56, 2, 64), [None, None]);
        assert_eq!(choose(56, 1, 24), [None, None]);
        assert_eq!(choose(1, 1, 64), [None, None]);
    }
}
