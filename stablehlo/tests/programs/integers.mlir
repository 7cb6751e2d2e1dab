module @jit_program attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<4x6xi32> {jax.result_info = "result[0][0]"}, tensor<4x6xi32> {jax.result_info = "result[0][1]"}, tensor<4x6xi32> {jax.result_info = "result[0][2]"}, tensor<4x6xi32> {jax.result_info = "result[0][3]"}, tensor<4x6xi32> {jax.result_info = "result[0][4]"}, tensor<4x6xi32> {jax.result_info = "result[0][5]"}, tensor<4x6xi32> {jax.result_info = "result[0][6]"}, tensor<4x6xi32> {jax.result_info = "result[0][7]"}, tensor<4x6xi32> {jax.result_info = "result[0][8]"}, tensor<4x6xi32> {jax.result_info = "result[0][9]"}, tensor<4x6xi32> {jax.result_info = "result[0][10]"}, tensor<4x6xi32> {jax.result_info = "result[0][11]"}, tensor<4x6xi32> {jax.result_info = "result[0][12]"}, tensor<4x6xi32> {jax.result_info = "result[0][13]"}, tensor<4x6xi32> {jax.result_info = "result[0][14]"}, tensor<4x6xi32> {jax.result_info = "result[0][15]"}, tensor<4x6xi32> {jax.result_info = "result[0][16]"}, tensor<4x6xi32> {jax.result_info = "result[0][17]"}, tensor<4x6xi32> {jax.result_info = "result[1][0]"}, tensor<4x6xi32> {jax.result_info = "result[1][1]"}, tensor<4x6xi32> {jax.result_info = "result[1][2]"}, tensor<4x6xi32> {jax.result_info = "result[1][3]"}, tensor<4x6xi32> {jax.result_info = "result[1][4]"}, tensor<4x6xi32> {jax.result_info = "result[1][5]"}, tensor<4x6xi32> {jax.result_info = "result[1][6]"}, tensor<4x6xi32> {jax.result_info = "result[1][7]"}, tensor<4x6xi32> {jax.result_info = "result[1][8]"}, tensor<4x6xi32> {jax.result_info = "result[1][9]"}, tensor<4x6xi32> {jax.result_info = "result[1][10]"}, tensor<4x6xi32> {jax.result_info = "result[1][11]"}, tensor<4x6xi32> {jax.result_info = "result[1][12]"}, tensor<4x6xi32> {jax.result_info = "result[1][13]"}, tensor<4x6xi32> {jax.result_info = "result[1][14]"}, tensor<4x6xi32> {jax.result_info = "result[1][15]"}, tensor<4x6xi32> {jax.result_info = "result[1][16]"}, tensor<4x6xi32> {jax.result_info = "result[1][17]"}) {
    %c = stablehlo.constant dense<[[27, 12, 12, 39, 25, -34], [46, -36, 44, -38, 48, -43], [38, 3, 6, -34, -37, 30], [-26, -48, -5, -13, -5, -3]]> : tensor<4x6xi32>
    %c_0 = stablehlo.constant dense<[[-26, -48, -5, -13, -5, -3], [38, 3, 6, -34, -37, 30], [46, -36, 44, -38, 48, -43], [27, 12, 12, 39, 25, -34]]> : tensor<4x6xi32>
    %c_1 = stablehlo.constant dense<[[1, -36, 7, 26, 20, -37], [84, -33, 50, -72, 11, -13], [84, -33, 50, -72, 11, -13], [1, -36, 7, 26, 20, -37]]> : tensor<4x6xi32>
    %c_2 = stablehlo.constant dense<[[-702, -576, -60, -507, -125, 102], [1748, -108, 264, 1292, -1776, -1290], [1748, -108, 264, 1292, -1776, -1290], [-702, -576, -60, -507, -125, 102]]> : tensor<4x6xi32>
    %c_3 = stablehlo.constant dense<[[3, 1, 1, 5, 3, -5], [6, -6, 6, -6, 6, -7], [5, 0, 0, -5, -6, 4], [-4, -7, -1, -2, -1, -1]]> : tensor<4x6xi32>
    %c_4 = stablehlo.constant dense<[[6, 5, 5, 4, 4, 1], [4, 6, 2, 4, 6, 6], [3, 3, 6, 1, 5, 2], [2, 1, 2, 1, 2, 4]]> : tensor<4x6xi32>
    %c_5 = stablehlo.constant dense<[[-1, 0, -2, -3, -5, 11], [1, -12, 7, 1, -1, -1], [0, 0, 0, 0, 0, 0], [0, -4, 0, 0, 0, 0]]> : tensor<4x6xi32>
    %c_6 = stablehlo.constant dense<[[1, 12, 2, 0, 0, -1], [8, 0, 2, -4, 11, -13], [38, 3, 6, -34, -37, 30], [-26, 0, -5, -13, -5, -3]]> : tensor<4x6xi32>
    %c_7 = stablehlo.constant dense<[[2, 0, 8, 35, 25, -36], [38, 0, 4, -38, 16, 20], [38, 0, 4, -38, 16, 20], [2, 0, 8, 35, 25, -36]]> : tensor<4x6xi32>
    %c_8 = stablehlo.constant dense<[[-1, -36, -1, -9, -5, -1], [46, -33, 46, -34, -5, -33], [46, -33, 46, -34, -5, -33], [-1, -36, -1, -9, -5, -1]]> : tensor<4x6xi32>
    %c_9 = stablehlo.constant dense<[[-3, -36, -9, -44, -30, 35], [8, -33, 42, 4, -21, -53], [8, -33, 42, 4, -21, -53], [-3, -36, -9, -44, -30, 35]]> : tensor<4x6xi32>
    %c_10 = stablehlo.constant dense<[[-28, -13, -13, -40, -26, 33], [-47, 35, -45, 37, -49, 42], [-39, -4, -7, 33, 36, -31], [25, 47, 4, 12, 4, 2]]> : tensor<4x6xi32>
    %c_11 = stablehlo.constant dense<[[108, 48, 48, 156, 100, -136], [184, -144, 176, -152, 192, -172], [152, 12, 24, -136, -148, 120], [-104, -192, -20, -52, -20, -12]]> : tensor<4x6xi32>
    %c_12 = stablehlo.constant dense<[[13, 6, 6, 19, 12, -17], [23, -18, 22, -19, 24, -22], [19, 1, 3, -17, -19, 15], [-13, -24, -3, -7, -3, -2]]> : tensor<4x6xi32>
    %c_13 = stablehlo.constant dense<[[3, 1, 1, 4, 3, 536870907], [5, 536870907, 5, 536870907, 6, 536870906], [4, 0, 0, 536870907, 536870907, 3], [536870908, 536870906, 536870911, 536870910, 536870911, 536870911]]> : tensor<4x6xi32>
    %c_14 = stablehlo.constant dense<[[27, 12, 12, 39, 25, 34], [46, 36, 44, 38, 48, 43], [38, 3, 6, 34, 37, 30], [26, 48, 5, 13, 5, 3]]> : tensor<4x6xi32>
    %c_15 = stablehlo.constant dense<[[1, 1, 1, 1, 1, -1], [1, -1, 1, -1, 1, -1], [1, 1, 1, -1, -1, 1], [-1, -1, -1, -1, -1, -1]]> : tensor<4x6xi32>
    %c_16 = stablehlo.constant dense<[[729, 144, 144, 1521, 625, 1156], [2116, 1296, 1936, 1444, 2304, 1849], [1444, 9, 36, 1156, 1369, 900], [676, 2304, 25, 169, 25, 9]]> : tensor<4x6xi32>
    %c_17 = stablehlo.constant dense<[[4, 2, 2, 4, 3, 30], [4, 29, 3, 29, 2, 29], [3, 2, 2, 30, 30, 4], [29, 27, 31, 30, 31, 31]]> : tensor<4x6xi32>
    %c_18 = stablehlo.constant dense<[[27, 28, 28, 26, 27, 0], [26, 0, 26, 0, 26, 0], [26, 30, 29, 0, 0, 27], [0, 0, 0, 0, 0, 0]]> : tensor<4x6xi32>
    %0:2 = stablehlo.optimization_barrier %c, %c_0 : tensor<4x6xi32>, tensor<4x6xi32>
    %1 = stablehlo.add %0#0, %0#1 : tensor<4x6xi32>
    %2 = stablehlo.multiply %0#0, %0#1 : tensor<4x6xi32>
    %c_19 = stablehlo.constant dense<7> : tensor<i32>
    %3 = call @floor_divide(%0#0, %c_19) : (tensor<4x6xi32>, tensor<i32>) -> tensor<4x6xi32>
    %c_20 = stablehlo.constant dense<7> : tensor<i32>
    %4 = call @remainder(%0#0, %c_20) : (tensor<4x6xi32>, tensor<i32>) -> tensor<4x6xi32>
    %5 = stablehlo.divide %0#0, %0#1 : tensor<4x6xi32>
    %6 = stablehlo.remainder %0#0, %0#1 : tensor<4x6xi32>
    %7 = stablehlo.and %0#0, %0#1 : tensor<4x6xi32>
    %8 = stablehlo.or %0#0, %0#1 : tensor<4x6xi32>
    %9 = stablehlo.xor %0#0, %0#1 : tensor<4x6xi32>
    %10 = stablehlo.not %0#0 : tensor<4x6xi32>
    %c_21 = stablehlo.constant dense<2> : tensor<i32>
    %11 = stablehlo.broadcast_in_dim %c_21, dims = [] : (tensor<i32>) -> tensor<4x6xi32>
    %12 = stablehlo.shift_left %0#0, %11 : tensor<4x6xi32>
    %c_22 = stablehlo.constant dense<1> : tensor<i32>
    %13 = stablehlo.broadcast_in_dim %c_22, dims = [] : (tensor<i32>) -> tensor<4x6xi32>
    %14 = stablehlo.shift_right_arithmetic %0#0, %13 : tensor<4x6xi32>
    %c_23 = stablehlo.constant dense<3> : tensor<i32>
    %15 = stablehlo.broadcast_in_dim %c_23, dims = [] : (tensor<i32>) -> tensor<4x6xi32>
    %16 = stablehlo.shift_right_logical %0#0, %15 : tensor<4x6xi32>
    %17 = stablehlo.abs %0#0 : tensor<4x6xi32>
    %18 = stablehlo.sign %0#0 : tensor<4x6xi32>
    %19 = stablehlo.multiply %0#0, %0#0 : tensor<4x6xi32>
    %20 = stablehlo.popcnt %0#0 : tensor<4x6xi32>
    %21 = stablehlo.count_leading_zeros %0#0 : tensor<4x6xi32>
    return %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %12, %14, %16, %17, %18, %19, %20, %21, %c_1, %c_2, %c_3, %c_4, %c_5, %c_6, %c_7, %c_8, %c_9, %c_10, %c_11, %c_12, %c_13, %c_14, %c_15, %c_16, %c_17, %c_18 : tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xi32>
  }
  func.func private @floor_divide(%arg0: tensor<4x6xi32>, %arg1: tensor<i32>) -> tensor<4x6xi32> {
    %0 = stablehlo.convert %arg1 : tensor<i32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<i32>) -> tensor<4x6xi32>
    %2 = stablehlo.divide %arg0, %1 : tensor<4x6xi32>
    %3 = stablehlo.sign %arg0 : tensor<4x6xi32>
    %4 = stablehlo.sign %0 : tensor<i32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [] : (tensor<i32>) -> tensor<4x6xi32>
    %6 = stablehlo.compare NE, %3, %5, SIGNED : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi1>
    %7 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<i32>) -> tensor<4x6xi32>
    %8 = stablehlo.remainder %arg0, %7 : tensor<4x6xi32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %9 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<4x6xi32>
    %10 = stablehlo.compare NE, %8, %9, SIGNED : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi1>
    %11 = stablehlo.and %6, %10 : tensor<4x6xi1>
    %c_0 = stablehlo.constant dense<1> : tensor<i32>
    %12 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<4x6xi32>
    %13 = stablehlo.subtract %2, %12 : tensor<4x6xi32>
    %14 = call @_where(%11, %13, %2) : (tensor<4x6xi1>, tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    return %14 : tensor<4x6xi32>
  }
  func.func private @_where(%arg0: tensor<4x6xi1>, %arg1: tensor<4x6xi32>, %arg2: tensor<4x6xi32>) -> tensor<4x6xi32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<4x6xi1>, tensor<4x6xi32>
    return %0 : tensor<4x6xi32>
  }
  func.func private @remainder(%arg0: tensor<4x6xi32>, %arg1: tensor<i32>) -> tensor<4x6xi32> {
    %0 = stablehlo.convert %arg1 : tensor<i32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.compare EQ, %0, %c, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_0 = stablehlo.constant dense<1> : tensor<i32>
    %2 = call @_where_0(%1, %c_0, %0) : (tensor<i1>, tensor<i32>, tensor<i32>) -> tensor<i32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<i32>) -> tensor<4x6xi32>
    %4 = stablehlo.remainder %arg0, %3 : tensor<4x6xi32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %5 = stablehlo.broadcast_in_dim %c_1, dims = [] : (tensor<i32>) -> tensor<4x6xi32>
    %6 = stablehlo.compare NE, %4, %5, SIGNED : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi1>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %7 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<i32>) -> tensor<4x6xi32>
    %8 = stablehlo.compare LT, %4, %7, SIGNED : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi1>
    %c_3 = stablehlo.constant dense<0> : tensor<i32>
    %9 = stablehlo.compare LT, %2, %c_3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %10 = stablehlo.broadcast_in_dim %9, dims = [] : (tensor<i1>) -> tensor<4x6xi1>
    %11 = stablehlo.compare NE, %8, %10, UNSIGNED : (tensor<4x6xi1>, tensor<4x6xi1>) -> tensor<4x6xi1>
    %12 = stablehlo.and %11, %6 : tensor<4x6xi1>
    %13 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<i32>) -> tensor<4x6xi32>
    %14 = stablehlo.add %4, %13 : tensor<4x6xi32>
    %15 = stablehlo.select %12, %14, %4 : tensor<4x6xi1>, tensor<4x6xi32>
    return %15 : tensor<4x6xi32>
  }
  func.func private @_where_0(%arg0: tensor<i1>, %arg1: tensor<i32>, %arg2: tensor<i32>) -> tensor<i32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<i1>, tensor<i32>
    return %0 : tensor<i32>
  }
}
