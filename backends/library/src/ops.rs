//! Ops of shared libraries, registered as ops of this program.

use of_codegen::physical::{dtype_of, element_type};
use of_diag::{Code, Diagnostic, Location};
use of_ir::{
    Arity, Attr, Attrs, Dim, OpDef, OpError, OpView, SbpSignature, Signature, Slot, Tensor, TensorType, Type, ValueId,
};
use of_ops::movement::zeros_like;
use of_ops::structural::NoneValue;
use of_ops::{CudaKernel, Evaluated, GradCx, Inferred, Inputs, Kind, Op, OpDecl, Sample, Value};
use of_plan::ElementType;
use of_runtime::Tensor as RuntimeTensor;

use crate::ffi::ops::{CallArgs, Declared, DeclaredSlot, LoadedOp, UNKNOWN, View};
use crate::signature::parse_signature;

/// The declaration of an op of a library, which stays loaded.
pub struct UserOp {
    name: &'static str,
    doc: &'static str,
    onnx: &'static [&'static str],
    signature: Signature,
    /// The op of the library that computes the gradients.
    gradient: Option<&'static str>,
    calls: LoadedOp,
}

impl UserOp {
    /// Registers a declaration for the rest of the process.
    ///
    /// # Errors
    /// When the declaration is not valid in this program.
    pub fn new(d: Declared) -> Result<&'static UserOp, String> {
        let slot = |s: &DeclaredSlot| {
            let arity = match s.arity {
                0 => Arity::One,
                1 => Arity::Optional,
                2 => Arity::Variadic,
                other => {
                    return Err(format!("'{}': '{}' has the unknown arity {other}", d.name, s.name));
                }
            };
            Ok(Slot { name: s.name, arity })
        };
        let operands = d.operands.iter().map(slot).collect::<Result<Vec<_>, _>>()?;
        let results = d.results.iter().map(slot).collect::<Result<Vec<_>, _>>()?;
        if results.is_empty() || results.iter().any(|s| s.arity != Arity::One) {
            return Err(format!("'{}': an op of a library has one result or more, none of them optional", d.name));
        }
        if operands.iter().rev().skip(1).any(|s| s.arity == Arity::Variadic) {
            return Err(format!("'{}': only the last operand may stand for any number of values", d.name));
        }
        Ok(Box::leak(Box::new(UserOp {
            name: d.name,
            doc: d.doc,
            onnx: d.onnx.map_or(&[], |n| Box::leak(Box::new([n]))),
            signature: Signature {
                operands: operands.leak(),
                results: results.leak(),
                attrs: d.attrs.leak(),
                regions: 0,
            },
            gradient: d.gradient,
            calls: d.calls,
        })))
    }

    /// Checks that attributes are those of the declaration.
    fn check(&self, attrs: &Attrs) -> Result<(), OpError> {
        for slot in self.signature.attrs {
            match attrs.get(slot.name) {
                None if slot.optional => {}
                None => return Err(OpError::attr(format!("attribute '{}' ({}) is missing", slot.name, slot.kind))),
                Some(a) if a.kind() == slot.kind => {}
                Some(a) => {
                    let what = format!("attribute '{}' must be {}, it is {}", slot.name, slot.kind, a.kind());
                    return Err(OpError::attr(what));
                }
            }
        }
        Ok(())
    }

    fn attrs<'a>(&self, attrs: &'a Attrs) -> Vec<Option<&'a Attr>> {
        self.signature.attrs.iter().map(|s| attrs.get(s.name)).collect()
    }
}

/// Extents as numbers: known ones, and a distinct negative number for each unknown extent.
#[derive(Default)]
struct Extents {
    open: Vec<Dim>,
}

impl Extents {
    fn number(&mut self, d: &Dim) -> i64 {
        if d.is_unknown() {
            return UNKNOWN;
        }
        d.as_const().filter(|n| *n >= 0).unwrap_or_else(|| {
            let at = self.open.iter().position(|o| o == d).unwrap_or_else(|| {
                self.open.push(d.clone());
                self.open.len() - 1
            });
            -(at as i64) - 1
        })
    }

    fn dims(&mut self, t: &TensorType) -> Option<Vec<i64>> {
        Some(t.shape.as_ref()?.iter().map(|d| self.number(d)).collect())
    }

    fn dim(&self, n: i64) -> Result<Dim, OpError> {
        let own = |n: i64| self.open.get(usize::try_from(-(n + 1)).ok()?).cloned();
        match n {
            UNKNOWN => Ok(Dim::unknown()),
            0.. => Ok(Dim::from(n)),
            _ => {
                own(n).ok_or_else(|| OpError::shape(format!("the library gives the extent {n}, which no operand has")))
            }
        }
    }
}

/// An operand or result type of a call, owned.
struct Argument {
    dtype: ElementType,
    dims: Option<Vec<i64>>,
    data: Option<RuntimeTensor>,
}

impl Argument {
    fn view(&self) -> View<'_> {
        View { dtype: self.dtype, dims: self.dims.as_deref(), data: self.data.as_ref().and_then(RuntimeTensor::bytes) }
    }
}

const ABSENT: Argument = Argument { dtype: ElementType::Unknown, dims: Some(Vec::new()), data: None };

/// A call argument from a value or, if it is not known, from a type.
fn argument(ty: &Type, value: Option<&Tensor>, extents: &mut Extents) -> Result<Argument, OpError> {
    match (ty, value) {
        (_, Some(t)) => owned(t),
        (Type::None, None) => Ok(ABSENT),
        (Type::Tensor(t), None) => Ok(Argument { dtype: element_type(t.dtype), dims: extents.dims(t), data: None }),
        (other, None) => Err(OpError::ty(format!("ops of libraries take tensors, not {other}"))),
    }
}

/// A tensor with the alignment that kernels need.
fn owned(t: &Tensor) -> Result<Argument, OpError> {
    let dims: Vec<i64> = t.dims().iter().map(|d| *d as i64).collect();
    let bytes = t.bytes().ok_or_else(|| OpError::ty("ops of libraries take no strings"))?;
    let data = RuntimeTensor::from_bytes(element_type(t.dtype()), dims.clone(), bytes);
    let data = data.map_err(|e| OpError::eval(e.to_string()))?;
    Ok(Argument { dtype: data.dtype(), dims: Some(dims), data: Some(data) })
}

/// Constants of at most this many elements are shown to inference: shapes, axes.
const SMALL: usize = 4096;

impl OpDef for UserOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn summary(&self) -> &'static str {
        self.doc.trim().lines().next().unwrap_or_default()
    }

    fn signature(&self) -> Signature {
        self.signature
    }

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        self.check(cx.attrs)?;
        let (operands, extents) = operands(cx)?;
        let q = CallArgs {
            attrs: self.attrs(cx.attrs),
            operands: operands.iter().map(Argument::view).collect(),
            results: Vec::new(),
        };
        let types = self.calls.infer(&q, self.signature.results.len()).map_err(OpError::ty)?;
        let made = types.into_iter().map(|(dtype, dims)| {
            let dtype = dtype_of(dtype).ok_or_else(|| OpError::ty("the library gives a result without elements"))?;
            Ok(Type::Tensor(match dims {
                None => TensorType::unranked(dtype),
                Some(dims) => TensorType::new(dtype, dims.iter().map(|d| extents.dim(*d)).collect::<Result<_, _>>()?),
            }))
        });
        made.collect()
    }
}

/// The operands of an op, with the elements of those that are known.
fn operands(cx: &OpView<'_>) -> Result<(Vec<Argument>, Extents), OpError> {
    let mut extents = Extents::default();
    let one = |(i, v): (usize, &of_ir::ValueId)| {
        let known = cx.constant(i).filter(|t| t.len() <= SMALL && t.bytes().is_some());
        argument(cx.graph.ty(*v), known.as_ref(), &mut extents)
    };
    let all = cx.operands.iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()?;
    Ok((all, extents))
}

impl OpDecl for UserOp {
    fn decode(&self, attrs: &Attrs) -> Result<Box<dyn Op>, OpError> {
        self.check(attrs)?;
        // It was made to live as long as the process: the list knows it by that.
        let op = of_ops::op_registry::get(self.name).ok_or_else(|| OpError::attr("the op's library was not added"))?;
        let declared = self.signature.attrs.iter().filter_map(|s| Some((s.name.into(), attrs.get(s.name)?.clone())));
        Ok(Box::new(Instance { op, calls: self.calls, gradient: self.gradient, attrs: declared.collect() }))
    }

    fn kind(&self) -> Kind {
        Kind::Primitive
    }

    fn doc(&self) -> &'static str {
        self.doc
    }

    fn onnx(&self) -> &'static [&'static str] {
        self.onnx
    }

    fn as_def(&'static self) -> &'static dyn OpDef {
        self
    }

    fn sample(&self, _seed: u64) -> Option<Sample> {
        None
    }
}

/// An op with its attributes.
struct Instance {
    op: &'static dyn OpDecl,
    calls: LoadedOp,
    gradient: Option<&'static str>,
    attrs: Attrs,
}

impl Instance {
    /// The gradients of operands, by the op that computes them. Its results have the names of operands; others have no gradient.
    fn gradients(&self, name: &str, cx: &mut GradCx<'_, '_>) -> Result<Vec<Option<ValueId>>, Diagnostic> {
        let unknown = || Diagnostic::error(Code::NAME, Location::Unknown, format!("there is no op '{name}'"));
        let def = of_ops::op_registry::get(name).ok_or_else(unknown)?.as_def();
        let slots = self.op.signature().operands;
        let mut operands = cx.operands.to_vec();
        while operands.len() < slots.len() {
            operands.push(cx.rw.create_one(NoneValue {}, &[])?);
        }
        operands.extend(cx.results);
        for (result, gradient) in cx.results.iter().zip(cx.grads) {
            operands.push(match gradient {
                Some(gradient) => *gradient,
                None => zeros_like(cx.rw, *result)?,
            });
        }
        let asked = def.signature();
        let attrs: Attrs =
            asked.attrs.iter().filter_map(|s| Some((s.name.into(), self.attrs.get(s.name)?.clone()))).collect();
        let made = cx.rw.create((def, attrs), &operands)?;
        let results = cx.rw.graph().op(made).results.to_vec();
        let of_operand = |slot: &Slot| asked.results.iter().position(|r| r.name == slot.name).map(|i| results[i]);
        Ok(slots.iter().take(cx.operands.len()).map(of_operand).collect())
    }

    fn values(&self) -> Vec<Option<&Attr>> {
        self.op.signature().attrs.iter().map(|s| self.attrs.get(s.name)).collect()
    }
}

impl Op for Instance {
    fn decl(&self) -> &'static dyn OpDecl {
        self.op
    }

    fn attrs(&self) -> Attrs {
        self.attrs.clone()
    }

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        self.op.infer(cx)
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let read = inputs.values.iter().map(|v| match v {
            Value::Tensor(t) => owned(t),
            Value::None => Ok(ABSENT),
            _ => Err(OpError::eval("ops of libraries take tensors")),
        });
        let operands = read.collect::<Result<Vec<_>, _>>()?;
        let mut extents = Extents::default();
        let results = inputs.types.iter().map(|t| argument(t, None, &mut extents)).collect::<Result<Vec<_>, _>>()?;
        let q = CallArgs {
            attrs: self.values(),
            operands: operands.iter().map(Argument::view).collect(),
            results: results.iter().map(Argument::view).collect(),
        };
        let mut given: Vec<Option<RuntimeTensor>> = self.op.signature().results.iter().map(|_| None).collect();
        self.calls.compute(&q, &mut given).map_err(OpError::eval)?;
        let made = given.into_iter().enumerate().map(|(i, t)| {
            let missing = || OpError::eval(format!("the library does not give result {i}"));
            let t = t.ok_or_else(missing)?;
            let (dtype, bytes) = (dtype_of(t.dtype()).ok_or_else(missing)?, t.bytes().ok_or_else(missing)?);
            let dims = t.dims().iter().map(|d| *d as usize).collect();
            Ok(Value::Tensor(Tensor::from_bytes(dtype, dims, of_ir::Blob::new(bytes.to_vec()))?))
        });
        made.collect()
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let Ok((operands, _)) = operands(cx) else { return Vec::new() };
        let operands = operands.iter().map(Argument::view).collect();
        let q = CallArgs { attrs: self.values(), operands, results: Vec::new() };
        let read = |text: String| {
            let lines = text.lines().filter(|l| !l.trim().is_empty());
            lines.map(|l| parse_signature(l, cx.operands.len(), self.op.signature().results.len())).collect()
        };
        // Broadcast operands and results are always legal.
        self.calls.sbp(&q).and_then(read).unwrap_or_else(|why| {
            tracing::warn!(
                "'{}' runs replicated on every device, because its SBP signatures are invalid: {why}",
                self.op.name()
            );
            Vec::new()
        })
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        self.gradient.map(|name| self.gradients(name, cx))
    }

    fn cuda(&self, cx: &OpView<'_>, results: &[Type]) -> Result<CudaKernel, String> {
        let (operands, mut extents) = operands(cx).map_err(|e| e.message)?;
        let results = results.iter().map(|t| argument(t, None, &mut extents)).collect::<Result<Vec<_>, _>>();
        let results = results.map_err(|e| e.message)?;
        let q = CallArgs {
            attrs: self.values(),
            operands: operands.iter().map(Argument::view).collect(),
            results: results.iter().map(Argument::view).collect(),
        };
        let (text, launch) = self.calls.cuda(&q)?;
        Ok(CudaKernel { text, launch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_extents_round_trip() {
        let n = Dim::symbol("N");
        let mut e = Extents::default();
        let numbers: Vec<i64> =
            [Dim::from(3i64), n.clone(), Dim::unknown(), n.clone()].iter().map(|d| e.number(d)).collect();
        assert_eq!(numbers, [3, -1, UNKNOWN, -1]);
        assert_eq!(e.dim(-1), Ok(n));
        assert!(e.dim(-2).is_err());
    }
}
