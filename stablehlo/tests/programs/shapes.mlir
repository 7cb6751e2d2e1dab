module @jit_program attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<6x4xf32> {jax.result_info = "result[0][0]"}, tensor<3x8xf32> {jax.result_info = "result[0][1]"}, tensor<1x4x6xf32> {jax.result_info = "result[0][2]"}, tensor<2x4x6xf32> {jax.result_info = "result[0][3]"}, tensor<4x12xf32> {jax.result_info = "result[0][4]"}, tensor<4x2x6xf32> {jax.result_info = "result[0][5]"}, tensor<7x7xf32> {jax.result_info = "result[0][6]"}, tensor<4x6xf32> {jax.result_info = "result[0][7]"}, tensor<2x3xf32> {jax.result_info = "result[0][8]"}, tensor<8x6xf32> {jax.result_info = "result[0][9]"}, tensor<8x6xf32> {jax.result_info = "result[0][10]"}, tensor<4x6xf32> {jax.result_info = "result[0][11]"}, tensor<10x4xf32> {jax.result_info = "result[0][12]"}, tensor<5xi32> {jax.result_info = "result[0][13]"}, tensor<3x3xf32> {jax.result_info = "result[0][14]"}, tensor<4x6xf32> {jax.result_info = "result[0][15]"}, tensor<4x3xf32> {jax.result_info = "result[0][16]"}, tensor<4x3xf32> {jax.result_info = "result[0][17]"}, tensor<6x4xf32> {jax.result_info = "result[1][0]"}, tensor<3x8xf32> {jax.result_info = "result[1][1]"}, tensor<1x4x6xf32> {jax.result_info = "result[1][2]"}, tensor<2x4x6xf32> {jax.result_info = "result[1][3]"}, tensor<4x12xf32> {jax.result_info = "result[1][4]"}, tensor<4x2x6xf32> {jax.result_info = "result[1][5]"}, tensor<7x7xf32> {jax.result_info = "result[1][6]"}, tensor<4x6xf32> {jax.result_info = "result[1][7]"}, tensor<2x3xf32> {jax.result_info = "result[1][8]"}, tensor<8x6xf32> {jax.result_info = "result[1][9]"}, tensor<8x6xf32> {jax.result_info = "result[1][10]"}, tensor<4x6xf32> {jax.result_info = "result[1][11]"}, tensor<10x4xf32> {jax.result_info = "result[1][12]"}, tensor<5xi32> {jax.result_info = "result[1][13]"}, tensor<3x3xf32> {jax.result_info = "result[1][14]"}, tensor<4x6xf32> {jax.result_info = "result[1][15]"}, tensor<4x3xf32> {jax.result_info = "result[1][16]"}, tensor<4x3xf32> {jax.result_info = "result[1][17]"}) {
    %cst = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]> : tensor<4x6xf32>
    %cst_0 = stablehlo.constant dense<[[0.125730217, 1.304000e+00, -2.3250308, 0.411630541], [-0.132104859, 0.947080969, -0.218791664, 1.04251337], [0.640422642, -0.703735232, -1.245911, -0.12853466], [0.104900114, -1.26542151, -0.73226738, 1.36646342], [-0.535669386, -0.623274446, -5.442590e-01, -0.66519469], [0.361595064, 0.0413259789, -0.316300154, 0.351510078]]> : tensor<6x4xf32>
    %cst_1 = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064, 1.304000e+00, 0.947080969], [-0.703735232, -1.26542151, -0.623274446, 0.0413259789, -2.3250308, -0.218791664, -1.245911, -0.73226738], [-5.442590e-01, -0.316300154, 0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]> : tensor<3x8xf32>
    %cst_2 = stablehlo.constant dense<[[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]]> : tensor<1x4x6xf32>
    %cst_3 = stablehlo.constant dense<[[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]], [[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]]> : tensor<2x4x6xf32>
    %cst_4 = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064, 0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789, 1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154, -2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078, 0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]> : tensor<4x12xf32>
    %cst_5 = stablehlo.constant dense<[[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064]], [[1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789]], [[-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154]], [[0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]]> : tensor<4x2x6xf32>
    %cst_6 = stablehlo.constant dense<[[0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00], [0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064, 0.000000e+00], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789, 0.000000e+00], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154, 0.000000e+00], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078, 0.000000e+00], [0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00], [0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00]]> : tensor<7x7xf32>
    %cst_7 = stablehlo.constant dense<[[0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064]]> : tensor<4x6xf32>
    %cst_8 = stablehlo.constant dense<[[1.304000e+00, -0.703735232, -0.623274446], [-2.3250308, -1.245911, -5.442590e-01]]> : tensor<2x3xf32>
    %cst_9 = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078], [0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]> : tensor<8x6xf32>
    %cst_10 = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]> : tensor<8x6xf32>
    %cst_11 = stablehlo.constant dense<[[0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078], [0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154]]> : tensor<4x6xf32>
    %cst_12 = stablehlo.constant dense<[[5.000000e-01, 5.000000e-01, 5.000000e-01, 5.000000e-01], [0.640422642, 0.104900114, -0.535669386, 0.361595064], [5.000000e-01, 5.000000e-01, 5.000000e-01, 5.000000e-01], [5.000000e-01, 5.000000e-01, 5.000000e-01, 5.000000e-01], [-0.703735232, -1.26542151, -0.623274446, 0.0413259789], [5.000000e-01, 5.000000e-01, 5.000000e-01, 5.000000e-01], [5.000000e-01, 5.000000e-01, 5.000000e-01, 5.000000e-01], [-1.245911, -0.73226738, -5.442590e-01, -0.316300154], [5.000000e-01, 5.000000e-01, 5.000000e-01, 5.000000e-01], [5.000000e-01, 5.000000e-01, 5.000000e-01, 5.000000e-01]]> : tensor<10x4xf32>
    %c = stablehlo.constant dense<[0, 1, 2, 3, 4]> : tensor<5xi32>
    %cst_13 = stablehlo.constant dense<[[1.000000e+00, 0.000000e+00, 0.000000e+00], [0.000000e+00, 1.000000e+00, 0.000000e+00], [0.000000e+00, 0.000000e+00, 1.000000e+00]]> : tensor<3x3xf32>
    %cst_14 = stablehlo.constant dense<[[0.125730217, 0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00], [1.304000e+00, 0.947080969, 0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00], [-2.3250308, -0.218791664, -1.245911, 0.000000e+00, 0.000000e+00, 0.000000e+00], [0.411630541, 1.04251337, -0.12853466, 1.36646342, 0.000000e+00, 0.000000e+00]]> : tensor<4x6xf32>
    %cst_15 = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642], [1.304000e+00, 0.947080969, -0.703735232], [-2.3250308, -0.218791664, -1.245911], [0.411630541, 1.04251337, -0.12853466]]> : tensor<4x3xf32>
    %cst_16 = stablehlo.constant dense<[[0.104900114, -0.535669386, 0.361595064], [-1.26542151, -0.623274446, 0.0413259789], [-0.73226738, -5.442590e-01, -0.316300154], [1.36646342, -0.66519469, 0.351510078]]> : tensor<4x3xf32>
    %0 = stablehlo.optimization_barrier %cst : tensor<4x6xf32>
    %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<4x6xf32>) -> tensor<6x4xf32>
    %2 = stablehlo.reshape %0 : (tensor<4x6xf32>) -> tensor<3x8xf32>
    %3 = stablehlo.broadcast_in_dim %0, dims = [1, 2] : (tensor<4x6xf32>) -> tensor<1x4x6xf32>
    %4 = stablehlo.broadcast_in_dim %0, dims = [1, 2] : (tensor<4x6xf32>) -> tensor<2x4x6xf32>
    %5 = stablehlo.concatenate %0, %0, dim = 1 : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x12xf32>
    %6 = stablehlo.broadcast_in_dim %0, dims = [0, 2] : (tensor<4x6xf32>) -> tensor<4x1x6xf32>
    %7 = stablehlo.broadcast_in_dim %0, dims = [0, 2] : (tensor<4x6xf32>) -> tensor<4x1x6xf32>
    %8 = stablehlo.concatenate %6, %7, dim = 1 : (tensor<4x1x6xf32>, tensor<4x1x6xf32>) -> tensor<4x2x6xf32>
    %c_17 = stablehlo.constant dense<0> : tensor<i32>
    %9 = call @_pad(%0, %c_17) : (tensor<4x6xf32>, tensor<i32>) -> tensor<7x7xf32>
    %10 = stablehlo.reverse %0, dims = [0] : tensor<4x6xf32>
    %11 = stablehlo.slice %0 [1:3, 0:6:2] : (tensor<4x6xf32>) -> tensor<2x3xf32>
    %12 = stablehlo.reshape %0 : (tensor<4x6xf32>) -> tensor<1x4x1x6xf32>
    %13 = stablehlo.broadcast_in_dim %12, dims = [0, 1, 2, 3] : (tensor<1x4x1x6xf32>) -> tensor<2x4x1x6xf32>
    %14 = stablehlo.reshape %13 : (tensor<2x4x1x6xf32>) -> tensor<8x6xf32>
    %15 = stablehlo.broadcast_in_dim %0, dims = [0, 2] : (tensor<4x6xf32>) -> tensor<4x2x6xf32>
    %16 = stablehlo.reshape %15 : (tensor<4x2x6xf32>) -> tensor<8x6xf32>
    %17 = call @_roll_static(%0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %cst_18 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %18 = stablehlo.pad %0, %cst_18, low = [1, -2], high = [-1, 0], interior = [2, 0] : (tensor<4x6xf32>, tensor<f32>) -> tensor<10x4xf32>
    %19 = stablehlo.iota dim = 0 : tensor<5xi32>
    %20 = stablehlo.iota dim = 0 : tensor<3x3xi32>
    %21 = stablehlo.iota dim = 1 : tensor<3x3xi32>
    %c_19 = stablehlo.constant dense<0> : tensor<i32>
    %22 = stablehlo.broadcast_in_dim %c_19, dims = [] : (tensor<i32>) -> tensor<3x3xi32>
    %23 = stablehlo.add %20, %22 : tensor<3x3xi32>
    %24 = stablehlo.compare EQ, %23, %21, SIGNED : (tensor<3x3xi32>, tensor<3x3xi32>) -> tensor<3x3xi1>
    %25 = stablehlo.convert %24 : (tensor<3x3xi1>) -> tensor<3x3xf32>
    %26 = call @tril(%0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %27 = stablehlo.slice %0 [0:4, 0:3] : (tensor<4x6xf32>) -> tensor<4x3xf32>
    %28 = stablehlo.slice %0 [0:4, 3:6] : (tensor<4x6xf32>) -> tensor<4x3xf32>
    return %1, %2, %3, %4, %5, %8, %9, %10, %11, %14, %16, %17, %18, %19, %25, %26, %27, %28, %cst_0, %cst_1, %cst_2, %cst_3, %cst_4, %cst_5, %cst_6, %cst_7, %cst_8, %cst_9, %cst_10, %cst_11, %cst_12, %c, %cst_13, %cst_14, %cst_15, %cst_16 : tensor<6x4xf32>, tensor<3x8xf32>, tensor<1x4x6xf32>, tensor<2x4x6xf32>, tensor<4x12xf32>, tensor<4x2x6xf32>, tensor<7x7xf32>, tensor<4x6xf32>, tensor<2x3xf32>, tensor<8x6xf32>, tensor<8x6xf32>, tensor<4x6xf32>, tensor<10x4xf32>, tensor<5xi32>, tensor<3x3xf32>, tensor<4x6xf32>, tensor<4x3xf32>, tensor<4x3xf32>, tensor<6x4xf32>, tensor<3x8xf32>, tensor<1x4x6xf32>, tensor<2x4x6xf32>, tensor<4x12xf32>, tensor<4x2x6xf32>, tensor<7x7xf32>, tensor<4x6xf32>, tensor<2x3xf32>, tensor<8x6xf32>, tensor<8x6xf32>, tensor<4x6xf32>, tensor<10x4xf32>, tensor<5xi32>, tensor<3x3xf32>, tensor<4x6xf32>, tensor<4x3xf32>, tensor<4x3xf32>
  }
  func.func private @_pad(%arg0: tensor<4x6xf32>, %arg1: tensor<i32>) -> tensor<7x7xf32> {
    %0 = stablehlo.convert %arg1 : (tensor<i32>) -> tensor<f32>
    %1 = stablehlo.pad %arg0, %0, low = [1, 0], high = [2, 1], interior = [0, 0] : (tensor<4x6xf32>, tensor<f32>) -> tensor<7x7xf32>
    return %1 : tensor<7x7xf32>
  }
  func.func private @_roll_static(%arg0: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %0 = stablehlo.slice %arg0 [3:4, 0:6] : (tensor<4x6xf32>) -> tensor<1x6xf32>
    %1 = stablehlo.slice %arg0 [0:3, 0:6] : (tensor<4x6xf32>) -> tensor<3x6xf32>
    %2 = stablehlo.concatenate %0, %1, dim = 0 : (tensor<1x6xf32>, tensor<3x6xf32>) -> tensor<4x6xf32>
    return %2 : tensor<4x6xf32>
  }
  func.func private @tril(%arg0: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %0 = stablehlo.iota dim = 0 : tensor<4x6xi32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<4x6xi32>
    %2 = stablehlo.add %0, %1 : tensor<4x6xi32>
    %3 = stablehlo.iota dim = 1 : tensor<4x6xi32>
    %4 = stablehlo.compare GE, %2, %3, SIGNED : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi1>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %6 = stablehlo.select %4, %arg0, %5 : tensor<4x6xi1>, tensor<4x6xf32>
    return %6 : tensor<4x6xf32>
  }
}
