//! Contractions and convolutions as library calls.

use half::{bf16, f16};
use of_diag::Diagnostic;
use of_ir::{DType, OpId, ValueId};
use of_ops::OpSpec;
use of_ops::contraction::MatMul;
use of_ops::list::as_op;
use of_ops::movement::Transpose;
use of_ops::nn::Conv;

use crate::fuse::Group;
use crate::kernel::body::Body;
use crate::kernel::contraction::{Contraction, RowAxes};
use crate::kernel::extent;
use crate::kernel::extent::Extent;
use crate::lower::Lowering;
use crate::lower::anchor::by_taps;
use crate::physical::{BufferRef, Flops, Operand, StepKind};
use crate::place::Rejected;
use crate::vendor_libraries::cublaslt::Matrix;
use crate::vendor_libraries::cudnn::Convolution;
use crate::vendor_libraries::{Call, VendorLibrary, cublaslt, cudnn};

/// A call, and the values that it adds. If it has a bias but no bias value, each channel's bias is this number.
pub(crate) struct LibraryCall {
    call: Call,
    adds: Vec<ValueId>,
    number: f64,
}

impl Lowering<'_, '_> {
    /// The contraction of `op` as a cuBLASLt call, if requested.
    pub(super) fn product_call(
        &mut self,
        op: OpId,
        spec: &Contraction,
        b: &Body,
        axes: &RowAxes,
        out: &[Extent],
    ) -> Option<LibraryCall> {
        let asked =
            self.libraries.has(VendorLibrary::CublasLt).then(|| cublaslt::product(spec, b, axes, out, self.isa));
        self.accepted(op, VendorLibrary::CublasLt, b, asked?.map(|(product, adds)| (Call::Product(product), adds, 0.0)))
    }

    /// The convolution `op` as a cuDNN call, if requested.
    pub(super) fn convolution_call(
        &mut self,
        op: OpId,
        shape: &cudnn::ConvolutionShape<'_>,
        b: &Body,
        out: &[Extent],
    ) -> Option<LibraryCall> {
        let asked = self.libraries.has(VendorLibrary::Cudnn).then(|| cudnn::convolution(shape, b, out, self.isa));
        self.accepted(op, VendorLibrary::Cudnn, b, asked?.map(|(c, adds, number)| (Call::Convolution(c), adds, number)))
    }

    /// Returns the library's call for `op`; a refusal is recorded for the user.
    fn accepted(
        &mut self,
        op: OpId,
        library: VendorLibrary,
        b: &Body,
        said: Result<(Call, Vec<usize>, f64), String>,
    ) -> Option<LibraryCall> {
        match said {
            Ok((call, adds, number)) => {
                Some(LibraryCall { call, adds: adds.iter().map(|l| b.loads[*l].value).collect(), number })
            }
            Err(reason) => {
                let (op, location) = (self.g.op(op).name().to_string(), self.g.op(op).loc.clone());
                let backend = library.name().to_string();
                self.out.rejected.push(Rejected { op, location, backend, reason, fix: None });
                None
            }
        }
    }

    /// The operands of a matrix product that is a library call: a transpose used only by it is folded into the call.
    pub(super) fn fold_transposes(&mut self, accepted: &mut LibraryCall, operands: [ValueId; 2]) -> [ValueId; 2] {
        let Call::Product(p) = &mut accepted.call else { return operands };
        let mut out = operands;
        for ((matrix, rows), v) in [(&mut p.left, p.rows), (&mut p.right, p.depth)].into_iter().zip(&mut out) {
            // A batch folded into the rows cannot be read transposed.
            let dims = extent::of_value(self.g, *v);
            let alone = dims[dims.len() - 2].is(rows as i64);
            if let Some(op) = self.g.def_op(*v).filter(|op| alone && self.deferred.contains(op)) {
                *matrix = Matrix { transposed: true, line: rows, ..*matrix };
                *v = self.g.op(op).operands[0];
            }
        }
        out
    }

    /// Emits the step of a library call.
    pub(super) fn library_call(
        &mut self,
        group: &Group,
        accepted: LibraryCall,
        operands: [Operand; 2],
        b: &Body,
        flops: Flops,
    ) -> Result<(), Diagnostic> {
        let call = accepted.call;
        let mut inputs = operands.to_vec();
        for v in &accepted.adds {
            inputs.push(self.operand(*v)?);
        }
        let spans = call.spans().unwrap_or_default();
        // If an argument is missing, it is the bias.
        if inputs.len() + 1 < spans.len()
            && let Call::Convolution(c) = &call
        {
            inputs.push(self.constant_bias(c, accepted.number)?);
        }
        let outputs: Vec<usize> = b.stores.iter().map(|(v, _)| self.new_value(*v)).collect();
        let payload = self.constants.builder().add_payload(call.write());
        let bytes = spans.iter().sum::<u64>() * call.dtype().bits().map_or(4, |b| b as u64 / 8);
        let name = call.library().name();
        let (title, locations) = (format!("{name}: {}", self.title(&group.ops)), self.locations(&group.ops));
        let work = StepKind::host_call(name, payload, inputs, outputs);
        self.step(title, locations, work, flops, bytes);
        Ok(())
    }

    /// A constant bias for all channels of a convolution.
    fn constant_bias(&mut self, c: &Convolution, number: f64) -> Result<Operand, Diagnostic> {
        let (name, count) = (format!("bias {number}"), c.outputs as usize);
        let weight = match c.dtype {
            DType::F16 => self.constants.computed(&name, vec![f16::from_f64(number); count])?,
            DType::BF16 => self.constants.computed(&name, vec![bf16::from_f64(number); count])?,
            _ => self.constants.computed(&name, vec![number as f32; count])?,
        };
        Ok(Operand::whole(BufferRef::Weight(weight)))
    }

    /// Filters `[Cout, Cin, taps]` with channels last, as a call reads them: rearranged at compile time if constant, else before
    /// each call.
    pub(super) fn channels_last(&mut self, op: OpId, w: ValueId, dims: [usize; 3]) -> Result<Operand, Diagnostic> {
        let [cout, cin, taps] = dims;
        if cin == 1 || taps == 1 {
            return self.operand(w);
        }
        let Some(tensor) = self.constants.tensor(w) else {
            let (dims, from) = ([cout, taps, cin], [cin * taps, 1, taps]);
            return self.rearranged(op, w, &dims.map(Extent::from), from.map(Extent::from).to_vec());
        };
        let name = format!("{} (channels last)", self.constants.name(w));
        let weight = if let Some(values) = tensor.as_slice::<f16>() {
            self.constants.computed(&name, channels_last(&values, cin, taps))?
        } else if let Some(values) = tensor.as_slice::<bf16>() {
            self.constants.computed(&name, channels_last(&values, cin, taps))?
        } else {
            self.constants.computed(&name, channels_last(&tensor.as_slice::<f32>().unwrap_or_default(), cin, taps))?
        };
        Ok(Operand::whole(BufferRef::Weight(weight)))
    }

    /// Whether `op` is a transpose whose only reader may read its operand instead: a matrix product that is a library call, or a
    /// convolution that rearranges its filters or pads its image.
    pub(super) fn may_defer(&self, op: OpId) -> bool {
        let Some(t) = as_op::<Transpose>(self.g, op) else { return false };
        let [reader] = self.g.uses(self.g.op(op).results[0]) else { return false };
        let rank = self.dims(self.g.op(op).operands[0]).len();
        let perm = t.permutation(rank).unwrap_or_default();
        let swapped = (0..rank.saturating_sub(2)).chain([rank.wrapping_sub(1), rank.wrapping_sub(2)]);
        match self.g.op(reader.op).name() {
            MatMul::NAME => self.libraries.has(VendorLibrary::CublasLt) && rank >= 2 && perm.into_iter().eq(swapped),
            Conv::NAME => true,
            _ => false,
        }
    }
}

/// Rearranges each filter `[Cin, taps]` to `[taps, Cin]`.
fn channels_last<T: Copy + Default + Send + Sync>(filters: &[T], cin: usize, taps: usize) -> Vec<T> {
    filters.chunks_exact(cin * taps).flat_map(|filter| by_taps(filter, 1, cin, taps)).collect()
}
