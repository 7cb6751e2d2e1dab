//! Graphs as they are imported: constants, inputs, names, types.

mod support;

use of_diag::Code;
use of_ir::{Blob, DType, Tensor, Type};
use of_onnx::proto::tensor_proto::DataType;
use of_onnx::proto::{ModelProto, TensorProto, TypeProto, ValueInfoProto, type_proto};
use of_onnx::{Options, import_bytes, import_file};
use of_ops::Value;
use support::*;

#[test]
fn initialisers_are_constants_and_defaults_of_inputs() {
    let model = Build::new()
        .input("x", F32, &["2"])
        .input("w", F32, &["2"])
        .init(f32s("w", &[2], &[10.0, 20.0]))
        .init(f32s("b", &[], &[0.5]))
        .node("Mul", &["x", "w"], &["m"], &[])
        .node("Add", &["m", "b"], &["y"], &[])
        .output("y", F32, &["2"])
        .model(18);
    let module = good(&model);
    let main = module.main().unwrap();
    assert_eq!((main.inputs.as_slice(), main.outputs.as_slice()), (&["x".to_owned()][..], &["y".to_owned()][..]));
    gives(&model, &[x32(&[2], &[1.0, 2.0])], &[(&[2], &[10.5, 40.5])]);
}

#[test]
fn inputs_and_initialisers_may_be_outputs() {
    let model =
        |outputs| Build::new().input("x", F32, &["1"]).init(i64s("c", &[2], &[3, 4])).outputs(outputs).model(18);
    gives(&model(&["c", "x"]), &[x32(&[1], &[7.0])], &[(&[2], &[3.0, 4.0]), (&[1], &[7.0])]);
    // Callers look up outputs by name, so each output has a distinct name.
    let twice = import(&model(&["c", "x", "c"])).unwrap();
    verified(&twice.module);
    assert_eq!(twice.module.funcs["main"].outputs, ["c", "x", "c_2"]);
    assert!(twice.warnings.0[0].message.contains("output 'c' is listed again"), "{:?}", twice.warnings.0);
    let values = run(&twice.module, &[x32(&[1], &[7.0])]);
    assert_eq!(numbers(&values[2]), (vec![2], vec![3.0, 4.0]));
}

#[test]
fn every_field_of_tensors_is_read() {
    let f16 = |x: u16| i32::from(x);
    let tensors: Vec<(TensorProto, Vec<f64>)> = vec![
        (TensorProto { float_data: vec![1.5, -2.0], ..empty("f32", F32, &[2]) }, vec![1.5, -2.0]),
        (TensorProto { double_data: vec![0.25], ..empty("f64", DataType::Double, &[1]) }, vec![0.25]),
        (TensorProto { int64_data: vec![-5, 6], ..empty("i64", I64, &[2]) }, vec![-5.0, 6.0]),
        (TensorProto { uint64_data: vec![7], ..empty("u64", DataType::Uint64, &[1]) }, vec![7.0]),
        (TensorProto { uint64_data: vec![1 << 31], ..empty("u32", DataType::Uint32, &[1]) }, vec![2147483648.0]),
        (TensorProto { int32_data: vec![-8], ..empty("i32", DataType::Int32, &[1]) }, vec![-8.0]),
        (TensorProto { int32_data: vec![-9], ..empty("i16", DataType::Int16, &[1]) }, vec![-9.0]),
        (TensorProto { int32_data: vec![65535], ..empty("u16", DataType::Uint16, &[1]) }, vec![65535.0]),
        (TensorProto { int32_data: vec![-128], ..empty("i8", DataType::Int8, &[1]) }, vec![-128.0]),
        (TensorProto { int32_data: vec![255], ..empty("u8", DataType::Uint8, &[1]) }, vec![255.0]),
        (TensorProto { int32_data: vec![1, 0, 3], ..empty("bool", BOOL, &[3]) }, vec![1.0, 0.0, 1.0]),
        (TensorProto { int32_data: vec![f16(0x3C00)], ..empty("f16", DataType::Float16, &[1]) }, vec![1.0]),
        (TensorProto { int32_data: vec![f16(0x4000)], ..empty("bf16", DataType::Bfloat16, &[1]) }, vec![2.0]),
        (TensorProto { int32_data: vec![0x38], ..empty("f8", DataType::Float8e4m3fn, &[1]) }, vec![1.0]),
        (TensorProto { int32_data: vec![0xF7, 0x02], ..empty("i4", DataType::Int4, &[3]) }, vec![7.0, -1.0, 2.0]),
        (raw("raw4", DataType::Uint4, &[3], vec![0xF7, 0x02]), vec![7.0, 15.0, 2.0]),
        (
            TensorProto { int32_data: vec![0x39, 0x02], ..empty("i2", DataType::Int2, &[5]) },
            vec![1., -2., -1., 0., -2.],
        ),
        (raw("raw2", DataType::Uint2, &[5], vec![0x39, 0x02]), vec![1.0, 2.0, 3.0, 0.0, 2.0]),
        (TensorProto { int32_data: vec![0xF1, 0x04], ..empty("f4", DataType::Float4e2m1, &[3]) }, vec![0.5, -6.0, 2.0]),
        (TensorProto { int32_data: vec![126], ..empty("e8m0", DataType::Float8e8m0, &[1]) }, vec![0.5]),
        (raw("rawbool", BOOL, &[2], vec![2, 0]), vec![1.0, 0.0]),
        (raw("none", F32, &[0], vec![]), vec![]),
        (empty("nothing", F32, &[0]), vec![]),
    ];
    for (t, values) in tensors {
        let name = t.name().to_owned();
        let module = good(&Build::new().init(t).outputs(&[&name]).model(18));
        assert_eq!(numbers(&run(&module, &[])[0]).1, values, "{name}");
    }
    let strings = TensorProto { string_data: vec!["a".into(), "é".into()], ..empty("s", DataType::String, &[2]) };
    let module = good(&Build::new().init(strings).outputs(&["s"]).model(18));
    let Value::Tensor(t) = &run(&module, &[])[0] else { panic!() };
    assert_eq!(t.strings().unwrap(), ["a", "é"]);
}

#[test]
fn sparse_tensors_become_dense() {
    let flat = sparse(f32s("a", &[2], &[5.0, 6.0]), i64s("", &[2], &[1, 4]), &[2, 3]);
    let pairs = sparse(f32s("b", &[2], &[5.0, 6.0]), i64s("", &[2, 2], &[0, 1, 1, 2]), &[2, 3]);
    let model = Build::new().sparse(flat).sparse(pairs).outputs(&["a", "b"]).model(18);
    gives(&model, &[], &[(&[2, 3], &[0.0, 5.0, 0.0, 0.0, 6.0, 0.0]), (&[2, 3], &[0.0, 5.0, 0.0, 0.0, 0.0, 6.0])]);
    let outside = sparse(f32s("a", &[1], &[5.0]), i64s("", &[1], &[6]), &[2, 3]);
    refused(&bad(&Build::new().sparse(outside).outputs(&["a"]).model(18)), Code::MODEL, &["indices"]);
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    let cases = [
        (TensorProto { float_data: vec![1.0], ..empty("w", F32, &[2]) }, "float_data"),
        (raw("w", F32, &[2], vec![0; 7]), "w"),
        (TensorProto { dims: vec![-1], ..f32s("w", &[1], &[1.0]) }, "[-1]"),
        (TensorProto { dims: vec![i64::MAX, 4], ..f32s("w", &[1], &[1.0]) }, "shape"),
        (TensorProto { data_type: Some(0), ..f32s("w", &[1], &[1.0]) }, "element type"),
        (TensorProto { data_type: Some(99), ..f32s("w", &[1], &[1.0]) }, "99"),
        (TensorProto { string_data: vec![vec![0xFF].into()], ..empty("w", DataType::String, &[1]) }, "UTF-8"),
    ];
    for (t, word) in cases {
        refused(&bad(&Build::new().init(t).outputs(&["w"]).model(18)), Code::MODEL, &[word]);
    }
    let complex = raw("w", DataType::Complex64, &[1], vec![0; 8]);
    refused(&bad(&Build::new().init(complex).outputs(&["w"]).model(18)), Code::UNSUPPORTED, &["complex64"]);
}

#[test]
fn constant_operator_has_seven_forms() {
    let scattered = sparse(f32s("", &[1], &[9.0]), i64s("", &[1], &[1]), &[2]);
    let model = Build::new()
        .node("Constant", &[], &["a"], &[tensor("value", f32s("", &[2], &[1.0, 2.0]))])
        .node("Constant", &[], &["b"], &[float("value_float", 0.5)])
        .node("Constant", &[], &["c"], &[floats("value_floats", &[1.5, 2.5])])
        .node("Constant", &[], &["d"], &[int("value_int", -3)])
        .node("Constant", &[], &["e"], &[ints("value_ints", &[4, 5])])
        .node("Constant", &[], &["f"], &[sparse_tensor("sparse_value", scattered)])
        .node("Constant", &[], &["g"], &[ints("value_ints", &[])])
        .outputs(&["a", "b", "c", "d", "e", "f", "g"])
        .model(18);
    gives(
        &model,
        &[],
        &[
            (&[2], &[1.0, 2.0]),
            (&[], &[0.5]),
            (&[2], &[1.5, 2.5]),
            (&[], &[-3.0]),
            (&[2], &[4.0, 5.0]),
            (&[2], &[0.0, 9.0]),
            (&[0], &[]),
        ],
    );
    let module = good(
        &Build::new()
            .node("Constant", &[], &["s"], &[text("value_string", "one")])
            .node("Constant", &[], &["t"], &[texts("value_strings", &["two", "three"])])
            .outputs(&["s", "t"])
            .model(18),
    );
    let strings: Vec<Tensor> = run(&module, &[])
        .into_iter()
        .map(|v| match v {
            Value::Tensor(t) => t,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!((strings[0].dims(), strings[0].strings().unwrap()), (&[][..], &["one".to_owned()][..]));
    assert_eq!((strings[1].dims(), strings[1].strings().unwrap().len()), (&[2][..], 2));

    let two = Build::new().node("Constant", &[], &["a"], &[int("value_int", 1), float("value_float", 1.0)]);
    refused(&bad(&two.outputs(&["a"]).model(18)), Code::MODEL, &["two are given"]);
    let none = Build::new().node("Constant", &[], &["a"], &[]);
    refused(&bad(&none.outputs(&["a"]).model(18)), Code::MODEL, &["without value"]);
}

#[test]
fn optional_inputs_may_be_omitted() {
    let model = Build::new()
        .input("x", F32, &["4"])
        .init(f32s("two", &[], &[2.0]))
        .init(i64s("from", &[1], &[3]))
        .init(i64s("to", &[1], &[-5]))
        .init(i64s("by", &[1], &[-2]))
        .node("Clip", &["x", "", "two"], &["upper"], &[])
        .node("Clip", &["x", "two"], &["lower"], &[])
        .node("Clip", &["x", "", ""], &["same"], &[])
        .node("Slice", &["x", "from", "to", "", "by"], &["cut"], &[])
        .outputs(&["upper", "lower", "same", "cut"])
        .model(18);
    let x = [1.0, 2.0, 3.0, 4.0];
    gives(
        &model,
        &[x32(&[4], &x)],
        &[
            (&[4], &[1.0, 2.0, 2.0, 2.0]),
            (&[4], &[2.0, 2.0, 3.0, 4.0]),
            (&[4], &[1.0, 2.0, 3.0, 4.0]),
            (&[2], &[4.0, 2.0]),
        ],
    );
    let missing = Build::new().input("x", F32, &["4"]).node("Add", &["", "x"], &["y"], &[]).outputs(&["y"]).model(18);
    refused(&bad(&missing), Code::MODEL, &["input 0 is missing"]);
}

#[test]
fn optional_outputs_may_be_omitted() {
    let model = Build::new()
        .input("x", F32, &["3"])
        .init(i64s("k", &[1], &[2]))
        .node("TopK", &["x", "k"], &["", "i"], &[])
        .node("Dropout", &["x"], &["d", ""], &[])
        .outputs(&["i", "d"])
        .model(18);
    gives(&model, &[x32(&[3], &[1.0, 5.0, 3.0])], &[(&[2], &[1.0, 2.0]), (&[3], &[1.0, 5.0, 3.0])]);
}

#[test]
fn locations_carry_node_names_and_indices() {
    let model = Build::new()
        .input("x", F32, &["2"])
        .init(f32s("w", &[2], &[1.0, 1.0]))
        .node("Relu", &["x"], &["r"], &[])
        .named("first")
        .node("Add", &["r", "w"], &["s"], &[])
        .node("Exp", &["s"], &["y"], &[])
        .named("last")
        .outputs(&["y"])
        .model(18);
    let module = good(&model);
    let g = &module.main().unwrap().graph;
    let place = |name: &str| {
        let op = ops(g, name)[0];
        (onnx(&op.loc), g.name(op.results[0]).unwrap().to_string())
    };
    assert_eq!(place("of.relu"), (("first".into(), 0, "Relu".into()), "r".into()));
    assert_eq!(place("of.add"), (("s".into(), 1, "Add".into()), "s".into()));
    assert_eq!(place("of.exp"), (("last".into(), 2, "Exp".into()), "y".into()));
    assert_eq!(place("of.constant"), (("w".into(), 0, "Initializer".into()), "w".into()));
    assert_eq!(g.name(g.args()[0]).unwrap().to_string(), "x");
    assert_eq!(module.name, "g");
}

#[test]
fn errors_name_the_node() {
    let model = Build::new()
        .input("x", F32, &["2"])
        .input("z", F32, &["3"])
        .node("Relu", &["x"], &["r"], &[])
        .node("Add", &["r", "z"], &["y"], &[])
        .named("sum")
        .outputs(&["y"])
        .model(18);
    let errors = bad(&model);
    assert_eq!(errors.len(), 1, "{errors:#?}");
    assert_eq!(errors[0].code, Code::SHAPE);
    assert_eq!(onnx(&errors[0].location), ("sum".into(), 1, "Add".into()));
}

#[test]
fn named_dimensions_become_symbols() {
    let model = Build::new()
        .input("x", F32, &["batch", "3", "seq+1"])
        .input("y", F32, &["batch", "3", "seq+1"])
        .node("Add", &["x", "y"], &["z"], &[])
        .outputs(&["z"])
        .model(18);
    let module = good(&model);
    let types = module.main().unwrap().output_types();
    let shape = types[0].as_tensor().unwrap().shape.clone().unwrap();
    assert_eq!(shape[0].as_symbol().unwrap().to_string(), "batch");
    assert_eq!(shape[1].as_const(), Some(3));
    assert_eq!(shape[2].symbols().len(), 1);
    assert_eq!(types[0], module.main().unwrap().input_types()[0]);
    let x = x32(&[1, 3, 2], &[1.0; 6]);
    gives(&model, &[x.clone(), x], &[(&[1, 3, 2], &[2.0; 6])]);
}

#[test]
fn dimensions_without_a_name_and_shapes_that_are_absent_are_unknown() {
    let mut model = Build::new()
        .input("x", F32, &["2", "?"])
        .input("y", F32, &[])
        .node("Relu", &["x"], &["a"], &[])
        .node("Relu", &["y"], &["b"], &[])
        .outputs(&["a", "b"])
        .model(18);
    let graph = model.graph.as_mut().unwrap();
    let tensor = type_proto::Tensor { elem_type: Some(F32 as i32), shape: None };
    graph.input[1].r#type =
        Some(TypeProto { value: Some(type_proto::Value::TensorType(tensor)), ..TypeProto::default() });
    let module = good(&model);
    let types = module.main().unwrap().input_types();
    assert!(types[0].as_tensor().unwrap().shape.as_ref().unwrap()[1].as_const().is_none());
    assert_eq!(types[1], Type::Tensor(of_ir::TensorType::unranked(DType::F32)));
    let inputs = [x32(&[2, 1], &[1.0, -1.0]), x32(&[3], &[-1.0, 2.0, 3.0])];
    gives(&model, &inputs, &[(&[2, 1], &[1.0, 0.0]), (&[3], &[0.0, 2.0, 3.0])]);
}

#[test]
fn declared_shapes_refine_inference() {
    // How many elements are not zero is not known before the run; the model says a name for it.
    let model = Build::new()
        .input("x", F32, &["4"])
        .node("NonZero", &["x"], &["y"], &[])
        .output("y", I64, &["1", "count"])
        .model(18);
    let types = good(&model).main().unwrap().output_types();
    assert_eq!(types[0].as_tensor().unwrap().shape.as_ref().unwrap()[1].as_symbol().unwrap().to_string(), "count");
}

#[test]
fn contradicting_declared_shapes_warn() {
    let model = Build::new()
        .input("x", F32, &["2", "3"])
        .node("Relu", &["x"], &["r"], &[])
        .named("relu")
        .node("Transpose", &["r"], &["y"], &[])
        .value_info("r", F32, &["3", "3"])
        .output("y", I64, &["3", "2"])
        .model(18);
    let imported = import(&model).unwrap();
    let warnings = &imported.warnings.0;
    assert_eq!(warnings.len(), 2, "{warnings:#?}");
    refused(warnings, Code::SHAPE, &["'r'", "3"]);
    assert_eq!(onnx(&warnings[0].location), ("relu".into(), 0, "Relu".into()));
    verified(&imported.module);
    assert_eq!(imported.module.main().unwrap().output_types()[0], Type::fixed(DType::F32, &[3, 2]));
}

#[test]
fn weights_in_memory_are_parts_of_the_model() {
    let model = two_weights();
    let bytes = encode(&model);
    let module = import_bytes(bytes.clone(), &Options::default()).unwrap();
    for w in weights(&module) {
        assert!(bytes.as_ptr_range().contains(&w.as_ptr()));
    }
}

#[test]
fn weights_of_a_file_are_parts_of_its_map() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let bytes = encode(&two_weights());
    std::fs::write(&path, &bytes).unwrap();
    let module = import_file(&path, &Options::default()).unwrap();
    let [a, b] = weights(&module).try_into().unwrap();
    let at = |w: &Blob| bytes.windows(w.len()).position(|part| part == &w[..]).unwrap() as isize;
    // As far apart in memory as in the file: neither was copied.
    assert_eq!(b.as_ptr() as isize - a.as_ptr() as isize, at(&b) - at(&a));
    #[cfg(target_os = "linux")]
    {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let name = path.canonicalize().unwrap();
        let line = maps.lines().find(|l| l.ends_with(name.to_str().unwrap())).expect("the file is mapped");
        let (start, end) = line.split_whitespace().next().unwrap().split_once('-').unwrap();
        let address = |text: &str| usize::from_str_radix(text, 16).unwrap();
        assert!((address(start)..address(end)).contains(&(a.as_ptr() as usize)));
    }
}

fn two_weights() -> ModelProto {
    let values = |from: f32| (0..1000).map(|i| from + i as f32).collect::<Vec<_>>();
    Build::new()
        .init(f32s("a", &[1000], &values(0.5)))
        .init(f32s("b", &[10, 100], &values(5000.5)))
        .outputs(&["a", "b"])
        .model(18)
}

fn weights(module: &of_ir::Module) -> Vec<Blob> {
    let g = &module.main().unwrap().graph;
    g.outputs().iter().map(|v| g.constant(*v).unwrap().bytes().unwrap().clone()).collect()
}

#[test]
fn sequence_and_optional_inputs_import_and_maps_are_refused() {
    let element = Some(Box::new(ty(F32, &["2"])));
    let sequence = type_proto::Value::SequenceType(Box::new(type_proto::Sequence { elem_type: element }));
    let map = type_proto::Value::MapType(Box::new(type_proto::Map { key_type: Some(7), value_type: None }));
    let input = |value| ValueInfoProto {
        name: Some("s".into()),
        r#type: Some(TypeProto { value: Some(value), ..TypeProto::default() }),
        ..ValueInfoProto::default()
    };
    let mut model = Build::new()
        .init(i64s("at", &[], &[-1]))
        .node("SequenceAt", &["s", "at"], &["y"], &[])
        .outputs(&["y"])
        .model(18);
    model.graph.as_mut().unwrap().input = vec![input(sequence)];
    let module = good(&model);
    let list = Value::Sequence(vec![x32(&[2], &[1.0, 2.0]).into(), x32(&[2], &[3.0, 4.0]).into()]);
    let out = of_ops::interpret::run_graph(&module.main().unwrap().graph, &[list]).unwrap();
    assert_eq!(numbers(&out[0]), (vec![2], vec![3.0, 4.0]));
    model.graph.as_mut().unwrap().input = vec![input(map)];
    refused(&bad(&model), Code::UNSUPPORTED, &["map"]);
}

#[test]
fn names_must_be_defined_once_and_before_use() {
    let relu = |i: &str, o: &str| Build::new().input("x", F32, &["1"]).node("Relu", &[i], &[o], &[]);
    refused(&bad(&relu("nowhere", "y").outputs(&["y"]).model(18)), Code::MODEL, &["'nowhere'", "before"]);
    refused(&bad(&relu("x", "x").outputs(&["x"]).model(18)), Code::MODEL, &["'x' is defined twice"]);
    refused(&bad(&relu("x", "y").outputs(&["z"]).model(18)), Code::MODEL, &["output 'z'"]);
    let twice = relu("x", "y").node("Exp", &["x"], &["y"], &[]);
    refused(&bad(&twice.outputs(&["y"]).model(18)), Code::MODEL, &["'y' is defined twice"]);
    let late = relu("b", "a").node("Exp", &["x"], &["b"], &[]);
    refused(&bad(&late.outputs(&["a"]).model(18)), Code::MODEL, &["'b'"]);
}

#[test]
fn non_model_files_are_refused() {
    refused(&bad(&ModelProto::default()), Code::MODEL, &["empty"]);
    refused(&bad(&ModelProto { ir_version: Some(10), ..ModelProto::default() }), Code::MODEL, &["no graph"]);
    let garbage = import_bytes(&b"\xFF\xFFnot a model"[..], &Options::default());
    refused(&garbage.unwrap_err().0, Code::MODEL, &["not an ONNX model"]);
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().to_path_buf(), folder.path().join("absent.onnx")] {
        assert_eq!(import_file(&path, &Options::default()).unwrap_err().0[0].code, Code::IO);
    }
}

#[test]
fn the_number_of_nodes_is_bounded() {
    let model = Build::new()
        .input("x", F32, &["1"])
        .node("Relu", &["x"], &["a"], &[])
        .node("Relu", &["a"], &["b"], &[])
        .outputs(&["b"])
        .model(18);
    let with = |max_nodes| import_bytes(encode(&model), &Options { max_nodes, ..Options::default() });
    assert!(with(2).is_ok());
    refused(&with(1).unwrap_err().0, Code::MODEL, &["the model is 2 nodes"]);
}

#[test]
fn ngrams_may_share_an_output_index() {
    let attrs = [
        text("mode", "TF"),
        int("min_gram_length", 2),
        int("max_gram_length", 2),
        int("max_skip_count", 0),
        ints("ngram_counts", &[0, 0]),
        ints("ngram_indexes", &[1, 1]),
        ints("pool_int64s", &[1, 2, 3, 1]),
    ];
    let g = Build::new().input("x", I64, &["2", "3"]).node("TfIdfVectorizer", &["x"], &["y"], &attrs).outputs(&["y"]);
    let x = Tensor::from_slice(&[2, 3], &[1i64, 2, 0, 3, 1, 2]).unwrap();
    gives(&g.model(21), &[x], &[(&[2, 2], &[0.0, 1.0, 0.0, 2.0])]);
}

#[test]
fn top_k_takes_one_element_k() {
    let g = Build::new().input("x", F32, &["4"]).init(i64s("k", &[2], &[1, 2]));
    let g = g.node("TopK", &["x", "k"], &["v", "i"], &[]).outputs(&["v", "i"]);
    assert!(bad(&g.model(21))[0].message.contains("k must be one number"));
}

#[test]
fn initializers_that_are_inputs_may_be_given() {
    let model = Build::new()
        .input("a", F32, &["N"])
        .input("c", F32, &["1"])
        .input("s", I64, &["2"])
        .init(f32s("c", &[1], &[2.0]))
        .init(i64s("s", &[2], &[2, 1]))
        .init(f32s("k", &[1], &[10.0]))
        .node("Add", &["a", "c"], &["b"], &[])
        .node("Mul", &["b", "k"], &["d"], &[])
        .node("Reshape", &["d", "s"], &["y"], &[])
        .outputs(&["y"])
        .model(18);
    let a = x32(&[2], &[1.0, 2.0]);
    // Without a value for them, the defaults hold.
    gives(&model, std::slice::from_ref(&a), &[(&[2, 1], &[30.0, 40.0])]);
    let with = |names: &[&str]| {
        let initializer_inputs = names.iter().map(ToString::to_string).collect();
        import_bytes(encode(&model), &Options { initializer_inputs, ..Options::default() })
    };
    let module = with(&["s", "c"]).unwrap();
    assert_eq!(module.main().unwrap().inputs, ["a", "c", "s"]);
    let got = run(&module, &[a, x32(&[1], &[0.0]), Tensor::from_i64s(&[1, 2])]);
    assert_eq!(numbers(&got[0]), (vec![1, 2], vec![10.0, 20.0]));
    for other in ["k", "a", "none"] {
        refused(&with(&[other]).unwrap_err().0, Code::INPUT, &[other, "default"]);
    }
}
