module @jit_program attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<4x6xui32> {jax.result_info = "result[0][0]"}, tensor<4x6xui32> {jax.result_info = "result[0][1]"}, tensor<4x6xui32> {jax.result_info = "result[0][2]"}, tensor<4x6xui32> {jax.result_info = "result[0][3]"}, tensor<4x6xf32> {jax.result_info = "result[0][4]"}, tensor<4x6xi32> {jax.result_info = "result[0][5]"}, tensor<4x6xf32> {jax.result_info = "result[0][6]"}, tensor<4x6xui32> {jax.result_info = "result[1][0]"}, tensor<4x6xui32> {jax.result_info = "result[1][1]"}, tensor<4x6xui32> {jax.result_info = "result[1][2]"}, tensor<4x6xui32> {jax.result_info = "result[1][3]"}, tensor<4x6xf32> {jax.result_info = "result[1][4]"}, tensor<4x6xi32> {jax.result_info = "result[1][5]"}, tensor<4x6xf32> {jax.result_info = "result[1][6]"}) {
    %c = stablehlo.constant dense<[[280959750, 929981970, 1158610389, 1528605573, 1819325522, 956881929], [3441375599, 1210442499, 1881757635, 3980880893, 4284331843, 1791754554], [1665389704, 1657277303, 1526802071, 2624974285, 2746840842, 2852467554], [3351281300, 2835866166, 1159107264, 364036992, 1769723423, 2499252546]]> : tensor<4x6xui32>
    %c_0 = stablehlo.constant dense<[[365839396, 2620021060, 2432348985, 2248340249, 1992518212, 2142206033], [3150224929, 405557769, 3666615945, 2246277129, 601807753, 4235297060], [530679872, 108228945, 2902404369, 306656809, 4291710052, 874787204], [882247056, 1926718308, 220172288, 1934376960, 3806451649, 4022850820]]> : tensor<4x6xui32>
    %c_1 = stablehlo.constant dense<[[8779992, 29061936, 36206574, 47768924, 56853922, 29902560], [107542987, 37826328, 58804926, 124402527, 133885370, 55992329], [52043428, 51789915, 47712564, 82030446, 85838776, 89139611], [104727540, 88620817, 36222102, 11376156, 55303856, 78101642]]> : tensor<4x6xui32>
    %c_2 = stablehlo.constant dense<[[1603109632, 3073575168, 2273241728, 2387985024, 945432832, 2221802624], [2409412480, 317817216, 346808704, 2746613376, 2933629312, 1711316224], [2716484608, 1678097280, 2157136768, 989259392, 3703276800, 43626752], [3762244096, 2213616384, 2336841728, 3647062016, 3186298752, 2076745984]]> : tensor<4x6xui32>
    %c_3 = stablehlo.constant dense<[[313063526, 830712528, 1303323247, 1350516469, 1644077784, 1042925448], [3569147458, 1092706147, 2116844859, 4042229378, 3770024363, 1737851165], [1865133593, 1854999065, 1348534853, 2415612020, 3083753963, 3209008398], [3745018182, 3156680304, 1303658648, 386178032, 1683270876, 2255053674]]> : tensor<4x6xui32>
    %cst = stablehlo.constant dense<[[0x4D85F8D8, 0x4E5DB998, 1.15861043E+9, 1.52860557E+9, 1.81932557E+9, 0x4E642370], [3.44137549E+9, 1.2104425E+9, 1.8817577E+9, 3.9808809E+9, 4.28433178E+9, 1.7917545E+9], [1.6653897E+9, 1.65727731E+9, 1.52680205E+9, 2.62497434E+9, 2.74684083E+9, 2.85246746E+9], [3.35128141E+9, 2.83586611E+9, 1.15910733E+9, 3.640370e+08, 1.76972339E+9, 2.49925248E+9]]> : tensor<4x6xf32>
    %c_4 = stablehlo.constant dense<[[280959750, 929981970, 1158610389, 1528605573, 1819325522, 956881929], [-853591697, 1210442499, 1881757635, -314086403, -10635453, 1791754554], [1665389704, 1657277303, 1526802071, -1669993011, -1548126454, -1442499742], [-943685996, -1459101130, 1159107264, 364036992, 1769723423, -1795714750]]> : tensor<4x6xi32>
    %cst_5 = stablehlo.constant dense<[[1.06541598, 1.2165283, 1.26975989, 1.35590613, 1.42359471, 1.22279143], [1.80125761, 1.28182805, 1.43813074, 1.92687094, 1.99752367, 1.41717529], [1.38775373, 1.38586485, 1.35548627, 1.61117435, 1.63954866, 1.66414177], [1.78028095, 1.66027653, 1.26987565, 1.08475888, 1.41204584, 1.5819025]]> : tensor<4x6xf32>
    %0 = stablehlo.optimization_barrier %c : tensor<4x6xui32>
    %1 = stablehlo.multiply %0, %0 : tensor<4x6xui32>
    %c_6 = stablehlo.constant dense<5> : tensor<ui32>
    %2 = stablehlo.broadcast_in_dim %c_6, dims = [] : (tensor<ui32>) -> tensor<4x6xui32>
    %3 = stablehlo.shift_right_logical %0, %2 : tensor<4x6xui32>
    %c_7 = stablehlo.constant dense<7> : tensor<ui32>
    %4 = stablehlo.broadcast_in_dim %c_7, dims = [] : (tensor<ui32>) -> tensor<4x6xui32>
    %5 = stablehlo.shift_left %0, %4 : tensor<4x6xui32>
    %c_8 = stablehlo.constant dense<3> : tensor<ui32>
    %6 = stablehlo.broadcast_in_dim %c_8, dims = [] : (tensor<ui32>) -> tensor<4x6xui32>
    %7 = stablehlo.shift_right_logical %0, %6 : tensor<4x6xui32>
    %8 = stablehlo.xor %0, %7 : tensor<4x6xui32>
    %9 = stablehlo.convert %0 : (tensor<4x6xui32>) -> tensor<4x6xf32>
    %10 = stablehlo.bitcast_convert %0 : (tensor<4x6xui32>) -> tensor<4x6xi32>
    %c_9 = stablehlo.constant dense<9> : tensor<ui32>
    %11 = stablehlo.broadcast_in_dim %c_9, dims = [] : (tensor<ui32>) -> tensor<4x6xui32>
    %12 = stablehlo.shift_right_logical %0, %11 : tensor<4x6xui32>
    %c_10 = stablehlo.constant dense<1065353216> : tensor<ui32>
    %13 = stablehlo.broadcast_in_dim %c_10, dims = [] : (tensor<ui32>) -> tensor<4x6xui32>
    %14 = stablehlo.or %12, %13 : tensor<4x6xui32>
    %15 = stablehlo.bitcast_convert %14 : (tensor<4x6xui32>) -> tensor<4x6xf32>
    return %1, %3, %5, %8, %9, %10, %15, %c_0, %c_1, %c_2, %c_3, %cst, %c_4, %cst_5 : tensor<4x6xui32>, tensor<4x6xui32>, tensor<4x6xui32>, tensor<4x6xui32>, tensor<4x6xf32>, tensor<4x6xi32>, tensor<4x6xf32>, tensor<4x6xui32>, tensor<4x6xui32>, tensor<4x6xui32>, tensor<4x6xui32>, tensor<4x6xf32>, tensor<4x6xi32>, tensor<4x6xf32>
  }
}
