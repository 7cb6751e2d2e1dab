//! Branches, loops, and what is not to be looked through.

use of_codegen::emit::{Port, Printer};
use of_ir::{DType, OpId, RegionId, ValueId};

use super::{Emitter, Table, Typed, Val, type_text};

/// Ops of this file.
pub const TABLE: Table = &[("of.hold", hold), ("of.if", branch), ("of.loop", repeat)];

fn hold(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let x = e.operand(op, 0)?;
    Ok(vec![e.emit("stablehlo.optimization_barrier", &[&x], "", x.dtype, &x.dims)])
}

fn branch(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let condition = e.operand(op, 0)?;
    let condition = e.reshape(&condition, &[]);
    let regions = e.g.op(op).regions.to_vec();
    let mut types: Vec<Port> = (0..e.g.op(op).results.len()).map(|i| e.result(op, i)).collect::<Result<_, _>>()?;
    types.push((DType::Bool, vec![]));
    let (name, results) = e.several(&types);
    e.line(&format!("{name}:{} = \"stablehlo.if\"({}) ({{", types.len(), condition.name));
    for (i, region) in regions.iter().enumerate() {
        if i > 0 {
            e.line("}, {");
        }
        let inside = e.region(*region)?;
        e.give(&inside, &types)?;
    }
    let of: Vec<String> = types.iter().map(|(d, s)| type_text(*d, s)).collect();
    e.line(&format!("}}) : ({}) -> ({})", condition.ty(), of.join(", ")));
    Ok(e.with_check(results))
}

/// The state of the loop: the iteration, whether it goes on, what is carried, the stacks, and the check.
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
    let goes = match e.optional(op, 1)? {
        Some(c) => e.reshape(&c, &[]),
        None => e.truth(true),
    };
    let start = e.splat(DType::I64, &[], 0.0);
    let mut state = vec![start, goes];
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
    let types: Vec<Port> = state.iter().map(|v| (v.dtype, v.dims.clone())).collect();
    let of: Vec<String> = state.iter().map(Typed::ty).collect();
    let (name, results) = e.several(&types);
    let names: Vec<&str> = state.iter().map(|v| v.name.as_str()).collect();
    e.line(&format!("{name}:{} = \"stablehlo.while\"({}) ({{", state.len(), names.join(", ")));
    let args = e.arguments(&types);
    let below = e.compare("LT", &args[0], &limit);
    let on = e.binary("and", &below, &args[1]);
    e.line(&format!("\"stablehlo.return\"({}) : (tensor<i1>) -> ()", on.name));
    e.line("}, {");
    let args = e.arguments(&types);
    let own: Vec<ValueId> = e.g.region_args(body).to_vec();
    for (v, val) in own.iter().zip(&args) {
        let (dtype, dims) = super::tensor_of(e.g.ty(*v))?;
        let val = e.reshape(val, &dims);
        if val.dtype != dtype {
            return Err("an argument of its region has another type".into());
        }
        e.set(*v, val);
    }
    let mut next = e.region(body)?;
    let check = next.pop().ok_or("its region yields nothing")?;
    let goes = e.reshape(&next[0], &[]);
    let one = e.splat(DType::I64, &[], 1.0);
    let mut out = vec![e.binary("add", &args[0], &one), goes];
    out.extend(next[1..1 + carried].iter().cloned());
    for (stack, row) in args[2 + carried..].iter().zip(&next[1 + carried..]) {
        let row = e.reshape(row, &[&[1], row.dims.as_slice()].concat());
        let zero = e.splat(DType::I64, &[], 0.0);
        let mut operands = vec![stack, &row, &args[0]];
        operands.extend(std::iter::repeat_n(&zero, stack.rank() - 1));
        out.push(e.emit("stablehlo.dynamic_update_slice", &operands, "", stack.dtype, &stack.dims));
    }
    let held = args.last().ok_or("its region yields nothing")?;
    out.push(e.binary("and", held, &check));
    e.give(&out, &types)?;
    e.line(&format!("}}) : ({}) -> ({})", of.join(", "), of.join(", ")));
    Ok(e.with_check(results)[2..].to_vec())
}

impl Emitter<'_> {
    /// The results of an op that is still to be printed.
    fn several(&mut self, types: &[Port]) -> (String, Vec<Val>) {
        let name = self.fresh();
        let of =
            |(i, (dtype, dims)): (usize, &Port)| Val { name: format!("{name}#{i}"), dtype: *dtype, dims: dims.clone() };
        let results = types.iter().enumerate().map(of).collect();
        (name, results)
    }

    /// The arguments of a region that begins here.
    fn arguments(&mut self, types: &[Port]) -> Vec<Val> {
        let args: Vec<Val> =
            types.iter().map(|(dtype, dims)| Val { name: self.fresh(), dtype: *dtype, dims: dims.clone() }).collect();
        let list: Vec<String> = args.iter().map(|a| format!("{}: {}", a.name, a.ty())).collect();
        self.line(&format!("^bb0({}):", list.join(", ")));
        args
    }

    /// The ops of a region; gives what it yields, then whether its checks held.
    fn region(&mut self, region: RegionId) -> Result<Vec<Val>, String> {
        let outside = std::mem::take(&mut self.checks);
        self.ops(region)?;
        let mut out = self.g.yields(region).iter().map(|v| self.value(*v)).collect::<Result<Vec<_>, _>>()?;
        out.push(self.all_checks());
        self.checks = outside;
        Ok(out)
    }

    /// The terminator of a region that gives values of these types.
    fn give(&mut self, values: &[Val], types: &[Port]) -> Result<(), String> {
        let same = |(v, (dtype, dims)): (&Val, &Port)| v.dtype == *dtype && v.dims == *dims;
        if values.len() != types.len() || !values.iter().zip(types).all(same) {
            return Err("its regions give values of other shapes".into());
        }
        let names: Vec<&str> = values.iter().map(|v| v.name.as_str()).collect();
        let of: Vec<String> = values.iter().map(Typed::ty).collect();
        self.line(&format!("\"stablehlo.return\"({}) : ({}) -> ()", names.join(", "), of.join(", ")));
        Ok(())
    }

    /// Takes the check off the results of an op with regions.
    fn with_check(&mut self, mut results: Vec<Val>) -> Vec<Val> {
        self.checks.extend(results.pop());
        results
    }
}
