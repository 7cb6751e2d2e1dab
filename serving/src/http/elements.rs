//! The elements of tensors as JSON: read from text straight to the bytes of a tensor, and written straight to the body.
//!
//! A float is the nearest one to its decimal, without a rounding to another type before. It is written with as few digits as tell it apart
//! from all others.

use bytes::Bytes;
use of_plan::ElementType;
use of_runtime::{Element, Tensor};

use crate::datatype;
use crate::error::ServeError;
use crate::infer::{OutputTensor, tensor};

/// Most arrays inside of one another, as for all other JSON of a request.
const DEPTH: usize = 124;

/// Reads a tensor from an array, flat or nested as the extents say. The text must be JSON.
///
/// # Errors
/// When an element is not of the type, or the number of elements is not that of the extents.
pub fn read(dtype: ElementType, shape: &[i64], text: &str) -> Result<Tensor, ServeError> {
    match dtype {
        ElementType::I1 => numbers(shape, text, "a Boolean", boolean),
        ElementType::Ui8 => numbers(shape, text, "a UINT8", integer::<u8>),
        ElementType::Ui16 => numbers(shape, text, "a UINT16", integer::<u16>),
        ElementType::Ui32 => numbers(shape, text, "a UINT32", integer::<u32>),
        ElementType::Ui64 => numbers(shape, text, "a UINT64", integer::<u64>),
        ElementType::I8 => numbers(shape, text, "an INT8", integer::<i8>),
        ElementType::I16 => numbers(shape, text, "an INT16", integer::<i16>),
        ElementType::I32 => numbers(shape, text, "an INT32", integer::<i32>),
        ElementType::I64 => numbers(shape, text, "an INT64", integer::<i64>),
        ElementType::F32 => numbers(shape, text, "a number in the range of FP32", |at| {
            fast_float2::parse_partial::<f32, _>(at).ok().filter(|(x, _)| x.is_finite())
        }),
        ElementType::F64 => numbers(shape, text, "a number in the range of FP64", |at| {
            fast_float2::parse_partial::<f64, _>(at).ok().filter(|(x, _)| x.is_finite())
        }),
        ElementType::String => {
            let mut texts = Vec::new();
            each(text.as_bytes(), "a string", |at| {
                let (text, len) = string(at)?;
                texts.push(text);
                Some(len)
            })?;
            Ok(Tensor::from_strings(shape, texts)?)
        }
        _ => Err(ServeError::unsupported("JSON has no elements of this datatype; send the tensor as binary data")),
    }
}

/// The first element of a text, and its length.
type First<T> = Option<(T, usize)>;

fn numbers<T: Element>(
    shape: &[i64],
    text: &str,
    what: &str,
    first: impl Fn(&[u8]) -> First<T>,
) -> Result<Tensor, ServeError> {
    // No text has more elements than half of its length, with a comma behind each.
    let expected = T::DTYPE.byte_len(shape).and_then(|len| usize::try_from(len).ok()).unwrap_or(0);
    let mut bytes = vec![0; expected.min((text.len() / 2 + 1) * size_of::<T>())];
    let mut places = bytes.chunks_exact_mut(size_of::<T>());
    let count = each(text.as_bytes(), what, |at| {
        let (element, len) = first(at)?;
        places.next().into_iter().for_each(|place| element.store(place));
        Some(len)
    })?;
    // A wrong number of elements is reported as for binary data.
    bytes.resize(count * size_of::<T>(), 0);
    tensor(T::DTYPE, shape, Bytes::from(bytes))
}

/// Takes the elements of nested arrays, in order, and counts them. `take` says how long one is; `None` if it is not what it must be.
fn each(text: &[u8], what: &str, mut take: impl FnMut(&[u8]) -> Option<usize>) -> Result<usize, ServeError> {
    let (mut at, mut depth, mut number) = (0, 0, 0_usize);
    while let Some(byte) = text.get(at) {
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' | b',' => at += 1,
            b'[' if depth == DEPTH => {
                let what = format!("'data' has more than {DEPTH} arrays inside of one another");
                return Err(ServeError::invalid(what));
            }
            b'[' => (at, depth) = (at + 1, depth + 1),
            b']' => (at, depth) = (at + 1, depth - 1),
            _ => {
                let wrong = || ServeError::invalid(format!("element {number} of 'data' is not {what}"));
                at += take(&text[at..]).ok_or_else(wrong)?;
                number += 1;
            }
        }
    }
    Ok(number)
}

/// The text of the number or word at the start.
fn word(text: &[u8]) -> &str {
    let end = text.iter().position(|b| matches!(b, b',' | b']' | b' ' | b'\t' | b'\n' | b'\r' | b'}'));
    std::str::from_utf8(&text[..end.unwrap_or(text.len())]).unwrap_or_default()
}

fn integer<T: std::str::FromStr>(text: &[u8]) -> First<T> {
    let word = word(text);
    Some((word.parse().ok()?, word.len()))
}

fn boolean(text: &[u8]) -> First<bool> {
    match word(text) {
        "true" => Some((true, 4)),
        "false" => Some((false, 5)),
        "1" => Some((true, 1)),
        "0" => Some((false, 1)),
        _ => None,
    }
}

fn string(text: &[u8]) -> First<String> {
    let mut end = 1;
    loop {
        end += match text.get(end)? {
            b'"' => break,
            b'\\' => 2,
            _ => 1,
        };
    }
    let string = text.get(..=end)?;
    Some((serde_json::from_slice(string).ok()?, string.len()))
}

/// Writes the elements of a tensor, with commas between them.
///
/// # Errors
/// When JSON has no such elements.
pub fn write(output: &OutputTensor, out: &mut Vec<u8>) -> Result<(), ServeError> {
    let data = &output.data;
    match output.dtype {
        ElementType::I1 => all(data, out, |x: bool, out| out.extend_from_slice(if x { b"true," } else { b"false," })),
        ElementType::Ui8 => integers::<u8>(data, out),
        ElementType::Ui16 => integers::<u16>(data, out),
        ElementType::Ui32 => integers::<u32>(data, out),
        ElementType::Ui64 => integers::<u64>(data, out),
        ElementType::I8 => integers::<i8>(data, out),
        ElementType::I16 => integers::<i16>(data, out),
        ElementType::I32 => integers::<i32>(data, out),
        ElementType::I64 => integers::<i64>(data, out),
        ElementType::F32 if data.chunks_exact(4).all(|part| f32::load(part).is_finite()) => {
            floats(data, out, |x: f32| Some(x as i32).filter(|n| (*n as f32).to_bits() == x.to_bits()))
        }
        ElementType::F64 if data.chunks_exact(8).all(|part| f64::load(part).is_finite()) => {
            floats(data, out, |x: f64| Some(x as i32).filter(|n| f64::from(*n).to_bits() == x.to_bits()))
        }
        ElementType::F32 | ElementType::F64 => {
            let what =
                format!("output '{}' has NaN or an infinity, which JSON lacks; ask for binary data", output.name);
            return Err(ServeError::unsupported(what));
        }
        ElementType::String => {
            for text in datatype::decode_texts(data)? {
                out.extend_from_slice(serde_json::Value::from(text).to_string().as_bytes());
                out.push(b',');
            }
        }
        _ => {
            let what = format!("JSON has no {} of output '{}'; ask for binary data", output.datatype(), output.name);
            return Err(ServeError::unsupported(what));
        }
    }
    // Each element has a comma behind it.
    if !data.is_empty() {
        out.pop();
    }
    Ok(())
}

fn all<T: Element>(bytes: &[u8], out: &mut Vec<u8>, write: impl Fn(T, &mut Vec<u8>)) {
    // At least a digit and a comma for each.
    out.reserve(bytes.len() / size_of::<T>() * 2);
    bytes.chunks_exact(size_of::<T>()).for_each(|part| write(T::load(part), out));
}

fn integers<T: Element + itoa::Integer>(bytes: &[u8], out: &mut Vec<u8>) {
    all(bytes, out, |x: T, out| {
        out.extend_from_slice(itoa::Buffer::new().format(x).as_bytes());
        out.push(b',');
    });
}

/// Writes floats. Those that are short integers, which `integer` finds, take a third of the time of others.
fn floats<T: Element + zmij::Float>(bytes: &[u8], out: &mut Vec<u8>, integer: impl Fn(T) -> Option<i32>) {
    all(bytes, out, |x: T, out| match integer(x).filter(|n| n.unsigned_abs() < 10_000_000) {
        Some(n) => {
            out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
            out.extend_from_slice(b".0,");
        }
        None => {
            out.extend_from_slice(zmij::Buffer::new().format_finite(x).as_bytes());
            out.push(b',');
        }
    });
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn message<T>(result: Result<T, ServeError>) -> String {
        result.err().map(|e| e.message).unwrap_or_default()
    }

    fn f32s(text: &str) -> Vec<f32> {
        let count = text.matches(',').count() as i64 + 1;
        read(ElementType::F32, &[count], text).unwrap().to_elements().unwrap()
    }

    #[test]
    fn floats_are_the_nearest_ones_to_their_decimals() {
        // A hair above the middle of two floats: rounded to f64 first, it is the middle, and then the even one below.
        assert_eq!(f32s("[1.00000005960464477539062500001]"), [1.000_000_1]);
        assert_eq!(f32s("[1.000000059604644775390625]"), [1.0]);
        // Likewise where f32 has fewer bits.
        assert_eq!(f32s("[7.00649232162408535461864791644958065640130970938257885878534141e-46]"), [0.0]);
        assert_eq!(f32s("[7.00649232162408535461864791644958065640130970938257885878534142e-46]"), [f32::from_bits(1)]);
        assert_eq!(f32s("[-0, 0.0e5, 1E+2, 12e-1, 3.4028235e38]"), [0.0, 0.0, 100.0, 1.2, f32::MAX]);
        assert!(f32s("[-0]")[0].is_sign_negative());
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..50_000 {
            let (digits, point, power) = (random.u64(..), random.u32(0..18), random.i32(-60..40));
            let whole = digits / 10_u64.pow(point);
            let text = format!("{whole}.{}e{power}", digits % 10_u64.pow(point));
            let x: f32 = text.parse().unwrap();
            match x.is_finite() {
                true => assert_eq!(f32s(&format!("[{text}]"))[0].to_bits(), x.to_bits(), "{text}"),
                false => assert!(read(ElementType::F32, &[1], &text).is_err(), "{text}"),
            }
            let x = f32::from_bits(random.u32(..));
            let y = f64::from_bits(random.u64(..));
            if x.is_finite() && y.is_finite() {
                assert_eq!(f32s(&format!("[{x:?}]"))[0].to_bits(), x.to_bits());
                let read = read(ElementType::F64, &[1], &format!("[{y:?}]")).unwrap();
                assert_eq!(read.to_elements::<f64>().unwrap()[0].to_bits(), y.to_bits());
            }
        }
    }

    /// Elements from a tree of values, which is how they were defined first.
    fn of_tree(value: &Value, out: &mut Vec<Value>) {
        match value {
            Value::Array(values) => values.iter().for_each(|v| of_tree(v, out)),
            element => out.push(element.clone()),
        }
    }

    /// A random array of the type: its text with spaces, nested or flat.
    fn random_text(random: &mut fastrand::Rng, element: &mut impl FnMut(&mut fastrand::Rng) -> String) -> String {
        let space = |random: &mut fastrand::Rng| ["", " ", "\n\t", "\r "][random.usize(..4)];
        let parts: Vec<String> = (0..random.usize(..6))
            .map(|_| {
                let part = if random.u8(..3) == 0 { random_text(random, element) } else { element(random) };
                format!("{}{part}{}", space(random), space(random))
            })
            .collect();
        format!("[{}]", parts.join(","))
    }

    #[test]
    fn elements_are_those_of_a_tree() {
        let mut random = fastrand::Rng::with_seed(2);
        let texts = ["", "a", "\\\"", "\\\\", "\\u00e9\\ud83d\\ude00", "[1,2]", "é, ]", "\\n\\/"];
        for round in 0..4000 {
            let mut element = |random: &mut fastrand::Rng| match round % 5 {
                0 => random.i32(..).to_string(),
                1 => random.u8(..).to_string(),
                2 => ["true", "false", "1", "0"][random.usize(..4)].to_owned(),
                3 => format!("\"{}\"", texts[random.usize(..texts.len())]),
                _ => random.i64(..).to_string(),
            };
            let text = random_text(&mut random, &mut element);
            let mut flat = Vec::new();
            of_tree(&serde_json::from_str(&text).unwrap(), &mut flat);
            let shape = [flat.len() as i64];
            let tensor = |dtype| read(dtype, &shape, &text).unwrap_or_else(|e| panic!("{text}: {e}"));
            let integers = || flat.iter().map(|v| v.as_i64().unwrap());
            match round % 5 {
                0 => assert!(
                    tensor(ElementType::I32).to_elements::<i32>().unwrap().into_iter().map(i64::from).eq(integers())
                ),
                1 => assert!(
                    tensor(ElementType::Ui8).to_elements::<u8>().unwrap().into_iter().map(i64::from).eq(integers())
                ),
                2 => {
                    let expected = flat.iter().map(|v| v.as_bool().unwrap_or_else(|| v.as_u64() == Some(1)));
                    assert!(tensor(ElementType::I1).to_elements::<bool>().unwrap().into_iter().eq(expected));
                }
                3 => {
                    assert!(
                        tensor(ElementType::String)
                            .strings()
                            .unwrap()
                            .iter()
                            .eq(flat.iter().map(|v| v.as_str().unwrap()))
                    );
                }
                _ => assert!(tensor(ElementType::I64).to_elements::<i64>().unwrap().into_iter().eq(integers())),
            }
        }
    }

    #[test]
    fn wrong_elements_are_named_by_their_number() {
        for (dtype, text, what) in [
            (ElementType::F32, "[1, \"a\"]", "element 1 of 'data' is not a number in the range of FP32"),
            (ElementType::F32, "[1, [2, null]]", "element 2 of 'data' is not a number"),
            (ElementType::F32, "[1e39]", "element 0 of 'data' is not a number in the range of FP32"),
            (ElementType::F64, "[1e400]", "element 0 of 'data' is not a number in the range of FP64"),
            (ElementType::F32, "[{\"a\": [1]}]", "element 0 of 'data' is not a number"),
            (ElementType::F32, "[true]", "element 0 of 'data' is not a number"),
            (ElementType::I8, "[-128, 127, 128]", "element 2 of 'data' is not an INT8"),
            (ElementType::I32, "[1.0]", "element 0 of 'data' is not an INT32"),
            (ElementType::I32, "[1e2]", "element 0 of 'data' is not an INT32"),
            (ElementType::Ui64, "[18446744073709551615, -1]", "element 1 of 'data' is not a UINT64"),
            (ElementType::I64, "[9223372036854775808]", "element 0 of 'data' is not an INT64"),
            (ElementType::I1, "[true, 2]", "element 1 of 'data' is not a Boolean"),
            (ElementType::String, "[\"a\", 1]", "element 1 of 'data' is not a string"),
            (ElementType::String, "[\"\\ud800\"]", "element 0 of 'data' is not a string"),
            (ElementType::F16, "[1]", "JSON has no elements of this datatype"),
        ] {
            let error = message(read(dtype, &[1], text));
            assert!(error.contains(what), "{text}: {error}");
        }
        for (shape, text, what) in [
            (&[3][..], "[1, 2]", "holds 12 bytes, not 8"),
            (&[1], "[1, 2]", "holds 4 bytes, not 8"),
            (&[i64::MAX, 2], "[1]", "cannot have element type"),
            (&[-1], "[]", "cannot have element type"),
        ] {
            let error = message(read(ElementType::F32, shape, text));
            assert!(error.contains(what), "{text}: {error}");
        }
        let deep = |depth: usize| read(ElementType::F32, &[1], &("[".repeat(depth) + "1" + &"]".repeat(depth)));
        assert!(deep(DEPTH).is_ok());
        assert!(message(deep(DEPTH + 1)).contains("arrays inside of one another"));
        assert!(deep(1 << 20).is_err());
        assert_eq!(read(ElementType::F32, &[], "1.5").unwrap().to_elements::<f32>(), Some(vec![1.5]));
    }

    fn written<T: Element>(elements: &[T]) -> String {
        let tensor = Tensor::from_elements([elements.len() as i64], elements).unwrap();
        let mut out = Vec::new();
        write(&OutputTensor::of_value("y", tensor.into()).unwrap(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn elements_are_written_and_read_again() {
        assert_eq!(written(&[1.0_f32, -0.0, 0.1, 16_777_216.0, -7.0, 1e-7]), "1.0,-0.0,0.1,16777216.0,-7.0,1e-7");
        assert_eq!(written(&[0.1_f64, 1e300, 9_999_999.0, -1e7]), "0.1,1e+300,9999999.0,-10000000.0");
        assert_eq!(written(&[true, false]), "true,false");
        assert_eq!((written(&[i8::MIN, 5]), written(&[u64::MAX])), ("-128,5".into(), "18446744073709551615".into()));
        let mut random = fastrand::Rng::with_seed(3);
        let floats: Vec<f32> =
            (0..20_000)
                .map(|i| {
                    if i % 3 == 0 { random.i32(-20_000_000..20_000_000) as f32 } else { f32::from_bits(random.u32(..)) }
                })
                .filter(|x| x.is_finite())
                .collect();
        let text = format!("[{}]", written(&floats));
        serde_json::from_str::<Value>(&text).unwrap();
        let bits = |list: &[f32]| list.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&f32s(&text)), bits(&floats));
        let doubles: Vec<f64> = (0..5000).map(|_| f64::from_bits(random.u64(..))).filter(|x| x.is_finite()).collect();
        let read = read(ElementType::F64, &[doubles.len() as i64], &format!("[{}]", written(&doubles))).unwrap();
        assert!(read.to_elements::<f64>().unwrap().iter().map(|x| x.to_bits()).eq(doubles.iter().map(|x| x.to_bits())));
        let texts = Tensor::from_strings([2], vec!["a\"\n".into(), "é".into()]).unwrap();
        let mut out = Vec::new();
        write(&OutputTensor::of_value("y", texts.into()).unwrap(), &mut out).unwrap();
        assert_eq!(out, b"\"a\\\"\\n\",\"\xc3\xa9\"");
        for x in [f32::NAN, f32::INFINITY] {
            let output = OutputTensor::of_value("y", Tensor::from_elements([1], &[x]).unwrap().into()).unwrap();
            assert!(message(write(&output, &mut Vec::new())).contains("NaN or an infinity"));
        }
    }
}
