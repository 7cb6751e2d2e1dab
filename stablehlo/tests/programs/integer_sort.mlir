module @jit_program attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<4x6xi32> {jax.result_info = "result[0][0]"}, tensor<4x6xi32> {jax.result_info = "result[0][1]"}, tensor<6xi32> {jax.result_info = "result[0][2]"}, tensor<2xi32> {jax.result_info = "result[0][3]"}, tensor<4x6xi32> {jax.result_info = "result[1][0]"}, tensor<4x6xi32> {jax.result_info = "result[1][1]"}, tensor<6xi32> {jax.result_info = "result[1][2]"}, tensor<2xi32> {jax.result_info = "result[1][3]"}) {
    %c = stablehlo.constant dense<[[27, 12, 12, 39, 25, -34], [46, -36, 44, -38, 48, -43], [38, 3, 6, -34, -37, 30], [-26, -48, -5, -13, -5, -3]]> : tensor<4x6xi32>
    %c_0 = stablehlo.constant dense<[0, 5]> : tensor<2xi32>
    %c_1 = stablehlo.constant dense<[[-34, 12, 12, 25, 27, 39], [-43, -38, -36, 44, 46, 48], [-37, -34, 3, 6, 30, 38], [-48, -26, -13, -5, -5, -3]]> : tensor<4x6xi32>
    %c_2 = stablehlo.constant dense<[[3, 3, 3, 1, 2, 1], [0, 1, 2, 2, 3, 0], [2, 2, 0, 3, 0, 3], [1, 0, 1, 0, 1, 2]]> : tensor<4x6xi32>
    %c_3 = stablehlo.constant dense<[5, 1, 3, 2, 4, 0]> : tensor<6xi32>
    %c_4 = stablehlo.constant dense<1> : tensor<2xi32>
    %0 = stablehlo.optimization_barrier %c : tensor<4x6xi32>
    %1 = call @sort(%0) : (tensor<4x6xi32>) -> tensor<4x6xi32>
    %2 = call @argsort(%0) : (tensor<4x6xi32>) -> tensor<4x6xi32>
    %3 = stablehlo.slice %0 [0:1, 0:6] : (tensor<4x6xi32>) -> tensor<1x6xi32>
    %4 = stablehlo.reshape %3 : (tensor<1x6xi32>) -> tensor<6xi32>
    %5 = stablehlo.slice %0 [1:2, 0:6] : (tensor<4x6xi32>) -> tensor<1x6xi32>
    %6 = stablehlo.reshape %5 : (tensor<1x6xi32>) -> tensor<6xi32>
    %c_5 = stablehlo.constant dense<20> : tensor<i32>
    %7 = call @floor_divide(%6, %c_5) : (tensor<6xi32>, tensor<i32>) -> tensor<6xi32>
    %8 = call @lexsort(%4, %7) : (tensor<6xi32>, tensor<6xi32>) -> tensor<6xi32>
    %9 = stablehlo.slice %0 [0:1, 0:6] : (tensor<4x6xi32>) -> tensor<1x6xi32>
    %10 = stablehlo.reshape %9 : (tensor<1x6xi32>) -> tensor<6xi32>
    %11 = call @sort_0(%10) : (tensor<6xi32>) -> tensor<6xi32>
    %12 = call @searchsorted(%11, %c_0) : (tensor<6xi32>, tensor<2xi32>) -> tensor<2xi32>
    return %1, %2, %8, %12, %c_1, %c_2, %c_3, %c_4 : tensor<4x6xi32>, tensor<4x6xi32>, tensor<6xi32>, tensor<2xi32>, tensor<4x6xi32>, tensor<4x6xi32>, tensor<6xi32>, tensor<2xi32>
  }
  func.func private @sort(%arg0: tensor<4x6xi32>) -> tensor<4x6xi32> {
    %0 = "stablehlo.sort"(%arg0) <{dimension = 1 : i64, is_stable = true}> ({
    ^bb0(%arg1: tensor<i32>, %arg2: tensor<i32>):
      %1 = stablehlo.compare LT, %arg1, %arg2, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    }) : (tensor<4x6xi32>) -> tensor<4x6xi32>
    return %0 : tensor<4x6xi32>
  }
  func.func private @argsort(%arg0: tensor<4x6xi32>) -> tensor<4x6xi32> {
    %0 = stablehlo.iota dim = 0 : tensor<4x6xi32>
    %1:2 = "stablehlo.sort"(%arg0, %0) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%arg1: tensor<i32>, %arg2: tensor<i32>, %arg3: tensor<i32>, %arg4: tensor<i32>):
      %2 = stablehlo.compare LT, %arg1, %arg2, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    }) : (tensor<4x6xi32>, tensor<4x6xi32>) -> (tensor<4x6xi32>, tensor<4x6xi32>)
    return %1#1 : tensor<4x6xi32>
  }
  func.func private @floor_divide(%arg0: tensor<6xi32>, %arg1: tensor<i32>) -> tensor<6xi32> {
    %0 = stablehlo.convert %arg1 : tensor<i32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<i32>) -> tensor<6xi32>
    %2 = stablehlo.divide %arg0, %1 : tensor<6xi32>
    %3 = stablehlo.sign %arg0 : tensor<6xi32>
    %4 = stablehlo.sign %0 : tensor<i32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [] : (tensor<i32>) -> tensor<6xi32>
    %6 = stablehlo.compare NE, %3, %5, SIGNED : (tensor<6xi32>, tensor<6xi32>) -> tensor<6xi1>
    %7 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<i32>) -> tensor<6xi32>
    %8 = stablehlo.remainder %arg0, %7 : tensor<6xi32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %9 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<6xi32>
    %10 = stablehlo.compare NE, %8, %9, SIGNED : (tensor<6xi32>, tensor<6xi32>) -> tensor<6xi1>
    %11 = stablehlo.and %6, %10 : tensor<6xi1>
    %c_0 = stablehlo.constant dense<1> : tensor<i32>
    %12 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<6xi32>
    %13 = stablehlo.subtract %2, %12 : tensor<6xi32>
    %14 = call @_where(%11, %13, %2) : (tensor<6xi1>, tensor<6xi32>, tensor<6xi32>) -> tensor<6xi32>
    return %14 : tensor<6xi32>
  }
  func.func private @_where(%arg0: tensor<6xi1>, %arg1: tensor<6xi32>, %arg2: tensor<6xi32>) -> tensor<6xi32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<6xi1>, tensor<6xi32>
    return %0 : tensor<6xi32>
  }
  func.func private @lexsort(%arg0: tensor<6xi32>, %arg1: tensor<6xi32>) -> tensor<6xi32> {
    %0 = stablehlo.iota dim = 0 : tensor<6xi32>
    %1:3 = "stablehlo.sort"(%arg1, %arg0, %0) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%arg2: tensor<i32>, %arg3: tensor<i32>, %arg4: tensor<i32>, %arg5: tensor<i32>, %arg6: tensor<i32>, %arg7: tensor<i32>):
      %2 = stablehlo.compare LT, %arg4, %arg5, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %3 = stablehlo.compare LT, %arg2, %arg3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %4 = stablehlo.compare EQ, %arg2, %arg3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %5 = stablehlo.and %4, %2 : tensor<i1>
      %6 = stablehlo.or %3, %5 : tensor<i1>
      stablehlo.return %6 : tensor<i1>
    }) : (tensor<6xi32>, tensor<6xi32>, tensor<6xi32>) -> (tensor<6xi32>, tensor<6xi32>, tensor<6xi32>)
    return %1#2 : tensor<6xi32>
  }
  func.func private @sort_0(%arg0: tensor<6xi32>) -> tensor<6xi32> {
    %0 = "stablehlo.sort"(%arg0) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%arg1: tensor<i32>, %arg2: tensor<i32>):
      %1 = stablehlo.compare LT, %arg1, %arg2, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    }) : (tensor<6xi32>) -> tensor<6xi32>
    return %0 : tensor<6xi32>
  }
  func.func private @searchsorted(%arg0: tensor<6xi32>, %arg1: tensor<2xi32>) -> tensor<2xi32> {
    %0 = call @_searchsorted_scan_impl(%arg0, %arg1) : (tensor<6xi32>, tensor<2xi32>) -> tensor<2xi32>
    return %0 : tensor<2xi32>
  }
  func.func private @_searchsorted_scan_impl(%arg0: tensor<6xi32>, %arg1: tensor<2xi32>) -> tensor<2xi32> {
    %0 = call @_searchsorted_scan_impl_1(%arg0, %arg1) : (tensor<6xi32>, tensor<2xi32>) -> tensor<2xi32>
    return %0 : tensor<2xi32>
  }
  func.func private @_searchsorted_scan_impl_1(%arg0: tensor<6xi32>, %arg1: tensor<2xi32>) -> tensor<2xi32> {
    %c = stablehlo.constant dense<0> : tensor<ui32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %c_0 = stablehlo.constant dense<6> : tensor<ui32>
    %1 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %2:5 = stablehlo.while(%iterArg = %arg0, %iterArg_2 = %arg1, %iterArg_3 = %c_1, %iterArg_4 = %0, %iterArg_5 = %1) : tensor<6xi32>, tensor<2xi32>, tensor<i32>, tensor<2xui32>, tensor<2xui32>
    cond {
      %c_6 = stablehlo.constant dense<3> : tensor<i32>
      %4 = stablehlo.compare LT, %iterArg_3, %c_6, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %4 : tensor<i1>
    } do {
      %4:2 = func.call @closed_call(%iterArg, %iterArg_2, %iterArg_4, %iterArg_5) : (tensor<6xi32>, tensor<2xi32>, tensor<2xui32>, tensor<2xui32>) -> (tensor<2xui32>, tensor<2xui32>)
      %c_6 = stablehlo.constant dense<1> : tensor<i32>
      %5 = stablehlo.add %iterArg_3, %c_6 : tensor<i32>
      stablehlo.return %iterArg, %iterArg_2, %5, %4#0, %4#1 : tensor<6xi32>, tensor<2xi32>, tensor<i32>, tensor<2xui32>, tensor<2xui32>
    }
    %3 = stablehlo.convert %2#4 : (tensor<2xui32>) -> tensor<2xi32>
    return %3 : tensor<2xi32>
  }
  func.func private @closed_call(%arg0: tensor<6xi32>, %arg1: tensor<2xi32>, %arg2: tensor<2xui32>, %arg3: tensor<2xui32>) -> (tensor<2xui32>, tensor<2xui32>) {
    %0 = stablehlo.subtract %arg3, %arg2 : tensor<2xui32>
    %c = stablehlo.constant dense<2> : tensor<i32>
    %1 = call @floor_divide_2(%0, %c) : (tensor<2xui32>, tensor<i32>) -> tensor<2xui32>
    %2 = stablehlo.add %arg2, %1 : tensor<2xui32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [0] : (tensor<2xui32>) -> tensor<2x1xui32>
    %4 = "stablehlo.gather"(%arg0, %3) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<6xi32>, tensor<2x1xui32>) -> tensor<2x1xi32>
    %5 = stablehlo.reshape %4 : (tensor<2x1xi32>) -> tensor<2xi32>
    %6 = stablehlo.compare LE, %arg1, %5, SIGNED : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi1>
    %7 = stablehlo.select %6, %arg2, %2 : tensor<2xi1>, tensor<2xui32>
    %8 = stablehlo.select %6, %2, %arg3 : tensor<2xi1>, tensor<2xui32>
    return %7, %8 : tensor<2xui32>, tensor<2xui32>
  }
  func.func private @floor_divide_2(%arg0: tensor<2xui32>, %arg1: tensor<i32>) -> tensor<2xui32> {
    %0 = stablehlo.convert %arg1 : (tensor<i32>) -> tensor<ui32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %2 = stablehlo.divide %arg0, %1 : tensor<2xui32>
    return %2 : tensor<2xui32>
  }
}
