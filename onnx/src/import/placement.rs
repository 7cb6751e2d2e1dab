//! Device configurations to meshes, sharding specs to SBP.

use indexmap::IndexMap;
use of_diag::{Code, Diagnostic, Location};
use of_ir::{Attr, Mesh, TensorType, Type};

use super::Importer;
use super::scope::Bound;
use crate::export::PIPELINE_STAGE;
use crate::proto::{DeviceConfigurationProto, NodeProto};
use crate::sharding;

/// The meshes of a model by name.
pub(super) fn meshes(configurations: &[DeviceConfigurationProto]) -> Result<IndexMap<String, Mesh>, Diagnostic> {
    let mut meshes = IndexMap::new();
    for c in configurations {
        let mesh = sharding::mesh(c).map_err(fault)?;
        if meshes.insert(c.name().to_owned(), mesh).is_some() {
            return Err(fault(format!("device configuration '{}' is defined twice", c.name())));
        }
    }
    Ok(meshes)
}

fn fault(message: String) -> Diagnostic {
    Diagnostic::error(Code::SBP, Location::Unknown, message)
}

impl Importer<'_, '_> {
    /// Gives the operands and results of a node the placements that it says.
    pub(super) fn placements(&mut self, node: &NodeProto, loc: &Location) {
        for configuration in &node.device_configurations {
            let name = configuration.configuration_id();
            let Some(mesh) = self.meshes.get(name) else {
                self.report.error(fault(format!("there is no device configuration '{name}'")).or_at(loc));
                continue;
            };
            for spec in &configuration.sharding_spec {
                let Some(bound) = self.scope.get(spec.tensor_name()) else {
                    let what = format!("a sharding names '{}', which is no value", spec.tensor_name());
                    self.report.error(fault(what).or_at(loc));
                    continue;
                };
                let Bound::Value(value) = bound else { continue };
                let Type::Tensor(t) = self.ty(value).clone() else {
                    let what = format!("a sharding is for '{}', which is no tensor", spec.tensor_name());
                    self.report.error(fault(what).or_at(loc));
                    continue;
                };
                match sharding::decode(spec, name, mesh, t.rank()) {
                    Ok(sbp) if t.sbp.as_ref().is_none_or(|old| *old == sbp) => {
                        self.rw.set_type(value, Type::Tensor(TensorType { sbp: Some(sbp), ..t }));
                    }
                    // A value has one placement here; one that changes between nodes would be an exchange of data.
                    Ok(sbp) => {
                        let old = t.sbp.map(|s| s.to_string()).unwrap_or_default();
                        let what = format!("'{}' is placed as {sbp} and as {old}", spec.tensor_name());
                        self.report.error(Diagnostic::error(Code::UNSUPPORTED, loc.clone(), what));
                    }
                    Err(why) => self.report.error(Diagnostic::error(Code::UNSUPPORTED, loc.clone(), why)),
                }
            }
            if let Some(stage) = configuration.pipeline_stage {
                let made = node.output.iter().find(|o| !o.is_empty()).and_then(|o| self.scope.get(o));
                if let Some(Bound::Value(v)) = made
                    && let Some(op) = self.rw.graph().def_op(v)
                {
                    self.rw.set_attr(op, PIPELINE_STAGE, Attr::Int(stage.into()));
                }
            }
        }
    }
}
