module @jit_program attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<6xf32> {jax.result_info = "result[0][0]"}, tensor<4x6xf32> {jax.result_info = "result[0][1]"}, tensor<6xf32> {jax.result_info = "result[1][0]"}, tensor<4x6xf32> {jax.result_info = "result[1][1]"}) {
    %cst = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]> : tensor<4x6xf32>
    %cst_0 = stablehlo.constant dense<[0.247926354, 0.417051852, -0.0389895439, -0.54006958, -1.06652069, 0.347121775]> : tensor<6xf32>
    %cst_1 = stablehlo.constant dense<[[0.0307274945, -0.145092547, -0.870221912, -0.135314792, 0.568721592, -0.0104669398], [-2.76345706, 0.28645888, 0.922018587, 0.0620507895, 0.546522141, -0.00580816437], [-0.957053661, -0.228093237, 0.16014275, -1.00061655, 0.362038195, -0.11118269], [0.000000e+00, 0.000000e+00, -0.000000e+00, 0.000000e+00, -0.000000e+00, 0.000000e+00]]> : tensor<4x6xf32>
    %0 = stablehlo.optimization_barrier %cst : tensor<4x6xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<6xf32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %3:4 = stablehlo.while(%iterArg = %0, %iterArg_4 = %c, %iterArg_5 = %1, %iterArg_6 = %2) : tensor<4x6xf32>, tensor<i32>, tensor<6xf32>, tensor<4x6xf32>
    cond {
      %c_7 = stablehlo.constant dense<4> : tensor<i32>
      %4 = stablehlo.compare LT, %iterArg_4, %c_7, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %4 : tensor<i1>
    } do {
      %c_7 = stablehlo.constant dense<4> : tensor<i32>
      %4 = stablehlo.subtract %c_7, %iterArg_4 : tensor<i32>
      %c_8 = stablehlo.constant dense<1> : tensor<i32>
      %5 = stablehlo.subtract %4, %c_8 : tensor<i32>
      %6 = func.call @dynamic_index_in_dim(%iterArg, %5) : (tensor<4x6xf32>, tensor<i32>) -> tensor<6xf32>
      %7:2 = func.call @closed_call(%iterArg_5, %6) : (tensor<6xf32>, tensor<6xf32>) -> (tensor<6xf32>, tensor<6xf32>)
      %8 = func.call @dynamic_update_index_in_dim(%iterArg_6, %7#1, %5) : (tensor<4x6xf32>, tensor<6xf32>, tensor<i32>) -> tensor<4x6xf32>
      %c_9 = stablehlo.constant dense<1> : tensor<i32>
      %9 = stablehlo.add %iterArg_4, %c_9 : tensor<i32>
      stablehlo.return %iterArg, %9, %7#0, %8 : tensor<4x6xf32>, tensor<i32>, tensor<6xf32>, tensor<4x6xf32>
    }
    return %3#2, %3#3, %cst_0, %cst_1 : tensor<6xf32>, tensor<4x6xf32>, tensor<6xf32>, tensor<4x6xf32>
  }
  func.func private @dynamic_index_in_dim(%arg0: tensor<4x6xf32>, %arg1: tensor<i32>) -> tensor<6xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, sizes = [1, 6] : (tensor<4x6xf32>, tensor<i32>, tensor<i32>) -> tensor<1x6xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x6xf32>) -> tensor<6xf32>
    return %1 : tensor<6xf32>
  }
  func.func private @closed_call(%arg0: tensor<6xf32>, %arg1: tensor<6xf32>) -> (tensor<6xf32>, tensor<6xf32>) {
    %cst = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<6xf32>
    %1 = stablehlo.multiply %arg0, %0 : tensor<6xf32>
    %2 = stablehlo.add %1, %arg1 : tensor<6xf32>
    %3 = stablehlo.multiply %arg0, %arg1 : tensor<6xf32>
    return %2, %3 : tensor<6xf32>, tensor<6xf32>
  }
  func.func private @dynamic_update_index_in_dim(%arg0: tensor<4x6xf32>, %arg1: tensor<6xf32>, %arg2: tensor<i32>) -> tensor<4x6xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<6xf32>) -> tensor<1x6xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2, %c : (tensor<4x6xf32>, tensor<1x6xf32>, tensor<i32>, tensor<i32>) -> tensor<4x6xf32>
    return %1 : tensor<4x6xf32>
  }
}
