//! Kernel argument pointers as memrefs.

use std::fmt::Write;

use of_emit::{Text, list, shaped};

/// Prints the memref of the tensor that kernel argument `i` points to, and returns its name. `element` is an MLIR type.
pub fn argument(text: &mut Text, i: usize, element: &str, dims: &[usize]) -> String {
    let (place, pointer, memory) = (text.fresh(), text.fresh(), text.fresh());
    text.line(&format!("{place} = llvm.getelementptr %args[{i}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr"));
    text.line(&format!("{pointer} = llvm.load {place} : !llvm.ptr -> !llvm.ptr"));
    memref(&mut text.lines, &memory, &pointer, element, dims);
    memory
}

/// Prints the definition of `name`, the row-major memref at `pointer`. Names with a dot cannot collide with other values.
/// The descriptor is that of a single element, in the form that `finalize-memref-to-llvm` expects, reinterpreted with the
/// full extents.
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
    let _ = writeln!(
        text,
        "    {name} = memref.reinterpret_cast {name}.one to offset: [0], sizes: {}, strides: {} : memref<{element}> \
         to memref<{}>",
        list(dims),
        list(&of_ops::shape::strides(dims)),
        shaped(element, dims)
    );
}
