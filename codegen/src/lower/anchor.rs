//! Contractions and convolutions with their epilogues.

use std::borrow::Cow;

use half::{bf16, f16};
use of_diag::Diagnostic;
use of_ir::{DType, Dim, OpId, ValueId};
use of_ops::OpSpec;
use of_ops::contraction::MatMul;
use of_ops::nn::{AvgPool, Conv, ConvInteger, MatMulInteger, MaxPool};
use rayon::prelude::*;

use crate::analysis::roles;
use crate::analysis::roles::Role;
use crate::fuse::Group;
use crate::kernel::body::Body;
use crate::kernel::contraction::{Contraction, Element, RowAxes, Tile};
use crate::kernel::copy::Piece;
use crate::kernel::extent::Extent;
use crate::kernel::nest::Nest;
use crate::kernel::schedule::{Scheduled, Schedules};
use crate::kernel::space::row_major;
use crate::kernel::window::{Axis, Kind, Window};
use crate::kernel::winograd::Winograd;
use crate::kernel::zero_filled::ZeroFilled;
use crate::kernel::{contraction, extent, panels, window};
use crate::library::cudnn;
use crate::lower::{Lowering, points};
use crate::physical::{Flops, Operand, Place};

/// The form of packed weights.
enum Panels {
    Floats(ZeroFilled<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    Bytes(Vec<u8>),
}

/// Padded extent, input extent, and elements before the input, for each axis.
type Border = [(Extent, Extent, Extent); 4];

/// The result of lowering a group: a step, an error of the plan, or the reason why there is no kernel.
pub(crate) type Outcome = Result<Result<(), Diagnostic>, String>;

impl Lowering<'_, '_> {
    pub(super) fn anchor(&mut self, group: &Group) -> Outcome {
        let is_anchor = |op: &OpId| *self.roles.get(*op) == Role::Anchor;
        let op = group.ops.iter().copied().find(is_anchor).ok_or("the group has no anchor")?;
        let b = self.body(group, 0)?;
        match self.g.op(op).name() {
            MatMul::NAME | MatMulInteger::NAME => self.matmul(group, op, &b),
            Conv::NAME | ConvInteger::NAME => self.conv(group, op, &b),
            MaxPool::NAME | AvgPool::NAME => self.pool(group, op, &b),
            name => Err(format!("'{name}' has no native code")),
        }
    }

    /// `[lead.., M, K] x [lead.., K, N]`.
    fn matmul(&mut self, group: &Group, op: OpId, b: &Body) -> Outcome {
        let (x, w) = (self.g.op(op).operands[0], self.g.op(op).operands[1]);
        let (da, db, dims) = (self.dims(x), self.dims(w), group.space.clone());
        if da.len() < 2 || db.len() < 2 {
            return Err("a product with a vector".into());
        }
        let (m, n) = (da[da.len() - 2].clone(), db[db.len() - 1].clone());
        let (left, right) = (&da[da.len() - 1], &db[db.len() - 2]);
        let k = if left.number().is_some() { left.clone() } else { right.clone() };
        let lead = dims.len() - 2;
        let shared = db[..db.len() - 2].iter().all(|d| d.is(1));
        let dense = da.len() == dims.len() && da[..lead] == dims[..lead];
        // Where all batches share the right operand, the batch axes become rows.
        let flat = RowAxes { dims: dims.clone(), batch: 0, outer: 0 };
        let axes = if shared && dense && flat.follows(b) {
            flat
        } else {
            RowAxes { dims: dims.clone(), batch: lead, outer: 0 }
        };
        let batch = dims[..axes.batch].to_vec();
        let rows = if axes.batch == 0 { dims[..dims.len() - 1].iter().product() } else { m };
        // A GPU reads a constant matrix unpacked; a CPU reads it in panels.
        let constant = extent::numbers(&db).filter(|_| self.can.packed_weights && self.constants.tensor(w).is_some());
        let mut spec = Contraction {
            element: element(self.dtype(x)),
            a_batch: lead_strides(&da, &batch),
            b_batch: lead_strides(&db, &batch),
            batch,
            outer: (1usize.into(), 0usize.into()),
            inner: (rows, left.clone()),
            taps: Vec::new(),
            run: k.clone(),
            columns: n.clone(),
            b: contraction::Operand::RowMajor(n),
        };
        if constant.is_some() {
            spec.b = self.panels_of(w);
        }
        let flops = Flops::products(2 * points(&[k]) * points(&dims));
        if let Some(mut call) = self.product_call(op, &spec, b, &axes, &row_major(&dims)) {
            let operands = self.fold_transposes(&mut call, [x, w]);
            return Ok((|| {
                let operands = [self.place(operands[0])?, self.place(operands[1])?];
                self.library_call(group, call, operands, b, flops)
            })());
        }
        let (key, tile) = self.schedule(&spec);
        let width = tile.vectors * self.isa.lanes;
        if let Some([.., k, n]) = constant.as_deref() {
            let packed = contraction::panel(&spec, width) * n.div_ceil(width);
            spec.b_batch.iter_mut().for_each(|s| *s = s.div_floor(&(k * n).into()) * &packed);
        }
        let nest = Nest::Contraction { spec: spec.clone(), tile, body: b.clone(), axes, out: row_major(&dims) };
        let source = nest.print(self.isa)?;
        let packed = constant.map(|_| self.packed(w, &spec, width, None)).transpose()?;
        Ok((|| {
            let a = self.place(x)?;
            let right = match packed {
                Some(panels) => self.panels(w, panels)?,
                None => self.place(w)?,
            };
            self.finish(group, source, b, vec![a, right], flops)?;
            self.scheduled(key, &spec, tile);
            Ok(())
        })())
    }

    /// The schedule key of a contraction and its tile: measured, else chosen by the cost model.
    fn schedule(&self, spec: &Contraction) -> (String, Tile) {
        let key = Schedules::key(spec, self.isa);
        let tile = self.schedules.get(&key).unwrap_or_else(|| contraction::tile(spec, self.isa));
        (key, tile)
    }

    /// Records that the last step runs `spec`, and the operand bytes that it rereads.
    fn scheduled(&mut self, key: String, spec: &Contraction, tile: Tile) {
        let (step, tiles) = (self.out.physical.steps.len() - 1, contraction::candidates(spec, self.isa));
        if self.can.packed_weights {
            self.out.physical.steps[step].again = contraction::again(spec, tile, self.isa);
        }
        self.out.scheduled.push(Scheduled { key, step, tiles });
    }

    /// The panel layout of the constant `w`. Panels are 16-bit floats where these represent every element exactly, as in models
    /// that were trained in or rounded to such a type, unless `w` is small enough for a cache.
    fn panels_of(&self, w: ValueId) -> contraction::Operand {
        let tensor = self.constants.tensor(w);
        let values = tensor.as_ref().and_then(|t| t.as_slice::<f32>()).unwrap_or_default();
        let all = |holds: fn(f32) -> bool| values.iter().all(|x| holds(*x));
        if 4 * values.len() <= contraction::STAYS {
            contraction::Operand::Packed
        } else if all(|x| x.to_bits() & 0xffff == 0) {
            contraction::Operand::PackedHalf(DType::BF16)
        } else if all(|x| x.to_bits() & 0x1fff == 0 && f16::from_f32(x).to_f32() == x) {
            contraction::Operand::PackedHalf(DType::F16)
        } else {
            contraction::Operand::Packed
        }
    }

    /// The constant right operand in panels: matrices, or filters of `taps` taps, one after another.
    fn packed(&self, w: ValueId, spec: &Contraction, width: usize, taps: Option<usize>) -> Result<Panels, String> {
        let tensor = self.constants.tensor(w).ok_or("its weights are not known before the run")?;
        let (Some(k), Some(n)) = (contraction::depth(spec).number(), spec.columns.number()) else {
            return Err("an extent of its weights is not known before the run".into());
        };
        if let Some(values) = tensor.as_slice::<f32>() {
            let mut parts = values.chunks_exact((k * n).max(1)).map(|part| {
                let part = right(part, k, n, taps);
                match spec.b {
                    contraction::Operand::RowMajor(_) => part.into_owned().into(),
                    _ => panels::pack(&part, k, n, width),
                }
            });
            let out: ZeroFilled<f32> = match values.len() / (k * n).max(1) {
                1 => parts.next().unwrap_or_else(|| Vec::new().into()),
                _ => parts.flat_map(|p| p.to_vec()).collect::<Vec<f32>>().into(),
            };
            Ok(match spec.b {
                contraction::Operand::PackedHalf(DType::F16) => {
                    Panels::F16(out.iter().map(|x| f16::from_f32(*x)).collect())
                }
                contraction::Operand::PackedHalf(_) => Panels::Bf16(out.iter().map(|x| bf16::from_f32(*x)).collect()),
                _ => Panels::Floats(out),
            })
        } else if let Some(values) = tensor.as_slice::<i8>() {
            let mut out = Vec::new();
            for part in values.chunks_exact((k * n).max(1)) {
                let part = right(part, k, n, taps);
                match spec.b {
                    contraction::Operand::Packed => {
                        let panel = panels::pack_bytes(&part, spec, width);
                        out.extend(panel.ok_or("an extent is not known before the run")?);
                    }
                    _ => out.extend(part.iter().map(|b| *b as u8)),
                }
            }
            Ok(Panels::Bytes(out))
        } else if let Some(values) = tensor.as_slice::<f16>() {
            Ok(Panels::F16(rows(&values, k, n, taps)))
        } else if let Some(values) = tensor.as_slice::<bf16>() {
            let rows = rows(&values, k, n, taps);
            if matches!(spec.b, contraction::Operand::RowMajor(_)) {
                return Ok(Panels::Bf16(rows));
            }
            let panels = rows.chunks_exact((k * n).max(1)).map(|part| panels::pack_half_floats(part, spec, width));
            let panels = panels.collect::<Option<Vec<_>>>().ok_or("an extent is not known before the run")?;
            Ok(Panels::Bf16(panels.concat()))
        } else {
            Err("its weights are neither floats nor signed bytes".into())
        }
    }

    /// The weight `w` in packed form.
    fn panels(&mut self, w: ValueId, panels: Panels) -> Result<Operand, Diagnostic> {
        let name = format!("{} (packed)", self.constants.name(w));
        let weight = match panels {
            Panels::Floats(data) => self.constants.computed(&name, data)?,
            Panels::F16(data) => self.constants.computed(&name, data)?,
            Panels::Bf16(data) => self.constants.computed(&name, data)?,
            Panels::Bytes(data) => self.constants.computed(&name, data)?,
        };
        Ok(Operand::whole(Place::Weight(weight)))
    }

    /// Channels-last convolutions of one or two image axes.
    fn conv(&mut self, group: &Group, op: OpId, b: &Body) -> Outcome {
        let (x, w) = (self.g.op(op).operands[0], self.g.op(op).operands[1]);
        let conv = roles::conv_of(self.g, op).ok_or("its attributes do not decode")?;
        let dtype = self.dtype(x);
        let shape = |v: ValueId| self.g.ty(v).as_tensor().and_then(|t| t.shape.clone()).unwrap_or_default();
        let geometry = conv.geometry(&shape(x), &shape(w)).map_err(|e| e.message)?;
        let (h, wa) = axes(&geometry.windows)?;
        let channels = |d: &Dim| Extent::from(d).number().ok_or("its channels are not known before the run");
        let (n, cin, cout) = (Extent::from(&geometry.n), channels(&geometry.cin)?, channels(&geometry.cout)?);
        let groups = geometry.group;
        let mut b = image_body(b, group.space.len());
        // For an image one pixel wide, rows of the contraction run along its long axis.
        let (h, wa) = if wa.input.is(1) && wa.output.is(1) && wa.kernel == 1 {
            b.loads.iter_mut().for_each(|l| l.strides.swap(1, 2));
            (wa, h)
        } else {
            (h, wa)
        };
        let b = &b;
        let cin_group = cin / groups;
        let space = [n.clone(), h.output.clone(), wa.output.clone(), cout.into()];
        let out = row_major(&space);
        let area = h.kernel * wa.kernel;
        let flops = Flops::products(2 * (area * cin_group) as u64 * points(&space));
        let shape = cudnn::Shape { dtype, samples: &n, axes: [&h, &wa], channels: (cin, cout), groups };
        if let Some(call) = self.convolution_call(op, &shape, b, &out) {
            return Ok((|| {
                let operands = [self.place(x)?, self.channels_last(op, w, [cout, cin_group, area])?];
                self.library_call(group, call, operands, b, flops)
            })());
        }
        // A border of zeros is written around the input once, so that the kernel needs no bounds checks.
        let pad_after = |a: &Axis| {
            let reach = (&a.output - 1usize) * a.stride + ((a.kernel - 1) * a.dilation + 1);
            (reach - &a.pad - &a.input).max(&0usize.into())
        };
        let padded = |a: &Axis| &a.input + &a.pad + pad_after(a);
        let known = self.constants.tensor(w).is_some();
        if groups == 1
            && self.isa.multiplies(dtype)
            && self.winograd
            && known
            && self.can.winograd
            && let Some(fast) = Winograd::choose(element(dtype), &n, (&h, &wa), (cin, cout), self.isa)
        {
            return self.winograd(group, &fast, (x, w), b);
        }
        let (hp, wp) = (padded(&h), padded(&wa));
        let needs_pad = hp != h.input || wp != wa.input || !h.pad.is(0) || !wa.pad.is(0);
        let none = Extent::from(0usize);
        let border = needs_pad.then(|| {
            let (h, wa) = (h.clone(), wa.clone());
            let whole = |e: Extent| (e.clone(), e, none.clone());
            [whole(n.clone()), (hp.clone(), h.input, h.pad), (wp.clone(), wa.input, wa.pad), whole(cin.into())]
        });
        if groups == cin && cout == cin {
            // Kernels multiply bytes in groups of taps, all of which must lie inside the padded input.
            let bytes = dtype != DType::F32;
            let inside = |a: Axis, input: Extent| if bytes { Axis { input, pad: none.clone(), ..a } } else { a };
            let spec = Window { n, h: inside(h, hp), w: inside(wa, wp), c: cin, kind: Kind::Depthwise, dtype };
            return self.depthwise(group, &spec, (op, x, w), border.filter(|_| bytes), b);
        }
        let row = &wp * cin;
        let cout_group = cout / groups;
        let pointwise = h.kernel * wa.kernel == 1 && h.stride == 1 && wa.stride == 1 && groups == 1;
        // The space, with the groups as a batch axis: [N, G, H, W, C/G].
        let grouped = |s: &[Extent]| vec![s[0].clone(), &s[3] * cout_group, s[1].clone(), s[2].clone(), s[3].clone()];
        let (row_axes, body, out) = if groups == 1 {
            let merged = RowAxes { dims: space.to_vec(), batch: 0, outer: 0 };
            let sampled = RowAxes { dims: space.to_vec(), batch: 1, outer: 0 };
            let lines = RowAxes { dims: space.to_vec(), batch: 1, outer: 1 };
            let axes = if pointwise && merged.follows(b) {
                merged
            } else if pointwise && sampled.follows(b) {
                sampled
            } else {
                lines
            };
            (axes, b.clone(), out)
        } else {
            let mut g = b.clone();
            g.loads.iter_mut().for_each(|l| l.strides = grouped(&l.strides));
            let dims = vec![n.clone(), groups.into(), h.output.clone(), wa.output.clone(), cout_group.into()];
            (RowAxes { dims, batch: 2, outer: 1 }, g, grouped(&out))
        };
        let one = (Extent::from(1usize), Extent::from(0usize));
        let (outer, inner) = match (row_axes.batch, row_axes.outer) {
            (0, 0) => (one, (&n * &h.output * &wa.output, cin.into())),
            (_, 0) => (one, (&h.output * &wa.output, cin.into())),
            _ => ((h.output.clone(), &row * h.stride), (wa.output.clone(), (wa.stride * cin).into())),
        };
        // Adjacent taps of a line are contiguous without dilation.
        let contiguous = groups == 1 && (wa.dilation == 1 || wa.kernel == 1);
        let (taps, run) = if contiguous {
            (vec![(h.kernel, &row * h.dilation)], wa.kernel * cin)
        } else {
            (vec![(h.kernel, &row * h.dilation), (wa.kernel, (wa.dilation * cin).into())], cin_group)
        };
        let k = area * cin_group;
        let sample = &hp * &wp * cin;
        let mut spec = Contraction {
            element: element(dtype),
            batch: row_axes.dims[..row_axes.batch].to_vec(),
            a_batch: [sample, cin_group.into()][..row_axes.batch].to_vec(),
            b_batch: vec![0usize.into(); row_axes.batch],
            outer,
            inner,
            taps,
            run: run.into(),
            columns: cout_group.into(),
            b: if !self.can.packed_weights || !known {
                contraction::Operand::RowMajor(cout_group.into())
            } else {
                self.panels_of(w)
            },
        };
        let (key, tile) = self.schedule(&spec);
        let width = tile.vectors * self.isa.lanes;
        if groups > 1 && (!self.can.packed_weights || !known) {
            spec.b_batch[1] = (k * cout_group).into();
        } else if groups > 1 {
            spec.b_batch[1] = contraction::panel(&spec, width) * cout_group.div_ceil(width);
        }
        let packed = if known { Some(self.packed(w, &spec, width, Some(area))?) } else { None };
        let filters = [groups, area, cin_group, cout_group];
        if let Some(call) = self.product_call(op, &spec, &body, &row_axes, &out) {
            return Ok((|| {
                let operands = [self.bordered(op, x, border)?, self.filters(op, w, packed, filters)?];
                self.library_call(group, call, operands, &body, flops)
            })());
        }
        let nest = Nest::Contraction { spec: spec.clone(), tile, body: body.clone(), axes: row_axes, out };
        let source = nest.print(self.isa)?;
        Ok((|| {
            let a = self.bordered(op, x, border)?;
            let right = self.filters(op, w, packed, filters)?;
            self.finish(group, source, &body, vec![a, right], flops)?;
            self.scheduled(key, &spec, tile);
            Ok(())
        })())
    }

    fn winograd(&mut self, group: &Group, fast: &Winograd, (x, w): (ValueId, ValueId), b: &Body) -> Outcome {
        let nest = Nest::Winograd { spec: Box::new(fast.clone()), body: b.clone() };
        let source = nest.print(self.isa)?;
        let tensor = self.constants.tensor(w).ok_or("its weights are not known before the run")?;
        let filters = match tensor.as_slice::<bf16>() {
            Some(halves) => halves.iter().map(|x| x.to_f32()).collect(),
            None => tensor.as_slice::<f32>().ok_or("its weights are neither f32 nor bf16")?,
        };
        let packed = fast.transform.pack(&filters, fast.cin, fast.cout, fast.width(self.isa));
        Ok((|| {
            let a = self.place(x)?;
            let right = self.panels(w, Panels::Floats(packed))?;
            self.finish(group, source, b, vec![a, right], Flops::products(fast.flops()))
        })())
    }

    /// Filters `[group Cout, Cin, taps]` as right operands of contractions: packed if constant, else computed with extents
    /// `dims`, `[group, taps, Cin, Cout]`.
    fn filters(
        &mut self,
        op: OpId,
        w: ValueId,
        packed: Option<Panels>,
        dims: [usize; 4],
    ) -> Result<Operand, Diagnostic> {
        if let Some(panels) = packed {
            return self.panels(w, panels);
        }
        let [_, taps, cin, cout] = dims;
        let from = [cout * cin * taps, 1, taps, cin * taps].map(Extent::from).to_vec();
        self.rearranged(op, w, &dims.map(Extent::from), from)
    }

    /// `w` permuted: `dims` are the axes of the result, with their strides in `w`.
    pub(super) fn rearranged(
        &mut self,
        op: OpId,
        w: ValueId,
        dims: &[Extent],
        from: Vec<Extent>,
    ) -> Result<Operand, Diagnostic> {
        let (read, dtype) = (self.place(w)?, self.dtype(w));
        let slot = self.scratch_slot(format!("{} by tap", self.constants.name(w)), dtype, dims);
        let none = || Extent::from(0usize);
        let to = (none(), row_major(dims));
        let nest = Nest::Copy {
            pieces: vec![Piece { dims: dims.to_vec(), arg: 0, from: (none(), from), to }],
            bytes: dtype.bits().map_or(4, |b| b / 8),
            out: 1,
        };
        let source = nest.print(self.isa).map_err(|why| self.broken(op, why))?;
        self.kernel(&[op], source, vec![read], vec![slot], Flops::default());
        Ok(Operand::whole(Place::Slot(slot)))
    }

    /// The operand `x` with a zero border: padded extent, input extent and elements before, of each axis.
    fn bordered(&mut self, op: OpId, x: ValueId, border: Option<Border>) -> Result<Operand, Diagnostic> {
        let a = self.place(x)?;
        let Some(list) = border else { return Ok(a) };
        let dtype = self.dtype(x);
        let bytes = dtype.bits().map_or(4, |b| b / 8);
        let slot = self.scratch_slot(format!("padded {}", self.constants.name(x)), dtype, &list.clone().map(|a| a.0));
        let pad = Nest::Pad { axes: list.to_vec(), bytes, fill: 0 };
        let source = pad.print(self.isa).map_err(|why| self.broken(op, why))?;
        self.kernel(&[op], source, vec![a], vec![slot], Flops::default());
        Ok(Operand::whole(Place::Slot(slot)))
    }

    fn depthwise(
        &mut self,
        group: &Group,
        spec: &Window,
        (op, x, w): (OpId, ValueId, ValueId),
        border: Option<Border>,
        b: &Body,
    ) -> Outcome {
        let source = Nest::Window { spec: spec.clone(), body: b.clone() }.print(self.isa)?;
        let tensor = self.constants.tensor(w).ok_or("its weights are not known before the run")?;
        let (taps, c) = (spec.h.kernel * spec.w.kernel, spec.c);
        let padded = c.next_multiple_of(self.isa.lanes);
        let mut rows = vec![0f32; taps * padded];
        for (i, v) in tensor.as_slice::<f32>().iter().flat_map(|v| v.iter().enumerate()) {
            rows[i % taps * padded + i / taps] = *v;
        }
        let quads = tensor.as_slice::<i8>().map(|v| window::quads(&v, spec, self.isa));
        let flops = Flops::products(2 * taps as u64 * points(&group.space));
        Ok((|| {
            let name = format!("{} (by tap)", self.constants.name(w));
            let weight = match quads {
                Some(quads) => self.constants.computed(&name, quads)?,
                None => self.constants.computed(&name, rows)?,
            };
            let weights = Operand::whole(Place::Weight(weight));
            let a = self.bordered(op, x, border)?;
            self.finish(group, source, b, vec![a, weights], flops)
        })())
    }
}

/// Strides of the leading axes of an operand along the batch axes of the result, 0 where it is broadcast.
fn lead_strides(own: &[Extent], batch: &[Extent]) -> Vec<Extent> {
    let strides = row_major(own);
    let lead = own.len() - 2;
    (0..batch.len())
        .map(|axis| match (axis + lead).checked_sub(batch.len()) {
            Some(i) if !own[i].is(1) => extent::stretched(&own[i], &batch[axis], &strides[i]),
            _ => 0usize.into(),
        })
        .collect()
}

/// The element type that a contraction multiplies for a left operand of this type.
fn element(dtype: DType) -> Element {
    match dtype {
        DType::U8 => Element::Unsigned,
        DType::I8 => Element::Signed,
        DType::F16 | DType::BF16 => Element::Half(dtype),
        _ => Element::Float,
    }
}

/// A right operand as `[k, n]`: a matrix unchanged, filters of `taps` taps rearranged.
fn right<T: Copy + Default + Send + Sync>(part: &[T], k: usize, n: usize, taps: Option<usize>) -> Cow<'_, [T]> {
    taps.map_or(Cow::Borrowed(part), |taps| Cow::Owned(by_taps(part, n, k / taps, taps)))
}

/// Such operands, concatenated.
fn rows<T: Copy + Default + Send + Sync>(values: &[T], k: usize, n: usize, taps: Option<usize>) -> Vec<T> {
    values.chunks_exact((k * n).max(1)).flat_map(|part| right(part, k, n, taps).into_owned()).collect()
}

/// Rearranges `[Cout, Cin, taps]` to `[taps, Cin, Cout]`: the right operand of a convolution as a matrix product.
pub(crate) fn by_taps<T: Copy + Default + Send + Sync>(w: &[T], cout: usize, cin: usize, taps: usize) -> Vec<T> {
    /// Output rows that are written together, so that each cache line read is fully used.
    const ROWS: usize = 16;
    let mut out = vec![T::default(); w.len()];
    out.par_chunks_mut((ROWS * cout).max(1)).enumerate().for_each(|(block, to)| {
        let rows = to.len() / cout;
        for (o, i) in (0..cout).flat_map(|o| (0..rows).map(move |i| (o, i))) {
            let (t, c) = ((block * ROWS + i) / cin, (block * ROWS + i) % cin);
            to[i * cout + o] = w[(o * cin + c) * taps + t];
        }
    });
    out
}

/// Two image axes; a single axis gets a second one of extent 1.
pub(crate) fn axes(w: &of_ops::nn::Windows<Dim>) -> Result<(Axis, Axis), String> {
    let axis = |i: usize| Axis::of(w, i);
    let (one, zero) = (|| Extent::from(1usize), Extent::from(0usize));
    match w.input.len() {
        1 => Ok((Axis { input: one(), output: one(), kernel: 1, stride: 1, dilation: 1, pad: zero }, axis(0))),
        2 => Ok((axis(0), axis(1))),
        n => Err(format!("{n} image axes have no native code")),
    }
}

/// The body with strides for `[N, H, W, C]`; with one image axis, the other has extent 1.
fn image_body(b: &Body, rank: usize) -> Body {
    let mut out = b.clone();
    if rank == 3 {
        out.loads.iter_mut().for_each(|l| l.strides.insert(1, 0usize.into()));
    }
    out
}
