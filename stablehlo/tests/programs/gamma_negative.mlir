module @jit_program attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<8xf32> {jax.result_info = "result[0][0]"}, tensor<8xf32> {jax.result_info = "result[0][1]"}, tensor<8xf32> {jax.result_info = "result[1][0]"}, tensor<8xf32> {jax.result_info = "result[1][1]"}) {
    %cst = stablehlo.constant dense<[-3.000000e-01, -1.700000e+00, -2.200000e+00, 2.000000e-01, 0.699999988, 5.000000e+00, 3.000000e+01, -1.040000e+01]> : tensor<8xf32>
    %cst_0 = stablehlo.constant dense<[1.46483994, 0.921844244, 0.790717363, 1.52406394, 0.260867596, 3.17805481, 71.2570496, -14.8577213]> : tensor<8xf32>
    %cst_1 = stablehlo.constant dense<[2.11330962, -1.48571849, 5.3228693, -5.28903961, -1.22002339, 1.50611818, 3.38443828, 3.40988231]> : tensor<8xf32>
    %0 = stablehlo.optimization_barrier %cst : tensor<8xf32>
    %1 = chlo.lgamma %0 : tensor<8xf32> -> tensor<8xf32>
    %2 = chlo.digamma %0 : tensor<8xf32> -> tensor<8xf32>
    return %1, %2, %cst_0, %cst_1 : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
  }
}
