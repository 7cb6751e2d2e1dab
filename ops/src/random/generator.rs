//! The random number generator of all random ops.

/// Length of the state in words.
const N: usize = 624;
/// Distance of the words that are combined.
const M: usize = 397;

/// The Mersenne Twister MT19937, and the floats that NumPy's `RandomState` makes of its words.
///
/// The reference evaluation of ONNX draws from that generator, so a model with a seed gives the numbers that it gives
/// there. Source: Matsumoto, Nishimura: "Mersenne Twister" (1998), with the seeding of 2002.
pub(super) struct Generator {
    state: [u32; N],
    next: usize,
    /// The second of a pair of normal numbers.
    spare: Option<f64>,
}

impl Generator {
    /// A generator for the low 32 bits of `seed`.
    pub fn new(seed: i64) -> Generator {
        let mut state = [seed as u32; N];
        for i in 1..N {
            let before = state[i - 1];
            state[i] = (before ^ (before >> 30)).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        Generator { state, next: N, spare: None }
    }

    /// Its words.
    pub fn state(&self) -> &[u32] {
        &self.state
    }

    fn word(&mut self) -> u32 {
        if self.next == N {
            self.turn();
        }
        let y = self.state[self.next];
        self.next += 1;
        let y = y ^ (y >> 11);
        let y = y ^ ((y << 7) & 0x9d2c_5680);
        let y = y ^ ((y << 15) & 0xefc6_0000);
        y ^ (y >> 18)
    }

    /// The next `N` words of state.
    fn turn(&mut self) {
        for i in 0..N {
            let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % N] & 0x7fff_ffff);
            let odd = if y & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + M) % N] ^ (y >> 1) ^ odd;
        }
        self.next = 0;
    }

    /// A number in `0..1` of 53 random bits.
    pub fn uniform(&mut self) -> f64 {
        let (high, low) = (self.word() >> 5, self.word() >> 6);
        (f64::from(high) * (1u64 << 26) as f64 + f64::from(low)) / (1u64 << 53) as f64
    }

    /// A number of mean 0 and variance 1, by the polar method of Marsaglia.
    pub fn normal(&mut self) -> f64 {
        if let Some(x) = self.spare.take() {
            return x;
        }
        loop {
            let (x, y) = (2.0 * self.uniform() - 1.0, 2.0 * self.uniform() - 1.0);
            let square = x * x + y * y;
            if square < 1.0 && square != 0.0 {
                let factor = (-2.0 * square.ln() / square).sqrt();
                self.spare = Some(factor * x);
                return factor * y;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_equal_numpy() {
        let mut g = Generator::new(0);
        let drawn: Vec<f64> = (0..3).map(|_| g.uniform()).collect();
        assert_eq!(drawn, [0.5488135039273248, 0.7151893663724195, 0.6027633760716439]);
        let mut g = Generator::new(0);
        for expected in [1.764052345967664, 0.4001572083672233, 0.9787379841057392] {
            assert!((g.normal() - expected).abs() < 1e-15);
        }
    }
}
