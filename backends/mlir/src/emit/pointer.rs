//! Memory that the caller gives as pointers, as memrefs.

use std::fmt::Write;

/// Prints the memref of the tensor that argument `i` of the kernel points to, and gives its name. `element` is a type of
/// MLIR; `next` counts the names that were given.
pub fn argument(text: &mut String, next: &mut usize, i: usize, element: &str, dims: &[usize]) -> String {
    let mut name = || {
        *next += 1;
        format!("%v{}", *next - 1)
    };
    let (place, pointer, memory) = (name(), name(), name());
    let _ = writeln!(text, "    {place} = llvm.getelementptr %args[{i}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr");
    let _ = writeln!(text, "    {pointer} = llvm.load {place} : !llvm.ptr -> !llvm.ptr");
    memref(text, &memory, &pointer, element, dims);
    memory
}

/// Prints the definition of `name`, the memref at `pointer`, row-major: names with a dot are those of no other
/// value. It is the descriptor of a single element, as
/// `finalize-memref-to-llvm` knows it, seen as what it is the first of.
pub fn memref(text: &mut String, name: &str, pointer: &str, element: &str, dims: &[usize]) {
    const DESCRIPTOR: &str = "!llvm.struct<(ptr, ptr, i64)>";
    let _ = writeln!(text, "    {name}.d = llvm.mlir.poison : {DESCRIPTOR}");
    let _ = writeln!(text, "    {name}.c = llvm.mlir.constant(0 : i64) : i64");
    let mut last = format!("{name}.d");
    for (at, value) in [pointer, pointer, &format!("{name}.c")].into_iter().enumerate() {
        let _ = writeln!(text, "    {name}.{at} = llvm.insertvalue {value}, {last}[{at}] : {DESCRIPTOR}");
        last = format!("{name}.{at}");
    }
    let _ = writeln!(
        text,
        "    {name}.one = builtin.unrealized_conversion_cast {last} : {DESCRIPTOR} to memref<{element}>"
    );
    let shape: String = dims.iter().map(|d| format!("{d}x")).collect();
    let list = |n: &[usize]| n.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let _ = writeln!(
        text,
        "    {name} = memref.reinterpret_cast {name}.one to offset: [0], sizes: [{}], strides: [{}] : memref<{element}> \
         to memref<{shape}{element}>",
        list(dims),
        list(&of_ops::shape::strides(dims))
    );
}
