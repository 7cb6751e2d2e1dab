//! Type constraints of ONNX operators: the element types that an operator accepts. Ops accept more.

use std::collections::HashMap;
use std::sync::OnceLock;

use of_ir::{DType, Graph, ValueId};

use super::opset::OLDEST_WRITTEN;

/// What the schemas of ONNX say, one version of an operator a line: its name, the operator set that it came with,
/// letters for the types of its inputs and outputs, and what each letter may be. `T*` means any number of values of
/// one type, `_` for what may be anything. Versions that differ in nothing of this are left out.
const SCHEMAS: &str = include_str!("types.txt");

/// A version of an operator.
pub(super) struct Schema {
    since: i64,
    inputs: Vec<Slot>,
    outputs: Vec<Slot>,
}

/// An input or an output; of a variadic one, `letter` goes on.
struct Slot {
    letter: &'static str,
    variadic: bool,
    /// The types that it may have; `None` where the operator does not say.
    types: Option<Vec<DType>>,
}

impl Schema {
    /// The slot of each value, with the types that values have. Values that are no tensors have none.
    fn tensors<'a>(
        &'a self,
        g: &'a Graph,
        inputs: &'a [ValueId],
        outputs: &'a [ValueId],
    ) -> impl Iterator<Item = (&'a Slot, DType, String)> {
        let of = |slots: &'a [Slot], values: &'a [ValueId], kind: &'static str| {
            values.iter().enumerate().filter_map(move |(i, v)| {
                let slot = slots.get(i).or_else(|| slots.last().filter(|s| s.variadic))?;
                Some((slot, g.ty(*v).as_tensor()?.dtype, format!("{kind} {i}")))
            })
        };
        of(&self.inputs, inputs, "operand").chain(of(&self.outputs, outputs, "result"))
    }

    /// Why values of these types cannot be those of the operator.
    pub fn unfit(&self, g: &Graph, inputs: &[ValueId], outputs: &[ValueId]) -> Option<String> {
        let mut met: HashMap<&str, (DType, String)> = HashMap::new();
        for (slot, dtype, place) in self.tensors(g, inputs, outputs) {
            let Some(types) = &slot.types else { continue };
            if !types.contains(&dtype) {
                return Some(format!("{place} cannot be {dtype}"));
            }
            let (first, at) = met.entry(slot.letter).or_insert_with(|| (dtype, place.clone()));
            if *first != dtype {
                return Some(format!("{at} and {place} must have one type"));
            }
        }
        None
    }

    /// For each operand that has a type which the operator does not take: one that it takes and that has all of its
    /// numbers. `None` if one cannot be helped.
    pub fn wider(&self, g: &Graph, inputs: &[ValueId]) -> Option<Vec<Option<DType>>> {
        let mut to: HashMap<&str, DType> = HashMap::new();
        for (slot, dtype, _) in self.tensors(g, inputs, &[]) {
            if let Some(types) = slot.types.as_ref().filter(|t| !t.contains(&dtype)) {
                to.insert(slot.letter, *WIDER.iter().find(|w| types.contains(w) && holds(**w, dtype))?);
            }
        }
        let slot = |i: usize| self.inputs.get(i).or_else(|| self.inputs.last().filter(|s| s.variadic));
        Some((0..inputs.len()).map(|i| to.get(slot(i)?.letter).copied()).collect())
    }
}

/// Types that are taken for narrower ones, the most common first.
const WIDER: &[DType] = &[DType::F32, DType::F64, DType::I32, DType::I64, DType::U32, DType::U64, DType::I8, DType::U8];

/// Whether `wide` has all numbers of `narrow`, and is of its kind: sums of integers wrap, those of floats do not.
fn holds(wide: DType, narrow: DType) -> bool {
    match (wide.int_range(), narrow.int_range()) {
        (Some(w), Some(n)) => w.0 <= n.0 && n.1 <= w.1,
        _ => wide.is_float() && narrow.is_float() && wide.bits() > narrow.bits(),
    }
}

/// The versions of an operator from [`OLDEST_WRITTEN`] on, oldest first; none for one that ONNX does not have.
pub(super) fn versions(operator: &str) -> &'static [Schema] {
    static ALL: OnceLock<HashMap<&str, Vec<Schema>>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let mut all: HashMap<&str, Vec<Schema>> = HashMap::new();
        for (name, schema) in SCHEMAS.lines().filter_map(parse) {
            all.entry(name).or_default().push(schema);
        }
        all
    });
    all.get(operator).map_or(&[], Vec::as_slice)
}

/// The version of an operator that operator set `newest` has. Other domains have one each.
pub(super) fn version(operator: &str, newest: i64) -> Option<&'static Schema> {
    let own = !operator.contains("::");
    versions(operator).iter().rev().find(|s| !own || s.since <= newest)
}

/// The operator set that an operator needs for values of these types.
pub(super) fn since(g: &Graph, operator: &str, inputs: &[ValueId], outputs: &[ValueId]) -> i64 {
    let own = !operator.contains("::");
    let fits = |s: &&Schema| s.unfit(g, inputs, outputs).is_none();
    let all = versions(operator);
    all.iter().find(fits).or(all.last()).filter(|_| own).map_or(OLDEST_WRITTEN, |s| s.since.max(OLDEST_WRITTEN))
}

fn parse(line: &'static str) -> Option<(&'static str, Schema)> {
    let (head, rest) = line.split_once(": ")?;
    let (name, since) = head.split_once(' ')?;
    let mut parts = rest.split("; ");
    let (inputs, outputs) = parts.next()?.split_once("->")?;
    let dtypes = |text: &str| text.split(' ').filter_map(DType::from_mlir_name).collect();
    let letters: HashMap<&str, Vec<DType>> =
        parts.filter_map(|p| p.split_once(" = ")).map(|(letter, types)| (letter, dtypes(types))).collect();
    let slots = |text: &'static str| {
        let slot = |word: &'static str| {
            let letter = word.trim_end_matches('*');
            let own: Vec<DType> = dtypes(letter);
            let types = letters.get(letter).cloned().or_else(|| (!own.is_empty()).then_some(own));
            Slot { letter, variadic: word.len() > letter.len() || letter == "_", types }
        };
        text.split_whitespace().map(slot).collect()
    };
    Some((name, Schema { since: since.parse().ok()?, inputs: slots(inputs), outputs: slots(outputs) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operator_table_line_parses() {
        assert_eq!(SCHEMAS.lines().filter_map(parse).count(), SCHEMAS.lines().count());
        let add = version("Add", 28).unwrap();
        assert_eq!(add.since, 14);
        assert!(add.inputs[0].types.as_ref().is_some_and(|t| t.contains(&DType::BF16) && !t.contains(&DType::Bool)));
        assert!(version("Swish", 23).is_none() && version("Swish", 24).is_some());
        let concat = version("Concat", 28).unwrap();
        assert!(concat.inputs[0].variadic && !concat.outputs[0].variadic);
        assert!(version("Loop", 28).unwrap().inputs[2].types.is_none());
    }

    #[test]
    fn wider_types_represent_all_values() {
        assert!(holds(DType::I32, DType::U16) && !holds(DType::I32, DType::U32) && !holds(DType::F64, DType::I8));
        assert!(holds(DType::F32, DType::BF16) && !holds(DType::F32, DType::F64));
    }
}
