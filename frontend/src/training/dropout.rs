//! Dropout of a training step: random numbers are a function of the step, the layer and the element, so a step has the same numbers on
//! every machine, in every layout, and when it is run again from a snapshot.

use std::collections::HashMap;

use of_diag::{Code, Diagnostic};
use of_ir::{DType, Dim, Elements, NewOp, OpId, RegionId, Tensor, ValueId};
use of_ops::elementwise::{Add, BitwiseXor, Cast, Ge, Mul, Select, Shr};
use of_ops::list::as_op;
use of_ops::movement::{Range, Reshape};
use of_ops::nn::Dropout;
use of_ops::structural::{Constant, ShapeOf, Size};

use crate::Builder;

/// The region of a dropout, and the extents of what it drops.
type Place = (RegionId, Vec<i64>);

/// Adds ops before another op.
struct Before<'b> {
    b: &'b mut Builder,
    op: OpId,
}

impl Before<'_> {
    fn op(&mut self, new: impl NewOp, operands: &[ValueId]) -> Result<ValueId, Diagnostic> {
        Ok(self.b.op_before(self.op, new, operands)?[0])
    }

    fn constant(&mut self, dtype: DType, elements: Elements) -> Result<ValueId, Diagnostic> {
        let value = Tensor::from_elements(dtype, Vec::new(), elements);
        let value = value.map_err(|e| super::plain(Code::TYPE, e.to_string()))?;
        self.op(Constant { value }, &[])
    }

    fn word(&mut self, value: u32) -> Result<ValueId, Diagnostic> {
        self.constant(DType::U32, Elements::Int(vec![i128::from(value)]))
    }

    fn float(&mut self, value: f64, dtype: DType) -> Result<ValueId, Diagnostic> {
        self.constant(dtype, Elements::Float(vec![value]))
    }

    /// A hash of 32 bits in which every bit of the result depends on every bit of `x`. Source: Wellons, "Prospecting for Hash
    /// Functions" (2018), lowbias32.
    fn hash(&mut self, mut x: ValueId) -> Result<ValueId, Diagnostic> {
        for (shift, factor) in [(16, Some(0x7feb_352d)), (15, Some(0x846c_a68b)), (16, None)] {
            let distance = self.word(shift)?;
            let shifted = self.op(Shr {}, &[x, distance])?;
            x = self.op(BitwiseXor {}, &[x, shifted])?;
            if let Some(factor) = factor {
                let factor = self.word(factor)?;
                x = self.op(Mul {}, &[x, factor])?;
            }
        }
        Ok(x)
    }
}

/// Makes the dropouts of a function random. `counts` are inputs of rank 0, f32, which together differ from step to step. An output that
/// is the result of a dropout becomes the new one.
///
/// # Errors
/// When the ratio of a dropout is computed, or no number below 1.
pub(super) fn randomize(
    b: &mut Builder,
    outputs: &mut [ValueId],
    counts: &[ValueId],
    seed: u64,
) -> Result<(), Diagnostic> {
    let mut indices = HashMap::new();
    let all = b.graph().walk().into_iter().filter_map(|op| Some((op, as_op::<Dropout>(b.graph(), op)?)));
    for (layer, (op, dropout)) in all.collect::<Vec<_>>().into_iter().enumerate() {
        let operands = b.graph().op(op).operands.to_vec();
        let known = |i: usize| match operands.get(i) {
            Some(v) if *b.graph().ty(*v) != of_ir::Type::None => b.graph().constant(*v)?.to_f64s()?.first().copied(),
            _ => Some(if i == 1 { 0.5 } else { 1.0 }),
        };
        let ratio = known(1).filter(|ratio| (0.0..1.0).contains(ratio)).ok_or_else(|| {
            let loc = b.graph().op(op).loc.clone();
            Diagnostic::error(Code::UNSUPPORTED, loc, "the ratio of this dropout is no constant from 0 to below 1")
        })?;
        let index = index(&mut Before { b, op }, operands[0], &mut indices)?;
        let (y, kept) = dropped(&mut Before { b, op }, (operands[0], index), counts, ratio, mixed(seed, layer))?;
        let results = if dropout.return_mask { vec![y, kept] } else { vec![y] };
        replace(b, op, &results, outputs);
    }
    Ok(())
}

/// Puts values in the place of an op's results, among the outputs as well.
pub(super) fn replace(b: &mut Builder, op: OpId, values: &[ValueId], outputs: &mut [ValueId]) {
    let old = b.graph().op(op).results.to_vec();
    for output in outputs {
        if let Some(i) = old.iter().position(|v| v == output) {
            *output = values[i];
        }
    }
    b.replace(op, values);
}

/// The seed of a layer.
fn mixed(seed: u64, layer: usize) -> u32 {
    let seed = (seed ^ (layer as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xd134_2543_de82_ef95);
    (seed >> 32) as u32
}

/// The hashes of the numbers of the elements of `x`: those of an earlier dropout of the region, where its shape is the same and known, so that they are computed
/// and kept once.
fn index(b: &mut Before<'_>, x: ValueId, known: &mut HashMap<Place, ValueId>) -> Result<ValueId, Diagnostic> {
    let dims =
        b.b.ty(x).as_tensor().and_then(|t| t.shape.as_ref()?.iter().map(Dim::as_const).collect::<Option<Vec<_>>>());
    let place = dims.map(|dims| (b.b.graph().op(b.op).parent, dims));
    if let Some(index) = place.as_ref().and_then(|place| known.get(place)) {
        return Ok(*index);
    }
    let (size, shape) = (b.op(Size {}, &[x])?, b.op(ShapeOf { start: None, end: None }, &[x])?);
    let (zero, one) =
        (b.constant(DType::I64, Elements::Int(vec![0]))?, b.constant(DType::I64, Elements::Int(vec![1]))?);
    let index = b.op(Range {}, &[zero, size, one])?;
    let index = b.op(Cast::to(DType::U32), &[index])?;
    let index = b.op(Reshape { allowzero: false }, &[index, shape])?;
    let index = b.hash(index)?;
    place.map(|place| known.insert(place, index));
    Ok(index)
}

/// `x` with elements set to zero and the others scaled, and which are kept. The random numbers are those of `index`.
fn dropped(
    b: &mut Before<'_>,
    (x, index): (ValueId, ValueId),
    counts: &[ValueId],
    ratio: f64,
    seed: u32,
) -> Result<(ValueId, ValueId), Diagnostic> {
    let dtype = b.b.ty(x).as_tensor().map_or(DType::F32, |t| t.dtype);
    let mut key = b.word(seed)?;
    for count in counts {
        let whole = b.op(Cast::to(DType::U32), &[*count])?;
        key = b.op(BitwiseXor {}, &[whole, key])?;
        key = b.hash(key)?;
    }
    let bits = b.op(Add {}, &[index, key])?;
    let bits = b.hash(bits)?;
    let distance = b.word(8)?;
    let bits = b.op(Shr {}, &[bits, distance])?;
    // 24 bits, which f32 represents exactly.
    let number = b.op(Cast::to(DType::F32), &[bits])?;
    let least = b.float(ratio * f64::from(1u32 << 24), DType::F32)?;
    let kept = b.op(Ge {}, &[number, least])?;
    let scale = b.float(1.0 / (1.0 - ratio), dtype)?;
    let scaled = b.op(Mul {}, &[x, scale])?;
    let none = b.float(0.0, dtype)?;
    Ok((b.op(Select {}, &[kept, scaled, none])?, kept))
}
