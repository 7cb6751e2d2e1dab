module @jit_program attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<4x6xi32> {jax.result_info = "result[0][0]"}, tensor<4x6xf32> {jax.result_info = "result[0][1]"}, tensor<4x6xf16> {jax.result_info = "result[0][2]"}, tensor<4x6xi1> {jax.result_info = "result[0][3]"}, tensor<4x6xf32> {jax.result_info = "result[0][4]"}, tensor<4x6xi32> {jax.result_info = "result[1][0]"}, tensor<4x6xf32> {jax.result_info = "result[1][1]"}, tensor<4x6xf16> {jax.result_info = "result[1][2]"}, tensor<4x6xi1> {jax.result_info = "result[1][3]"}, tensor<4x6xf32> {jax.result_info = "result[1][4]"}) {
    %cst = stablehlo.constant dense<[[0.37719065, -0.396314561, 1.92126799, 0.314700335, -1.60700822, 1.08478522], [3.91200018, 2.84124279, -2.11120558, -3.79626465, -1.86982334, 0.123977937], [-6.97509241, -0.65637499, -3.73773289, -2.19680214, -1.63277698, -0.948900461], [1.23489165, 3.127540e+00, -0.385603964, 4.099390e+00, -1.99558401, 1.05453026]]> : tensor<4x6xf32>
    %c = stablehlo.constant dense<[[0, 0, 1, 0, -1, 1], [3, 2, -2, -3, -1, 0], [-6, 0, -3, -2, -1, 0], [1, 3, 0, 4, -1, 1]]> : tensor<4x6xi32>
    %cst_0 = stablehlo.constant dense<[[0.376953125, -0.396484375, 1.921875, 0.314453125, -1.609375, 1.0859375], [3.906250e+00, 2.843750e+00, -2.109375, -3.796875, -1.8671875, 0.124023438], [-6.968750e+00, -6.562500e-01, -3.734375, -2.203125, -1.6328125, -0.94921875], [1.234375, 3.125000e+00, -0.384765625, 4.093750e+00, -1.9921875, 1.0546875]]> : tensor<4x6xf32>
    %cst_1 = stablehlo.constant dense<[[3.771970e-01, -3.962400e-01, 1.920900e+00, 3.146970e-01, -1.607420e+00, 1.084960e+00], [3.912110e+00, 2.841800e+00, -2.111330e+00, -3.796880e+00, -1.870120e+00, 1.239620e-01], [-6.976560e+00, -6.562500e-01, -3.738280e+00, -2.197270e+00, -1.632810e+00, -9.487300e-01], [1.235350e+00, 3.126950e+00, -3.854980e-01, 4.097660e+00, -1.995120e+00, 1.054690e+00]]> : tensor<4x6xf16>
    %c_2 = stablehlo.constant dense<true> : tensor<4x6xi1>
    %cst_3 = stablehlo.constant dense<[[0.377197266, -0.396240234, 1.92089844, 0.314697266, -1.60742188, 1.08496094], [3.91210938, 2.84179688, -2.11132813, -3.796875, -1.87011719, 0.123962402], [-6.9765625, -6.562500e-01, -3.73828125, -2.19726563, -1.6328125, -0.948730468], [1.23535156, 3.12695313, -0.385498047, 4.09765625, -1.99511719, 1.0546875]]> : tensor<4x6xf32>
    %0 = stablehlo.optimization_barrier %cst : tensor<4x6xf32>
    %1 = stablehlo.convert %0 : (tensor<4x6xf32>) -> tensor<4x6xi32>
    %2 = stablehlo.convert %0 : (tensor<4x6xf32>) -> tensor<4x6xbf16>
    %3 = stablehlo.convert %2 : (tensor<4x6xbf16>) -> tensor<4x6xf32>
    %4 = stablehlo.convert %0 : (tensor<4x6xf32>) -> tensor<4x6xf16>
    %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %6 = stablehlo.compare NE, %0, %5, FLOAT : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xi1>
    %7 = stablehlo.convert %6 : tensor<4x6xi1>
    %8 = stablehlo.reduce_precision %0, format = e5m10 : tensor<4x6xf32>
    return %1, %3, %4, %7, %8, %c, %cst_0, %cst_1, %c_2, %cst_3 : tensor<4x6xi32>, tensor<4x6xf32>, tensor<4x6xf16>, tensor<4x6xi1>, tensor<4x6xf32>, tensor<4x6xi32>, tensor<4x6xf32>, tensor<4x6xf16>, tensor<4x6xi1>, tensor<4x6xf32>
  }
}
