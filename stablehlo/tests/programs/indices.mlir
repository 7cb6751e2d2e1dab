module @jit_program attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<6xf32> {jax.result_info = "result[0][0]"}, tensor<2x6xf32> {jax.result_info = "result[0][1]"}, tensor<4xf32> {jax.result_info = "result[0][2]"}, tensor<2xf32> {jax.result_info = "result[0][3]"}, tensor<2x2x6xf32> {jax.result_info = "result[0][4]"}, tensor<4x6xf32> {jax.result_info = "result[0][5]"}, tensor<2x2xf32> {jax.result_info = "result[0][6]"}, tensor<2x2xf32> {jax.result_info = "result[0][7]"}, tensor<3x1xf32> {jax.result_info = "result[0][8]"}, tensor<1x6xf32> {jax.result_info = "result[0][9]"}, tensor<6xf32> {jax.result_info = "result[1][0]"}, tensor<2x6xf32> {jax.result_info = "result[1][1]"}, tensor<4xf32> {jax.result_info = "result[1][2]"}, tensor<2xf32> {jax.result_info = "result[1][3]"}, tensor<2x2x6xf32> {jax.result_info = "result[1][4]"}, tensor<4x6xf32> {jax.result_info = "result[1][5]"}, tensor<2x2xf32> {jax.result_info = "result[1][6]"}, tensor<2x2xf32> {jax.result_info = "result[1][7]"}, tensor<3x1xf32> {jax.result_info = "result[1][8]"}, tensor<1x6xf32> {jax.result_info = "result[1][9]"}) {
    %cst = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]> : tensor<4x6xf32>
    %c = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
    %c_0 = stablehlo.constant dense<[0, -1]> : tensor<2xi32>
    %c_1 = stablehlo.constant dense<[2, 3]> : tensor<2xi32>
    %c_2 = stablehlo.constant dense<[[0, 1], [3, 9]]> : tensor<2x2xi32>
    %c_3 = stablehlo.constant dense<[3, 1]> : tensor<2xi32>
    %c_4 = stablehlo.constant dense<7> : tensor<1xi32>
    %cst_5 = stablehlo.constant dense<[-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154]> : tensor<6xf32>
    %cst_6 = stablehlo.constant dense<[[1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154]]> : tensor<2x6xf32>
    %cst_7 = stablehlo.constant dense<[0.640422642, -0.703735232, -1.245911, -0.12853466]> : tensor<4xf32>
    %cst_8 = stablehlo.constant dense<[0.640422642, 1.36646342]> : tensor<2xf32>
    %cst_9 = stablehlo.constant dense<[[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789]], [[0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078], [0x7FC00000, 0x7FC00000, 0x7FC00000, 0x7FC00000, 0x7FC00000, 0x7FC00000]]]> : tensor<2x2x6xf32>
    %cst_10 = stablehlo.constant dense<[[-0.535669386, -0.132104859, 0.104900114, 0.125730217, 0.361595064, 0.640422642], [-1.26542151, -0.703735232, -0.623274446, 0.0413259789, 0.947080969, 1.304000e+00], [-2.3250308, -1.245911, -0.73226738, -5.442590e-01, -0.316300154, -0.218791664], [-0.66519469, -0.12853466, 0.351510078, 0.411630541, 1.04251337, 1.36646342]]> : tensor<4x6xf32>
    %cst_11 = stablehlo.constant dense<[[1.04251337, -0.12853466], [0.947080969, -0.703735232]]> : tensor<2x2xf32>
    %cst_12 = stablehlo.constant dense<[[-5.442590e-01, -0.316300154], [-0.66519469, 0.351510078]]> : tensor<2x2xf32>
    %cst_13 = stablehlo.constant dense<[[-0.703735232], [-1.245911], [-0.12853466]]> : tensor<3x1xf32>
    %cst_14 = stablehlo.constant dense<-1.000000e+00> : tensor<1x6xf32>
    %c_15 = stablehlo.constant dense<2> : tensor<i32>
    %0:2 = stablehlo.optimization_barrier %cst, %c_15 : tensor<4x6xf32>, tensor<i32>
    %c_16 = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.compare LT, %0#1, %c_16, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_17 = stablehlo.constant dense<4> : tensor<i32>
    %2 = stablehlo.add %0#1, %c_17 : tensor<i32>
    %3 = stablehlo.select %1, %2, %0#1 : tensor<i1>, tensor<i32>
    %c_18 = stablehlo.constant dense<0> : tensor<i32>
    %c_19 = stablehlo.constant dense<0> : tensor<i32>
    %4 = stablehlo.compare LT, %c_18, %c_19, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_20 = stablehlo.constant dense<0> : tensor<i32>
    %c_21 = stablehlo.constant dense<6> : tensor<i32>
    %5 = stablehlo.add %c_20, %c_21 : tensor<i32>
    %c_22 = stablehlo.constant dense<0> : tensor<i32>
    %6 = stablehlo.select %4, %5, %c_22 : tensor<i1>, tensor<i32>
    %7 = stablehlo.dynamic_slice %0#0, %3, %6, sizes = [1, 6] : (tensor<4x6xf32>, tensor<i32>, tensor<i32>) -> tensor<1x6xf32>
    %8 = stablehlo.reshape %7 : (tensor<1x6xf32>) -> tensor<6xf32>
    %c_23 = stablehlo.constant dense<0> : tensor<i32>
    %9 = stablehlo.broadcast_in_dim %c_23, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %10 = stablehlo.compare LT, %c, %9, SIGNED : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi1>
    %c_24 = stablehlo.constant dense<4> : tensor<i32>
    %11 = stablehlo.broadcast_in_dim %c_24, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %12 = stablehlo.add %c, %11 : tensor<2xi32>
    %13 = stablehlo.select %10, %12, %c : tensor<2xi1>, tensor<2xi32>
    %14 = stablehlo.broadcast_in_dim %13, dims = [0] : (tensor<2xi32>) -> tensor<2x1xi32>
    %15 = "stablehlo.gather"(%0#0, %14) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 6>}> : (tensor<4x6xf32>, tensor<2x1xi32>) -> tensor<2x6xf32>
    %c_25 = stablehlo.constant dense<0> : tensor<i32>
    %c_26 = stablehlo.constant dense<0> : tensor<i32>
    %16 = stablehlo.compare LT, %c_25, %c_26, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_27 = stablehlo.constant dense<0> : tensor<i32>
    %c_28 = stablehlo.constant dense<4> : tensor<i32>
    %17 = stablehlo.add %c_27, %c_28 : tensor<i32>
    %c_29 = stablehlo.constant dense<0> : tensor<i32>
    %18 = stablehlo.select %16, %17, %c_29 : tensor<i1>, tensor<i32>
    %c_30 = stablehlo.constant dense<0> : tensor<i32>
    %19 = stablehlo.compare LT, %0#1, %c_30, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_31 = stablehlo.constant dense<6> : tensor<i32>
    %20 = stablehlo.add %0#1, %c_31 : tensor<i32>
    %21 = stablehlo.select %19, %20, %0#1 : tensor<i1>, tensor<i32>
    %22 = stablehlo.dynamic_slice %0#0, %18, %21, sizes = [4, 1] : (tensor<4x6xf32>, tensor<i32>, tensor<i32>) -> tensor<4x1xf32>
    %23 = stablehlo.reshape %22 : (tensor<4x1xf32>) -> tensor<4xf32>
    %c_32 = stablehlo.constant dense<0> : tensor<i32>
    %24 = stablehlo.broadcast_in_dim %c_32, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %25 = stablehlo.compare LT, %c_0, %24, SIGNED : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi1>
    %c_33 = stablehlo.constant dense<4> : tensor<i32>
    %26 = stablehlo.broadcast_in_dim %c_33, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %27 = stablehlo.add %c_0, %26 : tensor<2xi32>
    %28 = stablehlo.select %25, %27, %c_0 : tensor<2xi1>, tensor<2xi32>
    %c_34 = stablehlo.constant dense<0> : tensor<i32>
    %29 = stablehlo.broadcast_in_dim %c_34, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %30 = stablehlo.compare LT, %c_1, %29, SIGNED : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi1>
    %c_35 = stablehlo.constant dense<6> : tensor<i32>
    %31 = stablehlo.broadcast_in_dim %c_35, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %32 = stablehlo.add %c_1, %31 : tensor<2xi32>
    %33 = stablehlo.select %30, %32, %c_1 : tensor<2xi1>, tensor<2xi32>
    %34 = stablehlo.broadcast_in_dim %28, dims = [0] : (tensor<2xi32>) -> tensor<2x1xi32>
    %35 = stablehlo.broadcast_in_dim %33, dims = [0] : (tensor<2xi32>) -> tensor<2x1xi32>
    %36 = stablehlo.concatenate %34, %35, dim = 1 : (tensor<2x1xi32>, tensor<2x1xi32>) -> tensor<2x2xi32>
    %37 = "stablehlo.gather"(%0#0, %36) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1>}> : (tensor<4x6xf32>, tensor<2x2xi32>) -> tensor<2xf32>
    %38 = call @_take(%0#0, %c_2) : (tensor<4x6xf32>, tensor<2x2xi32>) -> tensor<2x2x6xf32>
    %39 = call @argsort(%0#0) : (tensor<4x6xf32>) -> tensor<4x6xi32>
    %40 = call @take_along_axis(%0#0, %39) : (tensor<4x6xf32>, tensor<4x6xi32>) -> tensor<4x6xf32>
    %c_36 = stablehlo.constant dense<0> : tensor<i32>
    %41 = stablehlo.broadcast_in_dim %c_36, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %42 = stablehlo.compare LT, %c_3, %41, SIGNED : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi1>
    %c_37 = stablehlo.constant dense<4> : tensor<i32>
    %43 = stablehlo.broadcast_in_dim %c_37, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %44 = stablehlo.add %c_3, %43 : tensor<2xi32>
    %45 = stablehlo.select %42, %44, %c_3 : tensor<2xi1>, tensor<2xi32>
    %46 = stablehlo.broadcast_in_dim %45, dims = [0] : (tensor<2xi32>) -> tensor<2x1xi32>
    %c_38 = stablehlo.constant dense<1> : tensor<i32>
    %47 = stablehlo.broadcast_in_dim %c_38, dims = [] : (tensor<i32>) -> tensor<2x1xi32>
    %48 = stablehlo.concatenate %46, %47, dim = 1 : (tensor<2x1xi32>, tensor<2x1xi32>) -> tensor<2x2xi32>
    %49 = "stablehlo.gather"(%0#0, %48) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0, 1], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 2>}> : (tensor<4x6xf32>, tensor<2x2xi32>) -> tensor<2x2xf32>
    %c_39 = stablehlo.constant dense<3> : tensor<i32>
    %50 = stablehlo.add %0#1, %c_39 : tensor<i32>
    %c_40 = stablehlo.constant dense<0> : tensor<i32>
    %51 = stablehlo.compare LT, %0#1, %c_40, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_41 = stablehlo.constant dense<4> : tensor<i32>
    %52 = stablehlo.add %0#1, %c_41 : tensor<i32>
    %53 = stablehlo.select %51, %52, %0#1 : tensor<i1>, tensor<i32>
    %c_42 = stablehlo.constant dense<0> : tensor<i32>
    %54 = stablehlo.compare LT, %50, %c_42, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_43 = stablehlo.constant dense<6> : tensor<i32>
    %55 = stablehlo.add %50, %c_43 : tensor<i32>
    %56 = stablehlo.select %54, %55, %50 : tensor<i1>, tensor<i32>
    %57 = stablehlo.dynamic_slice %0#0, %53, %56, sizes = [2, 2] : (tensor<4x6xf32>, tensor<i32>, tensor<i32>) -> tensor<2x2xf32>
    %c_44 = stablehlo.constant dense<9> : tensor<i32>
    %c_45 = stablehlo.constant dense<0> : tensor<i32>
    %58 = stablehlo.compare LT, %c_44, %c_45, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_46 = stablehlo.constant dense<9> : tensor<i32>
    %c_47 = stablehlo.constant dense<4> : tensor<i32>
    %59 = stablehlo.add %c_46, %c_47 : tensor<i32>
    %c_48 = stablehlo.constant dense<9> : tensor<i32>
    %60 = stablehlo.select %58, %59, %c_48 : tensor<i1>, tensor<i32>
    %c_49 = stablehlo.constant dense<0> : tensor<i32>
    %61 = stablehlo.compare LT, %0#1, %c_49, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_50 = stablehlo.constant dense<6> : tensor<i32>
    %62 = stablehlo.add %0#1, %c_50 : tensor<i32>
    %63 = stablehlo.select %61, %62, %0#1 : tensor<i1>, tensor<i32>
    %64 = stablehlo.dynamic_slice %0#0, %60, %63, sizes = [3, 1] : (tensor<4x6xf32>, tensor<i32>, tensor<i32>) -> tensor<3x1xf32>
    %c_51 = stablehlo.constant dense<0> : tensor<i32>
    %65 = stablehlo.broadcast_in_dim %c_51, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %66 = stablehlo.compare LT, %c_4, %65, SIGNED : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi1>
    %c_52 = stablehlo.constant dense<4> : tensor<i32>
    %67 = stablehlo.broadcast_in_dim %c_52, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %68 = stablehlo.add %c_4, %67 : tensor<1xi32>
    %69 = stablehlo.select %66, %68, %c_4 : tensor<1xi1>, tensor<1xi32>
    %70 = stablehlo.broadcast_in_dim %69, dims = [0] : (tensor<1xi32>) -> tensor<1x1xi32>
    %c_53 = stablehlo.constant dense<3> : tensor<1xi32>
    %c_54 = stablehlo.constant dense<0> : tensor<i32>
    %71 = stablehlo.broadcast_in_dim %c_54, dims = [] : (tensor<i32>) -> tensor<1x1xi32>
    %72 = stablehlo.compare GE, %70, %71, SIGNED : (tensor<1x1xi32>, tensor<1x1xi32>) -> tensor<1x1xi1>
    %73 = stablehlo.broadcast_in_dim %c_53, dims = [1] : (tensor<1xi32>) -> tensor<1x1xi32>
    %74 = stablehlo.compare LE, %70, %73, SIGNED : (tensor<1x1xi32>, tensor<1x1xi32>) -> tensor<1x1xi1>
    %75 = stablehlo.and %72, %74 : tensor<1x1xi1>
    %c_55 = stablehlo.constant dense<true> : tensor<i1>
    %76 = stablehlo.reduce(%75 init: %c_55) applies stablehlo.and across dimensions = [1] : (tensor<1x1xi1>, tensor<i1>) -> tensor<1xi1>
    %77 = "stablehlo.gather"(%0#0, %70) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 6>}> : (tensor<4x6xf32>, tensor<1x1xi32>) -> tensor<1x6xf32>
    %78 = stablehlo.broadcast_in_dim %76, dims = [0] : (tensor<1xi1>) -> tensor<1x6xi1>
    %cst_56 = stablehlo.constant dense<-1.000000e+00> : tensor<f32>
    %79 = stablehlo.broadcast_in_dim %cst_56, dims = [] : (tensor<f32>) -> tensor<1x6xf32>
    %80 = stablehlo.select %78, %77, %79 : tensor<1x6xi1>, tensor<1x6xf32>
    return %8, %15, %23, %37, %38, %40, %49, %57, %64, %80, %cst_5, %cst_6, %cst_7, %cst_8, %cst_9, %cst_10, %cst_11, %cst_12, %cst_13, %cst_14 : tensor<6xf32>, tensor<2x6xf32>, tensor<4xf32>, tensor<2xf32>, tensor<2x2x6xf32>, tensor<4x6xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<3x1xf32>, tensor<1x6xf32>, tensor<6xf32>, tensor<2x6xf32>, tensor<4xf32>, tensor<2xf32>, tensor<2x2x6xf32>, tensor<4x6xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<3x1xf32>, tensor<1x6xf32>
  }
  func.func private @_take(%arg0: tensor<4x6xf32>, %arg1: tensor<2x2xi32>) -> tensor<2x2x6xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<2x2xi32>
    %1 = stablehlo.compare LT, %arg1, %0, SIGNED : (tensor<2x2xi32>, tensor<2x2xi32>) -> tensor<2x2xi1>
    %c_0 = stablehlo.constant dense<4> : tensor<i32>
    %2 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<2x2xi32>
    %3 = stablehlo.add %arg1, %2 : tensor<2x2xi32>
    %4 = call @_where(%1, %3, %arg1) : (tensor<2x2xi1>, tensor<2x2xi32>, tensor<2x2xi32>) -> tensor<2x2xi32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1] : (tensor<2x2xi32>) -> tensor<2x2x1xi32>
    %c_1 = stablehlo.constant dense<3> : tensor<1xi32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %6 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<i32>) -> tensor<2x2x1xi32>
    %7 = stablehlo.compare GE, %5, %6, SIGNED : (tensor<2x2x1xi32>, tensor<2x2x1xi32>) -> tensor<2x2x1xi1>
    %8 = stablehlo.broadcast_in_dim %c_1, dims = [2] : (tensor<1xi32>) -> tensor<1x1x1xi32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0, 1, 2] : (tensor<1x1x1xi32>) -> tensor<2x2x1xi32>
    %10 = stablehlo.compare LE, %5, %9, SIGNED : (tensor<2x2x1xi32>, tensor<2x2x1xi32>) -> tensor<2x2x1xi1>
    %11 = stablehlo.and %7, %10 : tensor<2x2x1xi1>
    %c_3 = stablehlo.constant dense<true> : tensor<i1>
    %12 = stablehlo.reduce(%11 init: %c_3) applies stablehlo.and across dimensions = [2] : (tensor<2x2x1xi1>, tensor<i1>) -> tensor<2x2xi1>
    %13 = "stablehlo.gather"(%arg0, %5) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 6>}> : (tensor<4x6xf32>, tensor<2x2x1xi32>) -> tensor<2x2x6xf32>
    %14 = stablehlo.broadcast_in_dim %12, dims = [0, 1] : (tensor<2x2xi1>) -> tensor<2x2x6xi1>
    %cst = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %15 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x2x6xf32>
    %16 = stablehlo.select %14, %13, %15 : tensor<2x2x6xi1>, tensor<2x2x6xf32>
    return %16 : tensor<2x2x6xf32>
  }
  func.func private @_where(%arg0: tensor<2x2xi1>, %arg1: tensor<2x2xi32>, %arg2: tensor<2x2xi32>) -> tensor<2x2xi32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<2x2xi1>, tensor<2x2xi32>
    return %0 : tensor<2x2xi32>
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
  func.func private @take_along_axis(%arg0: tensor<4x6xf32>, %arg1: tensor<4x6xi32>) -> tensor<4x6xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<4x6xi32>
    %1 = stablehlo.compare LT, %arg1, %0, SIGNED : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi1>
    %c_0 = stablehlo.constant dense<6> : tensor<i32>
    %2 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<4x6xi32>
    %3 = stablehlo.add %arg1, %2 : tensor<4x6xi32>
    %4 = stablehlo.select %1, %3, %arg1 : tensor<4x6xi1>, tensor<4x6xi32>
    %5 = stablehlo.reshape %4 : (tensor<4x6xi32>) -> tensor<4x6x1xi32>
    %c_1 = stablehlo.constant dense<5> : tensor<1xi32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %6 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<i32>) -> tensor<4x6x1xi32>
    %7 = stablehlo.compare GE, %5, %6, SIGNED : (tensor<4x6x1xi32>, tensor<4x6x1xi32>) -> tensor<4x6x1xi1>
    %8 = stablehlo.broadcast_in_dim %c_1, dims = [2] : (tensor<1xi32>) -> tensor<1x1x1xi32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0, 1, 2] : (tensor<1x1x1xi32>) -> tensor<4x6x1xi32>
    %10 = stablehlo.compare LE, %5, %9, SIGNED : (tensor<4x6x1xi32>, tensor<4x6x1xi32>) -> tensor<4x6x1xi1>
    %11 = stablehlo.and %7, %10 : tensor<4x6x1xi1>
    %c_3 = stablehlo.constant dense<true> : tensor<i1>
    %12 = stablehlo.reduce(%11 init: %c_3) applies stablehlo.and across dimensions = [2] : (tensor<4x6x1xi1>, tensor<i1>) -> tensor<4x6xi1>
    %13 = "stablehlo.gather"(%arg0, %5) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1>}> : (tensor<4x6xf32>, tensor<4x6x1xi32>) -> tensor<4x6xf32>
    %cst = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %14 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %15 = stablehlo.select %12, %13, %14 : tensor<4x6xi1>, tensor<4x6xf32>
    return %15 : tensor<4x6xf32>
  }
}
