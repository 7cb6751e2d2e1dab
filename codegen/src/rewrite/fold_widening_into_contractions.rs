//! Narrows contractions to 16-bit floats, for instruction sets that multiply them directly from memory.
//!
//! The pass `legalize-float16` widened the operands to f32 and rounds the result. Sums are f32 either way, so
//! `round(contraction(widen(a), widen(b)))` equals `contraction(a, b)` of the 16-bit type. Widened constants are narrowed again
//! where the type represents every element.

use std::collections::HashMap;

use half::{bf16, f16};
use of_diag::Diagnostic;
use of_ir::{DType, Func, Graph, IdMap, OpId, Rewriter, Tensor, Type, ValueId};
use of_ops::OpSpec;
use of_ops::contraction::MatMul;
use of_ops::elementwise::Cast;
use of_ops::list::as_op;
use of_ops::movement::{Concat, Expand, Gather, Reshape, Slice, Transpose};
use of_ops::nn::Conv;
use of_ops::structural::Constant;

use crate::analysis::roles::is_depthwise;
use crate::isa::Isa;
use crate::kernel::float::is_half;

/// Ops that only move elements of their first operand.
const MOVES: &[&str] = &[Transpose::NAME, Reshape::NAME, Expand::NAME, Slice::NAME, Gather::NAME];

/// The function with contractions of widened operands narrowed to the 16-bit floats that `isa` multiplies; `None` if it has
/// none.
///
/// # Errors
/// When a new op is invalid, which is a bug.
pub fn narrowed(func: &Func, isa: &Isa) -> Result<Option<Func>, Diagnostic> {
    let of = |op| rounded_to(&func.graph, op).filter(|t| isa.contracts_natively(*t));
    let found: Vec<(OpId, DType)> = func.graph.walk().into_iter().filter_map(|op| Some((op, of(op)?))).collect();
    if found.is_empty() {
        return Ok(None);
    }
    let mut func = func.clone();
    let mut n =
        Narrow { rw: Rewriter::new(&mut func.graph, "fold-widening-into-contractions"), made: HashMap::default() };
    for (op, dtype) in found {
        n.product(op, dtype)?;
    }
    Ok(Some(func))
}

/// The 16-bit type that all readers of a contraction round it to, if its operands were widened from it.
fn rounded_to(g: &Graph, op: OpId) -> Option<DType> {
    let data = g.op(op);
    let [y] = data.results[..] else { return None };
    let is_product = data.name() == MatMul::NAME || data.name() == Conv::NAME && !is_depthwise(g, op);
    let to = |op: OpId| Some(as_op::<Cast>(g, op)?.to);
    let dtype = to(g.uses(y).first()?.op).filter(|t| is_half(*t) && is_product)?;
    let all = g.uses(y).iter().all(|u| to(u.op) == Some(dtype));
    let operands: Option<Vec<bool>> = data.operands.iter().map(|v| widened(g, *v, dtype)).collect();
    (all && operands?.contains(&true)).then_some(dtype)
}

/// Whether `v`, through movements, was widened from `dtype`: `false` for absent values and for constants that `dtype` represents
/// exactly, `None` for anything else.
fn widened(g: &Graph, v: ValueId, dtype: DType) -> Option<bool> {
    if *g.ty(v) == Type::None {
        return Some(false);
    }
    if g.constant(v).is_some() {
        return represented(g, v, dtype).map(|_| false);
    }
    let op = g.def_op(v)?;
    match moved_operands(g, op) {
        [] => {
            let from = g.ty(*g.op(op).operands.first()?).as_tensor()?.dtype;
            (from == dtype && as_op::<Cast>(g, op)?.to == DType::F32).then_some(true)
        }
        list => {
            let parts: Option<Vec<bool>> = list.iter().map(|v| widened(g, *v, dtype)).collect();
            Some(parts?.contains(&true))
        }
    }
}

/// The operands that `op` moves, if it only moves data.
fn moved_operands(g: &Graph, op: OpId) -> &[ValueId] {
    let data = g.op(op);
    match data.name() {
        Concat::NAME => &data.operands,
        name if MOVES.contains(&name) => &data.operands[..1],
        _ => &[],
    }
}

/// The constant `v` in 16-bit floats, if these represent every element.
fn represented(g: &Graph, v: ValueId, dtype: DType) -> Option<Tensor> {
    let t = g.constant(v)?;
    let values = t.as_slice::<f32>()?;
    let exact = |x: &f32| match dtype {
        DType::BF16 => bf16::from_f32(*x).to_f32(),
        _ => f16::from_f32(*x).to_f32(),
    };
    if !values.iter().all(|x| exact(x).to_bits() == x.to_bits()) {
        return None;
    }
    let narrow = match dtype {
        DType::BF16 => Tensor::from_slice(t.dims(), &values.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>()),
        _ => Tensor::from_slice(t.dims(), &values.iter().map(|x| f16::from_f32(*x)).collect::<Vec<_>>()),
    };
    narrow.ok()
}

struct Narrow<'g> {
    rw: Rewriter<'g>,
    /// 16-bit values for those that were widened from them, by value and type.
    made: IdMap<(ValueId, DType), ValueId>,
}

impl Narrow<'_> {
    /// Narrows a contraction to `dtype`, to which its readers round it.
    fn product(&mut self, op: OpId, dtype: DType) -> Result<(), Diagnostic> {
        let data = self.rw.graph().op(op);
        let (def, attrs, operands, y) = (data.def, data.attrs.clone(), data.operands.to_vec(), data.results[0]);
        let own = operands.iter().map(|v| self.value(*v, dtype)).collect::<Result<Vec<_>, _>>()?;
        let readers: Vec<OpId> = self.rw.graph().uses(y).iter().map(|u| u.op).collect();
        self.rw.rewrite(op, &readers);
        let product = self.rw.create((def, attrs), &own)?;
        let result = self.rw.graph().op(product).results[0];
        readers.into_iter().for_each(|cast| self.rw.replace(cast, &[result]));
        self.rw.erase(op);
        operands.into_iter().for_each(|v| self.erase_unused(v));
        Ok(())
    }

    /// The 16-bit source of `v`, with the same movements.
    fn value(&mut self, v: ValueId, dtype: DType) -> Result<ValueId, Diagnostic> {
        if let Some(made) = self.made.get(&(v, dtype)) {
            return Ok(*made);
        }
        let g = self.rw.graph();
        let Some(op) = g.def_op(v).filter(|_| *g.ty(v) != Type::None) else { return Ok(v) };
        let made = if let Some(value) = represented(g, v, dtype) {
            self.rw.rewrite(op, &[]);
            self.rw.create_one(Constant { value }, &[])?
        } else {
            let (data, count) = (g.op(op), moved_operands(g, op).len());
            let (def, attrs, mut operands) = (data.def, data.attrs.clone(), data.operands.to_vec());
            if count == 0 {
                return Ok(operands[0]);
            }
            for v in &mut operands[..count] {
                *v = self.value(*v, dtype)?;
            }
            self.rw.rewrite(op, &[]);
            self.rw.create_one((def, attrs), &operands)?
        };
        self.made.insert((v, dtype), made);
        Ok(made)
    }

    /// Erases the op that defines `v` if it has no more readers.
    fn erase_unused(&mut self, v: ValueId) {
        let g = self.rw.graph();
        // An op may read a value twice: its definition is erased by then.
        let unread = |op: &OpId| g.is_live(*op) && g.op(*op).results.iter().all(|v| g.uses(*v).is_empty());
        let Some(op) = g.def_op(v).filter(unread).filter(|op| !g.op(*op).def.traits().effect) else { return };
        let operands = g.op(op).operands.to_vec();
        self.made.retain(|(of, _), _| *of != v);
        self.rw.erase(op);
        operands.into_iter().for_each(|v| self.erase_unused(v));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of the ops, with the element types of their results.
    fn ops(text: &str) -> Vec<String> {
        let module =
            of_ir::text::parse_module(text, "test", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}"));
        let func = module.main().unwrap();
        let narrow = narrowed(func, Isa::by_name("cuda-emulated").unwrap()).unwrap();
        let g = &narrow.as_ref().unwrap_or(func).graph;
        let name = |op: &OpId| {
            let data = g.op(*op);
            let dtype = data.results.first().and_then(|v| g.ty(*v).as_tensor()).map(|t| format!(" {}", t.dtype));
            format!("{}{}", data.name().trim_start_matches("of."), dtype.unwrap_or_default())
        };
        g.walk().iter().map(name).collect()
    }

    fn text(w: &str, body: &str, to: &str) -> String {
        format!(
            "func @main(%x: tensor<2x3xf16>) -> (tensor<2x2x{to}>) {{\n  %a = of.cast %x {{to = #of.dtype<f32>}}\n  \
             %w = of.constant {{value = dense<{w}> : tensor<3x2xf32>}}\n{body}}}\n"
        )
    }

    #[test]
    fn contractions_of_widened_operands_are_narrowed() {
        let rounded = "  %p = of.matmul %a, %w\n  %y = of.cast %p {to = #of.dtype<f16>}\n  of.return %y\n";
        assert_eq!(ops(&text("0.5", rounded, "f16")), ["constant f16", "matmul f16", "return"]);
        // A weight that 16 bits cannot represent, and a sum that is not rounded.
        let same = ["cast f32", "constant f32", "matmul f32", "cast f16", "return"];
        assert_eq!(ops(&text("0.1", rounded, "f16")), same);
        let exact = "  %p = of.matmul %a, %w\n  of.return %p\n";
        assert_eq!(ops(&text("0.5", exact, "f32")), ["cast f32", "constant f32", "matmul f32", "return"]);
        // A widened value may be moved before its use.
        let moved = "  %t = of.transpose %a {perm = [1, 0]}\n  %p = of.matmul %a, %t\n  %y = of.cast %p {to = #of.dtype<f16>}\n  \
                     of.return %y\n";
        assert_eq!(ops(&text("0.5", moved, "f16"))[..2], ["constant f32", "transpose f16"]);
        // Rounded to another type than that of the operands.
        let other = "  %p = of.matmul %a, %w\n  %y = of.cast %p {to = #of.dtype<bf16>}\n  of.return %y\n";
        assert_eq!(ops(&text("0.5", other, "bf16")), ["cast f32", "constant f32", "matmul f32", "cast bf16", "return"]);
    }
}
