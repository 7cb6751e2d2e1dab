//! Subgraphs as regions of an op.

use of_ir::{OpId, RegionId, Type, ValueId};

use super::Importer;
use super::declared::Declared;
use super::report::ImportError;
use super::scope::Bound;
use crate::proto::GraphProto;

/// An imported subgraph: a region without parent yet.
pub(crate) struct Region {
    /// The region.
    pub id: RegionId,
    /// What it yields.
    pub yields: Vec<ValueId>,
}

impl<'m> Importer<'m, '_> {
    /// Imports `graph` as a region whose arguments have the given types. The values around it are visible in it.
    pub fn region(&mut self, graph: &'m GraphProto, args: &[Type]) -> Result<Region, ImportError> {
        if graph.input.len() != args.len() {
            let what =
                format!("subgraph '{}' has {} inputs, it must have {}", graph.name(), graph.input.len(), args.len());
            return Err(ImportError::invalid(what));
        }
        self.enter()?;
        let id = self.rw.new_region();
        let outer = std::mem::replace(&mut self.region, id);
        self.rw.at_end(id);
        self.scope.push();
        let errors = self.report.len();
        for (input, ty) in graph.input.iter().zip(args) {
            let v = self.rw.add_arg(id, ty.clone(), Some(input.name().into()));
            if !self.scope.bind(input.name(), Bound::Value(v)) {
                self.report.error(crate::tensor::invalid(format!("'{}' is defined twice", input.name())));
            }
        }
        self.constants(graph);
        self.nodes(&graph.node, &Declared::new());
        let yields = self.outputs(graph);
        self.scope.pop();
        self.leave();
        let complete = yields.len() == graph.output.len() && self.report.len() == errors;
        let end = if complete { self.rw.create(of_ops::structural::Yield {}, &yields).map(|_| ()) } else { Ok(()) };
        self.region = outer;
        self.rw.at_end(outer);
        end?;
        if complete { Ok(Region { id, yields }) } else { Err(ImportError::Poisoned) }
    }

    /// Imports `graph` into the region that is being filled: `args` become its inputs. Returns its outputs.
    pub fn inline(&mut self, graph: &'m GraphProto, args: &[ValueId]) -> Result<Vec<ValueId>, ImportError> {
        if graph.input.len() != args.len() {
            let what =
                format!("subgraph '{}' has {} inputs, it must have {}", graph.name(), graph.input.len(), args.len());
            return Err(ImportError::invalid(what));
        }
        self.enter()?;
        self.scope.push();
        let errors = self.report.len();
        for (input, v) in graph.input.iter().zip(args) {
            if !self.scope.bind(input.name(), Bound::Value(*v)) {
                self.report.error(crate::tensor::invalid(format!("'{}' is defined twice", input.name())));
            }
        }
        self.constants(graph);
        self.nodes(&graph.node, &Declared::new());
        let outputs = self.outputs(graph);
        self.scope.pop();
        self.leave();
        let complete = outputs.len() == graph.output.len() && self.report.len() == errors;
        if complete { Ok(outputs) } else { Err(ImportError::Poisoned) }
    }

    /// The value that `name` refers to in the current scope.
    pub fn named(&self, name: &str) -> Result<ValueId, ImportError> {
        match self.scope.get(name) {
            Some(Bound::Value(v)) => Ok(v),
            Some(Bound::Poisoned) => Err(ImportError::Poisoned),
            Some(Bound::Absent) | None => Err(ImportError::invalid(format!("'{name}' is not defined"))),
        }
    }

    /// Makes a region whose arguments have the given types, filled with the ops that `fill` creates for them.
    pub fn region_of(
        &mut self,
        args: &[Type],
        fill: impl FnOnce(&mut Self, &[ValueId]) -> Result<Vec<ValueId>, ImportError>,
    ) -> Result<Region, ImportError> {
        let id = self.rw.new_region();
        let outer = std::mem::replace(&mut self.region, id);
        self.rw.at_end(id);
        let args: Vec<ValueId> = args.iter().map(|ty| self.rw.add_arg(id, ty.clone(), None)).collect();
        let yields = fill(self, &args);
        let end = match &yields {
            Ok(yields) => self.rw.create(of_ops::structural::Yield {}, yields).map(|_| ()),
            Err(_) => Ok(()),
        };
        self.region = outer;
        self.rw.at_end(outer);
        end?;
        Ok(Region { id, yields: yields? })
    }

    /// Removes a region that is not used after all.
    pub fn discard(&mut self, region: &Region) {
        let ops: Vec<OpId> = self.rw.graph().region_ops(region.id).collect();
        for op in ops.into_iter().rev() {
            self.rw.erase(op);
        }
        self.rw.at_end(self.region);
    }
}
