module @jit_program attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<4x6xui8> {jax.result_info = "result[0][0]"}, tensor<4x6xi8> {jax.result_info = "result[0][1]"}, tensor<4x6xi16> {jax.result_info = "result[0][2]"}, tensor<4x6xui8> {jax.result_info = "result[1][0]"}, tensor<4x6xi8> {jax.result_info = "result[1][1]"}, tensor<4x6xi16> {jax.result_info = "result[1][2]"}) {
    %c = stablehlo.constant dense<[[27, 12, 12, 39, 25, -34], [46, -36, 44, -38, 48, -43], [38, 3, 6, -34, -37, 30], [-26, -48, -5, -13, -5, -3]]> : tensor<4x6xi32>
    %c_0 = stablehlo.constant dense<[[227, 212, 212, 239, 225, 166], [246, 164, 244, 162, 248, 157], [238, 203, 206, 166, 163, 230], [174, 152, 195, 187, 195, 197]]> : tensor<4x6xui8>
    %c_1 = stablehlo.constant dense<[[81, 36, 36, 117, 75, -102], [-118, -108, -124, -114, -112, 127], [114, 9, 18, -102, -111, 90], [-78, 112, -15, -39, -15, -9]]> : tensor<4x6xi8>
    %c_2 = stablehlo.constant dense<[[27, 12, 12, 39, 25, -34], [46, -36, 44, -38, 48, -43], [38, 3, 6, -34, -37, 30], [-26, -48, -5, -13, -5, -3]]> : tensor<4x6xi16>
    %0 = stablehlo.optimization_barrier %c : tensor<4x6xi32>
    %1 = stablehlo.convert %0 : (tensor<4x6xi32>) -> tensor<4x6xui8>
    %c_3 = stablehlo.constant dense<200> : tensor<ui8>
    %2 = stablehlo.broadcast_in_dim %c_3, dims = [] : (tensor<ui8>) -> tensor<4x6xui8>
    %3 = stablehlo.add %1, %2 : tensor<4x6xui8>
    %4 = stablehlo.convert %0 : (tensor<4x6xi32>) -> tensor<4x6xi8>
    %c_4 = stablehlo.constant dense<3> : tensor<i8>
    %5 = stablehlo.broadcast_in_dim %c_4, dims = [] : (tensor<i8>) -> tensor<4x6xi8>
    %6 = stablehlo.multiply %4, %5 : tensor<4x6xi8>
    %7 = stablehlo.convert %0 : (tensor<4x6xi32>) -> tensor<4x6xi16>
    return %3, %6, %7, %c_0, %c_1, %c_2 : tensor<4x6xui8>, tensor<4x6xi8>, tensor<4x6xi16>, tensor<4x6xui8>, tensor<4x6xi8>, tensor<4x6xi16>
  }
}
