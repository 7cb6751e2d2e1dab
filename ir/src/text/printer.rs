//! Modules, functions and ops to text.

use std::fmt::Write;
use std::sync::Arc;

use super::names::Names;
use super::{PrintOptions, attrs, locs, quote, types};
use crate::{Attr, Attrs, Func, Graph, Mesh, Module, OpId, RegionId, Type, ValueId};

/// Prints one module.
pub(super) fn module(m: &Module, options: &PrintOptions<'_>) -> String {
    let mut out = String::new();
    let wrapped = options.generic || !m.name.is_empty();
    if options.generic {
        out.push_str("\"builtin.module\"() ({\n");
    } else if wrapped {
        out.push_str("module ");
        let _ = quote::write_symbol(&mut out, &m.name);
        out.push_str(" {\n");
    }
    let indent = usize::from(wrapped);
    for (name, mesh) in &m.meshes {
        write_mesh(&mut out, name, mesh, indent, options);
    }
    for (i, (name, f)) in m.funcs.iter().enumerate() {
        if i > 0 || !m.meshes.is_empty() {
            out.push('\n');
        }
        func(&mut out, name, f, indent, options);
    }
    if options.generic {
        out.push_str("})");
        let mut a = Attrs::new();
        if !m.name.is_empty() {
            a.set("sym_name", Attr::Str(m.name.as_str().into()));
        }
        attrs::write_attrs(&mut out, &a, options);
        out.push_str(" : () -> ()\n");
    } else if wrapped {
        out.push_str("}\n");
    }
    out
}

fn write_mesh(out: &mut String, name: &str, mesh: &Mesh, indent: usize, options: &PrintOptions<'_>) {
    let mut a = Attrs::new();
    a.set("devices", Attr::Str(mesh.devices.as_str().into()));
    a.set("shape", Attr::Ints(mesh.shape.iter().map(|n| i64::try_from(*n).unwrap_or(i64::MAX)).collect()));
    if let Some(p) = mesh.part {
        let numbers = [p.axis, p.index, p.of].map(|n| i64::try_from(n).unwrap_or(i64::MAX));
        a.set("part", Attr::Ints(numbers.to_vec()));
    }
    pad(out, indent);
    if options.generic {
        a.set("sym_name", Attr::Str(name.into()));
        out.push_str("\"of.mesh\"()");
        attrs::write_attrs(out, &a, options);
        out.push_str(" : () -> ()\n");
    } else {
        out.push_str("of.mesh ");
        let _ = quote::write_symbol(out, name);
        attrs::write_attrs(out, &a, options);
        out.push('\n');
    }
}

/// Prints one function.
pub(super) fn func(out: &mut String, name: &str, f: &Func, indent: usize, options: &PrintOptions<'_>) {
    let mut p = Printer { out, graph: &f.graph, options, names: Names::default() };
    pad(p.out, indent);
    if options.generic {
        p.generic_func(name, f, indent)
    } else {
        p.pretty_func(name, f, indent)
    }
    if options.locations {
        locs::write_loc(p.out, &f.loc);
    }
    p.out.push('\n');
}

/// Prints one op on one line, without its regions, for messages.
pub(super) fn op_short(graph: &Graph, op: OpId) -> String {
    let mut out = String::new();
    let options = PrintOptions { constants: super::Constants::Elided, ..PrintOptions::default() };
    let mut p = Printer { out: &mut out, graph, options: &options, names: Names::default() };
    p.head(op);
    if !graph.op(op).regions.is_empty() {
        out.push_str(" {…}");
    }
    out
}

fn pad(out: &mut String, indent: usize) {
    for _ in 0..indent {
        out.push_str("  ");
    }
}

struct Printer<'a> {
    out: &'a mut String,
    graph: &'a Graph,
    options: &'a PrintOptions<'a>,
    names: Names,
}

impl Printer<'_> {
    fn pretty_func(&mut self, name: &str, f: &Func, indent: usize) {
        self.out.push_str("func ");
        let _ = quote::write_symbol(self.out, name);
        self.out.push('(');
        for (i, arg) in self.graph.args().iter().enumerate() {
            self.comma(i);
            self.typed(*arg);
            self.given_name(*arg, f.inputs.get(i));
        }
        self.out.push_str(") -> (");
        // The body comes first in the order of names, so that the outputs are named as in it.
        let head = std::mem::take(self.out);
        self.out.push_str(" {\n");
        self.ops(self.graph.entry(), indent + 1);
        let body = std::mem::replace(self.out, head);
        for (i, value) in self.graph.outputs().iter().enumerate() {
            self.comma(i);
            types::write_type(self.out, self.graph.ty(*value), false);
            self.given_name(*value, f.outputs.get(i));
        }
        self.out.push(')');
        if !f.attrs.is_empty() {
            self.out.push_str(" attributes");
            attrs::write_attrs(self.out, &f.attrs, self.options);
        }
        self.out.push_str(&body);
        pad(self.out, indent);
        self.out.push('}');
    }

    /// The name of an input or output, where it is not the name of the value.
    fn given_name(&mut self, value: ValueId, name: Option<&String>) {
        if let Some(name) = name
            && self.names.text(self.graph, value) != *name
        {
            self.out.push_str(" {of.name = ");
            let _ = quote::write_string(self.out, name);
            self.out.push('}');
        }
    }

    fn generic_func(&mut self, name: &str, f: &Func, indent: usize) {
        self.out.push_str("\"of.func\"() (");
        self.region(self.graph.entry(), indent);
        self.out.push_str(") {");
        if !f.attrs.is_empty() {
            self.out.push_str("attrs = ");
            attrs::write_dict(self.out, &f.attrs, self.options);
            self.out.push_str(", ");
        }
        let strings = |v: &[String]| Attr::Strs(v.iter().map(|s| Arc::from(s.as_str())).collect());
        let values =
            [("inputs", strings(&f.inputs)), ("outputs", strings(&f.outputs)), ("sym_name", Attr::Str(name.into()))];
        for (i, (key, value)) in values.iter().enumerate() {
            self.comma(i);
            let _ = write!(self.out, "{key} = ");
            attrs::write_attr(self.out, value, self.options);
        }
        self.out.push_str("} : () -> ()");
    }

    fn ops(&mut self, region: RegionId, indent: usize) {
        for op in self.graph.region_ops(region) {
            pad(self.out, indent);
            self.op(op, indent);
            self.out.push('\n');
        }
    }

    fn op(&mut self, op: OpId, indent: usize) {
        let data = self.graph.op(op);
        let generic = self.generic(op);
        if generic {
            self.results(op);
            let _ = quote::write_string(self.out, data.name());
            self.out.push('(');
            self.values(&data.operands);
            self.out.push(')');
            if !data.regions.is_empty() {
                self.out.push_str(" (");
                self.regions(&data.regions, indent);
                self.out.push(')');
            }
            attrs::write_attrs(self.out, &data.attrs, self.options);
            self.signature(op);
        } else {
            self.head(op);
            if !data.regions.is_empty() {
                self.out.push(' ');
                self.regions(&data.regions, indent);
            }
        }
        if self.options.locations {
            locs::write_loc(self.out, &data.loc);
        }
    }

    /// Whether an op is printed in the generic form. In pretty text that are those whose names need quotes.
    fn generic(&self, op: OpId) -> bool {
        let name = self.graph.op(op).name();
        self.options.generic || !quote::is_bare(name) || !name.contains('.')
    }

    /// The first line of a pretty op.
    fn head(&mut self, op: OpId) {
        let data = self.graph.op(op);
        self.results(op);
        let _ = quote::write_name(self.out, data.name());
        if !data.operands.is_empty() {
            self.out.push(' ');
            self.values(&data.operands);
        }
        attrs::write_attrs(self.out, &data.attrs, self.options);
        self.signature(op);
    }

    fn results(&mut self, op: OpId) {
        let data = self.graph.op(op);
        if !data.results.is_empty() {
            self.values(&data.results);
            self.out.push_str(" = ");
        }
    }

    /// ` : (T, T) -> T`.
    fn signature(&mut self, op: OpId) {
        let data = self.graph.op(op);
        self.out.push_str(" : (");
        self.types(&data.operands);
        self.out.push_str(") -> ");
        match data.results.as_slice() {
            [one] => self.types(&[*one]),
            many => {
                self.out.push('(');
                self.types(many);
                self.out.push(')');
            }
        }
    }

    fn regions(&mut self, regions: &[RegionId], indent: usize) {
        for (i, r) in regions.iter().enumerate() {
            self.comma(i);
            self.region(*r, indent);
        }
    }

    fn region(&mut self, region: RegionId, indent: usize) {
        self.out.push_str("{\n");
        let args = self.graph.region_args(region);
        if !args.is_empty() {
            pad(self.out, indent);
            self.out.push_str(if self.options.generic { "^bb0(" } else { "^(" });
            for (i, arg) in args.iter().enumerate() {
                self.comma(i);
                self.typed(*arg);
            }
            self.out.push_str("):\n");
        }
        self.ops(region, indent + 1);
        pad(self.out, indent);
        self.out.push('}');
    }

    /// `%x: T`.
    fn typed(&mut self, value: ValueId) {
        self.names.write(self.out, self.graph, value);
        self.out.push_str(": ");
        self.ty(self.graph.ty(value));
    }

    fn ty(&mut self, ty: &Type) {
        types::write_type(self.out, ty, self.options.generic);
    }

    fn types(&mut self, values: &[ValueId]) {
        for (i, v) in values.iter().enumerate() {
            self.comma(i);
            self.ty(self.graph.ty(*v));
        }
    }

    fn values(&mut self, values: &[ValueId]) {
        for (i, v) in values.iter().enumerate() {
            self.comma(i);
            self.names.write(self.out, self.graph, *v);
        }
    }

    fn comma(&mut self, i: usize) {
        if i > 0 {
            self.out.push_str(", ");
        }
    }
}
