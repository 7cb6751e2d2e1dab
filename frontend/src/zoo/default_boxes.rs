//! The default boxes of SSD for images of 300 x 300 pixels.

/// Feature maps of SSD: extents, the distance of boxes, and aspect ratios other than 1.
const MAPS: [(usize, f64, &[f64]); 6] = [
    (38, 8.0, &[2.0]),
    (19, 16.0, &[2.0, 3.0]),
    (10, 32.0, &[2.0, 3.0]),
    (5, 64.0, &[2.0, 3.0]),
    (3, 100.0, &[2.0]),
    (1, 300.0, &[2.0]),
];
/// Sides of the boxes of a feature map, in pixels; the last is for the larger box of the last map.
const SIDES: [f64; 7] = [21.0, 45.0, 99.0, 153.0, 207.0, 261.0, 315.0];

/// Boxes of each position of each feature map.
pub(super) const PER_POSITION: [usize; 6] = [4, 6, 6, 6, 4, 4];

/// Number of boxes.
pub(super) const COUNT: usize = 8732;

/// Centre, width and height of every box, as parts of the image. Order and numbers are those of MLPerf's benchmark of SSD.
pub(super) fn boxes() -> Vec<[f32; 4]> {
    let mut out = Vec::with_capacity(COUNT);
    for (i, (extent, distance, ratios)) in MAPS.iter().enumerate() {
        let positions = 300.0 / distance;
        let (small, large) = (SIDES[i] / 300.0, SIDES[i + 1] / 300.0);
        let between = (small * large).sqrt();
        let mut sizes = vec![(small, small), (between, between)];
        for ratio in *ratios {
            let (w, h) = (small * ratio.sqrt(), small / ratio.sqrt());
            sizes.extend([(w, h), (h, w)]);
        }
        for (w, h) in sizes {
            for at in 0..extent * extent {
                let centre = |k: usize| (k as f64 + 0.5) / positions;
                out.push([centre(at % extent), centre(at / extent), w, h].map(|x| x.clamp(0.0, 1.0) as f32));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_are_as_many_as_the_heads_predict() {
        let all = boxes();
        assert_eq!(all.len(), COUNT);
        let predicted: usize = MAPS.iter().zip(PER_POSITION).map(|((extent, ..), per)| extent * extent * per).sum();
        assert_eq!(predicted, COUNT);
        assert_eq!(all[0], [0.5 / 37.5, 0.5 / 37.5, 0.07, 0.07]);
        // The last box of the last map is taller than wide.
        assert!(all[COUNT - 1][3] == 1.0 && all[COUNT - 1][2] < 0.7);
    }
}
