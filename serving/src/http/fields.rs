//! The JSON of a request. Its fields become values, but the elements of tensors stay the text that they are, which
//! [`super::elements`] reads once the type is known: it may come behind them.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::error::ServeError;

/// The JSON of a request.
#[derive(Default)]
pub struct Header<'t> {
    /// Its other fields.
    pub fields: Map<String, Value>,
    /// The inputs, if it has any.
    pub inputs: Option<Vec<Input<'t>>>,
}

/// An input.
#[derive(Default)]
pub struct Input<'t> {
    /// Its other fields.
    pub fields: Map<String, Value>,
    /// Its elements, as JSON.
    pub data: Option<&'t RawValue>,
}

/// Reads the JSON of a request.
///
/// # Errors
/// When it is not JSON, or something else is where an object must be.
pub fn read(text: &[u8]) -> Result<Header<'_>, ServeError> {
    serde_json::from_slice(text).map_err(|e| match e.is_data() {
        true => ServeError::invalid(e.to_string()),
        false => ServeError::invalid(format!("the request is not JSON: {e}")),
    })
}

/// An object, of which one field is not read as a value.
trait Object<'t>: Default {
    /// What it is, for messages.
    const WHAT: &'static str;
    /// The fields that are read as values. Others have no meaning.
    const FIELDS: &'static [&'static str];
    /// The field that is not.
    const OTHER: &'static str;

    fn fields(&mut self) -> &mut Map<String, Value>;
    fn read_other<A: MapAccess<'t>>(&mut self, map: &mut A) -> Result<(), A::Error>;
}

impl<'t> Object<'t> for Header<'t> {
    const WHAT: &'static str = "a JSON object as the request";
    const FIELDS: &'static [&'static str] = &["id", "parameters", "outputs"];
    const OTHER: &'static str = "inputs";

    fn fields(&mut self) -> &mut Map<String, Value> {
        &mut self.fields
    }

    fn read_other<A: MapAccess<'t>>(&mut self, map: &mut A) -> Result<(), A::Error> {
        self.inputs = map.next_value()?;
        Ok(())
    }
}

impl<'t> Object<'t> for Input<'t> {
    const WHAT: &'static str = "an object as an input";
    const FIELDS: &'static [&'static str] = &["name", "datatype", "shape", "parameters"];
    const OTHER: &'static str = "data";

    fn fields(&mut self) -> &mut Map<String, Value> {
        &mut self.fields
    }

    fn read_other<A: MapAccess<'t>>(&mut self, map: &mut A) -> Result<(), A::Error> {
        self.data = Some(map.next_value()?);
        Ok(())
    }
}

struct Reader<T>(PhantomData<T>);

impl<'t, T: Object<'t>> Visitor<'t> for Reader<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(T::WHAT)
    }

    fn visit_map<A: MapAccess<'t>>(self, mut map: A) -> Result<T, A::Error> {
        let mut object = T::default();
        while let Some(name) = map.next_key::<String>()? {
            if name == T::OTHER {
                object.read_other(&mut map)?;
            } else if T::FIELDS.contains(&name.as_str()) {
                let value = map.next_value()?;
                object.fields().insert(name, value);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(object)
    }
}

impl<'t> Deserialize<'t> for Header<'t> {
    fn deserialize<D: Deserializer<'t>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Reader(PhantomData))
    }
}

impl<'t> Deserialize<'t> for Input<'t> {
    fn deserialize<D: Deserializer<'t>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Reader(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        read(text.as_bytes()).err().map(|e| e.message).unwrap_or_default()
    }

    #[test]
    fn elements_stay_text_wherever_they_are() {
        let input = r#"{"data": [1, [2.50]], "x": [{}], "shape": [2], "datatype": "FP32", "name": "a"}"#;
        let text = format!(r#"{{"inputs": [{input}, {{}}], "id": "7", "y": null}}"#);
        let header = read(text.as_bytes()).unwrap();
        let inputs = header.inputs.unwrap();
        assert_eq!((inputs[0].data.unwrap().get(), inputs[1].data.is_none()), ("[1, [2.50]]", true));
        assert_eq!((header.fields.len(), inputs[0].fields.len()), (1, 3));
        assert!(read(br#"{"inputs": null}"#).unwrap().inputs.is_none());
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        assert_eq!(message("[]"), "invalid type: sequence, expected a JSON object as the request at line 1 column 0");
        assert!(message(r#"{"inputs": {}}"#).starts_with("invalid type: map, expected a sequence at line 1 column 1"));
        assert!(
            message(r#"{"inputs": [{"data": [1, NaN]}]}"#).starts_with("the request is not JSON: expected value at")
        );
        for text in ["", "{", r#"{"inputs": [{"data": [1,]}]}"#, r#"{"inputs": [{"data": [01]}]}"#, "{} 1"] {
            assert!(message(text).starts_with("the request is not JSON: "), "{text}");
        }
        assert!(message("{\"inputs\": [{\"data\": [\"\u{1}\"]}]}").contains("control character"));
        let deep = format!(r#"{{"parameters": {}1{}}}"#, "[".repeat(200), "]".repeat(200));
        assert!(message(&deep).contains("recursion limit"));
    }
}
