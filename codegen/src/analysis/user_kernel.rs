//! Ops of a user library, which supply their GPU kernels.

use of_ir::{Arity, Graph, OpId, OpView, Type, ValueId};
use of_ops::Launch;

use crate::kernel::nest::Nest;
use crate::kernel::user_kernel::{UserArgument, UserKernel};

/// Whether the op comes from a user library.
pub fn is_user_op(g: &Graph, op: OpId) -> bool {
    of_ops::op_registry::get(g.op(op).name()).is_some()
}

/// The operands that it reads: all that are present.
pub fn reads(g: &Graph, op: OpId) -> Vec<ValueId> {
    g.op(op).operands.iter().copied().filter(|v| *g.ty(*v) != Type::None).collect()
}

/// The kernel that the op supplies.
///
/// # Errors
/// The reason why there is none.
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
    let mut arguments = Vec::new();
    let mut argument = |written: bool, v: ValueId, name: String| {
        if let Some(t) = g.ty(v).as_tensor() {
            arguments.push(UserArgument { name, dtype: t.dtype, written });
        }
    };
    let signature = data.def.signature();
    for (written, slots, values) in
        [(false, signature.operands, &data.operands[..]), (true, signature.results, &data.results[..])]
    {
        for (i, v) in values.iter().enumerate() {
            match slots.get(i).or(slots.last()) {
                Some(s) if s.arity == Arity::Variadic => {
                    argument(written, *v, format!("{}{}", s.name, i + 1 - slots.len()));
                }
                Some(s) => argument(written, *v, s.name.to_string()),
                None => return Err("it has more values than it declares".into()),
            }
        }
    }
    let (count, per_thread) = match kernel.launch {
        Launch::Threads(n) => (n, true),
        Launch::Blocks(n) => (n, false),
    };
    let count = usize::try_from(count).map_err(|_| "its kernel is too large")?;
    Ok(Nest::User(UserKernel { arguments, text: kernel.text, count, per_thread }))
}
