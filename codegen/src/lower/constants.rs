//! Constants of the graph as weights of the plan, each once.

use std::collections::HashMap;

use of_diag::{Code, Diagnostic, Location};
use of_ir::{Attr, Blob, Element, Graph, IdMap, Tensor, ValueId};
use of_plan::PlanBuilder;

use crate::kernel::zero_filled::ZeroFilled;
use crate::physical::element_type;

/// Adds constants to the plan on first use.
pub struct Constants<'g, 'b> {
    graph: &'g Graph,
    builder: &'b mut PlanBuilder<'static>,
    plain: IdMap<ValueId, u32>,
}

impl<'g, 'b> Constants<'g, 'b> {
    /// Manages the constants of `graph`.
    pub fn new(graph: &'g Graph, builder: &'b mut PlanBuilder<'static>) -> Self {
        Self { graph, builder, plain: HashMap::default() }
    }

    /// The builder of the plan.
    pub fn builder(&mut self) -> &mut PlanBuilder<'static> {
        self.builder
    }

    /// The weight that holds `v` unchanged; `None` if `v` is not a constant.
    ///
    /// # Errors
    /// When the plan cannot hold it.
    pub fn plain(&mut self, v: ValueId) -> Result<Option<u32>, Diagnostic> {
        if let Some(w) = self.plain.get(&v) {
            return Ok(Some(*w));
        }
        let Some(tensor) = self.tensor(v) else { return Ok(None) };
        let added = self.unchanged(&self.name(v), tensor)?;
        self.plain.extend(added.map(|w| (v, w)));
        Ok(added)
    }

    /// Adds a weight that holds a tensor unchanged; `None` for one without elements in memory.
    ///
    /// # Errors
    /// When the plan cannot hold it.
    pub fn unchanged(&mut self, name: &str, tensor: &Tensor) -> Result<Option<u32>, Diagnostic> {
        let dims: Vec<i64> = tensor.dims().iter().map(|d| *d as i64).collect();
        let bytes = match (tensor.bytes(), tensor.strings()) {
            (Some(shared), _) => shared.clone(),
            (None, Some(s)) => Blob::new(PlanBuilder::encode_strings(s)),
            (None, None) => return Ok(None),
        };
        self.builder.add_weight(name, element_type(tensor.dtype()), &dims, bytes).map(Some).map_err(failed)
    }

    /// Adds a weight that was computed from constants: packed or rearranged.
    ///
    /// # Errors
    /// When the plan cannot hold it.
    pub fn computed<T: Element + Send + Sync>(
        &mut self,
        name: &str,
        data: impl Into<ZeroFilled<T>>,
    ) -> Result<u32, Diagnostic> {
        let data = data.into();
        let dims = [data.len() as i64];
        self.builder.add_weight(name, element_type(T::DTYPE), &dims, data).map_err(failed)
    }

    /// The constant's value, borrowed from the graph.
    pub fn tensor(&self, v: ValueId) -> Option<&'g Tensor> {
        let op = self.graph.op(self.graph.def_op(v)?);
        if !op.def.traits().constant {
            return None;
        }
        match op.attrs.get("value") {
            Some(Attr::Tensor(t)) => Some(t),
            _ => None,
        }
    }

    /// A readable name.
    pub fn name(&self, v: ValueId) -> String {
        self.graph.name(v).map_or_else(|| format!("constant{}", v.index()), |n| n.to_string())
    }
}

fn failed(e: of_plan::BuildError) -> Diagnostic {
    Diagnostic::error(Code::PLAN, Location::Unknown, e.to_string())
}
