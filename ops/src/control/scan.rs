//! `of.scan`.

use of_ir::{Dim, OpError, OpView, Tensor, TensorType, Type};

use super::join::join;
use super::loop_::{Outer, empty, stack};
use super::{region, region_error, yields};
use crate::movement::{Transpose, pieces};
use crate::{Evaluated, Inferred, Inputs, Op, Value, op, op_basics, shape};

op! {
    /// Runs its region once for each slice of the scan inputs, the last `num_scan_inputs` operands; the others are the
    /// first states.
    ///
    /// The region gets the states and one slice of every scan input; it yields the next states and one slice of every
    /// scan output. Axes (0 without the attribute) say which axis is sliced or stacked, directions (0 forward,
    /// 1 backward) in which order. The results are the last states and the stacks.
    pub struct Scan = "of.scan" [Structural, onnx: "Scan"] {
        operands: (operands*),
        results: (ys*),
        regions: 1,
        attrs: {
            num_scan_inputs: i64,
            scan_input_axes: Option<Vec<i64>>,
            scan_input_directions: Option<Vec<i64>>,
            scan_output_axes: Option<Vec<i64>>,
            scan_output_directions: Option<Vec<i64>>,
        },
    }
    samples: |_seed| None;
}

/// Entry `i` of an optional list of `n`, 0 without it.
fn entry(list: &Option<Vec<i64>>, i: usize, n: usize, name: &str) -> Result<i64, OpError> {
    match list {
        None => Ok(0),
        Some(l) if l.len() == n => Ok(l[i]),
        Some(l) => Err(OpError::attr(format!("{name} has {} entries, {n} are needed", l.len()))),
    }
}

/// Entry `i` of directions: whether it is backward.
fn backward(list: &Option<Vec<i64>>, i: usize, n: usize, name: &str) -> Result<bool, OpError> {
    match entry(list, i, n, name)? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(OpError::attr(format!("{name} has {other}, directions are 0 and 1"))),
    }
}

/// An axis, which may count from the end, and whether it is walked backward.
type Sides = Vec<(i64, bool)>;

impl Scan {
    /// Numbers of states and of scan inputs.
    fn split(&self, operands: usize) -> Result<(usize, usize), OpError> {
        match usize::try_from(self.num_scan_inputs) {
            Ok(n) if n >= 1 && n <= operands => Ok((operands - n, n)),
            _ => Err(OpError::attr(format!(
                "num_scan_inputs is {}, there are {operands} operands",
                self.num_scan_inputs
            ))),
        }
    }

    /// Axis of each scan input and output of an op of so many operands and results, and whether it goes backward.
    ///
    /// # Errors
    /// When a list has too many or too few entries.
    pub fn slices(&self, operands: usize, results: usize) -> Result<(Sides, Sides), OpError> {
        let (states, inputs) = self.split(operands)?;
        let outputs = results.saturating_sub(states);
        let side = |n: usize, axes: &Option<Vec<i64>>, directions: &Option<Vec<i64>>, what: &str| {
            let one = |i| {
                Ok((
                    entry(axes, i, n, &format!("{what}_axes"))?,
                    backward(directions, i, n, &format!("{what}_directions"))?,
                ))
            };
            (0..n).map(one).collect::<Result<Sides, OpError>>()
        };
        Ok((
            side(inputs, &self.scan_input_axes, &self.scan_input_directions, "scan_input")?,
            side(outputs, &self.scan_output_axes, &self.scan_output_directions, "scan_output")?,
        ))
    }
}

impl Op for Scan {
    op_basics!(Scan);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (states, scans) = self.split(cx.operands.len())?;
        let args = cx.graph.region_args(region(cx, 0)?);
        if args.len() != states + scans {
            return Err(region_error(format!(
                "the region has {} arguments, it must have {}",
                args.len(),
                states + scans
            )));
        }
        let mut length = Dim::unknown();
        for i in 0..scans {
            let t = cx.tensor(states + i)?;
            let axis = entry(&self.scan_input_axes, i, scans, "scan_input_axes")?;
            backward(&self.scan_input_directions, i, scans, "scan_input_directions")?;
            let Some(s) = &t.shape else { continue };
            let axis = shape::axis(axis, s.len())?;
            if length.provably_ne(&s[axis]) {
                return Err(OpError::shape(format!("scan inputs have different lengths {length} and {}", s[axis])));
            }
            if length.as_const().is_none() {
                length = s[axis].clone();
            }
            let mut slice = s.clone();
            slice.remove(axis);
            let (slice, arg) = (Type::tensor(t.dtype, slice), cx.graph.ty(args[states + i]));
            if !slice.compatible(arg) {
                return Err(OpError::ty(format!("slices of scan input {i} are {slice}, the region takes {arg}")));
            }
        }
        let out = yields(cx, 0)?;
        if out.len() < states {
            return Err(region_error(format!("the region yields {} values, there are {states} states", out.len())));
        }
        let (next, outputs) = out.split_at(states);
        let first = cx.operands.iter().map(|v| cx.graph.ty(*v));
        let outer = Outer::new(cx);
        let mut results = first.zip(next).map(|(a, b)| join(a, b)).collect::<Result<Vec<_>, _>>()?;
        for (i, y) in outputs.iter().enumerate() {
            let Type::Tensor(t) = y else {
                return Err(OpError::ty(format!("scan output {i} is {y}, it must be a tensor")));
            };
            let axis = entry(&self.scan_output_axes, i, outputs.len(), "scan_output_axes")?;
            backward(&self.scan_output_directions, i, outputs.len(), "scan_output_directions")?;
            let stacked = match &t.shape {
                Some(s) => {
                    // What is inside the region cannot be named outside it, unless it is a number.
                    let mut s: Vec<Dim> = s.iter().map(|d| outer.dim(d)).collect();
                    s.insert(shape::axis(axis, s.len() + 1)?, length.clone());
                    Some(s)
                }
                None => None,
            };
            results.push(Type::Tensor(TensorType { dtype: t.dtype, shape: stacked, sbp: None }));
        }
        Ok(results)
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (states, scans) = self.split(inputs.values.len())?;
        let mut carried = inputs.values[..states].to_vec();
        let mut slices = Vec::new();
        for i in 0..scans {
            let x = inputs.tensor(states + i)?;
            let axis = shape::axis(entry(&self.scan_input_axes, i, scans, "scan_input_axes")?, x.dims().len())?;
            let mut dims = x.dims().to_vec();
            let n = dims.remove(axis);
            if n > super::sequence_split::MAX_PIECES {
                return Err(OpError::eval(format!("an axis of {n} makes too many slices")));
            }
            let one = pieces(x, axis, std::iter::repeat_n(1, n))?;
            let mut one = one.iter().map(|t| t.reshaped(dims.clone())).collect::<Result<Vec<_>, _>>()?;
            if backward(&self.scan_input_directions, i, scans, "scan_input_directions")? {
                one.reverse();
            }
            slices.push(one);
        }
        let length = slices[0].len();
        if slices.iter().any(|s| s.len() != length) {
            return Err(OpError::eval("scan inputs have different lengths"));
        }
        let mut stacks: Vec<Vec<Value>> = Vec::new();
        for step in 0..length {
            let mut args = carried;
            args.extend(slices.iter().map(|s| Value::Tensor(s[step].clone())));
            let out = (inputs.region)(0, &args)?;
            if out.len() < states {
                return Err(OpError::eval("the region yields too few values"));
            }
            let (next, outputs) = out.split_at(states);
            carried = next.to_vec();
            stacks.resize(outputs.len(), Vec::new());
            stacks.iter_mut().zip(outputs).for_each(|(s, v)| s.push(v.clone()));
        }
        let mut out = carried;
        if length == 0 {
            let types = inputs.types.get(states..).unwrap_or_default();
            for (i, t) in types.iter().enumerate() {
                let axis = entry(&self.scan_output_axes, i, types.len(), "scan_output_axes")?;
                out.push(empty(t, axis)?.into());
            }
            return Ok(out);
        }
        let n = stacks.len();
        for (i, mut s) in stacks.into_iter().enumerate() {
            if backward(&self.scan_output_directions, i, n, "scan_output_directions")? {
                s.reverse();
            }
            let t = stack(&s)?;
            let axis = shape::axis(entry(&self.scan_output_axes, i, n, "scan_output_axes")?, t.dims().len())?;
            out.push(first_to(t, axis)?);
        }
        Ok(out)
    }
}

/// The tensor with its first axis moved to `axis`.
fn first_to(t: Tensor, axis: usize) -> Result<Value, OpError> {
    let rank = t.dims().len() as i64;
    let perm: Vec<i64> = (1..=axis as i64).chain([0]).chain(axis as i64 + 1..rank).collect();
    let values = [t.into()];
    let mut inputs = Inputs { values: &values, types: &[], region: &mut |_, _| Ok(Vec::new()) };
    let out = Transpose { perm: Some(perm) }.eval(&mut inputs)?;
    out.into_iter().next().ok_or_else(|| OpError::eval("a transpose has a result"))
}

#[cfg(test)]
mod tests {
    use of_ir::{DType, Graph, Rewriter, ValueId};

    use super::*;
    use crate::elementwise::Add;
    use crate::interpret::run_graph;
    use crate::structural::{Return, Yield};

    /// Running sums over axis 1 of a matrix of two rows, stacked along axis 1.
    fn running_sum(x: &Tensor, back: i64) -> (Vec<Value>, Vec<Type>) {
        let mut g = Graph::new();
        let entry = g.entry();
        let mut rw = Rewriter::new(&mut g, "test");
        let vector = Type::fixed(DType::F32, &[2]);
        let first = rw.add_arg(entry, vector.clone(), None);
        let matrix = rw.add_arg(entry, Type::Tensor(x.ty()), None);
        let body = rw.new_region();
        rw.at_end(body);
        let s = rw.add_arg(body, vector.clone(), None);
        let slice = rw.add_arg(body, vector, None);
        let next = rw.create_one(Add {}, &[s, slice]).unwrap();
        rw.create(Yield {}, &[next, next]).unwrap();
        rw.at_end(entry);
        let one = |v: i64| Some(vec![v]);
        let scan = Scan {
            num_scan_inputs: 1,
            scan_input_axes: one(1),
            scan_input_directions: one(back),
            scan_output_axes: one(-1),
            scan_output_directions: one(back),
        };
        let op = rw.create_with_regions(scan, &[first, matrix], &[body]).unwrap();
        let results: Vec<ValueId> = rw.graph().op(op).results.to_vec();
        let types = results.iter().map(|v| rw.graph().ty(*v).clone()).collect();
        rw.create(Return {}, &results).unwrap();
        let first = Tensor::from_slice(&[2], &[0f32, 0.]).unwrap();
        (run_graph(&g, &[first.into(), x.clone().into()]).unwrap(), types)
    }

    #[test]
    fn scan_axes_and_directions() {
        let t = |d: &[usize], v: &[f32]| Value::Tensor(Tensor::from_slice(d, v).unwrap());
        let x = Tensor::from_slice(&[2, 3], &[1f32, 2., 3., 10., 20., 30.]).unwrap();
        let (out, types) = running_sum(&x, 0);
        assert_eq!(types[1], Type::fixed(DType::F32, &[2, 3]));
        assert_eq!(out, [t(&[2], &[6., 60.]), t(&[2, 3], &[1., 3., 6., 10., 30., 60.])]);
        assert_eq!(running_sum(&x, 1).0[1], t(&[2, 3], &[6., 5., 3., 60., 50., 30.]));
    }

    #[test]
    fn scan_of_zero_length_is_empty_along_its_axis() {
        let (out, types) = running_sum(&Tensor::from_slice::<f32>(&[2, 0], &[]).unwrap(), 0);
        assert_eq!(types[1], Type::fixed(DType::F32, &[2, 0]));
        assert_eq!(out[1], Value::Tensor(Tensor::from_slice::<f32>(&[2, 0], &[]).unwrap()));
    }
}
