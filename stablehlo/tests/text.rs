//! What is read of the text, and what is said of text that is wrong or not supported.

use of_diag::Diagnostics;
use of_ir::Module;
use of_stablehlo::import_text;

fn import(body: &str) -> Result<Module, Diagnostics> {
    import_text(&format!("module @m {{\n{body}\n}}\n"), "test.mlir")
}

fn errors(body: &str) -> String {
    import(body).map(|m| format!("{m:?}")).unwrap_err().to_string()
}

/// Names of the ops of the entry.
fn ops(module: &Module) -> Vec<String> {
    let g = &module.main().unwrap().graph;
    g.region_ops(g.entry()).map(|op| g.op(op).name().to_owned()).collect()
}

#[test]
fn every_unsupported_operation_is_named_at_once() {
    let text = errors(
        "func.func public @main(%arg0: tensor<3x3xf32>) -> tensor<3x3xf32> {
           %0 = stablehlo.cholesky %arg0, lower = true : tensor<3x3xf32>
           %1 = stablehlo.add %0, %arg0 : tensor<3x3xf32>
           %2 = call @f(%1) : (tensor<3x3xf32>) -> tensor<3x3xf32>
           %3 = stablehlo.custom_call @lapack_sgetrf(%2) : (tensor<3x3xf32>) -> tensor<3x3xf32>
           %4 = stablehlo.cholesky %3, lower = true : tensor<3x3xf32>
           return %4 : tensor<3x3xf32>
         }
         func.func private @f(%arg0: tensor<3x3xf32>) -> tensor<3x3xf32> {
           %0 = \"stablehlo.all_reduce\"(%arg0) <{replica_groups = dense<0> : tensor<1x1xi64>}> ({
           ^bb0(%a: tensor<f32>, %b: tensor<f32>):
             %s = stablehlo.add %a, %b : tensor<f32>
             stablehlo.return %s : tensor<f32>
           }) : (tensor<3x3xf32>) -> tensor<3x3xf32>
           %1 = my.op %0 : tensor<3x3xf32>
           return %1 : tensor<3x3xf32>
         }",
    );
    for wanted in [
        "test.mlir:3:12: error[E0302]: operation stablehlo.cholesky is not supported: no op of the IR computes it",
        "the same at 1 more places: test.mlir:7:12",
        "operation stablehlo.custom_call @lapack_sgetrf is not supported",
        "operation stablehlo.all_reduce is not supported: programs for several devices are not supported",
        "operation my.op is not supported: the operation is not known",
        "5 operations are not supported: ",
        "docs/stablehlo.md",
    ] {
        assert!(text.contains(wanted), "{wanted}\n{text}");
    }
}

#[test]
fn errors_have_a_place() {
    for (body, wanted) in [
        ("func.func @main( {", "test.mlir:2:18: error[E0101]: an argument is expected, '{' follows"),
        (
            "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {\n  return %b : tensor<2xf32>\n}",
            "test.mlir:3:3: error[E0102]: %b is used before it is defined",
        ),
        (
            "func.func @main(%a: tensor<2xcomplex<f32>>) {\n  return\n}",
            "test.mlir:2:17: error[E0302]: argument %a has type tensor<2xcomplex<f32>>, which is not supported",
        ),
        (
            "func.func @main(%a: tensor<?xf32>) {\n  return\n}",
            "argument %a has type tensor<?xf32>, which is not supported",
        ),
        (
            "func.func @main(%a: tensor<2xf32>) -> tensor<3xf32> {
               %0 = stablehlo.abs %a : tensor<3xf32>
               return %0 : tensor<3xf32>
             }",
            "its result is tensor<2xf32>, the text says tensor<3xf32>",
        ),
        (
            "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {
               %0 = call @main(%a) : (tensor<2xf32>) -> tensor<2xf32>
               return %0 : tensor<2xf32>
             }",
            "more than 64 regions and calls within each other",
        ),
        ("", "the module has no function"),
        ("func.func @main() { %0 = stablehlo.constant dense<[1, 2]> : tensor<3xi32> return }", "needs 12 bytes"),
        ("func.func @main() { %0 = stablehlo.constant dense<\"0xzz\"> : tensor<1xi8> return }", "hexadecimal digits"),
        ("func.func @main() { %0 = stablehlo.add", "the types of the results of stablehlo.add are missing"),
    ] {
        let text = errors(body);
        assert!(text.contains(wanted), "{wanted}\n{text}");
    }
}

#[test]
fn any_cut_of_a_program_is_an_error_or_a_module() {
    let text = include_str!("programs/sort.mlir");
    let ends = text.char_indices().map(|(i, _)| i).step_by(97);
    for end in ends {
        let _ = import_text(&text[..end], "cut.mlir");
    }
}

#[test]
fn the_generic_form_is_read() {
    let text = r#"
"builtin.module"() <{sym_name = "jit_f"}> ({
  "func.func"() <{function_type = (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2xf32>, sym_name = "main", sym_visibility = "public"}> ({
  ^bb0(%arg0: tensor<2x3xf32> loc("x"), %arg1: tensor<3x4xf32>):
    %0 = "stablehlo.dot_general"(%arg0, %arg1) <{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]}> : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
    %1 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %2 = "stablehlo.reduce"(%0, %1) <{dimensions = array<i64: 1>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = "stablehlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%s) : (tensor<f32>) -> ()
    }) : (tensor<2x4xf32>, tensor<f32>) -> tensor<2xf32>
    %3 = "stablehlo.compare"(%2, %2) <{comparison_direction = #stablehlo<comparison_direction NE>}> : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xi1>
    %4 = "stablehlo.select"(%3, %2, %2) : (tensor<2xi1>, tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    "func.return"(%4) : (tensor<2xf32>) -> ()
  }) : () -> ()
}) : () -> ()
"#;
    assert!(of_stablehlo::is_stablehlo(text));
    let module = import_text(text, "generic.mlir").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(module.name, "jit_f");
    assert_eq!(module.main().unwrap().inputs, ["x", "arg1"]);
    let ops = ops(&module);
    for name in ["of.matmul", "of.reduce_sum", "of.ne", "of.select"] {
        assert!(ops.iter().any(|o| o == name), "{name} in {ops:?}");
    }
}

#[test]
fn names_are_those_of_the_program() {
    let text = r#"
#loc1 = loc("params['dense']['kernel']")
module @jit_f attributes {mhlo.num_partitions = 1 : i32} {
  func.func public @main(%arg0: tensor<2xf32> {tf.aliasing_output = 0 : i32} loc("params['dense']['kernel']"), %arg1: tensor<2xf32> loc(#loc1), %arg2: tensor<2xf32>) -> (tensor<2xf32> {jax.result_info = "result['y']"}, tensor<2xf32> {jax.result_info = ""}) {
    %0 = stablehlo.add %arg0, %arg1 : tensor<2xf32> loc(#loc7)
    return %0, %arg2 : tensor<2xf32>, tensor<2xf32> loc(#loc)
  } loc(#loc)
} loc(#loc)
#loc = loc(unknown)
#loc7 = loc("jit(f)/add"(#loc1))
"#;
    let module = import_text(text, "names.mlir").unwrap_or_else(|e| panic!("{e}"));
    let main = module.main().unwrap();
    assert_eq!(main.inputs, ["params_dense_kernel", "params_dense_kernel_1", "arg2"]);
    assert_eq!(main.outputs, ["result_y", "result_1"]);
}

#[test]
fn scans_are_loops_of_a_known_number_of_iterations() {
    let module = import_text(include_str!("programs/scan.mlir"), "scan.mlir").unwrap_or_else(|e| panic!("{e}"));
    let g = &module.main().unwrap().graph;
    let op = g.walk().into_iter().find(|op| g.op(*op).name() == "of.loop").unwrap();
    let data = g.op(op);
    // The number of iterations, no condition, and one carried value: neither the counter nor the stacked result.
    assert_eq!(data.operands.len(), 3);
    assert_eq!(g.constant(data.operands[0]).unwrap().to_i64s().unwrap(), [4]);
    assert_eq!(data.results.len(), 2);
}

#[test]
fn text_of_the_ir_is_not_stablehlo() {
    assert!(!of_stablehlo::is_stablehlo("module @m {\n  func @main(%x: tensor<2xf32>) -> (tensor<2xf32>) {\n  }\n}"));
}

#[test]
fn operations_have_reasons_or_importers() {
    let all = of_stablehlo::operations();
    assert!(all.iter().filter(|o| o.refused.is_none()).count() > 90);
    assert!(all.iter().any(|o| o.name == "stablehlo.fft" && o.refused.is_some()));
}

#[test]
fn shardings_and_layouts_are_passed_over() {
    let text = r#"
module @jit_f {
  sdy.mesh @empty_mesh = <[]> {stablehlo.mesh = {axes = []}} loc(#loc)
  func.func public @main(%arg0: tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<2xf32> {
    %0 = sdy.sharding_constraint %arg0 <@mesh, [{"x"}]> : tensor<2xf32>
    %1 = stablehlo.custom_call @Sharding(%0) {backend_config = "", operand_layouts = [dense<[0]> : tensor<1xindex>], rule = #sdy.op_sharding_rule<([i])->([i]) {i=2}, custom>} : (tensor<2xf32>) -> tensor<2xf32>
    return %1 : tensor<2xf32>
  }
}
"#;
    let module = import_text(text, "sharded.mlir").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(ops(&module), ["of.return"]);
}
