//! Executes a sharded function on simulated devices. Each device evaluates every op on its own parts; boxing ops
//! exchange parts between devices.

use std::collections::HashMap;

use of_diag::{Code, Diagnostic};
use of_ir::{DType, Elements, Graph, IdMap, OpId, Rewriter, Tensor, Type, ValueId};
use of_ops::structural::{Constant, NoneValue, Return};
use of_ops::{Value, interpret};

use crate::layout::{self, Layout};
use crate::lower::collective;
use crate::simulate::{self, Part};

/// The outputs and the communication of an execution.
pub struct ExecutionResult {
    /// The outputs, as whole tensors.
    pub outputs: Vec<Value>,
    /// Bytes that devices sent to one another.
    pub sent: f64,
}

/// Runs `graph` on a mesh of this shape with whole inputs.
///
/// # Errors
/// A tensor without a layout, a value that is not numeric, or an op that cannot be evaluated.
pub fn execute(graph: &Graph, mesh: &[usize], inputs: &[Value]) -> Result<ExecutionResult, Diagnostic> {
    // The part of each value on each device.
    let mut e = Execution { graph, mesh, values: HashMap::default(), sent: 0.0 };
    for (v, value) in graph.args().iter().zip(inputs) {
        let parts = e.scatter(*v, value)?;
        e.values.insert(*v, parts);
    }
    for op in graph.region_ops(graph.entry()) {
        if !graph.op(op).def.traits().terminator {
            e.op(op)?;
        }
    }
    let outputs = graph.outputs().iter().map(|v| e.gather(*v)).collect::<Result<_, _>>()?;
    Ok(ExecutionResult { outputs, sent: e.sent })
}

struct Execution<'g> {
    graph: &'g Graph,
    mesh: &'g [usize],
    /// What each device holds of each value.
    values: IdMap<ValueId, Vec<Value>>,
    sent: f64,
}

impl Execution<'_> {
    fn devices(&self) -> usize {
        self.mesh.iter().product()
    }

    /// Layout, element type and dimensions of a value.
    fn layout_of(&self, v: ValueId) -> Result<(Layout, DType, Vec<usize>), Diagnostic> {
        let Type::Tensor(t) = self.graph.ty(v) else { return Err(self.error("a value is not a tensor")) };
        let sbp = t.sbp.as_ref().ok_or_else(|| self.error("a tensor has no layout on the mesh"))?;
        let dims = t.fixed_dims().ok_or_else(|| self.error("a tensor has open dimensions"))?;
        Ok((sbp.axes.clone(), t.dtype, dims))
    }

    fn error(&self, what: &str) -> Diagnostic {
        Diagnostic::error(Code::EVAL, of_diag::Location::Unknown, what)
    }

    /// The parts of a whole value.
    fn scatter(&self, v: ValueId, value: &Value) -> Result<Vec<Value>, Diagnostic> {
        let Value::Tensor(t) = value else { return Ok(vec![value.clone(); self.devices()]) };
        let (layout, dtype, _) = self.layout_of(v)?;
        let data = t.to_f64s().ok_or_else(|| self.error("only numeric tensors have layouts"))?;
        let parts = simulate::scatter(&Part { dims: t.dims().to_vec(), data }, &layout, self.mesh);
        parts.iter().map(|p| self.value(p, dtype)).collect()
    }

    fn value(&self, p: &Part, dtype: DType) -> Result<Value, Diagnostic> {
        let elements = match dtype.int_range() {
            Some((low, high)) if !dtype.is_float() => {
                Elements::Int(p.data.iter().map(|x| (*x as i128).clamp(low, high)).collect())
            }
            _ if dtype.is_float() => Elements::Float(p.data.clone()),
            _ => Elements::Int(p.data.iter().map(|x| *x as i128).collect()),
        };
        let t = Tensor::from_elements(dtype, p.dims.clone(), elements).map_err(|e| self.error(&e.to_string()))?;
        Ok(t.into())
    }

    fn parts(&self, v: ValueId) -> Result<Vec<Part>, Diagnostic> {
        let held = self.values.get(&v).ok_or_else(|| self.error("a value is read before it is computed"))?;
        held.iter()
            .map(|x| match x {
                Value::Tensor(t) => {
                    let data = t.to_f64s().ok_or_else(|| self.error("only numeric tensors have layouts"))?;
                    Ok(Part { dims: t.dims().to_vec(), data })
                }
                _ => Err(self.error("a value is not a tensor")),
            })
            .collect()
    }

    fn gather(&self, v: ValueId) -> Result<Value, Diagnostic> {
        let (layout, dtype, dims) = self.layout_of(v)?;
        self.value(&simulate::gather(&self.parts(v)?, &layout, self.mesh, &dims), dtype)
    }

    fn op(&mut self, op: OpId) -> Result<(), Diagnostic> {
        let g = self.graph;
        let data = g.op(op);
        if let Some(c) = collective(data.name()) {
            let (x, y) = (data.operands[0], data.results[0]);
            let ((from, dtype, dims), (to, ..)) = (self.layout_of(x)?, self.layout_of(y)?);
            let axes: Vec<i64> = data.attrs.typed("axes").unwrap_or_default();
            let axes: Vec<usize> = axes.iter().filter_map(|a| usize::try_from(*a).ok()).collect();
            let (parts, sent) = simulate::step(&self.parts(x)?, &from, &to, c, &axes, self.mesh, &dims);
            self.sent += sent as f64 * dtype.bits().unwrap_or(0) as f64 / 8.0;
            let values = parts.iter().map(|p| self.value(p, dtype)).collect::<Result<_, _>>()?;
            self.values.insert(y, values);
            return Ok(());
        }
        if let ([v], true) = (data.results.as_slice(), data.def.traits().constant) {
            let value = g.constant(*v).ok_or_else(|| self.error("a constant has no value"))?;
            let parts = self.scatter(*v, &value.into())?;
            self.values.insert(*v, parts);
            return Ok(());
        }
        let mut results: Vec<Vec<Value>> = vec![Vec::new(); data.results.len()];
        for device in 0..self.devices() {
            let own = self.evaluate(op, device).map_err(|d| d.note(format!("on device {device}")))?;
            results.iter_mut().zip(own).for_each(|(r, v)| r.push(v));
        }
        for (v, parts) in data.results.iter().zip(results) {
            self.values.insert(*v, parts);
        }
        Ok(())
    }

    /// The results of `op` on one device.
    fn evaluate(&self, op: OpId, device: usize) -> Result<Vec<Value>, Diagnostic> {
        let g = self.graph;
        let data = g.op(op);
        let missing = || self.error("a value is read before it is computed");
        let mut operands: Vec<Value> = data
            .operands
            .iter()
            .map(|v| self.values.get(v).map(|list| list[device].clone()).ok_or_else(missing))
            .collect::<Result<_, _>>()?;
        // Shape operands are global: each device substitutes the shape of its own part.
        if let Some(k) = of_ops::get(g, op).and_then(|o| o.shape_operand())
            && let Some(Value::Tensor(_)) = operands.get(k)
        {
            let (layout, _, dims) = self.layout_of(data.results[0])?;
            let coords = layout::coords(self.mesh, device);
            let own = layout::block(&layout, self.mesh, &coords, &dims);
            let own: Vec<i64> = own.iter().map(|(_, n)| *n as i64).collect();
            operands[k] = Tensor::from_i64s(&own).into();
        }
        let mut graph = Graph::new();
        let mut rw = Rewriter::new(&mut graph, "execute");
        rw.set_location(data.loc.clone());
        let mut ids = Vec::with_capacity(operands.len());
        for v in operands {
            ids.push(match v {
                Value::Tensor(value) => rw.create_one(Constant { value }, &[])?,
                _ => rw.create_one(NoneValue {}, &[])?,
            });
        }
        let id = rw.create((data.def, data.attrs.clone()), &ids)?;
        let results = rw.graph().op(id).results.to_vec();
        rw.create(Return {}, &results)?;
        interpret::run_graph(&graph, &[])
    }
}
