//! The nodes of a body for one element or for four adjacent ones.

use std::fmt::Write;

use crate::kernel::body::{Body, Load, Node};
use crate::kernel::extent::Extent;
use crate::print::cuda::launch::{index_type, span};
use crate::print::expr;
use crate::print::expr::{ctype, stype};

/// Elements of a vector access by one thread, if they are contiguous.
pub const VECTOR_WIDTH: usize = 4;

/// Prints nodes for `width` elements.
pub struct NodePrinter<'a> {
    /// What is computed.
    pub body: &'a Body,
    /// Elements.
    pub width: usize,
}

impl NodePrinter<'_> {
    /// The C variable of node `n` for element `v`; constants and row values have one for all elements.
    pub fn name(&self, n: usize, v: usize) -> String {
        let t = &self.body.nodes[n];
        let one = matches!(t.node, Node::Const(_)) || t.per_row;
        if one { format!("t{n}") } else { format!("t{n}_{v}") }
    }

    /// Declares node `n`. `at(load)` returns the C expression of a load's first element, the stride to the next one, and whether
    /// four may be read at once; the group's anchor is `anchor(v)`.
    pub fn node(
        &self,
        n: usize,
        at: &dyn Fn(usize) -> (String, Extent, bool),
        anchor: &dyn Fn(usize) -> String,
        c: &mut String,
    ) {
        let t = &self.body.nodes[n];
        let (element, ty) = (ctype(t.dtype), stype(t.dtype));
        let wide = match &t.node {
            Node::Load(l) => self.width == VECTOR_WIDTH && at(*l).2,
            _ => false,
        };
        if let (true, Node::Load(l)) = (wide, &t.node) {
            let _ = writeln!(c, "      const Vec4<{element}> x{l} = load4({});", at(*l).0);
        }
        for v in 0..self.width {
            c.push_str(&expr::division_check(self.body, &t.node, &|a| self.name(a, v)));
            let value = match &t.node {
                Node::Const(_) | Node::Reduce(..) => return,
                Node::Anchor => anchor(v),
                Node::Load(l) if wide => expr::widened(t.dtype, &format!("x{l}.at[{v}]")),
                Node::Load(l) => {
                    let (first, step, _) = at(*l);
                    let one = v == 0 || step.is(0);
                    let at = if one { format!("*({first})") } else { format!("*({first} + {})", step * v) };
                    expr::widened(t.dtype, &at)
                }
                Node::Op(op, args) => expr::scalar(self.body, *op, args, t.dtype, &|a| self.name(a, v)),
            };
            let _ = writeln!(c, "      const {ty} {} = {value};", self.name(n, v));
        }
    }

    /// Stores node `n` at the C expression `at`.
    pub fn store(&self, n: usize, at: &str, c: &mut String) {
        let dtype = self.body.nodes[n].dtype;
        let (ty, value) = (ctype(dtype), |v: usize| expr::narrowed(dtype, &self.name(n, v)));
        if self.width == VECTOR_WIDTH {
            let list: Vec<String> = (0..VECTOR_WIDTH).map(value).collect();
            let _ = writeln!(c, "      store4({at}, Vec4<{ty}>{{{{{}}}}});", list.join(", "));
        } else {
            let _ = writeln!(c, "      *({at}) = {};", value(0));
        }
    }
}

/// C that declares pointers `p0` … and `q0` … to the arguments of the body's loads and stores, from `first` on.
pub fn pointers(body: &Body, first: usize, c: &mut String) {
    for (i, l) in body.loads.iter().enumerate() {
        let t = ctype(l.dtype);
        let _ = writeln!(c, "  PTR(const {t}) p{i} = ARG(const {t}, {});", first + i);
    }
    for (k, (_, n)) in body.stores.iter().enumerate() {
        let t = ctype(body.nodes[*n].dtype);
        let _ = writeln!(c, "  PTR({t}) q{k} = ARG({t}, {});", first + body.loads.len() + k);
    }
}

/// The C type of positions in a space and of offsets of its loads.
pub fn position_type(dims: &[Extent], loads: &[Load]) -> &'static str {
    let all: Extent = dims.iter().product();
    let spans: Vec<Extent> = loads.iter().map(|l| span(dims, &l.strides)).collect();
    index_type(spans.iter().chain([&all]))
}
