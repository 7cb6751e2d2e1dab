//! The scalar program of a fused group: the loads, computations, reductions and stores at each point of its space.

use std::collections::HashMap;

use of_ir::{DType, Graph, IdMap, IdSet, Type, ValueId};
use of_ops::OpSpec;
use of_ops::division;
use of_ops::exactness::rounded_values;
use of_ops::nn::Conv;
use of_ops::scalar::ScalarOp;

use crate::analysis::constant::{loaded_numbers, number};
use crate::analysis::reduction::reduce_kind;
use crate::analysis::roles::{Role, Roles};
use crate::fuse::{Group, GroupKind};
use crate::kernel::body::{Body, Load, Node};
use crate::kernel::extent;
use crate::kernel::extent::Extent;
use crate::kernel::float::is_half;
use crate::kernel::space::row_major;

/// Values of a graph that programs treat in a way of their own.
#[derive(Default, Debug)]
pub struct Special {
    /// Values that must keep every bit.
    pub kept: IdSet<ValueId>,
    /// Constants that elementwise kernels load.
    pub loaded: IdSet<ValueId>,
}

impl Special {
    /// Those of a graph.
    pub fn of(g: &Graph) -> Special {
        Special { kept: rounded_values(g), loaded: loaded_numbers(g) }
    }
}

/// Builds the program of `group`, in whose space the anchor's result (if any) keeps its dimensions.
pub fn body(g: &Graph, group: &Group, roles: &Roles, inner: usize, special: &Special) -> Body {
    let mut b = Builder {
        g,
        group,
        loaded: if group.kind == GroupKind::Elementwise { Some(&special.loaded) } else { None },
        inner,
        body: Body::default(),
        node_of: HashMap::default(),
        constants: HashMap::default(),
        loads: HashMap::default(),
    };
    for op in group.recomputed.iter().chain(&group.ops) {
        let data = g.op(*op);
        let result = data.results[0];
        let dtype = b.dtype(result);
        let n = match roles.get(*op).clone() {
            Role::Anchor => {
                // A 16-bit contraction accumulates in f32.
                let sum = if is_half(dtype) { DType::F32 } else { dtype };
                let anchor = b.body.push(Node::Anchor, sum, false);
                let exact = match data.operands.get(2).filter(|v| data.name() == Conv::NAME && *g.ty(**v) != Type::None)
                {
                    // The bias of a convolution has one number a channel, and channels are the last axis.
                    Some(bias) => {
                        let bias = b.operand(*bias);
                        b.body.op(ScalarOp::Add, &[anchor, bias], sum, false)
                    }
                    None => anchor,
                };
                if sum == dtype { exact } else { b.body.op(ScalarOp::Cast(dtype), &[exact], dtype, false) }
            }
            Role::RowReduce(_) | Role::ColumnReduce(_) => {
                let x = b.operand(data.operands[0]);
                b.body.push(Node::Reduce(reduce_kind(data.name()), x), dtype, true)
            }
            Role::Map(scalar) => {
                let args: Vec<usize> = data.operands.iter().map(|v| b.operand(*v)).collect();
                let per_row = b.is_row(result) && inner > 0;
                if division::divides_integers(scalar, dtype) && division::is_guarded(g, *op) {
                    b.body.guarded_division(scalar, [args[0], args[1]], dtype, per_row)
                } else {
                    b.body.op(scalar, &args, dtype, per_row)
                }
            }
            _ => continue,
        };
        b.node_of.insert(result, n);
    }
    let escapes = |v: ValueId| g.uses(v).iter().any(|u| !group.ops.contains(&u.op));
    for op in &group.ops {
        let v = g.op(*op).results[0];
        if let Some(n) = b.node_of.get(&v)
            && escapes(v)
            && !group.unstored.contains(&v)
        {
            b.body.stores.push((v, *n));
        }
    }
    b.body.unfused = b.body.stores.iter().any(|(v, _)| special.kept.contains(v));
    b.body
}

struct Builder<'a> {
    g: &'a Graph,
    group: &'a Group,
    loaded: Option<&'a IdSet<ValueId>>,
    inner: usize,
    body: Body,
    node_of: IdMap<ValueId, usize>,
    constants: HashMap<(u64, DType), usize>,
    loads: IdMap<ValueId, usize>,
}

impl Builder<'_> {
    fn dtype(&self, v: ValueId) -> DType {
        self.g.ty(v).as_tensor().map_or(DType::F32, |t| t.dtype)
    }

    fn dims(&self, v: ValueId) -> Vec<Extent> {
        extent::of_value(self.g, v)
    }

    /// Whether `v` spans no inner axis (in a space where inner axes are longer than 1).
    fn is_row(&self, v: ValueId) -> bool {
        let (dims, space) = (self.dims(v), &self.group.space);
        let start = space.len() - self.inner;
        (start..space.len()).all(|axis| match (axis + dims.len()).checked_sub(space.len()) {
            Some(i) => dims[i].is(1),
            None => true,
        }) && space[start..].iter().any(|d| !d.is(1))
    }

    fn operand(&mut self, v: ValueId) -> usize {
        if let Some(n) = self.node_of.get(&v) {
            return *n;
        }
        let dtype = self.dtype(v);
        if let Some(c) = number(self.g, v).filter(|_| self.loaded.is_none_or(|l| !l.contains(&v))) {
            if let Some(n) = self.constants.get(&(c.to_bits(), dtype)) {
                return *n;
            }
            let n = self.body.push(Node::Const(c), dtype, self.inner > 0);
            self.constants.insert((c.to_bits(), dtype), n);
            return n;
        }
        if let Some(n) = self.loads.get(&v) {
            return *n;
        }
        let dims = self.dims(v);
        let own = row_major(&dims);
        let rank = self.group.space.len();
        let strides = (0..rank)
            .map(|axis| match (axis + dims.len()).checked_sub(rank) {
                Some(i) if !dims[i].is(1) => extent::broadcast_stride(&dims[i], &self.group.space[axis], &own[i]),
                _ => 0usize.into(),
            })
            .collect();
        self.body.loads.push(Load { value: v, dtype, strides });
        let per_row = self.inner > 0 && self.is_row(v);
        let n = self.body.push(Node::Load(self.body.loads.len() - 1), dtype, per_row);
        self.loads.insert(v, n);
        n
    }
}
