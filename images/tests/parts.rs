//! Parts of pictures: the same pixels as those of whole pictures, and no panic for files that are damaged.

use of_images::{Area, Part, Scaler, decode, decode_part, needed};

const MOST: usize = 512 << 20;

fn files() -> [Vec<u8>; 7] {
    ["baseline.jpg", "progressive.jpg", "subsampled.jpg", "full.jpg", "grey.jpg", "ycck.jpg", "lossless.png"]
        .map(|name| std::fs::read(format!("{}/tests/images/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap())
}

/// Numbers below `n`, one after another (xorshift).
fn numbers(mut state: u64) -> impl FnMut(usize) -> usize {
    move |n| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % n
    }
}

#[test]
fn a_part_has_the_pixels_of_the_whole() {
    let mut number = numbers(1);
    for file in files() {
        let whole = decode(&file, MOST).unwrap();
        let mut part = Part::default();
        for _ in 0..500 {
            let (left, top) = (number(whole.width), number(whole.height));
            let area =
                Area { left, top, width: 1 + number(whole.width - left), height: 1 + number(whole.height - top) };
            decode_part(&file, MOST, &|_, _| area, &mut part).unwrap();
            assert_eq!((part.width, part.height), (whole.width, whole.height));
            let own = part.area;
            assert!(own == area || own == Area::whole(whole.width, whole.height));
            for (y, row) in part.pixels.chunks_exact(3 * own.width).enumerate() {
                let begin = 3 * ((own.top + y) * whole.width + own.left);
                assert!(row == &whole.pixels[begin..begin + row.len()], "{area:?}, row {y}");
            }
        }
    }
}

#[test]
fn a_scaled_crop_of_a_part_is_that_of_the_whole() {
    let mut number = numbers(2);
    let (mut scaler, mut part, mut all) = (Scaler::default(), Part::default(), Part::default());
    let (mut shown, mut want) = (Vec::new(), Vec::new());
    for file in files() {
        for _ in 0..300 {
            decode_part(&file, MOST, &Area::whole, &mut all).unwrap();
            let (width, height) = (all.width as f64, all.height as f64);
            let mut side = |length: f64| {
                let begin = length * number(1000) as f64 / 1001.0;
                (begin, (length - begin) * (1 + number(1000)) as f64 / 1001.0)
            };
            let ((left, own_width), (top, own_height)) = (side(width), side(height));
            let crop = [left, top, own_width, own_height];
            let size = (1 + number(40), 1 + number(40));
            decode_part(&file, MOST, &|_, _| needed(crop, size), &mut part).unwrap();
            scaler.scale(&mut all, Some(crop), size, &mut want).unwrap();
            scaler.scale(&mut part, Some(crop), size, &mut shown).unwrap();
            assert!(shown == want, "{crop:?} of {width}x{height} in {size:?}");
        }
    }
}

#[test]
fn damaged_files_give_errors_or_pixels() {
    let mut number = numbers(3);
    let (mut refused, mut read) = (0, 0);
    for file in files() {
        for _ in 0..3000 {
            let mut damaged = file.clone();
            for _ in 0..1 + number(4) {
                let at = number(damaged.len());
                damaged[at] = number(256) as u8;
            }
            damaged.truncate(damaged.len() - number(3) * number(damaged.len()) / 4);
            let area = Area { left: number(20), top: number(20), width: 1 + number(20), height: 1 + number(20) };
            // Few bytes may claim any size.
            for result in [
                decode_part(&damaged, 1 << 20, &|_, _| area, &mut Part::default()),
                decode(&damaged, 1 << 20).map(|_| ()),
            ] {
                if result.is_ok() { read += 1 } else { refused += 1 }
            }
        }
    }
    assert!(refused > 100 && read > 100, "{refused} refused, {read} read");
}
