//! Assignments: the layout of every value and the selected alternatives that a solution denotes.

use crate::layout::Layout;
use crate::model::{Model, NodeKind, is_alias};

/// The layouts of a function under a solution.
#[derive(Clone, PartialEq, Debug)]
pub struct Assignment {
    /// The layout of each value where it is made, by position in the arena. `None` means replicated, an empty layout
    /// means that the value is not made.
    pub layouts: Vec<Option<Layout>>,
    /// The selected operand of each `of.alternatives`, by position in the arena; 0 for other ops.
    pub selected: Vec<usize>,
    /// The layout in which the readers of a value see it, where there are several.
    pub seen: Vec<Option<Layout>>,
}

impl Assignment {
    /// Everything replicated, and the first operand of each `of.alternatives` selected.
    pub fn replicated(model: &Model<'_>) -> Assignment {
        let g = &model.func.graph;
        let none = vec![None; g.value_slots()];
        Assignment { layouts: none.clone(), selected: vec![0; g.op_slots()], seen: none }
    }

    /// The assignment that these labels of the nodes denote.
    pub fn from_labels(model: &Model<'_>, labels: &[usize]) -> Assignment {
        let mut out = Assignment::replicated(model);
        let made =
            |(node, result): &(usize, usize)| model.choices[*node].candidates[labels[*node]].results[*result].clone();
        out.layouts = model.made_by.iter().map(|m| m.as_ref().map(made)).collect();
        for ((kind_of_node, choices), label) in model.node_kinds.iter().zip(&model.choices).zip(labels) {
            let chosen = &choices.candidates[*label];
            match kind_of_node {
                NodeKind::Shared(v) => out.seen[v.index()] = Some(chosen.results[0].clone()),
                NodeKind::Op(op) if is_alias(model.func.graph.op(*op).name()) => {
                    out.selected[op.index()] = chosen.operands.iter().position(|l| !l.is_empty()).unwrap_or(0);
                }
                _ => {}
            }
        }
        out
    }

    /// The layout of the copy that the readers of a value share, where there is one.
    pub(crate) fn shared_copy(&self, model: &Model<'_>, value: usize) -> Option<&Layout> {
        let seen = self.seen[value].as_ref().filter(|l| !l.is_empty())?;
        let made = self.layouts[value].clone().unwrap_or_else(|| model.broadcast());
        (*seen != made).then_some(seen)
    }
}
