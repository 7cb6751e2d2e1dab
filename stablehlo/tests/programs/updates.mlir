module @jit_program attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<4x6xf32> {jax.result_info = "result[0][0]"}, tensor<4x6xf32> {jax.result_info = "result[0][1]"}, tensor<4x6xf32> {jax.result_info = "result[0][2]"}, tensor<4x6xf32> {jax.result_info = "result[0][3]"}, tensor<4x6xf32> {jax.result_info = "result[0][4]"}, tensor<4x6xf32> {jax.result_info = "result[0][5]"}, tensor<4x6xf32> {jax.result_info = "result[0][6]"}, tensor<4x6xf32> {jax.result_info = "result[0][7]"}, tensor<4x6xf32> {jax.result_info = "result[0][8]"}, tensor<4x6xf32> {jax.result_info = "result[0][9]"}, tensor<4x6xf32> {jax.result_info = "result[0][10]"}, tensor<4x6xf32> {jax.result_info = "result[0][11]"}, tensor<4x6xf32> {jax.result_info = "result[1][0]"}, tensor<4x6xf32> {jax.result_info = "result[1][1]"}, tensor<4x6xf32> {jax.result_info = "result[1][2]"}, tensor<4x6xf32> {jax.result_info = "result[1][3]"}, tensor<4x6xf32> {jax.result_info = "result[1][4]"}, tensor<4x6xf32> {jax.result_info = "result[1][5]"}, tensor<4x6xf32> {jax.result_info = "result[1][6]"}, tensor<4x6xf32> {jax.result_info = "result[1][7]"}, tensor<4x6xf32> {jax.result_info = "result[1][8]"}, tensor<4x6xf32> {jax.result_info = "result[1][9]"}, tensor<4x6xf32> {jax.result_info = "result[1][10]"}, tensor<4x6xf32> {jax.result_info = "result[1][11]"}) {
    %cst = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]> : tensor<4x6xf32>
    %cst_0 = stablehlo.constant dense<[1.80163491, 1.31510377, 0.35738042, -1.20831859, -0.0044541331, 0.656474948]> : tensor<6xf32>
    %c = stablehlo.constant dense<[0, 0, 3]> : tensor<3xi32>
    %c_1 = stablehlo.constant dense<[9, 1]> : tensor<2xi32>
    %c_2 = stablehlo.constant dense<[9, 1]> : tensor<2xi32>
    %c_3 = stablehlo.constant dense<2> : tensor<1xi32>
    %c_4 = stablehlo.constant dense<1> : tensor<1xi32>
    %cst_5 = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [1.000000e+00, 1.000000e+00, 1.000000e+00, 1.000000e+00, 1.000000e+00, 1.000000e+00], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]> : tensor<4x6xf32>
    %cst_6 = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, 1.78120828, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]> : tensor<4x6xf32>
    %cst_7 = stablehlo.constant dense<[[2.12573028, 1.86789513, 2.64042258, 2.10490012, 1.46433067, 2.36159515], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [1.41163051, 2.04251337, 0.871465325, 2.36646342, 0.33480531, 1.351510e+00]]> : tensor<4x6xf32>
    %cst_8 = stablehlo.constant dense<[[0.125730217, -0.132104859, 1.92126799, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -2.11120558, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, -3.73773289, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, -0.385603964, 1.36646342, -0.66519469, 0.351510078]]> : tensor<4x6xf32>
    %cst_9 = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [5.000000e+00, 5.000000e+00, 5.000000e+00, 5.000000e+00, 5.000000e+00, 5.000000e+00], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]> : tensor<4x6xf32>
    %cst_10 = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [6.3039999, 5.94708109, 4.29626465, 3.73457861, 4.37672567, 5.04132605], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]> : tensor<4x6xf32>
    %cst_11 = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, 9.000000e+00, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]> : tensor<4x6xf32>
    %cst_12 = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00], [0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]> : tensor<4x6xf32>
    %cst_13 = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, 1.000000e+00, 1.000000e+00, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, 1.000000e+00, 1.000000e+00, -0.66519469, 0.351510078]]> : tensor<4x6xf32>
    %cst_14 = stablehlo.constant dense<[[0.125730217, -0.132104859, 0.640422642, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [1.000000e+00, 1.000000e+00, 1.000000e+00, 1.000000e+00, 1.000000e+00, 1.000000e+00], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]> : tensor<4x6xf32>
    %cst_15 = stablehlo.constant dense<[[0.125730217, -0.132104859, 1.000000e+00, 0.104900114, -0.535669386, 0.361595064], [1.304000e+00, 0.947080969, 1.000000e+00, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, 1.000000e+00, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, 1.000000e+00, 1.36646342, -0.66519469, 0.351510078]]> : tensor<4x6xf32>
    %cst_16 = stablehlo.constant dense<[[1.80163491, 1.31510377, 0.35738042, -1.20831859, -0.0044541331, 0.656474948], [1.304000e+00, 0.947080969, -0.703735232, -1.26542151, -0.623274446, 0.0413259789], [-2.3250308, -0.218791664, -1.245911, -0.73226738, -5.442590e-01, -0.316300154], [0.411630541, 1.04251337, -0.12853466, 1.36646342, -0.66519469, 0.351510078]]> : tensor<4x6xf32>
    %c_17 = stablehlo.constant dense<2> : tensor<i32>
    %0:3 = stablehlo.optimization_barrier %cst, %c_17, %cst_0 : tensor<4x6xf32>, tensor<i32>, tensor<6xf32>
    %c_18 = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.compare LT, %0#1, %c_18, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_19 = stablehlo.constant dense<4> : tensor<i32>
    %2 = stablehlo.add %0#1, %c_19 : tensor<i32>
    %3 = stablehlo.select %1, %2, %0#1 : tensor<i1>, tensor<i32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %cst_20 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst_20, dims = [] : (tensor<f32>) -> tensor<6xf32>
    %6 = "stablehlo.scatter"(%0#0, %4, %5) <{indices_are_sorted = true, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0]>, unique_indices = true}> ({
    ^bb0(%arg0: tensor<f32>, %arg1: tensor<f32>):
      stablehlo.return %arg1 : tensor<f32>
    }) : (tensor<4x6xf32>, tensor<1xi32>, tensor<6xf32>) -> tensor<4x6xf32>
    %c_21 = stablehlo.constant dense<0> : tensor<i32>
    %7 = stablehlo.compare LT, %0#1, %c_21, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_22 = stablehlo.constant dense<4> : tensor<i32>
    %8 = stablehlo.add %0#1, %c_22 : tensor<i32>
    %9 = stablehlo.select %7, %8, %0#1 : tensor<i1>, tensor<i32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %c_23 = stablehlo.constant dense<1> : tensor<i32>
    %11 = stablehlo.broadcast_in_dim %c_23, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %12 = stablehlo.concatenate %10, %11, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
    %cst_24 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %13 = "stablehlo.scatter"(%0#0, %12, %cst_24) <{indices_are_sorted = true, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1]>, unique_indices = true}> ({
    ^bb0(%arg0: tensor<f32>, %arg1: tensor<f32>):
      %82 = stablehlo.add %arg0, %arg1 : tensor<f32>
      stablehlo.return %82 : tensor<f32>
    }) : (tensor<4x6xf32>, tensor<2xi32>, tensor<f32>) -> tensor<4x6xf32>
    %c_25 = stablehlo.constant dense<0> : tensor<i32>
    %14 = stablehlo.broadcast_in_dim %c_25, dims = [] : (tensor<i32>) -> tensor<3xi32>
    %15 = stablehlo.compare LT, %c, %14, SIGNED : (tensor<3xi32>, tensor<3xi32>) -> tensor<3xi1>
    %c_26 = stablehlo.constant dense<4> : tensor<i32>
    %16 = stablehlo.broadcast_in_dim %c_26, dims = [] : (tensor<i32>) -> tensor<3xi32>
    %17 = stablehlo.add %c, %16 : tensor<3xi32>
    %18 = stablehlo.select %15, %17, %c : tensor<3xi1>, tensor<3xi32>
    %19 = stablehlo.broadcast_in_dim %18, dims = [0] : (tensor<3xi32>) -> tensor<3x1xi32>
    %cst_27 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %20 = stablehlo.broadcast_in_dim %cst_27, dims = [] : (tensor<f32>) -> tensor<3x6xf32>
    %21 = "stablehlo.scatter"(%0#0, %19, %20) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg0: tensor<f32>, %arg1: tensor<f32>):
      %82 = stablehlo.add %arg0, %arg1 : tensor<f32>
      stablehlo.return %82 : tensor<f32>
    }) : (tensor<4x6xf32>, tensor<3x1xi32>, tensor<3x6xf32>) -> tensor<4x6xf32>
    %c_28 = stablehlo.constant dense<0> : tensor<i32>
    %22 = stablehlo.compare LT, %0#1, %c_28, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_29 = stablehlo.constant dense<6> : tensor<i32>
    %23 = stablehlo.add %0#1, %c_29 : tensor<i32>
    %24 = stablehlo.select %22, %23, %0#1 : tensor<i1>, tensor<i32>
    %25 = stablehlo.broadcast_in_dim %24, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %cst_30 = stablehlo.constant dense<3.000000e+00> : tensor<f32>
    %26 = stablehlo.broadcast_in_dim %cst_30, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %27 = "stablehlo.scatter"(%0#0, %25, %26) <{indices_are_sorted = true, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0], inserted_window_dims = [1], scatter_dims_to_operand_dims = [1]>, unique_indices = true}> ({
    ^bb0(%arg0: tensor<f32>, %arg1: tensor<f32>):
      %82 = stablehlo.multiply %arg0, %arg1 : tensor<f32>
      stablehlo.return %82 : tensor<f32>
    }) : (tensor<4x6xf32>, tensor<1xi32>, tensor<4xf32>) -> tensor<4x6xf32>
    %c_31 = stablehlo.constant dense<0> : tensor<i32>
    %28 = stablehlo.broadcast_in_dim %c_31, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %29 = stablehlo.compare LT, %c_1, %28, SIGNED : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi1>
    %c_32 = stablehlo.constant dense<4> : tensor<i32>
    %30 = stablehlo.broadcast_in_dim %c_32, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %31 = stablehlo.add %c_1, %30 : tensor<2xi32>
    %32 = stablehlo.select %29, %31, %c_1 : tensor<2xi1>, tensor<2xi32>
    %33 = stablehlo.broadcast_in_dim %32, dims = [0] : (tensor<2xi32>) -> tensor<2x1xi32>
    %cst_33 = stablehlo.constant dense<5.000000e+00> : tensor<f32>
    %34 = stablehlo.broadcast_in_dim %cst_33, dims = [] : (tensor<f32>) -> tensor<2x6xf32>
    %35 = "stablehlo.scatter"(%0#0, %33, %34) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg0: tensor<f32>, %arg1: tensor<f32>):
      stablehlo.return %arg1 : tensor<f32>
    }) : (tensor<4x6xf32>, tensor<2x1xi32>, tensor<2x6xf32>) -> tensor<4x6xf32>
    %c_34 = stablehlo.constant dense<0> : tensor<i32>
    %36 = stablehlo.broadcast_in_dim %c_34, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %37 = stablehlo.compare LT, %c_2, %36, SIGNED : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi1>
    %c_35 = stablehlo.constant dense<4> : tensor<i32>
    %38 = stablehlo.broadcast_in_dim %c_35, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %39 = stablehlo.add %c_2, %38 : tensor<2xi32>
    %40 = stablehlo.select %37, %39, %c_2 : tensor<2xi1>, tensor<2xi32>
    %41 = stablehlo.broadcast_in_dim %40, dims = [0] : (tensor<2xi32>) -> tensor<2x1xi32>
    %cst_36 = stablehlo.constant dense<5.000000e+00> : tensor<f32>
    %42 = stablehlo.broadcast_in_dim %cst_36, dims = [] : (tensor<f32>) -> tensor<2x6xf32>
    %43 = "stablehlo.scatter"(%0#0, %41, %42) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg0: tensor<f32>, %arg1: tensor<f32>):
      %82 = stablehlo.add %arg0, %arg1 : tensor<f32>
      stablehlo.return %82 : tensor<f32>
    }) : (tensor<4x6xf32>, tensor<2x1xi32>, tensor<2x6xf32>) -> tensor<4x6xf32>
    %c_37 = stablehlo.constant dense<0> : tensor<i32>
    %44 = stablehlo.broadcast_in_dim %c_37, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %45 = stablehlo.compare LT, %c_3, %44, SIGNED : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi1>
    %c_38 = stablehlo.constant dense<4> : tensor<i32>
    %46 = stablehlo.broadcast_in_dim %c_38, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %47 = stablehlo.add %c_3, %46 : tensor<1xi32>
    %48 = stablehlo.select %45, %47, %c_3 : tensor<1xi1>, tensor<1xi32>
    %c_39 = stablehlo.constant dense<0> : tensor<i32>
    %49 = stablehlo.broadcast_in_dim %c_39, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %50 = stablehlo.compare LT, %c_4, %49, SIGNED : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi1>
    %c_40 = stablehlo.constant dense<6> : tensor<i32>
    %51 = stablehlo.broadcast_in_dim %c_40, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %52 = stablehlo.add %c_4, %51 : tensor<1xi32>
    %53 = stablehlo.select %50, %52, %c_4 : tensor<1xi1>, tensor<1xi32>
    %54 = stablehlo.broadcast_in_dim %48, dims = [0] : (tensor<1xi32>) -> tensor<1x1xi32>
    %55 = stablehlo.broadcast_in_dim %53, dims = [0] : (tensor<1xi32>) -> tensor<1x1xi32>
    %56 = stablehlo.concatenate %54, %55, dim = 1 : (tensor<1x1xi32>, tensor<1x1xi32>) -> tensor<1x2xi32>
    %cst_41 = stablehlo.constant dense<9.000000e+00> : tensor<f32>
    %57 = stablehlo.broadcast_in_dim %cst_41, dims = [] : (tensor<f32>) -> tensor<1xf32>
    %58 = "stablehlo.scatter"(%0#0, %56, %57) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg0: tensor<f32>, %arg1: tensor<f32>):
      %82 = stablehlo.maximum %arg0, %arg1 : tensor<f32>
      stablehlo.return %82 : tensor<f32>
    }) : (tensor<4x6xf32>, tensor<1x2xi32>, tensor<1xf32>) -> tensor<4x6xf32>
    %c_42 = stablehlo.constant dense<1> : tensor<i32>
    %59 = stablehlo.broadcast_in_dim %c_42, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %cst_43 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %60 = stablehlo.broadcast_in_dim %cst_43, dims = [] : (tensor<f32>) -> tensor<2x6xf32>
    %61 = "stablehlo.scatter"(%0#0, %59, %60) <{indices_are_sorted = true, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0, 1], scatter_dims_to_operand_dims = [0]>, unique_indices = true}> ({
    ^bb0(%arg0: tensor<f32>, %arg1: tensor<f32>):
      stablehlo.return %arg1 : tensor<f32>
    }) : (tensor<4x6xf32>, tensor<1xi32>, tensor<2x6xf32>) -> tensor<4x6xf32>
    %cst_44 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %62 = stablehlo.broadcast_in_dim %cst_44, dims = [] : (tensor<f32>) -> tensor<2x2xf32>
    %c_45 = stablehlo.constant dense<0> : tensor<i32>
    %63 = stablehlo.compare LT, %0#1, %c_45, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_46 = stablehlo.constant dense<4> : tensor<i32>
    %64 = stablehlo.add %0#1, %c_46 : tensor<i32>
    %65 = stablehlo.select %63, %64, %0#1 : tensor<i1>, tensor<i32>
    %c_47 = stablehlo.constant dense<0> : tensor<i32>
    %66 = stablehlo.compare LT, %0#1, %c_47, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_48 = stablehlo.constant dense<6> : tensor<i32>
    %67 = stablehlo.add %0#1, %c_48 : tensor<i32>
    %68 = stablehlo.select %66, %67, %0#1 : tensor<i1>, tensor<i32>
    %69 = stablehlo.dynamic_update_slice %0#0, %62, %65, %68 : (tensor<4x6xf32>, tensor<2x2xf32>, tensor<i32>, tensor<i32>) -> tensor<4x6xf32>
    %cst_49 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %70 = stablehlo.broadcast_in_dim %cst_49, dims = [] : (tensor<f32>) -> tensor<1x6xf32>
    %c_50 = stablehlo.constant dense<0> : tensor<i32>
    %71 = stablehlo.compare LT, %0#1, %c_50, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_51 = stablehlo.constant dense<4> : tensor<i32>
    %72 = stablehlo.add %0#1, %c_51 : tensor<i32>
    %73 = stablehlo.select %71, %72, %0#1 : tensor<i1>, tensor<i32>
    %c_52 = stablehlo.constant dense<0> : tensor<i32>
    %74 = stablehlo.dynamic_update_slice %0#0, %70, %73, %c_52 : (tensor<4x6xf32>, tensor<1x6xf32>, tensor<i32>, tensor<i32>) -> tensor<4x6xf32>
    %cst_53 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %75 = stablehlo.broadcast_in_dim %cst_53, dims = [] : (tensor<f32>) -> tensor<4x1xf32>
    %c_54 = stablehlo.constant dense<0> : tensor<i32>
    %76 = stablehlo.compare LT, %0#1, %c_54, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_55 = stablehlo.constant dense<6> : tensor<i32>
    %77 = stablehlo.add %0#1, %c_55 : tensor<i32>
    %78 = stablehlo.select %76, %77, %0#1 : tensor<i1>, tensor<i32>
    %c_56 = stablehlo.constant dense<0> : tensor<i32>
    %79 = stablehlo.dynamic_update_slice %0#0, %75, %c_56, %78 : (tensor<4x6xf32>, tensor<4x1xf32>, tensor<i32>, tensor<i32>) -> tensor<4x6xf32>
    %c_57 = stablehlo.constant dense<0> : tensor<i32>
    %80 = stablehlo.broadcast_in_dim %c_57, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %81 = "stablehlo.scatter"(%0#0, %80, %0#2) <{indices_are_sorted = true, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0]>, unique_indices = true}> ({
    ^bb0(%arg0: tensor<f32>, %arg1: tensor<f32>):
      stablehlo.return %arg1 : tensor<f32>
    }) : (tensor<4x6xf32>, tensor<1xi32>, tensor<6xf32>) -> tensor<4x6xf32>
    return %6, %13, %21, %27, %35, %43, %58, %61, %69, %74, %79, %81, %cst_5, %cst_6, %cst_7, %cst_8, %cst_9, %cst_10, %cst_11, %cst_12, %cst_13, %cst_14, %cst_15, %cst_16 : tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>
  }
}
