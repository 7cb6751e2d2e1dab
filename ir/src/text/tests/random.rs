//! Random dimensions, types, attributes, tensors, locations and modules.

use std::sync::Arc;

use fastrand::Rng;
use of_diag::Location;

use super::ops;
use crate::*;

const STRINGS: [&str; 9] = ["", "x", "y.1", "a b", "q\"uo\\te", "line\nbreak", "é漢", "/model/Add_output_0", "max"];

fn string(rng: &mut Rng) -> Arc<str> {
    STRINGS[rng.usize(..STRINGS.len())].into()
}

/// A dimension of at most `depth` levels.
pub(crate) fn dim(rng: &mut Rng, depth: u32) -> Dim {
    if depth == 0 || rng.u8(..3) == 0 {
        return match rng.u8(..8) {
            0 => Dim::from(rng.i64(-5..100)),
            1 => Dim::from(i64::MIN),
            2 => Dim::symbol("batch size"),
            3 => Dim::symbol("floordiv"),
            4 => Dim::symbol("u7"),
            _ => Dim::symbol(["N", "M", "seq.len"][rng.usize(..3)]),
        };
    }
    let (a, b) = (dim(rng, depth - 1), dim(rng, depth - 1));
    match rng.u8(..4) {
        0 => &a + &b,
        1 => &a - &b,
        2 => &a * &b,
        _ => Dim::call(DimFn::ALL[rng.usize(..DimFn::ALL.len())], &a, &b),
    }
}

fn sbp(rng: &mut Rng) -> NdSbp {
    let mesh = ["m", "odd mesh"][rng.usize(..2)].into();
    let axes = (0..rng.usize(1..3)).map(|_| match rng.u8(..3) {
        0 => Sbp::Split(rng.u8(..4)),
        1 => Sbp::Broadcast,
        _ => Sbp::Partial(PartialKind::ALL[rng.usize(..4)]),
    });
    NdSbp { mesh, axes: axes.collect() }
}

/// An element type.
pub(crate) fn dtype(rng: &mut Rng) -> DType {
    DType::ALL[rng.usize(..DType::ALL.len())]
}

/// A type.
pub(crate) fn ty(rng: &mut Rng, depth: u32) -> Type {
    match rng.u8(..10) {
        0 if depth > 0 => Type::Sequence(Box::new(ty(rng, depth - 1))),
        1 if depth > 0 => Type::Optional(Box::new(ty(rng, depth - 1))),
        2 => Type::None,
        _ => {
            let symbolic = rng.bool();
            let shape = (0..rng.usize(..4)).map(|_| match rng.u8(..6) {
                0 if symbolic => Dim::unknown(),
                1..3 if symbolic => dim(rng, 2),
                _ => Dim::from(rng.i64(0..70)),
            });
            let shape = shape.collect();
            let sbp = (rng.u8(..4) == 0).then(|| sbp(rng));
            Type::Tensor(TensorType { dtype: dtype(rng), shape: (rng.u8(..9) != 0).then_some(shape), sbp })
        }
    }
}

/// A tensor, mostly small.
pub(crate) fn tensor(rng: &mut Rng) -> Tensor {
    let dtype = dtype(rng);
    let dims: Vec<usize> = match rng.u8(..8) {
        0 => vec![],
        1 => vec![2, 0, 3],
        2 => vec![5, 30],
        3 => vec![65],
        _ => (0..rng.usize(1..4)).map(|_| rng.usize(1..4)).collect(),
    };
    let n: usize = dims.iter().product();
    if dtype == DType::String {
        return Tensor::from_strings(dims, (0..n).map(|_| string(rng).to_string()).collect()).unwrap();
    }
    let constant = rng.u8(..4) == 0;
    let first = rng.i128(..);
    let ints: Vec<i128> = (0..n).map(|_| if constant { first } else { rng.i128(..) }).collect();
    if dtype.is_float() {
        // Any bits at all: infinities, NaNs with payloads, subnormals.
        let width = dtype.bits().unwrap().div_ceil(8);
        let bytes = ints.iter().flat_map(|i| i.to_le_bytes()[..width].to_vec()).collect();
        return Tensor::from_cells(dtype, dims, bytes).unwrap();
    }
    Tensor::from_elements(dtype, dims, Elements::Int(ints)).unwrap()
}

/// An attribute of any kind.
pub(crate) fn attr(rng: &mut Rng, depth: u32) -> Attr {
    let float = |rng: &mut Rng| match rng.u8(..6) {
        0 => f64::INFINITY,
        1 => f64::from_bits(rng.u64(..)),
        2 => -0.0,
        3 => 1e300,
        _ => f64::from(rng.i32(-100..100)) / 8.0,
    };
    let n = rng.usize(..4);
    match rng.u8(..16) {
        0 => Attr::Unit,
        1 => Attr::Bool(rng.bool()),
        2 => Attr::Int([i64::MIN, i64::MAX, rng.i64(-9..9)][rng.usize(..3)]),
        3 => Attr::Float(float(rng)),
        4 => Attr::Str(string(rng)),
        5 => Attr::Ints((0..n).map(|_| rng.i64(..)).collect()),
        6 => Attr::Floats((0..n).map(|_| float(rng)).collect()),
        7 => Attr::Strs((0..n).map(|_| string(rng)).collect()),
        8 => Attr::Tensor(tensor(rng)),
        9 => Attr::Type(ty(rng, 2)),
        10 => Attr::DType(dtype(rng)),
        11 => Attr::Dims((0..n).map(|_| dim(rng, 2)).collect()),
        12 => Attr::Sbp(sbp(rng)),
        // Not the empty one, which upstream prints without quotes.
        13 => Attr::Symbol(STRINGS[rng.usize(1..STRINGS.len())].into()),
        _ if depth == 0 => Attr::Array(Vec::new()),
        14 => {
            let one = attr(rng, depth - 1);
            Attr::Array(vec![one; n])
        }
        _ => Attr::Array((0..n).map(|_| attr(rng, depth - 1)).collect()),
    }
}

fn attrs(rng: &mut Rng) -> Attrs {
    const KEYS: [&str; 8] = ["value", "axis", "of.hint", "loc", "odd key", "tensor", "é", "t.yield"];
    (0..rng.usize(..4)).map(|_| (KEYS[rng.usize(..KEYS.len())].into(), attr(rng, 2))).collect()
}

/// A location.
pub(crate) fn location(rng: &mut Rng, depth: u32) -> Location {
    match rng.u8(..4) {
        0 => Location::Unknown,
        1 => Location::source(string(rng), rng.u32(..), rng.u32(..)),
        2 if depth > 0 => {
            let from: Vec<Location> = (0..rng.usize(..3)).map(|_| location(rng, depth - 1)).collect();
            Location::derived(string(rng), &from)
        }
        _ => Location::onnx(string(rng), rng.u32(..), string(rng)),
    }
}

struct Builder<'g, 'r> {
    rw: Rewriter<'g>,
    rng: &'r mut Rng,
    registry: Registry,
    visible: Vec<ValueId>,
}

impl Builder<'_, '_> {
    fn name(&mut self, v: ValueId) {
        if self.rng.bool() {
            let n = string(self.rng);
            self.rw.set_name(v, n);
        }
    }

    fn region(&mut self, depth: u32) -> RegionId {
        let r = self.rw.new_region();
        self.fill(r, "t.yield", depth);
        r
    }

    fn fill(&mut self, region: RegionId, end: &str, depth: u32) {
        let outer = self.visible.len();
        for _ in 0..self.rng.usize(..3) {
            let t = ty(self.rng, 2);
            let v = self.rw.add_arg(region, t, None);
            self.name(v);
            self.visible.push(v);
        }
        for _ in 0..self.rng.usize(..6) {
            self.op(region, None, depth);
        }
        self.op(region, Some(end), depth);
        self.visible.truncate(outer);
    }

    fn op(&mut self, region: RegionId, name: Option<&str>, depth: u32) {
        let names = ["t.const", "t.any", "t.any", "odd-name", "t.same", "t.if", "t.loop", "nodot"];
        let mut name = name.unwrap_or_else(|| names[self.rng.usize(..if depth == 0 { 4 } else { names.len() })]);
        if self.visible.is_empty() && matches!(name, "t.same" | "t.if") {
            name = "t.any";
        }
        let def = self.registry.get(name).unwrap();
        let sig = def.signature();
        let least = sig.operands.iter().filter(|s| s.arity == Arity::One).count();
        let most = if self.visible.is_empty() || sig.operands.is_empty() { 0 } else { sig.operands.len().max(1) + 1 };
        let most = if sig.operands.iter().any(|s| s.arity == Arity::Variadic) { most } else { sig.operands.len() };
        let n = if most > least { self.rng.usize(least..=most) } else { least };
        let operands: Vec<ValueId> = (0..n).map(|_| self.visible[self.rng.usize(..self.visible.len())]).collect();
        let regions: Vec<RegionId> = (0..sig.regions).map(|_| self.region(depth - 1)).collect();
        let results = match sig.results {
            [] => 0,
            [s] if s.arity == Arity::One => 1,
            _ => self.rng.usize(..4),
        };
        let types: Vec<Type> = (0..results).map(|_| ty(self.rng, 2)).collect();
        let (attrs, loc) = (attrs(self.rng), location(self.rng, 2));
        self.rw.at_end(region);
        self.rw.set_location(loc);
        let op = self.rw.create_with_types((def, attrs), &operands, &regions, types).unwrap();
        for v in self.rw.graph().op(op).results.clone() {
            self.name(v);
            self.visible.push(v);
        }
    }
}

/// A module of any shape. Its types mean nothing, so that only its text is of use.
pub(crate) fn module(seed: u64) -> Module {
    let rng = &mut Rng::with_seed(seed);
    let mut m = Module { name: string(rng).to_string(), ..Module::default() };
    for name in ["m", "odd mesh"] {
        let part = rng.bool().then(|| crate::MeshPart { axis: rng.usize(0..3), index: rng.usize(0..4), of: 4 });
        m.meshes.insert(name.into(), Mesh { devices: string(rng).to_string(), shape: vec![2, rng.usize(1..9)], part });
    }
    for name in ["main", "other func", ""] {
        let mut graph = Graph::new();
        let mut b =
            Builder { rw: Rewriter::new(&mut graph, "random"), rng, registry: ops::registry(), visible: vec![] };
        let entry = b.rw.graph().entry();
        b.fill(entry, "t.return", 2);
        let inputs = graph.args().iter().map(|_| string(rng).to_string()).collect();
        let outputs = graph.outputs().iter().map(|_| string(rng).to_string()).collect();
        let (attrs, loc) = (attrs(rng), location(rng, 2));
        m.funcs.insert(name.into(), Func { graph, inputs, outputs, attrs, loc });
    }
    m
}
