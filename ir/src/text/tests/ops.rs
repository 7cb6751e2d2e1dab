//! Test ops: one for each feature of a declaration.

use crate::{Arity, AttrSlot, OpDef, OpError, OpView, Registry, Signature, Slot, Traits, Type};

struct Fake {
    name: &'static str,
    operands: &'static [Slot],
    results: &'static [Slot],
    regions: usize,
    terminator: bool,
}

const fn slot(arity: Arity) -> Slot {
    Slot { name: "v", arity }
}

const NONE: &[Slot] = &[];
const ONE: &[Slot] = &[slot(Arity::One)];
const ONE_OPTIONAL: &[Slot] = &[slot(Arity::One), slot(Arity::Optional)];
const MANY: &[Slot] = &[slot(Arity::Variadic)];

const fn fake(
    name: &'static str,
    operands: &'static [Slot],
    results: &'static [Slot],
    regions: usize,
    terminator: bool,
) -> Fake {
    Fake { name, operands, results, regions, terminator }
}

static ALL: &[Fake] = &[
    fake("t.return", MANY, NONE, 0, true),
    fake("t.yield", MANY, NONE, 0, true),
    fake("t.const", NONE, ONE, 0, false),
    fake("t.same", ONE_OPTIONAL, ONE, 0, false),
    fake("t.any", MANY, MANY, 0, false),
    fake("t.if", ONE, MANY, 2, false),
    fake("t.loop", MANY, MANY, 1, false),
    // These need quotes.
    fake("odd-name", MANY, MANY, 0, false),
    fake("nodot", MANY, MANY, 1, false),
];

impl OpDef for Fake {
    fn name(&self) -> &'static str {
        self.name
    }
    fn summary(&self) -> &'static str {
        "stands for an op"
    }
    fn signature(&self) -> Signature {
        const ATTRS: &[AttrSlot] = &[AttrSlot { name: "value", kind: "tensor", optional: true }];
        Signature { operands: self.operands, results: self.results, attrs: ATTRS, regions: self.regions }
    }
    fn traits(&self) -> Traits {
        Traits { terminator: self.terminator, ..Traits::default() }
    }
    fn infer(&self, cx: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        match self.name {
            "t.same" => Ok(vec![Type::Tensor(cx.tensor(0)?.clone())]),
            "t.const" => match cx.attrs.get("value") {
                Some(crate::Attr::Tensor(t)) => Ok(vec![Type::Tensor(t.ty())]),
                _ => Err(OpError::attr("'value' must be a tensor").hint("add it")),
            },
            _ => Ok(Vec::new()),
        }
    }
}

/// All of them.
pub(crate) fn registry() -> Registry {
    Registry::new(ALL.iter().map(|f| f as &'static dyn OpDef))
}
