//! Copies of ops whose types are inferred again, in regions too.

use of_diag::Diagnostic;
use of_ir::{DType, Graph, IdMap, OpError, OpId, RegionId, Rewriter, Type, ValueId};
use of_ops::OpSpec;
use of_ops::control::{Loop, Scan, join};
use of_ops::list::as_op;

/// The copies of values.
pub(crate) type Copies = IdMap<ValueId, ValueId>;

/// Copies `op` of graph `from` to the insertion point. `map` has the copies of what it reads and receives its results.
///
/// # Errors
/// When inference does not accept the operands, of `op` or of an op in its regions.
pub(crate) fn copy_op(rw: &mut Rewriter<'_>, from: &Graph, op: OpId, map: &mut Copies) -> Result<(), Diagnostic> {
    let data = from.op(op);
    let operands: Vec<ValueId> = data.operands.iter().map(|v| map[v]).collect();
    let regions = regions(rw, from, op, map)?;
    let copy = rw.create_with_regions((data.def, data.attrs.clone()), &operands, &regions)?;
    let results = rw.graph().op(copy).results.to_vec();
    map.extend(data.results.iter().copied().zip(results));
    Ok(())
}

/// Copies of the regions of `op`. A carried value has the type that all iterations have in common: the region is copied again
/// until its arguments hold what it yields, as the import of a model does.
fn regions(rw: &mut Rewriter<'_>, from: &Graph, op: OpId, map: &mut Copies) -> Result<Vec<RegionId>, Diagnostic> {
    let data = from.op(op);
    let Some(mut args) = arguments(rw.graph(), from, op, map).map_err(|e| e.at(data.name(), &data.loc))? else {
        return data.regions.iter().map(|r| Ok(copy_region(rw, from, *r, &[], map)?.0)).collect();
    };
    loop {
        let types = [&args.before[..], &args.carried, &args.after].concat();
        let (region, yields) = copy_region(rw, from, data.regions[0], &types, map)?;
        let next = yields.iter().skip(args.skip);
        let joined = args.carried.iter().zip(next).map(|(a, b)| join(a, b)).collect::<Result<Vec<_>, _>>();
        let joined = joined.map_err(|e| e.at(data.name(), &data.loc))?;
        if joined == args.carried {
            return Ok(vec![region]);
        }
        let ops: Vec<OpId> = rw.graph().region_ops(region).collect();
        ops.into_iter().rev().for_each(|op| rw.erase(op));
        args.carried = joined;
    }
}

/// Types of the arguments of a loop's region.
struct Arguments {
    before: Vec<Type>,
    carried: Vec<Type>,
    after: Vec<Type>,
    /// Values that the region yields before the carried ones.
    skip: usize,
}

/// `None` for an op whose regions have no arguments.
fn arguments(graph: &Graph, from: &Graph, op: OpId, map: &Copies) -> Result<Option<Arguments>, OpError> {
    let data = from.op(op);
    let types: Vec<Type> = data.operands.iter().map(|v| graph.ty(map[v]).clone()).collect();
    if data.name() == Loop::NAME {
        let before = vec![Type::fixed(DType::I64, &[]), Type::fixed(DType::Bool, &[])];
        return Ok(Some(Arguments { before, carried: types[2..].to_vec(), after: Vec::new(), skip: 1 }));
    }
    let Some(scan) = as_op::<Scan>(from, op) else { return Ok(None) };
    let (inputs, _) = scan.slices(types.len(), data.results.len())?;
    let (carried, scanned) = types.split_at(types.len() - inputs.len());
    let mut after = scanned.to_vec();
    for (ty, (axis, _)) in after.iter_mut().zip(&inputs) {
        if let Type::Tensor(t) = ty
            && let Some(shape) = &mut t.shape
        {
            shape.remove(of_ops::shape::axis(*axis, shape.len())?);
        }
    }
    Ok(Some(Arguments { before: Vec::new(), carried: carried.to_vec(), after, skip: 0 }))
}

/// A copy of a region whose arguments have the given types, and the types that it yields.
fn copy_region(
    rw: &mut Rewriter<'_>,
    from: &Graph,
    source: RegionId,
    args: &[Type],
    map: &mut Copies,
) -> Result<(RegionId, Vec<Type>), Diagnostic> {
    let (region, filled) = rw.region_with(|rw, region| {
        for (arg, ty) in from.region_args(source).iter().zip(args) {
            map.insert(*arg, rw.add_arg(region, ty.clone(), from.name(*arg).cloned()));
        }
        from.region_ops(source).try_for_each(|op| copy_op(rw, from, op, map))
    });
    filled?;
    let yields = rw.graph().yields(region).iter().map(|v| rw.graph().ty(*v).clone()).collect();
    Ok((region, yields))
}
