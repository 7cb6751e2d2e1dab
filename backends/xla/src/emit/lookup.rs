//! Ops that look up keys: label maps, and counts of n-grams.

use std::collections::{BTreeMap, BTreeSet};

use of_ir::{DType, Elements, OpId, Tensor};
use of_ops::ml::LabelMap;
use of_ops::string::TfIdfVectorizer;

use super::{Emitter, Table, Val};

/// Ops of this file.
pub const TABLE: Table = &[("of.label_map", label_map), ("of.tf_idf_vectorizer", tf_idf)];

/// The elements of these numbers.
fn take_constant(t: &Tensor, places: &[usize]) -> Result<Tensor, String> {
    let elements = match t.elements() {
        Elements::Int(v) => Elements::Int(places.iter().map(|i| v[*i]).collect()),
        Elements::Float(v) => Elements::Float(places.iter().map(|i| v[*i]).collect()),
        Elements::Str(_) => return Err("XLA has no strings".into()),
    };
    Tensor::from_elements(t.dtype(), vec![places.len()], elements).map_err(|e| e.to_string())
}

/// The position of each key that is not NaN, in ascending order, and the position of NaN; the last of equal keys counts.
fn ascending(keys: &Tensor) -> Result<(Vec<usize>, Option<usize>), String> {
    let mut nan = None;
    let mut order: Vec<usize> = Vec::new();
    match keys.elements() {
        Elements::Int(v) => {
            let last: BTreeMap<i128, usize> = v.into_iter().enumerate().map(|(i, k)| (k, i)).collect();
            order.extend(last.values());
        }
        Elements::Float(v) => {
            nan = v.iter().rposition(|k| k.is_nan());
            order.extend((0..v.len()).filter(|i| !v[*i].is_nan()));
            of_ir::sort::by(&mut order, |a, b| {
                v[*a].partial_cmp(&v[*b]).unwrap_or(std::cmp::Ordering::Equal).then(a.cmp(b))
            });
            let only: Vec<usize> =
                (0..order.len()).filter(|i| order.get(i + 1).is_none_or(|n| v[order[*i]] != v[*n])).collect();
            order = only.into_iter().map(|i| order[i]).collect();
        }
        Elements::Str(_) => return Err("XLA has no strings".into()),
    }
    Ok((order, nan))
}

fn label_map(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let LabelMap { keys, values, default } = e.attrs(op)?;
    let x = e.operand(op, 0)?;
    let (order, nan) = ascending(&keys)?;
    let default = e.constant(&take_constant(&default, &[0])?)?;
    let default = e.broadcast_to(&default, &x.dims);
    let mut y = default.clone();
    if !order.is_empty() {
        let (at, found) = e.find(&take_constant(&keys, &order)?, &x)?;
        let values = e.constant(&take_constant(&values, &order)?)?;
        let there = e.take(&values, &at, 0);
        y = e.select(&found, &there, &y);
    }
    if let Some(i) = nan {
        let own = e.constant(&take_constant(&values, &[i])?)?;
        let own = e.broadcast_to(&own, &x.dims);
        let is_nan = e.compare("NE", &x, &x);
        y = e.select(&is_nan, &own, &y);
    }
    Ok(vec![y])
}

/// The n-grams of one length: their items, and the pool position of each.
type Grams = BTreeMap<Vec<i64>, usize>;

/// The n-grams of a pool by their lengths; of equal ones the last counts.
fn grams(op: &TfIdfVectorizer) -> Result<Vec<Grams>, String> {
    let begins: Option<Vec<usize>> = op.ngram_counts.iter().map(|c| usize::try_from(*c).ok()).collect();
    let begins = begins.ok_or("its n-grams do not decode")?;
    let (mut out, mut number) = (Vec::new(), 0);
    for (i, begin) in begins.iter().enumerate() {
        let end = begins.get(i + 1).copied().unwrap_or(op.pool_int64s.len());
        let part = op.pool_int64s.get(*begin..end).ok_or("its n-grams do not decode")?;
        let mut own = Grams::new();
        for gram in part.chunks(i + 1) {
            own.insert(gram.to_vec(), number);
            number += 1;
        }
        out.push(own);
    }
    Ok(out)
}

fn tf_idf(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let vectorizer = e.attrs::<TfIdfVectorizer>(op)?;
    let (x, (dtype, dims)) = (e.operand(op, 0)?, e.result(op, 0)?);
    if dims.contains(&0) {
        return Ok(vec![e.splat(dtype, &dims, 0.0)]);
    }
    let x = if x.rank() == 1 { e.reshape(&x, &[1, x.elements()]) } else { x };
    let (rows, width, count) = (x.dims[0], dims[dims.len() - 1], vectorizer.ngram_indexes.len());
    // The count of each n-gram in each row.
    let mut counts = e.splat(DType::F64, &[rows * count, 1], 0.0);
    let found = occurrences(e, &vectorizer, &x)?;
    if !found.is_empty() {
        let at = e.concat(&found.iter().collect::<Vec<_>>(), 1);
        let at = e.reshape(&at, &[at.elements()]);
        let ones = e.splat(DType::F64, &[at.elements(), 1], 1.0);
        counts = e.scatter(&counts, &at, &ones, "add")?;
    }
    let counts = e.reshape(&counts, &[rows, count]);
    let weights = match &vectorizer.weights[..] {
        [] => e.splat(DType::F64, &[count], 1.0),
        given => e.constant(&Tensor::from_slice(&[count], given).map_err(|e| e.to_string())?)?,
    };
    let weights = e.broadcast_to(&weights, &counts.dims);
    let scores = match &*vectorizer.mode {
        "TF" => counts,
        "IDF" => {
            let zero = e.full_like(&counts, 0.0);
            let some = e.compare("GT", &counts, &zero);
            e.select(&some, &weights, &zero)
        }
        _ => e.binary("multiply", &counts, &weights),
    };
    // Several n-grams may share a position.
    let scores = e.transpose(&scores, &[1, 0]);
    let places = e.int_list(&vectorizer.ngram_indexes)?;
    let empty = e.splat(DType::F64, &[width, rows], 0.0);
    let y = e.scatter(&empty, &places, &scores, "add")?;
    let y = e.transpose(&y, &[1, 0]);
    let y = e.convert(&y, dtype);
    Ok(vec![e.reshape(&y, &dims)])
}

/// For every length and skip distance of n-grams, the position of each n-gram's count; see [`run`].
fn occurrences(e: &mut Emitter<'_>, vectorizer: &TfIdfVectorizer, x: &Val) -> Result<Vec<Val>, String> {
    if !vectorizer.pool_strings.is_empty() {
        return Err("XLA has no strings".into());
    }
    let (low, high) = x.dtype.int_range().ok_or("its items are no integers")?;
    // Items that no element can equal are in no n-gram that occurs.
    let may_be = |i: &i64| (low..=high).contains(&i128::from(*i));
    let items: BTreeSet<i64> = vectorizer.pool_int64s.iter().filter(|i| may_be(i)).copied().collect();
    let items: Vec<i64> = items.into_iter().collect();
    let columns = x.dims[1];
    let mut runs = Vec::new();
    if items.is_empty() || columns == 0 {
        return Ok(runs);
    }
    let keys = Elements::Int(items.iter().map(|i| i128::from(*i)).collect());
    let keys = Tensor::from_elements(x.dtype, vec![items.len()], keys).map_err(|e| e.to_string())?;
    let found = e.find(&keys, x)?;
    for (i, mut own) in grams(vectorizer)?.into_iter().enumerate() {
        let length = i + 1;
        own.retain(|gram, _| gram.iter().all(may_be));
        if own.is_empty() || !(vectorizer.min_gram_length..=vectorizer.max_gram_length).contains(&(length as i64)) {
            continue;
        }
        // A single item has no gaps, and is counted once.
        let skips = if length == 1 { 0 } else { vectorizer.max_skip_count.min(columns as i64) as usize };
        for distance in 1..=skips + 1 {
            let Some(starts) = columns.checked_sub((length - 1) * distance).filter(|s| *s > 0) else { break };
            runs.push(ngram_positions(e, &found, &items, &own, (distance, starts), vectorizer.ngram_indexes.len())?);
        }
    }
    Ok(runs)
}

/// For each start the position of its n-gram among the counts of all rows; the position after the last one where no n-gram begins.
/// `found` holds the index of each element among the items, and whether it is an item. The lookup goes item by item: the index of
/// the prefix and the next item together are the next key.
fn ngram_positions(
    e: &mut Emitter<'_>,
    found: &(Val, Val),
    items: &[i64],
    grams: &Grams,
    (distance, starts): (usize, usize),
    count: usize,
) -> Result<Val, String> {
    let number = |i: &i64| items.binary_search(i).map(|n| n as i64).map_err(|_| "an item is in no n-gram".to_string());
    let mut keys = grams.keys().map(|g| number(&g[0])).collect::<Result<Vec<_>, _>>()?;
    let length = grams.keys().next().map_or(1, Vec::len);
    let (mut at, mut is) = (e.slice_in_dim(&found.0, 1, 0, starts), e.slice_in_dim(&found.1, 1, 0, starts));
    for i in 1..length {
        let item = e.slice_in_dim(&found.0, 1, i * distance, starts);
        let known = e.slice_in_dim(&found.1, 1, i * distance, starts);
        for (key, (gram, _)) in keys.iter_mut().zip(grams) {
            *key = *key * items.len() as i64 + number(&gram[i])?;
        }
        let distinct: Vec<i64> = keys.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
        let before = e.times(&at, items.len());
        let key = e.binary("add", &before, &item);
        let (next, own) = e.find(&Tensor::from_i64s(&distinct), &key)?;
        at = next;
        is = e.binary("and", &is, &known);
        is = e.binary("and", &is, &own);
        for key in &mut keys {
            *key = distinct.binary_search(key).map_err(|_| "a key is missing")? as i64;
        }
    }
    let mut numbers = vec![count as i64; keys.iter().max().map_or(0, |m| *m as usize + 1).max(items.len())];
    keys.iter().zip(grams).for_each(|(k, (_, n))| numbers[*k as usize] = *n as i64);
    let numbers = e.int_list(&numbers)?;
    let number = e.take(&numbers, &at, 0);
    let none = e.full_like(&number, count as f64);
    let some = e.compare("LT", &number, &none);
    is = e.binary("and", &is, &some);
    let row = e.iota(DType::I64, &number.dims, 0);
    let row = e.times(&row, count);
    let place = e.binary("add", &row, &number);
    let beyond = e.full_like(&place, (number.dims[0] * count) as f64);
    Ok(e.select(&is, &place, &beyond))
}

impl Emitter<'_> {
    /// The index of each element among the ascending `keys`, and whether it is one. A binary search: each step divides the
    /// distance by two.
    fn find(&mut self, keys: &Tensor, x: &Val) -> Result<(Val, Val), String> {
        // The last key is repeated up to a power of two, so that no step reads past the keys.
        let room = (keys.len() + 1).next_power_of_two();
        let places: Vec<usize> = (0..room).map(|i| i.min(keys.len() - 1)).collect();
        let keys = self.constant(&take_constant(keys, &places)?)?;
        let mut at = self.splat(DType::I64, &x.dims, 0.0);
        let mut step = room / 2;
        while step > 0 {
            let before = self.full_like(&at, step as f64 - 1.0);
            let before = self.binary("add", &at, &before);
            let key = self.take(&keys, &before, 0);
            let beyond = self.compare("LT", &key, x);
            let next = self.full_like(&at, step as f64);
            let next = self.binary("add", &at, &next);
            at = self.select(&beyond, &next, &at);
            step /= 2;
        }
        let key = self.take(&keys, &at, 0);
        Ok((at, self.compare("EQ", &key, x)))
    }
}
