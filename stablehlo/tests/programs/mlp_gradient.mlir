module @jit_program attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<f32> {jax.result_info = "result[0][0]"}, tensor<8xf32> {jax.result_info = "result[0][1]"}, tensor<6x8xf32> {jax.result_info = "result[0][2]"}, tensor<8x3xf32> {jax.result_info = "result[0][3]"}, tensor<f32> {jax.result_info = "result[1][0]"}, tensor<8xf32> {jax.result_info = "result[1][1]"}, tensor<6x8xf32> {jax.result_info = "result[1][2]"}, tensor<8x3xf32> {jax.result_info = "result[1][3]"}) {
    %cst = stablehlo.constant dense<[0.174606368, -0.61226964, -1.21519232, -1.1300559, 0.286955535, -0.028113706, 0.00543180853, -1.146209]> : tensor<8xf32>
    %cst_0 = stablehlo.constant dense<[[-0.356304139, -0.225599468, -1.57265055, -0.461040735, -0.424880028, -0.188880384, -2.543000e-01, 0.672007143], [-0.531943381, -0.438577712, 0.541938782, -0.235314846, 0.216454729, 0.669335723, 0.421969503, 0.250162452], [-0.196441561, 0.681894123, 0.175549939, -0.504852772, -0.150809184, -1.2181294, -0.961555957, -1.88290799], [-0.679931402, 1.33554542, -0.556488812, 0.787540793, -0.00344985421, -0.700548827, 1.33827949, 0.582205832], [-1.75180054, 1.04140222, -1.07479155, -0.177913949, 0.66811341, -0.299853146, 1.11894405, 0.761263787], [-1.57687557, -0.472434163, 0.282073736, -0.574998677, -0.216276512, 0.799784899, 0.316781312, -9.206190e-01]]> : tensor<6x8xf32>
    %cst_1 = stablehlo.constant dense<[[-0.183929548, -1.03716755, -0.926393806], [-0.165126756, -1.38339043, 0.669267237], [2.48688293, 0.458823264, -1.04290318], [-0.271185517, -1.55543792, -0.377616376], [0.507313907, 0.589384794, -1.03174281], [0.299145639, 1.15640807, 1.75509155], [-0.700794875, -0.864199995, 0.0544158705], [-2.928090e+00, -5.310340e-01, -0.270974964]]> : tensor<8x3xf32>
    %cst_2 = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]> : tensor<4x6xf32>
    %cst_3 = stablehlo.constant dense<[-0.377447575, 0.000000e+00, 3.99361038, -0.29959631, 1.36099076, 0.500340104, -0.766406238, -0.422229499]> : tensor<8xf32>
    %cst_4 = stablehlo.constant dense<[[-1.37093878, 0.000000e+00, -9.28526687, 0.696570635, -3.1643455, 2.68917489, 2.58341861, -0.550587296], [-0.725065767, 0.000000e+00, -0.873768687, 0.0655491725, -0.297773421, 1.08849335, 0.537088454, -0.399885535], [0.319376886, 0.000000e+00, -4.97568321, 0.373270333, -1.69567335, -0.121423066, 1.28212595, 0.297137767], [7.524560e-01, 0.000000e+00, -2.92439055, 0.219384611, -0.996609151, -1.19215286, 1.17588079, 0.534298301], [0.261927158, 0.000000e+00, -2.17355847, 1.630580e-01, -0.740731478, -0.349822134, 0.38170442, 0.263164848], [-0.0490786508, 0.000000e+00, -1.26317954, 0.094762355, -0.430481583, 0.180030465, 0.437999576, -0.0174490474]]> : tensor<6x8xf32>
    %cst_5 = stablehlo.constant dense<[[4.48579788, 0.613472581, -1.41818118], [0.000000e+00, 0.000000e+00, 0.000000e+00], [4.01017857, 0.320025742, -1.81223667], [0.432562828, 0.0345199667, -0.195479125], [1.49708402, 0.11947234, -0.676546037], [3.02487087, 0.720803678, -0.170874476], [-0.281746626, -0.308528215, 0.149022713], [0.00244852575, 0.00989580154, 0.0208757538]]> : tensor<8x3xf32>
    %0:4 = stablehlo.optimization_barrier %cst, %cst_0, %cst_1, %cst_2 : tensor<8xf32>, tensor<6x8xf32>, tensor<8x3xf32>, tensor<4x6xf32>
    %1 = stablehlo.dot_general %0#3, %0#1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>
    %2 = stablehlo.broadcast_in_dim %0#0, dims = [1] : (tensor<8xf32>) -> tensor<1x8xf32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [0, 1] : (tensor<1x8xf32>) -> tensor<4x8xf32>
    %4 = stablehlo.add %1, %3 : tensor<4x8xf32>
    %5 = call @relu(%4) : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %cst_6 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %6 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %7 = stablehlo.compare GT, %4, %6, FLOAT : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xi1>
    %8 = stablehlo.dot_general %5, %0#2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8xf32>, tensor<8x3xf32>) -> tensor<4x3xf32>
    %9 = stablehlo.multiply %8, %8 : tensor<4x3xf32>
    %cst_7 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %10 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
    %11 = stablehlo.multiply %10, %8 : tensor<4x3xf32>
    %cst_8 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %12 = stablehlo.reduce(%9 init: %cst_8) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x3xf32>, tensor<f32>) -> tensor<f32>
    %cst_9 = stablehlo.constant dense<1.200000e+01> : tensor<f32>
    %13 = stablehlo.divide %12, %cst_9 : tensor<f32>
    %cst_10 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_11 = stablehlo.constant dense<1.200000e+01> : tensor<f32>
    %14 = stablehlo.divide %cst_10, %cst_11 : tensor<f32>
    %15 = stablehlo.broadcast_in_dim %14, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
    %16 = stablehlo.multiply %15, %11 : tensor<4x3xf32>
    %17 = stablehlo.dot_general %16, %5, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x3xf32>, tensor<4x8xf32>) -> tensor<3x8xf32>
    %18 = stablehlo.transpose %17, dims = [1, 0] : (tensor<3x8xf32>) -> tensor<8x3xf32>
    %19 = stablehlo.dot_general %16, %0#2, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x3xf32>, tensor<8x3xf32>) -> tensor<4x8xf32>
    %cst_12 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %20 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %21 = stablehlo.select %7, %19, %20 : tensor<4x8xi1>, tensor<4x8xf32>
    %cst_13 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %22 = stablehlo.reduce(%21 init: %cst_13) applies stablehlo.add across dimensions = [0] : (tensor<4x8xf32>, tensor<f32>) -> tensor<8xf32>
    %23 = stablehlo.reshape %22 : (tensor<8xf32>) -> tensor<1x8xf32>
    %cst_14 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %24 = stablehlo.reduce(%23 init: %cst_14) applies stablehlo.add across dimensions = [0] : (tensor<1x8xf32>, tensor<f32>) -> tensor<8xf32>
    %25 = stablehlo.dot_general %21, %0#3, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
    %26 = stablehlo.transpose %25, dims = [1, 0] : (tensor<8x6xf32>) -> tensor<6x8xf32>
    %cst_15 = stablehlo.constant dense<7.59274292> : tensor<f32>
    return %13, %24, %26, %18, %cst_15, %cst_3, %cst_4, %cst_5 : tensor<f32>, tensor<8xf32>, tensor<6x8xf32>, tensor<8x3xf32>, tensor<f32>, tensor<8xf32>, tensor<6x8xf32>, tensor<8x3xf32>
  }
  func.func private @relu(%arg0: tensor<4x8xf32>) -> tensor<4x8xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %1 = stablehlo.maximum %arg0, %0 : tensor<4x8xf32>
    return %1 : tensor<4x8xf32>
  }
}
