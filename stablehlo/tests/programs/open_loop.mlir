module @jit_program attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<4x6xf32> {jax.result_info = "result[0][0]"}, tensor<i32> {jax.result_info = "result[0][1]"}, tensor<4x6xf32> {jax.result_info = "result[1][0]"}, tensor<i32> {jax.result_info = "result[1][1]"}) {
    %cst = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]> : tensor<4x6xf32>
    %cst_0 = stablehlo.constant dense<[[1.00584173, 1.05683887, 5.12338114, 0.839200913, 4.28535509, 2.89276052], [1.043200e+01, 7.57664775, 5.62988186, 10.1233721, 4.98619556, 0.330607831], [18.6002464, 1.75033331, 9.96728801, 5.85813904, 4.35407209, 2.53040123], [3.29304433, 8.34010696, 1.02827728, 10.9317074, 5.32155752, 2.81208062]]> : tensor<4x6xf32>
    %0 = stablehlo.optimization_barrier %cst : tensor<4x6xf32>
    %1 = stablehlo.abs %0 : tensor<4x6xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %2:2 = stablehlo.while(%iterArg = %1, %iterArg_2 = %c) : tensor<4x6xf32>, tensor<i32>
    cond {
      %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %3 = stablehlo.reduce(%iterArg init: %cst_3) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<f32>
      %cst_4 = stablehlo.constant dense<1.000000e+02> : tensor<f32>
      %4 = stablehlo.compare LT, %3, %cst_4, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %4 : tensor<i1>
    } do {
      %cst_3 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
      %3 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
      %4 = stablehlo.multiply %iterArg, %3 : tensor<4x6xf32>
      %c_4 = stablehlo.constant dense<1> : tensor<i32>
      %5 = stablehlo.add %iterArg_2, %c_4 : tensor<i32>
      stablehlo.return %4, %5 : tensor<4x6xf32>, tensor<i32>
    }
    %c_1 = stablehlo.constant dense<3> : tensor<i32>
    return %2#0, %2#1, %cst_0, %c_1 : tensor<4x6xf32>, tensor<i32>, tensor<4x6xf32>, tensor<i32>
  }
}
