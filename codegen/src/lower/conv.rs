//! Channels-last convolutions of one to three image axes, with their epilogues.

use half::bf16;
use of_diag::Diagnostic;
use of_ir::{DType, Dim, OpId, Tensor, ValueId};

use crate::analysis::roles;
use crate::fuse::Group;
use crate::kernel::body::Body;
use crate::kernel::contraction;
use crate::kernel::contraction::{Contraction, RowAxes};
use crate::kernel::copy::{CopyBox, Fill};
use crate::kernel::extent;
use crate::kernel::extent::Extent;
use crate::kernel::few_columns;
use crate::kernel::nest::Nest;
use crate::kernel::space::row_major;
use crate::kernel::tile_choice;
use crate::kernel::window;
use crate::kernel::window::{ChannelGroups, Window, WindowAxis, WindowKind, image_axes};
use crate::kernel::winograd::Winograd;
use crate::lower::anchor::{Outcome, Panels, element};
use crate::lower::weight_form::Form;
use crate::lower::{Lowering, points};
use crate::physical::{BufferRef, Flops, Operand};
use crate::vendor_libraries::cudnn;

/// Padded extent, input extent, and elements before the input, for each axis.
type Border = Vec<(Extent, Extent, Extent)>;

/// The extents of a convolution, with its image axes in the order in which the kernel iterates over them.
struct Image {
    dtype: DType,
    samples: Extent,
    /// The first of three axes. Contractions iterate over it as over the samples.
    depth: Option<WindowAxis>,
    h: WindowAxis,
    w: WindowAxis,
    cin: usize,
    cout: usize,
    groups: usize,
}

impl Image {
    /// The convolution `op`, and its epilogue along `[N, H, W, C]`, or `[N, D, H, W, C]`.
    ///
    /// # Errors
    /// When it has more than three image axes, or channels of unknown number.
    fn of(l: &Lowering<'_, '_>, op: OpId, group: &Group, b: &Body) -> Result<(Image, Body), String> {
        let (x, w) = (l.g.op(op).operands[0], l.g.op(op).operands[1]);
        let conv = roles::conv_of(l.g, op).ok_or("its attributes do not decode")?;
        let shape = |v: ValueId| l.g.ty(v).as_tensor().and_then(|t| t.shape.clone()).unwrap_or_default();
        let geometry = conv.geometry(&shape(x), &shape(w)).map_err(|e| e.message)?;
        let axis = |i: usize| WindowAxis::of(&geometry.windows, i);
        let (depth, (h, w)) = match geometry.windows.input.len() {
            3 => (Some(axis(0)), (axis(1), axis(2))),
            _ => (None, image_axes(&geometry.windows)?),
        };
        let channels = |d: &Dim| Extent::from(d).number().ok_or("its channels are not known before the run");
        let (cin, cout) = (channels(&geometry.cin)?, channels(&geometry.cout)?);
        let mut b = image_body(b, group.space.len());
        // For an image one pixel wide, rows of the contraction run along its long axis.
        let (h, w) = if depth.is_none() && w.input.is(1) && w.output.is(1) && w.kernel == 1 {
            b.loads.iter_mut().for_each(|l| l.strides.swap(1, 2));
            (w, h)
        } else {
            (h, w)
        };
        let samples = Extent::from(&geometry.n);
        Ok((Image { dtype: l.dtype(x), samples, depth, h, w, cin, cout, groups: geometry.group }, b))
    }

    /// Input channels of a group.
    fn cin_group(&self) -> usize {
        self.cin / self.groups
    }

    /// Output channels of a group.
    fn cout_group(&self) -> usize {
        self.cout / self.groups
    }

    /// Taps of a filter.
    fn area(&self) -> usize {
        self.axes().map(|a| a.kernel).product()
    }

    /// Its axes, the outermost first.
    fn axes(&self) -> impl Iterator<Item = &WindowAxis> {
        self.depth.iter().chain([&self.h, &self.w])
    }

    /// The extents of the result.
    fn space(&self) -> Vec<Extent> {
        let image = self.axes().map(|a| a.output.clone());
        std::iter::once(self.samples.clone()).chain(image).chain([self.cout.into()]).collect()
    }

    /// Operations of the contraction.
    fn flops(&self) -> Flops {
        Flops::products(2 * (self.area() * self.cin_group()) as u64 * points(&self.space()))
    }

    /// Whether the kernel is a window kernel, with a filter for each channel.
    fn is_depthwise(&self) -> bool {
        // One channel is a product of its taps.
        self.groups == self.cin && self.cout == self.cin && (self.cin > 1 || self.dtype != DType::F32)
    }

    /// The extents of the last two axes with the border.
    fn padded(&self) -> (Extent, Extent) {
        (padded(&self.h), padded(&self.w))
    }

    /// The border of zeros, if any. It is written around the input once, so that the kernel needs no bounds checks.
    fn border(&self) -> Option<Border> {
        let whole = |e: Extent| (e.clone(), e, Extent::from(0usize));
        let axes = self.axes().map(|a| (padded(a), a.input.clone(), a.pad.clone()));
        let all: Border =
            std::iter::once(whole(self.samples.clone())).chain(axes).chain([whole(self.cin.into())]).collect();
        all.iter().any(|(padded, input, before)| padded != input || !before.is(0)).then_some(all)
    }

    /// The window of a convolution with few channels in a group, and the border that it needs.
    fn window(&self, kind: WindowKind) -> (Window, Option<Border>) {
        let (hp, wp) = self.padded();
        // Kernels multiply bytes in groups of taps, all of which must lie inside the padded input.
        let bytes = self.dtype != DType::F32;
        let inside = |a: &WindowAxis, input: Extent| {
            let a = a.clone();
            if bytes { WindowAxis { input, pad: 0usize.into(), ..a } } else { a }
        };
        let (n, h, w) = (self.samples.clone(), inside(&self.h, hp), inside(&self.w, wp));
        let window = Window { n, h, w, c: self.cout, kind, dtype: self.dtype };
        (window, self.border().filter(|_| bytes))
    }

    /// The same convolution of the points that its windows read, where these are single points of an image without border.
    fn sampled(&self) -> Option<Image> {
        let strided = self.axes().any(|a| a.stride > 1);
        if self.groups > 1 || self.area() > 1 || !strided || self.border().is_some() {
            return None;
        }
        let axis = |a: &WindowAxis| WindowAxis { input: a.output.clone(), stride: 1, ..a.clone() };
        let (depth, h, w) = (self.depth.as_ref().map(axis), axis(&self.h), axis(&self.w));
        Some(Image { samples: self.samples.clone(), depth, h, w, ..*self })
    }

    /// The axes of the contraction's rows, the epilogue along them, and the strides of the result.
    fn rows(&self, b: &Body) -> (RowAxes, Body, Vec<Extent>) {
        let (space, cout_group) = (self.space(), self.cout_group());
        let out = row_major(&space);
        let axes = |batch, outer| RowAxes { dims: space.clone(), batch, outer };
        let (lead, columns) = (space.len() - 3, space.len() - 1);
        if self.groups == 1 {
            let pointwise = self.area() == 1 && self.axes().all(|a| a.stride == 1);
            let merged = [axes(0, 0), axes(1, 0)].into_iter().find(|axes| pointwise && axes.matches(b));
            return (merged.unwrap_or_else(|| axes(lead, 1)), b.clone(), out);
        }
        // The space, with the groups as a batch axis: [N, G, H, W, C/G].
        let grouped =
            |s: &[Extent], group: Extent, column: Extent| [&s[..lead], &[group], &s[lead..columns], &[column]].concat();
        let strides = |s: &[Extent]| grouped(s, &s[columns] * cout_group, s[columns].clone());
        let mut body = b.clone();
        body.loads.iter_mut().for_each(|l| l.strides = strides(&l.strides));
        let dims = grouped(&space, self.groups.into(), cout_group.into());
        (RowAxes { dims, batch: lead + 1, outer: 1 }, body, strides(&out))
    }

    /// The contraction along these axes, whose right operand is row-major.
    fn contraction(&self, axes: &RowAxes) -> Contraction {
        let Image { depth, h, w, cin, .. } = self;
        let (hp, wp) = self.padded();
        let plane = &hp * &wp * *cin;
        let (row, cin_group, columns) = (&wp * *cin, self.cin_group(), Extent::from(self.cout_group()));
        let one = (Extent::from(1usize), Extent::from(0usize));
        let (outer, inner) = match (axes.batch, axes.outer) {
            (0, 0) => (one, (axes.dims[..axes.dims.len() - 1].iter().product(), (*cin).into())),
            (_, 0) => (one, (axes.dims[1..axes.dims.len() - 1].iter().product(), (*cin).into())),
            _ => ((h.output.clone(), &row * h.stride), (w.output.clone(), (w.stride * cin).into())),
        };
        // Adjacent taps of a line are contiguous without dilation.
        let contiguous = self.groups == 1 && (w.dilation == 1 || w.kernel == 1);
        let lines = (h.kernel, &row * h.dilation);
        let planes = depth.iter().map(|d| (d.kernel, &plane * d.dilation));
        let (points, k_inner) = match contiguous {
            true => (None, w.kernel * cin),
            false => (Some((w.kernel, (w.dilation * cin).into())), cin_group),
        };
        let taps = planes.chain([lines]).chain(points).collect();
        // Samples, planes of a deep image, groups.
        let sample = depth.iter().fold(plane.clone(), |plane, d| plane * padded(d));
        let planes = depth.iter().map(|d| &plane * d.stride);
        let batch_strides: Vec<Extent> = std::iter::once(sample).chain(planes).chain([cin_group.into()]).collect();
        Contraction {
            element: element(self.dtype),
            batch: axes.dims[..axes.batch].to_vec(),
            a_batch_strides: batch_strides[..axes.batch].to_vec(),
            b_batch_strides: vec![0usize.into(); axes.batch],
            outer,
            inner,
            taps,
            k_inner: k_inner.into(),
            columns: columns.clone(),
            rhs: contraction::RhsLayout::RowMajor(columns),
        }
    }
}

/// The extent of an axis with the border that its windows reach.
fn padded(a: &WindowAxis) -> Extent {
    let reach = (&a.output - 1usize) * a.stride + ((a.kernel - 1) * a.dilation + 1);
    let after = (reach - &a.pad - &a.input).max(&0usize.into());
    &a.input + &a.pad + after
}

impl Lowering<'_, '_> {
    /// A convolution: a library call, a depthwise window, Winograd's algorithm, or a contraction, in this order.
    pub(super) fn conv(&mut self, group: &Group, op: OpId, b: &Body) -> Outcome {
        let (x, w) = (self.g.op(op).operands[0], self.g.op(op).operands[1]);
        let (image, b) = Image::of(self, op, group, b)?;
        if image.depth.is_some() {
            return self.conv_contraction(group, op, &image, &b);
        }
        let Image { dtype, samples, h, w: wa, cin, cout, groups, .. } = &image;
        let shape =
            cudnn::ConvolutionShape { dtype: *dtype, samples, axes: [h, wa], channels: (*cin, *cout), groups: *groups };
        if let Some(call) = self.convolution_call(op, &shape, &b, &row_major(&image.space())) {
            let filters = [*cout, image.cin_group(), image.area()];
            return Ok((|| {
                let operands = [self.operand(x)?, self.channels_last(op, w, filters)?];
                self.library_call(group, call, operands, &b, image.flops())
            })());
        }
        let known = self.constants.tensor(w).is_some();
        // Filters of other types are constants that were converted.
        let computed = !known && self.dtype(w) == DType::F32 && *dtype == DType::F32;
        if *groups == 1
            && self.isa.contracts_natively(*dtype)
            && self.winograd
            && (known || computed)
            && self.caps.winograd
            && let Some(fast) = Winograd::choose(element(*dtype), samples, (h, wa), (*cin, *cout), computed, self.isa)
        {
            return self.winograd(group, &fast, (op, x, w), &b);
        }
        if image.is_depthwise() {
            let (window, border) = image.window(WindowKind::Depthwise);
            return self.window_conv(group, &window, (op, x, w), border, &b);
        }
        let channels = ChannelGroups { inputs: image.cin_group(), outputs: image.cout_group() };
        let windows = known && self.caps.packed_weights && *dtype == DType::F32 && wa.kernel <= window::MAX_BLOCK_TAPS;
        if windows && *groups > 1 && channels.fit(self.isa.lanes) {
            let (window, border) = image.window(WindowKind::Grouped(channels));
            return self.window_conv(group, &window, (op, x, w), border, &b);
        }
        self.conv_contraction(group, op, &image, &b)
    }

    /// A convolution as a contraction of the input, with a border of zeros, and the filters. Of an image of which it reads some points, it
    /// reads a copy of these where that takes less time: their rows are then those of one matrix, and not far apart.
    fn conv_contraction(&mut self, group: &Group, op: OpId, whole: &Image, b: &Body) -> Outcome {
        let (x, w) = (self.g.op(op).operands[0], self.g.op(op).operands[1]);
        let cycles = |image: &Image| {
            let (axes, ..) = image.rows(b);
            tile_choice::modelled_cycles(&image.contraction(&axes), self.isa)
        };
        let sampled = whole.sampled().filter(|sampled| {
            let copied = 2 * element(whole.dtype).size() as u64 * points(&sampled.space()) / whole.cout as u64
                * whole.cin as u64;
            let copy = copied as f64 / tile_choice::MEMORY_BYTES_PER_CYCLE;
            let (before, after) = (cycles(whole), cycles(sampled));
            self.caps.packed_weights && before.zip(after).is_some_and(|(before, after)| after + copy < before)
        });
        let image = sampled.as_ref().unwrap_or(whole);
        let (row_axes, body, out) = image.rows(b);
        let mut spec = image.contraction(&row_axes);
        let known = self.constants.tensor(w).is_some();
        let in_panels = self.caps.packed_weights && known;
        if in_panels {
            spec.rhs = self.panels_of(w, &spec);
        }
        if few_columns::pays(&spec, self.isa) {
            spec.rhs = contraction::RhsLayout::FewColumns;
        }
        // Filters that are computed are rearranged in any case.
        let computed = !known && self.caps.packed_weights && self.dtype(w) == DType::F32;
        let (key, tile) = match in_panels {
            true => self.schedule_constant(w, &mut spec),
            false => self.schedule_computed(&mut spec, computed),
        };
        let width = tile.vectors * self.isa.lanes;
        let (area, cin_group, cout_group) = (image.area(), image.cin_group(), image.cout_group());
        if image.groups > 1 {
            let filters = match in_panels && spec.rhs != contraction::RhsLayout::FewColumns {
                true => contraction::panel_elements(&spec, width) * cout_group.div_ceil(width),
                false => (area * cin_group * cout_group).into(),
            };
            spec.b_batch_strides.last_mut().into_iter().for_each(|groups| *groups = filters.clone());
        }
        let packed = if known { Some(self.packed(w, &spec, width, Some(area))?) } else { None };
        let (border, flops) = (image.border(), image.flops());
        let panel = if !known && spec.rhs == contraction::RhsLayout::Packed { width } else { cout_group };
        let filters = [image.groups, cout_group / panel.max(1), area, cin_group, panel];
        if let Some(call) = self.product_call(op, &spec, &body, &row_axes, &out) {
            return Ok((|| {
                let operands = [self.bordered(op, x, border)?, self.filters(op, w, packed, filters)?];
                self.library_call(group, call, operands, &body, flops)
            })());
        }
        let nest = Nest::Contraction { spec: spec.clone(), tile, body: body.clone(), axes: row_axes, out };
        let source = nest.print(self.isa)?;
        Ok((|| {
            let a = match &sampled {
                Some(_) => self.sampled(op, x, whole)?,
                None => self.bordered(op, x, border)?,
            };
            let right = self.filters(op, w, packed, filters)?;
            self.finish(group, source, &body, vec![a, right], flops)?;
            self.add_tunable(key, &spec, tile);
            Ok(())
        })())
    }

    fn winograd(&mut self, group: &Group, fast: &Winograd, (op, x, w): (OpId, ValueId, ValueId), b: &Body) -> Outcome {
        let nest = Nest::Winograd { spec: Box::new(fast.clone()), body: b.clone() };
        let source = nest.print(self.isa)?;
        let packed = self.constants.tensor(w).map(|tensor| {
            let filters = match tensor.as_slice::<bf16>() {
                Some(values) => values.iter().map(|x| x.to_f32()).collect(),
                None => tensor.as_slice::<f32>().ok_or("its weights are neither f32 nor bf16")?,
            };
            Ok::<_, String>(fast.transform.pack(&filters, fast.cin, fast.cout, fast.width(self.isa)))
        });
        let packed = packed.transpose()?;
        Ok((|| {
            let a = self.operand(x)?;
            let right = match packed {
                Some(packed) => self.panels(w, Form::Winograd, Panels::Floats(packed))?,
                None => self.transformed_filters(op, w, fast)?,
            };
            self.finish(group, source, b, vec![a, right], Flops::products(fast.flops()))
        })())
    }

    /// Filters that are computed, transformed by a kernel of their own.
    fn transformed_filters(&mut self, op: OpId, w: ValueId, fast: &Winograd) -> Result<Operand, Diagnostic> {
        let (width, taps, points) = (fast.width(self.isa), fast.transform.taps.pow(2), fast.transform.points().pow(2));
        let by_tap = self.filters(op, w, None, [1, fast.cout / width, taps, fast.cin, width])?;
        let dims = [fast.cout / width, points, fast.point_step(self.isa)].map(Extent::from);
        let slot = self.scratch_slot(format!("{} transformed", self.constants.name(w)), DType::F32, &dims);
        let nest = Nest::WinogradFilters(Box::new(fast.clone()));
        let source = nest.print(self.isa).map_err(|why| self.bug(op, why))?;
        self.kernel(&[op], source, vec![by_tap], vec![slot], Flops::default());
        Ok(Operand::whole(BufferRef::Slot(slot)))
    }

    /// Filters `[group Cout, Cin, taps]` as right operands of contractions: packed if constant, else computed with extents
    /// `dims`, `[group, panels, taps, Cin, Cout of a panel]`.
    fn filters(
        &mut self,
        op: OpId,
        w: ValueId,
        packed: Option<Panels>,
        dims: [usize; 5],
    ) -> Result<Operand, Diagnostic> {
        if let Some(panels) = packed {
            return self.panels(w, Form::Panels, panels);
        }
        let [_, panels, taps, cin, width] = dims;
        let panel = width * cin * taps;
        let from = [panels * panel, panel, 1, taps, cin * taps].map(Extent::from).to_vec();
        self.rearranged(op, w, &dims.map(Extent::from), from)
    }

    /// The operand `x` with a zero border: padded extent, input extent and elements before, of each axis.
    fn bordered(&mut self, op: OpId, x: ValueId, border: Option<Border>) -> Result<Operand, Diagnostic> {
        let Some(list) = border else { return self.operand(x) };
        let dtype = self.dtype(x);
        let bytes = dtype.bits().map_or(4, |b| b / 8);
        let slot = self.scratch_slot(
            format!("padded {}", self.constants.name(x)),
            dtype,
            &list.iter().map(|a| a.0.clone()).collect::<Vec<_>>(),
        );
        let transposed = border_boxes(&list).filter(|_| dtype == DType::F32).and_then(|mut boxes| {
            let (before, image) = self.before_transpose(x, &boxes[0])?;
            boxes[0] = image;
            Some((before, boxes))
        });
        let (nest, inputs) = match transposed {
            Some((before, boxes)) => {
                let zero = self.constants.computed("a border's zero", vec![0f32])?;
                let inputs = vec![self.operand(before)?, Operand::whole(BufferRef::Weight(zero))];
                (Nest::Copy { boxes, bytes, out: 2 }, inputs)
            }
            None => (Nest::Pad { axes: list, bytes, fill: Fill::Bits(0) }, vec![self.operand(x)?]),
        };
        let source = nest.print(self.isa).map_err(|why| self.bug(op, why))?;
        self.kernel(&[op], source, inputs, vec![slot], Flops::default());
        Ok(Operand::whole(BufferRef::Slot(slot)))
    }

    /// The points of `x` that windows of one element read.
    fn sampled(&mut self, op: OpId, x: ValueId, image: &Image) -> Result<Operand, Diagnostic> {
        let all = |extent: &dyn Fn(&WindowAxis) -> Extent| {
            let points = image.axes().map(extent);
            std::iter::once(image.samples.clone()).chain(points).chain([image.cin.into()]).collect::<Vec<Extent>>()
        };
        let steps = all(&|a| a.stride.into());
        let mut from = row_major(&all(&|a| a.input.clone()));
        let inner = from.len() - 1;
        from[1..inner].iter_mut().zip(&steps[1..inner]).for_each(|(stride, step)| *stride = &*stride * step);
        self.rearranged(op, x, &all(&|a| a.output.clone()), from)
    }

    /// A convolution with few channels in a group, as a window.
    fn window_conv(
        &mut self,
        group: &Group,
        spec: &Window,
        (op, x, w): (OpId, ValueId, ValueId),
        border: Option<Border>,
        b: &Body,
    ) -> Outcome {
        let source = Nest::Window { spec: spec.clone(), body: b.clone() }.print(self.isa)?;
        let packed = self.constants.tensor(w).map(|tensor| self.packed_taps(tensor, spec));
        let taps = spec.h.kernel * spec.w.kernel;
        let inputs = if let WindowKind::Grouped(groups) = spec.kind { groups.inputs } else { 1 };
        let flops = Flops::products(2 * (taps * inputs) as u64 * points(&group.space));
        Ok((|| {
            let weights = match packed {
                Some(packed) => self.panels(w, Form::Taps, packed)?,
                None => self.rows_of_taps(op, w, spec)?,
            };
            let a = self.bordered(op, x, border)?;
            self.finish(group, source, b, vec![a, weights], flops)
        })())
    }

    /// Constant filters of a window, in the order in which its kernel reads them.
    fn packed_taps(&self, tensor: &Tensor, spec: &Window) -> Panels {
        if let Some(values) = tensor.as_slice::<i8>() {
            return Panels::Words(window::pack_depthwise_vnni(&values, spec, self.isa));
        }
        let values = tensor.as_slice::<f32>().unwrap_or_default();
        if let WindowKind::Grouped(groups) = spec.kind {
            return Panels::Floats(window::pack_groups(&values, spec, groups, self.isa.lanes).into());
        }
        let (taps, padded) = (spec.h.kernel * spec.w.kernel, spec.c.next_multiple_of(self.isa.lanes));
        let mut rows = vec![0f32; taps * padded];
        values.iter().enumerate().for_each(|(i, v)| rows[i % taps * padded + i / taps] = *v);
        Panels::Floats(rows.into())
    }

    /// Filters of a depthwise convolution that are computed: a row of channels for each tap, whose end is a multiple of a vector.
    fn rows_of_taps(&mut self, op: OpId, w: ValueId, spec: &Window) -> Result<Operand, Diagnostic> {
        let (taps, c) = (spec.h.kernel * spec.w.kernel, spec.c);
        let rows = self.rearranged(op, w, &[taps.into(), c.into()], vec![1usize.into(), taps.into()])?;
        let padded = c.next_multiple_of(self.isa.lanes);
        if padded == c {
            return Ok(rows);
        }
        let dims = [Extent::from(taps), padded.into()];
        let slot = self.scratch_slot(format!("{} in whole vectors", self.constants.name(w)), self.dtype(w), &dims);
        let whole = |n: usize, padded: usize| (padded.into(), n.into(), Extent::from(0usize));
        let pad = Nest::Pad { axes: vec![whole(taps, taps), whole(c, padded)], bytes: 4, fill: Fill::Bits(0) };
        let source = pad.print(self.isa).map_err(|why| self.bug(op, why))?;
        self.kernel(&[op], source, vec![rows], vec![slot], Flops::default());
        Ok(Operand::whole(BufferRef::Slot(slot)))
    }
}

/// The copies that make a tensor with a border: of the image, argument 0, and of a zero, argument 1. `None` where an extent is open or
/// something is cut off.
fn border_boxes(border: &Border) -> Option<Vec<CopyBox>> {
    let of = |part: &dyn Fn(&(Extent, Extent, Extent)) -> Extent| {
        extent::numbers(&border.iter().map(part).collect::<Vec<Extent>>())
    };
    let (padded, image, before) = (of(&|a| a.0.clone())?, of(&|a| a.1.clone())?, of(&|a| a.2.clone())?);
    let list = |numbers: &[usize]| numbers.iter().map(|n| Extent::from(*n)).collect::<Vec<Extent>>();
    let to = row_major(&list(&padded));
    let piece = |arg: usize, first: &[usize], dims: &[usize], from: Vec<Extent>| {
        let start = to.iter().zip(first).map(|(stride, n)| stride * *n).fold(Extent::from(0usize), |a, b| a + b);
        CopyBox { dims: list(dims), arg, from: (0usize.into(), from), to: (start, to.clone()) }
    };
    let mut boxes = vec![piece(0, &before, &image, row_major(&list(&image)))];
    for axis in 0..border.len() {
        let after = padded[axis].checked_sub(before[axis] + image[axis])?;
        // Along the axes before this one, the border is that of others.
        let corner = [&before[..axis], &vec![0; border.len() - axis]].concat();
        let sides = [&image[..axis], &padded[axis..]].concat();
        for (first, count) in [(0, before[axis]), (before[axis] + image[axis], after)] {
            if count > 0 {
                let (mut corner, mut sides) = (corner.clone(), sides.clone());
                (corner[axis], sides[axis]) = (first, count);
                boxes.push(piece(1, &corner, &sides, vec![0usize.into(); border.len()]));
            }
        }
    }
    Some(boxes)
}

/// The body with strides for `[N, H, W, C]`; with one image axis, the other has extent 1.
fn image_body(b: &Body, rank: usize) -> Body {
    let mut out = b.clone();
    if rank == 3 {
        out.loads.iter_mut().for_each(|l| l.strides.insert(1, 0usize.into()));
    }
    out
}
