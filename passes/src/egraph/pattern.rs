//! Rewrite patterns as text: `mul(add(a, b), c) = add(mul(a, c), mul(b, c))`.
//!
//! A name with operands is an op without attributes and without the prefix `of.`. Any other name is a variable; a
//! capital first letter restricts it to constants. A number is a constant whose elements all have that value. Patterns
//! match the operands of `add`, `mul`, `max` and `min` in either order.
//!
//! Shapes of variables are declared next to the equation: in `x[*b m k] w[k n] s[]` equal names are equal extents, and
//! `*b` matches any number of leading axes. A variable without brackets has any shape.

use std::collections::BTreeMap;

use egg::Id;
use of_diag::Location;
use of_ir::{Attrs, DType, Elements, OpDef, Tensor};
use of_ops::Kind;

use super::language::Node;
use super::view::{Term, View};

/// One side of an equation.
#[derive(Clone, Debug, PartialEq)]
pub enum Pattern {
    /// Any class; the same class for each occurrence of the name.
    Variable(String),
    /// A constant whose elements all have this value.
    Number(f64),
    /// An op: its full name and operands.
    Op(String, Vec<Pattern>),
}

/// A match: the classes bound to variables, and the matched e-nodes.
#[derive(Clone, Default)]
pub struct Match<'a> {
    /// Classes by variable.
    pub classes: BTreeMap<String, Id>,
    /// E-nodes in the order of the pattern.
    pub nodes: Vec<&'a Node>,
}

/// The declared shape of a variable.
#[derive(Clone, Debug, PartialEq)]
pub struct ShapePattern {
    /// Name of the leading axes.
    pub lead: Option<String>,
    /// The other axes: names or numbers.
    pub axes: Vec<String>,
}

/// Parses a pattern.
///
/// # Panics
/// When it is malformed: patterns are part of the program, and a test parses them all.
pub fn parse(text: &str) -> Pattern {
    let mut rest = text.trim();
    let p = term(&mut rest);
    assert!(rest.trim().is_empty(), "'{text}': '{rest}' is left over");
    p
}

fn term(rest: &mut &str) -> Pattern {
    *rest = rest.trim_start();
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.' || c == '-')).unwrap_or(rest.len());
    let name = &rest[..end];
    *rest = rest[end..].trim_start();
    if let Some(inner) = rest.strip_prefix('(') {
        *rest = inner;
        let mut operands = Vec::new();
        loop {
            operands.push(term(rest));
            *rest = rest.trim_start();
            match (rest.strip_prefix(','), rest.strip_prefix(')')) {
                (Some(r), _) => *rest = r,
                (_, Some(r)) => {
                    *rest = r;
                    return Pattern::Op(format!("of.{name}"), operands);
                }
                _ => panic!("a ')' is missing before '{rest}'"),
            }
        }
    }
    assert!(!name.is_empty(), "a name is missing before '{rest}'");
    name.parse().map_or_else(|_| Pattern::Variable(name.into()), Pattern::Number)
}

/// Parses the shapes of variables, see the module documentation.
pub fn shapes(text: &str) -> BTreeMap<String, ShapePattern> {
    let mut out = BTreeMap::new();
    let mut rest = text.trim();
    while let Some((name, tail)) = rest.split_once('[') {
        let (inner, tail) = tail.split_once(']').unwrap_or((tail, ""));
        let mut axes: Vec<String> = inner.split_whitespace().map(str::to_owned).collect();
        let lead = axes.first().and_then(|a| a.strip_prefix('*')).map(str::to_owned);
        if lead.is_some() {
            axes.remove(0);
        }
        out.insert(name.trim().to_owned(), ShapePattern { lead, axes });
        rest = tail.trim_start();
    }
    out
}

/// Whether the classes of a match have the declared shapes.
pub fn fits(view: &View<'_>, m: &Match<'_>, shapes: &BTreeMap<String, ShapePattern>) -> bool {
    let mut bound: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut bind = |name, dims: &[usize]| *bound.entry(name).or_insert_with(|| dims.to_vec()) == dims;
    shapes.iter().all(|(name, declared)| {
        let Some(dims) = m.classes.get(name).and_then(|c| view.dims(*c)) else { return false };
        let Some(lead) = dims.len().checked_sub(declared.axes.len()) else { return false };
        let leads = declared.lead.as_deref().map_or(lead == 0, |l| bind(l, &dims[..lead]));
        leads
            && declared.axes.iter().zip(&dims[lead..]).all(|(name, d)| match name.parse::<usize>() {
                Ok(n) => n == *d,
                Err(_) => bind(name, &[*d]),
            })
    })
}

/// Most matches per class. Cyclic classes have as many matches as paths, more than a rule may apply per round.
const MAX_MATCHES: usize = 1 << 12;

const COMMUTATIVE: &[&str] = &["of.add", "of.mul", "of.max", "of.min"];

/// Appends the matches of a pattern at a class to `out`. Classes that depend only on constants are not matched: they
/// are computed at compile time in any form.
pub fn matches<'a>(view: &View<'a>, p: &Pattern, class: Id, so_far: &Match<'a>, out: &mut Vec<Match<'a>>) {
    match p {
        Pattern::Variable(name) => {
            let known = name.starts_with(char::is_uppercase);
            if so_far.classes.get(name).is_some_and(|c| !view.same(*c, class)) || (known && !view.known(class)) {
                return;
            }
            let mut m = so_far.clone();
            m.classes.insert(name.clone(), class);
            out.push(m);
        }
        Pattern::Number(n) => {
            // Patterns have few digits; models hold the value rounded to their element type.
            if view.splat(class).is_some_and(|x| (x - n).abs() <= 1e-6 * n.abs()) {
                out.push(so_far.clone());
            }
        }
        Pattern::Op(name, operands) if !view.known(class) => {
            for node in view.nodes(view.graph.egg.find(class)) {
                if view.graph.op_and_attrs(node).is_none_or(|(def, _)| def.name() != name)
                    || node.children.len() != operands.len()
                    || out.len() > MAX_MATCHES
                {
                    continue;
                }
                at_node(view, operands, node, false, so_far, out);
                if COMMUTATIVE.contains(&name.as_str()) {
                    at_node(view, operands, node, true, so_far, out);
                }
            }
        }
        Pattern::Op(..) => (),
    }
}

fn at_node<'a>(
    view: &View<'a>,
    operands: &[Pattern],
    node: &'a Node,
    swapped: bool,
    so_far: &Match<'a>,
    out: &mut Vec<Match<'a>>,
) {
    let mut first = so_far.clone();
    first.nodes.push(node);
    let mut partial = vec![first];
    for (i, p) in operands.iter().enumerate() {
        let child = node.children[if swapped { operands.len() - 1 - i } else { i }];
        let mut next = Vec::new();
        for m in partial.iter().take(MAX_MATCHES) {
            matches(view, p, child, m, &mut next);
        }
        partial = next;
    }
    out.append(&mut partial);
}

/// The term of a pattern under a match; `dtype` is that of numbers.
pub fn instantiate(p: &Pattern, m: &Match<'_>, dtype: DType) -> Option<Term> {
    Some(match p {
        Pattern::Variable(name) => Term::Class(*m.classes.get(name)?),
        Pattern::Number(n) => Term::constant(Tensor::from_elements(dtype, Vec::new(), Elements::Float(vec![*n])).ok()?),
        Pattern::Op(name, operands) => {
            let operands = operands.iter().map(|o| instantiate(o, m, dtype)).collect::<Option<Vec<_>>>()?;
            let (def, attrs) = bare(name)?;
            Term::Op(def, attrs, operands)
        }
    })
}

/// The op called `name` without attributes.
pub fn bare(name: &str) -> Option<(&'static dyn OpDef, Attrs)> {
    let decl = of_ops::decl(name).filter(|d| d.kind() != Kind::Structural)?;
    Some((decl.as_def(), Attrs::new()))
}

/// The variables of a pattern, each once.
pub fn variables(p: &Pattern, out: &mut Vec<String>) {
    match p {
        Pattern::Variable(v) if !out.contains(v) => out.push(v.clone()),
        Pattern::Op(_, operands) => operands.iter().for_each(|o| variables(o, out)),
        _ => {}
    }
}

/// Locations of the e-nodes of a match.
pub fn locations(view: &View<'_>, m: &Match<'_>) -> Vec<Location> {
    m.nodes.iter().map(|n| view.graph.location(n)).collect()
}
