//! Temporaries: allocations of bufferization become offsets in the kernel's scratch memory, so that kernels call no
//! allocator.

use crate::emit::pointer;

/// Buffers start at multiples of this.
const ALIGN: u64 = 64;

/// Replaces every `memref.alloc` of the printed module by an offset in scratch memory, and returns the bytes needed. A
/// `memref.dealloc` frees the range for later buffers. Copies become ops of linalg, since `memref.copy` may be a call.
///
/// # Errors
/// When a buffer is allocated outside the top level of the kernel, or its extents are symbolic.
pub fn planned(text: &str) -> Result<(String, u64), String> {
    let mut out = String::with_capacity(text.len());
    let mut memory = Memory::default();
    for line in text.lines() {
        if let Some((name, rest)) = line.split_once(" = memref.alloc()") {
            // Top-level statements are indented by four blanks, those of loops by more.
            let own = name.strip_prefix("    %").filter(|n| !n.starts_with(' '));
            let own = own.ok_or("a buffer is allocated inside of a loop")?;
            let (element, dims) = shape(rest).ok_or_else(|| format!("a buffer of unknown size: {rest}"))?;
            let bytes = dims.iter().product::<usize>() as u64 * size(&element).ok_or("elements of unknown size")?;
            let name = format!("%{own}");
            let at = memory.take(&name, bytes);
            out.push_str(&format!(
                "    {name}.o = llvm.mlir.constant({at} : i64) : i64\n    {name}.p = llvm.getelementptr %arg3[{name}.o] : \
                 (!llvm.ptr, i64) -> !llvm.ptr, i8\n"
            ));
            pointer::memref(&mut out, &name, &format!("{name}.p"), &element, &dims);
        } else if let Some(rest) = line.trim_start().strip_prefix("memref.dealloc ") {
            memory.free(rest.split(' ').next().unwrap_or_default());
        } else if let Some((from, to, a, b)) = copy(line) {
            // An in-place update in a loop copies a buffer onto itself.
            if from != to {
                out.push_str(&format!("    linalg.copy ins({from} : {a}) outs({to} : {b})\n"));
            }
        } else if line.contains("memref.alloc") {
            return Err(format!("a buffer of unknown size: {}", line.trim()));
        } else {
            out.push_str(line);
            out.push('\n');
        }
    }
    Ok((out, memory.high))
}

/// `memref.copy %a, %b : T to U`.
fn copy(line: &str) -> Option<(&str, &str, &str, &str)> {
    let (names, types) = line.trim_start().strip_prefix("memref.copy ")?.split_once(" : ")?;
    let ((from, to), (a, b)) = (names.split_once(", ")?, types.split_once(" to ")?);
    Some((from, to, a, b))
}

/// Element type and extents of `… : memref<2x3xf32>`.
fn shape(text: &str) -> Option<(String, Vec<usize>)> {
    let inner = text.split_once("memref<")?.1.strip_suffix('>')?;
    let mut parts: Vec<&str> = inner.split('x').collect();
    let element = parts.pop()?.to_string();
    Some((element, parts.iter().map(|d| d.parse().ok()).collect::<Option<_>>()?))
}

/// Bytes of an element.
fn size(element: &str) -> Option<u64> {
    let bits: u64 = element.trim_start_matches("bf").trim_start_matches(['f', 'i']).parse().ok()?;
    Some(bits.div_ceil(8))
}

/// Live buffers, by offset.
#[derive(Default)]
struct Memory {
    live: Vec<(u64, u64, String)>,
    high: u64,
}

impl Memory {
    /// The lowest free offset.
    fn take(&mut self, name: &str, bytes: u64) -> u64 {
        let bytes = bytes.max(1).next_multiple_of(ALIGN);
        let mut at = 0;
        let mut index = 0;
        for (start, len, _) in &self.live {
            if at + bytes <= *start {
                break;
            }
            at = start + len;
            index += 1;
        }
        self.live.insert(index, (at, bytes, name.to_string()));
        self.high = self.high.max(at + bytes);
        at
    }

    fn free(&mut self, name: &str) {
        self.live.retain(|(_, _, own)| own != name);
    }
}

#[cfg(test)]
mod tests {
    use super::planned;

    #[test]
    fn buffers_reuse_freed_memory() {
        let text = "\
  func.func @kernel(%arg0: !llvm.ptr, %arg1: i64, %arg2: i64, %arg3: !llvm.ptr) -> i32 {
    %alloc = memref.alloc() {alignment = 64 : i64} : memref<4x4xf32>
    %alloc_0 = memref.alloc() {alignment = 64 : i64} : memref<3xbf16>
    memref.dealloc %alloc : memref<4x4xf32>
    %alloc_1 = memref.alloc() : memref<i64>
    %alloc_2 = memref.alloc() : memref<100xi8>
    memref.copy %alloc_1, %arg4 : memref<i64> to memref<i64, strided<[]>>
";
        let (out, bytes) = planned(text).unwrap();
        let places: Vec<&str> = out
            .lines()
            .filter_map(|l| l.trim().split_once(".o = llvm.mlir.constant("))
            .map(|(_, r)| r.split(' ').next().unwrap())
            .collect();
        assert_eq!((places, bytes), (vec!["0", "64", "0", "128"], 256));
        assert!(
            out.contains("linalg.copy ins(%alloc_1 : memref<i64>) outs(%arg4 : memref<i64, strided<[]>>)"),
            "{out}"
        );
        assert!(!out.contains("memref.dealloc"), "{out}");
    }

    #[test]
    fn buffers_in_loops_or_with_symbolic_extents_are_rejected() {
        assert!(planned("      %a = memref.alloc() : memref<2xf32>\n").is_err());
        assert!(planned("    %a = memref.alloc(%n) : memref<?xf32>\n").is_err());
    }
}
