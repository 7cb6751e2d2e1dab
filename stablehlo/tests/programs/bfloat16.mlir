module @jit_program attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<4x4xbf16> {jax.result_info = "result[0][0]"}, tensor<4x6xbf16> {jax.result_info = "result[0][1]"}, tensor<bf16> {jax.result_info = "result[0][2]"}, tensor<4x4xbf16> {jax.result_info = "result[1][0]"}, tensor<4x6xbf16> {jax.result_info = "result[1][1]"}, tensor<bf16> {jax.result_info = "result[1][2]"}) {
    %cst = stablehlo.constant dense<[[1.259770e-01, -1.318360e-01, 6.406250e-01, 1.049800e-01, -5.351560e-01, 3.613280e-01], [1.304690e+00, 9.453120e-01, -7.031250e-01, -1.265630e+00, -6.250000e-01, 4.125980e-02], [-2.328130e+00, -2.187500e-01, -1.242190e+00, -7.304680e-01, -5.429690e-01, -3.164060e-01], [4.121090e-01, 1.039060e+00, -1.289060e-01, 1.367190e+00, -6.640630e-01, 3.515630e-01]]> : tensor<4x6xbf16>
    %cst_0 = stablehlo.constant dense<[[8.710930e-01, -1.943360e-01, -9.609370e-01, 4.589840e-01], [-1.943360e-01, 5.093750e+00, -1.117190e+00, 3.105470e-01], [-9.609370e-01, -1.117190e+00, 7.937500e+00, -1.773440e+00], [4.589840e-01, 3.105470e-01, -1.773440e+00, 3.703130e+00]]> : tensor<4x4xbf16>
    %cst_1 = stablehlo.constant dense<[[1.611330e-01, 1.245120e-01, 2.695310e-01, 1.582030e-01, 8.300780e-02, 2.041020e-01], [4.277340e-01, 2.988280e-01, 5.737300e-02, 3.271480e-02, 6.225590e-02, 1.210940e-01], [3.271480e-02, 2.695310e-01, 9.667960e-02, 1.611330e-01, 1.953130e-01, 2.441410e-01], [1.367190e-01, 2.558590e-01, 7.958980e-02, 3.535160e-01, 4.638670e-02, 1.279300e-01]]> : tensor<4x6xbf16>
    %0 = stablehlo.optimization_barrier %cst : tensor<4x6xbf16>
    %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<4x6xbf16>) -> tensor<6x4xbf16>
    %2 = stablehlo.dot_general %0, %1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x6xbf16>, tensor<6x4xbf16>) -> tensor<4x4xbf16>
    %3 = stablehlo.convert %0 : (tensor<4x6xbf16>) -> tensor<4x6xf32>
    %cst_2 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %4 = stablehlo.reduce(%3 init: %cst_2) applies stablehlo.maximum across dimensions = [1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
    %cst_3 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %6 = stablehlo.maximum %5, %4 : tensor<4xf32>
    %7 = stablehlo.broadcast_in_dim %6, dims = [0] : (tensor<4xf32>) -> tensor<4x1xf32>
    %8 = stablehlo.broadcast_in_dim %7, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x6xf32>
    %9 = stablehlo.subtract %3, %8 : tensor<4x6xf32>
    %10 = stablehlo.exponential %9 : tensor<4x6xf32>
    %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %11 = stablehlo.reduce(%10 init: %cst_4) applies stablehlo.add across dimensions = [1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
    %12 = stablehlo.broadcast_in_dim %11, dims = [0] : (tensor<4xf32>) -> tensor<4x1xf32>
    %13 = stablehlo.broadcast_in_dim %12, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x6xf32>
    %14 = stablehlo.divide %10, %13 : tensor<4x6xf32>
    %15 = stablehlo.convert %14 : (tensor<4x6xf32>) -> tensor<4x6xbf16>
    %16 = stablehlo.convert %0 : (tensor<4x6xbf16>) -> tensor<4x6xf32>
    %cst_5 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %17 = stablehlo.reduce(%16 init: %cst_5) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<f32>
    %18 = stablehlo.convert %17 : (tensor<f32>) -> tensor<bf16>
    %cst_6 = stablehlo.constant dense<-2.734380e+00> : tensor<bf16>
    return %2, %15, %18, %cst_0, %cst_1, %cst_6 : tensor<4x4xbf16>, tensor<4x6xbf16>, tensor<bf16>, tensor<4x4xbf16>, tensor<4x6xbf16>, tensor<bf16>
  }
}
