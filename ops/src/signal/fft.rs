//! Fast Fourier transforms of any length, in f64.

use std::f64::consts::PI;

/// A complex number.
pub(super) type Complex = (f64, f64);

fn times(a: Complex, b: Complex) -> Complex {
    (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0)
}

fn conjugate(a: Complex) -> Complex {
    (a.0, -a.1)
}

/// `e^(-i pi num / den)`.
fn turn(num: usize, den: usize) -> Complex {
    let (sin, cos) = (PI * num as f64 / den as f64).sin_cos();
    (cos, -sin)
}

/// A transform of one length, prepared once and used for many signals.
pub(super) enum Fft {
    /// Powers of two, by Cooley and Tukey (1965): factors `e^(-2 pi i k / n)` of the first half of `k`.
    Halving(Vec<Complex>),
    /// Other lengths as a convolution, by Bluestein (1970): `k j = (k^2 + j^2 - (k - j)^2) / 2`.
    Chirp {
        /// `e^(-i pi k^2 / n)`.
        chirp: Vec<Complex>,
        /// The transform of its conjugate, wrapped around.
        filter: Vec<Complex>,
        /// A transform long enough for the convolution.
        long: Box<Fft>,
    },
}

impl Fft {
    /// The transform of signals of `n` elements, at least one.
    pub fn new(n: usize) -> Fft {
        if n.is_power_of_two() {
            return Fft::Halving((0..n / 2).map(|k| turn(k, n / 2)).collect());
        }
        // The square is reduced first, so that the angle stays small and exact.
        let square = |k: usize| (k as u128 * k as u128 % (2 * n as u128)) as usize;
        let chirp: Vec<Complex> = (0..n).map(|k| turn(square(k), n)).collect();
        let size = (2 * n - 1).next_power_of_two();
        let mut filter = vec![(0.0, 0.0); size];
        for (k, c) in chirp.iter().enumerate() {
            filter[k] = conjugate(*c);
            filter[(size - k) % size] = conjugate(*c);
        }
        let long = Box::new(Fft::new(size));
        long.forward(&mut filter);
        Fft::Chirp { chirp, filter, long }
    }

    /// `y[k] = sum_n x[n] e^(-2 pi i k n / N)`, in place.
    pub fn forward(&self, x: &mut [Complex]) {
        match self {
            Fft::Halving(factors) => halving(x, factors),
            Fft::Chirp { chirp, filter, long } => {
                let mut wide = vec![(0.0, 0.0); filter.len()];
                wide.iter_mut().zip(x.iter().zip(chirp)).for_each(|(w, (x, c))| *w = times(*x, *c));
                long.forward(&mut wide);
                // The way back is the conjugate of the transform of the conjugate.
                wide.iter_mut().zip(filter).for_each(|(w, f)| *w = conjugate(times(*w, *f)));
                long.forward(&mut wide);
                let scale = 1.0 / filter.len() as f64;
                for (x, (w, c)) in x.iter_mut().zip(wide.iter().zip(chirp)) {
                    let y = times(conjugate(*w), *c);
                    *x = (y.0 * scale, y.1 * scale);
                }
            }
        }
    }

    /// `x[n] = 1/N sum_k y[k] e^(2 pi i k n / N)`, in place.
    pub fn inverse(&self, x: &mut [Complex]) {
        x.iter_mut().for_each(|v| *v = conjugate(*v));
        self.forward(x);
        let scale = 1.0 / x.len() as f64;
        x.iter_mut().for_each(|v| *v = (v.0 * scale, -v.1 * scale));
    }
}

fn halving(x: &mut [Complex], factors: &[Complex]) {
    let n = x.len();
    if n < 2 {
        return;
    }
    for i in 0..n {
        let j = i.reverse_bits() >> (usize::BITS - n.trailing_zeros());
        if i < j {
            x.swap(i, j);
        }
    }
    let mut half = 1;
    while half < n {
        let stride = n / (2 * half);
        for block in x.chunks_exact_mut(2 * half) {
            let (low, high) = block.split_at_mut(half);
            for (k, (a, b)) in low.iter_mut().zip(high).enumerate() {
                let t = times(*b, factors[k * stride]);
                *b = (a.0 - t.0, a.1 - t.1);
                *a = (a.0 + t.0, a.1 + t.1);
            }
        }
        half *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Rng;

    #[test]
    fn fft_equals_dft_for_every_length() {
        let mut r = Rng::new(1);
        for n in (1..40).chain([64, 97, 128, 210]) {
            let x: Vec<Complex> = (0..n).map(|_| (r.float(-1.0, 1.0), r.float(-1.0, 1.0))).collect();
            let fft = Fft::new(n);
            let mut y = x.clone();
            fft.forward(&mut y);
            for (k, got) in y.iter().enumerate() {
                let mut sum = (0.0, 0.0);
                for (j, v) in x.iter().enumerate() {
                    let t = times(*v, turn(2 * (k * j % n), n));
                    sum = (sum.0 + t.0, sum.1 + t.1);
                }
                assert!((got.0 - sum.0).abs() + (got.1 - sum.1).abs() < 1e-12 * n as f64, "{n} {k}");
            }
            fft.inverse(&mut y);
            assert!(y.iter().zip(&x).all(|(a, b)| (a.0 - b.0).abs() + (a.1 - b.1).abs() < 1e-13 * n as f64), "{n}");
        }
    }
}
