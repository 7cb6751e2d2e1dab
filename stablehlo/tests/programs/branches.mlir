module @jit_program attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<4x6xf32> {jax.result_info = "result[0][0]"}, tensor<4x6xf32> {jax.result_info = "result[0][1]"}, tensor<4x6xf32> {jax.result_info = "result[1][0]"}, tensor<4x6xf32> {jax.result_info = "result[1][1]"}) {
    %cst = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]> : tensor<4x6xf32>
    %cst_0 = stablehlo.constant dense<[[1.12573028, 0.867895126, 1.64042258, 1.10490012, 0.464330614, 1.36159503], [2.304000e+00, 1.94708097, 0.296264768, -0.26542151, 0.376725554, 1.04132593], [-1.3250308, 0.781208336, -2.459110e-01, 0.26773262, 4.557410e-01, 0.683699846], [1.41163051, 2.04251337, 0.871465325, 2.36646342, 0.33480531, 1.351510e+00]]> : tensor<4x6xf32>
    %cst_1 = stablehlo.constant dense<[[-2.87426972, -3.13210487, -2.35957742, -2.89509988, -3.53566933, -2.63840485], [-1.696000e+00, -2.05291891, -3.70373535, -4.26542139, -3.62327433, -2.95867395], [-5.3250308, -3.21879172, -4.24591112, -3.73226738, -3.54425907, -3.31630015], [-2.58836937, -1.95748663, -3.12853456, -1.63353658, -3.66519475, -2.648490e+00]]> : tensor<4x6xf32>
    %c = stablehlo.constant dense<2> : tensor<i32>
    %0:2 = stablehlo.optimization_barrier %cst, %c : tensor<4x6xf32>, tensor<i32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.compare GT, %0#1, %c_2, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %2 = stablehlo.convert %1 : (tensor<i1>) -> tensor<i32>
    %3 = "stablehlo.case"(%2) ({
      %cst_5 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
      %6 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
      %7 = stablehlo.multiply %0#0, %6 : tensor<4x6xf32>
      stablehlo.return %7 : tensor<4x6xf32>
    }, {
      %cst_5 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %6 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
      %7 = stablehlo.add %0#0, %6 : tensor<4x6xf32>
      stablehlo.return %7 : tensor<4x6xf32>
    }) : (tensor<i32>) -> tensor<4x6xf32>
    %c_3 = stablehlo.constant dense<0> : tensor<i32>
    %c_4 = stablehlo.constant dense<3> : tensor<i32>
    %4 = stablehlo.clamp %c_3, %0#1, %c_4 : tensor<i32>
    %5 = "stablehlo.case"(%4) ({
      %cst_5 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %6 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
      %7 = stablehlo.add %0#0, %6 : tensor<4x6xf32>
      stablehlo.return %7 : tensor<4x6xf32>
    }, {
      %cst_5 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
      %6 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
      %7 = stablehlo.multiply %0#0, %6 : tensor<4x6xf32>
      stablehlo.return %7 : tensor<4x6xf32>
    }, {
      %cst_5 = stablehlo.constant dense<3.000000e+00> : tensor<f32>
      %6 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
      %7 = stablehlo.subtract %0#0, %6 : tensor<4x6xf32>
      stablehlo.return %7 : tensor<4x6xf32>
    }, {
      stablehlo.return %0#0 : tensor<4x6xf32>
    }) : (tensor<i32>) -> tensor<4x6xf32>
    return %3, %5, %cst_0, %cst_1 : tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>
  }
}
