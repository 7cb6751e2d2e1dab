module @jit_program attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<6x4xf32> {jax.result_info = "result[0][0]"}, tensor<6x6x4xf32> {jax.result_info = "result[0][1]"}, tensor<6x4xf32> {jax.result_info = "result[0][2]"}, tensor<6x4xf32> {jax.result_info = "result[1][0]"}, tensor<6x6x4xf32> {jax.result_info = "result[1][1]"}, tensor<6x4xf32> {jax.result_info = "result[1][2]"}) {
    %cst = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]> : tensor<4x6xf32>
    %cst_0 = stablehlo.constant dense<[[0.195710748, -0.574690938, -1.01356709, 0.422482312], [0.195710748, -0.574690938, -1.01356709, 0.422482312], [0.195710748, -0.574690938, -1.01356709, 0.422482312], [0.195710748, -0.574690938, -1.01356709, 0.422482312], [0.195710748, -0.574690938, -1.01356709, 0.422482312], [0.195710748, -0.574690938, -1.01356709, 0.422482312]]> : tensor<6x4xf32>
    %cst_1 = stablehlo.constant dense<"0x0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000006CBF003E79E9A63F4ECD14C03DC1D23E6CBF003E79E9A63F4ECD14C03DC1D23E6CBF003E79E9A63F4ECD14C03DC1D23E6CBF003E79E9A63F4ECD14C03DC1D23E6CBF003E79E9A63F4ECD14C03DC1D23E6CBF003E79E9A63F4ECD14C03DC1D23E92CD8DBDB0AECC3FACCEB0BF3CC99F3F92CD8DBDB0AECC3FACCEB0BF3CC99F3F92CD8DBDB0AECC3FACCEB0BF3CC99F3F92CD8DBDB0AECC3FACCEB0BF3CC99F3F92CD8DBDB0AECC3FACCEB0BF3CC99F3F92CD8DBDB0AECC3FACCEB0BF3CC99F3FE4151B3F9035C43D59E1F7BF2CC3FD3EE4151B3F9035C43D59E1F7BF2CC3FD3EE4151B3F9035C43D59E1F7BF2CC3FD3EE4151B3F9035C43D59E1F7BF2CC3FD3EE4151B3F9035C43D59E1F7BF2CC3FD3EE4151B3F9035C43D59E1F7BF2CC3FD3E5CCBD03EA8D79BBF9CABD9BFACA0CE3F5CCBD03EA8D79BBF9CABD9BFACA0CE3F5CCBD03EA8D79BBF9CABD9BFACA0CE3F5CCBD03EA8D79BBF9CABD9BFACA0CE3F5CCBD03EA8D79BBF9CABD9BFACA0CE3F5CCBD03EA8D79BBF9CABD9BFACA0CE3F94DDA9BE49B39DBF1680B2BFE459113E94DDA9BE49B39DBF1680B2BFE459113E94DDA9BE49B39DBF1680B2BFE459113E94DDA9BE49B39DBF1680B2BFE459113E94DDA9BE49B39DBF1680B2BFE459113E94DDA9BE49B39DBF1680B2BFE459113E"> : tensor<6x6x4xf32>
    %cst_2 = stablehlo.constant dense<[[0.125730217, 1.304000e+00, -2.3250308, 0.411630541], [-0.132104859, 0.947080969, -0.218791664, 1.04251337], [0.640422642, -0.703735232, -1.245911, -0.12853466], [0.104900114, -1.26542151, -0.73226738, 1.36646342], [-0.535669386, -0.623274446, -5.442590e-01, -0.66519469], [0.361595064, 0.0413259789, -0.316300154, 0.351510078]]> : tensor<6x4xf32>
    %0 = stablehlo.optimization_barrier %cst : tensor<4x6xf32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<6x4xf32>
    %2 = stablehlo.transpose %0, dims = [1, 0] : (tensor<4x6xf32>) -> tensor<6x4xf32>
    %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<6x6x4xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %4:4 = stablehlo.while(%iterArg = %2, %iterArg_5 = %c, %iterArg_6 = %1, %iterArg_7 = %3) : tensor<6x4xf32>, tensor<i32>, tensor<6x4xf32>, tensor<6x6x4xf32>
    cond {
      %c_8 = stablehlo.constant dense<6> : tensor<i32>
      %5 = stablehlo.compare LT, %iterArg_5, %c_8, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %5 : tensor<i1>
    } do {
      %5 = func.call @dynamic_index_in_dim(%iterArg, %iterArg_5) : (tensor<6x4xf32>, tensor<i32>) -> tensor<4xf32>
      %6:2 = func.call @closed_call(%iterArg_6, %5) : (tensor<6x4xf32>, tensor<4xf32>) -> (tensor<6x4xf32>, tensor<6x4xf32>)
      %7 = func.call @dynamic_update_index_in_dim(%iterArg_7, %6#1, %iterArg_5) : (tensor<6x6x4xf32>, tensor<6x4xf32>, tensor<i32>) -> tensor<6x6x4xf32>
      %c_8 = stablehlo.constant dense<1> : tensor<i32>
      %8 = stablehlo.add %iterArg_5, %c_8 : tensor<i32>
      stablehlo.return %iterArg, %8, %6#0, %7 : tensor<6x4xf32>, tensor<i32>, tensor<6x4xf32>, tensor<6x6x4xf32>
    }
    return %4#2, %4#3, %2, %cst_0, %cst_1, %cst_2 : tensor<6x4xf32>, tensor<6x6x4xf32>, tensor<6x4xf32>, tensor<6x4xf32>, tensor<6x6x4xf32>, tensor<6x4xf32>
  }
  func.func private @dynamic_index_in_dim(%arg0: tensor<6x4xf32>, %arg1: tensor<i32>) -> tensor<4xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, sizes = [1, 4] : (tensor<6x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x4xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
  func.func private @closed_call(%arg0: tensor<6x4xf32>, %arg1: tensor<4xf32>) -> (tensor<6x4xf32>, tensor<6x4xf32>) {
    %cst = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<6x4xf32>
    %1 = stablehlo.multiply %arg0, %0 : tensor<6x4xf32>
    %2 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<4xf32>) -> tensor<1x4xf32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<6x4xf32>
    %4 = stablehlo.add %1, %3 : tensor<6x4xf32>
    return %4, %arg0 : tensor<6x4xf32>, tensor<6x4xf32>
  }
  func.func private @dynamic_update_index_in_dim(%arg0: tensor<6x6x4xf32>, %arg1: tensor<6x4xf32>, %arg2: tensor<i32>) -> tensor<6x6x4xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [1, 2] : (tensor<6x4xf32>) -> tensor<1x6x4xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2, %c, %c_0 : (tensor<6x6x4xf32>, tensor<1x6x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<6x6x4xf32>
    return %1 : tensor<6x6x4xf32>
  }
}
