module @jit_program attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<4x6xi1> {jax.result_info = "result[0][0]"}, tensor<4x6xi1> {jax.result_info = "result[0][1]"}, tensor<4x6xi1> {jax.result_info = "result[0][2]"}, tensor<4xi1> {jax.result_info = "result[0][3]"}, tensor<6xi1> {jax.result_info = "result[0][4]"}, tensor<4x6xi1> {jax.result_info = "result[0][5]"}, tensor<4x6xf32> {jax.result_info = "result[0][6]"}, tensor<4x6xi32> {jax.result_info = "result[0][7]"}, tensor<i32> {jax.result_info = "result[0][8]"}, tensor<4x6xi1> {jax.result_info = "result[1][0]"}, tensor<4x6xi1> {jax.result_info = "result[1][1]"}, tensor<4x6xi1> {jax.result_info = "result[1][2]"}, tensor<4xi1> {jax.result_info = "result[1][3]"}, tensor<6xi1> {jax.result_info = "result[1][4]"}, tensor<4x6xi1> {jax.result_info = "result[1][5]"}, tensor<4x6xf32> {jax.result_info = "result[1][6]"}, tensor<4x6xi32> {jax.result_info = "result[1][7]"}, tensor<i32> {jax.result_info = "result[1][8]"}) {
    %cst = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]> : tensor<4x6xf32>
    %c = stablehlo.constant dense<[[true, false, true, true, false, true], [false, true, false, false, false, true], [false, false, false, false, false, false], [true, false, false, false, false, true]]> : tensor<4x6xi1>
    %c_0 = stablehlo.constant dense<[[true, false, true, true, false, true], [true, true, false, true, false, true], [true, false, true, false, false, false], [true, true, false, true, false, true]]> : tensor<4x6xi1>
    %c_1 = stablehlo.constant dense<[[false, true, false, false, true, false], [false, false, true, true, true, false], [true, true, true, true, true, true], [false, false, true, false, true, false]]> : tensor<4x6xi1>
    %c_2 = stablehlo.constant dense<[false, true, false, true]> : tensor<4xi1>
    %c_3 = stablehlo.constant dense<true> : tensor<6xi1>
    %c_4 = stablehlo.constant dense<[[false, true, false, false, true, false], [true, false, true, true, true, false], [true, true, true, true, true, true], [false, true, true, true, true, false]]> : tensor<4x6xi1>
    %cst_5 = stablehlo.constant dense<[[0.125730217, 0.000000e+00, 0.640422642, 0.104900114, 0.000000e+00, 0.361595064], [1.304000e+00, 0.947080969, 0.000000e+00, 0.000000e+00, 0.000000e+00, 0.0413259789], [0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00], [0.411630541, 1.04251337, 0.000000e+00, 1.36646342, 0.000000e+00, 0.351510078]]> : tensor<4x6xf32>
    %c_6 = stablehlo.constant dense<[[1, 0, 1, 1, 0, 1], [1, 1, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0], [1, 1, 0, 1, 0, 1]]> : tensor<4x6xi32>
    %0 = stablehlo.optimization_barrier %cst : tensor<4x6xf32>
    %cst_7 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %2 = stablehlo.compare GT, %0, %1, FLOAT : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xi1>
    %cst_8 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %4 = stablehlo.compare LT, %0, %3, FLOAT : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xi1>
    %5 = stablehlo.and %2, %4 : tensor<4x6xi1>
    %cst_9 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %6 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %7 = stablehlo.compare GT, %0, %6, FLOAT : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xi1>
    %cst_10 = stablehlo.constant dense<-1.000000e+00> : tensor<f32>
    %8 = stablehlo.broadcast_in_dim %cst_10, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %9 = stablehlo.compare LT, %0, %8, FLOAT : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xi1>
    %10 = stablehlo.or %7, %9 : tensor<4x6xi1>
    %cst_11 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %11 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %12 = stablehlo.compare GT, %0, %11, FLOAT : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xi1>
    %13 = stablehlo.not %12 : tensor<4x6xi1>
    %cst_12 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %14 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %15 = stablehlo.compare GT, %0, %14, FLOAT : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xi1>
    %c_13 = stablehlo.constant dense<false> : tensor<i1>
    %16 = stablehlo.reduce(%15 init: %c_13) applies stablehlo.or across dimensions = [1] : (tensor<4x6xi1>, tensor<i1>) -> tensor<4xi1>
    %cst_14 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %17 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %18 = stablehlo.compare LT, %0, %17, FLOAT : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xi1>
    %c_15 = stablehlo.constant dense<true> : tensor<i1>
    %19 = stablehlo.reduce(%18 init: %c_15) applies stablehlo.and across dimensions = [0] : (tensor<4x6xi1>, tensor<i1>) -> tensor<6xi1>
    %cst_16 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %20 = stablehlo.broadcast_in_dim %cst_16, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %21 = stablehlo.compare GT, %0, %20, FLOAT : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xi1>
    %cst_17 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %22 = stablehlo.broadcast_in_dim %cst_17, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %23 = stablehlo.compare LT, %0, %22, FLOAT : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xi1>
    %24 = stablehlo.xor %21, %23 : tensor<4x6xi1>
    %cst_18 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %25 = stablehlo.broadcast_in_dim %cst_18, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %26 = stablehlo.compare GT, %0, %25, FLOAT : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xi1>
    %c_19 = stablehlo.constant dense<0> : tensor<i32>
    %27 = call @_where(%26, %0, %c_19) : (tensor<4x6xi1>, tensor<4x6xf32>, tensor<i32>) -> tensor<4x6xf32>
    %cst_20 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %28 = stablehlo.broadcast_in_dim %cst_20, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %29 = stablehlo.compare GT, %0, %28, FLOAT : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xi1>
    %30 = stablehlo.convert %29 : (tensor<4x6xi1>) -> tensor<4x6xi32>
    %cst_21 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %31 = stablehlo.broadcast_in_dim %cst_21, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %32 = stablehlo.compare GT, %0, %31, FLOAT : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xi1>
    %33 = stablehlo.convert %32 : (tensor<4x6xi1>) -> tensor<4x6xi32>
    %c_22 = stablehlo.constant dense<0> : tensor<i32>
    %34 = stablehlo.reduce(%33 init: %c_22) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x6xi32>, tensor<i32>) -> tensor<i32>
    %c_23 = stablehlo.constant dense<11> : tensor<i32>
    return %5, %10, %13, %16, %19, %24, %27, %30, %34, %c, %c_0, %c_1, %c_2, %c_3, %c_4, %cst_5, %c_6, %c_23 : tensor<4x6xi1>, tensor<4x6xi1>, tensor<4x6xi1>, tensor<4xi1>, tensor<6xi1>, tensor<4x6xi1>, tensor<4x6xf32>, tensor<4x6xi32>, tensor<i32>, tensor<4x6xi1>, tensor<4x6xi1>, tensor<4x6xi1>, tensor<4xi1>, tensor<6xi1>, tensor<4x6xi1>, tensor<4x6xf32>, tensor<4x6xi32>, tensor<i32>
  }
  func.func private @_where(%arg0: tensor<4x6xi1>, %arg1: tensor<4x6xf32>, %arg2: tensor<i32>) -> tensor<4x6xf32> {
    %0 = stablehlo.convert %arg2 : (tensor<i32>) -> tensor<f32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %2 = stablehlo.select %arg0, %arg1, %1 : tensor<4x6xi1>, tensor<4x6xf32>
    return %2 : tensor<4x6xf32>
  }
}
