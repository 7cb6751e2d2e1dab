//! Builders for ops of linalg and tensor.

use of_emit::{hex, list};
use of_ir::{DType, Tensor};

use super::arith::{Item, Scalars, literal, stored};
use super::schedule::Tile;
use super::{Emitter, Typed, Val};

/// Iterator types of a linalg op.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// Parallel: each point has its own results.
    Parallel,
    /// Reduction: points accumulate into one result.
    Reduction,
}

/// The indexing map of an operand at a point `d0, d1, …`: one affine expression for each axis.
pub type Map = Vec<String>;

/// The map with these axes of the iteration space.
pub fn axes(list: impl IntoIterator<Item = usize>) -> Map {
    list.into_iter().map(|a| format!("d{a}")).collect()
}

/// Names of operands, `a, b`, and their types, `T, U`.
fn names_and_types(values: &[&Val]) -> (String, String) {
    let names: Vec<&str> = values.iter().map(|v| v.name.as_str()).collect();
    let types: Vec<String> = values.iter().map(|v| v.ty()).collect();
    (names.join(", "), types.join(", "))
}

impl Emitter<'_> {
    /// A tensor with undefined elements.
    pub fn empty(&mut self, dtype: DType, dims: &[usize]) -> Val {
        let out = Val { name: self.fresh(), dtype, dims: dims.to_vec() };
        self.line(&format!("{} = tensor.empty() : {}", out.name, out.ty()));
        out
    }

    /// A tensor as a constant.
    pub fn constant(&mut self, t: &Tensor) -> Result<Val, String> {
        stored(t.dtype())?;
        let bytes = t.bytes().ok_or("strings are not supported")?;
        let out = Val { name: self.fresh(), dtype: t.dtype(), dims: t.dims().to_vec() };
        let value = if t.is_empty() { String::new() } else { format!("\"0x{}\"", hex(bytes.iter())) };
        self.line(&format!("{} = arith.constant dense<{value}> : {}", out.name, out.ty()));
        Ok(out)
    }

    /// A constant splat.
    pub fn splat(&mut self, dtype: DType, dims: &[usize], x: f64) -> Val {
        let name = self.fresh();
        let element = stored(dtype).unwrap_or("none");
        let number =
            if dtype == DType::Bool { literal(DType::U8, f64::from(u8::from(x != 0.0))) } else { literal(dtype, x) };
        self.line(&format!("{name} = arith.constant {number} : {element}"));
        self.fill(&name, dtype, dims)
    }

    /// A splat of the scalar `name`.
    fn fill(&mut self, name: &str, dtype: DType, dims: &[usize]) -> Val {
        let init = self.empty(dtype, dims);
        let out = Val { name: self.fresh(), ..init.clone() };
        let (element, ty) = (stored(dtype).unwrap_or("none"), out.ty());
        self.line(&format!("{} = linalg.fill ins({name} : {element}) outs({} : {ty}) -> {ty}", out.name, init.name));
        out
    }

    /// A splat of the single element of `x`.
    pub fn splat_of(&mut self, x: &Val, dims: &[usize]) -> Val {
        let x = self.reshape(x, &[]);
        let name = self.fresh();
        self.line(&format!("{name} = tensor.extract {}[] : {}", x.name, x.ty()));
        self.fill(&name, x.dtype, dims)
    }

    /// A linalg op. `body` computes the element of `out` at `out_map` from the input elements and the previous element of
    /// `out`. The indexing maps give the extents of the iteration axes.
    ///
    /// # Errors
    /// The error of `body`.
    pub fn generic(
        &mut self,
        inputs: &[(&Val, Map)],
        (out, out_map): (&Val, Map),
        kinds: &[Axis],
        body: impl FnOnce(&mut Scalars<'_>, &[Item], &Item) -> Result<Item, String>,
    ) -> Result<Val, String> {
        let domain: Vec<String> = axes(0..kinds.len());
        let map = |m: &Map| format!("affine_map<({}) -> ({})>", domain.join(", "), m.join(", "));
        let maps: Vec<String> = inputs.iter().map(|(_, m)| map(m)).chain([map(&out_map)]).collect();
        let kinds: Vec<&str> =
            kinds.iter().map(|k| if *k == Axis::Parallel { "\"parallel\"" } else { "\"reduction\"" }).collect();
        let values: Vec<&Val> = inputs.iter().map(|(v, _)| *v).collect();
        let (names, types) = names_and_types(&values);
        let ins = if inputs.is_empty() { String::new() } else { format!(" ins({names} : {types})") };
        let result = Val { name: self.fresh(), ..out.clone() };
        self.line(&format!(
            "{} = linalg.generic {{indexing_maps = {}, iterator_types = {}}}{ins} outs({} : {}) {{",
            result.name,
            list(&maps),
            list(&kinds),
            out.name,
            out.ty()
        ));
        let mut arguments = Vec::new();
        let mut items = Vec::new();
        for v in values.iter().chain([&out]) {
            let name = self.fresh();
            arguments.push(format!("{name}: {}", stored(v.dtype)?));
            items.push(Item { name, dtype: v.dtype });
        }
        self.line(&format!("^bb0({}):", arguments.join(", ")));
        let mut s = Scalars::new(&mut self.text, None);
        let mut items: Vec<Item> = items.into_iter().map(|x| s.loaded(x)).collect();
        let so_far = items.pop().ok_or("an op without results")?;
        let y = body(&mut s, &items, &so_far)?;
        let y = s.to_store(&y);
        self.line(&format!("linalg.yield {} : {}", y.name, stored(out.dtype)?));
        self.line(&format!("}} -> {}", out.ty()));
        Ok(result)
    }

    /// An elementwise op.
    ///
    /// # Errors
    /// The error of `body`.
    pub fn pointwise(
        &mut self,
        inputs: &[&Val],
        dtype: DType,
        dims: &[usize],
        body: impl FnOnce(&mut Scalars<'_>, &[Item]) -> Result<Item, String>,
    ) -> Result<Val, String> {
        let mut read = Vec::new();
        for x in inputs {
            read.push(self.broadcast_map(x, dims));
        }
        let read: Vec<(&Val, Map)> = read.iter().map(|(v, m)| (v, m.clone())).collect();
        let out = self.empty(dtype, dims);
        let kinds = vec![Axis::Parallel; dims.len()];
        self.generic(&read, (&out, axes(0..dims.len())), &kinds, |s, items, _| body(s, items))
    }

    /// The indexing map of `x` in an iteration space with extents `dims`, broadcast as in numpy: axes of length 1 that are
    /// longer there are dropped.
    fn broadcast_map(&mut self, x: &Val, dims: &[usize]) -> (Val, Map) {
        let lead = dims.len() - x.rank();
        let own: Vec<usize> = (0..x.rank()).filter(|a| x.dims[*a] == dims[a + lead]).collect();
        let kept: Vec<usize> = own.iter().map(|a| x.dims[*a]).collect();
        (self.reshape(x, &kept), axes(own.iter().map(|a| a + lead)))
    }

    /// Broadcast as in numpy: axes are aligned from the last one.
    pub fn broadcast_to(&mut self, x: &Val, dims: &[usize]) -> Result<Val, String> {
        if x.dims == dims {
            Ok(x.clone())
        } else {
            self.pointwise(&[x], x.dtype, dims, |_, items| Ok(items[0].clone()))
        }
    }

    /// Another element type.
    pub fn convert(&mut self, x: &Val, to: DType) -> Result<Val, String> {
        if x.dtype == to {
            return Ok(x.clone());
        }
        self.pointwise(&[x], to, &x.dims, |s, items| s.cast(&items[0], to))
    }

    /// A reshape.
    pub fn reshape(&mut self, x: &Val, dims: &[usize]) -> Val {
        if x.dims == dims {
            return x.clone();
        }
        let flat = [x.elements()];
        let (from, to) = (groups(&x.dims, dims), groups(dims, &x.dims));
        // Adjacent axes that merge, or axes that split; otherwise both, through one flat axis.
        match (from, to) {
            (Some(g), _) => self.regroup("collapse_shape", x, dims, &g),
            (_, Some(g)) => self.regroup("expand_shape", x, dims, &g),
            _ => {
                let all = |rank: usize| vec![(0..rank).collect::<Vec<_>>()];
                let line = self.regroup("collapse_shape", x, &flat, &all(x.rank()));
                self.regroup("expand_shape", &line, dims, &all(dims.len()))
            }
        }
    }

    fn regroup(&mut self, op: &str, x: &Val, dims: &[usize], groups: &[Vec<usize>]) -> Val {
        let out = Val { name: self.fresh(), dtype: x.dtype, dims: dims.to_vec() };
        let groups: Vec<String> = groups.iter().map(|g| list(g)).collect();
        let extents = if op == "expand_shape" { format!(" output_shape {}", list(dims)) } else { String::new() };
        self.line(&format!(
            "{} = tensor.{op} {} {}{extents} : {} into {}",
            out.name,
            x.name,
            list(&groups),
            x.ty(),
            out.ty()
        ));
        out
    }

    /// Axis `i` of the result is axis `perm[i]`.
    pub fn transpose(&mut self, x: &Val, perm: &[usize]) -> Val {
        if perm.iter().enumerate().all(|(i, p)| i == *p) {
            return x.clone();
        }
        let dims: Vec<usize> = perm.iter().map(|p| x.dims[*p]).collect();
        let init = self.empty(x.dtype, &dims);
        let out = Val { name: self.fresh(), ..init.clone() };
        self.line(&format!(
            "{} = linalg.transpose ins({} : {}) outs({} : {}) permutation = {}",
            out.name,
            x.name,
            x.ty(),
            init.name,
            init.ty(),
            list(perm)
        ));
        out
    }

    /// A slice: `dims` elements of each axis, from `start` on, with stride `step`.
    pub fn slice(&mut self, x: &Val, start: &[usize], dims: &[usize], step: &[usize]) -> Val {
        if x.dims == dims {
            return x.clone();
        }
        let out = Val { name: self.fresh(), dtype: x.dtype, dims: dims.to_vec() };
        self.line(&format!(
            "{} = tensor.extract_slice {}{} {} {} : {} to {}",
            out.name,
            x.name,
            list(start),
            list(dims),
            list(step),
            x.ty(),
            out.ty()
        ));
        out
    }

    /// Inserts `x` into `into` at `start`.
    pub fn insert(&mut self, x: &Val, into: &Val, start: &[usize]) -> Val {
        let out = Val { name: self.fresh(), ..into.clone() };
        self.line(&format!(
            "{} = tensor.insert_slice {} into {}{} {} {} : {} into {}",
            out.name,
            x.name,
            into.name,
            list(start),
            list(&x.dims),
            list(&vec![1; x.rank()]),
            x.ty(),
            out.ty()
        ));
        out
    }

    /// Pads `x` with a value: `low` elements before each axis, and after it up to the extents `dims`.
    pub fn pad(&mut self, x: &Val, value: f64, low: &[usize], dims: &[usize]) -> Val {
        if x.dims == dims {
            return x.clone();
        }
        let border = self.splat(x.dtype, dims, value);
        self.insert(x, &border, low)
    }

    /// The product of two matrices, or a batch of them, `[M, K]` and `[K, N]` in their last axes, accumulated into `out`.
    pub fn matmul(&mut self, a: &Val, b: &Val, out: &Val) -> Val {
        let result = Val { name: self.fresh(), ..out.clone() };
        let (rank, batched) = (out.rank(), out.rank() == 3);
        let op = if batched { "batch_matmul" } else { "matmul" };
        let tile = Tile::of(out.dims[rank - 2], out.dims[rank - 1], batched, self.isa);
        self.tiles.extend(tile);
        let mark = tile.map(Tile::attribute).unwrap_or_default();
        let (names, types) = names_and_types(&[a, b]);
        let (init, ty) = (&out.name, out.ty());
        let text = format!("{} = linalg.{op}{mark} ins({names} : {types}) outs({init} : {ty}) -> {ty}", result.name);
        self.line(&text);
        result
    }
}

/// The axes of `from` that form each axis of `to`, if every axis of `to` is a product of adjacent axes.
fn groups(from: &[usize], to: &[usize]) -> Option<Vec<Vec<usize>>> {
    if from.len() <= to.len() || from.contains(&0) {
        return None;
    }
    if to.is_empty() {
        return Some(Vec::new());
    }
    let mut out: Vec<Vec<usize>> = Vec::new();
    let mut axis = 0;
    for (i, n) in to.iter().enumerate() {
        let mut group = vec![axis];
        let mut product = *from.get(axis)?;
        axis += 1;
        // The last group takes the remaining axes of length 1; other groups leave as many axes as there are groups after
        // them.
        let last = i + 1 == to.len();
        while axis < from.len() && (last || product < *n) {
            product *= from[axis];
            group.push(axis);
            axis += 1;
        }
        if product != *n {
            return None;
        }
        out.push(group);
    }
    (axis == from.len()).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::groups;

    #[test]
    fn neighbours_merge_into_axes() {
        assert_eq!(groups(&[2, 3, 4], &[6, 4]), Some(vec![vec![0, 1], vec![2]]));
        assert_eq!(groups(&[4, 1, 1], &[4]), Some(vec![vec![0, 1, 2]]));
        assert_eq!(groups(&[1, 1], &[]), Some(vec![]));
        assert_eq!(groups(&[2, 3, 4], &[4, 6]), None);
        assert_eq!(groups(&[6, 4], &[2, 3, 4]), None);
    }
}
