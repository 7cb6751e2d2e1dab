//! The e-graph of a segment: egg's, with an analysis that tracks types and constants.
//!
//! Every e-node has a counterpart in an ordinary graph, the scratch graph, whose operands are members of the operands'
//! classes. So inference, symbolic shapes and costs are those of the IR.

use std::sync::Arc;

use egg::{Analysis, DidMerge, Id};
use of_diag::Location;
use of_ir::{Attrs, Graph, NewOp, OpDef, OpId, Rewriter, Tensor, TensorType, Type, ValueId};
use of_ops::structural::Constant;
use of_ops::{OpSpec, list};

use super::cost::copies;
use super::language::{Kind, Node, OpInterner};

/// Analysis data of an e-class.
#[derive(Clone, Debug)]
pub struct ClassData {
    /// Its value in the scratch graph, or the values of a tuple. A constant where one of its members is constant.
    pub values: Vec<ValueId>,
    /// Whether it depends only on constants and is computed at compile time.
    pub known: bool,
}

/// The analysis: the scratch graph, and the data of the next class.
pub struct OpAnalysis {
    /// Counterparts of the e-nodes.
    pub scratch: Graph,
    /// Interned ops with attributes.
    pub ops: OpInterner,
    next: Option<ClassData>,
}

impl Analysis<Node> for OpAnalysis {
    type Data = ClassData;

    fn make(egraph: &mut egg::EGraph<Node, Self>, _node: &Node, _id: Id) -> ClassData {
        // `EGraph::add` sets the data; egg itself makes no class.
        egraph.analysis.next.take().unwrap_or(ClassData { values: Vec::new(), known: false })
    }

    fn merge(&mut self, a: &mut ClassData, b: ClassData) -> DidMerge {
        let constant = |d: &ClassData| d.values.first().is_some_and(|v| self.scratch.constant(*v).is_some());
        let known = a.known || b.known;
        if a.values.is_empty() || (constant(&b) && !constant(a)) {
            a.values = b.values;
        }
        a.known = known;
        // Existing scratch ops do not change, so there is nothing to propagate.
        DidMerge(false, false)
    }
}

/// First number of symbols that inference invents in the scratch graph, above all symbols of a module.
const FRESH: u32 = 1 << 30;

/// An e-graph over ops.
pub struct EGraph {
    /// egg's e-graph.
    pub egg: egg::EGraph<Node, OpAnalysis>,
}

impl Default for EGraph {
    fn default() -> Self {
        let mut scratch = Graph::new();
        Rewriter::new(&mut scratch, "optimize").number_symbols_from(FRESH);
        EGraph { egg: egg::EGraph::new(OpAnalysis { scratch, ops: OpInterner::default(), next: None }) }
    }
}

impl EGraph {
    /// The class of an outside value, by its number.
    pub fn leaf(&mut self, number: u32, ty: &Type, constant: Option<Tensor>) -> Id {
        let analysis = &mut self.egg.analysis;
        let entry = analysis.scratch.entry();
        let mut rw = Rewriter::new(&mut analysis.scratch, "optimize");
        let known = constant.is_some();
        let made = constant.and_then(|value| rw.create_one(Constant { value }, &[]).ok());
        // Layouts do not matter here: new ops are placed later.
        let ty = match ty {
            Type::Tensor(t) => Type::Tensor(TensorType { sbp: None, ..t.clone() }),
            other => other.clone(),
        };
        let value = made.unwrap_or_else(|| rw.add_arg(entry, ty, None));
        analysis.next = Some(ClassData { values: vec![value], known });
        self.egg.add(Node { kind: Kind::Leaf(number), children: Vec::new(), scratch_op: None })
    }

    /// Whether an elementwise op may fuse with one of its operands: not with constants or pure copies.
    pub fn joins(&self, operands: &[Id]) -> bool {
        operands
            .iter()
            .map(|c| &self.egg[self.egg.find(*c)])
            .filter(|class| !class.data.known)
            .any(|class| class.nodes.iter().any(|n| n.scratch_op.is_none_or(|op| !copies(self.scratch(), op))))
    }

    /// The class of an existing op, with its types.
    pub fn original(&mut self, from: &Graph, op: OpId, operands: &[Id]) -> Option<Id> {
        let data = from.op(op);
        let types = data.results.iter().map(|v| from.ty(*v).clone()).collect();
        self.insert(data.def, &data.attrs, operands, Some(types), &data.loc)
    }

    /// The class of an op on operands. `None` where inference rejects them, or knows less of the shape than the rest of
    /// the graph.
    pub fn add(&mut self, def: &'static dyn OpDef, attrs: &Attrs, operands: &[Id], loc: &Location) -> Option<Id> {
        self.insert(def, attrs, operands, None, loc)
    }

    fn insert(
        &mut self,
        def: &'static dyn OpDef,
        attrs: &Attrs,
        operands: &[Id],
        types: Option<Vec<Type>>,
        loc: &Location,
    ) -> Option<Id> {
        let kind = Kind::Op(self.egg.analysis.ops.number(def, attrs));
        let children: Vec<Id> = operands.iter().map(|c| self.egg.find(*c)).collect();
        let mut node = Node { kind, children, scratch_op: None };
        if let Some(id) = self.egg.lookup(&mut node) {
            return Some(id);
        }
        let known = !def.traits().effect && node.children.iter().all(|c| self.egg[*c].data.known);
        let values: Vec<ValueId> =
            node.children.iter().map(|c| self.egg[*c].data.values.first().copied()).collect::<Option<_>>()?;
        let analysis = &mut self.egg.analysis;
        let mut rw = Rewriter::new(&mut analysis.scratch, "optimize");
        rw.set_location(loc.clone());
        let op = match types {
            Some(types) => rw.create_with_types((def, attrs.clone()), &values, &[], types).ok()?,
            None => rw.create((def, attrs.clone()), &values).ok()?,
        };
        let results = analysis.scratch.op(op).results.to_vec();
        if results.iter().any(|v| !well_known(analysis.scratch.ty(*v))) {
            return None;
        }
        analysis.next = Some(ClassData { values: results, known });
        node.scratch_op = Some(op);
        Some(self.egg.add(node))
    }

    /// The class of result `k` of an op; the op's own class where it is the only result.
    pub fn result(&mut self, tuple: Id, k: usize) -> Option<Id> {
        let tuple = self.egg.find(tuple);
        let data = &self.egg[tuple].data;
        let (value, known) = (*data.values.get(k)?, data.known);
        if data.values.len() == 1 {
            return Some(tuple);
        }
        let scratch_op = self.egg.analysis.scratch.def_op(value);
        self.egg.analysis.next = Some(ClassData { values: vec![value], known });
        let id = self.egg.add(Node { kind: Kind::Result(k as u32), children: vec![tuple], scratch_op });
        self.egg.analysis.next = None;
        Some(id)
    }

    /// Merges two classes if their types are equal. Returns whether they were different.
    pub fn union(&mut self, a: Id, b: Id) -> bool {
        self.ty(a) == self.ty(b) && self.egg.union(a, b)
    }

    /// The value of a class in the scratch graph.
    pub fn value(&self, id: Id) -> Option<ValueId> {
        self.egg[id].data.values.first().copied()
    }

    /// The type of a class.
    pub fn ty(&self, id: Id) -> Type {
        self.value(id).map_or(Type::None, |v| self.scratch().ty(v).clone())
    }

    /// The scratch graph.
    pub fn scratch(&self) -> &Graph {
        &self.egg.analysis.scratch
    }

    /// The declaration and attributes of an e-node that is an op.
    pub fn op_and_attrs(&self, node: &Node) -> Option<(&'static dyn OpDef, &Attrs)> {
        match node.kind {
            Kind::Op(n) => Some(self.egg.analysis.ops.get(n)),
            _ => None,
        }
    }

    /// The attributes of an e-node that is a `T`.
    pub fn as_op<T: OpSpec>(&self, node: &Node) -> Option<T> {
        let (def, attrs) = self.op_and_attrs(node)?;
        if def.name() == T::NAME { T::from_attrs(attrs).ok() } else { None }
    }

    /// The location of an e-node.
    pub fn location(&self, node: &Node) -> Location {
        node.scratch_op.map_or(Location::Unknown, |op| self.scratch().op(op).loc.clone())
    }
}

/// Whether inference knows every extent.
fn well_known(ty: &Type) -> bool {
    let mut well = true;
    ty.map_dims(&mut |d| {
        well &= d.symbols().iter().all(|s| !invented(s));
        d.clone()
    });
    well
}

fn invented(symbol: &Arc<str>) -> bool {
    symbol.strip_prefix('u').and_then(|n| n.parse::<u32>().ok()).is_some_and(|n| n > FRESH)
}

/// Whether the registry has `op` and can decode its attributes.
pub fn is_listed(graph: &Graph, op: OpId) -> bool {
    list::get(graph, op).is_some()
}

/// An op as declaration and attributes.
pub fn parts(op: impl NewOp) -> (&'static dyn OpDef, Attrs) {
    let def = op.def();
    (def, op.into_attrs())
}
