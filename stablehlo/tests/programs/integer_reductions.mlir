module @jit_program attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<i32> {jax.result_info = "result[0][0]"}, tensor<4xi32> {jax.result_info = "result[0][1]"}, tensor<4xi32> {jax.result_info = "result[0][2]"}, tensor<6xi32> {jax.result_info = "result[0][3]"}, tensor<4xi32> {jax.result_info = "result[0][4]"}, tensor<i32> {jax.result_info = "result[1][0]"}, tensor<4xi32> {jax.result_info = "result[1][1]"}, tensor<4xi32> {jax.result_info = "result[1][2]"}, tensor<6xi32> {jax.result_info = "result[1][3]"}, tensor<4xi32> {jax.result_info = "result[1][4]"}) {
    %c = stablehlo.constant dense<[[27, 12, 12, 39, 25, -34], [46, -36, 44, -38, 48, -43], [38, 3, 6, -34, -37, 30], [-26, -48, -5, -13, -5, -3]]> : tensor<4x6xi32>
    %c_0 = stablehlo.constant dense<[39, 48, 38, -3]> : tensor<4xi32>
    %c_1 = stablehlo.constant dense<[-34, -43, -37, -48]> : tensor<4xi32>
    %c_2 = stablehlo.constant dense<[-1227096, 62208, -15840, -655044, 222000, -131580]> : tensor<6xi32>
    %c_3 = stablehlo.constant dense<[3, 4, 0, 5]> : tensor<4xi32>
    %0 = stablehlo.optimization_barrier %c : tensor<4x6xi32>
    %c_4 = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.reduce(%0 init: %c_4) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x6xi32>, tensor<i32>) -> tensor<i32>
    %c_5 = stablehlo.constant dense<-2147483648> : tensor<i32>
    %2 = stablehlo.reduce(%0 init: %c_5) applies stablehlo.maximum across dimensions = [1] : (tensor<4x6xi32>, tensor<i32>) -> tensor<4xi32>
    %c_6 = stablehlo.constant dense<2147483647> : tensor<i32>
    %3 = stablehlo.reduce(%0 init: %c_6) applies stablehlo.minimum across dimensions = [1] : (tensor<4x6xi32>, tensor<i32>) -> tensor<4xi32>
    %c_7 = stablehlo.constant dense<1> : tensor<i32>
    %4 = stablehlo.reduce(%0 init: %c_7) applies stablehlo.multiply across dimensions = [0] : (tensor<4x6xi32>, tensor<i32>) -> tensor<6xi32>
    %5 = call @argmax(%0) : (tensor<4x6xi32>) -> tensor<4xi32>
    %c_8 = stablehlo.constant dense<8> : tensor<i32>
    return %1, %2, %3, %4, %5, %c_8, %c_0, %c_1, %c_2, %c_3 : tensor<i32>, tensor<4xi32>, tensor<4xi32>, tensor<6xi32>, tensor<4xi32>, tensor<i32>, tensor<4xi32>, tensor<4xi32>, tensor<6xi32>, tensor<4xi32>
  }
  func.func private @argmax(%arg0: tensor<4x6xi32>) -> tensor<4xi32> {
    %0 = stablehlo.iota dim = 1 : tensor<4x6xi32>
    %c = stablehlo.constant dense<-2147483648> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %1:2 = stablehlo.reduce(%arg0 init: %c), (%0 init: %c_0) across dimensions = [1] : (tensor<4x6xi32>, tensor<4x6xi32>, tensor<i32>, tensor<i32>) -> (tensor<4xi32>, tensor<4xi32>)
     reducer(%arg1: tensor<i32>, %arg3: tensor<i32>) (%arg2: tensor<i32>, %arg4: tensor<i32>)  {
      %2 = stablehlo.compare GT, %arg1, %arg3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %3 = stablehlo.compare NE, %arg1, %arg1, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %4 = stablehlo.or %2, %3 : tensor<i1>
      %5 = stablehlo.compare EQ, %arg1, %arg3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %6 = stablehlo.compare LT, %arg2, %arg4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %7 = stablehlo.and %5, %6 : tensor<i1>
      %8 = stablehlo.or %4, %7 : tensor<i1>
      %9 = stablehlo.select %4, %arg1, %arg3 : tensor<i1>, tensor<i32>
      %10 = stablehlo.select %8, %arg2, %arg4 : tensor<i1>, tensor<i32>
      stablehlo.return %9, %10 : tensor<i32>, tensor<i32>
    }
    return %1#1 : tensor<4xi32>
  }
}
