module @jit_program attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<4x6xf32> {jax.result_info = "result[0][0]"}, tensor<4x6xf32> {jax.result_info = "result[0][1]"}, tensor<4x6xf32> {jax.result_info = "result[0][2]"}, tensor<4x6xf32> {jax.result_info = "result[0][3]"}, tensor<4x6xf32> {jax.result_info = "result[1][0]"}, tensor<4x6xf32> {jax.result_info = "result[1][1]"}, tensor<4x6xf32> {jax.result_info = "result[1][2]"}, tensor<4x6xf32> {jax.result_info = "result[1][3]"}) {
    %cst = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]> : tensor<4x6xf32>
    %cst_0 = stablehlo.constant dense<[[0.125730217, -0.00637464225, 0.634047985, 0.738948107, 0.20327872, 0.564873815], [1.304000e+00, 2.25108099, 1.54734576, 0.281924248, -0.341350198, -0.300024211], [-2.3250308, -2.54382253, -3.78973341, -4.52200079, -5.066260e+00, -5.382560e+00], [0.411630541, 1.45414388, 1.32560921, 2.69207263, 2.02687788, 2.37838793]]> : tensor<4x6xf32>
    %cst_1 = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [0.163952202, -1.251140e-01, -0.450687975, -0.132742867, 0.33386904, 0.01494327], [-0.381193906, 0.0273738988, 0.561517119, 0.0972032696, -0.181711227, -0.00472655846], [-0.15691106, 0.0285376552, -0.072174415, 0.132824719, 0.120873339, -0.00166143291]]> : tensor<4x6xf32>
    %cst_2 = stablehlo.constant dense<[[0.125730217, 0.125730217, 0.640422642, 0.640422642, 0.640422642, 0.640422642], [1.304000e+00, 1.304000e+00, 1.304000e+00, 1.304000e+00, 1.304000e+00, 1.304000e+00], [-2.3250308, -0.218791664, -0.218791664, -0.218791664, -0.218791664, -0.218791664], [0.411630541, 1.04251337, 1.04251337, 1.36646342, 1.36646342, 1.36646342]]> : tensor<4x6xf32>
    %cst_3 = stablehlo.constant dense<[[0.564873815, 0.439143568, 0.571248412, -6.917420e-02, -0.174074322, 0.361595064], [-0.300024211, -1.60402429, -2.55110502, -1.847370e+00, -0.581948459, 0.0413259789], [-5.382560e+00, -3.05752921, -2.83873749, -1.5928266, -0.860559165, -0.316300154], [2.37838793, 1.96675754, 0.924244165, 1.05277884, -0.313684613, 0.351510078]]> : tensor<4x6xf32>
    %0 = stablehlo.optimization_barrier %cst : tensor<4x6xf32>
    %1 = call @cumsum(%0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %2 = call @cumprod(%0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %3 = call @cummax(%0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %4 = call @cumsum_2(%0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    return %1, %2, %3, %4, %cst_0, %cst_1, %cst_2, %cst_3 : tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>
  }
  func.func private @cumsum(%arg0: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %0 = call @cumsum_0(%arg0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    return %0 : tensor<4x6xf32>
  }
  func.func private @cumsum_0(%arg0: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<f32>
    %1 = "stablehlo.reduce_window"(%arg0, %0) <{base_dilations = array<i64: 1, 1>, padding = dense<[[0, 0], [5, 0]]> : tensor<2x2xi64>, window_dilations = array<i64: 1, 1>, window_dimensions = array<i64: 1, 6>, window_strides = array<i64: 1, 1>}> ({
    ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
      %2 = stablehlo.add %arg1, %arg2 : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<4x6xf32>, tensor<f32>) -> tensor<4x6xf32>
    return %1 : tensor<4x6xf32>
  }
  func.func private @cumprod(%arg0: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %0 = call @cumprod_1(%arg0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    return %0 : tensor<4x6xf32>
  }
  func.func private @cumprod_1(%arg0: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %0 = "stablehlo.reduce_window"(%arg0, %cst) <{base_dilations = array<i64: 1, 1>, padding = dense<[[3, 0], [0, 0]]> : tensor<2x2xi64>, window_dilations = array<i64: 1, 1>, window_dimensions = array<i64: 4, 1>, window_strides = array<i64: 1, 1>}> ({
    ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
      %1 = stablehlo.multiply %arg1, %arg2 : tensor<f32>
      stablehlo.return %1 : tensor<f32>
    }) : (tensor<4x6xf32>, tensor<f32>) -> tensor<4x6xf32>
    return %0 : tensor<4x6xf32>
  }
  func.func private @cummax(%arg0: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<f32>
    %1 = "stablehlo.reduce_window"(%arg0, %0) <{base_dilations = array<i64: 1, 1>, padding = dense<[[0, 0], [5, 0]]> : tensor<2x2xi64>, window_dilations = array<i64: 1, 1>, window_dimensions = array<i64: 1, 6>, window_strides = array<i64: 1, 1>}> ({
    ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
      %2 = stablehlo.maximum %arg1, %arg2 : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<4x6xf32>, tensor<f32>) -> tensor<4x6xf32>
    return %1 : tensor<4x6xf32>
  }
  func.func private @cumsum_2(%arg0: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<f32>
    %1 = "stablehlo.reduce_window"(%arg0, %0) <{base_dilations = array<i64: 1, 1>, padding = dense<[[0, 0], [0, 5]]> : tensor<2x2xi64>, window_dilations = array<i64: 1, 1>, window_dimensions = array<i64: 1, 6>, window_strides = array<i64: 1, 1>}> ({
    ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
      %2 = stablehlo.add %arg1, %arg2 : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<4x6xf32>, tensor<f32>) -> tensor<4x6xf32>
    return %1 : tensor<4x6xf32>
  }
}
