//! Functions of f32 as arithmetic, so that compiled code calls no library. They equal those of the C kernels
//! (`codegen/src/print/functions.c`), which name the sources of the polynomials.

use of_ir::DType;

use super::arith::{Item, Scalars};

impl Scalars<'_> {
    fn f(&mut self, x: f32) -> Item {
        self.number(DType::F32, f64::from(x))
    }

    fn add(&mut self, x: &Item, y: &Item) -> Item {
        self.op("arith.addf", &[x, y])
    }

    fn sub(&mut self, x: &Item, y: &Item) -> Item {
        self.op("arith.subf", &[x, y])
    }

    fn mul(&mut self, x: &Item, y: &Item) -> Item {
        self.op("arith.mulf", &[x, y])
    }

    /// `x` times a number.
    fn times(&mut self, x: &Item, by: f32) -> Item {
        let by = self.f(by);
        self.mul(x, &by)
    }

    fn recip(&mut self, x: &Item) -> Item {
        let one = self.f(1.0);
        self.op("arith.divf", &[&one, x])
    }

    /// The polynomial with these coefficients, highest power first.
    fn horner(&mut self, z: &Item, coefficients: &[f32]) -> Item {
        let mut p = self.f(coefficients[0]);
        for c in &coefficients[1..] {
            let (product, c) = (self.mul(&p, z), self.f(*c));
            p = self.add(&product, &c);
        }
        p
    }

    /// The minimum of `x` and a number; propagates NaN.
    fn at_most(&mut self, x: &Item, limit: f32) -> Item {
        let limit = self.f(limit);
        let over = self.compare("ogt", x, &limit);
        self.select(&over, &limit, x)
    }

    /// The maximum of `x` and a number; propagates NaN.
    fn at_least(&mut self, x: &Item, limit: f32) -> Item {
        let limit = self.f(limit);
        let under = self.compare("olt", x, &limit);
        self.select(&under, &limit, x)
    }

    fn bits(&mut self, x: &Item) -> Item {
        self.convert("bitcast", x, DType::I32)
    }

    fn float(&mut self, bits: &Item) -> Item {
        self.convert("bitcast", bits, DType::F32)
    }

    /// Conversion to an integer, for small whole numbers; NaN gives 0.
    fn whole(&mut self, x: &Item) -> Item {
        let (zero, is) = (self.f(0.0), self.compare("ord", x, x));
        let x = self.select(&is, x, &zero);
        self.convert("fptosi", &x, DType::I32)
    }

    /// 2^n for whole n in the range of exponents.
    fn power_of_two(&mut self, n: &Item) -> Item {
        let (bias, place) = (self.int(127), self.int(23));
        let e = self.op("arith.addi", &[n, &bias]);
        let bits = self.op("arith.shli", &[&e, &place]);
        self.float(&bits)
    }
}

/// e^x.
pub fn exp(s: &mut Scalars<'_>, x: &Item) -> Item {
    const LOW: f32 = -103.972_08;
    let y = s.at_least(x, LOW);
    let y = s.at_most(&y, 89.0);
    let n = s.times(&y, std::f32::consts::LOG2_E);
    let n = s.op("math.roundeven", &[&n]);
    let high = s.times(&n, 0.693_359_4);
    let r = s.sub(&y, &high);
    let low = s.times(&n, -2.121_944_4e-4);
    let r = s.sub(&r, &low);
    let p = s.horner(&r, &[1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 5.0e-1]);
    let square = s.mul(&r, &r);
    let p = s.mul(&p, &square);
    let p = s.add(&p, &r);
    let one = s.f(1.0);
    let p = s.add(&p, &one);
    // In two steps, so that subnormal results round once.
    let (e, by) = (s.whole(&n), s.int(1));
    let half = s.op("arith.shrsi", &[&e, &by]);
    let rest = s.op("arith.subi", &[&e, &half]);
    let (a, b) = (s.power_of_two(&half), s.power_of_two(&rest));
    let p = s.mul(&p, &a);
    let p = s.mul(&p, &b);
    let (low, zero) = (s.f(LOW), s.f(0.0));
    let under = s.compare("olt", x, &low);
    s.select(&under, &zero, &p)
}

/// ln x.
pub fn log(s: &mut Scalars<'_>, x: &Item) -> Item {
    let (zero, one) = (s.f(0.0), s.f(1.0));
    let smallest = s.f(f32::MIN_POSITIVE);
    let tiny = s.compare("olt", x, &smallest);
    let larger = s.times(x, 8_388_608.0);
    let scaled = s.select(&tiny, &larger, x);
    let bits = s.bits(&scaled);
    let (place, bias) = (s.int(23), s.int(126));
    let e = s.op("arith.shrsi", &[&bits, &place]);
    let e = s.op("arith.subi", &[&e, &bias]);
    let (mantissa, half) = (s.int(0x007f_ffff), s.int(0x3f00_0000));
    let m = s.op("arith.andi", &[&bits, &mantissa]);
    let m = s.op("arith.ori", &[&m, &half]);
    let m = s.float(&m);
    let root = s.f(std::f32::consts::FRAC_1_SQRT_2);
    let low = s.compare("olt", &m, &root);
    let ef = s.convert("sitofp", &e, DType::F32);
    let less = s.select(&low, &one, &zero);
    let ef = s.sub(&ef, &less);
    let shifted = s.f(23.0);
    let less = s.select(&tiny, &shifted, &zero);
    let ef = s.sub(&ef, &less);
    let more = s.select(&low, &m, &zero);
    let m = s.add(&m, &more);
    let m = s.sub(&m, &one);
    let z = s.mul(&m, &m);
    let p = s.horner(
        &m,
        &[
            7.037_683_6e-2,
            -1.151_461e-1,
            1.167_699_84e-1,
            -1.242_014_1e-1,
            1.424_932_3e-1,
            -1.666_805_7e-1,
            2.000_071_4e-1,
            -2.499_999_4e-1,
            3.333_333e-1,
        ],
    );
    let p = s.mul(&p, &m);
    let p = s.mul(&p, &z);
    let small = s.times(&ef, -2.121_944_4e-4);
    let y = s.add(&p, &small);
    let half = s.times(&z, 0.5);
    let y = s.sub(&y, &half);
    let r = s.add(&m, &y);
    let large = s.times(&ef, 0.693_359_4);
    let r = s.add(&r, &large);
    let (inf, minus_inf, nan) = (s.f(f32::INFINITY), s.f(f32::NEG_INFINITY), s.f(f32::NAN));
    let is_inf = s.compare("oeq", x, &inf);
    let r = s.select(&is_inf, &inf, &r);
    let is_zero = s.compare("oeq", x, &zero);
    let r = s.select(&is_zero, &minus_inf, &r);
    let none = s.compare("ult", x, &zero);
    s.select(&none, &nan, &r)
}

/// e^x / (1 + e^x), which keeps small values of strongly negative x.
pub fn sigmoid(s: &mut Scalars<'_>, x: &Item) -> Item {
    let (y, one) = (s.at_most(x, 40.0), s.f(1.0));
    let e = exp(s, &y);
    let by = s.add(&one, &e);
    s.op("arith.divf", &[&e, &by])
}

/// tanh: a polynomial near zero, 1 - 2 / (e^2x + 1) beyond.
pub fn tanh(s: &mut Scalars<'_>, x: &Item) -> Item {
    let (a, z) = (s.op("math.absf", &[x]), s.mul(x, x));
    let p = s.horner(&z, &[-5.704_988_7e-3, 2.063_908_8e-2, -5.373_971_5e-2, 1.333_144_2e-1, -3.333_328e-1]);
    let p = s.mul(&p, &z);
    let p = s.mul(&p, x);
    let p = s.add(&p, x);
    let twice = s.add(&a, &a);
    let twice = s.at_most(&twice, 40.0);
    let (e, one) = (exp(s, &twice), s.f(1.0));
    let by = s.add(&e, &one);
    let r = s.recip(&by);
    let r = s.times(&r, 2.0);
    let big = s.sub(&one, &r);
    let big = s.op("math.copysign", &[&big, x]);
    let border = s.f(0.625);
    let far = s.compare("oge", &a, &border);
    s.select(&far, &big, &p)
}

/// erf: a rational function, 1 beyond 3.83.
pub fn erf(s: &mut Scalars<'_>, x: &Item) -> Item {
    const END: f32 = 3.832_507;
    let y = s.at_least(x, -END);
    let y = s.at_most(&y, END);
    let z = s.mul(&y, &y);
    let p = s.horner(
        &z,
        &[
            -2.726_142_4e-10,
            2.770_681_5e-8,
            -2.101_024e-6,
            -5.692_506_2e-5,
            -7.349_906_4e-4,
            -2.954_6e-3,
            -1.609_603_3e-2,
        ],
    );
    let q = s.horner(&z, &[-1.456_607_15e-5, -2.133_740_5e-4, -1.682_827e-3, -7.373_329_3e-3, -1.426_473_9e-2]);
    let p = s.mul(&y, &p);
    s.op("arith.divf", &[&p, &q])
}

/// sin x.
pub fn sin(s: &mut Scalars<'_>, x: &Item) -> Item {
    wave(s, x, 0)
}

/// cos x.
pub fn cos(s: &mut Scalars<'_>, x: &Item) -> Item {
    wave(s, x, 1)
}

/// sin of `x` plus a multiple of pi/2: reduction by pi/2 in three parts, accurate to |x| of 1e5.
fn wave(s: &mut Scalars<'_>, x: &Item, quarters: i64) -> Item {
    let inf = s.f(f32::INFINITY);
    let a = s.op("math.absf", &[x]);
    let finite = s.compare("olt", &a, &inf);
    // For larger |x| the reduced angle has no accuracy left, and the quadrant overflows i32.
    let zero = s.f(0.0);
    let far = s.f(1e9);
    let near = s.compare("olt", &a, &far);
    let y = s.select(&near, x, &zero);
    let k = s.times(&y, std::f32::consts::FRAC_2_PI);
    let k = s.op("math.roundeven", &[&k]);
    let mut r = y;
    for part in [1.570_312_5, 4.837_513e-4, 7.549_79e-8] {
        let part = s.times(&k, part);
        r = s.sub(&r, &part);
    }
    let (q, quarters) = (s.whole(&k), s.int(quarters));
    let q = s.op("arith.addi", &[&q, &quarters]);
    let z = s.mul(&r, &r);
    let sine = s.horner(&z, &[-1.951_529_6e-4, 8.332_161e-3, -1.666_665_5e-1]);
    let sine = s.mul(&sine, &z);
    let sine = s.mul(&sine, &r);
    let sine = s.add(&sine, &r);
    let cosine = s.horner(&z, &[2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2]);
    let cosine = s.mul(&cosine, &z);
    let cosine = s.mul(&cosine, &z);
    let half = s.times(&z, 0.5);
    let cosine = s.sub(&cosine, &half);
    let one = s.f(1.0);
    let cosine = s.add(&cosine, &one);
    let (odd, two, up, none) = (s.int(1), s.int(2), s.int(30), s.int(0));
    let odd = s.op("arith.andi", &[&q, &odd]);
    let even = s.compare("eq", &odd, &none);
    let v = s.select(&even, &sine, &cosine);
    let turn = s.op("arith.andi", &[&q, &two]);
    let turn = s.op("arith.shli", &[&turn, &up]);
    let bits = s.bits(&v);
    let bits = s.op("arith.xori", &[&bits, &turn]);
    let (v, nan) = (s.float(&bits), s.f(f32::NAN));
    s.select(&finite, &v, &nan)
}
