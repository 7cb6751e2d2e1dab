//! Maps in files: a `MapProto`, or a `SequenceProto` of maps with the same keys.
//!
//! The IR has no maps: a map is two tensors, its values and its keys, both of rank 1. The values of a list of maps are a row
//! for each map.

use std::path::Path;

use bytes::Bytes;
use of_diag::Diagnostic;
use of_ir::{Elements, Tensor};
use prost::Message;

use crate::external::External;
use crate::load;
use crate::proto::{MapProto, SequenceProto};
use crate::tensor::{self, dtype, invalid};

/// A map, or a list of maps with the same keys.
#[derive(Clone, PartialEq, Debug)]
pub struct Map {
    /// The name that the file gives it; empty where it gives none.
    pub name: String,
    /// The values: `[keys]`, or `[maps, keys]`.
    pub values: Tensor,
    /// The keys: integers or strings.
    pub keys: Tensor,
}

/// Reads the map or list of maps in a file; `None` where the file holds something else.
///
/// # Errors
/// When the file cannot be read, or its maps are damaged or have different keys.
pub fn read(path: &Path) -> Result<Option<Map>, Diagnostic> {
    decode(load::map(path)?).map_err(|mut d| {
        d.message = format!("{}: {}", path.display(), d.message);
        d
    })
}

/// A tensor decodes as neither: it has no field that both keys and values could be.
fn decode(bytes: Bytes) -> Result<Option<Map>, Diagnostic> {
    if let Ok(map) = MapProto::decode(bytes.clone())
        && map.values.is_some()
        && !(map.keys.is_empty() && map.string_keys.is_empty())
    {
        return one(&map).map(Some);
    }
    match SequenceProto::decode(bytes) {
        Ok(list) if !list.map_values.is_empty() => several(&list).map(Some),
        _ => Ok(None),
    }
}

fn one(proto: &MapProto) -> Result<Map, Diagnostic> {
    let keys = if proto.string_keys.is_empty() {
        Elements::Int(proto.keys.iter().map(|k| i128::from(*k)).collect())
    } else {
        let text = |k: &Bytes| String::from_utf8(k.to_vec()).map_err(|_| invalid("a key is not UTF-8".into()));
        Elements::Str(proto.string_keys.iter().map(text).collect::<Result<_, _>>()?)
    };
    let external = External::new(None);
    let parts = proto.values.iter().flat_map(|v| &v.tensor_values).map(|t| tensor::tensor(t, &external));
    let parts: Vec<Tensor> = parts.collect::<Result<_, _>>()?;
    let values =
        concatenated(&parts).ok_or_else(|| invalid("the values of a map must be tensors of one type".into()))?;
    let (found, wanted) = (values.len(), proto.keys.len() + proto.string_keys.len());
    if found != wanted {
        return Err(invalid(format!("a map has {found} values for {wanted} keys; each value must be one element")));
    }
    let keys = Tensor::from_elements(dtype(proto.key_type().into())?, vec![wanted], keys);
    Ok(Map { name: proto.name().into(), values, keys: keys.map_err(|e| invalid(e.to_string()))? })
}

fn several(list: &SequenceProto) -> Result<Map, Diagnostic> {
    let maps: Vec<Map> = list.map_values.iter().map(one).collect::<Result<_, _>>()?;
    let keys = maps[0].keys.clone();
    let rows: Option<Vec<Tensor>> = maps.iter().map(|m| m.ordered_by(&keys)).collect();
    let rows = rows.ok_or_else(|| invalid("the maps of a list must have the same keys".into()))?;
    let all = concatenated(&rows).and_then(|all| all.reshaped(vec![rows.len(), keys.len()]).ok());
    let values = all.ok_or_else(|| invalid("the maps of a list must have values of one type".into()))?;
    Ok(Map { name: list.name().into(), values, keys })
}

/// The name of the tensor that holds the keys of the maps that are `name`.
pub fn keys_of(name: &str) -> String {
    format!("{name}.keys")
}

impl Map {
    /// The values in the order of `keys`; `None` where the map has other keys.
    pub fn ordered_by(&self, keys: &Tensor) -> Option<Tensor> {
        let order: Vec<usize> = match (self.keys.elements(), keys.elements()) {
            (own, wanted) if own == wanted => return Some(self.values.clone()),
            (Elements::Int(own), Elements::Int(wanted)) => positions(&own, &wanted)?,
            (Elements::Str(own), Elements::Str(wanted)) => positions(&own, &wanted)?,
            _ => return None,
        };
        let at = |i: usize| i / order.len() * order.len() + order[i % order.len()];
        let elements = match self.values.elements() {
            Elements::Int(v) => Elements::Int((0..v.len()).map(|i| v[at(i)]).collect()),
            Elements::Float(v) => Elements::Float((0..v.len()).map(|i| v[at(i)]).collect()),
            Elements::Str(v) => Elements::Str((0..v.len()).map(|i| v[at(i)].clone()).collect()),
        };
        Tensor::from_elements(self.values.dtype(), self.values.dims().to_vec(), elements).ok()
    }
}

/// Where each of `wanted` is in `own`, which must have the same elements.
fn positions<T: PartialEq>(own: &[T], wanted: &[T]) -> Option<Vec<usize>> {
    let find = |w: &T| own.iter().position(|o| o == w);
    if own.len() == wanted.len() { wanted.iter().map(find).collect() } else { None }
}

/// The elements of tensors of one type, one after the other.
fn concatenated(parts: &[Tensor]) -> Option<Tensor> {
    let dtype = parts.first()?.dtype();
    let mut all = parts[0].elements();
    for part in &parts[1..] {
        match (&mut all, part.elements()) {
            _ if part.dtype() != dtype => return None,
            (Elements::Int(all), Elements::Int(more)) => all.extend(more),
            (Elements::Float(all), Elements::Float(more)) => all.extend(more),
            (Elements::Str(all), Elements::Str(more)) => all.extend(more),
            _ => return None,
        }
    }
    let count = parts.iter().map(Tensor::len).sum();
    Tensor::from_elements(dtype, vec![count], all).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::TensorProto;
    use crate::proto::tensor_proto::DataType;
    use crate::tensor::tensor_proto;

    fn map(keys: &[&str], values: &[f32]) -> MapProto {
        let tensors = values.iter().map(|v| tensor_proto(&Tensor::scalar(*v))).collect();
        MapProto {
            name: Some("m".into()),
            key_type: Some(DataType::String as i32),
            string_keys: keys.iter().map(|k| k.to_string().into()).collect(),
            values: Some(SequenceProto { tensor_values: tensors, ..SequenceProto::default() }),
            ..MapProto::default()
        }
    }

    fn decoded(message: &impl Message) -> Result<Option<Map>, Diagnostic> {
        decode(message.encode_to_vec().into())
    }

    #[test]
    fn a_map_is_values_and_keys() {
        let read = decoded(&map(&["b", "a"], &[1.0, 2.0])).unwrap().unwrap();
        assert_eq!((&*read.name, read.values.to_f64s(), read.values.dims()), ("m", Some(vec![1.0, 2.0]), &[2][..]));
        assert_eq!(read.keys.strings().unwrap(), ["b", "a"]);
        let numbers = MapProto {
            key_type: Some(DataType::Int32 as i32),
            keys: vec![7, -1],
            string_keys: Vec::new(),
            ..map(&[], &[1.0, 2.0])
        };
        assert_eq!(decoded(&numbers).unwrap().unwrap().keys.to_i64s(), Some(vec![7, -1]));
    }

    #[test]
    fn the_maps_of_a_list_are_rows_in_the_order_of_the_first() {
        let list = |maps: Vec<MapProto>| SequenceProto { map_values: maps, ..SequenceProto::default() };
        let read = decoded(&list(vec![map(&["b", "a"], &[1.0, 2.0]), map(&["a", "b"], &[3.0, 4.0])])).unwrap().unwrap();
        assert_eq!((read.values.dims(), read.values.to_f64s()), (&[2, 2][..], Some(vec![1.0, 2.0, 4.0, 3.0])));
        let other = Tensor::from_strings(vec![2], vec!["a".into(), "b".into()]).unwrap();
        assert_eq!(read.ordered_by(&other).unwrap().to_f64s(), Some(vec![2.0, 1.0, 3.0, 4.0]));
        let mixed = list(vec![map(&["a"], &[1.0]), map(&["c"], &[1.0])]);
        assert!(decoded(&mixed).unwrap_err().message.contains("the same keys"));
    }

    #[test]
    fn damaged_maps_are_errors_and_tensors_are_no_maps() {
        assert!(decoded(&map(&["a", "b"], &[1.0])).unwrap_err().message.contains("1 values for 2 keys"));
        let bad_key = MapProto { string_keys: vec![vec![0xff].into()], ..map(&["a"], &[1.0]) };
        assert!(decoded(&bad_key).unwrap_err().message.contains("not UTF-8"));
        let tensors =
            [Tensor::scalar(1.0_f32), Tensor::from_i64s(&[1, 2]), Tensor::from_slice(&[2, 1], &[1_i32, 8]).unwrap()];
        for t in tensors {
            assert_eq!(decoded(&tensor_proto(&t)).unwrap(), None);
        }
        let typed = TensorProto { int32_data: vec![1, 2], dims: vec![2], data_type: Some(6), ..TensorProto::default() };
        assert_eq!(decoded(&typed).unwrap(), None);
        assert_eq!(decoded(&SequenceProto::default()).unwrap(), None);
    }
}
