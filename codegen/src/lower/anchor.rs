//! Anchors with their epilogues: products here, convolutions in [`conv`](super::conv), pools in [`pool`](super::pool).

use std::borrow::Cow;

use half::{bf16, f16};
use of_diag::Diagnostic;
use of_ir::{DType, OpId, Tensor, ValueId};
use of_ops::OpSpec;
use of_ops::contraction::MatMul;
use of_ops::list::as_op;
use of_ops::movement::Transpose;
use of_ops::nn::{AvgPool, Conv, ConvInteger, MatMulInteger, MaxPool};
use rayon::prelude::*;

use crate::analysis::roles::Role;
use crate::fuse::Group;
use crate::kernel::body::Body;
use crate::kernel::contraction::{Contraction, Element, RowAxes, Tile};
use crate::kernel::copy::CopyBox;
use crate::kernel::extent::Extent;
use crate::kernel::nest::Nest;
use crate::kernel::schedule::{Schedules, TunableContraction};
use crate::kernel::space::{WalkAxis, row_major, walk_by_axes};
use crate::kernel::zero_filled::ZeroFilled;
use crate::kernel::{contraction, corrected, extent, few_columns, panels, tile_choice};
use crate::lower::weight_form::{Form, WeightForm};
use crate::lower::{Lowering, points};
use crate::physical::{BufferRef, Flops, Operand};

/// The fewest rows for which a computed matrix is packed.
const PACKED_ROWS: u64 = 192;
/// The fewest elements of a computed matrix that is packed: 512 KiB.
const PACKED_ELEMENTS: u64 = 1 << 17;

/// The form of packed weights.
pub(super) enum Panels {
    Floats(ZeroFilled<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    Bytes(Vec<u8>),
    Words(Vec<i32>),
}

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
        let axes = if shared && dense && flat.matches(b) {
            flat
        } else {
            RowAxes { dims: dims.clone(), batch: lead, outer: 0 }
        };
        let batch = dims[..axes.batch].to_vec();
        let rows = if axes.batch == 0 { dims[..dims.len() - 1].iter().product() } else { m };
        // A GPU reads a constant matrix unpacked; a CPU reads it in panels.
        let constant = extent::numbers(&db).filter(|_| self.caps.packed_weights && self.constants.tensor(w).is_some());
        let mut spec = Contraction {
            element: element(self.dtype(x)),
            a_batch_strides: lead_strides(&da, &batch),
            b_batch_strides: lead_strides(&db, &batch),
            batch,
            outer: (1usize.into(), 0usize.into()),
            inner: (rows, left.clone()),
            taps: Vec::new(),
            k_inner: k.clone(),
            columns: n.clone(),
            rhs: contraction::RhsLayout::RowMajor(n),
        };
        if constant.is_some() {
            spec.rhs = self.panels_of(w, &spec);
        }
        if shared && few_columns::pays(&spec, self.isa) {
            spec.rhs = contraction::RhsLayout::FewColumns;
        }
        let flops = Flops::products(2 * points(std::slice::from_ref(&k)) * points(&dims));
        if let Some(mut call) = self.product_call(op, &spec, b, &axes, &row_major(&dims)) {
            let operands = self.fold_transposes(&mut call, [x, w]);
            return Ok((|| {
                let operands = [self.operand(operands[0])?, self.operand(operands[1])?];
                self.library_call(group, call, operands, b, flops)
            })());
        }
        // To pack a large matrix that many rows read takes less time than its rows, which are far apart in memory, cost each of them.
        let many = points(&[spec.inner.0.clone()]) >= PACKED_ROWS && points(&db) >= PACKED_ELEMENTS;
        let f32s = self.caps.packed_weights && self.dtype(w) == DType::F32;
        let (key, tile) = match constant {
            Some(_) => self.schedule_constant(w, &mut spec),
            None => self.schedule_computed(&mut spec, f32s && shared && many),
        };
        let width = tile.vectors * self.isa.lanes;
        if let Some([.., k, n]) = constant.as_deref() {
            let packed = contraction::panel_elements(&spec, width) * n.div_ceil(width);
            spec.b_batch_strides.iter_mut().for_each(|s| *s = s.div_floor(&(k * n).into()) * &packed);
        }
        let nest = Nest::Contraction { spec: spec.clone(), tile, body: b.clone(), axes, out: row_major(&dims) };
        let source = nest.print(self.isa)?;
        let packed = constant.map(|_| self.packed(w, &spec, width, None)).transpose()?;
        Ok((|| {
            let a = self.operand(x)?;
            let right = match (packed, &spec.rhs) {
                (Some(panels), _) => self.panels(w, Form::Panels, panels)?,
                (None, contraction::RhsLayout::Packed) => {
                    let columns = &spec.columns;
                    let dims = [columns.div_floor(&width.into()), k, width.into()];
                    self.rearranged(op, w, &dims, vec![width.into(), columns.clone(), 1usize.into()])?
                }
                (None, _) => self.operand(w)?,
            };
            self.finish(group, source, b, vec![a, right], flops)?;
            self.add_tunable(key, &spec, tile);
            Ok(())
        })())
    }

    /// The schedule key of a contraction and its tile: measured, else chosen by the cost model.
    pub(super) fn schedule(&self, spec: &Contraction) -> (String, Tile) {
        let key = Schedules::key(spec, self.isa);
        let tile = self.schedules.get(&key).unwrap_or_else(|| tile_choice::choose_tile(spec, self.isa));
        (key, tile)
    }

    /// As [`schedule`](Self::schedule), where the constant `w` is the right operand, which other programs of the plan may read.
    pub(super) fn schedule_constant(&mut self, w: ValueId, spec: &mut Contraction) -> (String, Tile) {
        let (key, tile) = self.schedule(spec);
        match (&mut self.panel_widths, self.constants.tensor(w)) {
            (Some(widths), Some(w)) if self.schedules.get(&key).is_none() => {
                let tile = widths.agree(w, spec, tile, self.isa);
                (key, tile)
            }
            _ => (key, tile),
        }
    }

    /// As [`schedule`](Self::schedule). If `packs`, the right operand will be computed in panels where its columns fill them.
    pub(super) fn schedule_computed(&self, spec: &mut Contraction, packs: bool) -> (String, Tile) {
        if packs && matches!(spec.rhs, contraction::RhsLayout::RowMajor(_)) {
            let packed = Contraction { rhs: contraction::RhsLayout::Packed, ..spec.clone() };
            let (key, tile) = self.schedule(&packed);
            let is_filled = spec.columns.is_multiple_of(tile.vectors * self.isa.lanes);
            // A narrower tile reads panels, the best one might read rows that are far apart.
            let filled = if is_filled { Some(tile) } else { tile_choice::choose_filled_tile(&packed, self.isa) };
            if let Some(tile) = filled {
                *spec = packed;
                return (key, tile);
            }
        }
        self.schedule(spec)
    }

    /// Records that the last step runs `spec`, and the operand bytes that it rereads.
    pub(super) fn add_tunable(&mut self, key: String, spec: &Contraction, tile: Tile) {
        let (step, tiles) = (self.out.physical.steps.len() - 1, tile_choice::candidate_tiles(spec, self.isa));
        if self.caps.packed_weights {
            self.out.physical.steps[step].reread = contraction::reread_traffic(spec, tile, self.isa);
        }
        self.out.tunable.push(TunableContraction { key, step, tiles });
    }

    /// The panel layout of the constant `w`. Panels are 16-bit floats where these represent every element exactly, as in models
    /// that were trained in or rounded to such a type, unless `w` is small enough for a cache.
    pub(super) fn panels_of(&self, w: ValueId, spec: &Contraction) -> contraction::RhsLayout {
        let packed = Contraction { rhs: contraction::RhsLayout::Packed, ..spec.clone() };
        if self.dtype(w) == DType::I8 && corrected::suits(&packed, self.isa) {
            return contraction::RhsLayout::Corrected;
        }
        let tensor = self.constants.tensor(w);
        let bytes = tensor.as_ref().filter(|t| t.dtype() == DType::F32).and_then(|t| t.bytes());
        let bytes: &[u8] = bytes.map_or(&[], |bytes| bytes);
        let all = |holds: fn(f32) -> bool| bytes.as_chunks::<4>().0.iter().all(|x| holds(f32::from_le_bytes(*x)));
        if bytes.len() <= contraction::L2_RESIDENT_BYTES {
            contraction::RhsLayout::Packed
        } else if all(|x| x.to_bits() & 0xffff == 0) {
            contraction::RhsLayout::PackedHalf(DType::BF16)
        } else if all(|x| x.to_bits() & 0x1fff == 0 && f16::from_f32(x).to_f32() == x) {
            contraction::RhsLayout::PackedHalf(DType::F16)
        } else {
            contraction::RhsLayout::Packed
        }
    }

    /// The constant right operand in panels: matrices, or filters of `taps` taps, one after another.
    pub(super) fn packed(
        &self,
        w: ValueId,
        spec: &Contraction,
        width: usize,
        taps: Option<usize>,
    ) -> Result<Panels, String> {
        let tensor = self.constants.tensor(w).ok_or("its weights are not known before the run")?;
        let (Some(k), Some(n)) = (contraction::k_extent(spec).number(), spec.columns.number()) else {
            return Err("an extent of its weights is not known before the run".into());
        };
        if let Some(values) = tensor.as_slice::<f32>() {
            let mut parts = values.chunks_exact((k * n).max(1)).map(|part| {
                let part = right(part, k, n, taps);
                match spec.rhs {
                    contraction::RhsLayout::RowMajor(_) => part.into_owned().into(),
                    contraction::RhsLayout::FewColumns => few_columns::pack(&part, k, n).into(),
                    contraction::RhsLayout::NarrowPanels(vectors) => {
                        panels::pack(&part, k, n, vectors * self.isa.lanes)
                    }
                    _ => panels::pack(&part, k, n, width),
                }
            });
            let out: ZeroFilled<f32> = match values.len() / (k * n).max(1) {
                1 => parts.next().unwrap_or_else(|| Vec::new().into()),
                _ => parts.flat_map(|p| p.to_vec()).collect::<Vec<f32>>().into(),
            };
            Ok(match spec.rhs {
                contraction::RhsLayout::PackedHalf(DType::F16) => {
                    Panels::F16(out.iter().map(|x| f16::from_f32(*x)).collect())
                }
                contraction::RhsLayout::PackedHalf(_) => Panels::Bf16(out.iter().map(|x| bf16::from_f32(*x)).collect()),
                _ => Panels::Floats(out),
            })
        } else if let Some(values) = tensor.as_slice::<i8>() {
            if spec.rhs == contraction::RhsLayout::Corrected {
                let parts = values.chunks_exact((k * n).max(1)).map(|part| right(part, k, n, taps));
                let packed = corrected::pack(parts, spec, width);
                return packed.map(Panels::Bytes).ok_or("its weights have more than 2 GiB".into());
            }
            let mut out = Vec::new();
            for part in values.chunks_exact((k * n).max(1)) {
                let part = right(part, k, n, taps);
                match spec.rhs {
                    contraction::RhsLayout::Packed => {
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
            if matches!(spec.rhs, contraction::RhsLayout::RowMajor(_)) {
                return Ok(Panels::Bf16(rows));
            }
            let panels = rows.chunks_exact((k * n).max(1)).map(|part| panels::pack_half_floats(part, spec, width));
            let panels = panels.collect::<Option<Vec<_>>>().ok_or("an extent is not known before the run")?;
            Ok(Panels::Bf16(panels.concat()))
        } else {
            Err("its weights are neither floats nor signed bytes".into())
        }
    }

    /// The weight `w` in another form.
    pub(super) fn panels(&mut self, w: ValueId, form: Form, panels: Panels) -> Result<Operand, Diagnostic> {
        let name = format!("{} ({form})", self.constants.name(w));
        let bytes = match &panels {
            Panels::Floats(data) => size_of_val(&data[..]),
            Panels::F16(data) => size_of_val(&data[..]),
            Panels::Bf16(data) => size_of_val(&data[..]),
            Panels::Bytes(data) => data.len(),
            Panels::Words(data) => size_of_val(&data[..]),
        };
        let own = self.constants.tensor(w).and_then(Tensor::bytes).map_or(0, |b| b.len());
        self.out.weight_forms.push(WeightForm { form, model_bytes: own as u64, plan_bytes: bytes as u64 });
        let weight = match panels {
            Panels::Floats(data) => self.constants.computed(&name, data)?,
            Panels::F16(data) => self.constants.computed(&name, data)?,
            Panels::Bf16(data) => self.constants.computed(&name, data)?,
            Panels::Bytes(data) => self.constants.computed(&name, data)?,
            Panels::Words(data) => self.constants.computed(&name, data)?,
        };
        Ok(Operand::whole(BufferRef::Weight(weight)))
    }

    /// `w` permuted: `dims` are the axes of the result, with their strides in `w`. A transpose that was deferred is part of the permutation.
    pub(super) fn rearranged(
        &mut self,
        op: OpId,
        w: ValueId,
        dims: &[Extent],
        from: Vec<Extent>,
    ) -> Result<Operand, Diagnostic> {
        let (dtype, start) = (self.dtype(w), || Extent::from(0usize));
        let piece = CopyBox { dims: dims.to_vec(), arg: 0, from: (start(), from), to: (start(), row_major(dims)) };
        let (read, piece) = match self.before_transpose(w, &piece) {
            Some((before, piece)) => (self.operand(before)?, piece),
            None => (self.operand(w)?, piece),
        };
        let slot = self.scratch_slot(format!("{} rearranged", self.constants.name(w)), dtype, dims);
        let nest = Nest::Copy { boxes: vec![piece], bytes: dtype.bits().map_or(4, |b| b / 8), out: 1 };
        let source = nest.print(self.isa).map_err(|why| self.bug(op, why))?;
        self.kernel(&[op], source, vec![read], vec![slot], Flops::default());
        Ok(Operand::whole(BufferRef::Slot(slot)))
    }

    /// If `w` is a deferred transpose: its operand, and the copy that reads this instead of `w`. The transpose is then not executed.
    pub(super) fn before_transpose(&mut self, w: ValueId, piece: &CopyBox) -> Option<(ValueId, CopyBox)> {
        let op = self.g.def_op(w).filter(|op| self.deferred.contains(op))?;
        let before = self.g.op(op).operands[0];
        let (tensor, dims) = (extent::numbers(&self.dims(w))?, extent::numbers(&piece.dims)?);
        let perm = as_op::<Transpose>(self.g, op)?.permutation(tensor.len()).ok()?;
        let walk: Vec<(usize, usize)> = dims.into_iter().zip(extent::numbers(&piece.from.1)?).collect();
        let axes = walk_by_axes(&tensor, &walk).filter(|_| piece.from.0.is(0))?;
        let own = row_major(&self.dims(before));
        let all = |of: &dyn Fn(&WalkAxis) -> Extent| axes.iter().map(of).collect::<Vec<Extent>>();
        self.deferred.remove(&op);
        let piece = CopyBox {
            dims: all(&|a| a.extent.into()),
            arg: piece.arg,
            from: (piece.from.0.clone(), all(&|a| &own[perm[a.axis]] * a.steps)),
            to: (piece.to.0.clone(), all(&|a| &piece.to.1[a.of] * a.inner)),
        };
        Some((before, piece))
    }
}

/// Strides of the leading axes of an operand along the batch axes of the result, 0 where it is broadcast.
fn lead_strides(own: &[Extent], batch: &[Extent]) -> Vec<Extent> {
    let strides = row_major(own);
    let lead = own.len() - 2;
    (0..batch.len())
        .map(|axis| match (axis + lead).checked_sub(batch.len()) {
            Some(i) if !own[i].is(1) => extent::broadcast_stride(&own[i], &batch[axis], &strides[i]),
            _ => 0usize.into(),
        })
        .collect()
}

/// The element type that a contraction multiplies for a left operand of this type.
pub(super) fn element(dtype: DType) -> Element {
    match dtype {
        DType::U8 => Element::U8S8,
        DType::I8 => Element::S8S8,
        DType::F16 | DType::BF16 => Element::F16Pair(dtype),
        _ => Element::F32F32,
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
        // Where each row begins in a filter.
        let rows = block * ROWS..block * ROWS + to.len() / cout;
        let from: Vec<usize> = rows.map(|row| row % cin * taps + row / cin).collect();
        for (o, filter) in w.chunks_exact(cin * taps).enumerate() {
            for (to, from) in to[o..].iter_mut().step_by(cout).zip(&from) {
                *to = filter[*from];
            }
        }
    });
    out
}
