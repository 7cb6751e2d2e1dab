//! Low-rank adapters: a frozen model learns by small matrices that are added to its weights.

use of_diag::{Code, Diagnostic, Diagnostics};
use of_ir::{DType, Elements, Module, Rewriter, Tensor, TensorError, ValueId};
use of_ops::contraction::{Gemm, MatMul};
use of_ops::elementwise::{Add, Mul};
use of_ops::list::as_op;
use of_ops::movement::Transpose;
use of_ops::nn::{Conv, DequantizeLinear};
use of_ops::sample::Rng;
use of_ops::structural::Constant;

use super::plain;
use super::weights::{Weight, weights};

/// How a model gets adapters. Source: Hu et al., "LoRA" (2022): `y = W x + alpha / rank B A x`.
pub struct LoraSpec<'s> {
    /// The rank of `A` and `B`.
    pub rank: usize,
    /// Multiplies the product of `B` and `A`, divided by the rank.
    pub alpha: f64,
    /// Which weights get an adapter, by the name of the parameter.
    pub is_target: &'s dyn Fn(&str) -> bool,
    /// Whether weights of convolutions get one, too.
    pub convolutions: bool,
    /// Whether weights that several ops read, such as an embedding that is the last layer, too, are left out. Otherwise they are errors.
    pub skips_shared: bool,
    /// How the weights that have adapters are stored.
    pub base: BaseStorage,
    /// Gives the first values of `A`; those of `B` are zeros.
    pub seed: u64,
}

/// How frozen weights are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BaseStorage {
    /// As the model has them.
    #[default]
    Model,
    /// As integers of 8 bits with a scale for every 64 along the inputs.
    Int8,
    /// As integers of 4 bits with a scale for every 64 along the inputs. Source of the method: Dettmers et al., "QLoRA" (2023);
    /// the integers are evenly spaced, not its NF4.
    Int4,
}

/// Elements of a block with one scale.
const BLOCK: usize = 64;

/// The adapter of a weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// The name of the weight.
    pub weight: String,
    /// The name of the parameter `A`, `[rank, inputs]`; of a convolution `[rank, input channels, kernel…]`.
    pub a: String,
    /// The name of the parameter `B`, `[outputs, rank]`; of a convolution `[output channels, rank, 1…]`.
    pub b: String,
    /// Which axis of the weight is that of the inputs.
    pub input_axis: usize,
    /// The extents of the parameter `A`.
    pub a_dims: Vec<usize>,
    /// The extents of the parameter `B`.
    pub b_dims: Vec<usize>,
    /// The weight that the adapter is added to, as it is computed with.
    pub base: Tensor,
}

impl Adapter {
    /// The name of the module that has the weight, as PEFT's files use it.
    pub fn module(&self) -> &str {
        self.weight.strip_suffix(".weight").unwrap_or(&self.weight)
    }

    /// The weight with the adapter added to it: `W + scale B A`.
    ///
    /// # Errors
    /// When the matrices do not fit the weight.
    pub fn merged(&self, a: &Tensor, b: &Tensor, scale: f64) -> Result<Tensor, Diagnostics> {
        let misfit =
            || Diagnostics::from(plain(Code::TYPE, format!("the adapter of '{}' does not fit it", self.weight)));
        if *a.dims() != self.a_dims || *b.dims() != self.b_dims {
            return Err(misfit());
        }
        // The elements of a kernel are inputs, too.
        let (rank, outputs) = (self.a_dims[0], self.b_dims[0]);
        let inputs: usize = self.a_dims[1..].iter().product();
        let numbers = |t: &Tensor| t.to_f64s().ok_or_else(misfit);
        let (a, b, mut w) = (numbers(a)?, numbers(b)?, numbers(&self.base)?);
        if w.len() != inputs * outputs {
            return Err(misfit());
        }
        for o in 0..outputs {
            for i in 0..inputs {
                let product: f64 = (0..rank).map(|r| b[o * rank + r] * a[r * inputs + i]).sum();
                w[if self.input_axis == 1 { o * inputs + i } else { i * outputs + o }] += scale * product;
            }
        }
        let merged = Tensor::from_elements(self.base.dtype(), self.base.dims().to_vec(), Elements::Float(w));
        Ok(merged.map_err(wrong)?)
    }
}

fn wrong(e: TensorError) -> Diagnostic {
    plain(Code::TYPE, e.to_string())
}

/// Adds adapters to the products of a model, and to its convolutions if they are wanted. `A` and `B` become parameters, called like the
/// weight's module with `.lora_A.weight` and `.lora_B.weight`. With a quantized base the weights become integers that the graph
/// dequantizes. The adapter of a convolution is one with the same kernel to `rank` channels, then one of a single element, as PEFT's.
///
/// # Errors
/// When no product has a weight of such a name, a weight is not finite or read by several ops, or a convolution has groups.
pub fn add_adapters(module: &mut Module, spec: &LoraSpec<'_>) -> Result<Vec<Adapter>, Diagnostics> {
    let func = module.main_mut().ok_or_else(|| plain(Code::NAME, "the module has no function".into()))?;
    let is_wanted = |weight: &Weight| weight.is_matrix || (spec.convolutions && weight.conv.is_some());
    let outermost = |weight: &Weight| func.graph.op(weight.reader).parent == func.graph.entry();
    let readers = |weight: &Weight| func.graph.uses(func.graph.op(weight.constant).results[0]).len();
    let is_alone = |weight: &Weight| !spec.skips_shared || readers(weight) == 1;
    let fits = |weight: &Weight| is_wanted(weight) && outermost(weight) && is_alone(weight);
    let all: Vec<Weight> = weights(&func.graph).into_iter().filter(fits).collect();
    let known: Vec<String> = all.iter().take(8).map(|weight| weight.name.clone()).collect();
    let targets: Vec<Weight> = all.into_iter().filter(|weight| (spec.is_target)(&weight.name)).collect();
    if targets.is_empty() {
        let what = match known.is_empty() {
            true => "the model has no product with a weight matrix, which adapters are for".to_string(),
            false => format!("no weight of a product has a name for an adapter; there are {}", known.join(", ")),
        };
        return Err(plain(Code::NAME, what).into());
    }
    let mut rng = Rng::new(spec.seed);
    let mut rw = Rewriter::new(&mut func.graph, "lora");
    let mut adapters = Vec::with_capacity(targets.len());
    for mut weight in targets {
        let readers = rw.graph().uses(rw.graph().op(weight.constant).results[0]).len();
        if readers > 1 {
            let what = format!("weight '{}' is read {readers} times, and an adapter is for one product", weight.name);
            return Err(plain(Code::UNSUPPORTED, what).hint("leave it out of the targets").into());
        }
        if spec.base != BaseStorage::Model {
            weight.value = quantized(&mut rw, &weight, spec.base)?;
        }
        adapters.push(adapted(&mut rw, weight, spec, &mut rng)?);
    }
    Ok(adapters)
}

/// A parameter before the insertion point.
fn parameter(rw: &mut Rewriter<'_>, name: &str, value: Tensor) -> Result<ValueId, Diagnostic> {
    let v = rw.create_one(Constant { value }, &[])?;
    rw.set_name(v, name);
    Ok(v)
}

/// Adds the adapter of one weight to the product that reads it.
fn adapted(rw: &mut Rewriter<'_>, weight: Weight, spec: &LoraSpec<'_>, rng: &mut Rng) -> Result<Adapter, Diagnostics> {
    let op = weight.reader;
    let loc = rw.graph().op(op).loc.clone();
    let gemm = as_op::<Gemm>(rw.graph(), op);
    if gemm.as_ref().is_some_and(|gemm| gemm.trans_a || gemm.alpha != 1.0) {
        let what = "an adapter fits no product whose first operand is transposed or that is scaled";
        return Err(Diagnostic::error(Code::UNSUPPORTED, loc, what).into());
    }
    if weight.conv.as_ref().is_some_and(|conv| conv.group != 1) {
        let what = format!("weight '{}' is of a convolution with groups, for which there are no adapters", weight.name);
        let hint = "leave it out of the targets";
        return Err(Diagnostic::error(Code::UNSUPPORTED, loc, what).hint(hint).into());
    }
    let dims = weight.value.dims();
    let kernel = if weight.conv.is_some() { &dims[2..] } else { &[] };
    let a_dims = [&[spec.rank, dims[weight.input_axis]], kernel].concat();
    let b_dims = [vec![dims[weight.output_axis], spec.rank], vec![1; kernel.len()]].concat();
    let dtype = weight.value.dtype();
    // As PEFT: kaiming_uniform_ with a = sqrt(5), whose bound is 1 / sqrt(inputs), and zeros.
    let inputs: usize = a_dims[1..].iter().product();
    let bound = 1.0 / (inputs.max(1) as f64).sqrt();
    let values = (0..spec.rank * inputs).map(|_| rng.float(-bound, bound)).collect();
    let tensor = |dims: &[usize], values| Tensor::from_elements(dtype, dims.to_vec(), Elements::Float(values));
    let a = tensor(&a_dims, values).map_err(wrong)?;
    let b = tensor(&b_dims, vec![0.0; b_dims.iter().product()]).map_err(wrong)?;
    let stem = weight.name.strip_suffix(".weight").unwrap_or(&weight.name).to_owned();
    let names = ["A", "B"].map(|part| format!("{stem}.lora_{part}.weight"));
    let data = rw.graph().op(op);
    let (x, operands, product) = (data.operands[0], data.operands.to_vec(), (data.def, data.attrs.clone()));
    rw.rewrite(op, &[]);
    let mut path = x;
    for (i, (name, matrix)) in names.iter().zip([a, b]).enumerate() {
        let matrix = parameter(rw, name, matrix)?;
        path = match &weight.conv {
            None => {
                let columns = rw.create_one(Transpose { perm: Some(vec![1, 0]) }, &[matrix])?;
                rw.create_one(MatMul {}, &[path, columns])?
            }
            Some(conv) if i == 0 => rw.create_one(conv.clone(), &[path, matrix])?,
            Some(_) => rw.create_one(pointwise(), &[path, matrix])?,
        };
    }
    let factor = Tensor::from_elements(dtype, Vec::new(), Elements::Float(vec![spec.alpha / spec.rank as f64]));
    let factor = rw.create_one(Constant { value: factor.map_err(wrong)? }, &[])?;
    let change = rw.create_one(Mul {}, &[path, factor])?;
    let y = rw.create_one(product, &operands)?;
    let sum = rw.create_one(Add {}, &[y, change])?;
    rw.replace(op, &[sum]);
    let [a, b] = names;
    Ok(Adapter { weight: weight.name, a, b, input_axis: weight.input_axis, a_dims, b_dims, base: weight.value })
}

/// A convolution with a kernel of one element.
fn pointwise() -> Conv {
    let (strides, pads, dilations) = Default::default();
    Conv { strides, pads, dilations, group: 1, auto_pad: "NOTSET".into(), channels_last: false }
}

/// Stores a weight as integers, and returns its values as the graph then computes them.
fn quantized(rw: &mut Rewriter<'_>, weight: &Weight, storage: BaseStorage) -> Result<Tensor, Diagnostics> {
    let (dtype, largest) = if storage == BaseStorage::Int8 { (DType::I8, 127.0) } else { (DType::I4, 7.0) };
    let dims = weight.value.dims().to_vec();
    let values = weight.value.to_f64s().unwrap_or_default();
    if values.iter().any(|x| !x.is_finite()) {
        return Err(
            plain(Code::UNSUPPORTED, format!("weight '{}' has elements that are not finite", weight.name)).into()
        );
    }
    let axis = weight.input_axis;
    let mut scale_dims = dims.clone();
    scale_dims[axis] = dims[axis].div_ceil(BLOCK);
    let step: usize = dims[axis + 1..].iter().product();
    let block_of = |i: usize| {
        let (outer, along, inner) = (i / step / dims[axis], i / step % dims[axis], i % step);
        (outer * scale_dims[axis] + along / BLOCK) * step + inner
    };
    let mut scales = vec![0f64; scale_dims.iter().product()];
    for (i, x) in values.iter().enumerate() {
        let scale = &mut scales[block_of(i)];
        *scale = scale.max(x.abs() / largest);
    }
    // Rounded as the graph has them; a block of zeros has any scale.
    scales.iter_mut().for_each(|s| *s = if *s == 0.0 { 1.0 } else { f64::from(*s as f32) });
    let integers: Vec<f64> = values
        .iter()
        .enumerate()
        .map(|(i, x)| (x / scales[block_of(i)]).round_ties_even().clamp(-largest, largest))
        .collect();
    let again = integers.iter().enumerate().map(|(i, n)| f64::from((n * scales[block_of(i)]) as f32)).collect();
    let stored = integers.iter().map(|n| *n as i128).collect();
    let stored = Tensor::from_elements(dtype, dims.clone(), Elements::Int(stored)).map_err(wrong)?;
    let scale = Tensor::from_elements(weight.value.dtype(), scale_dims, Elements::Float(scales)).map_err(wrong)?;
    rw.rewrite(weight.constant, &[]);
    let stored = parameter(rw, &format!("{}.quantized", weight.name), stored)?;
    let scale = parameter(rw, &format!("{}.scale", weight.name), scale)?;
    let none = rw.create_one(of_ops::structural::NoneValue {}, &[])?;
    let dequantize = DequantizeLinear { axis: axis as i64, block_size: BLOCK as i64, dtype: None };
    let v = rw.create_one(dequantize, &[stored, scale, none])?;
    rw.replace(weight.constant, &[v]);
    Ok(Tensor::from_elements(weight.value.dtype(), dims, Elements::Float(again)).map_err(wrong)?)
}
