//! Optionals: a value or nothing.

use of_ir::{DType, OpError, OpView, Type};

use super::loop_::bool_value;
use crate::{Evaluated, Inferred, Inputs, Op, Value, op, op_basics};

op! {
    /// An optional that holds the operand, or without operand an empty optional of type `element_type`.
    pub struct OptionalOf = "of.optional" [Structural, onnx: "Optional"] {
        operands: (x?),
        results: (o),
        attrs: {
            /// Type of the value that is not there.
            element_type: Option<Type>,
        },
    }
    samples: |_seed| None;
}

op! {
    /// The value of an optional; non-optional values pass through.
    pub struct OptionalGetElement = "of.optional_get_element" [Structural, onnx: "OptionalGetElement"] {
        operands: (o),
        results: (x),
        attrs: {},
    }
    samples: |_seed| None;
}

op! {
    /// Whether an optional holds a value; a non-optional value counts as one, an operand left out does not.
    pub struct OptionalHasElement = "of.optional_has_element" [Structural, onnx: "OptionalHasElement"] {
        operands: (o?),
        results: (b),
        attrs: {},
    }
    samples: |_seed| None;
}

impl Op for OptionalOf {
    op_basics!(OptionalOf);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let inner = cx.ty(0).or(self.element_type.as_ref());
        let inner = inner.ok_or_else(|| OpError::attr("an empty optional needs a type"))?;
        Ok(vec![Type::Optional(Box::new(inner.clone()))])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        Ok(vec![Value::Optional(match inputs.values.first() {
            None | Some(Value::None) => None,
            Some(v) => Some(Box::new(v.clone())),
        })])
    }
}

impl Op for OptionalGetElement {
    op_basics!(OptionalGetElement);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        match cx.ty(0) {
            Some(Type::Optional(t)) => Ok(vec![(**t).clone()]),
            Some(other) => Ok(vec![other.clone()]),
            None => Err(OpError::ty("operand 0 is missing")),
        }
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        match inputs.values.first() {
            Some(Value::Optional(Some(v))) => Ok(vec![(**v).clone()]),
            None | Some(Value::Optional(None) | Value::None) => Err(OpError::eval("the optional is empty")),
            Some(v) => Ok(vec![v.clone()]),
        }
    }
}

impl Op for OptionalHasElement {
    op_basics!(OptionalHasElement);

    fn infer(&self, _cx: &OpView<'_>) -> Inferred {
        Ok(vec![Type::fixed(DType::Bool, &[])])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let there = !matches!(inputs.values.first(), None | Some(Value::Optional(None) | Value::None));
        Ok(vec![bool_value(there)?])
    }
}

#[cfg(test)]
mod tests {
    use of_ir::Tensor;

    use super::*;

    fn run(op: &dyn Op, values: &[Value]) -> Evaluated {
        op.eval(&mut Inputs { values, types: &[], region: &mut |_, _| Ok(vec![]) })
    }

    #[test]
    fn optional_has_element() {
        let x: Value = Tensor::scalar(1i64).into();
        let full = run(&OptionalOf { element_type: None }, std::slice::from_ref(&x)).unwrap();
        let empty = run(&OptionalOf { element_type: Some(Type::fixed(DType::I64, &[])) }, &[]).unwrap();
        assert_eq!(run(&OptionalGetElement {}, &full).unwrap(), std::slice::from_ref(&x));
        assert!(run(&OptionalGetElement {}, &empty).is_err());
        let has = |v: &[Value]| run(&OptionalHasElement {}, v).unwrap() == [bool_value(true).unwrap()];
        assert!(has(&full) && has(&[x]) && !has(&empty) && !has(&[Value::None]));
    }
}
