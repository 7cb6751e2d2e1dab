//! The e-graph of a region: egg's, with an analysis that knows types and constants.
//!
//! Every e-node has a twin in an ordinary graph, the scratch graph, whose operands are any members of the operands'
//! classes. So inference, symbolic shapes and costs are those of the IR: the op's own.

use std::sync::Arc;

use egg::{Analysis, DidMerge, Id};
use of_diag::Location;
use of_ir::{Attrs, Graph, NewOp, OpDef, OpId, Rewriter, Tensor, TensorType, Type, ValueId};
use of_ops::structural::Constant;
use of_ops::{OpSpec, list};

use super::cost::copies;
use super::language::{Forms, Kind, Node};

/// What is known of a class.
#[derive(Clone, Debug)]
pub struct Data {
    /// Its value in the scratch graph, or those of a tuple. A constant where one of its members is one.
    pub values: Vec<ValueId>,
    /// Whether it follows from constants alone: it is computed at compile time, whatever that takes.
    pub known: bool,
}

/// The analysis: the scratch graph, and what is passed to the next class that is made.
pub struct Facts {
    /// Twins of the e-nodes.
    pub scratch: Graph,
    /// Ops with attributes.
    pub forms: Forms,
    next: Option<Data>,
}

impl Analysis<Node> for Facts {
    type Data = Data;

    fn make(egraph: &mut egg::EGraph<Node, Self>, _node: &Node, _id: Id) -> Data {
        // `EGraph::add` says what is made; egg itself makes nothing.
        egraph.analysis.next.take().unwrap_or(Data { values: Vec::new(), known: false })
    }

    fn merge(&mut self, a: &mut Data, b: Data) -> DidMerge {
        let constant = |d: &Data| d.values.first().is_some_and(|v| self.scratch.constant(*v).is_some());
        let known = a.known || b.known;
        if a.values.is_empty() || (constant(&b) && !constant(a)) {
            a.values = b.values;
        }
        a.known = known;
        // What was made of the class before does not change: nothing to tell its users.
        DidMerge(false, false)
    }
}

/// Symbols that inference invents in the scratch graph start here, above all that a module can have.
const FRESH: u32 = 1 << 30;

/// An e-graph over ops.
pub struct EGraph {
    /// egg's.
    pub egg: egg::EGraph<Node, Facts>,
}

impl Default for EGraph {
    fn default() -> Self {
        let mut scratch = Graph::new();
        Rewriter::new(&mut scratch, "optimize").number_symbols_from(FRESH);
        EGraph { egg: egg::EGraph::new(Facts { scratch, forms: Forms::default(), next: None }) }
    }
}

impl EGraph {
    /// The class of a value from outside, number `number`.
    pub fn leaf(&mut self, number: u32, ty: &Type, constant: Option<Tensor>) -> Id {
        let facts = &mut self.egg.analysis;
        let entry = facts.scratch.entry();
        let mut rw = Rewriter::new(&mut facts.scratch, "optimize");
        let known = constant.is_some();
        let made = constant.and_then(|value| rw.create_one(Constant { value }, &[]).ok());
        // How it lies does not matter here: what is made of it has yet to be placed.
        let ty = match ty {
            Type::Tensor(t) => Type::Tensor(TensorType { sbp: None, ..t.clone() }),
            other => other.clone(),
        };
        let value = made.unwrap_or_else(|| rw.add_arg(entry, ty, None));
        facts.next = Some(Data { values: vec![value], known });
        self.egg.add(Node { kind: Kind::Leaf(number), children: Vec::new(), made: None })
    }

    /// Whether an elementwise op may join the kernel of one of its operands: not where these are constants, or made by
    /// copies alone.
    pub fn joins(&self, operands: &[Id]) -> bool {
        operands
            .iter()
            .map(|c| &self.egg[self.egg.find(*c)])
            .filter(|class| !class.data.known)
            .any(|class| class.nodes.iter().any(|n| n.made.is_none_or(|op| !copies(self.scratch(), op))))
    }

    /// The class of an op that is in the graph already, with the types that it has there.
    pub fn original(&mut self, from: &Graph, op: OpId, operands: &[Id]) -> Option<Id> {
        let data = from.op(op);
        let types = data.results.iter().map(|v| from.ty(*v).clone()).collect();
        self.insert(data.def, &data.attrs, operands, Some(types), &data.loc)
    }

    /// The class of an op on operands; `None` where its inference does not accept them, or does not know their shape
    /// as well as the rest of the graph does.
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
        let kind = Kind::Op(self.egg.analysis.forms.number(def, attrs));
        let children: Vec<Id> = operands.iter().map(|c| self.egg.find(*c)).collect();
        let mut node = Node { kind, children, made: None };
        if let Some(id) = self.egg.lookup(&mut node) {
            return Some(id);
        }
        let known = !def.traits().effect && node.children.iter().all(|c| self.egg[*c].data.known);
        let values: Vec<ValueId> =
            node.children.iter().map(|c| self.egg[*c].data.values.first().copied()).collect::<Option<_>>()?;
        let facts = &mut self.egg.analysis;
        let mut rw = Rewriter::new(&mut facts.scratch, "optimize");
        rw.set_location(loc.clone());
        let op = match types {
            Some(types) => rw.create_with_types((def, attrs.clone()), &values, &[], types).ok()?,
            None => rw.create((def, attrs.clone()), &values).ok()?,
        };
        let results = facts.scratch.op(op).results.to_vec();
        if results.iter().any(|v| !well_known(facts.scratch.ty(*v))) {
            return None;
        }
        facts.next = Some(Data { values: results, known });
        node.made = Some(op);
        Some(self.egg.add(node))
    }

    /// The class of result `k` of an op; the op's own class where it has no other.
    pub fn result(&mut self, tuple: Id, k: usize) -> Option<Id> {
        let tuple = self.egg.find(tuple);
        let data = &self.egg[tuple].data;
        let (value, known) = (*data.values.get(k)?, data.known);
        if data.values.len() == 1 {
            return Some(tuple);
        }
        let made = self.egg.analysis.scratch.def_op(value);
        self.egg.analysis.next = Some(Data { values: vec![value], known });
        let id = self.egg.add(Node { kind: Kind::Result(k as u32), children: vec![tuple], made });
        self.egg.analysis.next = None;
        Some(id)
    }

    /// Says that two classes are equal, if their types are the same; whether that was news.
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

    /// The graph of twins.
    pub fn scratch(&self) -> &Graph {
        &self.egg.analysis.scratch
    }

    /// The declaration and attributes of an e-node that is an op.
    pub fn form(&self, node: &Node) -> Option<(&'static dyn OpDef, &Attrs)> {
        match node.kind {
            Kind::Op(n) => Some(self.egg.analysis.forms.get(n)),
            _ => None,
        }
    }

    /// The attributes of an e-node that is a `T`.
    pub fn as_op<T: OpSpec>(&self, node: &Node) -> Option<T> {
        let (def, attrs) = self.form(node)?;
        if def.name() == T::NAME { T::from_attrs(attrs).ok() } else { None }
    }

    /// Where an e-node comes from.
    pub fn location(&self, node: &Node) -> Location {
        node.made.map_or(Location::Unknown, |op| self.scratch().op(op).loc.clone())
    }
}

/// Whether inference knew every extent.
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

/// Whether the list knows `op` and says how its attributes are read.
pub fn is_listed(graph: &Graph, op: OpId) -> bool {
    list::get(graph, op).is_some()
}

/// An op with its attributes as two things.
pub fn parts(op: impl NewOp) -> (&'static dyn OpDef, Attrs) {
    let def = op.def();
    (def, op.into_attrs())
}
