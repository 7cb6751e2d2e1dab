//! Parts: copies of ops that compute with what one device or microbatch has of each value.

use of_diag::{Code, Diagnostic};
use of_ir::{Blob, Dim, Graph, IdMap, OpId, RegionId, Rewriter, Tensor, TensorType, Type, ValueId};
use of_ops::OpSpec;
use of_ops::elementwise::{Div, Eq, Gt, Select};
use of_ops::movement::Reshape;
use of_ops::structural::Constant;

/// How one device or microbatch sees the values of a function.
pub(crate) trait Parts {
    /// The type of the part of a value.
    fn ty(&self, v: ValueId) -> Type;
    /// The extents of the part of a value; `None` where it is all of it, or nothing is known.
    fn dims(&self, v: ValueId) -> Option<Vec<Dim>>;
}

/// Copies an op with regions, so that it computes with parts. `values` maps operands and captured values, and is given what the regions
/// make.
///
/// # Errors
/// When an op inside of a region does not make the part of its result.
pub(crate) fn copy_parts(
    rw: &mut Rewriter<'_>,
    g: &Graph,
    op: OpId,
    parts: &dyn Parts,
    values: &mut IdMap<ValueId, ValueId>,
) -> Result<OpId, Diagnostic> {
    let data = g.op(op);
    let unknown = || {
        let what = format!("'{}' reads a value before it is computed", data.name());
        Diagnostic::error(Code::SBP, data.loc.clone(), what)
    };
    let operands: Option<Vec<ValueId>> = data.operands.iter().map(|v| values.get(v).copied()).collect();
    let mut operands = operands.ok_or_else(unknown)?;
    rw.set_location(data.loc.clone());
    if data.regions.is_empty() {
        localize_shape_operand(rw, g, op, &mut operands, |v| parts.dims(v))?;
    }
    let mut regions: Vec<RegionId> = Vec::new();
    for whole in &data.regions {
        let (region, made) = rw.region_with(|rw, region| -> Result<(), Diagnostic> {
            for v in g.region_args(*whole) {
                let arg = rw.add_arg(region, parts.ty(*v), g.name(*v).cloned());
                values.insert(*v, arg);
            }
            g.region_ops(*whole).try_for_each(|inner| copy_parts(rw, g, inner, parts, values).map(drop))
        });
        made?;
        regions.push(region);
    }
    rw.set_location(data.loc.clone());
    let made = match (data.results.as_slice(), data.def.traits().constant) {
        ([v], true) => match (g.constant(*v), extents(&parts.ty(*v))) {
            (Some(value), Some(dims)) if dims != value.dims() => {
                let first: Vec<(usize, usize)> = dims.iter().map(|n| (0, *n)).collect();
                let value = slice_constant(&value, &first).ok_or_else(|| {
                    let what = "elements smaller than a byte cannot be split";
                    Diagnostic::error(Code::SBP, data.loc.clone(), format!("'{}': {what}", data.name()))
                })?;
                rw.create(Constant { value }, &[])?
            }
            _ => rw.create((data.def, data.attrs.clone()), &[])?,
        },
        _ if regions.is_empty() => rw.create((data.def, data.attrs.clone()), &operands)?,
        _ => rw.create_with_regions((data.def, data.attrs.clone()), &operands, &regions)?,
    };
    for (v, own) in data.results.iter().zip(rw.graph().op(made).results.to_vec()) {
        let (is, must) = (rw.graph().ty(own).clone(), parts.ty(*v));
        if let (Some(a), Some(b)) = (extents(&is), extents(&must))
            && a != b
        {
            let what = format!("'{}' makes {is} from parts, but the part of its result is {must}", data.name());
            return Err(Diagnostic::error(Code::SBP, data.loc.clone(), what));
        }
        rw.set_type(own, must);
        if let Some(name) = g.name(*v) {
            rw.set_name(own, name.clone());
        }
        values.insert(*v, own);
    }
    Ok(made)
}

fn extents(t: &Type) -> Option<Vec<usize>> {
    t.as_tensor().and_then(TensorType::fixed_dims)
}

/// A block of a constant. Slices along the outermost axis share its memory. `None` where elements are smaller than a
/// byte.
pub(crate) fn slice_constant(value: &Tensor, block: &[(usize, usize)]) -> Option<Tensor> {
    let (bytes, bits) = (value.bytes()?, value.dtype().bits()?);
    if bits < 8 {
        return None;
    }
    let size = bits / 8;
    let dims: Vec<usize> = block.iter().map(|(_, n)| *n).collect();
    let inner: usize = value.dims().iter().skip(1).product::<usize>() * size;
    let outermost = block.iter().zip(value.dims()).skip(1).all(|((_, n), d)| n == d);
    if let (true, Some((start, n))) = (outermost, block.first()) {
        let part = bytes.slice(start * inner..(start + n) * inner)?;
        return Tensor::from_bytes(value.dtype(), dims, part).ok();
    }
    let strides = of_ops::shape::strides(value.dims());
    // Rows along the last axis are copied whole.
    let (row, rows) = (dims.last().copied().unwrap_or(1) * size, &dims[..dims.len().saturating_sub(1)]);
    let first: usize = block.iter().zip(&strides).map(|((start, _), s)| start * s).sum();
    let mut out = Vec::with_capacity(dims.iter().product::<usize>() * size);
    of_ops::shape::for_each_index(rows, |i| {
        let at = (first + i.iter().zip(&strides).map(|(i, s)| i * s).sum::<usize>()) * size;
        out.extend_from_slice(&bytes[at..at + row]);
    });
    Tensor::from_bytes(value.dtype(), dims, Blob::new(out)).ok()
}

/// Where an operand of `op` gives the extents of its result: replaces the extents of the whole tensor by those of the
/// part, which `part` gives. Open extents of the part are computed from those of the whole.
///
/// # Errors
/// When the constant cannot be made.
pub(crate) fn localize_shape_operand(
    rw: &mut Rewriter<'_>,
    whole: &Graph,
    op: OpId,
    operands: &mut [ValueId],
    part: impl FnOnce(ValueId) -> Option<Vec<Dim>>,
) -> Result<(), Diagnostic> {
    let Some(k) = of_ops::get(whole, op).and_then(|o| o.shape_operand()) else { return Ok(()) };
    let result = whole.op(op).results[0];
    let Some(dims) = whole.ty(result).as_tensor().and_then(|t| t.shape.as_ref()) else { return Ok(()) };
    let Some(part) = part(result).filter(|p| dims != p) else { return Ok(()) };
    let Some(spec) = operands.get(k).copied().filter(|v| rw.graph().ty(*v).as_tensor().is_some()) else {
        return Ok(());
    };
    let known: Vec<i64> = part.iter().map(|d| d.as_const().unwrap_or(-1)).collect();
    let open = part.iter().filter(|d| d.as_const().is_none()).count();
    // A reshape finds one extent itself.
    if open == 0 || (open == 1 && whole.op(op).name() == Reshape::NAME) {
        operands[k] = rw.create_one(Constant { value: Tensor::from_i64s(&known) }, &[])?;
        return Ok(());
    }
    let given = rw.graph().dims_value(spec).filter(|given| given.len() == part.len());
    let slices = |axis: usize| match given.as_ref().map(|given| given[axis].as_const()) {
        // Known extents are replaced below; 0 and -1 say how an extent follows from others.
        Some(Some(_)) => 1,
        _ => dims[axis].exact_div(&part[axis]).and_then(|n| n.as_const()).unwrap_or(1),
    };
    let slices: Vec<i64> = (0..part.len()).map(slices).collect();
    let mut list = |numbers: &[i64]| rw.create_one(Constant { value: Tensor::from_i64s(numbers) }, &[]);
    let (known, slices, zero, open) = (list(&known)?, list(&slices)?, list(&[0])?, list(&[-1])?);
    let mut own = rw.create_one(Div {}, &[spec, slices])?;
    if given.is_none() {
        let is_extent = rw.create_one(Gt {}, &[spec, zero])?;
        own = rw.create_one(Select {}, &[is_extent, own, spec])?;
    }
    if given.is_none_or(|given| part.iter().zip(&given).any(|(own, given)| own.as_const().is_some() && own != given)) {
        let is_open = rw.create_one(Eq {}, &[known, open])?;
        own = rw.create_one(Select {}, &[is_open, own, known])?;
    }
    operands[k] = own;
    Ok(())
}
