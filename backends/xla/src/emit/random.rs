//! Random numbers by MT19937, the generator that the ops define, as a loop that updates all words of its state at once.

use of_ir::{DType, OpId, Tensor};
use of_ops::random::{Multinomial, RandomNormal, RandomUniform, seeded};

use super::build::Window;
use super::{Emitter, Table, Val};

/// Ops of this file.
pub const TABLE: Table =
    &[("of.multinomial", multinomial), ("of.random_normal", random_normal), ("of.random_uniform", random_uniform)];

/// Words of the state, each two of which make a number.
const WORDS: usize = 624;
/// Distance of the words that are combined.
const APART: usize = 397;

fn random_uniform(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let RandomUniform { low, high, seed, .. } = e.attrs(op)?;
    let (dtype, dims) = e.result(op, 0)?;
    let drawn = uniform(e, seed, dims.iter().product())?;
    Ok(vec![scaled(e, &drawn, (low, high - low), dtype, &dims)])
}

fn random_normal(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let RandomNormal { mean, scale, seed, .. } = e.attrs(op)?;
    let (dtype, dims) = e.result(op, 0)?;
    let drawn = normal(e, seed, dims.iter().product())?;
    Ok(vec![scaled(e, &drawn, (mean, scale), dtype, &dims)])
}

fn scaled(e: &mut Emitter<'_>, x: &Val, (offset, scale): (f64, f64), dtype: DType, dims: &[usize]) -> Val {
    let (offset, scale) = (e.full_like(x, offset), e.full_like(x, scale));
    let y = e.binary("multiply", x, &scale);
    let y = e.binary("add", &offset, &y);
    let y = e.convert(&y, dtype);
    e.reshape(&y, dims)
}

/// The class is the number of cumulative probabilities that are at most the random number.
fn multinomial(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let Multinomial { seed, .. } = e.attrs(op)?;
    let (x, (dtype, dims)) = (e.operand(op, 0)?, e.result(op, 0)?);
    if dims.contains(&0) {
        return Ok(vec![e.splat(dtype, &dims, 0.0)]);
    }
    let classes = x.dims[1];
    if classes == 0 {
        return Err("there is no class to draw".into());
    }
    let x = e.convert(&x, DType::F64);
    let most = e.reduce("maximum", &x, &[1], f64::NEG_INFINITY);
    let most = e.broadcast_in_dim(&most, &x.dims, &[0]);
    let x = e.binary("subtract", &x, &most);
    let x = e.unary("exponential", &x);
    let sums = cumulative_sums(e, &x, 1);
    let total = e.slice_in_dim(&sums, 1, classes - 1, 1);
    let drawn = uniform(e, seed, dims[0] * dims[1])?;
    let drawn = e.reshape(&drawn, &dims);
    let total = e.broadcast_in_dim(&total, &dims, &[0, 1]);
    let drawn = e.binary("multiply", &drawn, &total);
    let all = [dims[0], dims[1], classes];
    let (drawn, sums) = (e.broadcast_in_dim(&drawn, &all, &[0, 1]), e.broadcast_in_dim(&sums, &all, &[0, 2]));
    let below = e.compare("LE", &sums, &drawn);
    let below = e.convert(&below, DType::I64);
    let class = e.reduce("add", &below, &[2], 0.0);
    let last = e.full_like(&class, classes as f64 - 1.0);
    let class = e.binary("minimum", &class, &last);
    Ok(vec![e.convert(&class, dtype)])
}

fn cumulative_sums(e: &mut Emitter<'_>, x: &Val, axis: usize) -> Val {
    let mut w = Window::unit(x.rank());
    w.size[axis] = x.dims[axis];
    w.pads[axis] = (x.dims[axis] as i64 - 1, 0);
    e.reduce_window("add", x, 0.0, &w)
}

/// The words from which the generator of a seed goes on.
fn start(e: &mut Emitter<'_>, seed: i64) -> Result<Val, String> {
    e.constant(&Tensor::from_slice(&[WORDS], &seeded(seed)).map_err(|e| e.to_string())?)
}

/// Numbers in `0..1`, f64: each loop iteration generates those of one state.
fn uniform(e: &mut Emitter<'_>, seed: i64, count: usize) -> Result<Val, String> {
    if count == 0 {
        return Ok(e.splat(DType::F64, &[0], 0.0));
    }
    let states = count.div_ceil(WORDS / 2);
    let (first, words) = (e.splat(DType::I64, &[], 0.0), start(e, seed)?);
    let room = e.splat(DType::F64, &[states, WORDS / 2], 0.0);
    let end = e.full_like(&first, states as f64);
    let done = e.while_loop(
        &[first, words, room],
        |e, s| Ok(e.compare("LT", &s[0], &end)),
        |e, s| {
            let words = next_state(e, &s[1]);
            let numbers = numbers(e, &words);
            let one = e.full_like(&s[0], 1.0);
            Ok(vec![e.binary("add", &s[0], &one), words, e.dynamic_update_in_dim(&s[2], &numbers, 0, &s[0])])
        },
    )?;
    let all = e.reshape(&done[2], &[states * (WORDS / 2)]);
    Ok(e.slice_in_dim(&all, 0, 0, count))
}

/// Numbers of mean 0 and variance 1 by the polar method. Each iteration appends the accepted pairs of one state, until there
/// are enough.
fn normal(e: &mut Emitter<'_>, seed: i64, count: usize) -> Result<Val, String> {
    if count == 0 {
        return Ok(e.splat(DType::F64, &[0], 0.0));
    }
    let pairs = count.div_ceil(2);
    let (none, words) = (e.splat(DType::I64, &[], 0.0), start(e, seed)?);
    let room = e.splat(DType::F64, &[pairs, 2], 0.0);
    let end = e.full_like(&none, pairs as f64);
    let done = e.while_loop(
        &[none, words, room],
        |e, s| Ok(e.compare("LT", &s[0], &end)),
        |e, s| {
            let words = next_state(e, &s[1]);
            let drawn = numbers(e, &words);
            let (one, two) = (e.full_like(&drawn, 1.0), e.full_like(&drawn, 2.0));
            let drawn = e.binary("multiply", &drawn, &two);
            let drawn = e.binary("subtract", &drawn, &one);
            let drawn = e.reshape(&drawn, &[WORDS / 4, 2]);
            let squares = e.binary("multiply", &drawn, &drawn);
            let square = e.reduce("add", &squares, &[1], 0.0);
            let (zero, one, minus) = (e.full_like(&square, 0.0), e.full_like(&square, 1.0), e.full_like(&square, -2.0));
            let (inside, some) = (e.compare("LT", &square, &one), e.compare("NE", &square, &zero));
            let good = e.binary("and", &inside, &some);
            let factor = e.unary("log", &square);
            let factor = e.binary("multiply", &minus, &factor);
            let factor = e.binary("divide", &factor, &square);
            let factor = e.unary("sqrt", &factor);
            let factor = e.broadcast_in_dim(&factor, &drawn.dims, &[0]);
            let own = e.binary("multiply", &factor, &drawn);
            // The second of a pair comes first.
            let own = e.reverse(&own, &[1]);
            let one = e.convert(&good, DType::I64);
            let before = cumulative_sums(e, &one, 0);
            let before = e.binary("subtract", &before, &one);
            let filled = e.broadcast_to(&s[0], &before.dims);
            let at = e.binary("add", &filled, &before);
            let beyond = e.full_like(&at, pairs as f64);
            let at = e.select(&good, &at, &beyond);
            let room = e.scatter(&s[2], &at, &own, "none")?;
            let more = e.reduce("add", &one, &[0], 0.0);
            Ok(vec![e.binary("add", &s[0], &more), words, room])
        },
    )?;
    let all = e.reshape(&done[2], &[2 * pairs]);
    Ok(e.slice_in_dim(&all, 0, 0, count))
}

/// The next state of MT19937. A new word depends on two old words and on the word `APART` further on, modulo the state's length.
/// Past the end that word is a new one, so the state is computed in chunks, each from the chunks before it.
fn next_state(e: &mut Emitter<'_>, old: &Val) -> Val {
    let near = WORDS - APART;
    let a = chunk(e, old, 0, near, None);
    let b = chunk(e, old, near, near, Some(&a));
    let rest = WORDS - 1 - 2 * near;
    let far = e.slice_in_dim(&b, 0, 0, rest);
    let c = chunk(e, old, 2 * near, rest, Some(&far));
    // The last word is combined with the first of the new state.
    let (own, next, far) =
        (e.slice_in_dim(old, 0, WORDS - 1, 1), e.slice_in_dim(&a, 0, 0, 1), e.slice_in_dim(&b, 0, rest, 1));
    let d = mixed(e, &own, &next, &far);
    e.concat(&[&a, &b, &c, &d], 0)
}

/// A chunk: `len` words from `at` on. `far` holds the words `APART` further on; without it they are of the old state.
fn chunk(e: &mut Emitter<'_>, old: &Val, at: usize, len: usize, far: Option<&Val>) -> Val {
    let (own, next) = (e.slice_in_dim(old, 0, at, len), e.slice_in_dim(old, 0, at + 1, len));
    let far = match far {
        Some(far) => far.clone(),
        None => e.slice_in_dim(old, 0, at + APART, len),
    };
    mixed(e, &own, &next, &far)
}

fn mixed(e: &mut Emitter<'_>, own: &Val, next: &Val, far: &Val) -> Val {
    let (high, low) = (masked(e, own, 0x8000_0000), masked(e, next, 0x7fff_ffff));
    let y = e.binary("or", &high, &low);
    let (odd, zero, twist) = (masked(e, &y, 1), e.full_like(&y, 0.0), e.full_like(&y, f64::from(0x9908_b0df_u32)));
    let odd = e.compare("NE", &odd, &zero);
    let twist = e.select(&odd, &twist, &zero);
    let half = shifted(e, "right_logical", &y, 1);
    let out = e.binary("xor", far, &half);
    e.binary("xor", &out, &twist)
}

fn masked(e: &mut Emitter<'_>, x: &Val, mask: u32) -> Val {
    let mask = e.full_like(x, f64::from(mask));
    e.binary("and", x, &mask)
}

fn shifted(e: &mut Emitter<'_>, direction: &str, x: &Val, by: u32) -> Val {
    let by = e.full_like(x, f64::from(by));
    e.binary(&format!("shift_{direction}"), x, &by)
}

/// The numbers in `0..1` that the words of a state make, 53 bits each.
fn numbers(e: &mut Emitter<'_>, words: &Val) -> Val {
    let mut y = words.clone();
    for (direction, by, mask) in [
        ("right_logical", 11, u32::MAX),
        ("left", 7, 0x9d2c_5680),
        ("left", 15, 0xefc6_0000),
        ("right_logical", 18, u32::MAX),
    ] {
        let own = shifted(e, direction, &y, by);
        let own = masked(e, &own, mask);
        y = e.binary("xor", &y, &own);
    }
    let y = e.reshape(&y, &[WORDS / 2, 2]);
    let (high, low) = (e.slice_in_dim(&y, 1, 0, 1), e.slice_in_dim(&y, 1, 1, 1));
    let (high, low) = (shifted(e, "right_logical", &high, 5), shifted(e, "right_logical", &low, 6));
    let (high, low) = (e.convert(&high, DType::F64), e.convert(&low, DType::F64));
    let (up, down) = (e.full_like(&high, (1u64 << 26) as f64), e.full_like(&high, (1u64 << 53) as f64));
    let y = e.binary("multiply", &high, &up);
    let y = e.binary("add", &y, &low);
    let y = e.binary("divide", &y, &down);
    e.reshape(&y, &[WORDS / 2])
}
