//! Local functions: their bodies are inlined at the call.

use std::collections::HashMap;

use super::attribute::Attributes;
use super::declared::Declared;
use super::model::opsets;
use super::report::ImportError;
use super::scope::Bound;
use super::{Call, Context, Importer};
use crate::proto::{FunctionProto, NodeProto};

impl<'m> Importer<'m, '_> {
    /// Imports the body of `function` in a new scope; returns the values of its outputs.
    pub(super) fn call(
        &mut self,
        function: &'m FunctionProto,
        node: &'m NodeProto,
        inputs: &[Bound],
        mut attrs: Attributes<'m>,
    ) -> Result<Vec<Bound>, ImportError> {
        if self.context.calls.iter().any(|c| std::ptr::eq(c.function, function)) {
            return Err(ImportError::invalid(format!("function '{}' calls itself", function.name())));
        }
        if inputs.len() > function.input.len() || node.output.len() > function.output.len() {
            let what = format!(
                "function '{}' takes {} inputs and gives {} outputs, the call has {} and {}",
                function.name(),
                function.input.len(),
                function.output.len(),
                inputs.len(),
                node.output.len()
            );
            return Err(ImportError::invalid(what));
        }
        attrs.default_from(Attributes::read(&function.attribute_proto, &Attributes::default(), self.external)?);
        if let Some(name) = attrs.names().find(|n| !declares(function, n)) {
            return Err(ImportError::invalid(format!("function '{}' has no attribute '{name}'", function.name())));
        }
        let mut opsets: HashMap<&'m str, i64> = opsets(&function.opset_import)?;
        // Old writers leave out the sets that function and model share.
        for (domain, version) in &self.context.opsets {
            opsets.entry(domain).or_insert(*version);
        }
        self.enter()?;
        let mut calls = self.context.calls.clone();
        calls.push(Call { function, name: call_name(node) });
        let context = std::mem::replace(&mut self.context, Context { opsets, attrs, calls });
        let scope = std::mem::take(&mut self.scope);

        self.scope.push();
        for (i, name) in function.input.iter().enumerate() {
            self.scope.bind(name, inputs.get(i).copied().unwrap_or(Bound::Absent));
        }
        self.nodes(&function.node, &Declared::new());
        let outputs: Vec<Option<Bound>> = function.output.iter().map(|o| self.scope.get(o)).collect();

        self.leave();
        self.context = context;
        self.scope = scope;
        if self.nodes_left.is_none() {
            return Err(ImportError::Poisoned);
        }
        let undefined = |name: &String| {
            ImportError::invalid(format!("output '{name}' of function '{}' is not defined", function.name()))
        };
        let outputs = function.output.iter().zip(outputs).map(|(n, o)| o.ok_or_else(|| undefined(n)));
        let outputs: Vec<Bound> = outputs.collect::<Result<_, _>>()?;
        for (name, bound) in node.output.iter().zip(&outputs) {
            if let Bound::Value(v) = bound
                && !name.is_empty()
                && self.rw.graph().def_op(*v).is_some()
            {
                self.rw.set_name(*v, name.as_str());
            }
        }
        Ok(outputs)
    }
}

fn declares(function: &FunctionProto, attribute: &str) -> bool {
    function.attribute.iter().any(|a| a == attribute) || function.attribute_proto.iter().any(|a| a.name() == attribute)
}

/// The call as locations name it.
fn call_name(node: &NodeProto) -> String {
    match node.name() {
        "" => node.output.first().map_or_else(|| node.op_type().to_owned(), Clone::clone),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_named_by_node_or_output() {
        let named = NodeProto { name: Some("n".into()), output: vec!["y".into()], ..NodeProto::default() };
        assert_eq!(call_name(&named), "n");
        assert_eq!(call_name(&NodeProto { name: None, ..named }), "y");
    }
}
