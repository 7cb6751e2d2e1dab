//! Every op refuses operands that would make a result larger than the inferred type.

use of_ir::{Attr, Attrs, DType, Graph, Rewriter, Type};

/// The result type of an op on operands of these shapes, or the message.
fn infer(op: &str, attrs: &[(&str, Attr)], operands: &[(DType, &[usize])]) -> Result<String, String> {
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut rw = Rewriter::new(&mut graph, "test");
    let ids: Vec<_> = operands.iter().map(|(d, s)| rw.add_arg(entry, Type::fixed(*d, s), None)).collect();
    let attrs: Attrs = attrs.iter().map(|(n, a)| ((*n).into(), a.clone())).collect();
    let def = of_ops::decl(op).unwrap().as_def();
    rw.create_one((def, attrs), &ids).map(|v| rw.graph().ty(v).to_string()).map_err(|e| e.message)
}

const F: DType = DType::F32;
const B: DType = DType::U8;

#[test]
fn clip_bounds_broadcast_to_the_operand() {
    assert!(infer("of.clip", &[], &[(F, &[2, 3]), (F, &[]), (F, &[3])]).is_ok());
    for bound in [&[2, 2, 3][..], &[4], &[1, 1, 1]] {
        let message = infer("of.clip", &[], &[(F, &[2, 3]), (F, bound)]).unwrap_err();
        assert!(message.contains("does not broadcast"), "{message}");
    }
    assert!(infer("of.clip", &[], &[(F, &[1, 3]), (F, &[2, 3])]).is_err());
}

#[test]
fn quantization_parameters_broadcast() {
    let product =
        |za: &[usize], zb: &[usize]| infer("of.matmul_integer", &[], &[(B, &[4, 3]), (B, &[3, 5]), (B, za), (B, zb)]);
    for (za, zb) in [(&[][..], &[][..]), (&[1], &[1]), (&[4], &[5]), (&[4, 1], &[1, 5])] {
        assert_eq!(product(za, zb).as_deref(), Ok("tensor<4x5xi32>"));
    }
    for (za, zb) in [(&[5][..], &[][..]), (&[2, 4, 3], &[]), (&[], &[2, 1, 5]), (&[], &[0])] {
        assert!(product(za, zb).is_err(), "{za:?} {zb:?}");
    }
    let q = |sa: &[usize], sy: &[usize]| {
        let operands: [(DType, &[usize]); 8] =
            [(B, &[4, 3]), (F, sa), (B, &[]), (B, &[3, 5]), (F, &[]), (B, &[]), (F, sy), (B, &[])];
        infer("of.qlinear_matmul", &[], &operands)
    };
    assert!(q(&[4], &[1]).is_ok() && q(&[], &[4]).is_ok());
    assert!(q(&[1, 1, 1], &[]).is_err() && q(&[], &[3]).is_err());
}

/// -1 as ui32 is no dimension, and one that is not known does not fit into 8 bits.
#[test]
fn overflowing_dimensions_are_unknown() {
    use of_ops::elementwise::Cast;
    use of_ops::structural::{Constant, ShapeOf};
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut rw = Rewriter::new(&mut graph, "test");
    let minus = Constant::ints(&mut rw, &[-1, 3]).unwrap();
    let x = rw.add_arg(entry, Type::tensor(F, vec![of_ir::Dim::symbol("N")]), None);
    let shape = rw.create_one(ShapeOf { start: None, end: None }, &[x]).unwrap();
    for (v, to, known) in [
        (minus, DType::U32, false),
        (minus, DType::I32, true),
        (shape, DType::I32, true),
        (shape, DType::I64, true),
        (shape, DType::U8, false),
    ] {
        let cast = rw.create_one(Cast::to(to), &[v]).unwrap();
        assert_eq!(rw.graph().dims_value(cast).is_some(), known, "{to}");
    }
}

#[test]
fn rotary_angles_broadcast_to_positions() {
    let attrs =
        [("interleaved", Attr::Bool(true)), ("num_heads", Attr::Int(1)), ("rotary_embedding_dim", Attr::Int(0))];
    let cache: &[usize] = &[9, 1];
    let turn = |ids: &[usize]| {
        infer("of.rotary_embedding", &attrs, &[(F, &[2, 3, 2]), (F, cache), (F, cache), (DType::I64, ids)])
    };
    assert!(turn(&[2, 3]).is_ok() && turn(&[1, 3]).is_ok());
    assert!(turn(&[3]).is_err() && turn(&[3, 3]).is_err());
}

/// A result that no memory holds is refused before anything is allocated for it.
#[test]
fn results_beyond_memory_are_refused() {
    assert_eq!(of_ops::shape::count(&[1 << 20, 0]), Ok(0));
    assert!(of_ops::shape::count(&[1 << 20, 1 << 20]).is_err());
}

/// A window over an axis without elements covers padding alone: there is no position to count.
#[test]
fn arg_max_of_an_empty_axis_is_refused() {
    use of_ops::nn::MaxPool;
    let op = MaxPool {
        kernel: vec![1, 1],
        strides: vec![],
        pads: vec![0, 1, 0, 0],
        dilations: vec![],
        auto_pad: "NOTSET".into(),
        ceil_mode: false,
        channels_last: false,
        storage_order: 1,
        return_indices: true,
    };
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut rw = Rewriter::new(&mut graph, "test");
    let x = rw.add_arg(entry, Type::fixed(F, &[1, 1, 1, 0]), None);
    let pool = rw.create(op, &[x]).unwrap();
    let results = rw.graph().op(pool).results.to_vec();
    rw.create(of_ops::structural::Return {}, &results).unwrap();
    let empty = of_ir::Tensor::from_slice::<f32>(&[1, 1, 1, 0], &[]).unwrap();
    // Whatever it is, it is no panic.
    let _ = of_ops::interpret::run_graph(&graph, &[empty.into()]);
}
