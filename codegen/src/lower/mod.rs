//! Lowering: translates the ops of a function to steps over buffers.
//!
//! Groups of fused ops become kernels; ops without a kernel go to a backend, with the reason recorded for the user.

mod anchor;
mod attention;
pub mod body;
mod call;
mod constants;
mod control;
mod conv;
mod not_native;
pub mod panel_widths;
mod pool;
mod recurrence;
mod reductions;
mod score_matrix;
mod time;
mod transfer;
mod variables;
pub mod weight_form;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use of_diag::{Code, Diagnostic, Location};
use of_ir::{DType, Func, Graph, IdMap, IdSet, OpId, RegionId, Type, ValueId};
use of_ops::boxing::Transfer;
use of_ops::contraction::MatMul;
use of_ops::control::Subgraph;
use of_ops::list::as_op;
use of_ops::movement::{Concat, Expand};
use of_ops::nn::{DepthwiseWeightGradient, MatMulInteger};
use of_ops::time::is_in_microbatches;
use of_ops::training::{VariableInput, variables};
use of_ops::{OpSpec, work};
use of_plan::PlanBuilder;

use crate::analysis::phases::{PhaseOps, Phases, Pipeline, is_in_time};
use crate::analysis::reduction::{reduce_kind, reduced_axes};
use crate::analysis::roles::{Role, Roles, conv_of};
use crate::analysis::{movement, user_kernel};
use crate::backend::Backend;
use crate::extract::{extract, extract_region};
use crate::fuse::{Group, GroupKind};
use crate::isa::{CpuCode, Isa};
use crate::kernel::body::Body;
use crate::kernel::expr::unsupported_reason;
use crate::kernel::extent::Extent;
use crate::kernel::indexed::Indexed;
use crate::kernel::nest::Nest;
use crate::kernel::prologue::{Check, Prologue};
use crate::kernel::schedule::{Schedules, TunableContraction};
use crate::kernel::{extent, schedule};
use crate::lower::body::{Special, body};
use crate::lower::constants::Constants;
pub use crate::lower::not_native::NotNative;
use crate::lower::panel_widths::PanelWidths;
use crate::lower::weight_form::WeightForm;
use crate::physical::{
    BufferRef, BufferSlot, Flops, Operand, PhaseRange, PortSpec, Step, StepGraph, StepKind, dtype_of,
};
use crate::place::Rejected;
use crate::print::{Capabilities, Source, printer};
use crate::toolchain::InProcess;
use crate::vendor_libraries::VendorLibraries;
use crate::{fuse, rendezvous};

/// The target and the options of a compilation.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// Instruction set.
    pub isa: &'static Isa,
    /// Backends for ops without native code, best first.
    pub backends: &'a [&'a dyn Backend],
    /// Whether convolutions may use Winograd's algorithm, whose rounding errors are slightly larger.
    pub winograd: bool,
    /// Libraries whose calls replace kernels ([`crate::vendor_libraries`]); only for GPUs.
    pub libraries: VendorLibraries,
    /// Measured register tiles.
    pub schedules: &'a Schedules,
    /// Where the machine code of kernels for a CPU comes from.
    pub cpu_code: CpuCode,
    /// Whether kernels for a CPU compute with subnormal numbers instead of reading and writing them as zeros.
    pub keep_subnormals: bool,
}

impl<'a> Target<'a> {
    /// A target whose tiles all come from the cost model.
    pub fn new(isa: &'static Isa, backends: &'a [&'a dyn Backend]) -> Self {
        Target {
            isa,
            backends,
            winograd: true,
            libraries: VendorLibraries::default(),
            schedules: &schedule::NONE,
            cpu_code: CpuCode::default(),
            keep_subnormals: false,
        }
    }
}

/// A lowered region. `StepKind::Kernel::code` is an index into `kernels` until the plan contains them.
#[derive(Default)]
pub struct Lowered {
    /// Steps and buffers.
    pub physical: StepGraph,
    /// Distinct kernels.
    pub kernels: Vec<Source>,
    /// A readable name for each kernel.
    pub names: Vec<String>,
    /// Ops that went to a backend.
    pub not_native: Vec<NotNative>,
    /// Contractions and convolutions that use kernels although library calls were requested.
    pub rejected: Vec<Rejected>,
    /// Its contractions.
    pub tunable: Vec<TunableContraction>,
    /// The weights that are stored in another form than the model's.
    pub weight_forms: Vec<WeightForm>,
    /// Regions that its control flow runs; `StepKind::Control::programs` are indices into them.
    pub inner: Vec<Lowered>,
}

/// Lowers `func`. Extents are numbers or symbols. Values of symbolic extents become objects, which the runtime allocates when
/// the symbols are bound. `in_process` begins to compile each kernel as soon as it is there. `panel_widths` are those of other
/// programs of the plan.
///
/// # Errors
/// When no backend claims an op, with every reason.
pub fn lower(
    func: &Func,
    target: &Target<'_>,
    in_process: Option<&InProcess>,
    panel_widths: Option<&mut PanelWidths>,
    builder: &mut PlanBuilder<'static>,
) -> Result<Lowered, Diagnostic> {
    let (graph, caps) = (&func.graph, printer(target.isa.language).capabilities());
    let inputs: Vec<(ValueId, String)> = graph.args().iter().copied().zip(func.inputs.iter().cloned()).collect();
    let mut l = Lowering {
        g: graph,
        roles: Roles::of(graph, graph.entry(), graph.args()),
        special: Special::of(graph),
        isa: target.isa,
        in_process,
        backends: target.backends,
        winograd: target.winograd,
        caps,
        libraries: if caps.library_calls { target.libraries } else { VendorLibraries::default() },
        deferred: HashSet::default(),
        schedules: target.schedules,
        panel_widths,
        constants: Constants::new(graph, builder),
        out: Lowered::default(),
        operand_of: HashMap::default(),
        kernel_of: HashMap::default(),
        variables: variables(func)?,
        pipeline: Pipeline::of(func),
    };
    l.region(graph.entry(), &inputs, &func.outputs)?;
    Ok(l.out)
}

pub(crate) struct Lowering<'g, 'b> {
    g: &'g Graph,
    roles: Roles,
    special: Special,
    isa: &'b Isa,
    in_process: Option<&'b InProcess>,
    /// Capabilities of kernels for the instruction set.
    caps: Capabilities,
    backends: &'b [&'b dyn Backend],
    winograd: bool,
    libraries: VendorLibraries,
    /// Transposes that are lowered on first use: their reader may read their operand instead.
    deferred: IdSet<OpId>,
    schedules: &'b Schedules,
    panel_widths: Option<&'b mut PanelWidths>,
    constants: Constants<'g, 'b>,
    out: Lowered,
    operand_of: IdMap<ValueId, Operand>,
    kernel_of: HashMap<String, usize>,
    /// Variables among the inputs of the function; none in a region.
    variables: Vec<VariableInput>,
    pipeline: Pipeline,
}

impl<'g> Lowering<'g, '_> {
    /// Lowers the ops of a region.
    fn region(&mut self, region: RegionId, inputs: &[(ValueId, String)], outputs: &[String]) -> Result<(), Diagnostic> {
        self.out.physical.symbols = self.roles.symbols.clone();
        self.out.physical.merges_collectives = self.caps.collectives;
        self.feed(inputs)?;
        // Score matrices with other readers are materialised anyway.
        let own =
            |t: &crate::analysis::score_matrix::ScoreMatrixMatch| self.caps.recomputed_scores && t.shared.is_empty();
        let mut matrices: Vec<_> =
            crate::analysis::score_matrix::find(self.g, region, &self.roles).into_iter().filter(own).collect();
        let columns = self.caps.column_reductions;
        let Some(phases) = Phases::of(self.g, region, self.pipeline)? else {
            let groups = fuse::fuse(self.g, self.g.region_ops(region), &self.roles, matrices, columns);
            for group in &self.merge_updates(region, groups) {
                self.group(group)?;
            }
            return self.fetch(self.g.yields(region), outputs);
        };
        let Phases { list, schedule } = phases;
        self.out.physical.time.schedule = schedule;
        for (i, PhaseOps { ops, part, times, launches }) in list.into_iter().enumerate() {
            if is_in_microbatches(part) {
                self.check_sizes(ops.iter().copied())?;
            }
            // What feeds the inputs is of the first phase.
            let first = if i == 0 { 0 } else { self.out.physical.steps.len() };
            self.out.physical.time.phases.push(PhaseRange { first, part, times, launches });
            let own = matrices.extract_if(.., |m| m.ops().iter().all(|op| ops.contains(op))).collect();
            let groups = fuse::fuse(self.g, ops, &self.roles, own, columns);
            for group in &self.merge_updates(region, groups) {
                self.group(group)?;
            }
        }
        self.fetch(self.g.yields(region), outputs)
    }

    // ---- values ----

    fn dims(&self, v: ValueId) -> Vec<Extent> {
        extent::of_value(self.g, v)
    }

    fn dtype(&self, v: ValueId) -> DType {
        self.g.ty(v).as_tensor().map_or(DType::F32, |t| t.dtype)
    }

    /// A slot for `v`: a buffer if its size is known, else an object.
    fn slot(&mut self, v: ValueId) -> usize {
        let ty = self.g.ty(v);
        let (dtype, dims, bytes) = slot_type(ty);
        let known = bytes.is_none() && self.roles.is_shape_known(ty);
        let extents = if known { ty.as_tensor().and_then(|t| t.shape.clone()) } else { None };
        let name = self.g.name(v).map_or_else(|| format!("v{}", v.index()), |n| n.to_string());
        self.out.physical.slots.push(BufferSlot {
            name,
            dtype,
            dims,
            bytes,
            extents: extents.unwrap_or_default(),
            variable: None,
        });
        self.out.physical.slots.len() - 1
    }

    /// A buffer for a temporary that is no value of the graph.
    fn scratch_slot(&mut self, name: String, dtype: DType, dims: &[Extent]) -> usize {
        let count = dims.iter().product::<Extent>().number();
        let bytes = count.and_then(|n| dtype.byte_len(n)).map(|b| b as u64);
        let extents = if bytes.is_none() { dims.iter().map(|d| d.dim().clone()).collect() } else { Vec::new() };
        let dims = dims.iter().map(|d| d.dim().as_const().unwrap_or(-1)).collect();
        let slot = BufferSlot { name, dtype: Some(dtype), dims, bytes, extents, variable: None };
        self.out.physical.slots.push(slot);
        self.out.physical.slots.len() - 1
    }

    /// The operand of `v`; its producer must have been lowered.
    fn operand(&mut self, v: ValueId) -> Result<Operand, Diagnostic> {
        if let Some(p) = self.operand_of.get(&v) {
            return Ok(p.clone());
        }
        if let Some(w) = self.constants.plain(v)? {
            return Ok(Operand::whole(BufferRef::Weight(w)));
        }
        if let Some(op) = self.g.def_op(v).filter(|op| self.deferred.remove(op)) {
            match self.single(op) {
                Ok(done) => done?,
                Err(why) => self.backend(op, why)?,
            }
            return self.operand(v);
        }
        // An alias shares the bytes of its operand under another type.
        if let Some(op) = self.g.def_op(v)
            && *self.roles.get(op) == Role::Alias
        {
            let mut p = self.operand(self.g.op(op).operands[0])?;
            p.view = Some((self.dtype(v), slot_type(self.g.ty(v)).1));
            return Ok(p);
        }
        let Some(op) = self.g.def_op(v) else {
            return Err(Diagnostic::error(Code::CODEGEN, Location::Unknown, "an argument is read before it is fed"));
        };
        // Kernels know the numbers of a shape computation from symbols; a backend reads its result.
        if *self.roles.get(op) == Role::Nothing {
            if self.roles.is_shape(self.g, op) {
                self.single(op).map_err(|why| self.bug(op, why))??;
            } else {
                self.backend(op, "a backend reads it".into())?;
            }
            return self.operand(v);
        }
        let name = self.g.op(op).name();
        Err(self.bug(op, format!("the result of '{name}' is read before it is computed")))
    }

    /// The operand of `v` for readers that need its type: an object has the type of `v`.
    fn typed_operand(&mut self, v: ValueId) -> Result<Operand, Diagnostic> {
        let p = self.operand(v)?;
        let object = matches!(p.buffer, BufferRef::Slot(s) if self.out.physical.slots[s].bytes.is_none());
        let open = p.view.as_ref().is_some_and(|(_, dims)| dims.contains(&-1));
        if let (false, true, Some(op)) = (object, open, self.g.def_op(v)) {
            return self.copy_to_object(op, v, p);
        }
        if !object || p.view.is_none() {
            return Ok(p);
        }
        let dst = self.slot(v);
        let extents = self.g.ty(v).as_tensor().and_then(|t| t.shape.clone()).unwrap_or_default();
        // A register without extents accepts any extents, so a scalar is a buffer.
        if let (true, Some(op)) = (extents.is_empty(), self.g.def_op(v)) {
            let source = Nest::CopyScalar(self.dtype(v)).print(self.isa).map_err(|why| self.bug(op, why))?;
            self.kernel(&[op], source, vec![p], vec![dst], Flops::default());
            let whole = Operand::whole(BufferRef::Slot(dst));
            self.operand_of.insert(v, whole.clone());
            return Ok(whole);
        }
        // An alias of an object is an object, even if its extents are numbers.
        let slot = &mut self.out.physical.slots[dst];
        (slot.bytes, slot.extents) = (None, extents);
        self.step(
            "reshape".into(),
            Vec::new(),
            StepKind::Copy { src: Operand::whole(p.buffer), dst },
            Flops::default(),
            0,
        );
        let whole = Operand::whole(BufferRef::Slot(dst));
        self.operand_of.insert(v, whole.clone());
        Ok(whole)
    }

    /// Copies a buffer to an object whose extents are bound at run time.
    fn copy_to_object(&mut self, op: OpId, v: ValueId, buffer: Operand) -> Result<Operand, Diagnostic> {
        if !self.roles.is_shape_known(self.g.ty(v)) {
            self.backend(op, "its result has extents that no tensor binds".into())?;
            return self.operand(v);
        }
        let mut from = self.g.op(op).operands[0];
        while let Some(d) = self.g.def_op(from).filter(|d| *self.roles.get(*d) == Role::Alias) {
            from = self.g.op(d).operands[0];
        }
        let bytes = self.dtype(v).bits().map_or(4, |b| b / 8);
        let copy = Nest::Indexed(Indexed::Dense { count: self.dims(from).iter().product(), bytes });
        let source = copy.print(self.isa).map_err(|why| self.bug(op, why))?;
        let dst = self.slot(v);
        self.kernel(&[op], source, vec![buffer], vec![dst], Flops::default());
        let whole = Operand::whole(BufferRef::Slot(dst));
        self.operand_of.insert(v, whole.clone());
        Ok(whole)
    }

    // ---- inputs and outputs ----

    fn feed(&mut self, inputs: &[(ValueId, String)]) -> Result<(), Diagnostic> {
        for (i, (v, name)) in inputs.iter().enumerate() {
            let dst = self.slot(*v);
            self.operand_of.insert(*v, Operand::whole(BufferRef::Slot(dst)));
            if let Some(k) = self.variables.iter().position(|variable| variable.input == i) {
                self.variable(k, name, dst)?;
                continue;
            }
            let spec = self.port(name, dst);
            let port = self.out.physical.inputs.len() as u32;
            self.out.physical.inputs.push(spec);
            self.step(format!("feed {name}"), Vec::new(), StepKind::Feed { port, dst }, Flops::default(), 0);
        }
        Ok(())
    }

    fn fetch(&mut self, values: &[ValueId], names: &[String]) -> Result<(), Diagnostic> {
        for (i, (v, name)) in values.iter().copied().zip(names).enumerate() {
            if let Some(k) = self.variables.iter().position(|variable| variable.next == Some(i)) {
                let next = self.typed_operand(v)?;
                self.next_value(k, v, next)?;
                continue;
            }
            let (dtype, dims, bytes) = slot_type(self.g.ty(v));
            // A buffer has at least one byte, so a constant without elements is an object, which a backend must make.
            if let Some(op) = self.g.def_op(v)
                && bytes.is_none()
                && self.g.constant(v).is_some()
                && !self.operand_of.contains_key(&v)
            {
                self.backend(op, "a constant without elements has no buffer".into())?;
            }
            let p = self.typed_operand(v)?;
            let whole = match p.buffer {
                BufferRef::Slot(s) => {
                    let slot = &self.out.physical.slots[s];
                    p.offset == 0 && (slot.bytes.is_none() || (slot.dims == dims && slot.dtype == dtype))
                }
                BufferRef::Weight(_) => false,
            };
            let src = match p.buffer {
                BufferRef::Slot(s) if whole => s,
                _ => {
                    let dst = self.slot(v);
                    self.step(format!("copy {name}"), Vec::new(), StepKind::Copy { src: p, dst }, Flops::default(), 0);
                    dst
                }
            };
            let spec = self.port(name, src);
            let port = self.out.physical.outputs.len() as u32;
            self.out.physical.outputs.push(spec);
            self.step(format!("fetch {name}"), Vec::new(), StepKind::Fetch { port, src }, Flops::default(), 0);
        }
        Ok(())
    }

    fn port(&self, name: &str, slot: usize) -> PortSpec {
        let s = &self.out.physical.slots[slot];
        PortSpec { name: name.to_string(), dtype: s.dtype, dims: s.dims.clone(), object: s.bytes.is_none() }
    }

    // ---- steps ----

    fn step(&mut self, name: String, locations: Vec<String>, kind: StepKind, flops: Flops, bytes: u64) {
        self.out.physical.steps.push(Step { name, locations, kind, flops, bytes, reread: None, in_place: Vec::new() });
    }

    /// The diagnostic for a kernel that should be printable and is not.
    fn bug(&self, op: OpId, why: String) -> Diagnostic {
        Diagnostic::error(Code::CODEGEN, self.g.op(op).loc.clone(), why)
    }

    fn locations(&self, ops: &[OpId]) -> Vec<String> {
        let mut out: Vec<String> = Vec::new();
        for op in ops {
            for l in self.g.op(*op).loc.roots() {
                let l = l.to_string();
                if !out.contains(&l) {
                    out.push(l);
                }
            }
        }
        out
    }

    /// A name for the step of a group: its op names without the dialect prefix.
    fn title(&self, ops: &[OpId]) -> String {
        let mut names: Vec<&str> = ops.iter().map(|o| self.g.op(*o).name().trim_start_matches("of.")).collect();
        names.dedup();
        const MAX_NAMES: usize = 6;
        let more = names.len().saturating_sub(MAX_NAMES);
        names.truncate(MAX_NAMES);
        let mut out = names.join("+");
        if more > 0 {
            out.push_str(&format!("+{more} more"));
        }
        out
    }

    /// Emits a step that runs `source` on `reads`, then `writes`.
    fn kernel(&mut self, ops: &[OpId], source: Source, reads: Vec<Operand>, writes: Vec<usize>, flops: Flops) {
        let symbols = self.symbols(ops);
        let count = reads.len() + writes.len();
        let mut source = source;
        source.args = count + usize::from(!symbols.is_empty());
        let prologue = Prologue {
            arguments: count,
            sizes: self.sizes(&reads, &writes),
            checks: self.checks(ops),
            may_be_empty: source.iterations.number().is_none(),
            symbols: symbols.iter().map(|s| (s.clone(), self.roles.index(s))).collect(),
        };
        source.body.insert_str(0, &printer(self.isa.language).prologue(&prologue));
        let (iterations, grain, scratch_bytes) = (source.iterations.clone(), source.grain, source.scratch_bytes);
        let title = self.title(ops);
        let next = self.out.kernels.len();
        let code = *self.kernel_of.entry(source.body.clone()).or_insert(next);
        if code == next {
            if let Some(compiler) = self.in_process {
                compiler.begin(&source.body);
            }
            self.out.kernels.push(source);
            self.out.names.push(title.clone());
        }
        let locations = self.locations(ops);
        let written: u64 = writes.iter().filter_map(|s| self.out.physical.slots[*s].bytes).sum();
        // Data movement (a gather, a slice) reads at most as many bytes of a buffer as it writes.
        let most = if flops == Flops::default() { written } else { u64::MAX };
        let bytes = reads.iter().filter_map(|r| self.bytes_of(r)).map(|b| b.min(most)).sum::<u64>() + written;
        let args = reads.into_iter().chain(writes.iter().map(|s| Operand::whole(BufferRef::Slot(*s)))).collect();
        let symbols = !symbols.is_empty();
        let work = StepKind::Kernel { code: code as u32, args, writes, symbols, iterations, grain, scratch_bytes };
        self.step(title, locations, work, flops, bytes);
    }

    /// Size in bytes of each argument, where known.
    fn sizes(&mut self, reads: &[Operand], writes: &[usize]) -> Vec<Option<Extent>> {
        let args = reads.iter().cloned().chain(writes.iter().map(|s| Operand::whole(BufferRef::Slot(*s))));
        let mut list = Vec::new();
        for o in args.collect::<Vec<_>>() {
            let slot = match o.buffer {
                BufferRef::Slot(s) => Some(&self.out.physical.slots[s]).filter(|s| s.bytes.is_none()),
                BufferRef::Weight(_) => None,
            };
            let open = slot.filter(|s| !s.extents.is_empty()).map(|s| {
                let each = s.dtype.and_then(DType::bits).map_or(0, |b| b / 8);
                s.extents.iter().map(Extent::from).fold(Extent::from(each), |a, b| a * b)
            });
            let open = open.filter(|e| !e.dim().is_unknown());
            let known = self.bytes_of(&o).map(|b| Extent::from((b - o.offset.min(b)) as usize));
            list.push(known.or(open));
        }
        list
    }

    /// Pairs of values that share bytes through aliases, and that the kernel of `ops` reads; the one in memory first.
    fn aliases(&self, ops: &[OpId]) -> Vec<(ValueId, ValueId)> {
        let mut out = Vec::new();
        for op in ops {
            let alias = *self.roles.get(*op) == Role::Alias;
            let shown = if alias { self.g.op(*op).results.to_vec() } else { self.roles.reads(self.g, *op) };
            for mut v in shown {
                while let Some(d) = self.g.def_op(v).filter(|d| *self.roles.get(*d) == Role::Alias) {
                    let from = self.g.op(d).operands[0];
                    out.push((from, v));
                    v = from;
                }
            }
        }
        out
    }

    /// Run-time checks that operands of `ops` broadcast to their results and that reshapes keep the number of elements;
    /// statically known conditions are omitted.
    fn checks(&self, ops: &[OpId]) -> Vec<Check> {
        let count = |v: ValueId| self.dims(v).iter().product::<Extent>();
        let sizes = self.aliases(ops).into_iter().filter_map(|(a, b)| Check::equal(&count(a), &count(b)));
        let mut out: Vec<Check> = sizes.collect();
        for op in ops {
            let data = self.g.op(*op);
            if let Some(concat) = as_op::<Concat>(self.g, *op) {
                let to = self.dims(data.results[0]);
                let along = of_ops::shape::axis(concat.axis, to.len()).ok();
                let others = (0..to.len()).filter(|a| Some(*a) != along);
                let pairs = others.flat_map(|a| data.operands.iter().map(move |v| (a, *v)));
                out.extend(pairs.filter_map(|(a, v)| Check::equal(&self.dims(v)[a], &to[a])));
            }
            if let Some(conv) = conv_of(self.g, *op)
                && let [x, w] = [0, 1].map(|i| self.dims(data.operands[i]))
                && let (Some(own), Some(of_group)) = (x.get(if conv.channels_last { x.len() - 1 } else { 1 }), w.get(1))
            {
                out.extend(Check::equal(own, &(of_group * conv.group.unsigned_abs() as usize)));
            }
            let matrix = match self.roles.get(*op) {
                Role::Map(_) => 0,
                Role::Anchor if matches!(data.name(), MatMul::NAME | MatMulInteger::NAME) => 2,
                Role::Single if data.name() == Expand::NAME => 0,
                _ => continue,
            };
            let to = self.dims(data.results[0]);
            if matrix == 2 {
                let (a, b) = (self.dims(data.operands[0]), self.dims(data.operands[1]));
                if let ([.., a], [.., b, _]) = (&a[..], &b[..]) {
                    out.extend(Check::equal(a, b));
                }
            }
            let mut operands: Vec<_> = self.roles.reads(self.g, *op).iter().map(|v| self.dims(*v)).collect();
            if data.name() == Expand::NAME {
                let asked = self.g.dims_value(data.operands[1]).unwrap_or_default();
                operands.push(asked.iter().map(Extent::from).collect());
            }
            for own in operands {
                let pairs = own.iter().rev().zip(to.iter().rev()).skip(matrix);
                out.extend(pairs.filter_map(|(own, to)| Check::broadcasts(own, to)));
            }
        }
        out
    }

    /// The symbols in the types, and in the shape values, that `ops` read and write: sorted.
    fn symbols(&self, ops: &[OpId]) -> Vec<Arc<str>> {
        let mut out = Vec::new();
        let own = ops.iter().flat_map(|op| self.g.op(*op).operands.iter().chain(&self.g.op(*op).results)).copied();
        for v in own.chain(self.aliases(ops).into_iter().flat_map(|(a, b)| [a, b])) {
            let extents = self.g.ty(v).as_tensor().and_then(|t| t.shape.clone());
            let numbers = self.g.dims_value(v);
            out.extend(extents.into_iter().chain(numbers).flatten().flat_map(|d| d.symbols()));
        }
        out.retain(|s| self.roles.symbols.contains(s));
        out.sort();
        out.dedup();
        out
    }

    fn bytes_of(&mut self, o: &Operand) -> Option<u64> {
        match o.buffer {
            BufferRef::Slot(s) => self.out.physical.slots[s].bytes,
            BufferRef::Weight(w) => self.constants.builder().plan().weights.get(w as usize).map(|w| w.len),
        }
    }

    // ---- groups ----

    fn group(&mut self, group: &Group) -> Result<(), Diagnostic> {
        let result = match group.kind {
            GroupKind::Reference => {
                let why = match self.roles.get(group.ops[0]) {
                    Role::Reference(why) => why.clone(),
                    _ => String::new(),
                };
                return self.backend(group.ops[0], why);
            }
            GroupKind::Control => {
                return match self.recurrence(group.ops[0]) {
                    Ok(done) => done,
                    Err(why) => {
                        tracing::debug!(reason = why, "control flow is run by the runtime");
                        self.control(group.ops[0])
                    }
                };
            }
            GroupKind::Transfer => return self.transfer(group.ops[0]),
            GroupKind::Elementwise => self.elementwise(group),
            GroupKind::Rowwise(inner) => self.rowwise(group, inner),
            GroupKind::Columnwise(outer) => self.columnwise(group, outer),
            GroupKind::Anchor => self.anchor(group),
            GroupKind::Attention => self.attention(group),
            GroupKind::ScoreMatrix => self.score_matrix(group),
            GroupKind::Single if self.may_defer(group.ops[0]) => {
                self.deferred.insert(group.ops[0]);
                return Ok(());
            }
            GroupKind::Single => self.single(group.ops[0]),
        };
        let why = match result {
            Ok(done) => return done,
            Err(why) => why,
        };
        if !group.parts.is_empty() {
            tracing::debug!(reason = why, "products and what is between them are kernels of their own");
            return group.parts.iter().try_for_each(|part| self.group(part));
        }
        if let GroupKind::Columnwise(_) = group.kind {
            return self.apart(group);
        }
        // A group without a kernel is lowered op by op; a single op without a kernel goes to a backend.
        if let ([op], []) = (&group.ops[..], &group.recomputed[..]) {
            return self.backend(*op, why);
        }
        tracing::debug!(reason = why, ops = group.ops.len(), "a fused group is split");
        // Recomputed values may already be computed for other readers.
        let recomputed: Vec<OpId> = group
            .recomputed
            .iter()
            .copied()
            .filter(|op| !self.operand_of.contains_key(&self.g.op(*op).results[0]))
            .collect();
        for op in recomputed.iter().chain(&group.ops) {
            let role = self.roles.get(*op).clone();
            let v = self.g.op(*op).results[0];
            let (kind, space) = match role {
                Role::Anchor => (GroupKind::Anchor, self.dims(v)),
                Role::RowReduce(inner) => (GroupKind::Rowwise(inner), self.dims(self.g.op(*op).operands[0])),
                Role::ColumnReduce(_) => (GroupKind::Single, self.dims(v)),
                _ => (GroupKind::Elementwise, self.dims(v)),
            };
            self.group(&Group::of(vec![*op], kind, space))?;
        }
        Ok(())
    }

    /// The program of a group, or why it cannot be printed.
    fn body(&self, group: &Group, inner: usize) -> Result<Body, String> {
        let b = body(self.g, group, &self.roles, inner, &self.special);
        match unsupported_reason(&b) {
            Some(why) => Err(why),
            None => Ok(b),
        }
    }

    /// Operands of the loads and slots of the stores of a body.
    fn io(&mut self, b: &Body) -> Result<(Vec<Operand>, Vec<usize>), Diagnostic> {
        let reads = b.loads.iter().map(|l| self.operand(l.value)).collect::<Result<Vec<_>, _>>()?;
        let writes = b.stores.iter().map(|(v, _)| self.new_value(*v)).collect();
        Ok((reads, writes))
    }

    /// Allocates the slot of `v`, which later readers use.
    fn new_value(&mut self, v: ValueId) -> usize {
        let slot = self.slot(v);
        self.operand_of.insert(v, Operand::whole(BufferRef::Slot(slot)));
        slot
    }

    fn elementwise(&mut self, group: &Group) -> Result<Result<(), Diagnostic>, String> {
        let b = self.body(group, 0)?;
        let source = Nest::Elementwise { body: b.clone(), dims: group.space.clone() }.print(self.isa)?;
        Ok(self.finish(group, source, &b, Vec::new(), Flops::default()).map(|()| self.note_in_place(&b, &group.space)))
    }

    fn rowwise(&mut self, group: &Group, inner: usize) -> Result<Result<(), Diagnostic>, String> {
        if let [op] = group.ops[..] {
            let (dims, dtype) = (self.dims(self.g.op(op).operands[0]), self.dtype(self.g.op(op).operands[0]));
            let axes: Vec<usize> = (dims.len() - inner..dims.len()).collect();
            if let Some(parts) = self.parts(&dims, &axes).filter(|_| dtype == DType::F32 && dims == group.space) {
                return self.split_reduction(op, &dims, &axes, parts);
            }
        }
        let b = self.body(group, inner)?;
        let source = Nest::RowWise { body: b.clone(), dims: group.space.clone(), inner }.print(self.isa)?;
        Ok(self.finish(group, source, &b, Vec::new(), Flops::default()))
    }

    /// Operations of a group excluding its anchor; 0 if its extents are unknown.
    fn pointwise(&self, group: &Group) -> u64 {
        let known = points(&group.space) > 0;
        let ops = group.recomputed.iter().chain(&group.ops).filter(|op| *self.roles.get(**op) != Role::Anchor);
        let sum: f64 = ops.map(|op| work::of(self.g, *op).flops).sum();
        if known { sum as u64 } else { 0 }
    }

    /// Emits the step of a kernel whose arguments are `first`, then the loads and stores of its body. `anchor` is the arithmetic
    /// of the group's anchor.
    fn finish(
        &mut self,
        group: &Group,
        source: Source,
        b: &Body,
        first: Vec<Operand>,
        anchor: Flops,
    ) -> Result<(), Diagnostic> {
        let (reads, writes) = self.io(b)?;
        let flops = Flops { pointwise: anchor.pointwise + self.pointwise(group), ..anchor };
        self.kernel(&group.ops, source, first.into_iter().chain(reads).collect(), writes, flops);
        Ok(())
    }

    /// Lowers an op that has a separate kernel.
    fn single(&mut self, op: OpId) -> Result<Result<(), Diagnostic>, String> {
        let data = self.g.op(op);
        let nest = match data.name() {
            _ if self.roles.is_shape(self.g, op) => self.shape(op)?,
            name if name.starts_with("of.reduce_") && self.dtype(data.operands[0]) == DType::F32 => {
                let x = data.operands[0];
                let dims = self.dims(x);
                let axes = reduced_axes(self.g, op, dims.len());
                if let Some(parts) = self.parts(&dims, &axes) {
                    return self.split_reduction(op, &dims, &axes, parts);
                }
                Nest::Reduce { kind: reduce_kind(name), dims, axes }
            }
            DepthwiseWeightGradient::NAME => return self.depthwise_weight_gradient(op),
            _ if user_kernel::is_user_op(self.g, op) => user_kernel::kernel(self.g, op)?,
            name if is_in_time(name) => return Ok(self.in_time(op)),
            _ => movement::movement(self.g, op)?,
        };
        let source = nest.print(self.isa)?;
        let is_scatter = matches!(nest, Nest::Scatter(_));
        let reads: Vec<ValueId> = self.roles.reads(self.g, op);
        let run = |l: &mut Self| {
            let reads = reads.iter().map(|v| l.operand(*v)).collect::<Result<Vec<_>, _>>()?;
            let slots = l.g.op(op).results.iter().map(|v| l.new_value(*v)).collect();
            let flops = if data.name().starts_with("of.reduce_") { points(&l.dims(data.operands[0])) } else { 0 };
            l.kernel(&[op], source, reads, slots, Flops::pointwise(flops));
            if is_scatter {
                l.note_scatter_in_place();
            }
            Ok(())
        };
        Ok(run(self))
    }

    /// A kernel that writes shape values.
    fn shape(&self, op: OpId) -> Result<Nest, String> {
        let y = self.g.op(op).results[0];
        let dims = self.g.dims_value(y).ok_or("its numbers are not known")?;
        Ok(Nest::ShapeValues { values: dims.iter().map(Extent::from).collect(), dtype: self.dtype(y) })
    }

    /// Emits the step of a subgraph that was placed on a backend.
    fn subgraph(&mut self, op: OpId, name: &str) -> Result<(), Diagnostic> {
        let data = self.g.op(op);
        let Some(backend) = self.backends.iter().find(|b| b.name() == name) else {
            let known: Vec<&str> = self.backends.iter().map(|b| b.name()).collect();
            let d = Diagnostic::error(Code::UNSUPPORTED, data.loc.clone(), format!("there is no backend '{name}'"));
            return Err(d.hint(format!("there are {}", known.join(", "))));
        };
        let inside = self.g.region_ops(data.regions[0]).flat_map(|op| self.g.op(op).results.to_vec());
        let open = inside.filter_map(|v| self.g.ty(v).as_tensor()).any(|t| t.fixed_dims().is_none());
        let sub = extract_region(self.g, data.regions[0], backend.largest_constant(open));
        let payload = self.constants.builder().add_payload(backend.compile(&sub.func)?);
        let inputs = sub.inputs.iter().map(|v| self.typed_operand(*v)).collect::<Result<Vec<_>, _>>()?;
        let outputs: Vec<usize> = data.results.iter().map(|v| self.new_value(*v)).collect();
        let inner: Vec<OpId> = self.g.region_ops(data.regions[0]).collect();
        let title = format!("{name}: {}", self.title(&inner[..inner.len() - 1]));
        let work = of_ops::work::of(self.g, op);
        let (flops, bytes) = (Flops::products(work.flops as u64), work.bytes() as u64);
        let locations = self.locations(&[op]);
        let transfers = inner.iter().filter(|op| self.g.op(**op).name() == Transfer::NAME);
        let exchanges = transfers.map(|op| Ok(rendezvous(self.g, *op)?.0));
        let rendezvous = exchanges.collect::<Result<Vec<_>, Diagnostic>>()?;
        let is_async = backend.is_async() && !open;
        let (backend, keeps_variables) = (backend.name(), backend.keeps_variables());
        let work = StepKind::Backend { backend, payload, inputs, outputs, rendezvous, is_async, keeps_variables };
        self.step(title, locations, work, flops, bytes);
        Ok(())
    }

    /// Assigns `op` to the first backend that claims it.
    fn backend(&mut self, op: OpId, why: String) -> Result<(), Diagnostic> {
        if let Some(s) = as_op::<Subgraph>(self.g, op) {
            return self.subgraph(op, &s.backend);
        }
        let data = self.g.op(op);
        let mut refusals = vec![format!("native code: {why}")];
        for backend in self.backends {
            if let Err(reason) = backend.claims(self.g, op) {
                refusals.push(format!("{}: {reason}", backend.name()));
                continue;
            }
            let sub = extract(self.g, &[op]);
            let bytes = backend.compile(&sub.func)?;
            let payload = self.constants.builder().add_payload(bytes);
            let inputs = sub.inputs.iter().map(|v| self.typed_operand(*v)).collect::<Result<Vec<_>, _>>()?;
            let outputs: Vec<usize> = sub.outputs.iter().map(|v| self.new_value(*v)).collect();
            let mut values = data.operands.iter().chain(&data.results);
            let fixed = values.all(|v| self.g.ty(*v).as_tensor().is_none_or(|t| t.fixed_dims().is_some()));
            let empty = data.results.iter().all(|v| work::elements(self.g.ty(*v)) == 0.0);
            let moved: f64 = data.operands.iter().chain(&data.results).map(|v| work::bytes(self.g.ty(*v))).sum();
            self.out.not_native.push(NotNative {
                op: data.name().to_string(),
                location: data.loc.clone(),
                reason: why,
                backend: backend.name(),
                flops: if empty { 0 } else { work::of(self.g, op).flops as u64 },
                bytes: if empty { 0 } else { moved as u64 },
                open: !fixed,
            });
            let (title, locations) = (self.title(&[op]), self.locations(&[op]));
            // The cost model would count a symbol as an arbitrary number.
            let own = if fixed { work::of(self.g, op) } else { work::Work::default() };
            let work = StepKind::host_call(backend.name(), payload, inputs, outputs);
            self.step(title, locations, work, Flops::products(own.flops as u64), own.bytes() as u64);
            return Ok(());
        }
        let mut d =
            Diagnostic::error(Code::UNSUPPORTED, data.loc.clone(), format!("no backend runs '{}'", data.name()));
        d.notes = refusals;
        Err(d)
    }
}

/// Number of points of a space; 0 if unknown.
pub(crate) fn points(space: &[Extent]) -> u64 {
    space.iter().product::<Extent>().number().unwrap_or(0) as u64
}

/// Element type, extents and bytes of a value in the plan; no bytes if it must be an object.
fn slot_type(ty: &Type) -> (Option<DType>, Vec<i64>, Option<u64>) {
    let Type::Tensor(t) = ty else { return (None, Vec::new(), None) };
    let dims: Vec<i64> = t.shape.iter().flatten().map(|d| d.as_const().unwrap_or(-1)).collect();
    let bytes = t.fixed_dims().and_then(|d| t.dtype.byte_len(d.iter().product())).filter(|b| *b > 0);
    debug_assert!(dtype_of(crate::physical::element_type(t.dtype)) == Some(t.dtype));
    (Some(t.dtype), dims, bytes.map(|b| b as u64))
}
