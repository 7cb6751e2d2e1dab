//! Equations as text: `mul(add(a, b), c) = add(mul(a, c), mul(b, c))`.
//!
//! A name with operands is an op of the list without attributes, `of.` left away. Any other name is a variable; one
//! that starts with a capital letter stands for what is known at compile time. A number is a constant of which every
//! element is that number. Operands of `add`, `mul`, `max` and `min` may stand either way round.
//!
//! What the variables are is said beside the equation: `x[*b m k] w[k n] s[]` gives shapes, in which equal names are
//! equal extents and `*b` stands for any number of leading axes. A variable without brackets has any shape.

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
    /// Any class, the same wherever the name stands.
    Variable(String),
    /// A constant whose elements are all this.
    Number(f64),
    /// An op: its full name, operands.
    Op(String, Vec<Pattern>),
}

/// What a match bound: classes to variables, and the e-nodes that matched.
#[derive(Clone, Default)]
pub struct Match<'a> {
    /// Classes by variable.
    pub classes: BTreeMap<String, Id>,
    /// E-nodes in the order of the pattern.
    pub nodes: Vec<&'a Node>,
}

/// The shape of a variable.
#[derive(Clone, Debug, PartialEq)]
pub struct Declared {
    /// Name of the leading axes.
    pub lead: Option<String>,
    /// The other axes: names or numbers.
    pub axes: Vec<String>,
}

/// Reads a pattern.
///
/// # Panics
/// When it is malformed: patterns are part of the program, and a test reads them all.
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

/// Reads shapes of variables, see the top of the file.
pub fn shapes(text: &str) -> BTreeMap<String, Declared> {
    let mut out = BTreeMap::new();
    let mut rest = text.trim();
    while let Some((name, tail)) = rest.split_once('[') {
        let (inner, tail) = tail.split_once(']').unwrap_or((tail, ""));
        let mut axes: Vec<String> = inner.split_whitespace().map(str::to_owned).collect();
        let lead = axes.first().and_then(|a| a.strip_prefix('*')).map(str::to_owned);
        if lead.is_some() {
            axes.remove(0);
        }
        out.insert(name.trim().to_owned(), Declared { lead, axes });
        rest = tail.trim_start();
    }
    out
}

/// Whether the classes of a match have the declared shapes.
pub fn fits(view: &View<'_>, m: &Match<'_>, shapes: &BTreeMap<String, Declared>) -> bool {
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

/// Matches at one class that are looked for. Where classes read themselves there are as many as paths, more than any rule
/// may say in a round.
const MOST: usize = 1 << 12;

const COMMUTATIVE: &[&str] = &["of.add", "of.mul", "of.max", "of.min"];

/// The matches of a pattern at a class, appended to `out`. No op is looked for in what follows from constants: it is computed
/// at compile time, in whatever way it is written.
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
            // Written with few digits; models hold what their element type makes of it.
            if view.splat(class).is_some_and(|x| (x - n).abs() <= 1e-6 * n.abs()) {
                out.push(so_far.clone());
            }
        }
        Pattern::Op(name, operands) if !view.known(class) => {
            for node in view.nodes(view.graph.egg.find(class)) {
                if view.graph.form(node).is_none_or(|(def, _)| def.name() != name)
                    || node.children.len() != operands.len()
                    || out.len() > MOST
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
        for m in partial.iter().take(MOST) {
            matches(view, p, child, m, &mut next);
        }
        partial = next;
    }
    out.append(&mut partial);
}

/// The term that a pattern stands for; `dtype` is that of numbers.
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

/// The names of the variables of a pattern, each once.
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
