//! Kernels as modules of WebAssembly: position-independent, on the memory and stack of the runtime's module.

use crate::toolchain::object::Blob;

/// Additional flags of clang, which calls LLVM's linker. Only with this environment the compiler makes position-independent code.
pub const FLAGS: &[&str] = &[
    "--target=wasm32-unknown-emscripten",
    "-fno-builtin",
    "-nostdlib",
    "-Wl,--shared",
    "-Wl,--no-entry",
    "-Wl,--export=kernel",
    "-Wl,--strip-all",
];

/// What a host gives the module of a kernel (`bindings/js/of_runtime.js`).
const GIVEN: [&str; 4] = ["memory", "__stack_pointer", "__memory_base", "__table_base"];

/// Why a module is no kernel.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// It does not parse.
    #[error("the linker's output is no module of WebAssembly")]
    Parse,
    /// It imports something else.
    #[error("the kernel needs '{0}', which it does not define")]
    Undefined(String),
}

/// The module of a kernel, if its host has all that it imports.
///
/// # Errors
/// When it imports something else, or does not parse.
pub fn check(bytes: Vec<u8>) -> Result<Blob, ModuleError> {
    let imports = imports(&bytes).ok_or(ModuleError::Parse)?;
    match imports.into_iter().find(|name| !GIVEN.contains(&name.as_str())) {
        Some(name) => Err(ModuleError::Undefined(name)),
        None => Ok(Blob { bytes, entry: 0 }),
    }
}

/// The names that a module imports.
///
/// Source: WebAssembly Core Specification 2.0, section 5.5.
fn imports(module: &[u8]) -> Option<Vec<String>> {
    const IMPORTS: u8 = 2;
    let mut rest = Reader(module.strip_prefix(b"\0asm\x01\0\0\0")?);
    let mut names = Vec::new();
    while !rest.0.is_empty() {
        let (kind, size) = (rest.byte()?, rest.number()?);
        let mut section = Reader(rest.take(size)?);
        if kind != IMPORTS {
            continue;
        }
        for _ in 0..section.number()? {
            let module_name = section.number()?;
            section.take(module_name)?;
            let name = section.number()?;
            names.push(String::from_utf8_lossy(section.take(name)?).into_owned());
            match section.byte()? {
                // A function has a type.
                0 => drop(section.number()?),
                // A table has a type of elements, then limits.
                1 => {
                    section.byte()?;
                    section.limits()?;
                }
                2 => section.limits()?,
                // A global has a type and whether it changes.
                3 => drop(section.take(2)?),
                _ => return None,
            }
        }
    }
    Some(names)
}

/// Bytes that are read from the start.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    /// A number of up to 32 bits in LEB128.
    fn number(&mut self) -> Option<usize> {
        let mut value = 0;
        for shift in (0..35).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return usize::try_from(value).ok();
            }
        }
        None
    }

    /// The least size, and the largest if the first byte says so.
    fn limits(&mut self) -> Option<()> {
        let has_largest = self.byte()? & 1 == 1;
        self.number()?;
        if has_largest {
            self.number()?;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A module that imports functions `env.NAME`.
    fn module(names: &[&str]) -> Vec<u8> {
        let mut section = vec![names.len() as u8];
        for name in names {
            section.extend([3, b'e', b'n', b'v', name.len() as u8]);
            section.extend(name.as_bytes());
            section.extend([0, 0]);
        }
        [b"\0asm\x01\0\0\0", &[2, section.len() as u8][..], &section].concat()
    }

    #[test]
    fn imports_of_a_module_are_those_that_the_host_has() {
        assert!(check(module(&["memory", "__stack_pointer"])).is_ok());
        let error = check(module(&["memory", "memcpy"])).unwrap_err();
        assert_eq!(error.to_string(), "the kernel needs 'memcpy', which it does not define");
    }

    #[test]
    fn damaged_modules_do_not_parse() {
        let whole = module(&["memory"]);
        for end in 0..whole.len() {
            // The header alone is a module.
            assert_eq!(check(whole[..end].to_vec()).is_ok(), end == 8, "{end}");
        }
        let long = [b"\0asm\x01\0\0\0", &[2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff][..]].concat();
        assert!(check(long).is_err());
    }
}
