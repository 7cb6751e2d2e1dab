module @jit_program attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<6xf32> {jax.result_info = "result[0][0]"}, tensor<4x6xf32> {jax.result_info = "result[0][1]"}, tensor<6xf32> {jax.result_info = "result[1][0]"}, tensor<4x6xf32> {jax.result_info = "result[1][1]"}) {
    %cst = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]> : tensor<4x6xf32>
    %cst_0 = stablehlo.constant dense<[-0.483670086, 1.63869786, -1.43775833, -0.526325345, -2.36839771, 0.438130975]> : tensor<6xf32>
    %cst_1 = stablehlo.constant dense<[[0.000000e+00, -0.000000e+00, 0.000000e+00, 0.000000e+00, -0.000000e+00, 0.000000e+00], [0.163952202, -1.251140e-01, -0.450687975, -0.132742867, 0.33386904, 0.01494327], [-3.32416677, -0.178309977, 0.0788818523, 0.849811971, 0.630765676, -0.127443984], [-0.368533075, 0.621530234, 0.168280616, -2.58642673, 1.13296151, 0.0304481182]]> : tensor<4x6xf32>
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
      %4 = func.call @dynamic_index_in_dim(%iterArg, %iterArg_4) : (tensor<4x6xf32>, tensor<i32>) -> tensor<6xf32>
      %5:2 = func.call @closed_call(%iterArg_5, %4) : (tensor<6xf32>, tensor<6xf32>) -> (tensor<6xf32>, tensor<6xf32>)
      %6 = func.call @dynamic_update_index_in_dim(%iterArg_6, %5#1, %iterArg_4) : (tensor<4x6xf32>, tensor<6xf32>, tensor<i32>) -> tensor<4x6xf32>
      %c_7 = stablehlo.constant dense<1> : tensor<i32>
      %7 = stablehlo.add %iterArg_4, %c_7 : tensor<i32>
      stablehlo.return %iterArg, %7, %5#0, %6 : tensor<4x6xf32>, tensor<i32>, tensor<6xf32>, tensor<4x6xf32>
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
    %0 = stablehlo.add %arg0, %arg1 : tensor<6xf32>
    %1 = stablehlo.multiply %arg0, %arg1 : tensor<6xf32>
    return %0, %1 : tensor<6xf32>, tensor<6xf32>
  }
  func.func private @dynamic_update_index_in_dim(%arg0: tensor<4x6xf32>, %arg1: tensor<6xf32>, %arg2: tensor<i32>) -> tensor<4x6xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<6xf32>) -> tensor<1x6xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2, %c : (tensor<4x6xf32>, tensor<1x6xf32>, tensor<i32>, tensor<i32>) -> tensor<4x6xf32>
    return %1 : tensor<4x6xf32>
  }
}
