//! The difference between two plans: what was compiled, for what, into which tasks, kernels, values and weights.
//!
//! Each part of a plan is a list of items with facts ([`items`]). Items of both plans are paired by their keys, and a
//! change is a pair whose facts differ, or an item without a partner. No names of a plan's parts are invented here.

mod items;

use std::collections::{HashMap, HashSet, VecDeque};

use of_plan::{PlanFile, Program};

/// What differs between two plans, part by part, in a fixed order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlanDiff {
    /// The parts, those without changes too.
    pub parts: Vec<Part>,
}

/// A part of both plans.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// `kernels`, `weights` …
    pub title: &'static str,
    /// Items that are the same in both plans.
    pub equal: usize,
    /// All others, in the order of the plans; values of memory come largest first.
    pub changes: Vec<Change>,
}

/// A change of one item.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// What happened to it.
    pub kind: ChangeKind,
    /// The item: a flag, a program, the origin of a task, the name of a kernel …
    pub name: String,
    /// The facts that changed, as they were; all facts of an item that is gone.
    pub before: Vec<Fact>,
    /// The same facts in the other plan; all facts of an item that is new.
    pub after: Vec<Fact>,
}

/// What happened to an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChangeKind {
    /// Its facts differ.
    Changed,
    /// Something else executes it: native code, or another backend.
    Moved,
    /// Only the second plan has it.
    New,
    /// Only the first plan has it.
    Gone,
}

impl ChangeKind {
    /// All kinds, in the order of reports.
    pub const ALL: [ChangeKind; 4] = [ChangeKind::Changed, ChangeKind::Moved, ChangeKind::New, ChangeKind::Gone];

    /// The kind in one word.
    pub fn name(self) -> &'static str {
        match self {
            ChangeKind::Changed => "changed",
            ChangeKind::Moved => "moved",
            ChangeKind::New => "new",
            ChangeKind::Gone => "gone",
        }
    }
}

/// A fact of an item.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fact {
    /// What it says; empty where the item's name does.
    pub label: &'static str,
    /// Its value.
    pub value: FactValue,
}

/// The value of a fact.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FactValue {
    /// Anything with a text.
    Text(String),
    /// A count.
    Number(i64),
    /// A size.
    Bytes(u64),
}

/// The fact that says what executes a task: a change of it is a move.
const EXECUTOR: &str = "on";

/// An item of a part of one plan.
struct Item {
    name: String,
    /// Keys, the most telling first: items pair by the first key that both have.
    keys: Vec<String>,
    facts: Vec<Fact>,
}

impl PlanDiff {
    /// Compares two plans.
    pub fn of(a: &PlanFile, b: &PlanFile) -> PlanDiff {
        let mut parts = vec![
            part("provenance", items::provenance(a), items::provenance(b)),
            part("target", items::target(a), items::target(b)),
            part("sections", items::sections(a), items::sections(b)),
            part("programs", items::programs(a), items::programs(b)),
        ];
        let mut inside: Vec<Part> = PROGRAM_PARTS.iter().map(|(title, _)| Part::empty(title)).collect();
        let both = program_pairs(a, b);
        for (pa, pb) in &both {
            let of_program = if both.len() > 1 { format!("{}: ", pb.name) } else { String::new() };
            for (whole, (title, items)) in inside.iter_mut().zip(PROGRAM_PARTS) {
                whole.add(part(title, items(a, pa), items(b, pb)), &of_program);
            }
        }
        inside.iter_mut().filter(|p| p.title == "values").for_each(Part::largest_first);
        parts.extend(inside);
        parts.push(part("kernels", items::kernels(a), items::kernels(b)));
        parts.push(part("weights", items::weights(a), items::weights(b)));
        parts.push(part("meshes", items::meshes(a), items::meshes(b)));
        PlanDiff { parts }
    }

    /// Whether the plans are the same. The checksums of all sections are among the items, so no byte differs then.
    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(|p| p.changes.is_empty())
    }
}

/// The items of one program of a plan.
type ProgramItems = fn(&PlanFile, &Program) -> Vec<Item>;

/// The parts of a program.
const PROGRAM_PARTS: [(&str, ProgramItems); 5] = [
    ("ports", items::ports),
    ("tasks", items::tasks),
    ("transfers", items::transfers),
    ("memory", items::memory),
    ("values", items::values),
];

/// Programs of both plans that belong together.
fn program_pairs<'p>(a: &'p PlanFile, b: &'p PlanFile) -> Vec<(&'p Program, &'p Program)> {
    let (of_a, of_b) = (items::programs(a), items::programs(b));
    let program = |plan: &'p PlanFile, i: usize| plan.plan().programs.get(i);
    let pairs = pairs(&of_a, &of_b).into_iter();
    pairs.filter_map(|(i, j)| Some((program(a, i?)?, program(b, j?)?))).collect()
}

impl Part {
    fn empty(title: &'static str) -> Part {
        Part { title, equal: 0, changes: Vec::new() }
    }

    /// Adds the same part of another program, whose name stands before those of its items.
    fn add(&mut self, other: Part, program: &str) {
        self.equal += other.equal;
        let named = |c: Change| Change { name: format!("{program}{}", c.name), ..c };
        self.changes.extend(other.changes.into_iter().map(named));
    }

    /// How many changes of a kind it has.
    pub fn count(&self, kind: ChangeKind) -> usize {
        self.changes.iter().filter(|c| c.kind == kind).count()
    }

    fn largest_first(&mut self) {
        let bytes = |f: &Fact| if let FactValue::Bytes(n) = f.value { n } else { 0 };
        let size = |c: &Change| c.before.iter().chain(&c.after).map(bytes).max().unwrap_or(0);
        of_ir::sort::by_key(&mut self.changes, |c| std::cmp::Reverse(size(c)));
    }
}

/// Pairs the items of a part, and keeps those that differ.
fn part(title: &'static str, a: Vec<Item>, b: Vec<Item>) -> Part {
    let mut out = Part::empty(title);
    for pair in pairs(&a, &b) {
        match (pair.0.map(|i| &a[i]), pair.1.map(|j| &b[j])) {
            (Some(a), Some(b)) => match change(a, b) {
                None => out.equal += 1,
                Some(change) => out.changes.push(change),
            },
            (Some(a), None) => out.changes.push(alone(ChangeKind::Gone, a)),
            (None, Some(b)) => out.changes.push(alone(ChangeKind::New, b)),
            (None, None) => {}
        }
    }
    out
}

fn alone(kind: ChangeKind, item: &Item) -> Change {
    let facts = item.facts.clone();
    let (before, after) = if kind == ChangeKind::Gone { (facts, Vec::new()) } else { (Vec::new(), facts) };
    Change { kind, name: item.name.clone(), before, after }
}

/// The facts that differ, or `None`. Facts pair by their label; a label that one side lacks differs.
fn change(a: &Item, b: &Item) -> Option<Change> {
    let differs = |f: &Fact, other: &Item| !other.facts.contains(f);
    let before: Vec<Fact> = a.facts.iter().filter(|f| differs(f, b)).cloned().collect();
    let after: Vec<Fact> = b.facts.iter().filter(|f| differs(f, a)).cloned().collect();
    let renamed = a.name != b.name;
    if before.is_empty() && after.is_empty() && !renamed {
        return None;
    }
    let moved = before.iter().chain(&after).any(|f| f.label == EXECUTOR);
    let kind = if moved { ChangeKind::Moved } else { ChangeKind::Changed };
    let name = if renamed { format!("{} -> {}", a.name, b.name) } else { a.name.clone() };
    Some(Change { kind, name, before, after })
}

/// Pairs items by their first keys, the rest by their second keys, and so on; equal keys pair in order. Pairs and items of
/// `a` alone are in the order of `a`, and items of `b` alone follow.
fn pairs(a: &[Item], b: &[Item]) -> Vec<(Option<usize>, Option<usize>)> {
    let levels = a.iter().chain(b).map(|i| i.keys.len()).max().unwrap_or(0);
    let mut partner: Vec<Option<usize>> = vec![None; a.len()];
    let mut taken: HashSet<usize> = HashSet::new();
    for level in 0..levels {
        let mut free: HashMap<&str, VecDeque<usize>> = HashMap::new();
        for (j, item) in b.iter().enumerate().filter(|(j, _)| !taken.contains(j)) {
            if let Some(key) = item.keys.get(level) {
                free.entry(key).or_default().push_back(j);
            }
        }
        for (i, item) in a.iter().enumerate() {
            if partner[i].is_none()
                && let Some(key) = item.keys.get(level)
                && let Some(j) = free.get_mut(key.as_str()).and_then(VecDeque::pop_front)
            {
                partner[i] = Some(j);
                taken.insert(j);
            }
        }
    }
    let of_a = partner.iter().enumerate().map(|(i, j)| (Some(i), *j));
    let of_b = (0..b.len()).filter(|j| !taken.contains(j)).map(|j| (None, Some(j)));
    of_a.chain(of_b).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(name: &str, keys: &[&str], facts: &[(&'static str, i64)]) -> Item {
        let facts = facts.iter().map(|(label, n)| Fact { label, value: FactValue::Number(*n) });
        Item { name: name.into(), keys: keys.iter().map(|k| (*k).into()).collect(), facts: facts.collect() }
    }

    #[test]
    fn items_pair_by_the_first_key_that_agrees() {
        let a = [item("x", &["1", "x"], &[]), item("y", &["2", "y"], &[]), item("z", &["3", "z"], &[])];
        let b = [item("y", &["9", "y"], &[]), item("w", &["1", "w"], &[]), item("v", &["8", "v"], &[])];
        let want = [(Some(0), Some(1)), (Some(1), Some(0)), (Some(2), None), (None, Some(2))];
        assert_eq!(pairs(&a, &b), want);
    }

    #[test]
    fn only_differing_facts_are_listed() {
        let a = item("k", &["k"], &[("size", 1), ("count", 7)]);
        let b = item("k", &["k"], &[("size", 2), ("count", 7)]);
        assert!(change(&a, &a).is_none());
        let c = change(&a, &b).unwrap();
        assert_eq!((c.kind, c.before.len(), c.after.len()), (ChangeKind::Changed, 1, 1));
        let on = |n| item("k", &["k"], &[(EXECUTOR, n)]);
        assert_eq!(change(&on(1), &on(2)).unwrap().kind, ChangeKind::Moved);
    }

    #[test]
    fn another_name_is_a_change() {
        let c = change(&item("a", &[], &[]), &item("b", &[], &[])).unwrap();
        assert_eq!(c.name, "a -> b");
    }
}
