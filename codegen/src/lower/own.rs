//! Ops that bring a kernel of their own for GPUs: those of a user's library.

use std::fmt::Write;

use of_ir::{Arity, DType, Graph, OpId, OpView, Type, ValueId};
use of_ops::Launch;

use crate::native::expr::ctype;
use crate::native::nest::{Nest, Own};

/// Whether the op is none of the list, so that a kernel can only be its own.
pub fn is_own(g: &Graph, op: OpId) -> bool {
    of_ops::op_registry::get(g.op(op).name()).is_some()
}

/// The operands that it reads: all that are there.
pub fn reads(g: &Graph, op: OpId) -> Vec<ValueId> {
    g.op(op).operands.iter().copied().filter(|v| *g.ty(*v) != Type::None).collect()
}

/// The op's own kernel.
///
/// # Errors
/// Why it has none.
pub fn kernel(g: &Graph, op: OpId) -> Result<Nest, String> {
    let data = g.op(op);
    let own = of_ops::get(g, op).ok_or_else(|| format!("'{}' is not known", data.name()))?;
    let results: Vec<Type> = data.results.iter().map(|v| g.ty(*v).clone()).collect();
    let fixed = |v: &ValueId| match g.ty(*v) {
        Type::None => true,
        Type::Tensor(t) => t.fixed_dims().is_some(),
        _ => false,
    };
    if !data.operands.iter().chain(&data.results).all(fixed) {
        return Err("its kernel needs extents that are numbers".into());
    }
    let view = OpView { graph: g, operands: &data.operands, attrs: &data.attrs, regions: &data.regions };
    let kernel = own.cuda(&view, &results)?;
    let (mut head, mut arg) = (String::new(), 0);
    let mut pointer = |constant: &str, v: ValueId, name: &str| {
        let Some(t) = g.ty(v).as_tensor() else { return };
        // Kernels know other elements by their size alone.
        let ty = match t.dtype {
            DType::F16 | DType::BF16 => "u16",
            dtype => ctype(dtype),
        };
        let _ = writeln!(head, "  PTR({constant}{ty}) {name} = ARG({constant}{ty}, {arg});");
        arg += 1;
    };
    let signature = data.def.signature();
    for (constant, slots, values) in
        [("const ", signature.operands, &data.operands[..]), ("", signature.results, &data.results[..])]
    {
        for (i, v) in values.iter().enumerate() {
            match slots.get(i).or(slots.last()) {
                Some(s) if s.arity == Arity::Variadic => {
                    pointer(constant, *v, &format!("{}{}", s.name, i + 1 - slots.len()));
                }
                Some(s) => pointer(constant, *v, s.name),
                None => return Err("it has more values than it declares".into()),
            }
        }
    }
    let (count, per_thread) = match kernel.launch {
        Launch::Threads(n) => (n, true),
        Launch::Blocks(n) => (n, false),
    };
    let count = usize::try_from(count).map_err(|_| "its kernel is too large")?;
    Ok(Nest::Own(Own { head, text: kernel.text, count, per_thread }))
}
