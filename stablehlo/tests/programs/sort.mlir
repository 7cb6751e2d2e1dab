module @jit_program attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<4x6xf32> {jax.result_info = "result[0][0]"}, tensor<4x6xi32> {jax.result_info = "result[0][1]"}, tensor<4x6xf32> {jax.result_info = "result[0][2]"}, tensor<4x2xf32> {jax.result_info = "result[0][3]"}, tensor<4x2xi32> {jax.result_info = "result[0][4]"}, tensor<f32> {jax.result_info = "result[0][5]"}, tensor<4x6xf32> {jax.result_info = "result[0][6]"}, tensor<4x6xf32> {jax.result_info = "result[0][7]"}, tensor<4x6xf32> {jax.result_info = "result[0][8]"}, tensor<4x6xf32> {jax.result_info = "result[0][9]"}, tensor<4x6xf32> {jax.result_info = "result[1][0]"}, tensor<4x6xi32> {jax.result_info = "result[1][1]"}, tensor<4x6xf32> {jax.result_info = "result[1][2]"}, tensor<4x2xf32> {jax.result_info = "result[1][3]"}, tensor<4x2xi32> {jax.result_info = "result[1][4]"}, tensor<f32> {jax.result_info = "result[1][5]"}, tensor<4x6xf32> {jax.result_info = "result[1][6]"}, tensor<4x6xf32> {jax.result_info = "result[1][7]"}, tensor<4x6xf32> {jax.result_info = "result[1][8]"}, tensor<4x6xf32> {jax.result_info = "result[1][9]"}) {
    %cst = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]> : tensor<4x6xf32>
    %cst_0 = stablehlo.constant dense<[[-0.535669386, -0.132104859, 0.104900114, 0.125730217, 0.361595064, 0.640422642], [-1.26542151, -0.703735232, -0.623274446, 0.0413259789, 0.947080969, 1.304000e+00], [-2.3250308, -1.245911, -0.73226738, -5.442590e-01, -0.316300154, -0.218791664], [-0.66519469, -0.12853466, 0.351510078, 0.411630541, 1.04251337, 1.36646342]]> : tensor<4x6xf32>
    %c = stablehlo.constant dense<[[4, 1, 3, 0, 5, 2], [3, 2, 4, 5, 1, 0], [0, 2, 3, 4, 5, 1], [4, 2, 5, 0, 1, 3]]> : tensor<4x6xi32>
    %cst_1 = stablehlo.constant dense<[[1.304000e+00, 1.04251337, 0.640422642, 1.36646342, -0.535669386, 0.361595064], [0.411630541, 0.947080969, -0.12853466, 0.104900114, -5.442590e-01, 0.351510078], [0.125730217, -0.132104859, -0.703735232, -0.73226738, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, -1.245911, -1.26542151, -0.66519469, -0.316300154]]> : tensor<4x6xf32>
    %cst_2 = stablehlo.constant dense<[[0.640422642, 0.361595064], [1.304000e+00, 0.947080969], [-0.218791664, -0.316300154], [1.36646342, 1.04251337]]> : tensor<4x2xf32>
    %c_3 = stablehlo.constant dense<[[2, 5], [0, 1], [1, 5], [3, 1]]> : tensor<4x2xi32>
    %cst_4 = stablehlo.constant dense<[[-0.535669386, -0.132104859, 0.104900114, 0.125730217, 0.361595064, 0.640422642], [-1.26542151, -0.703735232, -0.623274446, 0.0413259789, 0.947080969, 1.304000e+00], [-2.3250308, -1.245911, -0.73226738, -5.442590e-01, -0.316300154, -0.218791664], [-0.66519469, -0.12853466, 0.351510078, 0.411630541, 1.04251337, 1.36646342]]> : tensor<4x6xf32>
    %cst_5 = stablehlo.constant dense<[[-0.535669386, -0.132104859, 0.104900114, 0.125730217, 0.361595064, 0.640422642], [-1.26542151, -0.703735232, -0.623274446, 0.0413259789, 0.947080969, 1.304000e+00], [-2.3250308, -1.245911, -0.73226738, -5.442590e-01, -0.316300154, -0.218791664], [-0.66519469, -0.12853466, 0.351510078, 0.411630541, 1.04251337, 1.36646342]]> : tensor<4x6xf32>
    %cst_6 = stablehlo.constant dense<[[-1.07133877, -0.264209718, 0.209800228, 0.251460433, 0.723190128, 1.28084528], [-2.53084302, -1.40747046, -1.24654889, 0.0826519579, 1.89416194, 2.608000e+00], [-4.65006161, -2.491822, -1.46453476, -1.08851802, -0.632600307, -0.437583327], [-1.33038938, -0.257069319, 0.703020155, 0.823261082, 2.08502674, 2.73292685]]> : tensor<4x6xf32>
    %cst_7 = stablehlo.constant dense<[[0.535669386, 0.132104859, -0.104900114, -0.125730217, -0.361595064, -0.640422642], [1.26542151, 0.703735232, 0.623274446, -0.0413259789, -0.947080969, -1.304000e+00], [2.3250308, 1.245911, 0.73226738, 5.442590e-01, 0.316300154, 0.218791664], [0.66519469, 0.12853466, -0.351510078, -0.411630541, -1.04251337, -1.36646342]]> : tensor<4x6xf32>
    %0 = stablehlo.optimization_barrier %cst : tensor<4x6xf32>
    %1 = call @sort(%0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %2 = call @argsort(%0) : (tensor<4x6xf32>) -> tensor<4x6xi32>
    %3 = call @sort_0(%0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %values, %indices = chlo.top_k(%0, k = 2) : tensor<4x6xf32> -> (tensor<4x2xf32>, tensor<4x2xi32>)
    %4 = call @median(%0) : (tensor<4x6xf32>) -> tensor<f32>
    %5 = call @round(%0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %6:2 = "stablehlo.sort"(%5, %0) <{dimension = 1 : i64, is_stable = true}> ({
    ^bb0(%arg0: tensor<f32>, %arg1: tensor<f32>, %arg2: tensor<f32>, %arg3: tensor<f32>):
      %cst_10 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %11 = stablehlo.compare EQ, %arg0, %cst_10, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_11 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %12 = stablehlo.select %11, %cst_11, %arg0 : tensor<i1>, tensor<f32>
      %13 = stablehlo.compare NE, %arg0, %arg0, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_12 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %14 = stablehlo.select %13, %cst_12, %12 : tensor<i1>, tensor<f32>
      %cst_13 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %15 = stablehlo.compare EQ, %arg1, %cst_13, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_14 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %16 = stablehlo.select %15, %cst_14, %arg1 : tensor<i1>, tensor<f32>
      %17 = stablehlo.compare NE, %arg1, %arg1, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_15 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %18 = stablehlo.select %17, %cst_15, %16 : tensor<i1>, tensor<f32>
      %cst_16 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %19 = stablehlo.compare EQ, %arg2, %cst_16, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_17 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %20 = stablehlo.select %19, %cst_17, %arg2 : tensor<i1>, tensor<f32>
      %21 = stablehlo.compare NE, %arg2, %arg2, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_18 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %22 = stablehlo.select %21, %cst_18, %20 : tensor<i1>, tensor<f32>
      %cst_19 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %23 = stablehlo.compare EQ, %arg3, %cst_19, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_20 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %24 = stablehlo.select %23, %cst_20, %arg3 : tensor<i1>, tensor<f32>
      %25 = stablehlo.compare NE, %arg3, %arg3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_21 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %26 = stablehlo.select %25, %cst_21, %24 : tensor<i1>, tensor<f32>
      %27 = stablehlo.compare LT, %22, %26, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %28 = stablehlo.compare LT, %14, %18, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %29 = stablehlo.compare EQ, %14, %18, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %30 = stablehlo.and %29, %27 : tensor<i1>
      %31 = stablehlo.or %28, %30 : tensor<i1>
      stablehlo.return %31 : tensor<i1>
    }) : (tensor<4x6xf32>, tensor<4x6xf32>) -> (tensor<4x6xf32>, tensor<4x6xf32>)
    %cst_8 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %7 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %8 = stablehlo.multiply %0, %7 : tensor<4x6xf32>
    %9 = stablehlo.negate %0 : tensor<4x6xf32>
    %10:3 = "stablehlo.sort"(%0, %8, %9) <{dimension = 1 : i64, is_stable = true}> ({
    ^bb0(%arg0: tensor<f32>, %arg1: tensor<f32>, %arg2: tensor<f32>, %arg3: tensor<f32>, %arg4: tensor<f32>, %arg5: tensor<f32>):
      %cst_10 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %11 = stablehlo.compare EQ, %arg0, %cst_10, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_11 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %12 = stablehlo.select %11, %cst_11, %arg0 : tensor<i1>, tensor<f32>
      %13 = stablehlo.compare NE, %arg0, %arg0, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_12 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %14 = stablehlo.select %13, %cst_12, %12 : tensor<i1>, tensor<f32>
      %cst_13 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %15 = stablehlo.compare EQ, %arg1, %cst_13, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_14 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %16 = stablehlo.select %15, %cst_14, %arg1 : tensor<i1>, tensor<f32>
      %17 = stablehlo.compare NE, %arg1, %arg1, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_15 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %18 = stablehlo.select %17, %cst_15, %16 : tensor<i1>, tensor<f32>
      %19 = stablehlo.compare LT, %14, %18, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %19 : tensor<i1>
    }) : (tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>) -> (tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>)
    %cst_9 = stablehlo.constant dense<-0.130319759> : tensor<f32>
    return %1, %2, %3, %values, %indices, %4, %6#1, %10#0, %10#1, %10#2, %cst_0, %c, %cst_1, %cst_2, %c_3, %cst_9, %cst_4, %cst_5, %cst_6, %cst_7 : tensor<4x6xf32>, tensor<4x6xi32>, tensor<4x6xf32>, tensor<4x2xf32>, tensor<4x2xi32>, tensor<f32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xi32>, tensor<4x6xf32>, tensor<4x2xf32>, tensor<4x2xi32>, tensor<f32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>
  }
  func.func private @sort(%arg0: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %0 = "stablehlo.sort"(%arg0) <{dimension = 1 : i64, is_stable = true}> ({
    ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
      %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %1 = stablehlo.compare EQ, %arg1, %cst, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %2 = stablehlo.select %1, %cst_0, %arg1 : tensor<i1>, tensor<f32>
      %3 = stablehlo.compare NE, %arg1, %arg1, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_1 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %4 = stablehlo.select %3, %cst_1, %2 : tensor<i1>, tensor<f32>
      %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %5 = stablehlo.compare EQ, %arg2, %cst_2, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %6 = stablehlo.select %5, %cst_3, %arg2 : tensor<i1>, tensor<f32>
      %7 = stablehlo.compare NE, %arg2, %arg2, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_4 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %8 = stablehlo.select %7, %cst_4, %6 : tensor<i1>, tensor<f32>
      %9 = stablehlo.compare LT, %4, %8, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %9 : tensor<i1>
    }) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    return %0 : tensor<4x6xf32>
  }
  func.func private @argsort(%arg0: tensor<4x6xf32>) -> tensor<4x6xi32> {
    %0 = stablehlo.iota dim = 1 : tensor<4x6xi32>
    %1:2 = "stablehlo.sort"(%arg0, %0) <{dimension = 1 : i64, is_stable = true}> ({
    ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>, %arg3: tensor<i32>, %arg4: tensor<i32>):
      %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %2 = stablehlo.compare EQ, %arg1, %cst, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %3 = stablehlo.select %2, %cst_0, %arg1 : tensor<i1>, tensor<f32>
      %4 = stablehlo.compare NE, %arg1, %arg1, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_1 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %5 = stablehlo.select %4, %cst_1, %3 : tensor<i1>, tensor<f32>
      %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %6 = stablehlo.compare EQ, %arg2, %cst_2, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %7 = stablehlo.select %6, %cst_3, %arg2 : tensor<i1>, tensor<f32>
      %8 = stablehlo.compare NE, %arg2, %arg2, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_4 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %9 = stablehlo.select %8, %cst_4, %7 : tensor<i1>, tensor<f32>
      %10 = stablehlo.compare LT, %5, %9, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %10 : tensor<i1>
    }) : (tensor<4x6xf32>, tensor<4x6xi32>) -> (tensor<4x6xf32>, tensor<4x6xi32>)
    return %1#1 : tensor<4x6xi32>
  }
  func.func private @sort_0(%arg0: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %0 = "stablehlo.sort"(%arg0) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
      %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %2 = stablehlo.compare EQ, %arg1, %cst, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %3 = stablehlo.select %2, %cst_0, %arg1 : tensor<i1>, tensor<f32>
      %4 = stablehlo.compare NE, %arg1, %arg1, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_1 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %5 = stablehlo.select %4, %cst_1, %3 : tensor<i1>, tensor<f32>
      %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %6 = stablehlo.compare EQ, %arg2, %cst_2, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %7 = stablehlo.select %6, %cst_3, %arg2 : tensor<i1>, tensor<f32>
      %8 = stablehlo.compare NE, %arg2, %arg2, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_4 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %9 = stablehlo.select %8, %cst_4, %7 : tensor<i1>, tensor<f32>
      %10 = stablehlo.compare LT, %5, %9, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %10 : tensor<i1>
    }) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %1 = stablehlo.reverse %0, dims = [0] : tensor<4x6xf32>
    return %1 : tensor<4x6xf32>
  }
  func.func private @median(%arg0: tensor<4x6xf32>) -> tensor<f32> {
    %cst = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %0 = call @quantile(%arg0, %cst) : (tensor<4x6xf32>, tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @quantile(%arg0: tensor<4x6xf32>, %arg1: tensor<f32>) -> tensor<f32> {
    %0 = stablehlo.reshape %arg0 : (tensor<4x6xf32>) -> tensor<24xf32>
    %1 = stablehlo.compare NE, %0, %0, FLOAT : (tensor<24xf32>, tensor<24xf32>) -> tensor<24xi1>
    %c = stablehlo.constant dense<false> : tensor<i1>
    %2 = stablehlo.reduce(%1 init: %c) applies stablehlo.or across dimensions = [0] : (tensor<24xi1>, tensor<i1>) -> tensor<i1>
    %3 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<i1>) -> tensor<1xi1>
    %cst = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %4 = call @_where(%3, %cst, %0) : (tensor<1xi1>, tensor<f32>, tensor<24xf32>) -> tensor<24xf32>
    %5 = "stablehlo.sort"(%4) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
      %cst_9 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %22 = stablehlo.compare EQ, %arg2, %cst_9, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_10 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %23 = stablehlo.select %22, %cst_10, %arg2 : tensor<i1>, tensor<f32>
      %24 = stablehlo.compare NE, %arg2, %arg2, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_11 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %25 = stablehlo.select %24, %cst_11, %23 : tensor<i1>, tensor<f32>
      %cst_12 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %26 = stablehlo.compare EQ, %arg3, %cst_12, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_13 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %27 = stablehlo.select %26, %cst_13, %arg3 : tensor<i1>, tensor<f32>
      %28 = stablehlo.compare NE, %arg3, %arg3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_14 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %29 = stablehlo.select %28, %cst_14, %27 : tensor<i1>, tensor<f32>
      %30 = stablehlo.compare LT, %25, %29, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %30 : tensor<i1>
    }) : (tensor<24xf32>) -> tensor<24xf32>
    %cst_0 = stablehlo.constant dense<2.400000e+01> : tensor<f32>
    %cst_1 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %6 = stablehlo.subtract %cst_0, %cst_1 : tensor<f32>
    %7 = stablehlo.multiply %arg1, %6 : tensor<f32>
    %8 = stablehlo.floor %7 : tensor<f32>
    %9 = stablehlo.ceil %7 : tensor<f32>
    %cst_2 = stablehlo.constant dense<2.400000e+01> : tensor<f32>
    %cst_3 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %10 = stablehlo.subtract %cst_2, %cst_3 : tensor<f32>
    %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %11 = stablehlo.clamp %cst_4, %8, %10 : tensor<f32>
    %cst_5 = stablehlo.constant dense<2.400000e+01> : tensor<f32>
    %cst_6 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %12 = stablehlo.subtract %cst_5, %cst_6 : tensor<f32>
    %cst_7 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %13 = stablehlo.clamp %cst_7, %9, %12 : tensor<f32>
    %14 = stablehlo.convert %11 : (tensor<f32>) -> tensor<i32>
    %15 = stablehlo.convert %13 : (tensor<f32>) -> tensor<i32>
    %16 = stablehlo.broadcast_in_dim %14, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %17 = "stablehlo.gather"(%5, %16) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0]>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<24xf32>, tensor<1xi32>) -> tensor<f32>
    %18 = stablehlo.broadcast_in_dim %15, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %19 = "stablehlo.gather"(%5, %18) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0]>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<24xf32>, tensor<1xi32>) -> tensor<f32>
    %20 = stablehlo.add %17, %19 : tensor<f32>
    %cst_8 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %21 = stablehlo.multiply %20, %cst_8 : tensor<f32>
    return %21 : tensor<f32>
  }
  func.func private @_where(%arg0: tensor<1xi1>, %arg1: tensor<f32>, %arg2: tensor<24xf32>) -> tensor<24xf32> {
    %0 = stablehlo.convert %arg1 : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %arg0, dims = [0] : (tensor<1xi1>) -> tensor<24xi1>
    %2 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<24xf32>
    %3 = stablehlo.select %1, %2, %arg2 : tensor<24xi1>, tensor<24xf32>
    return %3 : tensor<24xf32>
  }
  func.func private @round(%arg0: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %0 = stablehlo.round_nearest_even %arg0 : tensor<4x6xf32>
    return %0 : tensor<4x6xf32>
  }
}
