//! The list of supported and refused operators, for documentation and reports.

use of_ops::OpDecl;

use super::entry::ImportFn;
use super::{contrib, ml, preview, table};
use crate::export::opset;
use crate::import::{NEWEST_OPSET, as_is, declaration};

/// The operators of ai.onnx with the operator sets that defined them anew, one a line; a set that withdrew the
/// operator has a minus. Source: the history of schemas in ONNX.
const OPERATORS: &str = include_str!("operators.txt");

/// An operator of a model.
#[derive(Clone)]
pub struct Operator {
    /// The domain; empty for ai.onnx.
    pub domain: &'static str,
    /// The operator.
    pub name: &'static str,
    /// The first and the last operator set that has it.
    pub sets: [i64; 2],
    /// How it is imported.
    pub support: Support,
}

/// How an operator is imported.
#[derive(Clone)]
pub enum Support {
    /// As this op of the IR.
    Op(&'static dyn OpDecl),
    /// As several ops.
    Ops,
    /// It is not supported, for this reason.
    Refused(&'static str),
}

/// Every operator of ai.onnx, and those of other domains that are known; alphabetical in each domain.
pub fn operators() -> Vec<Operator> {
    let other = |domain, name, support| Operator { domain, name, sets: [1, 1], support };
    let mut all: Vec<Operator> = onnx().collect();
    // Models use operators in the ONNX domain that no ONNX version defines.
    let more = table::TABLE.iter().filter(|e| onnx().all(|o| o.name != e.op));
    all.extend(
        more.map(|e| Operator { domain: "", name: e.op, sets: [e.since, NEWEST_OPSET], support: Support::Ops })
            .collect::<Vec<_>>(),
    );
    for e in contrib::TABLE.iter().chain(ml::TABLE).chain(preview::TABLE) {
        if all.iter().all(|o| (o.domain, o.name) != (e.domain, e.op)) {
            let sets = [e.since, opset::of_domain(e.domain).max(e.since)];
            all.push(Operator { sets, ..other(e.domain, e.op, Support::Ops) });
        }
    }
    all.extend(contrib::REFUSED.iter().map(|row| other(contrib::DOMAIN, row.0, Support::Refused(row.1))));
    for decl in of_ops::list::ALL {
        for (domain, name) in decl.onnx().iter().filter_map(|name| name.split_once("::")) {
            match all.iter_mut().find(|o| (o.domain, o.name) == (domain, name)) {
                Some(o) => o.support = Support::Op(*decl),
                None => all.push(other(domain, name, Support::Op(*decl))),
            }
        }
    }
    of_ir::sort::by_key(&mut all, |o| (o.domain, o.name));
    all
}

fn onnx() -> impl Iterator<Item = Operator> {
    OPERATORS.lines().filter_map(|line| {
        let (name, versions) = line.split_once(' ')?;
        let versions: Vec<i64> = versions.split(' ').filter_map(|v| v.parse().ok()).collect();
        let first = versions.first()?.abs();
        // A set that withdraws an operator is the last in its list.
        let last = versions.last().filter(|v| **v < 0).map_or(NEWEST_OPSET, |v| -v - 1);
        Some(Operator { domain: "", name, sets: [first, last], support: support(name) })
    })
}

/// What becomes of the operator `name` of ai.onnx.
fn support(name: &str) -> Support {
    let rows = || table::TABLE.iter().filter(|e| e.op == name);
    // An operator imported one to one needs an op that declares it.
    let as_it_is = rows().any(|e| e.import as usize == as_is as ImportFn as usize);
    match declaration(name) {
        Some(decl) => Support::Op(decl),
        None if rows().next().is_some() && !as_it_is => Support::Ops,
        None => Support::Refused(MISSING),
    }
}

const MISSING: &str = "no op of the IR computes it";

/// Why an operator that is not read is not.
pub(crate) fn why_not(domain: &str, name: &str) -> &'static str {
    match domain {
        "" if onnx().any(|o| o.name == name) => MISSING,
        "" | contrib::DOMAIN | "ai.onnx.ml" => "the operator is not known",
        _ => "the domain's operators are not known",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_sorted_and_complete() {
        let all = operators();
        assert!(all.windows(2).all(|pair| (pair[0].domain, pair[0].name) < (pair[1].domain, pair[1].name)));
        // Whatever is read is in the list.
        let known = |name: &str| all.iter().any(|o| o.domain.is_empty() && o.name == name);
        for decl in of_ops::list::ALL {
            for name in decl.onnx() {
                assert!(known(name) || name.contains("::"), "{} is no operator", name);
            }
        }
    }

    #[test]
    fn operator_set_selects_the_importer() {
        for o in operators() {
            let found = super::super::find(o.domain, o.name, o.sets[1]).is_some();
            assert!(found || matches!(o.support, Support::Refused(MISSING)), "{}", o.name);
        }
        assert_eq!(operators().iter().find(|o| o.name == "Upsample").unwrap().sets, [1, 9]);
    }
}
