module @jit_program attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<9xf32> {jax.result_info = "result[0][0]"}, tensor<9xf32> {jax.result_info = "result[1][0]"}) {
    %cst = stablehlo.constant dense<[0.000000e+00, -0.000000e+00, 0.000000e+00, -0.000000e+00, 1.000000e+00, -1.000000e+00, 0x7F800000, 0xFF800000, 0x7FC00000]> : tensor<9xf32>
    %cst_0 = stablehlo.constant dense<[1.000000e+00, 1.000000e+00, -1.000000e+00, -1.000000e+00, 0.000000e+00, 0.000000e+00, 0x7F800000, 0xFF800000, 1.000000e+00]> : tensor<9xf32>
    %cst_1 = stablehlo.constant dense<[0.000000e+00, -0.000000e+00, 3.14159274, -3.14159274, 1.57079637, -1.57079637, 0.785398185, -2.3561945, 0x7FC00000]> : tensor<9xf32>
    %0:2 = stablehlo.optimization_barrier %cst, %cst_0 : tensor<9xf32>, tensor<9xf32>
    %1 = stablehlo.atan2 %0#0, %0#1 : tensor<9xf32>
    return %1, %cst_1 : tensor<9xf32>, tensor<9xf32>
  }
}
