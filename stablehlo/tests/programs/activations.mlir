module @jit_program attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<4x6xf32> {jax.result_info = "result[0][0]"}, tensor<4x6xf32> {jax.result_info = "result[0][1]"}, tensor<4x6xf32> {jax.result_info = "result[0][2]"}, tensor<4x6xf32> {jax.result_info = "result[0][3]"}, tensor<4x6xf32> {jax.result_info = "result[0][4]"}, tensor<4x6xf32> {jax.result_info = "result[0][5]"}, tensor<4x6xf32> {jax.result_info = "result[0][6]"}, tensor<4x6xf32> {jax.result_info = "result[0][7]"}, tensor<f32> {jax.result_info = "result[0][8]"}, tensor<4x4xf32> {jax.result_info = "result[0][9]"}, tensor<4x6xf32> {jax.result_info = "result[1][0]"}, tensor<4x6xf32> {jax.result_info = "result[1][1]"}, tensor<4x6xf32> {jax.result_info = "result[1][2]"}, tensor<4x6xf32> {jax.result_info = "result[1][3]"}, tensor<4x6xf32> {jax.result_info = "result[1][4]"}, tensor<4x6xf32> {jax.result_info = "result[1][5]"}, tensor<4x6xf32> {jax.result_info = "result[1][6]"}, tensor<4x6xf32> {jax.result_info = "result[1][7]"}, tensor<f32> {jax.result_info = "result[1][8]"}, tensor<4x4xf32> {jax.result_info = "result[1][9]"}) {
    %cst = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]> : tensor<4x6xf32>
    %cst_0 = stablehlo.constant dense<[[0.000000e+00, 0.000000e+00, 1.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00], [1.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00], [0.000000e+00, 1.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00], [0.000000e+00, 0.000000e+00, 0.000000e+00, 1.000000e+00, 0.000000e+00, 0.000000e+00]]> : tensor<4x6xf32>
    %cst_1 = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.000000e+00, 0.947080969, -0.703735232, -1.000000e+00, -0.623274446, 0.0413259789], [-1.000000e+00, -0.218791664, -1.000000e+00, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.000000e+00, -0.12853466, 1.000000e+00, -0.66519469, 0.351510078]]> : tensor<4x6xf32>
    %cst_2 = stablehlo.constant dense<[[0.0691549629, -0.0591105111, 0.47326386, 0.0568319522, -0.158630326, 0.231839731], [1.17843306, 0.784239649, -0.169514894, -0.130387425, -0.166172653, 0.0213441215], [-0.0229774173, -0.090450555, -0.132785946, -0.169951916, -0.159562901, -0.118896306], [0.271542192, 0.887442111, -0.057694532, 1.24885488, -0.168316394, 0.224046916]]> : tensor<4x6xf32>
    %cst_3 = stablehlo.constant dense<[[0.0668119341, -0.0616958402, 0.419380128, 0.0551985465, -0.197766766, 0.213133693], [1.02560568, 0.6823982, -0.232925519, -0.278445929, -0.217545897, 0.0210898872], [-0.207092881, -0.0974758937, -0.278347462, -0.237765297, -0.199850485, -0.133345082], [0.247587025, 0.770766258, -0.060142722, 1.08880913, -0.225882605, 0.206330702]]> : tensor<4x6xf32>
    %cst_4 = stablehlo.constant dense<[[0.125730217, -0.123750873, 0.640422642, 0.104900114, -0.414722621, 0.361595064], [1.304000e+00, 0.947080969, -0.50526607, -0.717879653, -0.463814139, 0.0413259789], [-0.902219534, -0.196510896, -0.712321281, -0.519182444, -0.419728398, -0.271159291], [0.411630541, 1.04251337, -0.120616905, 1.36646342, -0.485826612, 0.351510078]]> : tensor<4x6xf32>
    %cst_5 = stablehlo.constant dense<[[7.579870e-01, 0.629274607, 1.06377327, 0.746972143, 0.460759342, 0.890200377], [1.54415321, 1.27485228, 0.401948214, 0.248515218, 0.429302633, 0.714023649], [0.0932903587, 0.58972317, 0.252841145, 0.392594337, 0.457596719, 5.474510e-01], [0.919994593, 1.34451795, 0.630943596, 1.5936048, 0.414869666, 0.884268283]]> : tensor<4x6xf32>
    %cst_6 = stablehlo.constant dense<[[0.125730217, -0.00132104859, 0.640422642, 0.104900114, -0.00535669364, 0.361595064], [1.304000e+00, 0.947080969, -0.0070373523, -0.0126542151, -0.00623274455, 0.0413259789], [-0.0232503079, -0.00218791654, -0.0124591095, -0.00732267369, -5.442590e-03, -0.0031630015], [0.411630541, 1.04251337, -0.00128534657, 1.36646342, -0.00665194681, 0.351510078]]> : tensor<4x6xf32>
    %cst_7 = stablehlo.constant dense<[[0.125730217, 0.000000e+00, 0.640422642, 0.104900114, 0.000000e+00, 0.361595064], [1.304000e+00, 0.947080969, 0.000000e+00, 0.000000e+00, 0.000000e+00, 0.0413259789], [0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00], [0.411630541, 1.04251337, 0.000000e+00, 1.36646342, 0.000000e+00, 0.351510078]]> : tensor<4x6xf32>
    %cst_8 = stablehlo.constant dense<[[0.163783461, -0.0335068665, -0.0908465832, 0.0469145775], [-0.0335068665, 1.01381803, -0.275726736, 0.0866934657], [-0.0908465832, -0.275726736, 0.621950566, 0.0717741624], [0.0469145775, 0.0866934657, 0.0717741624, 0.552654445]]> : tensor<4x4xf32>
    %0 = stablehlo.optimization_barrier %cst : tensor<4x6xf32>
    %1 = call @argmax(%0) : (tensor<4x6xf32>) -> tensor<4xi32>
    %2 = call @_one_hot(%1) : (tensor<4xi32>) -> tensor<4x6xf32>
    %c = stablehlo.constant dense<-1> : tensor<i32>
    %c_9 = stablehlo.constant dense<1> : tensor<i32>
    %3 = call @clip(%0, %c, %c_9) : (tensor<4x6xf32>, tensor<i32>, tensor<i32>) -> tensor<4x6xf32>
    %4 = stablehlo.multiply %0, %0 : tensor<4x6xf32>
    %5 = stablehlo.multiply %4, %0 : tensor<4x6xf32>
    %cst_10 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %6 = stablehlo.broadcast_in_dim %cst_10, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %7 = stablehlo.multiply %6, %5 : tensor<4x6xf32>
    %8 = stablehlo.add %0, %7 : tensor<4x6xf32>
    %cst_11 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %9 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %10 = stablehlo.multiply %9, %8 : tensor<4x6xf32>
    %11 = stablehlo.tanh %10 : tensor<4x6xf32>
    %cst_12 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %12 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %13 = stablehlo.add %12, %11 : tensor<4x6xf32>
    %cst_13 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %14 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %15 = stablehlo.multiply %14, %13 : tensor<4x6xf32>
    %16 = stablehlo.multiply %0, %15 : tensor<4x6xf32>
    %17 = call @silu(%0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %18 = call @elu(%0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %19 = call @softplus(%0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %20 = call @leaky_relu(%0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %21 = call @relu6(%0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %22 = call @norm(%0) : (tensor<4x6xf32>) -> tensor<f32>
    %23 = call @cov(%0) : (tensor<4x6xf32>) -> tensor<4x4xf32>
    %cst_14 = stablehlo.constant dense<4.19531441> : tensor<f32>
    return %2, %3, %16, %17, %18, %19, %20, %21, %22, %23, %cst_0, %cst_1, %cst_2, %cst_3, %cst_4, %cst_5, %cst_6, %cst_7, %cst_14, %cst_8 : tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<f32>, tensor<4x4xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<f32>, tensor<4x4xf32>
  }
  func.func private @argmax(%arg0: tensor<4x6xf32>) -> tensor<4xi32> {
    %0 = stablehlo.iota dim = 1 : tensor<4x6xi32>
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1:2 = stablehlo.reduce(%arg0 init: %cst), (%0 init: %c) across dimensions = [1] : (tensor<4x6xf32>, tensor<4x6xi32>, tensor<f32>, tensor<i32>) -> (tensor<4xf32>, tensor<4xi32>)
     reducer(%arg1: tensor<f32>, %arg3: tensor<f32>) (%arg2: tensor<i32>, %arg4: tensor<i32>)  {
      %2 = stablehlo.compare GT, %arg1, %arg3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %3 = stablehlo.compare NE, %arg1, %arg1, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %4 = stablehlo.or %2, %3 : tensor<i1>
      %5 = stablehlo.compare EQ, %arg1, %arg3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %6 = stablehlo.compare LT, %arg2, %arg4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %7 = stablehlo.and %5, %6 : tensor<i1>
      %8 = stablehlo.or %4, %7 : tensor<i1>
      %9 = stablehlo.select %4, %arg1, %arg3 : tensor<i1>, tensor<f32>
      %10 = stablehlo.select %8, %arg2, %arg4 : tensor<i1>, tensor<i32>
      stablehlo.return %9, %10 : tensor<f32>, tensor<i32>
    }
    return %1#1 : tensor<4xi32>
  }
  func.func private @_one_hot(%arg0: tensor<4xi32>) -> tensor<4x6xf32> {
    %0 = stablehlo.broadcast_in_dim %arg0, dims = [0] : (tensor<4xi32>) -> tensor<4x1xi32>
    %1 = stablehlo.iota dim = 1 : tensor<1x6xi32>
    %2 = stablehlo.broadcast_in_dim %0, dims = [0, 1] : (tensor<4x1xi32>) -> tensor<4x6xi32>
    %3 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<1x6xi32>) -> tensor<4x6xi32>
    %4 = stablehlo.compare EQ, %2, %3, SIGNED : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi1>
    %5 = stablehlo.convert %4 : (tensor<4x6xi1>) -> tensor<4x6xf32>
    return %5 : tensor<4x6xf32>
  }
  func.func private @clip(%arg0: tensor<4x6xf32>, %arg1: tensor<i32>, %arg2: tensor<i32>) -> tensor<4x6xf32> {
    %0 = stablehlo.convert %arg1 : (tensor<i32>) -> tensor<f32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %2 = stablehlo.maximum %1, %arg0 : tensor<4x6xf32>
    %3 = stablehlo.convert %arg2 : (tensor<i32>) -> tensor<f32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %5 = stablehlo.minimum %4, %2 : tensor<4x6xf32>
    return %5 : tensor<4x6xf32>
  }
  func.func private @silu(%arg0: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %0 = stablehlo.negate %arg0 : tensor<4x6xf32>
    %1 = stablehlo.exponential %0 : tensor<4x6xf32>
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %3 = stablehlo.add %2, %1 : tensor<4x6xf32>
    %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %4 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %5 = stablehlo.divide %4, %3 : tensor<4x6xf32>
    %6 = stablehlo.multiply %arg0, %5 : tensor<4x6xf32>
    return %6 : tensor<4x6xf32>
  }
  func.func private @elu(%arg0: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %1 = stablehlo.compare GT, %arg0, %0, FLOAT : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xi1>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %3 = stablehlo.compare GT, %arg0, %2, FLOAT : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xi1>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %4 = call @_where(%3, %cst_1, %arg0) : (tensor<4x6xi1>, tensor<f32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %5 = stablehlo.exponential_minus_one %4 : tensor<4x6xf32>
    %cst_2 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %6 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %7 = stablehlo.multiply %6, %5 : tensor<4x6xf32>
    %8 = call @_where_0(%1, %arg0, %7) : (tensor<4x6xi1>, tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    return %8 : tensor<4x6xf32>
  }
  func.func private @_where(%arg0: tensor<4x6xi1>, %arg1: tensor<f32>, %arg2: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %0 = stablehlo.convert %arg1 : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %2 = stablehlo.select %arg0, %1, %arg2 : tensor<4x6xi1>, tensor<4x6xf32>
    return %2 : tensor<4x6xf32>
  }
  func.func private @_where_0(%arg0: tensor<4x6xi1>, %arg1: tensor<4x6xf32>, %arg2: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<4x6xi1>, tensor<4x6xf32>
    return %0 : tensor<4x6xf32>
  }
  func.func private @softplus(%arg0: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %1 = stablehlo.maximum %arg0, %0 : tensor<4x6xf32>
    %2 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %3 = stablehlo.subtract %arg0, %2 : tensor<4x6xf32>
    %4 = stablehlo.compare NE, %3, %3, FLOAT : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xi1>
    %5 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %6 = stablehlo.add %arg0, %5 : tensor<4x6xf32>
    %7 = stablehlo.abs %3 : tensor<4x6xf32>
    %8 = stablehlo.negate %7 : tensor<4x6xf32>
    %9 = stablehlo.exponential %8 : tensor<4x6xf32>
    %10 = stablehlo.log_plus_one %9 : tensor<4x6xf32>
    %11 = stablehlo.add %1, %10 : tensor<4x6xf32>
    %12 = stablehlo.select %4, %6, %11 : tensor<4x6xi1>, tensor<4x6xf32>
    return %12 : tensor<4x6xf32>
  }
  func.func private @leaky_relu(%arg0: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %1 = stablehlo.compare GE, %arg0, %0, FLOAT : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xi1>
    %cst_0 = stablehlo.constant dense<0.00999999977> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %3 = stablehlo.multiply %2, %arg0 : tensor<4x6xf32>
    %4 = call @_where_0(%1, %arg0, %3) : (tensor<4x6xi1>, tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    return %4 : tensor<4x6xf32>
  }
  func.func private @relu6(%arg0: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %1 = stablehlo.maximum %arg0, %0 : tensor<4x6xf32>
    %cst_0 = stablehlo.constant dense<6.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %3 = stablehlo.minimum %1, %2 : tensor<4x6xf32>
    return %3 : tensor<4x6xf32>
  }
  func.func private @norm(%arg0: tensor<4x6xf32>) -> tensor<f32> {
    %0 = stablehlo.multiply %arg0, %arg0 : tensor<4x6xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<f32>
    %2 = stablehlo.sqrt %1 : tensor<f32>
    return %2 : tensor<f32>
  }
  func.func private @cov(%arg0: tensor<4x6xf32>) -> tensor<4x4xf32> {
    %0 = call @atleast_2d(%arg0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
    %cst_0 = stablehlo.constant dense<6.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %3 = stablehlo.divide %1, %2 : tensor<4xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0] : (tensor<4xf32>) -> tensor<4x1xf32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x6xf32>
    %6 = stablehlo.subtract %0, %5 : tensor<4x6xf32>
    %7 = stablehlo.transpose %6, dims = [1, 0] : (tensor<4x6xf32>) -> tensor<6x4xf32>
    %8 = stablehlo.dot_general %6, %7, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x6xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
    %cst_1 = stablehlo.constant dense<5.000000e+00> : tensor<f32>
    %9 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %10 = stablehlo.divide %8, %9 : tensor<4x4xf32>
    return %10 : tensor<4x4xf32>
  }
  func.func private @atleast_2d(%arg0: tensor<4x6xf32>) -> tensor<4x6xf32> {
    return %arg0 : tensor<4x6xf32>
  }
}
