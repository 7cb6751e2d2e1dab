//! Where a resized element comes from: coordinate transformations and the weights of filters.

use of_ir::OpError;

/// How result coordinates map to input coordinates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "named as in ONNX")]
pub enum Transform {
    HalfPixel,
    HalfPixelSymmetric,
    PytorchHalfPixel,
    AlignCorners,
    Asymmetric,
    CropAndResize,
}

impl Transform {
    pub(super) fn parse(s: &str) -> Result<Transform, OpError> {
        Ok(match s {
            "half_pixel" => Transform::HalfPixel,
            "half_pixel_symmetric" => Transform::HalfPixelSymmetric,
            "pytorch_half_pixel" => Transform::PytorchHalfPixel,
            "align_corners" => Transform::AlignCorners,
            "asymmetric" => Transform::Asymmetric,
            "tf_crop_and_resize" => Transform::CropAndResize,
            _ => {
                return Err(OpError::attr(format!("coordinate_transformation_mode '{s}' is not known")));
            }
        })
    }
}

/// How a coordinate between two elements is rounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "named as in ONNX")]
pub enum Nearest {
    RoundPreferFloor,
    RoundPreferCeil,
    Floor,
    Ceil,
}

impl Nearest {
    pub(super) fn parse(s: &str) -> Result<Nearest, OpError> {
        Ok(match s {
            "round_prefer_floor" => Nearest::RoundPreferFloor,
            "round_prefer_ceil" => Nearest::RoundPreferCeil,
            "floor" => Nearest::Floor,
            "ceil" => Nearest::Ceil,
            _ => return Err(OpError::attr(format!("nearest_mode '{s}' is not known"))),
        })
    }

    fn round(self, x: f64) -> f64 {
        match self {
            Nearest::RoundPreferFloor => (x - 0.5).ceil(),
            Nearest::RoundPreferCeil => (x + 0.5).floor(),
            Nearest::Floor => x.floor(),
            Nearest::Ceil => x.ceil(),
        }
    }
}

/// The interpolating function.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Filter {
    /// The nearest element.
    Nearest(Nearest),
    /// The two neighbours by distance.
    Linear,
    /// Four neighbours by Keys' cubic with this coefficient.
    Cubic(f64),
}

/// Everything that the weights of a coordinate depend on.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Interpolation {
    /// The interpolating function.
    pub filter: Filter,
    /// How coordinates map.
    pub transform: Transform,
    /// Widen the filter when downsampling.
    pub antialias: bool,
    /// Give no weight to taps outside the input.
    pub exclude_outside: bool,
}

/// Sizes along one axis.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Coordinates {
    /// Elements of the input.
    pub input: usize,
    /// Elements of the result.
    pub output: usize,
    /// Result by input, before rounding.
    pub scale: f64,
    /// Region of interest as fractions of the input.
    pub roi: (f64, f64),
}

/// The input elements that make one result element, with weights; empty if it is outside the region of interest.
#[derive(Clone, PartialEq, Debug)]
pub struct Taps {
    /// Input position and weight, positions may repeat at the borders.
    pub weights: Vec<(usize, f64)>,
}

impl Interpolation {
    /// The taps of every result element along an axis.
    pub fn taps(&self, c: &Coordinates) -> Vec<Taps> {
        (0..c.output).map(|o| self.at(c, o as f64)).collect()
    }

    fn at(&self, c: &Coordinates, o: f64) -> Taps {
        let x = self.source(c, o);
        let last = c.input as f64 - 1.0;
        if self.transform == Transform::CropAndResize && !(0.0..=last).contains(&x) {
            return Taps { weights: Vec::new() };
        }
        let clamp = |p: f64| p.clamp(0.0, last) as usize;
        let kernel: Box<dyn Fn(f64) -> f64> = match self.filter {
            Filter::Nearest(mode) => {
                return Taps { weights: vec![(clamp(mode.round(x)), 1.0)] };
            }
            Filter::Linear => Box::new(|d: f64| (1.0 - d.abs()).max(0.0)),
            Filter::Cubic(a) => Box::new(move |d: f64| cubic(a, d.abs())),
        };
        let radius = if self.filter == Filter::Linear { 1.0 } else { 2.0 };
        // Without antialiasing, and when upsampling, the filter spans the input elements as they are.
        let scale = if self.antialias { c.scale.min(1.0) } else { 1.0 };
        let base = x.floor();
        let start = (-radius / scale).floor() + 1.0;
        let count = (2.0 - 2.0 * start) as usize;
        let outside = |p: f64| p < 0.0 || p > last;
        let mut weights: Vec<(f64, f64)> = (0..count)
            .map(|i| base + start + i as f64)
            .map(|p| (p, if self.exclude_outside && outside(p) { 0.0 } else { kernel((p - x) * scale) }))
            .collect();
        if self.antialias || self.exclude_outside {
            let sum: f64 = weights.iter().map(|(_, w)| w).sum();
            if sum != 0.0 {
                weights.iter_mut().for_each(|(_, w)| *w /= sum);
            }
        }
        weights.retain(|(_, w)| *w != 0.0);
        if weights.is_empty() {
            weights.push((x.round(), 1.0));
        }
        let taps: Vec<(usize, f64)> = weights.into_iter().map(|(p, w)| (clamp(p), w)).collect();
        // Beyond the border, all taps are the outermost element, and so is the result: a sum of rounded products might not
        // be equal to it.
        match taps[0] {
            (border, _) if taps.iter().all(|(p, _)| *p == border) => Taps { weights: vec![(border, 1.0)] },
            _ => Taps { weights: taps },
        }
    }

    /// The input coordinate of result element `o`.
    fn source(&self, c: &Coordinates, o: f64) -> f64 {
        let input = c.input as f64;
        let length = c.scale * input;
        let half_pixel = (o + 0.5) / c.scale - 0.5;
        match self.transform {
            Transform::HalfPixel => half_pixel,
            Transform::HalfPixelSymmetric => input / 2.0 * (1.0 - c.output as f64 / length) + half_pixel,
            Transform::PytorchHalfPixel if length == 1.0 => -0.5,
            Transform::PytorchHalfPixel => half_pixel,
            Transform::AlignCorners if length == 1.0 => 0.0,
            Transform::AlignCorners => o * (input - 1.0) / (length - 1.0),
            Transform::Asymmetric => o / c.scale,
            Transform::CropAndResize => {
                let (from, to) = c.roi;
                let along = if length == 1.0 {
                    (to - from) * (input - 1.0) / 2.0
                } else {
                    o * (to - from) * (input - 1.0) / (length - 1.0)
                };
                along + from * (input - 1.0)
            }
        }
    }
}

/// Keys' cubic convolution kernel at distance `d`. Source: Keys, "Cubic convolution interpolation for digital image
/// processing" (1981).
fn cubic(a: f64, d: f64) -> f64 {
    if d <= 1.0 {
        ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0
    } else if d < 2.0 {
        ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a
    } else {
        0.0
    }
}
