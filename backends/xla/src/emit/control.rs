//! Branches, loops, scans and optimization barriers.

use of_emit::{Port, Printer};
use of_ir::{DType, OpId, RegionId, ValueId};
use of_ops::control::Scan;
use of_ops::shape;

use super::build::array;
use super::{Emitter, Table, Typed, Val, type_text};

/// Ops of this file.
pub const TABLE: Table =
    &[("of.optimization_barrier", optimization_barrier), ("of.if", branch), ("of.loop", repeat), ("of.scan", scan)];

fn optimization_barrier(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let x = e.operand(op, 0)?;
    Ok(vec![e.emit("stablehlo.optimization_barrier", &[&x], "", x.dtype, &x.dims)])
}

fn branch(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let condition = e.operand(op, 0)?;
    let condition = e.reshape(&condition, &[]);
    let regions = e.g.op(op).regions.to_vec();
    let mut types: Vec<Port> = (0..e.g.op(op).results.len()).map(|i| e.result(op, i)).collect::<Result<_, _>>()?;
    types.push((DType::Bool, vec![]));
    let (name, results) = e.multiple_results(&types);
    e.line(&format!("{name}:{} = \"stablehlo.if\"({}) ({{", types.len(), condition.name));
    for (i, region) in regions.iter().enumerate() {
        if i > 0 {
            e.line("}, {");
        }
        let inside = e.region(*region)?;
        e.emit_return(&inside, &types)?;
    }
    let of: Vec<String> = types.iter().map(|(d, s)| type_text(*d, s)).collect();
    e.line(&format!("}}) : ({}) -> ({})", condition.ty(), of.join(", ")));
    Ok(e.with_check(results))
}

/// The state of the loop: iteration, condition, carried values, stacked results, and the check.
fn repeat(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let data = e.g.op(op);
    let body = data.regions[0];
    let carried = data.operands.len().saturating_sub(2);
    let stacks = data.results.len() - carried;
    let limit = match e.optional(op, 0)? {
        Some(n) => {
            let n = e.reshape(&n, &[]);
            e.convert(&n, DType::I64)
        }
        None => e.splat(DType::I64, &[], i64::MAX as f64),
    };
    let condition = match e.optional(op, 1)? {
        Some(c) => e.reshape(&c, &[]),
        None => e.truth(true),
    };
    let start = e.splat(DType::I64, &[], 0.0);
    let mut state = vec![start, condition];
    for i in 0..carried {
        let (dtype, dims) = e.result(op, i)?;
        let first = e.operand(op, i + 2)?;
        if (first.dtype, &first.dims) != (dtype, &dims) {
            return Err("a carried value changes its shape".into());
        }
        state.push(first);
    }
    for i in 0..stacks {
        let (dtype, dims) = e.result(op, carried + i)?;
        state.push(e.splat(dtype, &dims, 0.0));
    }
    state.push(e.truth(true));
    let results = e.while_loop(
        &state,
        |e, s| {
            let below = e.compare("LT", &s[0], &limit);
            Ok(e.binary("and", &below, &s[1]))
        },
        |e, s| {
            let mut next = e.region_with_args(body, s)?;
            let check = next.pop().ok_or("its region yields nothing")?;
            let condition = e.reshape(&next[0], &[]);
            let one = e.splat(DType::I64, &[], 1.0);
            let mut out = vec![e.binary("add", &s[0], &one), condition];
            out.extend(next[1..1 + carried].iter().cloned());
            for (stack, row) in s[2 + carried..].iter().zip(&next[1 + carried..]) {
                out.push(e.dynamic_update_in_dim(stack, row, 0, &s[0]));
            }
            out.push(e.binary("and", &s[s.len() - 1], &check));
            Ok(out)
        },
    )?;
    Ok(e.with_check(results)[2..].to_vec())
}

/// The state of the loop: step, carried states, stacked results, and the check.
fn scan(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let data = e.g.op(op);
    let body = data.regions[0];
    let scan = e.attrs::<Scan>(op)?;
    let (inputs, outputs) = scan.slices(data.operands.len(), data.results.len()).map_err(|e| e.message)?;
    let states = data.operands.len() - inputs.len();
    let mut state = vec![e.splat(DType::I64, &[], 0.0)];
    for i in 0..states {
        let (dtype, dims) = e.result(op, i)?;
        let first = e.operand(op, i)?;
        if (first.dtype, &first.dims) != (dtype, &dims) {
            return Err("a state changes its shape".into());
        }
        state.push(first);
    }
    let axis = |a: i64, rank: usize| shape::axis(a, rank).map_err(|e| e.message);
    let (mut xs, mut stacks) = (Vec::new(), Vec::new());
    for (i, (a, backward)) in inputs.into_iter().enumerate() {
        let x = e.operand(op, states + i)?;
        let a = axis(a, x.rank())?;
        xs.push((x, a, backward));
    }
    for (i, (a, backward)) in outputs.into_iter().enumerate() {
        let (dtype, dims) = e.result(op, states + i)?;
        stacks.push((axis(a, dims.len())?, backward));
        state.push(e.splat(dtype, &dims, 0.0));
    }
    let length = xs.first().map_or(0, |(x, a, _)| x.dims[*a]);
    if xs.iter().any(|(x, a, _)| x.dims[*a] != length) {
        return Err("its inputs have different lengths".into());
    }
    if length == 0 {
        return Ok(state[1..].to_vec());
    }
    state.push(e.truth(true));
    let last = e.splat(DType::I64, &[], length as f64 - 1.0);
    let results = e.while_loop(
        &state,
        |e, s| Ok(e.compare("LE", &s[0], &last)),
        |e, s| {
            let from_end = e.binary("subtract", &last, &s[0]);
            let at = |backward: bool| if backward { &from_end } else { &s[0] };
            let mut args = s[1..=states].to_vec();
            for (x, axis, backward) in &xs {
                args.push(e.dynamic_index_in_dim(x, *axis, at(*backward)));
            }
            let mut next = e.region_with_args(body, &args)?;
            let check = next.pop().ok_or("its region yields nothing")?;
            let one = e.splat(DType::I64, &[], 1.0);
            let mut out = vec![e.binary("add", &s[0], &one)];
            out.extend(next.iter().take(states).cloned());
            for ((stack, slice), (axis, backward)) in
                s.iter().skip(1 + states).zip(next.iter().skip(states)).zip(&stacks)
            {
                out.push(e.dynamic_update_in_dim(stack, slice, *axis, at(*backward)));
            }
            out.push(e.binary("and", &s[s.len() - 1], &check));
            Ok(out)
        },
    )?;
    Ok(e.with_check(results)[1..].to_vec())
}

impl Emitter<'_> {
    /// The results of an op that will be printed later.
    fn multiple_results(&mut self, types: &[Port]) -> (String, Vec<Val>) {
        let name = self.fresh();
        let of =
            |(i, (dtype, dims)): (usize, &Port)| Val { name: format!("{name}#{i}"), dtype: *dtype, dims: dims.clone() };
        let results = types.iter().enumerate().map(of).collect();
        (name, results)
    }

    /// The block arguments of a new region.
    fn arguments(&mut self, types: &[Port]) -> Vec<Val> {
        let args: Vec<Val> =
            types.iter().map(|(dtype, dims)| Val { name: self.fresh(), dtype: *dtype, dims: dims.clone() }).collect();
        let list: Vec<String> = args.iter().map(|a| format!("{}: {}", a.name, a.ty())).collect();
        self.line(&format!("^bb0({}):", list.join(", ")));
        args
    }

    /// A while loop: `condition` is a predicate on the state, and `body` computes the next state.
    pub fn while_loop(
        &mut self,
        first: &[Val],
        condition: impl FnOnce(&mut Self, &[Val]) -> Result<Val, String>,
        body: impl FnOnce(&mut Self, &[Val]) -> Result<Vec<Val>, String>,
    ) -> Result<Vec<Val>, String> {
        let types: Vec<Port> = first.iter().map(|v| (v.dtype, v.dims.clone())).collect();
        let of = first.iter().map(Typed::ty).collect::<Vec<_>>().join(", ");
        let names: Vec<&str> = first.iter().map(|v| v.name.as_str()).collect();
        let (name, results) = self.multiple_results(&types);
        self.line(&format!("{name}:{} = \"stablehlo.while\"({}) ({{", first.len(), names.join(", ")));
        let args = self.arguments(&types);
        let on = condition(self, &args)?;
        self.emit_return(&[on], &[(DType::Bool, vec![])])?;
        self.line("}, {");
        let args = self.arguments(&types);
        let next = body(self, &args)?;
        self.emit_return(&next, &types)?;
        self.line(&format!("}}) : ({of}) -> ({of})"));
        Ok(results)
    }

    /// The slice at one index of an axis, without that axis.
    pub fn dynamic_index_in_dim(&mut self, x: &Val, axis: usize, at: &Val) -> Val {
        let zero = self.full_like(at, 0.0);
        let operands: Vec<&Val> =
            [x].into_iter().chain((0..x.rank()).map(|a| if a == axis { at } else { &zero })).collect();
        let mut dims = x.dims.clone();
        dims[axis] = 1;
        let attrs = format!("slice_sizes = {}", array(&dims));
        let slice = self.emit("stablehlo.dynamic_slice", &operands, &attrs, x.dtype, &dims);
        dims.remove(axis);
        self.reshape(&slice, &dims)
    }

    /// `stack` with `slice` inserted at one index of an axis.
    pub fn dynamic_update_in_dim(&mut self, stack: &Val, slice: &Val, axis: usize, at: &Val) -> Val {
        let (zero, rank) = (self.full_like(at, 0.0), stack.rank());
        let mut dims = slice.dims.clone();
        dims.insert(axis.min(dims.len()), 1);
        let slice = self.reshape(slice, &dims);
        let places = (0..rank).map(|a| if a == axis { at } else { &zero });
        let operands: Vec<&Val> = [stack, &slice].into_iter().chain(places).collect();
        self.emit("stablehlo.dynamic_update_slice", &operands, "", stack.dtype, &stack.dims)
    }

    /// Prints the ops of a region whose arguments are the first of `args`; returns what [`Self::region`] does.
    fn region_with_args(&mut self, region: RegionId, args: &[Val]) -> Result<Vec<Val>, String> {
        let own: Vec<ValueId> = self.g.region_args(region).to_vec();
        for (v, val) in own.iter().zip(args) {
            let (dtype, dims) = self.port(*v)?;
            if val.dtype != dtype || val.elements() != dims.iter().product::<usize>() {
                return Err("an argument of its region has another type".into());
            }
            let val = self.reshape(val, &dims);
            self.set(*v, val);
        }
        self.region(region)
    }

    /// Prints the ops of a region. Returns what it yields, then whether its checks held.
    fn region(&mut self, region: RegionId) -> Result<Vec<Val>, String> {
        let outside = std::mem::take(&mut self.checks);
        self.ops(region)?;
        let mut out = self.g.yields(region).iter().map(|v| self.value(*v)).collect::<Result<Vec<_>, _>>()?;
        out.push(self.all_checks());
        self.checks = outside;
        Ok(out)
    }

    /// Prints the terminator of a region that returns values of these types.
    fn emit_return(&mut self, values: &[Val], types: &[Port]) -> Result<(), String> {
        let same = |(v, (dtype, dims)): (&Val, &Port)| v.dtype == *dtype && v.dims == *dims;
        if values.len() != types.len() || !values.iter().zip(types).all(same) {
            return Err("its regions yield values of other shapes".into());
        }
        let names: Vec<&str> = values.iter().map(|v| v.name.as_str()).collect();
        let of: Vec<String> = values.iter().map(Typed::ty).collect();
        self.line(&format!("\"stablehlo.return\"({}) : ({}) -> ()", names.join(", "), of.join(", ")));
        Ok(())
    }

    /// Removes the check from the results of an op with regions, and adds it to the checks of the parent region.
    fn with_check(&mut self, mut results: Vec<Val>) -> Vec<Val> {
        self.checks.extend(results.pop());
        results
    }
}
