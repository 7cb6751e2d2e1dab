//! Random changes of the images of a training: the same for one seed, epoch and sample, wherever and in whatever batch it is read.

use of_diag::{Code, Diagnostics};

use crate::error::error;
use crate::images::View;

/// How images of a training are changed at random.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Augmentation {
    /// Shows a part of each image, of at least this part of its area, with sides of 3:4 to 4:3.
    pub crop: Option<f64>,
    /// Swaps left and right of every other image.
    pub flip: bool,
    /// Changes brightness, contrast and saturation, each by a factor from `1 - x` to `1 + x`.
    pub colours: Option<f64>,
}

impl Augmentation {
    /// Whether nothing changes.
    pub fn is_none(&self) -> bool {
        *self == Augmentation::default()
    }

    /// # Errors
    /// When a number is out of range.
    pub fn check(&self) -> Result<(), Diagnostics> {
        if let Some(area) = self.crop.filter(|area| !(*area > 0.0 && *area <= 1.0)) {
            return Err(error(Code::INPUT, format!("a part of {area} of an image is not between 0 and 1")).into());
        }
        if let Some(x) = self.colours.filter(|x| !(0.0..=1.0).contains(x)) {
            return Err(error(Code::INPUT, format!("a change of colours by {x} is not between 0 and 1")).into());
        }
        Ok(())
    }
}

/// The changes of an epoch.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// What changes.
    pub augmentation: Augmentation,
    /// Mixes each sample of a batch, f32, with another one, by weights of Beta(alpha, alpha) for this alpha.
    pub mixup: Option<f64>,
    /// Gives the random numbers, with the epoch and the number of the sample.
    pub seed: u64,
    /// The epoch.
    pub epoch: usize,
}

impl Draw {
    /// The random numbers of a sample, for one purpose.
    pub(crate) fn random(&self, sample: usize, purpose: u64) -> fastrand::Rng {
        let mixed = self.seed ^ (self.epoch as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let sample = (sample as u64).wrapping_mul(0xd1b5_4a32_d192_ed03);
        fastrand::Rng::with_seed(mixed.rotate_left(32) ^ sample ^ purpose)
    }

    /// What is shown of an image of this size. The crop is that of "Going deeper with convolutions" (Szegedy et al., 2014), as common
    /// training recipes have it: ten tries, then the largest centred part of allowed sides.
    pub(crate) fn view(&self, sample: usize, width: usize, height: usize) -> View {
        let mut random = self.random(sample, 0);
        let Augmentation { crop, flip, colours } = self.augmentation;
        let crop = crop.map(|least| part(&mut random, least, width as f64, height as f64));
        let flipped = flip && random.bool();
        let colours = colours.map(|x| {
            let mut factor = || (1.0 - x + 2.0 * x * random.f64()) as f32;
            [factor(), factor(), factor()]
        });
        View { crop, flipped, colours }
    }
}

/// A part of an image of at least `least` of its area: left, top, width, height.
fn part(random: &mut fastrand::Rng, least: f64, width: f64, height: f64) -> [f64; 4] {
    const SIDES: (f64, f64) = (3.0 / 4.0, 4.0 / 3.0);
    const TRIES: usize = 10;
    for _ in 0..TRIES {
        let area = width * height * (least + (1.0 - least) * random.f64());
        let sides = (SIDES.0.ln() + (SIDES.1.ln() - SIDES.0.ln()) * random.f64()).exp();
        let (w, h) = ((area * sides).sqrt().round(), (area / sides).sqrt().round());
        if (1.0..=width).contains(&w) && (1.0..=height).contains(&h) {
            let (left, top) = (random.f64() * (width - w + 1.0), random.f64() * (height - h + 1.0));
            return [left.floor().min(width - w), top.floor().min(height - h), w, h];
        }
    }
    let (w, h) = (width.min(height * SIDES.1), height.min(width / SIDES.0));
    [((width - w) / 2.0).floor(), ((height - h) / 2.0).floor(), w.floor(), h.floor()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_depend_on_seed_epoch_and_sample_alone_and_stay_in_the_image() {
        let augmentation = Augmentation { crop: Some(0.08), flip: true, colours: Some(0.4) };
        let draw = |seed, epoch| Draw { augmentation, mixup: None, seed, epoch };
        let text = |draw: Draw, sample| format!("{:?}", draw.view(sample, 500, 375));
        assert_eq!(text(draw(1, 2), 3), text(draw(1, 2), 3));
        for other in [text(draw(2, 2), 3), text(draw(1, 3), 3), text(draw(1, 2), 4)] {
            assert_ne!(text(draw(1, 2), 3), other);
        }
        let mut flipped = 0;
        for sample in 0..1000 {
            for (width, height) in [(500, 375), (1, 1), (10, 1000), (3, 2)] {
                let view = draw(7, 0).view(sample, width, height);
                let [left, top, w, h] = view.crop.unwrap();
                assert!(left >= 0.0 && top >= 0.0 && w >= 1.0 && h >= 1.0, "{view:?}");
                assert!(left + w <= width as f64 && top + h <= height as f64, "{view:?} of {width}x{height}");
                assert!(view.colours.unwrap().iter().all(|f| (0.6..=1.4).contains(f)));
                flipped += usize::from(view.flipped);
            }
        }
        assert!((1800..2200).contains(&flipped), "{flipped} of 4000");
        assert!(Augmentation { crop: Some(0.0), ..augmentation }.check().is_err());
        assert!(Augmentation { colours: Some(1.5), ..augmentation }.check().is_err());
        assert!(augmentation.check().is_ok());
    }
}
