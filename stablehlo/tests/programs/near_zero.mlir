module @jit_program attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<9xf32> {jax.result_info = "result[0][0]"}, tensor<9xf32> {jax.result_info = "result[0][1]"}, tensor<9xf32> {jax.result_info = "result[0][2]"}, tensor<9xf32> {jax.result_info = "result[0][3]"}, tensor<9xf32> {jax.result_info = "result[0][4]"}, tensor<9xf32> {jax.result_info = "result[0][5]"}, tensor<9xf32> {jax.result_info = "result[1][0]"}, tensor<9xf32> {jax.result_info = "result[1][1]"}, tensor<9xf32> {jax.result_info = "result[1][2]"}, tensor<9xf32> {jax.result_info = "result[1][3]"}, tensor<9xf32> {jax.result_info = "result[1][4]"}, tensor<9xf32> {jax.result_info = "result[1][5]"}) {
    %cst = stablehlo.constant dense<[1.000000e-07, -9.99999974E-6, 1.000000e-03, 1.000000e-01, -3.000000e-01, 4.900000e-01, 6.000000e-01, -0.899999976, 9.900000e-01]> : tensor<9xf32>
    %cst_0 = stablehlo.constant dense<[9.9999994E-8, -1.00000498E-5, 9.99500392E-4, 0.0953101813, -0.356674969, 0.398776144, 0.470003664, -2.30258489, 0.68813467]> : tensor<9xf32>
    %cst_1 = stablehlo.constant dense<[1.000000e-07, -9.99994972E-6, 1.000500e-03, 0.105170906, -0.259181768, 0.632316232, 0.822118878, -0.59343034, 1.69123459]> : tensor<9xf32>
    %cst_2 = stablehlo.constant dense<[8.86226843E-8, -8.86226825E-6, 8.8622712E-4, 0.0888559892, -0.272462755, 0.465868652, 0.595116079, -1.16308701, 1.82138669]> : tensor<9xf32>
    %cst_3 = stablehlo.constant dense<[1.000000e-07, -9.99999974E-6, 0.00100000016, 0.100167423, -0.304692686, 0.512089789, 0.643501102, -1.11976945, 1.42925692]> : tensor<9xf32>
    %cst_4 = stablehlo.constant dense<[1.57079625, 1.57080626, 1.56979632, 1.47062886, 1.875489, 1.05870652, 0.927295207, 2.69056582, 0.14153941]> : tensor<9xf32>
    %cst_5 = stablehlo.constant dense<[1.000000e-07, -9.99999974E-6, 0.0010000004, 0.100335345, -0.309519619, 0.536060333, 0.693147182, -1.47221935, 2.64665294]> : tensor<9xf32>
    %0 = stablehlo.optimization_barrier %cst : tensor<9xf32>
    %1 = stablehlo.log_plus_one %0 : tensor<9xf32>
    %2 = stablehlo.exponential_minus_one %0 : tensor<9xf32>
    %3 = chlo.erf_inv %0 : tensor<9xf32> -> tensor<9xf32>
    %4 = chlo.asin %0 : tensor<9xf32> -> tensor<9xf32>
    %5 = chlo.acos %0 : tensor<9xf32> -> tensor<9xf32>
    %6 = chlo.atanh %0 : tensor<9xf32> -> tensor<9xf32>
    return %1, %2, %3, %4, %5, %6, %cst_0, %cst_1, %cst_2, %cst_3, %cst_4, %cst_5 : tensor<9xf32>, tensor<9xf32>, tensor<9xf32>, tensor<9xf32>, tensor<9xf32>, tensor<9xf32>, tensor<9xf32>, tensor<9xf32>, tensor<9xf32>, tensor<9xf32>, tensor<9xf32>, tensor<9xf32>
  }
}
