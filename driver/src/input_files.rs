//! Input files: from folders, `.pb`, `.npy` and `.npz` files to values in the order of the model's inputs.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use of_diag::{Code, Diagnostic, Diagnostics};
use of_ir::{DType, Elements, Func, Tensor, Type};
use of_onnx::ModelInput;
use of_onnx::map_io::{self, Map, keys_of};
use of_ops::Value;
use of_passes::specialize::{Bindings, bind_input};
use of_plan::PlanFile;

use crate::error::{error, io_error};
use crate::images::{self, ImageOptions};
use crate::session::entry_point;
use crate::tensor_files as values;

/// A value for an input.
pub struct NamedValue {
    /// Name of the input.
    pub name: String,
    /// Its value.
    pub value: Value,
}

/// How the contents of files become values of inputs.
#[derive(Clone, Debug, Default)]
pub struct Conversion {
    /// Whether numbers become the element type of the input.
    pub cast: bool,
    /// How pixels become numbers.
    pub image: ImageOptions,
}

/// An input that values may be given for.
struct Port {
    name: String,
    ty: Option<Type>,
}

/// Which input a file is for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Key {
    Index(usize),
    Name(String),
}

/// Reads values for inputs of `func`, in any order; inputs may be missing.
///
/// # Errors
/// When a file cannot be read, or is for no input or for the same as another.
pub fn read(files: &[OsString], func: &Func, conversion: &Conversion) -> Result<Vec<NamedValue>, Diagnostics> {
    let ports: Vec<Port> =
        func.inputs.iter().zip(func.input_types()).map(|(n, ty)| Port { name: n.clone(), ty: Some(ty) }).collect();
    read_ports(files, &ports, conversion)
}

/// Reads a value for every input of a plan, in order.
///
/// # Errors
/// As [`read`], and when one is missing.
pub fn read_for_plan(files: &[OsString], plan: &PlanFile, conversion: &Conversion) -> Result<Vec<Value>, Diagnostics> {
    let program = entry_point(plan)?;
    let ports: Vec<Port> =
        program.inputs.iter().map(|p| Port { name: p.name.clone(), ty: values::port_type(p) }).collect();
    let text: Vec<String> = program.inputs.iter().map(|p| format!("{}: {}", p.name, p.type_text(&program))).collect();
    let given = read_ports(files, &ports, conversion)?;
    let ordered = order(given, ports.iter().map(|p| p.name.as_str()), &text)?;
    Ok(ordered.into_iter().map(|g| g.value).collect())
}

/// The names of the inputs with default values that `files` have values for: by `NAME=FILE`, `NAME.npy`, or
/// `input_N.pb` at their position in the model. Archives are not looked into.
///
/// Numbered files that are as many as the inputs without default values, from `input_0` on, are for these: the usual
/// test data of a model whose weights are inputs with default values.
pub(crate) fn given_defaults(files: &[OsString], inputs: &[ModelInput]) -> Vec<String> {
    let required = inputs.iter().filter(|input| !input.has_default).count();
    let given = |(position, input): &(usize, &ModelInput)| {
        files.iter().any(|item| {
            let path = Path::new(item);
            let numbered = |i: usize| ["pb", "npy"].iter().any(|e| path.join(format!("input_{i}.{e}")).is_file());
            let only_required = || (0..inputs.len()).all(|i| numbered(i) == (i < required));
            after_name(item, &input.name).is_some()
                || path.join(format!("{}.npy", input.name)).is_file()
                || (numbered(*position) && !only_required())
        })
    };
    inputs.iter().enumerate().filter(|(_, i)| i.has_default).filter(given).map(|(_, i)| i.name.clone()).collect()
}

/// Sorts values into the order of the inputs of `func`, and checks their element types.
///
/// # Errors
/// When one is missing or has another type.
pub fn in_order(given: Vec<NamedValue>, func: &Func) -> Result<Vec<NamedValue>, Diagnostics> {
    let types = func.input_types();
    let text: Vec<String> = func.inputs.iter().zip(&types).map(|(n, t)| format!("{n}: {t}")).collect();
    let ordered = order(given, func.inputs.iter().map(String::as_str), &text)?;
    let mut errors = Diagnostics::default();
    for (g, declared) in ordered.iter().zip(&types) {
        let Some(t) = values::type_of(&g.value) else { continue };
        let same_element = t.as_tensor().map(|t| t.dtype) == declared.as_tensor().map(|t| t.dtype);
        if !same_element {
            let what = format!("input '{}' is {t}, it must be {declared}", g.name);
            errors.0.push(Diagnostic::error(Code::INPUT, func.loc.clone(), what));
        }
    }
    errors.into_result(ordered)
}

/// Binds named dimensions to the extents of values.
///
/// # Errors
/// When shapes contradict the model or each other.
pub fn bind(given: &[NamedValue], func: &Func, bindings: &mut Bindings) -> Result<(), Diagnostics> {
    let mut errors = Diagnostics::default();
    for g in given {
        if let Value::Tensor(t) = &g.value
            && let Err(d) = bind_input(func, &g.name, t.dims(), bindings)
        {
            errors.0.push(d);
        }
    }
    errors.into_result(())
}

fn order<'a>(
    given: Vec<NamedValue>,
    names: impl Iterator<Item = &'a str>,
    text: &[String],
) -> Result<Vec<NamedValue>, Diagnostics> {
    let mut by_name: BTreeMap<String, NamedValue> = given.into_iter().map(|g| (g.name.clone(), g)).collect();
    let (mut ordered, mut missing) = (Vec::new(), Vec::new());
    for (name, text) in names.zip(text) {
        match by_name.remove(name) {
            Some(g) => ordered.push(g),
            None => missing.push(text.clone()),
        }
    }
    if missing.is_empty() {
        return Ok(ordered);
    }
    let what = format!("no value for input {}", missing.join(", "));
    Err(error(Code::INPUT, what).hint(
        "--inputs takes a folder with input_0.pb (or .npy) …, or NAME=FILE; --shape NAME=1x3 takes random values of that shape"
    ).into())
}

fn read_ports(files: &[OsString], ports: &[Port], conversion: &Conversion) -> Result<Vec<NamedValue>, Diagnostics> {
    let mut found: BTreeMap<Key, PathBuf> = BTreeMap::new();
    let mut given: Vec<Given> = Vec::new();
    let mut next = 0;
    for item in files {
        let (name, path) = split(item, ports);
        if name.is_none() && path.is_dir() {
            folder(&path, ports, &mut found)?;
        } else if name.is_none() && has_extension(&path, "npz") {
            given.extend(archive(&path, ports)?);
        } else {
            let key = name.map_or(Key::Index(next), Key::Name);
            next += usize::from(matches!(key, Key::Index(_)));
            insert(&mut found, key, path)?;
        }
    }
    given.extend(values_of(&found, ports, conversion)?);
    let mut seen: BTreeMap<&str, &Path> = BTreeMap::new();
    for Given { name, file, .. } in &given {
        if let Some(other) = seen.insert(name, file) {
            return Err(given_twice(&format!("input '{name}'"), other, file));
        }
    }
    let named = |Given { name, value, file }: Given| {
        let ty = ports.iter().find(|p| p.name == name).and_then(|p| p.ty.as_ref());
        let value = if conversion.cast { cast(value, ty, &name, &file)? } else { value };
        Ok(NamedValue { name, value })
    };
    given.into_iter().map(named).collect()
}

/// A value for an input, and the file that it is from.
struct Given {
    name: String,
    value: Value,
    file: PathBuf,
}

/// Notes which input a file is for.
fn insert(found: &mut BTreeMap<Key, PathBuf>, key: Key, path: PathBuf) -> Result<(), Diagnostics> {
    let what = match &key {
        Key::Index(i) => format!("input number {i}"),
        Key::Name(name) => format!("input '{name}'"),
    };
    match found.insert(key, path.clone()) {
        Some(other) => Err(given_twice(&what, &other, &path)),
        None => Ok(()),
    }
}

fn given_twice(what: &str, first: &Path, second: &Path) -> Diagnostics {
    let what = format!("{what} is given twice: by '{}' and by '{}'", first.display(), second.display());
    error(Code::INPUT, what).hint("leave out one of them").into()
}

/// A value as the element type of the input. Floats become integers where they are whole numbers.
fn cast(value: Value, ty: Option<&Type>, name: &str, file: &Path) -> Result<Value, Diagnostics> {
    let (Value::Tensor(tensor), Some(to)) = (&value, ty.and_then(Type::as_tensor)) else { return Ok(value) };
    if tensor.dtype() == to.dtype {
        return Ok(value);
    }
    let refuse = |why: String| {
        let what =
            format!("--cast: '{}' for input '{name}' holds {}, not {}", file.display(), tensor.dtype(), to.dtype);
        Diagnostics::from(error(Code::INPUT, format!("{what}, and {why}")))
    };
    let elements = match tensor.elements() {
        Elements::Str(_) => return Err(refuse("text is no number".into())),
        _ if to.dtype == DType::String => return Err(refuse("numbers are no text".into())),
        Elements::Float(v) if to.dtype.is_float() => Elements::Float(v),
        Elements::Int(v) if to.dtype.is_float() => Elements::Float(v.into_iter().map(|x| x as f64).collect()),
        Elements::Int(v) => Elements::Int(v),
        Elements::Float(v) => {
            let whole = |x: &f64| x.fract() == 0.0 && x.abs() < 1e30;
            if let Some(x) = v.iter().find(|x| !whole(x)) {
                return Err(refuse(format!("{x} is no integer")));
            }
            Elements::Int(v.into_iter().map(|x| x as i128).collect())
        }
    };
    // Integers that the type cannot hold are wrong, not wrapped.
    if let Elements::Int(v) = &elements
        && let Some((least, most)) = to.dtype.int_range()
        && let Some(x) = v.iter().find(|x| **x < least || **x > most)
    {
        return Err(refuse(format!("{x} is out of its range")));
    }
    let cast = Tensor::from_elements(to.dtype, tensor.dims().to_vec(), elements).map_err(|e| refuse(e.to_string()))?;
    Ok(Value::Tensor(cast))
}

/// `NAME=FILE`, or a file or folder whose name may hold `=`.
fn split(item: &OsStr, ports: &[Port]) -> (Option<String>, PathBuf) {
    // The longest name first: names of inputs may hold `=` as well.
    let mut names: Vec<&str> = ports.iter().map(|p| p.name.as_str()).collect();
    of_ir::sort::by_key(&mut names, |n| std::cmp::Reverse(n.len()));
    if let Some((name, path)) = names.iter().find_map(|n| Some((*n, after_name(item, n)?))) {
        return (Some(name.to_owned()), path);
    }
    let bytes = item.as_bytes();
    match bytes.iter().position(|b| *b == b'=') {
        Some(at) if !Path::new(item).exists() => {
            (Some(String::from_utf8_lossy(&bytes[..at]).into_owned()), OsStr::from_bytes(&bytes[at + 1..]).into())
        }
        _ => (None, item.into()),
    }
}

/// The path in `NAME=PATH`. Names are UTF-8; paths may be any bytes.
fn after_name(item: &OsStr, name: &str) -> Option<PathBuf> {
    let path = item.as_bytes().strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
    Some(OsStr::from_bytes(path).into())
}

fn has_extension(path: &Path, ext: &str) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case(ext))
}

/// `input_3.pb`, or `NAME.npy` for an input of that name. Other files in the folder are ignored.
fn folder(dir: &Path, ports: &[Port], found: &mut BTreeMap<Key, PathBuf>) -> Result<(), Diagnostics> {
    let entries = std::fs::read_dir(dir).map_err(|e| io_error(dir, "read", &e))?;
    let mut any = false;
    for entry in entries {
        let path = entry.map_err(|e| io_error(dir, "read", &e))?.path();
        let Some(stem) = path.file_stem().and_then(|s| s.to_str()) else { continue };
        if !has_extension(&path, "pb") && !has_extension(&path, "npy") {
            continue;
        }
        let index = stem.strip_prefix("input_").and_then(|n| n.parse().ok());
        let key = match index {
            Some(i) => Key::Index(i),
            None if ports.iter().any(|p| p.name == stem) => Key::Name(stem.into()),
            None => continue,
        };
        any = true;
        insert(found, key, path)?;
    }
    if any || ports.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = ports.iter().map(|p| p.name.as_str()).collect();
    let what = format!("'{}' holds no inputs", dir.display());
    Err(error(Code::INPUT, what)
        .hint(format!("it must hold input_0.pb (or .npy) …, or NAME.npy for {}", names.join(", ")))
        .into())
}

/// Arrays of an archive: by name, or `arr_0` … in order.
fn archive(path: &Path, ports: &[Port]) -> Result<Vec<Given>, Diagnostics> {
    let mut out = Vec::new();
    for (name, value) in values::read_npz(path)? {
        let by_index = || ports.get(name.strip_prefix("arr_")?.parse::<usize>().ok()?);
        let port = ports.iter().find(|p| p.name == name).or_else(by_index);
        let Some(port) = port else { return Err(no_input(&Key::Name(name), path, ports)) };
        out.push(Given { name: port.name.clone(), value, file: path.into() });
    }
    Ok(out)
}

fn values_of(
    found: &BTreeMap<Key, PathBuf>,
    ports: &[Port],
    conversion: &Conversion,
) -> Result<Vec<Given>, Diagnostics> {
    let mut out = Vec::new();
    // The names that the files themselves give.
    let mut names_in_files: Vec<Option<String>> = Vec::new();
    // A file of a map is for two ports.
    let mut maps = 0;
    for (key, path) in found {
        let port = match key {
            Key::Index(i) => ports.get(*i + maps),
            Key::Name(n) => ports.iter().find(|p| p.name == *n),
        };
        let Some(port) = port else { return Err(no_input(key, path, ports)) };
        let mut put = |port: &Port, value: Value, name: Option<String>| {
            names_in_files.push(if matches!(key, Key::Index(_)) { name } else { Some(port.name.clone()) });
            out.push(Given { name: port.name.clone(), value, file: path.clone() });
        };
        if let Some((keys, map)) = map(path, port, ports)? {
            maps += usize::from(matches!(key, Key::Index(_)));
            let name = Some(map.name).filter(|n| !n.is_empty());
            put(keys, Value::Tensor(map.keys), name.as_deref().map(keys_of));
            put(port, Value::Tensor(map.values), name);
            continue;
        }
        let file = read_value(path, port, conversion)?;
        put(port, file.value, file.name);
    }
    // Names in the files decide when every file has one and they do not conflict.
    let mut names: Vec<&str> = names_in_files.iter().flatten().map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    if names.len() == out.len() && names.iter().all(|n| ports.iter().any(|p| p.name == **n)) {
        for (given, own) in out.iter_mut().zip(names_in_files) {
            given.name = own.unwrap_or_default();
        }
    }
    Ok(out)
}

/// The map in a file for `port`, and the port of its keys; `None` where the input is no map, or the file holds its values alone.
fn map<'a>(path: &Path, port: &Port, ports: &'a [Port]) -> Result<Option<(&'a Port, Map)>, Diagnostics> {
    let keys = ports.iter().find(|p| p.name == keys_of(&port.name)).filter(|_| has_extension(path, "pb"));
    let Some(keys) = keys else { return Ok(None) };
    Ok(map_io::read(path)?.map(|map| (keys, map)))
}

/// Reads a file for an input: an image, or what [`values::read`] reads.
fn read_value(path: &Path, port: &Port, conversion: &Conversion) -> Result<values::Named, Diagnostics> {
    if images::is_image(path) {
        let value = Value::Tensor(images::read(path, port.ty.as_ref(), &port.name, &conversion.image)?);
        return Ok(values::Named { name: None, value });
    }
    values::read(path, port.ty.as_ref())
}

fn no_input(key: &Key, path: &Path, ports: &[Port]) -> Diagnostics {
    let which = match key {
        Key::Index(i) => format!("input number {i}"),
        Key::Name(n) => format!("input '{n}'"),
    };
    let names: Vec<&str> = ports.iter().map(|p| p.name.as_str()).collect();
    let what = format!("the model has no {which}, which '{}' is for", path.display());
    let hint =
        if names.is_empty() { "it has no inputs".into() } else { format!("its inputs are {}", names.join(", ")) };
    error(Code::INPUT, what).hint(hint).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(names: &[&str]) -> Vec<Port> {
        names.iter().map(|n| Port { name: (*n).into(), ty: None }).collect()
    }

    #[test]
    fn names_are_split_from_files() {
        let p = ports(&["x", "a=b"]);
        let cases: [(&[u8], Option<&str>, &[u8]); 5] = [
            (b"x=f.npy", Some("x"), b"f.npy"),
            (b"a=b=f=g.npy", Some("a=b"), b"f=g.npy"),
            (b"y=f.npy", Some("y"), b"f.npy"),
            (b"f.npy", None, b"f.npy"),
            (b"x=\xff.npy", Some("x"), b"\xff.npy"),
        ];
        for (item, name, path) in cases {
            let expected = (name.map(String::from), OsStr::from_bytes(path).into());
            assert_eq!(split(OsStr::from_bytes(item), &p), expected);
        }
    }

    #[test]
    fn folders_are_read_by_number_or_name() {
        let dir = tempfile::tempdir().unwrap();
        for f in ["input_0.pb", "y.npy", "output_0.pb", "z.npy", "readme.txt"] {
            std::fs::write(dir.path().join(f), b"").unwrap();
        }
        let mut found = BTreeMap::new();
        folder(dir.path(), &ports(&["x", "y"]), &mut found).unwrap();
        let keys: Vec<_> = found.into_keys().collect();
        assert_eq!(keys, [Key::Index(0), Key::Name("y".into())]);
        std::fs::write(dir.path().join("input_0.npy"), b"").unwrap();
        assert!(folder(dir.path(), &ports(&["x"]), &mut BTreeMap::new()).is_err());
    }

    #[test]
    fn files_for_inputs_with_defaults_are_found() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("input_2.pb"), b"").unwrap();
        std::fs::write(dir.path().join("v.npy"), b"").unwrap();
        let inputs = [("x", false), ("u", true), ("w", true), ("v", true)]
            .map(|(name, has_default)| ModelInput { name: name.to_owned(), has_default });
        assert_eq!(given_defaults(&[dir.path().into()], &inputs), ["w", "v"]);
        assert_eq!(given_defaults(&["u=f.npy".into()], &inputs), ["u"]);
        assert!(given_defaults(&["x=f.npy".into()], &inputs).is_empty());
    }

    #[test]
    fn numbered_files_for_the_required_inputs_alone_skip_defaults() {
        let dir = tempfile::tempdir().unwrap();
        let folder = [dir.path().into()];
        let inputs = [("w", true), ("x", false), ("b", true), ("y", false)]
            .map(|(name, has_default)| ModelInput { name: name.to_owned(), has_default });
        let write = |i: usize| std::fs::write(dir.path().join(format!("input_{i}.pb")), b"").unwrap();
        write(0);
        write(1);
        assert!(given_defaults(&folder, &inputs).is_empty());
        write(2);
        write(3);
        assert_eq!(given_defaults(&folder, &inputs), ["w", "b"]);
    }

    #[test]
    fn missing_inputs_are_named_with_their_types() {
        let e = order(Vec::new(), ["x"].into_iter(), &["x: tensor<1xf32>".into()]).err().unwrap();
        assert_eq!(e.0[0].message, "no value for input x: tensor<1xf32>");
    }
}
